//! Verbs of a store that go to it unchanged, one call each (`health/calls.rs`). Verbs with batches or a time limit of
//! their own are methods in `shard`.

use tokio::time::Instant;

use crate::domain::{Job, JobKey, PriorityAgeing, TopicName};
use crate::store::{
    AdoptBatch, Deleted, ExplainedJob, Heartbeat, IdsPage, JobDeletion, JobReschedule,
    LeaseQueryResult, LeaseRef, LeaseRefusal, ListPage, ListQuery, PoliciesPage, PolicyRemoval,
    PolicyWrite, PolicyWriteResult, PruneResult, PruneTopicsResult, RedriveBatch, RedriveResult,
    RescheduleResult, RunningLease, SharedState, StreamLeaseRef, TopicInfo, Unclaim, UnclaimResult,
};

use super::op::Op;
use super::{Result, Shard};

macro_rules! verbs {
    ($($op:ident: $verb:ident($($arg:ident: $type:ty),*) -> $answer:ty;)*) => {
        impl Shard { $(
            #[doc = concat!("`", stringify!($verb), "` of the [`store`](crate::store::Store).")]
            ///
            /// # Errors
            /// Errors of the store; [`Error::Unavailable`](crate::store::Error::Unavailable) when the circuit breaker
            /// is open, [`Error::OutcomeUnknown`](crate::store::Error::OutcomeUnknown) when the call takes too long.
            pub async fn $verb(&self, $($arg: $type),*) -> Result<$answer> {
                self.call(Op::$op, |store| store.$verb($($arg),*)).await
            }
        )* }
    };
}

verbs! {
    Unclaim: unclaim(what: Unclaim) -> UnclaimResult;
    Leases: running_leases(refs: Vec<LeaseRef>) -> Vec<std::result::Result<RunningLease, LeaseRefusal>>;
    Get: get(keys: Vec<JobKey>, full: bool) -> Vec<Option<Job>>;
    Explain: explain(key: JobKey, ageing: Option<PriorityAgeing>, limit: u64) -> Option<ExplainedJob>;
    Delete: delete(items: Vec<JobDeletion>) -> Vec<Option<Deleted>>;
    Reschedule: reschedule(items: Vec<JobReschedule>) -> Vec<RescheduleResult>;
    Redrive: redrive(redrive: RedriveBatch) -> RedriveResult;
    Detach: detach(leases: Vec<StreamLeaseRef>) -> u64;
    Adopt: adopt(adopt: AdoptBatch) -> Vec<bool>;
    Reap: overdue_leases(limit: usize) -> LeaseQueryResult;
    Prune: prune(limit: usize) -> PruneResult;
    PruneTopics: prune_topics(after: Option<TopicName>, limit: usize) -> PruneTopicsResult;
    List: list(list: ListQuery) -> ListPage;
    Topics: topics(prefix: String, after: Option<TopicName>, limit: usize) -> Vec<TopicInfo>;
    Ids: ids(topic: TopicName, from: Option<String>, limit: usize) -> IdsPage;
    WritePolicies: write_policies(policies: Vec<PolicyWrite>, until: Option<Instant>) -> Vec<PolicyWriteResult>;
    Policies: policies(after: u64, limit: usize) -> PoliciesPage;
    ForgetPolicies: forget_policies(removal: PolicyRemoval, until: Option<Instant>) -> bool;
    Heartbeat: heartbeat(beat: Heartbeat) -> SharedState;
}
