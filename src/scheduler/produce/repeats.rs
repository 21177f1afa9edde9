//! Enqueues under ids that servers made. Such an id was the answer to an earlier call, so its sender repeats that
//! call, or changes its job. A repeat requests the job as it is; it changes nothing, under every policy.

use crate::domain::{Job, JobKey, OnConflict};
use crate::scheduler::by_shard::ByShard;
use crate::scheduler::request_hash::without_trace_headers;
use crate::scheduler::{Draft, EnqueueError};
use crate::shards::{Op, Shard};

use super::Producer;
use super::enqueue::EnqueueResults;

// === impl Producer ===

impl Producer {
    /// Sets the policy KEEP for each draft that is a repeat, or that finds no job. A draft with a request id is
    /// recognized by that; a draft with KEEP needs no check. A draft whose shard does not answer gets that error as
    /// its result.
    pub(in crate::scheduler) async fn keep_repeats_unchanged(
        &self,
        drafts: &mut [Draft],
        results: &mut EnqueueResults,
    ) {
        let mut asked = ByShard::new();
        for (index, draft) in drafts.iter().enumerate() {
            let Some(id) = draft.id.as_ref().filter(|_| may_change(draft)) else { continue };
            let key = JobKey { topic: draft.topic.clone(), id: id.clone() };
            if let Some(shard) = id.shard().and_then(|_| self.inner.shards.owner(&key)) {
                asked.add(shard, (index, key), 0);
            }
        }
        let read = |shard: &Shard, keys: Vec<JobKey>| {
            let shard = shard.clone();
            async move {
                let count = keys.len();
                match shard.call(Op::Get, |store| store.get(keys, true)).await {
                    Ok(jobs) => jobs.into_iter().map(Ok).collect(),
                    Err(error) => vec![Err(error); count],
                }
            }
        };
        for (index, job) in asked.call(read).await {
            match job {
                Ok(job) if job.as_ref().is_none_or(|job| is_repeat(&drafts[index], job)) => {
                    drafts[index].on_conflict = OnConflict::Keep;
                }
                Ok(_) => {}
                Err(error) => {
                    let id = drafts[index].id.clone();
                    results[index] = Some(Err(EnqueueError::Store { error, id }));
                }
            }
        }
    }
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
