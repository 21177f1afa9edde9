//! Producers: each job is enqueued until an answer comes, for as long as its id is remembered. Half of the jobs have a client-chosen id; the others get
//! theirs from the server, and are given up when an unknown outcome has no id.

use std::sync::Arc;
use std::time::Duration;

use rand::rngs::StdRng;
use rand::{Rng as _, SeedableRng as _};
use ringq::pb::{self, JobState};
use tokio::task::JoinSet;
use tokio::time::Instant;

use super::calls::{Failure, Pauses, Replicas};
use super::chain::LINKS;
use super::{Habits, Progress, Shared, job};
use crate::checker::history::{Event, Was, nanos};

/// Share of jobs that are enqueued once more although there was an answer.
const AGAIN: f64 = 0.03;
const BATCH_MAX: usize = 32;
/// Time after which a producer repeats an enqueue no more: within it the id of a job that has ended is remembered, so that
/// the repeat is no new job.
const REPEATS_MAX: Duration = Duration::from_secs(ringq::domain::limit::TOMBSTONE.as_secs() - 10);
/// Pause between two batches, in paces: the batches hold as many jobs as the other producers send together.
const BATCH_PAUSES: u32 = 4;
/// Limit of calls of one producer that wait for their answer.
const OPEN_MAX: usize = 200;
const DELAY_MAX_MS: u64 = 1500;
/// Least delay of jobs that are to be deleted.
const DOOMED_DELAY_MS: u64 = 500;

/// Starts all producers.
pub(super) fn start(shared: &Arc<Shared>, tasks: &mut JoinSet<()>) {
    for lane in 0..shared.habits.producers {
        tasks.spawn(Producer::new(shared, lane).singles());
    }
    tasks.spawn(Producer::new(shared, shared.habits.producers).batches());
}

/// Name of enqueues whose id the server makes, in failure counts.
pub(crate) const NO_ID: &str = "enqueue without id";

struct Producer {
    shared: Arc<Shared>,
    replicas: Replicas,
    random: StdRng,
}

/// A job to be enqueued.
struct Asked {
    job: u32,
    /// Id of the job; empty: the server makes one.
    id: String,
    delay: Duration,
    failing: bool,
    doomed: bool,
    /// True if it replaces whatever has its id.
    supersedes: bool,
}

/// Result of a call.
enum Outcome {
    Done,
    Again,
    GivenUp,
}

impl Producer {
    fn new(shared: &Arc<Shared>, lane: u64) -> Producer {
        let first = usize::try_from(lane).unwrap();
        let replicas = Replicas::new(shared, first);
        Producer { shared: Arc::clone(shared), replicas, random: shared.random(lane) }
    }

    /// Begins jobs at its pace, however long their answers take.
    async fn singles(mut self) {
        let mut open = JoinSet::new();
        while !self.shared.enough.is_cancelled() {
            let asked = self.begin();
            open.spawn(self.fork().single(asked));
            self.rest(1, &mut open).await;
        }
        super::join(&mut open).await;
    }

    async fn batches(mut self) {
        let mut open = JoinSet::new();
        while !self.shared.enough.is_cancelled() {
            let count = self.random.random_range(1..=BATCH_MAX);
            let batch = (0..count).map(|_| self.begin()).collect();
            open.spawn(self.fork().batch(batch));
            self.rest(BATCH_PAUSES, &mut open).await;
        }
        super::join(&mut open).await;
    }

    /// Copies the producer on the same connections, for one call and its repeats.
    fn fork(&mut self) -> Producer {
        self.replicas.next();
        Producer {
            shared: Arc::clone(&self.shared),
            replicas: self.replicas.clone(),
            random: StdRng::seed_from_u64(self.random.random()),
        }
    }

    async fn single(mut self, mut asked: Asked) {
        let (begin, own_id) = (Instant::now(), !asked.id.is_empty());
        let mut pauses = Pauses::new();
        let shard = loop {
            match self.enqueue(&mut asked).await {
                (Outcome::Done, shard) => break shard,
                (Outcome::GivenUp, _) => return,
                (Outcome::Again, _) if begin.elapsed() > REPEATS_MAX => return,
                (Outcome::Again, _) => pauses.pause(&mut self.random).await,
            }
        };
        if own_id {
            self.shared.latencies.add(shard, self.shared.history.now(), begin.elapsed());
        }
        if asked.doomed && own_id && self.random.random_bool(self.shared.habits.superseded) {
            self.supersede(asked.job).await;
        } else if asked.doomed {
            self.delete(asked.job).await;
        } else if own_id && self.random.random_bool(AGAIN) {
            let (job, at) = (asked.job, self.shared.history.now());
            self.shared.history.record([Event::Again { job, at }]);
            self.enqueue(&mut asked).await;
        }
    }

    async fn batch(mut self, mut open: Vec<Asked>) {
        let doomed: Vec<u32> = open.iter().filter(|a| a.doomed).map(|a| a.job).collect();
        let (begin, mut pauses) = (Instant::now(), Pauses::new());
        loop {
            open = self.batch_enqueue(open).await;
            if open.is_empty() || begin.elapsed() > REPEATS_MAX {
                break;
            }
            pauses.pause(&mut self.random).await;
        }
        for job in doomed {
            // The others were given up.
            if self.shared.progress(job).answered {
                self.delete(job).await;
            }
        }
    }

    /// Creates a new job, half of them with a delay, half of them with an id.
    fn begin(&mut self) -> Asked {
        let Habits { chained, failing, deleted, .. } = self.shared.habits;
        let random = &mut self.random;
        let delayed = random.random_bool(0.5);
        let doomed = delayed && random.random_bool(deleted);
        let failing = !doomed && random.random_bool(failing);
        // Half of them succeed within their attempts.
        let fails = 1..2 * job::POLICY.attempts_max - 1;
        let begun = Progress {
            links: if !doomed && random.random_bool(chained) { LINKS } else { 0 },
            failing: failing.then(|| random.random_range(fails)),
            doomed,
            ..Progress::default()
        };
        let job = self.shared.begin(begun);
        let id = if self.random.random_bool(0.5) { job::id(job) } else { String::new() };
        let least = if doomed { DOOMED_DELAY_MS } else { 1 };
        let delay = match delayed {
            true => Duration::from_millis(self.random.random_range(least..DELAY_MAX_MS)),
            false => Duration::ZERO,
        };
        let at = self.shared.history.now();
        self.shared.history.record([Event::Enqueue { job, at, delay: nanos(delay) }]);
        if failing {
            self.shared.history.record([Event::Retried { job, policy: job::POLICY }]);
        }
        Asked { job, id, delay, failing, doomed, supersedes: false }
    }

    /// Deletes a job until that is answered, and enqueues another one under its id: a deletion or an enqueue that is
    /// executed late would remove it.
    async fn supersede(&mut self, job: u32) {
        let mut pauses = Pauses::new();
        let was = loop {
            match self.delete(job).await {
                Some(was) => break was,
                None => pauses.pause(&mut self.random).await,
            }
        };
        let next = if was == Was::Over { None } else { self.shared.begin_beside(job) };
        let Some(next) = next else { return };
        let (at, delay) = (self.shared.history.now(), Duration::ZERO);
        self.shared.history.record([Event::Enqueue { job: next, at, delay: 0 }]);
        let (id, failing, doomed) = (job::id(job), false, false);
        let mut asked = Asked { job: next, id, delay, failing, doomed, supersedes: true };
        while !matches!(self.enqueue(&mut asked).await, (Outcome::Done, _)) {
            pauses.pause(&mut self.random).await;
        }
    }

    /// Sends one delete of a job. `None`: there was no answer, and the outcome is unknown.
    async fn delete(&mut self, job: u32) -> Option<Was> {
        let Progress { id, .. } = self.shared.progress(job);
        let topic = job::topic(job).to_owned();
        let request = pb::DeleteRequest { topic, id, allow_missing: true };
        self.shared.delete_begins(job);
        let mut queue = self.replicas.next_for_ids(&self.shared);
        let call = queue.delete(request);
        let answer = self.shared.answer(&mut self.random, "delete", call).await;
        let response = answer.ok()?;
        let was = match response.previous_state() {
            JobState::Scheduled => Was::Scheduled,
            JobState::Ready | JobState::Running | JobState::Backoff => Was::Open,
            // Cancelled by an earlier call without an answer.
            JobState::Cancelled => Was::Open,
            _ => Was::Over,
        };
        self.shared.deleted(job, was);
        Some(was)
    }

    /// Sends one enqueue; returns the name of the shard, too.
    async fn enqueue(&mut self, asked: &mut Asked) -> (Outcome, String) {
        let verb = if asked.id.is_empty() { NO_ID } else { "enqueue" };
        let (job, durability) = (Some(asked.spec()), self.shared.habits.asked.into());
        let mut request = pb::EnqueueRequest { job, durability, ..Default::default() };
        if asked.supersedes {
            request.on_conflict = pb::ConflictPolicy::Replace.into();
            request.request_id = format!("job-{}", asked.job);
        }
        let mut queue = match asked.id.is_empty() {
            true => self.replicas.next(),
            false => self.replicas.next_for_ids(&self.shared),
        };
        let call = queue.enqueue(request);
        match self.shared.answer(&mut self.random, verb, call).await {
            Ok(pb::EnqueueResponse { id, shard, durability, .. }) => {
                self.answered(asked.job, durability, id, &shard);
                (Outcome::Done, shard)
            }
            Err(failure) => (asked.failed(failure), String::new()),
        }
    }

    /// Sends one enqueue of all; returns the jobs that must be enqueued again.
    async fn batch_enqueue(&mut self, batch: Vec<Asked>) -> Vec<Asked> {
        let jobs = batch.iter().map(Asked::spec).collect();
        let durability = self.shared.habits.asked.into();
        let request = pb::BatchEnqueueRequest { jobs, durability, ..Default::default() };
        let mut queue = self.replicas.next_for_ids(&self.shared);
        let call = queue.batch_enqueue(request);
        let Ok(response) = self.shared.answer(&mut self.random, "batch_enqueue", call).await else {
            return batch.into_iter().filter(|asked| !asked.id.is_empty()).collect();
        };
        assert_eq!(response.results.len(), batch.len(), "one result per job");
        let mut open = Vec::new();
        for (mut asked, result) in batch.into_iter().zip(response.results) {
            let Some(error) = result.error else {
                self.answered(asked.job, result.durability, result.id, &result.shard);
                continue;
            };
            let verb = if asked.id.is_empty() { NO_ID } else { "batch_enqueue: item" };
            self.shared.troubles.count(format!("{verb}: {}", error.reason));
            let codes = [tonic::Code::Unavailable as i32, tonic::Code::ResourceExhausted as i32];
            if !codes.contains(&error.code) {
                self.shared.troubles.refuse(format!("batch_enqueue: {error:?}"));
            }
            let id = Some(result.id).filter(|id| !id.is_empty());
            if let Outcome::Again = asked.failed(Failure { id }) {
                open.push(asked);
            }
        }
        open
    }

    fn answered(&self, job: u32, durability: i32, id: String, shard: &str) {
        self.shared.answered(job, &id);
        let at = self.shared.history.now();
        let fsynced = durability >= pb::Durability::Fsynced as i32;
        let lies_on = Event::LiesOn { job, shard: shard.to_owned() };
        self.shared.history.record([Event::Enqueued { job, at, fsynced, id }, lies_on]);
    }

    /// Waits for its pace; longer when too many calls have no answer.
    async fn rest(&mut self, paces: u32, open: &mut JoinSet<()>) {
        let pace = self.shared.habits.pace * paces;
        tokio::time::sleep(pace.mul_f64(self.random.random())).await;
        while open.len() > OPEN_MAX {
            open.join_next().await.unwrap_or(Ok(())).expect("a producer");
        }
        while let Some(done) = open.try_join_next() {
            done.expect("a producer");
        }
    }
}

impl Asked {
    fn spec(&self) -> pb::JobSpec {
        job::spec(self.job, &self.id, self.delay, self.failing)
    }

    /// Classifies a failure: a repeat cannot duplicate a job that has an id.
    fn failed(&mut self, failure: Failure) -> Outcome {
        if self.id.is_empty() {
            self.id = failure.id.unwrap_or_default();
        }
        if self.id.is_empty() { Outcome::GivenUp } else { Outcome::Again }
    }
}
