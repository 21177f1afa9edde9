//! Frame of a scenario: a server, a polite client, and phases with and without the hostile clients in turn.

use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use tokio::time::Instant;

use crate::attack::{Attack, Seen};
use crate::harness::{Server, Setup, eventually_in};
use crate::polite::{Polite, ask_all, p99};

/// Number of pairs of phases; the median of them counts, because a busy machine disturbs single ones.
const PAIRS: usize = 3;
/// Number of times that a scenario is measured at most: a busy machine disturbs one, but not each time.
const TRIES: usize = 3;
/// Time of a phase.
const PHASE: Duration = Duration::from_millis(800);
/// Time in which an attack begins to take effect.
const WARM_UP: Duration = Duration::from_millis(300);
/// Largest allowed ratio between the 99th percentiles of the polite client with and without an attack.
const RATIO_MAX: u32 = 3;
/// Time below which percentiles are not compared: a busy machine causes such delays by itself.
const QUICK: Duration = Duration::from_millis(5);
/// Time in which the server ends a connection that goes on with its attack, and closes those whose clients have gone.
const END_MAX: Duration = Duration::from_secs(60);

/// Bounds of a scenario.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Bounds {
    /// Growth of the server's largest resident memory, in MiB.
    pub(crate) memory_mib: u64,
    /// Number of hostile connections open at once.
    pub(crate) connections: usize,
    /// Number of connections that are open before the polite client is measured; 0: it is measured at once.
    pub(crate) waits_for: usize,
    /// True if the server ends each hostile connection that goes on.
    pub(crate) ends: bool,
}

/// Measurement of one pair of phases: 99th percentiles of the polite client.
#[derive(Clone, Copy, Debug)]
struct Pair {
    quiet: Duration,
    beside: Duration,
}

/// Scenario that runs.
struct Trial<'a> {
    server: Server,
    polite: Polite,
    seen: Arc<Seen>,
    time: Duration,
    files: usize,
    /// Most open files while the attack ran.
    files_max: usize,
    attack: &'a dyn Fn(&Server, Arc<Seen>) -> Attack,
    /// Slowest answer to a client that had to connect.
    slowest: Duration,
}

/// Runs a scenario on a new server, see [`run_on`].
pub(crate) async fn run(
    name: &str,
    setup: Setup,
    bounds: Bounds,
    attack: impl Fn(&Server, Arc<Seen>) -> Attack,
) {
    let _server = run_on(name, setup.start().await, bounds, attack).await;
}

/// Runs a scenario and checks its bounds. `attack` starts the hostile clients. Returns the server.
pub(crate) async fn run_on(
    name: &str,
    server: Server,
    bounds: Bounds,
    attack: impl Fn(&Server, Arc<Seen>) -> Attack,
) -> Server {
    let mut polite = Polite::connect(server.grpc).await;
    polite.work(WARM_UP).await;
    let (memory, files) = (server.peak_bytes(), server.fds());
    let (seen, time) = (Arc::new(Seen::default()), Duration::ZERO);
    let attack = &attack;
    let (files_max, slowest) = (files, Duration::ZERO);
    let mut trial = Trial { server, polite, seen, time, files, files_max, attack, slowest };
    let mut tries = Vec::new();
    while tries.len() < TRIES {
        tries.push(trial.pairs(bounds.waits_for as u64).await);
        if tries.last().is_some_and(Pair::is_good) {
            break;
        }
    }
    let grown = trial.server.peak_bytes().saturating_sub(memory) >> 20;
    trial.print(name, &tries, grown);
    assert!(trial.seen.opened.load(Relaxed) > 0, "{name}: no hostile client has connected");
    assert!(grown <= bounds.memory_mib, "{name}: the server has grown by {grown} MiB");
    let more = trial.files_max - files;
    assert!(more <= bounds.connections + 8, "{name}: the server has {more} files more");
    let is_good = tries.last().is_some_and(Pair::is_good);
    assert!(is_good, "{name}: the polite client is disturbed: {tries:?}");
    if bounds.ends {
        trial.ends(name, bounds.connections).await;
    }
    trial.server
}

// === impl Trial ===

impl Trial<'_> {
    /// Measures pairs of phases and returns their medians.
    async fn pairs(&mut self, waits_for: u64) -> Pair {
        let mut pairs = Vec::new();
        for _ in 0..PAIRS {
            let quiet = p99(self.polite.work(PHASE).await);
            let (begun, opened) = (Instant::now(), self.seen.opened.load(Relaxed));
            let running = (self.attack)(&self.server, Arc::clone(&self.seen));
            self.polite.work(WARM_UP).await;
            eventually_in(END_MAX, "the hostile clients are connected", async || {
                (self.seen.opened.load(Relaxed) - opened >= waits_for).then_some(())
            })
            .await;
            let beside = p99(self.polite.work(PHASE).await);
            self.slowest = self.slowest.max(ask_all(&self.server).await);
            self.files_max = self.files_max.max(self.server.fds());
            self.time += begun.elapsed();
            drop(running);
            self.settles().await;
            self.polite.work(WARM_UP).await;
            pairs.push(Pair { quiet, beside });
        }
        let median = |of: fn(&Pair) -> Duration| {
            let mut times: Vec<_> = pairs.iter().map(of).collect();
            times.sort_unstable();
            times[PAIRS / 2]
        };
        Pair { quiet: median(|pair| pair.quiet), beside: median(|pair| pair.beside) }
    }

    /// Waits until the server has closed the connections of clients that are gone.
    async fn settles(&self) {
        eventually_in(END_MAX, "connections of clients that are gone are closed", async || {
            (self.server.fds() <= self.files + 2).then_some(())
        })
        .await;
    }

    /// Checks that the server ends connections that go on with the attack.
    async fn ends(&self, name: &str, connections: usize) {
        let seen = Arc::new(Seen::default());
        let begun = Instant::now();
        let _running = (self.attack)(&self.server, Arc::clone(&seen));
        eventually_in(END_MAX, &format!("{name}: hostile connections are ended"), async || {
            (seen.ended.load(Relaxed) >= connections as u64).then_some(())
        })
        .await;
        println!("{name}: {connections} ended after {:.1} s", begun.elapsed().as_secs_f64());
    }

    fn print(&self, name: &str, tries: &[Pair], grown: u64) {
        let seen = &self.seen;
        let of = |count: &AtomicU64| count.load(Relaxed);
        let per_second = |count: &AtomicU64| of(count) as f64 / self.time.as_secs_f64();
        println!("{name}: {tries:?}");
        println!(
            "{name}: memory +{grown} MiB, {} KiB for each of {} files; new clients wait {:?} at most; {:.0} frames/s, \
             {:.1} MB/s; connections {} opened, {} ended, {} by ENHANCE_YOUR_CALM; {} calls reset, {} answered",
            (grown << 10) / (self.files_max - self.files).max(1) as u64,
            self.files_max - self.files,
            self.slowest,
            per_second(&seen.sent),
            per_second(&seen.bytes) / 1e6,
            of(&seen.opened),
            of(&seen.ended),
            of(&seen.calm),
            of(&seen.resets),
            of(&seen.answers),
        );
    }
}

// === impl Pair ===

impl Pair {
    fn is_good(&self) -> bool {
        self.beside <= RATIO_MAX * self.quiet.max(QUICK)
    }
}
