//! The verbs of a store that go to it as they come: one call each, behind the guard. Those that are more
//! (calls put together, a time of their own) are methods of their own in `shard`.

use crate::domain::{Job, JobKey, Time, TopicName};
use crate::store::{
    Adopt, Beat, Census, Delete, Deleted, Extend, Ids, Lease, LeaseRef, List, Page, Pruned, Reaped,
    Redrive, Redriven, Refused, Reschedule, Rescheduled, Tidied, Tied, Topic, Unclaim, Undone,
};

use super::op::Op;
use super::{Result, Shard};

macro_rules! verbs {
    ($($op:ident: $verb:ident($($arg:ident: $type:ty),*) -> $answer:ty;)*) => {
        impl Shard { $(
            #[doc = concat!("[`Store::", stringify!($verb), "`](crate::store::Store::", stringify!($verb), ").")]
            ///
            /// # Errors
            /// As the store's; [`Error::Unavailable`](crate::store::Error::Unavailable) when
            /// the circuit breaker is open, [`Error::Unknown`](crate::store::Error::Unknown) when it takes too
            /// long.
            pub async fn $verb(&self, $($arg: $type),*) -> Result<$answer> {
                self.call(Op::$op, |store| store.$verb($($arg),*)).await
            }
        )* }
    };
}

verbs! {
    Unclaim: unclaim(what: Unclaim) -> Undone;
    Leases: leases(refs: Vec<LeaseRef>) -> Vec<std::result::Result<Lease, Refused>>;
    Extend: extend(items: Vec<Extend>) -> Vec<std::result::Result<Time, Refused>>;
    Get: get(keys: Vec<JobKey>, full: bool) -> Vec<Option<Job>>;
    Delete: delete(items: Vec<Delete>) -> Vec<Option<Deleted>>;
    Reschedule: reschedule(items: Vec<Reschedule>) -> Vec<Rescheduled>;
    Redrive: redrive(redrive: Redrive) -> Redriven;
    Detach: detach(leases: Vec<Tied>) -> u64;
    Adopt: adopt(adopt: Adopt) -> Vec<bool>;
    Reap: reap(limit: usize) -> Reaped;
    Prune: prune(limit: usize) -> Pruned;
    Tidy: tidy(after: Option<TopicName>, limit: usize) -> Tidied;
    List: list(list: List) -> Page;
    Topics: topics(prefix: String, after: Option<TopicName>, limit: usize) -> Vec<Topic>;
    Ids: ids(topic: TopicName, from: Option<String>, limit: usize) -> Ids;
    Beat: beat(beat: Beat) -> Census;
}
