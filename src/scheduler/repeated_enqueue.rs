//! Enqueues under ids that servers made. Such an id was the answer to an earlier call, so its sender repeats that
//! call, or changes its job. A repeat requests the job as it is; it changes nothing, under every policy.

use std::collections::BTreeMap;

use futures::future::join_all;

use crate::domain::{Job, JobKey, OnConflict, ShardName};
use crate::shards::{self, Shard};

use super::enqueue::EnqueueResults;
use super::request_hash::without_trace_headers;
use super::{Draft, EnqueueError, Scheduler};

/// Drafts by shard: their indexes, and the keys of their jobs.
type DraftsByShard = BTreeMap<ShardName, (Shard, Vec<usize>, Vec<JobKey>)>;

// === impl Scheduler ===

impl Scheduler {
    /// Sets the policy KEEP for each draft that is a repeat, or that finds no job. A draft with a request id is
    /// recognized by that; a draft with KEEP needs no check. A draft whose shard does not answer gets that error as
    /// its result.
    pub(super) async fn keep_repeats_unchanged(
        &self,
        drafts: &mut [Draft],
        results: &mut EnqueueResults,
    ) {
        let mut asked = DraftsByShard::new();
        for (index, draft) in drafts.iter().enumerate() {
            let Some(id) = draft.id.as_ref().filter(|_| may_change(draft)) else { continue };
            let key = JobKey { topic: draft.topic.clone(), id: id.clone() };
            if let Some(shard) = id.shard().and_then(|_| self.inner.shards.owner(&key)) {
                let none = || (shard.clone(), Vec::new(), Vec::new());
                let (_, indexes, keys) = asked.entry(shard.name().clone()).or_insert_with(none);
                indexes.push(index);
                keys.push(key);
            }
        }
        for (indexes, jobs) in join_all(asked.into_values().map(read_jobs)).await {
            let jobs = match jobs {
                Ok(jobs) => jobs,
                Err(error) => {
                    for index in indexes {
                        let (id, error) = (drafts[index].id.clone(), error.clone());
                        results[index] = Some(Err(EnqueueError::Store { error, id }));
                    }
                    continue;
                }
            };
            for (index, job) in indexes.into_iter().zip(jobs) {
                if job.is_none_or(|job| is_repeat(&drafts[index], &job)) {
                    drafts[index].on_conflict = OnConflict::Keep;
                }
            }
        }
    }
}

/// Reads the jobs with these keys, and returns them with the indexes of their drafts.
async fn read_jobs(
    (shard, indexes, keys): (Shard, Vec<usize>, Vec<JobKey>),
) -> (Vec<usize>, shards::Result<Vec<Option<Job>>>) {
    (indexes, shard.get(keys, true).await)
}

fn may_change(draft: &Draft) -> bool {
    draft.on_conflict != OnConflict::Keep && draft.request_id.is_none()
}

/// Returns whether the draft requests the job as it is. Due times are compared until the first delivery: after that
/// the job has a due time of its own.
fn is_repeat(draft: &Draft, job: &Job) -> bool {
    let (new, old) = (&draft.spec, &job.spec);
    let is_due = || draft.due.due(job.create_time) == job.due_time;
    new.payload == old.payload
        && without_trace_headers(&new.headers).eq(without_trace_headers(&old.headers))
        && new.retry == old.retry
        && new.lease == old.lease
        && new.retention == old.retention
        && draft.priority.unwrap_or(0) == job.priority
        && draft.expire.map(|expire| expire.at(job.create_time)) == job.expire_time
        && (job.deliveries > 0 || is_due())
}
