//! A cluster under load, from its start to the verdict.

use std::ops::Range;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::Duration;

use rand::rngs::StdRng;
use ringq::pb::queue_service_client::QueueServiceClient;
use ringq::pb::{GetRequest, JobState};
use tokio::sync::{Mutex, MutexGuard};
use tokio::time::Instant;

use crate::books::{Books, dead_letters, leftovers, leftovers_in};
use crate::checker::history::{Event, Nanos};
use crate::checker::{Verdict, check};
use crate::cluster::{Cluster, Shape};
use crate::image::{Mounted, freeze};
use crate::load::{Habits, Load, Shared, job};
use crate::proxy::Way;
use crate::replica::signal;
use crate::setting::{number, seed};

/// A trial loads the whole machine: never two at once.
static ALONE: Mutex<()> = Mutex::const_new(());

/// Longest drain after every fault has ended, in addition to a lease. Circuit breakers probe every 5 s at the latest,
/// streams reopen, and a busy machine is slow.
const DRAIN_MAX: Duration = Duration::from_secs(60);
/// Time for messages that are in flight when nothing is left.
const LAST_MESSAGES: Duration = Duration::from_millis(300);

/// Time for which a Redis that syncs every second delays a write for a sync that is under way.
const HELD_BACK_MAX: Nanos = 2_000_000_000;

/// A running scenario.
pub(crate) struct Trial {
    pub(crate) cluster: Cluster,
    name: &'static str,
    load: Load,
    /// True if each replica lives.
    alive: Vec<bool>,
    /// Time since which a Redis that was killed may have held back its answered writes.
    held_back_since: Vec<Option<Nanos>>,
    /// True if a replica was stopped, whose calls have no answer then, or a Redis went away in the middle of calls: a
    /// replica without the outcome of a call retries for half a minute, which is longer than clients wait
    /// here.
    may_wait: AtomicBool,
    seed: u64,
    start: Instant,
    _alone: MutexGuard<'static, ()>,
}

/// Result of a trial.
pub(crate) struct Outcome {
    name: &'static str,
    seed: u64,
    pub(crate) verdict: Verdict,
    /// Faults in addition to the verdict.
    pub(crate) faults: Vec<String>,
    /// Time from the call of `finish` until all jobs were done.
    pub(crate) drained: Duration,
    shared: Arc<Shared>,
}

/// Returns the time of harm of a scenario.
pub(crate) fn harm_time() -> Duration {
    Duration::from_secs(u64::from(number("RINGQ_FAULT_SECONDS", 3)))
}

/// Returns whether the long form is requested, in which times are compared, too.
pub(crate) fn long() -> bool {
    harm_time() >= Duration::from_secs(20)
}

// === impl Trial ===

impl Trial {
    /// Starts a cluster and its load; `None` when there is no redis-server.
    pub(crate) async fn start(name: &'static str, shape: Shape, habits: Habits) -> Option<Trial> {
        let alone = ALONE.lock().await;
        let seed = seed();
        println!("{name}: RINGQ_SEED={seed}");
        let shape = Shape { seed, ..shape };
        let cluster = Cluster::start(&shape).await?;
        let load = Load::start(cluster.addresses(), habits, seed);
        let (alive, start) = (vec![true; shape.replicas], Instant::now());
        let held_back_since = vec![None; cluster.redis.len()];
        let may_wait = AtomicBool::new(false);
        Some(Trial {
            cluster,
            name,
            load,
            alive,
            held_back_since,
            may_wait,
            seed,
            start,
            _alone: alone,
        })
    }

    /// Returns the shared state of the clients.
    pub(crate) fn shared(&self) -> &Shared {
        self.load.shared()
    }

    /// Creates the random generator of the faults.
    pub(crate) fn random(&self) -> StdRng {
        self.shared().random(9)
    }

    /// Records an action on the cluster, for human readers.
    pub(crate) fn note(&self, what: impl Into<String>) {
        self.shared().note(what);
    }

    /// Runs the load for a while; returns that span.
    pub(crate) async fn run(&self, time: Duration) -> Range<Nanos> {
        let begin = self.shared().history.now();
        tokio::time::sleep(time).await;
        begin..self.shared().history.now()
    }

    /// Kills a replica, if it lives, and records it for the checker.
    pub(crate) async fn kill_replica(&mut self, number: usize) {
        if !self.alive[number] {
            return;
        }
        self.note(format!("kill replica {number}"));
        self.alive[number] = false;
        self.cluster.replica[number].kill().await;
        let server = u32::try_from(number).unwrap();
        let at = self.shared().history.now();
        self.shared().history.record([Event::Killed { server, at }]);
    }

    /// Starts it again, if it does not live.
    pub(crate) async fn restart_replica(&mut self, number: usize) {
        if !self.alive[number] {
            self.cluster.replica[number].restart().await;
            self.alive[number] = true;
            self.note(format!("replica {number} is back"));
        }
    }

    /// Stops the process of a replica, sockets open.
    pub(crate) fn stop_replica(&self, number: usize) {
        self.note(format!("stop replica {number}"));
        self.may_wait.store(true, Relaxed);
        signal(self.cluster.replica[number].pid(), "STOP");
    }

    /// Continues the process of a replica.
    pub(crate) fn resume_replica(&self, number: usize) {
        signal(self.cluster.replica[number].pid(), "CONT");
        self.note(format!("replica {number} goes on"));
    }

    /// Kills all replicas that live.
    pub(crate) async fn kill_replicas(&mut self) {
        for replica in 0..self.alive.len() {
            self.kill_replica(replica).await;
        }
    }

    /// Starts all replicas that do not live.
    pub(crate) async fn restart_replicas(&mut self) {
        for replica in 0..self.alive.len() {
            self.restart_replica(replica).await;
        }
    }

    /// Ends a replica like an operator and starts it again with the current ring.
    pub(crate) async fn roll_replica(&mut self, number: usize) {
        self.note(format!("roll replica {number}"));
        self.cluster.roll(number).await;
        self.note(format!("replica {number} is back"));
    }

    /// Sends a command to a Redis, which must execute it; returns the answer.
    pub(crate) async fn command(&self, redis: usize, words: &[&str]) -> String {
        let answer = self.cluster.redis[redis].command(words).await;
        assert!(!answer.starts_with('-'), "{words:?}: {answer}");
        answer
    }

    /// Kills a Redis.
    pub(crate) fn kill_redis(&mut self, number: usize) {
        self.may_wait.store(true, Relaxed);
        self.note(format!("kill redis {number}"));
        self.held_back_since[number] =
            Some(self.shared().history.now().saturating_sub(HELD_BACK_MAX));
        self.cluster.redis[number].kill();
    }

    /// Starts a Redis again, and records for the checker which answers it may have held back.
    pub(crate) async fn restart_redis(&mut self, number: usize) {
        self.may_have_held_back(number);
        self.cluster.redis[number].restart().await;
        self.note(format!("redis {number} is back"));
    }

    /// Notes a death. While a sync of every second is under way, on a slow disk for up to two seconds, a Redis holds
    /// back writes that it has answered, and for as long the system may hold back everything it has written:
    /// docs/guarantees.md does not promise that end of the log. Answers that arrive until it is started again were
    /// sent before it died.
    fn may_have_held_back(&mut self, number: usize) {
        let since = self.held_back_since[number].take();
        if let (Some(from), "everysec") = (since, self.cluster.fsync) {
            let (shard, to) = (format!("s{number}"), self.shared().history.now());
            self.shared().history.record([Event::HeldBack { shard, from, to }]);
        }
    }

    /// Cuts the power of all servers, those with the jobs first, and starts them again on the remaining data of the
    /// disk; returns whether they start.
    pub(crate) async fn cut_power(&mut self, disk: &mut Mounted) -> bool {
        self.may_wait.store(true, Relaxed);
        self.note("cut the power");
        let since = self.shared().history.now().saturating_sub(HELD_BACK_MAX);
        self.held_back_since.fill(Some(since));
        self.cluster.pids().into_iter().for_each(|pid| freeze(pid).unwrap());
        tokio::time::sleep(LAST_MESSAGES).await;
        let copy = tokio::task::block_in_place(|| disk.after_cut().unwrap());
        self.shared().history.record([Event::Cut { at: self.shared().history.now() }]);
        self.cluster.kill().await;
        *disk = copy;
        (0..self.held_back_since.len()).for_each(|redis| self.may_have_held_back(redis));
        let starts = self.cluster.starts_again_on(&disk.path).await;
        self.note("the power is back");
        starts
    }

    /// Stops the process of a Redis, sockets open.
    pub(crate) fn stop_redis(&self, number: usize) {
        self.may_wait.store(true, Relaxed);
        self.note(format!("stop redis {number}"));
        self.cluster.redis[number].pause();
    }

    /// Continues the process of a Redis.
    pub(crate) fn resume_redis(&self, number: usize) {
        self.cluster.redis[number].resume();
        self.note(format!("redis {number} goes on"));
    }

    /// Allows calls to be without an answer for longer than clients wait: a Redis is unreachable for some time.
    pub(crate) fn may_wait(&self) {
        self.may_wait.store(true, Relaxed);
    }

    /// Sets the state of the network before a Redis from now on.
    pub(crate) fn network(&self, redis: usize, way: Way) {
        self.may_wait.store(true, Relaxed);
        self.note(format!("the network before redis {redis} is {way:?}"));
        self.cluster.proxy[redis].set(way);
    }

    /// Waits until all jobs are done, after every fault has ended, judges, and fails unless every promise was kept.
    pub(crate) async fn finish(self) -> Outcome {
        let patience = self.shared().habits.lease.min(DRAIN_MAX) + DRAIN_MAX;
        let outcome = self.judge(patience).await;
        outcome.must_be_sound();
        outcome
    }

    /// Enqueues no new jobs and waits until all have ended, without a verdict: more harm can follow.
    pub(crate) async fn come_to_rest(&mut self) {
        let left = self.drain(Instant::now() + 2 * DRAIN_MAX).await;
        assert_eq!(left, None, "RINGQ_SEED={}", self.seed);
    }

    /// Waits until all is done, at most `patience`, and judges.
    pub(crate) async fn judge(mut self, patience: Duration) -> Outcome {
        self.note("drain");
        let begin = Instant::now();
        let left = self.drain(begin + patience).await;
        let drained = begin.elapsed();
        tokio::time::sleep(LAST_MESSAGES).await;
        let Trial { cluster, name, load, may_wait, seed, start, .. } = self;
        let shared = Arc::clone(load.shared());
        let stopped = tokio::time::timeout(DRAIN_MAX, load.stop()).await;
        let mut faults: Vec<String> = left.into_iter().collect();
        match dead_letters(&cluster.replica[0]).await {
            Some(ids) => shared.listed(&ids),
            None => faults.push("the dead letters cannot be listed".to_owned()),
        }
        let verdict = check(shared.jobs(), &shared.history.events());
        let (took, drain) = (start.elapsed().as_secs_f64(), drained.as_secs_f64());
        println!("{name}: {verdict}");
        println!("{name}: {took:.1} s, drained in {drain:.1} s, {:?}", shared.troubles.counts());
        faults.extend(shared.troubles.refusals().into_iter().take(5));
        match Books::read(&cluster.replica[0]).await {
            Some(books) => faults.extend(books.misfits(&verdict)),
            None => faults.push("the books cannot be read".to_owned()),
        }
        if shared.troubles.unanswered() > 0 && !may_wait.into_inner() {
            faults.push("a call had no answer although all servers ran".to_owned());
        }
        for replica in &cluster.replica {
            let panics = replica.log().lines().filter(|line| line.contains("panicked")).count();
            if panics > 0 {
                faults.push(format!("{panics} panics"));
            }
        }
        for (number, redis) in cluster.redis.iter().enumerate() {
            faults.extend(leftovers(&format!("s{number}"), redis).await);
        }
        faults.extend(cluster.files().iter().flat_map(|file| leftovers_in(file)));
        if stopped.is_err() {
            faults.push("workers do not end".to_owned());
        }
        Outcome { name, seed, verdict, faults, drained, shared }
    }

    /// Waits until all jobs have ended; returns what is left at `limit`.
    async fn drain(&mut self, limit: Instant) -> Option<String> {
        let patience = limit.saturating_duration_since(Instant::now());
        if !self.load.no_more(patience).await {
            return Some("producers get no answer".to_owned());
        }
        loop {
            let books = Books::read(&self.cluster.replica[0]).await;
            if books.as_ref().is_some_and(|books| books.left == 0) {
                self.look_up_open().await;
                if self.none_is_missing() {
                    return None;
                }
            }
            if Instant::now() > limit {
                let open = self.shared().open();
                let some: Vec<_> = open.iter().take(5).collect();
                return Some(format!("{} jobs are not done: {some:?}, {books:?}", open.len()));
            }
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    }

    /// Returns whether all jobs have ended except for those that a Redis may have held back.
    fn none_is_missing(&self) -> bool {
        let open = self.shared().open();
        if open.is_empty() {
            return true;
        }
        let verdict = check(self.shared().jobs(), &self.shared().history.events());
        let may_be_gone = [verdict.held_back, verdict.doubtful].concat();
        open.iter().all(|(job, _)| may_be_gone.contains(job))
    }

    /// Looks up open jobs: a call without an answer may have ended them, and its repeat came too late.
    async fn look_up_open(&self) {
        let open = self.shared().open();
        let address = self.cluster.replica[0].grpc;
        let queue = QueueServiceClient::connect(format!("http://{address}")).await;
        let Ok(mut queue) = queue else { return };
        for (number, id) in open {
            let request =
                GetRequest { topic: job::topic(number).to_owned(), id, ..Default::default() };
            let Ok(found) = queue.get(request).await else { continue };
            let state = found.into_inner().job.unwrap_or_default().state();
            self.shared().looked_up(number, state == JobState::Dead, state == JobState::Succeeded);
        }
    }
}

// === impl Outcome ===

impl Outcome {
    /// Fails unless every promise was kept.
    fn must_be_sound(&self) {
        let Outcome { name, seed, verdict, faults, .. } = self;
        let path = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(format!("faults-{name}.jsonl"));
        self.shared.history.save(&path).unwrap();
        let history = path.display();
        assert!(
            verdict.sound() && faults.is_empty(),
            "{name}: {verdict}\n{faults:#?}\nRINGQ_SEED={seed}, history: {history}"
        );
    }

    /// Returns the recorded events of the clients.
    pub(crate) fn events(&self) -> Vec<Event> {
        self.shared.history.events()
    }

    /// Returns the longest time for which the rig itself stood still.
    pub(crate) fn stood_still(&self) -> Duration {
        let events = self.events();
        let stalls = events.iter().filter_map(|event| match event {
            Event::Stalled { length, .. } => Some(Duration::from_nanos(*length)),
            _ => None,
        });
        stalls.max().unwrap_or_default()
    }

    /// Returns the number of jobs that were enqueued.
    pub(crate) fn jobs(&self) -> u32 {
        self.shared.jobs()
    }

    /// Returns all failures of clients with their counts.
    pub(crate) fn all_troubles(&self) -> Vec<String> {
        self.shared.troubles.counts().into_keys().collect()
    }

    /// Returns the number of settles that came after their lease.
    pub(crate) fn stales(&self) -> usize {
        self.shared.troubles.stales()
    }

    /// Returns the number of client failures with this prefix.
    pub(crate) fn troubles(&self, begin: &str) -> usize {
        self.shared.troubles.times(begin)
    }
}
