//! The verbs of a store by name, for metrics, logs and health.

/// What a call asks of a shard.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Access {
    /// A read by a user: long, or one of many.
    Read,
    /// A read that delivery, settles or upkeep depend on, or one with a time limit of its own. Never refused while reads
    /// are; its failures alone refuse nothing.
    InternalRead,
    Write,
    /// Whether the shard answers. Says nothing about other calls.
    Probe,
}

macro_rules! ops {
    ($($op:ident = $name:literal, $access:ident;)*) => {
        /// A verb of [`Store`](crate::store::Store).
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub(super) enum Op { $(
            #[doc = concat!("`", $name, "`.")]
            $op,
        )* }

        impl Op {
            /// As people see it.
            pub(super) fn name(self) -> &'static str {
                match self { $(Op::$op => $name,)* }
            }

            /// What it asks for: one that only reads works also where a shard has lost its disk or its primary, and
            /// proves nothing about those that write. A read that no user asked for is [`Access::InternalRead`].
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
    Delete = "delete", Write;
    Reschedule = "reschedule", Write;
    Redrive = "redrive", Write;
    Detach = "detach", Write;
    Adopt = "adopt", Write;
    Reap = "reap", InternalRead;
    Orphans = "orphans", InternalRead;
    LeasesOf = "leases_of", InternalRead;
    Prune = "prune", Write;
    Tidy = "tidy", Write;
    List = "list", Read;
    Topics = "topics", InternalRead;
    Ids = "ids", Read;
    Stats = "stats", Read;
    Info = "info", InternalRead;
    Beat = "beat", Write;
    SetState = "set_state", Write;
}
