//! A lease that lost its worker comes back within its grace and 12 s, in all cases and for all lease lengths: random
//! runs of a worker over streams and replicas, each of which ends with its death.

use rand::rngs::StdRng;
use rand::{Rng as _, SeedableRng as _};

use crate::clock::{Clock, ManualClock};
use crate::domain::{StreamId, limit};

use super::harness::{SOON, TestServer, TestWorker, options, store};
use super::*;

const GRACE: Duration = Duration::from_secs(5);
/// Longest time beyond the grace.
const LATE_MAX: Duration = Duration::from_secs(12);
const REPLICAS: usize = 4;
const LIVES: u64 = 8;

/// Several replicas on one store, and a worker that holds jobs.
struct CrashSimulation {
    rng: StdRng,
    /// Live replicas; the worker's stream is with the first one.
    living: Vec<TestServer>,
    /// Killed replicas: their tasks must not be stopped in order.
    dead: Vec<TestServer>,
    clock: ManualClock,
    lease: Duration,
    former: Option<StreamId>,
    held: Vec<JobDelivery>,
}

impl CrashSimulation {
    async fn new(seed: u64) -> CrashSimulation {
        let mut rng = StdRng::seed_from_u64(seed);
        let clock = ManualClock::new(Time(1_700_000_000_000_000));
        let time = Clock::Manual(clock.clone());
        let store = store(&time);
        store.share();
        let lease = [Duration::from_secs(30), Duration::from_secs(86_400)][rng.random_range(0..2)];
        let mut living = Vec::new();
        for nonce in 1..=REPLICAS as u32 {
            let server =
                TestServer::over(std::sync::Arc::clone(&store), clock.clone(), &time, nonce);
            server.scheduler.shards().join(nonce, server.scheduler.clock()).await;
            living.push(server);
        }
        let (former, held) = (None, Vec::new());
        let world = CrashSimulation { rng, living, dead: Vec::new(), clock, lease, former, held };
        world.live(6 * SECOND).await;
        world
    }

    /// Advances the time while the live replicas send heartbeats.
    async fn live(&self, time: Duration) {
        let end = self.clock.now().plus(time);
        while self.clock.now() < end {
            let left = end.since(self.clock.now());
            self.clock.advance(left.min(limit::REPLICA_HEARTBEAT));
            for server in &self.living {
                server.beat().await;
            }
            // Due work is done by other threads.
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }

    fn options(&self) -> StreamOptions {
        let continues = self.former;
        StreamOptions {
            lease: self.lease,
            continues,
            max_in_flight: 100,
            orphan_grace: GRACE,
            ..options(&["t"])
        }
    }

    /// Opens the next stream, which adopts all leases of the worker, and takes some more jobs.
    async fn open(&mut self, ends: bool) -> TestWorker {
        // An Extend right before a break keeps a lease; the previous stream's Extend must not count for this one.
        self.live(SECOND).await;
        let jobs = [1, 2, 3, 7][self.rng.random_range(0..4)];
        let max_jobs = ends.then_some(jobs as u64);
        let server = &self.living[0];
        let mut worker = server.open(StreamOptions { max_jobs, ..self.options() });
        let held = u32::try_from(self.held.len()).unwrap();
        let adopted = async {
            while server.dispatcher.workers()[0].in_flight < held {
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
        };
        let adopted = tokio::time::timeout(SOON, adopted).await;
        assert!(adopted.is_ok(), "{} of {held}", server.dispatcher.workers()[0].in_flight);
        server.enqueue("t", jobs).await;
        self.held.extend(worker.jobs(jobs).await);
        self.former = Some(worker.id());
        worker
    }

    /// Runs one stream: its end, and the worker's calls to keep its jobs.
    async fn step(&mut self) -> &'static str {
        let can_move = self.living.len() > 1;
        match self.rng.random_range(0..4) {
            0 => {
                let mut worker = self.open(true).await;
                assert!(worker.ended().await);
                if can_move && self.rng.random_bool(0.5) {
                    self.living.rotate_left(1);
                    return "ended by the server, continued elsewhere";
                }
                "ended by the server"
            }
            1 if can_move => {
                let mut worker = self.open(false).await;
                self.living[0].dispatcher.drain();
                assert!(worker.batch().await.draining && worker.ended().await);
                self.kill(worker);
                "drained and killed"
            }
            2 if can_move => {
                let worker = self.open(false).await;
                self.kill(worker);
                self.living[0].extend(&self.held).await;
                "killed, kept by an extend"
            }
            _ => {
                drop(self.open(false).await);
                let by = self.rng.random_range(0..self.living.len());
                self.living[by].extend(&self.held).await;
                if by == 0 {
                    "broken, kept by an extend"
                } else {
                    "broken, kept by an extend elsewhere"
                }
            }
        }
    }

    /// Kills the replica of this stream.
    fn kill(&mut self, worker: TestWorker) {
        let killed = self.living.remove(0);
        killed.dispatcher.kill();
        drop(worker);
        self.dead.push(killed);
    }

    /// Ends the worker, and sometimes the replica, too.
    async fn die(&mut self) -> &'static str {
        let worker = self.open(false).await;
        if self.living.len() > 1 && self.rng.random_bool(0.5) {
            self.kill(worker);
            return "dies with its replica";
        }
        drop(worker);
        "dies"
    }
}

#[tokio::test]
async fn every_lease_of_a_dead_worker_comes_back_in_time() {
    let first: u64 = rand::random();
    for seed in first..first.saturating_add(LIVES) {
        let mut world = CrashSimulation::new(seed).await;
        let mut history = vec![format!("seed {seed}, leases of {:?}", world.lease)];
        for _ in 0..world.rng.random_range(0..4) {
            let step = world.step().await;
            history.push(step.to_owned());
        }
        history.push(world.die().await.to_owned());
        let (held, late) = (world.held.len() as u64, GRACE + LATE_MAX);
        world.live(late).await;
        let server = &world.living[0];
        let back = async {
            while server.stats("t").await.ready != held {
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
        };
        let back = tokio::time::timeout(SOON, back).await;
        assert!(back.is_ok(), "{history:?}: {:?} of {held}", server.stats("t").await);
    }
}
