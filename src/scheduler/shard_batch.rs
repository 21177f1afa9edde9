//! Jobs that are written together, and the fallback when their shard fails: jobs that may move go to another shard
//! under new ids, and jobs that may have been written are written again under the same ids.

use std::collections::{BTreeMap, HashMap};
use std::time::Duration;

use rand::Rng as _;
use tokio::time::Instant;

use crate::backoff::Backoff;
use crate::domain::{Durability, EnqueueOutcome, JobKey, OnConflict, ShardName, State, TopicName};
use crate::shards::{self, Shard, ShardError};
use crate::store::{self, NewJob, NotWrittenReason, WritePrecondition, WriteResult};

use super::evictions::{MadeRoom, PastRounds};
use super::{AcceptedJob, EnqueueError, Scheduler};

/// First and longest pause before a write of unknown outcome is retried.
const PAUSES: (Duration, Duration) = (Duration::from_millis(50), Duration::from_secs(1));

/// Jobs of one call for one shard, with their indexes in the call.
pub(super) struct ShardBatch {
    pub(super) shard: Shard,
    /// True if the server made the ids, so that another shard may take the jobs under other ids.
    is_movable: bool,
    /// True if the limits of topics hold for the jobs: not for follow-ups, whose Ack must not fail for them.
    is_limited: bool,
    indexes: Vec<usize>,
    jobs: Vec<NewJob>,
}

/// Reason why a shard has not taken a batch.
enum WriteRefusal {
    Unsupported {
        shard: ShardName,
        asked: Durability,
        reached: Durability,
    },
    /// The outcome of the write is unknown, which is less than was requested.
    Unconfirmed {
        asked: Durability,
    },
    Failed(ShardError),
    /// The topics have no room for the jobs.
    TopicFull,
}

/// Results of a batch, with their indexes in the call.
type BatchResults = (Vec<usize>, Vec<Result<AcceptedJob, EnqueueError>>);

/// Shards on which a topic of a batch had no room.
#[derive(Default)]
struct FullShards(Vec<Shard>);

// === impl FullShards ===

impl FullShards {
    fn add(&mut self, shard: &Shard) {
        if !self.0.iter().any(|full| full.index() == shard.index()) {
            self.0.push(shard.clone());
        }
    }
}

// === impl ShardBatch ===

impl ShardBatch {
    /// Creates an empty batch with room for `jobs` jobs.
    pub(super) fn new(shard: Shard, moves: bool, is_limited: bool, jobs: usize) -> ShardBatch {
        let (indexes, jobs) = (Vec::with_capacity(jobs), Vec::with_capacity(jobs));
        ShardBatch { shard, is_movable: moves, is_limited, indexes, jobs }
    }

    pub(super) fn push(&mut self, index: usize, job: NewJob) {
        self.indexes.push(index);
        self.jobs.push(job);
    }

    /// Returns whether a second write, at most `within` later, changes nothing that the first one has written, even
    /// if that job has ended meanwhile, and nothing that others have written since: a record has only its last
    /// request, so a write that replaces could replace its successor. Under ids that the server made lies only what
    /// it has written.
    fn is_repeatable(&self, within: Duration) -> bool {
        let keeps = |job: &NewJob| match job.on_conflict {
            OnConflict::Keep => true,
            OnConflict::Reject => job.request_code.is_some(),
            OnConflict::Replace | OnConflict::Reschedule => false,
        };
        let is_found = |job: &NewJob| {
            job.precondition == WritePrecondition::SameJob || job.retention.duration() >= within
        };
        self.is_movable || self.jobs.iter().all(|job| keeps(job) && is_found(job))
    }

    /// Returns the jobs to write; `again`: they may have been written before. Repeats under ids of clients are
    /// recognized by their records.
    fn jobs_to_write(&self, again: bool) -> Vec<NewJob> {
        let mut jobs = self.jobs.clone();
        if again && self.is_movable {
            let own = |job: &mut NewJob| {
                (job.precondition, job.on_conflict) = (WritePrecondition::SameJob, OnConflict::Keep)
            };
            jobs.iter_mut().for_each(own);
        }
        jobs
    }

    /// Gives jobs that may be written twice a request, if they have none: the second write recognizes the job of the
    /// first one as its own, even if it was deleted in between.
    fn assign_requests(&mut self) {
        let unnamed = |job: &&mut NewJob| {
            job.request_code.is_none()
                && job.on_conflict == OnConflict::Keep
                && job.precondition == WritePrecondition::Anything
        };
        if !self.is_movable {
            let name = |job: &mut NewJob| job.request_code = Some(rand::rng().random());
            self.jobs.iter_mut().filter(unnamed).for_each(name);
        }
    }

    /// Splits the jobs for which their topics have no room from the others, which get their results; their keys are
    /// returned if there are jobs of both kinds.
    fn split_full(
        self,
        written: Vec<shards::Result<WriteResult>>,
    ) -> (BatchResults, Option<ShardBatch>, Vec<JobKey>) {
        if !written.iter().any(is_topic_full) {
            return (self.answer(written), None, Vec::new());
        }
        let (shard, jobs) = (&self.shard, self.jobs.len());
        let batch = || ShardBatch::new(shard.clone(), self.is_movable, self.is_limited, jobs);
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
    fn topics(&self) -> BTreeMap<TopicName, usize> {
        let mut topics = BTreeMap::new();
        for job in &self.jobs {
            *topics.entry(job.key.topic.clone()).or_default() += 1;
        }
        topics
    }

    fn answer(self, written: Vec<shards::Result<WriteResult>>) -> BatchResults {
        let (shard, moves) = (&self.shard, self.is_movable);
        let answer = |(job, written): (NewJob, shards::Result<WriteResult>)| match written {
            Ok(written) => accepted_job(shard, moves, job, written),
            Err(error) => Err(WriteRefusal::Failed(error).error(job, moves)),
        };
        let results = self.jobs.into_iter().zip(written).map(answer);
        (self.indexes, results.collect())
    }

    fn refuse(self, refusal: &WriteRefusal) -> BatchResults {
        let moves = self.is_movable;
        let results = self.jobs.into_iter().map(|job| Err(refusal.error(job, moves)));
        (self.indexes, results.collect())
    }
}

// === impl Scheduler ===

impl Scheduler {
    /// Writes a batch on its shard, or on another one if it may move.
    pub(super) async fn write(
        &self,
        mut run: ShardBatch,
        asked: Option<Durability>,
        until: Option<Instant>,
    ) -> BatchResults {
        // The shard may leave the ring some time after it has begun to drain.
        let last = Instant::now() + self.inner.shards.timeouts().retry_max;
        let until = until.map(|until| until.min(last));
        for job in &mut run.jobs {
            (job.durability, job.deadline) = (asked, until);
        }
        self.set_limits(&mut run);
        if until.is_some() {
            run.assign_requests();
        }
        let (mut tried, mut first): (Vec<ShardName>, Option<WriteRefusal>) = (Vec::new(), None);
        let (mut results, mut full, mut past) =
            (BatchResults::default(), FullShards::default(), PastRounds::default());
        // Jobs of a full topic that are written, by their places in the results.
        let mut places: HashMap<JobKey, usize> = HashMap::new();
        loop {
            let refusal = match self.write_on_shard(&run, asked, until).await {
                Ok(written) => {
                    let (done, rest, keys) = run.split_full(written);
                    if !done.0.is_empty() {
                        past = PastRounds::default();
                    }
                    places.extend(keys.into_iter().zip(results.0.len()..));
                    extend(&mut results, done);
                    let Some(rest) = rest else { return results };
                    run = rest;
                    full.add(&run.shard);
                    WriteRefusal::TopicFull
                }
                Err(refusal) => refusal,
            };
            tried.push(run.shard.name().clone());
            let is_full = matches!(refusal, WriteRefusal::TopicFull);
            let may_move = run.is_movable && refusal.is_shard_specific();
            let next = self.inner.shards.pick_for_new_jobs(run.jobs.len(), &tried);
            if let Some(next) = next.filter(|_| may_move) {
                tracing::debug!(
                    from = %run.shard.name(), to = %next.name(),
                    "a shard failed or refused; its new jobs go to another shard"
                );
                self.move_batch(&mut run, next);
                first.get_or_insert(refusal);
                continue;
            }
            // Room is made on one shard for all that is left, not on each in turn.
            let left = if may_move || is_full {
                self.make_room(&mut run, &full, &mut past).await
            } else {
                None
            };
            let Some(left) = left else {
                // Without a move, whatever the errors of the shards before were: on this one it may have been written.
                let refusal = if may_move { first.unwrap_or(refusal) } else { refusal };
                if matches!(refusal, WriteRefusal::TopicFull) {
                    self.count_refused(&run);
                }
                extend(&mut results, run.refuse(&refusal));
                return results;
            };
            for place in left.iter().filter_map(|key| places.get(key)) {
                results.1[*place].iter_mut().for_each(|job| job.state = State::Expired);
            }
        }
    }

    /// Gives the jobs of a batch new ids of another shard.
    fn move_batch(&self, run: &mut ShardBatch, shard: &Shard) {
        for job in &mut run.jobs {
            job.key.id = self.new_id(shard);
        }
        run.shard = shard.clone();
        self.set_limits(run);
    }

    /// Gives each job of a batch the limits of its topic on the shard.
    fn set_limits(&self, run: &mut ShardBatch) {
        let ShardBatch { shard, is_limited, jobs, .. } = run;
        for same in jobs.chunk_by_mut(|a, b| a.key.topic == b.key.topic) {
            let limits = self.topic_limits(&same[0].key.topic, shard);
            same.iter_mut().for_each(|job| limits.apply_to(job, *is_limited));
        }
    }

    /// Counts jobs for which their topics had no room in the end.
    fn count_refused(&self, run: &ShardBatch) {
        for (topic, jobs) in run.topics() {
            self.inner.metrics.enqueued(topic.as_str(), "refused", jobs as u64);
        }
    }

    /// Makes room for the jobs of a batch on one of the shards that had none, if a topic drops its oldest jobs; a batch that
    /// may move goes to that shard. Returns the keys of the jobs that have left; `None`: no job gets room.
    async fn make_room(
        &self,
        run: &mut ShardBatch,
        full: &FullShards,
        past: &mut PastRounds,
    ) -> Option<Vec<JobKey>> {
        let topics = run.topics();
        for shard in &full.0 {
            let (mut is_made, mut keys, mut unlimited) = (false, Vec::new(), Vec::new());
            for topic in topics.keys() {
                let jobs = run.jobs.iter().enumerate().filter(|(_, job)| job.key.topic == *topic);
                let made = self.make_room_on(shard, topic, jobs, past).await;
                is_made |= made.is_some();
                let MadeRoom { left, unlimited: written } = made.unwrap_or_default();
                past.topics.extend((!left.is_empty()).then(|| topic.clone()));
                keys.extend(left.into_iter().map(|id| JobKey { topic: topic.clone(), id }));
                unlimited.extend(written);
            }
            if is_made {
                past.count += 1;
                if run.shard.index() != shard.index() {
                    self.move_batch(run, shard);
                } else {
                    self.set_limits(run);
                }
                unlimited.into_iter().for_each(|place| run.jobs[place].lift_limits());
                return Some(keys);
            }
        }
        None
    }

    /// Writes a batch on its shard, again and again while that may have been done already.
    async fn write_on_shard(
        &self,
        run: &ShardBatch,
        asked: Option<Durability>,
        until: Option<Instant>,
    ) -> Result<Vec<shards::Result<WriteResult>>, WriteRefusal> {
        let reach = run.shard.write_durability();
        if let Some(asked) = asked.filter(|&asked| asked > reach.max) {
            let shard = run.shard.name().clone();
            return Err(WriteRefusal::Unsupported { shard, asked, reached: reach.max });
        }
        let awaited = asked.filter(|&asked| asked > reach.by_default);
        let repeats = self.inner.shards.timeouts().retry_max;
        let repeat_until = until.filter(|_| run.is_repeatable(repeats));
        let (mut pauses, mut unknown) = (Backoff::new(PAUSES.0, PAUSES.1), None);
        loop {
            let jobs = run.jobs_to_write(unknown.is_some());
            let answer = in_time(until, &run.shard, run.shard.enqueue(jobs)).await;
            let answer = answer.map(|written| shard_result(&run.shard, written));
            let error = match answer.or_else(|late| awaited.map_or(Ok(Err(late)), Err)) {
                Err(asked) => return Err(WriteRefusal::Unconfirmed { asked }),
                Ok(Ok(written))
                    if run.is_movable && written.iter().flatten().all(is_rejected_by_drain) =>
                {
                    let why = "the shard is draining and nothing was written";
                    return Err(WriteRefusal::Failed(ShardError::unavailable(
                        run.shard.name(),
                        why,
                    )));
                }
                Ok(Ok(mut written)) => {
                    if unknown.is_some() && run.is_movable {
                        written.iter_mut().flatten().for_each(report_as_created);
                    }
                    self.count_enqueued(run, &written);
                    return Ok(written);
                }
                Ok(Err(error)) => error,
            };
            if error.outcome_unknown() {
                unknown = Some(error);
            } else if unknown.is_none() {
                return Err(WriteRefusal::Failed(error));
            }
            // From here on the outcome is unknown, whatever a retry returns.
            let pause = run.shard.pause_before_retry(pauses.next_delay());
            let waited = match repeat_until {
                Some(until) => tokio::time::timeout_at(until, pause).await.is_ok(),
                None => false,
            };
            if let Some(error) = unknown.take_if(|_| !waited) {
                return Err(WriteRefusal::Failed(error));
            }
        }
    }

    /// Counts the jobs of a batch; those of the same topic and outcome, which is most, at once.
    fn count_enqueued(&self, run: &ShardBatch, written: &[shards::Result<WriteResult>]) {
        let outcome = |written: &shards::Result<WriteResult>| {
            let written = written.as_ref().ok().filter(|written| written.not_written.is_none());
            written.and_then(|written| written.outcome)
        };
        let answers = run
            .jobs
            .iter()
            .zip(written)
            .map(|(job, written)| (&job.key.topic, outcome(written), is_topic_full(written)));
        for same in answers.collect::<Vec<_>>().chunk_by(|a, b| a == b) {
            let (topic, outcome, is_full) = same[0];
            if is_full {
                // Counted once it is refused, and not on each shard that was tried.
                continue;
            }
            let name = outcome.map_or("refused", EnqueueOutcome::name);
            let count = same.len() as u64;
            self.inner.metrics.enqueued(topic.as_str(), name, count);
            if !matches!(outcome, None | Some(EnqueueOutcome::Unchanged)) {
                self.inner.rates.enqueued(topic, count, self.now());
            }
        }
    }
}

// === impl WriteRefusal ===

impl WriteRefusal {
    /// Returns whether nothing was written, for a reason that another shard need not have.
    fn is_shard_specific(&self) -> bool {
        match self {
            WriteRefusal::Unsupported { .. } | WriteRefusal::TopicFull => true,
            WriteRefusal::Unconfirmed { .. } => false,
            WriteRefusal::Failed(failed) => match failed.error {
                store::Error::Unavailable(_)
                | store::Error::Overloaded(_)
                | store::Error::Full(_) => true,
                store::Error::DeadlineExceeded(_)
                | store::Error::Contention(_)
                | store::Error::OutcomeUnknown(_)
                | store::Error::Corrupt(_) => false,
            },
        }
    }

    fn error(&self, job: NewJob, made: bool) -> EnqueueError {
        match self {
            WriteRefusal::Unsupported { shard, asked, reached } => {
                let (shard, asked, reached) = (shard.clone(), *asked, *reached);
                EnqueueError::DurabilityUnsupported { shard, asked, reached }
            }
            &WriteRefusal::Unconfirmed { asked } => {
                EnqueueError::DurabilityNotReached { asked, id: job.key.id }
            }
            WriteRefusal::TopicFull => EnqueueError::TopicFull(job.into()),
            WriteRefusal::Failed(error) => {
                let id = (!made || error.outcome_unknown()).then_some(job.key.id);
                EnqueueError::Store { error: error.clone(), id }
            }
        }
    }
}

fn extend(results: &mut BatchResults, more: BatchResults) {
    results.0.extend(more.0);
    results.1.extend(more.1);
}

/// Returns the answer of `call`, or at `until` an error of unknown outcome.
async fn in_time<T>(
    until: Option<Instant>,
    shard: &Shard,
    call: impl Future<Output = T>,
) -> Result<T, ShardError> {
    let Some(until) = until else { return Ok(call.await) };
    let late = |_| ShardError::unknown(shard.name(), "no answer in time");
    tokio::time::timeout_at(until, call).await.map_err(late)
}

/// Returns a result per job, or one error for all: that of a job with unknown outcome, an unknown outcome if the
/// shard failed after a part was written, or the first error if none was written.
fn shard_result(
    shard: &Shard,
    written: Vec<shards::Result<WriteResult>>,
) -> shards::Result<Vec<shards::Result<WriteResult>>> {
    let errors = || written.iter().filter_map(|written| written.as_ref().err());
    let (of_shard, is_written) =
        (errors().find(|error| error.error.is_shard_failure()), written.iter().any(Result::is_ok));
    let unknown = errors().find(|error| error.outcome_unknown());
    match (unknown, of_shard.or(errors().next())) {
        (Some(unknown), _) => Err(unknown.clone()),
        (None, Some(error)) if !is_written => Err(error.clone()),
        (None, Some(error)) if error.error.is_shard_failure() => {
            Err(ShardError::unknown(shard.name(), format!("a part was written: {}", error.error)))
        }
        (None, _) => Ok(written),
    }
}

/// Returns whether nothing was written because the topic has no room on the shard.
fn is_topic_full(written: &shards::Result<WriteResult>) -> bool {
    matches!(written, Ok(written) if written.not_written == Some(NotWrittenReason::TopicFull))
}

/// Returns whether a retry found nothing, and no new job is written there any more.
fn is_rejected_by_drain(written: &WriteResult) -> bool {
    written.not_written == Some(NotWrittenReason::Draining)
}

/// Reports CREATED, not UNCHANGED: a retry found the job that an earlier attempt of this call created.
fn report_as_created(written: &mut WriteResult) {
    if written.outcome == Some(EnqueueOutcome::Unchanged) && written.not_written.is_none() {
        written.outcome = Some(EnqueueOutcome::Created);
    }
}

/// Converts the result of a write; `made`: the server made the id, which the caller does not have yet.
fn accepted_job(
    shard: &Shard,
    made: bool,
    job: NewJob,
    written: WriteResult,
) -> Result<AcceptedJob, EnqueueError> {
    match written.not_written {
        None => {}
        Some(NotWrittenReason::Draining) if made => {
            let error = ShardError::unavailable(shard.name(), "the shard is draining");
            return Err(EnqueueError::Store { error, id: None });
        }
        Some(NotWrittenReason::TopicFull) => return Err(EnqueueError::TopicFull(job.into())),
        Some(why) => {
            // The clock of this server is wrong, which is no fault of the caller.
            let why = if made { NotWrittenReason::HistoryLost } else { why };
            let (key, shard) = (job.key, shard.name().clone());
            return Err(EnqueueError::NotWritten { key, shard, why });
        }
    }
    let key = job.key;
    let Some(outcome) = written.outcome else {
        let other_job = job.on_conflict != OnConflict::Reject;
        return Err(EnqueueError::AlreadyExists { key, state: written.state, other_job });
    };
    if let Some(asked) = job.durability.filter(|&asked| asked > written.durability) {
        return Err(EnqueueError::DurabilityNotReached { asked, id: key.id });
    }
    Ok(AcceptedJob {
        id: key.id,
        outcome,
        due: written.due,
        durability: written.durability,
        shard: shard.name().clone(),
        state: written.state,
    })
}
