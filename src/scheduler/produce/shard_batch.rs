//! Jobs that are written together.

use std::collections::BTreeMap;
use std::time::Duration;

use rand::Rng as _;

use crate::domain::engine::NewJob;
use crate::domain::{JobKey, OnConflict, TopicName};
use crate::scheduler::WriteTerms;
use crate::shards::{self, Shard, ShardError};
use crate::store::{JobRequest, RequestResult, WritePrecondition};

use super::write_results::{
    BatchResults, WriteOutcome, WriteRefusal, WriteResults, accepted_job, is_rejected_by_drain,
    is_topic_full, report_as_created, shard_result,
};

/// Jobs of one call for one shard, with their indexes in the call.
pub(in crate::scheduler) struct ShardBatch {
    pub(in crate::scheduler) shard: Shard,
    /// True if the server made the ids, so that another shard may take the jobs under other ids.
    pub(super) is_movable: bool,
    pub(super) terms: WriteTerms,
    pub(super) indexes: Vec<usize>,
    pub(super) jobs: Vec<NewJob>,
}

// === impl ShardBatch ===

impl ShardBatch {
    /// Creates an empty batch with room for `jobs` jobs.
    pub(in crate::scheduler) fn new(
        shard: Shard,
        is_movable: bool,
        terms: WriteTerms,
        jobs: usize,
    ) -> ShardBatch {
        let (indexes, jobs) = (Vec::with_capacity(jobs), Vec::with_capacity(jobs));
        ShardBatch { shard, is_movable, terms, indexes, jobs }
    }

    pub(in crate::scheduler) fn push(&mut self, index: usize, job: NewJob) {
        self.indexes.push(index);
        self.jobs.push(job);
    }

    /// Returns whether a second write, at most `within` later, changes nothing that the first one has written, even
    /// if that job has ended meanwhile, and nothing that others have written since: a record has only its last
    /// request, so a write that replaces could replace its successor. Under ids that the server made lies only what
    /// it has written.
    pub(super) fn is_repeatable(&self, within: Duration) -> bool {
        let keeps = |job: &NewJob| match job.enqueue.on_conflict {
            OnConflict::Keep => true,
            OnConflict::Reject => job.enqueue.request_code.is_some(),
            OnConflict::Replace | OnConflict::Reschedule => false,
        };
        let is_found = |job: &NewJob| {
            job.enqueue.precondition == WritePrecondition::SameJob
                || job.enqueue.retention.duration() >= within
        };
        self.is_movable || self.jobs.iter().all(|job| keeps(job) && is_found(job))
    }

    /// Returns the requests to write the jobs; `again`: they may have been written before. Repeats under ids of clients
    /// are recognized by their records.
    pub(super) fn requests(&self, again: bool) -> Vec<JobRequest> {
        let WriteTerms { asked, until, .. } = self.terms;
        let request = |job: &NewJob| {
            let mut job = job.clone();
            if again && self.is_movable {
                job.enqueue.precondition = WritePrecondition::SameJob;
                job.enqueue.on_conflict = OnConflict::Keep;
            }
            JobRequest { durability: asked, deadline: until, ..JobRequest::from(job) }
        };
        self.jobs.iter().map(request).collect()
    }

    /// Gives jobs that may be written twice a request, if they have none: the second write recognizes the job of the
    /// first one as its own, even if it was deleted in between.
    pub(super) fn assign_requests(&mut self) {
        let unnamed = |job: &&mut NewJob| {
            job.enqueue.request_code.is_none()
                && job.enqueue.on_conflict == OnConflict::Keep
                && job.enqueue.precondition == WritePrecondition::Anything
        };
        if !self.is_movable {
            let name = |job: &mut NewJob| job.enqueue.request_code = Some(rand::rng().random());
            self.jobs.iter_mut().filter(unnamed).for_each(name);
        }
    }

    /// Returns the refusal of jobs that request a durability which the shard cannot reach.
    pub(super) fn unsupported(&self) -> Option<WriteRefusal> {
        let reached = self.shard.write_durability().max;
        let asked = self.terms.asked.filter(|&asked| asked > reached)?;
        Some(WriteRefusal::Unsupported { shard: self.shard.name().clone(), asked, reached })
    }

    /// Returns the outcome of a write that has ended; `None`: it got no answer in time. `unknown`: error of an earlier
    /// write that may have been executed.
    pub(super) fn outcome(
        &self,
        written: Option<WriteResults>,
        unknown: Option<ShardError>,
    ) -> WriteOutcome {
        let Some(written) = written else {
            let by_default = self.shard.write_durability().by_default;
            return match self.terms.asked.filter(|&asked| asked > by_default) {
                Some(asked) => WriteOutcome::Refused(WriteRefusal::Unconfirmed { asked }),
                None => WriteOutcome::Unknown(ShardError::unknown(
                    self.shard.name(),
                    "no answer in time",
                )),
            };
        };
        match (shard_result(&self.shard, written), unknown) {
            (Ok(written), _)
                if self.is_movable && written.iter().flatten().all(is_rejected_by_drain) =>
            {
                let why = "the shard is draining and nothing was written";
                let error = ShardError::unavailable(self.shard.name(), why);
                WriteOutcome::Refused(WriteRefusal::Failed(error))
            }
            (Ok(mut written), unknown) => {
                if unknown.is_some() && self.is_movable {
                    written.iter_mut().flatten().for_each(report_as_created);
                }
                WriteOutcome::Answered(written)
            }
            (Err(error), _) if error.outcome_unknown() => WriteOutcome::Unknown(error),
            // The outcome stays unknown, whatever a retry returns.
            (Err(_), Some(unknown)) => WriteOutcome::Unknown(unknown),
            (Err(error), None) => WriteOutcome::Refused(WriteRefusal::Failed(error)),
        }
    }

    /// Splits the jobs for which their topics have no room from the others, which get their results; their keys are
    /// returned if there are jobs of both kinds.
    pub(super) fn split_full(
        self,
        written: WriteResults,
    ) -> (BatchResults, Option<ShardBatch>, Vec<JobKey>) {
        if !written.iter().any(is_topic_full) {
            return (self.answer(written), None, Vec::new());
        }
        let (shard, jobs) = (&self.shard, self.jobs.len());
        let batch = || ShardBatch::new(shard.clone(), self.is_movable, self.terms, jobs);
        let (mut done, mut done_results, mut full) = (batch(), Vec::new(), batch());
        for ((index, job), written) in self.indexes.into_iter().zip(self.jobs).zip(written) {
            if is_topic_full(&written) {
                full.push(index, job);
            } else {
                done.push(index, job);
                done_results.push(written);
            }
        }
        let keys = done.jobs.iter().map(|job| job.key.clone()).collect();
        (done.answer(done_results), Some(full), keys)
    }

    /// Returns the topics of the jobs, each with the number of its jobs.
    pub(super) fn topics(&self) -> BTreeMap<TopicName, usize> {
        let mut topics = BTreeMap::new();
        for job in &self.jobs {
            *topics.entry(job.key.topic.clone()).or_default() += 1;
        }
        topics
    }

    pub(super) fn answer(self, written: WriteResults) -> BatchResults {
        let (shard, moves, asked) = (&self.shard, self.is_movable, self.terms.asked);
        let answer = |(job, written): (NewJob, shards::Result<RequestResult>)| match written {
            Ok(written) => accepted_job((shard, moves, asked), job, &written),
            Err(error) => Err(WriteRefusal::Failed(error).error(job, moves)),
        };
        let results = self.jobs.into_iter().zip(written).map(answer);
        (self.indexes, results.collect())
    }

    pub(super) fn refuse(self, refusal: &WriteRefusal) -> BatchResults {
        let moves = self.is_movable;
        let results = self.jobs.into_iter().map(|job| Err(refusal.error(job, moves)));
        (self.indexes, results.collect())
    }
}
