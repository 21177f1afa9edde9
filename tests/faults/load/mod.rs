//! Producers and workers, and their shared state: the history, the jobs, the connections to the replicas.

mod calls;
mod chain;
pub(crate) mod job;
mod producer;
mod settle;
mod worker;

use std::collections::HashMap;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use rand::SeedableRng as _;
use rand::rngs::StdRng;
use ringq::pb::Durability;
use tokio::task::JoinSet;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::checker::history::{Event, History, Was, nanos};
use crate::latency::Latencies;

pub(crate) use calls::Troubles;
pub(crate) use producer::NO_ID;

/// The topics of all jobs.
pub(crate) const TOPICS: [&str; 2] = ["faults.a", "faults.b"];

/// Actions of producers and workers, and their frequencies.
#[derive(Clone, Debug)]
pub(crate) struct Habits {
    /// Number of producers of single jobs; one producer of batches is added.
    pub(crate) producers: u64,
    /// Longest pause of a producer between the starts of two calls.
    pub(crate) pace: Duration,
    /// Least durability that enqueues request.
    pub(crate) asked: Durability,
    /// Streams per replica.
    pub(crate) streams: usize,
    /// The credit of a stream.
    pub(crate) credit: i32,
    /// Length of leases: short, so that a trial does not wait long for those of dead workers.
    pub(crate) lease: Duration,
    /// Time by which a lease outlives its stream.
    pub(crate) grace: Duration,
    /// Share of deliveries that are nacked.
    pub(crate) nacked: f64,
    /// Share that is dead-lettered.
    pub(crate) buried: f64,
    /// Share that takes longer than its lease and is extended meanwhile.
    pub(crate) slow: f64,
    /// Share that is acknowledged after its lease has expired.
    pub(crate) late: f64,
    /// Share that a worker takes and never settles.
    pub(crate) forgotten: f64,
    /// Share of jobs that have a retry policy of their own and fail until they succeed or are given up.
    pub(crate) failing: f64,
    /// Share of delayed jobs that are deleted as soon as their enqueue is answered.
    pub(crate) deleted: f64,
    /// Share of deleted jobs with a client-chosen id under whose id another one is enqueued at once.
    pub(crate) superseded: f64,
    /// Share of jobs that begin a chain: each ack enqueues the next link.
    pub(crate) chained: f64,
    /// Share of calls that a client cancels at a random moment.
    pub(crate) cancelled: f64,
    /// Longest life of a stream; `None`: until it breaks.
    pub(crate) stream_life: Option<Duration>,
}

/// A running load. Dropping it stops it at once.
pub(crate) struct Load {
    shared: Arc<Shared>,
    producers: JoinSet<()>,
    workers: JoinSet<()>,
}

/// State that all clients share.
pub(crate) struct Shared {
    pub(crate) history: History,
    pub(crate) habits: Habits,
    pub(crate) troubles: Troubles,
    pub(crate) latencies: Latencies,
    seed: u64,
    replicas: Vec<SocketAddr>,
    next: AtomicU32,
    jobs: Mutex<Vec<Progress>>,
    /// The only replica for client-chosen ids; `None`: all.
    ids_through: Mutex<Option<usize>>,
    /// Cancelled when no new jobs are to be enqueued.
    enough: CancellationToken,
    /// Cancelled when workers are to settle their jobs and end.
    stop: CancellationToken,
}

/// Progress of a job, as far as clients can see.
#[derive(Clone, Debug, Default)]
struct Progress {
    id: String,
    answered: bool,
    /// True if it was delivered.
    seen: bool,
    ended: bool,
    /// Number of its attempts that fail, with the policy [`job::POLICY`].
    failing: Option<i32>,
    /// True if it is to be deleted before it is due.
    doomed: bool,
    /// True if its deletion was requested and has no answer.
    deleting: bool,
    /// Number of links of its chain behind it.
    links: u32,
    /// Next of these links, once it was requested.
    next: Option<u32>,
}

impl Default for Habits {
    fn default() -> Habits {
        Habits {
            producers: 4,
            pace: Duration::from_millis(30),
            asked: Durability::Unspecified,
            streams: 2,
            credit: 200,
            lease: Duration::from_secs(2),
            grace: Duration::from_secs(1),
            nacked: 0.03,
            buried: 0.003,
            slow: 0.003,
            late: 0.003,
            forgotten: 0.003,
            failing: 0.02,
            deleted: 0.01,
            superseded: 0.0,
            chained: 0.02,
            cancelled: 0.0,
            stream_life: None,
        }
    }
}

// === impl Load ===

impl Load {
    /// Starts producers and workers.
    pub(crate) fn start(replicas: Vec<SocketAddr>, habits: Habits, seed: u64) -> Load {
        let shared = Arc::new(Shared {
            history: History::new(),
            habits,
            troubles: Troubles::default(),
            latencies: Latencies::default(),
            seed,
            replicas,
            next: AtomicU32::new(0),
            jobs: Mutex::default(),
            ids_through: Mutex::default(),
            enough: CancellationToken::new(),
            stop: CancellationToken::new(),
        });
        let (mut producers, mut workers) = (JoinSet::new(), JoinSet::new());
        producer::start(&shared, &mut producers);
        worker::start(&shared, &mut workers);
        workers.spawn(watch_myself(Arc::clone(&shared)));
        Load { shared, producers, workers }
    }

    pub(crate) fn shared(&self) -> &Arc<Shared> {
        &self.shared
    }

    /// Enqueues no new jobs and waits until those that were begun have an answer. Returns false if that takes longer
    /// than `patience`.
    pub(crate) async fn no_more(&mut self, patience: Duration) -> bool {
        self.shared.enough.cancel();
        tokio::time::timeout(patience, join(&mut self.producers)).await.is_ok()
    }

    /// Makes workers settle their jobs and end.
    pub(crate) async fn stop(mut self) {
        self.shared.stop.cancel();
        join(&mut self.workers).await;
    }
}

/// Waits for all tasks and passes on their panics.
async fn join(tasks: &mut JoinSet<()>) {
    while let Some(task) = tasks.join_next().await {
        if let Err(error) = task {
            std::panic::resume_unwind(error.into_panic());
        }
    }
}

/// Records how late this process runs; if it is very late, its timestamps are too late as well.
async fn watch_myself(shared: Arc<Shared>) {
    const TICK: Duration = Duration::from_millis(20);
    const NOTABLE: Duration = Duration::from_millis(100);
    while !shared.stop.is_cancelled() {
        let begin = Instant::now();
        tokio::time::sleep(TICK).await;
        let late = begin.elapsed().saturating_sub(TICK);
        shared.latencies.tick(shared.history.now(), late);
        if late >= NOTABLE {
            let (at, length) = (shared.history.now(), nanos(late));
            shared.history.record([Event::Stalled { at, length }]);
        }
    }
}

// === impl Shared ===

impl Shared {
    /// Returns the number of jobs that were enqueued.
    pub(crate) fn jobs(&self) -> u32 {
        self.next.load(Relaxed)
    }

    /// Returns jobs that were certainly written and have not ended, with their ids.
    pub(crate) fn open(&self) -> Vec<(u32, String)> {
        let open =
            |(_, job): &(u32, &Progress)| (job.answered || job.seen) && !job.ended && !job.deleting;
        (0..).zip(self.lock().iter()).filter(open).map(|(n, job)| (n, job.id.clone())).collect()
    }

    /// Registers a new job.
    fn begin(&self, job: Progress) -> u32 {
        self.begin_in(&mut self.lock(), job)
    }

    /// Registers a new job with the topic of the given one, if the next number belongs to that topic.
    fn begin_beside(&self, job: u32) -> Option<u32> {
        let mut jobs = self.lock();
        let is_beside = jobs.len() % TOPICS.len() == job as usize % TOPICS.len();
        is_beside.then(|| self.begin_in(&mut jobs, Progress::default()))
    }

    fn begin_in(&self, jobs: &mut Vec<Progress>, job: Progress) -> u32 {
        jobs.push(job);
        self.next.fetch_add(1, Relaxed)
    }

    /// Returns the progress of a job.
    fn progress(&self, job: u32) -> Progress {
        self.lock()[job as usize].clone()
    }

    fn answered(&self, job: u32, id: &str) {
        let known = &mut self.lock()[job as usize];
        known.answered = true;
        id.clone_into(&mut known.id);
    }

    /// Records the id under which it was delivered, if its enqueue did not return it.
    fn called(&self, job: u32, id: &str) {
        let known = &mut self.lock()[job as usize];
        known.seen = true;
        if known.id.is_empty() {
            id.clone_into(&mut known.id);
        }
    }

    /// Records that the job's deletion is about to be sent.
    fn delete_begins(&self, job: u32) {
        self.lock()[job as usize].deleting = true;
        self.history.record([Event::Delete { job, at: self.history.now() }]);
    }

    /// Records that the deletion was answered.
    fn deleted(&self, job: u32, was: Was) {
        let known = &mut self.lock()[job as usize];
        known.deleting = false;
        known.ended |= was != Was::Over;
        self.history.record([Event::Deleted { job, at: self.history.now(), was }]);
    }

    /// Records dead letters that the servers list, by their ids.
    pub(crate) fn listed(&self, ids: &[String]) {
        let jobs = self.lock();
        let numbers: HashMap<&str, u32> =
            (0..).zip(jobs.iter()).map(|(n, job)| (job.id.as_str(), n)).collect();
        // Foreign ones are found by the books.
        let jobs = ids.iter().filter_map(|id| numbers.get(id.as_str()).copied()).collect();
        self.history.record([Event::DeadLetters { jobs }]);
    }

    /// Records that the job is a dead letter.
    fn buried(&self, job: u32) {
        self.lock()[job as usize].ended = true;
    }

    /// Records that the job is acknowledged, and with it the next link of its chain is written.
    fn acked(&self, job: u32) {
        let mut jobs = self.lock();
        jobs[job as usize].ended = true;
        if let Some(next) = jobs[job as usize].next {
            jobs[next as usize].answered = true;
            let at = self.history.now();
            self.history.record([Event::FollowsOn { job: next, after: job, at }]);
        }
    }

    /// Records the state of a job whose end was not answered to any client.
    pub(crate) fn looked_up(&self, job: u32, dead: bool, succeeded: bool) {
        if dead || succeeded {
            if dead {
                self.buried(job)
            } else {
                self.acked(job)
            }
            let (at, delivery, receipt) = (self.history.now(), i32::MAX, String::new());
            self.history.record([match dead {
                true => Event::Buried { job, at, delivery, receipt },
                false => Event::Acked { job, sent: 0, at, delivery, receipt },
            }]);
        }
    }

    fn lock(&self) -> MutexGuard<'_, Vec<Progress>> {
        self.jobs.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Sends client-chosen ids and deletions through one replica only, or through all again: while replicas disagree
    /// about the ring, two of them may create one id twice.
    pub(crate) fn send_ids_through(&self, replica: Option<usize>) {
        *self.ids_through.lock().unwrap_or_else(PoisonError::into_inner) = replica;
    }

    /// Records an action on the cluster.
    pub(crate) fn note(&self, what: impl Into<String>) {
        self.history.record([Event::Nemesis { at: self.history.now(), what: what.into() }]);
    }

    /// Creates the random generator of one task.
    pub(crate) fn random(&self, task: u64) -> StdRng {
        StdRng::seed_from_u64(self.seed.wrapping_add(task.wrapping_mul(0x9e37_79b9_7f4a_7c15)))
    }
}
