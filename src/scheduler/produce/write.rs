//! Writes batches, and the fallback when their shard fails: jobs that may move go to another shard under new ids, and jobs
//! that may have been written are written again under the same ids.

use std::collections::HashMap;
use std::time::Duration;

use tokio::time::Instant;

use crate::backoff::{Backoff, BackoffRange};
use crate::domain::{EnqueueOutcome, JobKey, ShardName, State};
use crate::shards::{self, Shard};
use crate::store::RequestResult;

use super::Producer;
use super::evictions::{MadeRoom, PastRounds};
use super::shard_batch::ShardBatch;
use super::write_results::{BatchResults, WriteOutcome, WriteRefusal, WriteResults, is_topic_full};

/// First and longest pause before a write of unknown outcome is retried.
const PAUSES: BackoffRange =
    BackoffRange { min: Duration::from_millis(50), max: Duration::from_secs(1) };

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

// === impl Producer ===

impl Producer {
    /// Writes a batch on its shard, again and again while that may have been done already, or on another one if it may
    /// move.
    pub(in crate::scheduler) async fn write(&self, mut run: ShardBatch) -> BatchResults {
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
        let (mut unknown, mut pauses) = (None, Backoff::new(PAUSES));
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

fn extend(results: &mut BatchResults, more: BatchResults) {
    results.0.extend(more.0);
    results.1.extend(more.1);
}
