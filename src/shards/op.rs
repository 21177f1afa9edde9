//! Verbs of a store by name, for metrics, logs and health.

use crate::domain::engine::Command;

/// Access that a call needs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Access {
    /// A read by a user: long, or one of many.
    Read,
    /// A read that delivery, settles or upkeep depend on, or one with a time limit of its own. Not refused while
    /// reads by users are; its failures alone refuse no calls.
    InternalRead,
    Write,
    /// A probe of whether the shard answers; it proves nothing about other calls.
    Probe,
}

macro_rules! ops {
    ($($op:ident = $name:literal, $access:ident;)*) => {
        /// A verb of [`Store`](crate::store::Store).
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub enum Op { $(
            #[doc = concat!("`", $name, "`.")]
            $op,
        )* }

        impl Op {
            /// Name in metrics and logs.
            pub(super) fn name(self) -> &'static str {
                match self { $(Op::$op => $name,)* }
            }

            /// Access that the verb needs. A read works also where a shard has lost its disk or its primary, and
            /// proves nothing about writes. A read that no user requested is [`Access::InternalRead`].
            pub(super) fn access(self) -> Access {
                match self { $(Op::$op => Access::$access,)* }
            }
        }
    };
}

ops! {
    Enqueue = "enqueue", Write;
    Claim = "claim", Write;
    Unclaim = "unclaim", Write;
    Leases = "leases", InternalRead;
    Settle = "settle", Write;
    Extend = "extend", Write;
    Get = "get", Read;
    Explain = "explain", Read;
    Delete = "delete", Write;
    Purge = "purge", Write;
    OldestWaiting = "oldest_waiting", InternalRead;
    Evict = "evict", Write;
    Reschedule = "reschedule", Write;
    Redrive = "redrive", Write;
    Detach = "detach", Write;
    Adopt = "adopt", Write;
    Reap = "reap", InternalRead;
    Orphans = "orphans", InternalRead;
    LeasesOf = "leases_of", InternalRead;
    Prune = "prune", Write;
    PruneTopics = "prune_topics", Write;
    List = "list", Read;
    Topics = "topics", InternalRead;
    Ids = "ids", Read;
    Stats = "stats", Read;
    Groups = "groups", Read;
    StoredBytes = "stored_bytes", InternalRead;
    Info = "info", InternalRead;
    Usage = "usage", InternalRead;
    Heartbeat = "heartbeat", Write;
    SetState = "set_state", Write;
    WriteDocuments = "write_documents", Write;
    Documents = "documents", InternalRead;
    ForgetDocuments = "forget_documents", Write;
}

impl From<&Command> for Op {
    /// Returns the verb of a command that a caller sends; `Prune` is the store's own.
    fn from(command: &Command) -> Op {
        match command {
            Command::Enqueue(_) => Op::Enqueue,
            Command::Settle(_) => Op::Settle,
            Command::Unclaim(_) => Op::Unclaim,
            Command::Extend(_) => Op::Extend,
            Command::Detach { .. } => Op::Detach,
            Command::Adopt(_) => Op::Adopt,
            Command::Delete { .. } => Op::Delete,
            Command::Purge(_) => Op::Purge,
            Command::Reschedule { .. } => Op::Reschedule,
            Command::Redrive(_) => Op::Redrive,
            Command::Evict { .. } => Op::Evict,
            Command::Prune => Op::Prune,
        }
    }
}
