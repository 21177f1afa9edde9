//! The verbs of a store that go to it as they come: one call each (`health/calls.rs`). Those that are more
//! (calls put together, a time of their own) are methods of their own in `shard`.

use crate::domain::{Job, JobKey, TopicName};
use crate::store::{
    Adopt, Beat, Census, Delete, Deleted, Ids, Lease, LeaseRef, List, Page, Pruned, Redrive,
    Redriven, Refused, Reschedule, Rescheduled, Selected, Tidied, Tied, Topic, Unclaim, Undone,
};

use super::op::Op;
use super::{Result, Shard};

macro_rules! verbs {
    ($($op:ident: $verb:ident($($arg:ident: $type:ty),*) -> $answer:ty;)*) => {
        impl Shard { $(
            #[doc = concat!("`", stringify!($verb), "` of the [`store`](crate::store::Store).")]
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
    Get: get(keys: Vec<JobKey>, full: bool) -> Vec<Option<Job>>;
    Delete: delete(items: Vec<Delete>) -> Vec<Option<Deleted>>;
    Reschedule: reschedule(items: Vec<Reschedule>) -> Vec<Rescheduled>;
    Redrive: redrive(redrive: Redrive) -> Redriven;
    Detach: detach(leases: Vec<Tied>) -> u64;
    Adopt: adopt(adopt: Adopt) -> Vec<bool>;
    Reap: reap(limit: usize) -> Selected;
    Prune: prune(limit: usize) -> Pruned;
    Tidy: tidy(after: Option<TopicName>, limit: usize) -> Tidied;
    List: list(list: List) -> Page;
    Topics: topics(prefix: String, after: Option<TopicName>, limit: usize) -> Vec<Topic>;
    Ids: ids(topic: TopicName, from: Option<String>, limit: usize) -> Ids;
    Beat: beat(beat: Beat) -> Census;
}
