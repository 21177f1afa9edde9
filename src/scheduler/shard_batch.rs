//! Jobs that are written together, and the fallback when their shard fails: jobs that may move go to another shard
//! under new ids, and jobs that may have been written are written again under the same ids.

use std::collections::{BTreeMap, HashMap};
use std::time::Duration;

use rand::Rng as _;
use tokio::time::Instant;

use crate::backoff::Backoff;
use crate::domain::engine::{CommandReply, EnqueueCommandReply, NewJob};
use crate::domain::{Durability, EnqueueOutcome, JobKey, OnConflict, ShardName, State, TopicName};
use crate::shards::{self, Shard, ShardError};
use crate::store::{self, JobRequest, NotWrittenReason, RequestResult, WritePrecondition};

use super::evictions::{MadeRoom, PastRounds};
use super::{AcceptedJob, EnqueueError, Scheduler, WriteTerms};

/// First and longest pause before a write of unknown outcome is retried.
const PAUSES: (Duration, Duration) = (Duration::from_millis(50), Duration::from_secs(1));

/// Jobs of one call for one shard, with their indexes in the call.
pub(super) struct ShardBatch {
    pub(super) shard: Shard,
    /// True if the server made the ids, so that another shard may take the jobs under other ids.
    is_movable: bool,
    terms: WriteTerms,
    indexes: Vec<usize>,
    jobs: Vec<NewJob>,
}

/// Outcome of one write of a batch.
enum WriteOutcome {
    /// The shard has answered for each job.
    Answered(WriteResults),
    /// The jobs may have been written: this write, or one before it, got no definite answer.
    Unknown(ShardError),
    Refused(WriteRefusal),
}

/// Results of the jobs of a batch, in their order.
type WriteResults = Vec<shards::Result<RequestResult>>;

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

/// Way of a batch from shard to shard, and what it has come to.
#[derive(Default)]
struct BatchMoves {
    results: BatchResults,
    /// Shards that have refused it, and the reason of the first one.
    tried: Vec<ShardName>,
    first: Option<WriteRefusal>,
    /// Shards on which a topic had no room.
    full: Vec<Shard>,
    past: PastRounds,
    /// Jobs of a full topic that are written, by their places in the results.
    places: HashMap<JobKey, usize>,
}

// === impl BatchMoves ===

impl BatchMoves {
    /// Adds the answers of a shard to a batch; returns the jobs for which their topics had no room there, if any.
    fn add_answers(&mut self, run: ShardBatch, written: WriteResults) -> Option<ShardBatch> {
        let (done, rest, keys) = run.split_full(written);
        if !done.0.is_empty() {
            self.past = PastRounds::default();
        }
        self.places.extend(keys.into_iter().zip(self.results.0.len()..));
        extend(&mut self.results, done);
        let rest = rest?;
        if !self.full.iter().any(|full| full.index() == rest.shard.index()) {
            self.full.push(rest.shard.clone());
        }
        Some(rest)
    }

    /// Marks the jobs of this call that have left their topics again, for others of it.
    fn mark_expired(&mut self, left: &[JobKey]) {
        for place in left.iter().filter_map(|key| self.places.get(key)) {
            self.results.1[*place].iter_mut().for_each(|job| job.state = State::Expired);
        }
    }
}

// === impl ShardBatch ===

impl ShardBatch {
    /// Creates an empty batch with room for `jobs` jobs.
    pub(super) fn new(
        shard: Shard,
        is_movable: bool,
        terms: WriteTerms,
        jobs: usize,
    ) -> ShardBatch {
        let (indexes, jobs) = (Vec::with_capacity(jobs), Vec::with_capacity(jobs));
        ShardBatch { shard, is_movable, terms, indexes, jobs }
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
    fn requests(&self, again: bool) -> Vec<JobRequest> {
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
    fn assign_requests(&mut self) {
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
    fn unsupported(&self) -> Option<WriteRefusal> {
        let reached = self.shard.write_durability().max;
        let asked = self.terms.asked.filter(|&asked| asked > reached)?;
        Some(WriteRefusal::Unsupported { shard: self.shard.name().clone(), asked, reached })
    }

    /// Returns the outcome of a write that has ended; `None`: it got no answer in time. `unknown`: error of an earlier
    /// write that may have been executed.
    fn outcome(&self, written: Option<WriteResults>, unknown: Option<ShardError>) -> WriteOutcome {
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
    fn split_full(self, written: WriteResults) -> (BatchResults, Option<ShardBatch>, Vec<JobKey>) {
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
    fn topics(&self) -> BTreeMap<TopicName, usize> {
        let mut topics = BTreeMap::new();
        for job in &self.jobs {
            *topics.entry(job.key.topic.clone()).or_default() += 1;
        }
        topics
    }

    fn answer(self, written: WriteResults) -> BatchResults {
        let (shard, moves, asked) = (&self.shard, self.is_movable, self.terms.asked);
        let answer = |(job, written): (NewJob, shards::Result<RequestResult>)| match written {
            Ok(written) => accepted_job((shard, moves, asked), job, &written),
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
    /// Writes a batch on its shard, again and again while that may have been done already, or on another one if it may
    /// move.
    pub(super) async fn write(&self, mut run: ShardBatch) -> BatchResults {
        let retry_max = self.inner.shards.timeouts().retry_max;
        // The shard may leave the ring some time after it has begun to drain.
        let last = Instant::now() + retry_max;
        run.terms.until = run.terms.until.map(|until| until.min(last));
        self.set_limits(&mut run);
        if run.terms.until.is_some() {
            run.assign_requests();
        }
        let mut moves = BatchMoves::default();
        // Error of a write on this shard that may have been executed, and the pauses before it is repeated.
        let (mut unknown, mut pauses) = (None, Backoff::new(PAUSES.0, PAUSES.1));
        loop {
            let until = run.terms.until;
            let outcome = match run.unsupported().filter(|_| unknown.is_none()) {
                Some(refusal) => WriteOutcome::Refused(refusal),
                None => {
                    let write = run.shard.apply(run.requests(unknown.is_some()));
                    let written = match until {
                        Some(until) => tokio::time::timeout_at(until, write).await.ok(),
                        None => Some(write.await),
                    };
                    run.outcome(written, unknown.take())
                }
            };
            let refusal = match outcome {
                WriteOutcome::Answered(written) => {
                    self.count_enqueued(&run, &written);
                    match moves.add_answers(run, written) {
                        Some(rest) => run = rest,
                        None => return moves.results,
                    }
                    WriteRefusal::TopicFull
                }
                WriteOutcome::Unknown(error) => {
                    let pause = run.shard.pause_before_retry(pauses.next_delay());
                    if let Some(until) = until.filter(|_| run.is_repeatable(retry_max))
                        && tokio::time::timeout_at(until, pause).await.is_ok()
                    {
                        unknown = Some(error);
                        continue;
                    }
                    WriteRefusal::Failed(error)
                }
                WriteOutcome::Refused(refusal) => refusal,
            };
            match self.move_or_make_room(run, refusal, &mut moves).await {
                Some(moved) => run = moved,
                None => return moves.results,
            }
            pauses.reset();
        }
    }

    /// Returns the batch after its shard has refused it: moved to another one, or with room made for it. `None`: neither is
    /// possible, and its jobs are refused.
    async fn move_or_make_room(
        &self,
        mut run: ShardBatch,
        refusal: WriteRefusal,
        moves: &mut BatchMoves,
    ) -> Option<ShardBatch> {
        moves.tried.push(run.shard.name().clone());
        let is_full = matches!(refusal, WriteRefusal::TopicFull);
        let may_move = run.is_movable && refusal.is_shard_specific();
        let next = self.inner.shards.pick_for_new_jobs(run.jobs.len(), &moves.tried);
        if let Some(next) = next.filter(|_| may_move) {
            tracing::debug!(
                from = %run.shard.name(), to = %next.name(),
                "a shard failed or refused; its new jobs go to another shard"
            );
            self.move_batch(&mut run, next);
            moves.first.get_or_insert(refusal);
            return Some(run);
        }
        // Room is made on one shard for all that is left, not on each in turn.
        let left = if may_move || is_full {
            self.make_room(&mut run, &moves.full, &mut moves.past).await
        } else {
            None
        };
        let Some(left) = left else {
            // Without a move, whatever the errors of the shards before were: on this one it may have been written.
            let first = moves.first.take().filter(|_| may_move);
            let refusal = first.unwrap_or(refusal);
            if matches!(refusal, WriteRefusal::TopicFull) {
                self.count_refused(&run);
            }
            extend(&mut moves.results, run.refuse(&refusal));
            return None;
        };
        moves.mark_expired(&left);
        Some(run)
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
        let ShardBatch { shard, terms, jobs, .. } = run;
        let are_limited = terms.are_limited();
        for same in jobs.chunk_by_mut(|a, b| a.key.topic == b.key.topic) {
            let limits = self.topic_limits(&same[0].key.topic, shard);
            same.iter_mut().for_each(|job| limits.apply_to(&mut job.enqueue, are_limited));
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
        full: &[Shard],
        past: &mut PastRounds,
    ) -> Option<Vec<JobKey>> {
        let topics = run.topics();
        for shard in full {
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
                unlimited.into_iter().for_each(|place| run.jobs[place].enqueue.lift_limits());
                return Some(keys);
            }
        }
        None
    }

    /// Counts the jobs of a batch; those of the same topic and outcome, which is most, at once.
    fn count_enqueued(&self, run: &ShardBatch, written: &[shards::Result<RequestResult>]) {
        let outcome = |written: &shards::Result<RequestResult>| {
            let written = written.as_ref().ok().map(RequestResult::enqueue_result);
            written.filter(|written| written.not_written.is_none())?.outcome
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

/// Returns a result per job, or one error for all: that of a job with unknown outcome, an unknown outcome if the
/// shard failed after a part was written, or the first error if none was written.
fn shard_result(shard: &Shard, written: WriteResults) -> shards::Result<WriteResults> {
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
fn is_topic_full(written: &shards::Result<RequestResult>) -> bool {
    let is_full = |reason| reason == Some(NotWrittenReason::TopicFull);
    written.as_ref().is_ok_and(|written| is_full(written.enqueue_result().not_written))
}

/// Returns whether a retry found nothing, and no new job is written there any more.
fn is_rejected_by_drain(written: &RequestResult) -> bool {
    written.enqueue_result().not_written == Some(NotWrittenReason::Draining)
}

/// Reports CREATED, not UNCHANGED: a retry found the job that an earlier attempt of this call created.
fn report_as_created(written: &mut RequestResult) {
    let enqueued = written.enqueue_result();
    if enqueued.outcome == Some(EnqueueOutcome::Unchanged) && enqueued.not_written.is_none() {
        let outcome = Some(EnqueueOutcome::Created);
        written.reply = CommandReply::Enqueued(EnqueueCommandReply { outcome, ..enqueued });
    }
}

/// Converts the result of a write on `shard`; `made`: the server made the id, which the caller does not have yet; `asked`:
/// the durability that the caller requests.
fn accepted_job(
    (shard, made, asked): (&Shard, bool, Option<Durability>),
    job: NewJob,
    result: &RequestResult,
) -> Result<AcceptedJob, EnqueueError> {
    let written = result.enqueue_result();
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
        let other_job = job.enqueue.on_conflict != OnConflict::Reject;
        return Err(EnqueueError::AlreadyExists { key, state: written.state, other_job });
    };
    if let Some(asked) = asked.filter(|&asked| asked > result.durability) {
        return Err(EnqueueError::DurabilityNotReached { asked, id: key.id });
    }
    Ok(AcceptedJob {
        id: key.id,
        outcome,
        due: written.due.at,
        durability: result.durability,
        shard: shard.name().clone(),
        state: written.state,
    })
}
