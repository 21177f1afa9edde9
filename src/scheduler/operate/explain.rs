//! Explain: one job with what explains why it does not run, or the shard that gives no information about it.

use crate::domain::explain::ShardSilence;
use crate::domain::{JobKey, PriorityAgeing, ShardName, TopicName, limit};
use crate::shards::{self, Op, Shard, ShardError};
use crate::store::{self, ExplainedJob};

use super::Operator;

/// Information about a job.
#[derive(Clone, Debug)]
pub enum JobExplanation {
    /// The job was read.
    Found(Box<FoundJob>),
    /// A shard that may have the job gives no information, and no other one has it.
    Unknown {
        /// The shard.
        shard: ShardName,
        /// Cause.
        silence: ShardSilence,
    },
}

/// A job that was read.
#[derive(Clone, Debug)]
pub struct FoundJob {
    /// The job.
    pub explained: ExplainedJob,
    /// Ageing of the priorities of its topic.
    pub ageing: Option<PriorityAgeing>,
    /// Number of failures allowed by its retry policy; `None`: no limit.
    pub attempts_max: Option<u32>,
    /// Number of other servers that are alive and serve its shard.
    pub other_servers: usize,
}

// === impl Operator ===

impl Operator {
    /// Reads a job with what explains why it does not run; `None`: there is no such job.
    ///
    /// # Errors
    /// Errors of the store that concern the job alone, or an overloaded shard.
    pub async fn explain(&self, key: JobKey) -> shards::Result<Option<JobExplanation>> {
        let ageing = self.ageing(&key.topic);
        let explain = |shard: Shard, key| async move {
            let before = limit::READY_BEFORE_MAX;
            let explain = shard.call(Op::Explain, |store| store.explain(key, ageing, before));
            Ok(vec![explain.await?])
        };
        match self.call_on_owners(&key, explain, |found| found).await {
            Ok(found) => Ok(found.map(|(shard, explained)| {
                JobExplanation::Found(Box::new(self.found_job(&shard, explained, ageing)))
            })),
            Err(error) => match silence(&error) {
                Some(silence) => Ok(Some(JobExplanation::Unknown { shard: error.shard, silence })),
                None => Err(error),
            },
        }
    }

    fn ageing(&self, topic: &TopicName) -> Option<PriorityAgeing> {
        self.documents().any()?.settings(topic)?.ageing()
    }

    fn found_job(
        &self,
        shard: &Shard,
        explained: ExplainedJob,
        ageing: Option<PriorityAgeing>,
    ) -> FoundJob {
        FoundJob {
            ageing,
            attempts_max: self
                .retry_policy(&explained.job.key.topic, explained.job.spec.retry.as_deref())
                .max_attempts,
            other_servers: self.other_servers(shard),
            explained,
        }
    }

    /// Number of other servers that were alive at the last heartbeat of this one.
    fn other_servers(&self, shard: &Shard) -> usize {
        let state = shard.watch_shared_state().borrow().clone();
        let Some(state) = state else { return 0 };
        let is_other = |owner| owner != self.inner.replica.nonce;
        let others = state.replicas.iter().filter(|replica| is_other(replica.owner));
        others.filter(|replica| replica.is_alive(state.now)).count()
    }
}

/// Returns the cause for which a shard gives no information; `None`: the error is of another kind.
fn silence(error: &ShardError) -> Option<ShardSilence> {
    match error.error {
        store::Error::Unavailable(_) if error.is_elsewhere => Some(ShardSilence::Elsewhere),
        store::Error::Unavailable(_) => Some(ShardSilence::Unavailable),
        store::Error::OutcomeUnknown(_) => Some(ShardSilence::TimedOut),
        store::Error::Full(_)
        | store::Error::Overloaded(_)
        | store::Error::DeadlineExceeded(_)
        | store::Error::Contention(_)
        | store::Error::Corrupt(_) => None,
    }
}
