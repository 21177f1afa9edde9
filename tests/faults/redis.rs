//! A Redis dies, stands still, loses its scripts, disconnects its clients.

use std::ops::Range;
use std::time::Duration;

use tokio::time::Instant;

use crate::checker::history::Nanos;
use crate::cluster::Shape;
use crate::harness::{eventually, millis};
use crate::latency::median;
use crate::load::{Habits, NO_ID};
use crate::preload::compile;
use crate::proxy::Way;
use crate::trial::{Trial, harm_time, long};

/// Pause between two blows of a loop.
const EVERY: Duration = millis(150);
/// Longest duration of a loop of blows.
const LOOP_MAX: Duration = Duration::from_secs(10);
/// Time into a sync at which a Redis is killed.
const SYNCS: Duration = millis(400);
/// The Redis with the fault.
pub(crate) const HIT: usize = 1;
/// Number of processes that an enqueue wakes one after the other, each as late as a tick of the rig may be: the
/// replica, Redis, the replica again, and the client.
const WAKES: u32 = 4;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn killed_with_aof_everysec() {
    killed("redis_killed_everysec", "everysec").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "make faults runs it"]
async fn killed_with_aof_always() {
    killed("redis_killed_always", "always").await;
}

impl Blow {
    /// Returns how long a shard without an answer is waited for: clients that ask twice do not notice less.
    fn is_noticed_after(self) -> Duration {
        match self {
            Blow::Network(Way::Silent | Way::Unanswered) => Duration::from_secs(4),
            Blow::Kill | Blow::Stop | Blow::Network(Way::Open | Way::Reset) => Duration::ZERO,
        }
    }
}

async fn killed(name: &'static str, fsync: &'static str) {
    let shape = Shape { fsync, ..Shape::default() };
    let Some(mut trial) = Trial::start(name, shape, Habits::default()).await else { return };
    trial.take_away(Blow::Kill).await;
    let outcome = trial.finish().await;
    // Jobs with server-made ids go to another shard while one is up.
    assert_eq!(outcome.troubles(&format!("{NO_ID}: SHARD_UNAVAILABLE")), 0);
}

/// A Redis holds its answers back while a sync is under way, and is killed during it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "make faults runs it"]
async fn killed_while_it_syncs() {
    let dir = tempfile::tempdir().unwrap();
    let Some(library) = compile("slowsync.c", dir.path()) else { return };
    let shape = Shape { preload: Some(library), ..Shape::default() };
    let trial = Trial::start("redis_killed_syncing", shape, Habits::default()).await;
    let Some(mut trial) = trial else { return };
    let turn = (harm_time() / 3).min(Duration::from_secs(3));
    let end = Instant::now() + harm_time() / 2;
    while Instant::now() < end {
        trial.run(turn).await;
        let redis = &trial.cluster.redis[HIT];
        eventually("a sync begins", async || {
            (redis.info("persistence", "aof_pending_bio_fsync").await == 0).then_some(())
        })
        .await;
        eventually("it is under way", async || {
            (redis.info("persistence", "aof_pending_bio_fsync").await > 0).then_some(())
        })
        .await;
        trial.run(SYNCS).await;
        trial.kill_redis(HIT);
        trial.run(turn / 4).await;
        trial.restart_redis(HIT).await;
        trial.run(turn / 4).await;
    }
    let verdict = trial.finish().await.verdict;
    assert!(verdict.held_back.len() + verdict.undone > 0, "it held nothing back");
}

/// Arguments of a Redis that takes long to read its files, this number of microseconds for each key, and answers
/// meanwhile.
const SLOW: &[&str] =
    &["--key-load-delay", "1000", "--loading-process-events-interval-bytes", "1024"];
/// Keys beside the jobs, so that loading takes some seconds.
const KEYS: &str = "for i = 1, 1500 do redis.call('SET', 'filler:' .. i, ('x'):rep(200)) end";

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "make faults runs it"]
async fn takes_long_to_load() {
    let name = "redis_loads";
    let shape = Shape { redis_args: SLOW, ..Shape::default() };
    let Some(mut trial) = Trial::start(name, shape, Habits::default()).await else { return };
    trial.command(HIT, &["EVAL", KEYS, "0"]).await;
    let turn = (harm_time() / 4).min(Duration::from_secs(4));
    let end = Instant::now() + harm_time() / 2;
    while Instant::now() < end {
        trial.run(turn).await;
        trial.rewrite_log(HIT).await;
        trial.kill_redis(HIT);
        let (refused, begin) = (trial.shared().troubles.times("enqueue"), Instant::now());
        trial.restart_redis(HIT).await;
        let refused = trial.shared().troubles.times("enqueue") - refused;
        let refusals = trial.met_loading(HIT).await;
        println!("{name}: {:?}, {refusals} calls and {refused} enqueues refused", begin.elapsed());
        assert!(refusals > 0, "no call reached a Redis that loads");
        assert!(refused > 0, "no client was refused meanwhile");
        trial.run(turn).await;
    }
    let outcome = trial.finish().await;
    // Each with a retry delay, which the load checks.
    let is_away =
        |line: &String| line.ends_with("UNAVAILABLE") || line.ends_with("OUTCOME_UNKNOWN");
    assert!(outcome.all_troubles().iter().all(is_away), "{:?}", outcome.all_troubles());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn stands_still() {
    let name = "redis_stands_still";
    let trial = Trial::start(name, Shape::default(), Habits::default()).await;
    let Some(mut trial) = trial else { return };
    trial.take_away(Blow::Stop).await;
    trial.finish().await;
}

/// A way in which a Redis goes away.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Blow {
    Kill,
    Stop,
    /// The Redis lives, and the network before it is in this state.
    Network(Way),
}

impl Trial {
    /// Takes a Redis away and gives it back, again and again in the long form: enqueues on the others must not
    /// notice. Quiet times lie between and at both ends.
    pub(crate) async fn take_away(&mut self, blow: Blow) {
        let turn = (harm_time() / 2).min(Duration::from_secs(10));
        let end = Instant::now() + harm_time();
        let (mut quiet, mut outages) = (Vec::new(), Vec::new());
        while Instant::now() < end {
            quiet.push(self.run(turn).await);
            match blow {
                Blow::Kill => self.kill_redis(HIT),
                Blow::Stop => self.stop_redis(HIT),
                Blow::Network(way) => self.network(HIT, way),
            }
            outages.push(self.run(turn.max(blow.is_noticed_after())).await);
            match blow {
                Blow::Kill => self.restart_redis(HIT).await,
                Blow::Stop => self.resume_redis(HIT),
                Blow::Network(_) => self.network(HIT, Way::Open),
            }
            // Calls that waited for it are done now.
            self.run(turn / 5).await;
        }
        if long() {
            quiet.push(self.run(turn).await);
        }
        self.others_are_quick(&quiet, &outages);
    }

    /// Checks that enqueues on the other shards take less than twice as long while one shard is away. A p99 of so few
    /// calls is nearly the slowest one, and other processes use this machine: so the median over all spans counts,
    /// less the scheduler delay of this machine in quiet times.
    fn others_are_quick(&self, quiet: &[Range<Nanos>], outages: &[Range<Nanos>]) {
        let (shard, latencies) = (format!("s{HIT}"), &self.shared().latencies);
        let p99 = |span: &Range<Nanos>| {
            let calls = latencies.without(&shard, span);
            println!("{span:?}: enqueues on the other shards: {calls:?}");
            calls.p99
        };
        let late = median(quiet.iter().map(|span| latencies.lateness(span).p99));
        let (quiet, outage) = (median(quiet.iter().map(p99)), median(outages.iter().map(p99)));
        println!("p99 quiet {quiet:?}, during an outage {outage:?}, of ticks {late:?}");
        assert!(outage > Duration::ZERO, "no enqueue on another shard was answered meanwhile");
        if long() {
            assert!(outage < 2 * quiet.max(WAKES * late), "{outage:?} after {quiet:?}, {late:?}");
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "make faults runs it"]
async fn forgets_its_scripts() {
    let name = "scripts_flushed";
    let trial = Trial::start(name, Shape::default(), Habits::default()).await;
    let Some(trial) = trial else { return };
    trial.again_and_again(EVERY, &["SCRIPT", "FLUSH"]).await;
    for redis in &trial.cluster.redis {
        let errors = redis.command(&["INFO", "errorstats"]).await;
        assert!(errors.contains("errorstat_NOSCRIPT"), "no script was missed: {errors}");
    }
    let outcome = trial.finish().await;
    assert_eq!(outcome.troubles(""), 0, "a client noticed that scripts were forgotten");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "make faults runs it"]
async fn throws_its_clients_out() {
    let name = "clients_killed";
    let trial = Trial::start(name, Shape::default(), Habits::default()).await;
    let Some(trial) = trial else { return };
    let command = ["CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes"];
    assert!(trial.again_and_again(EVERY * 3, &command).await > 0, "no client was disconnected");
    trial.finish().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "make faults runs it"]
async fn throws_its_listeners_out() {
    let name = "listeners_killed";
    let trial = Trial::start(name, Shape::default(), Habits::default()).await;
    let Some(trial) = trial else { return };
    let command = ["CLIENT", "KILL", "TYPE", "pubsub"];
    assert!(trial.again_and_again(EVERY * 3, &command).await > 0, "no subscriber was disconnected");
    let outcome = trial.finish().await;
    assert_eq!(outcome.troubles(""), 0, "a client noticed that hints were lost");
}

impl Trial {
    /// Makes a Redis write all its data into a new base of its log, which loads key by key.
    async fn rewrite_log(&self, redis: usize) {
        self.command(redis, &["BGREWRITEAOF"]).await;
        let redis = &self.cluster.redis[redis];
        eventually("the log is rewritten", async || {
            let under_way = redis.info("persistence", "aof_rewrite_in_progress").await
                + redis.info("persistence", "aof_rewrite_scheduled").await;
            (under_way == 0).then_some(())
        })
        .await;
    }

    /// Returns how many calls of replicas a Redis has refused since its start because it was loading; the rig itself
    /// sends it PING until it has loaded.
    async fn met_loading(&self, redis: usize) -> u64 {
        let redis = &self.cluster.redis[redis];
        let errors = redis.command(&["INFO", "errorstats"]).await;
        let commands = redis.command(&["INFO", "commandstats"]).await;
        let pings = commands.lines().find(|line| line.starts_with("cmdstat_ping:"));
        let pings = number_after(pings.unwrap_or_default(), "rejected_calls=");
        number_after(&errors, "errorstat_LOADING:count=").saturating_sub(pings)
    }

    /// Sends a command to every Redis in turn, again and again; returns the sum of the numbers in the answers.
    async fn again_and_again(&self, pause: Duration, command: &[&str]) -> u64 {
        self.note(format!("{command:?} in a loop"));
        let (end, mut sum) = (Instant::now() + harm_time().min(LOOP_MAX), 0);
        while Instant::now() < end {
            for redis in 0..self.cluster.redis.len() {
                let answer = self.command(redis, command).await;
                sum += answer.strip_prefix(':').map_or(0, |number| number.parse::<u64>().unwrap());
                tokio::time::sleep(pause / u32::try_from(self.cluster.redis.len()).unwrap()).await;
            }
        }
        sum
    }
}

/// Returns the number behind these words.
fn number_after(text: &str, words: &str) -> u64 {
    let found = text.split_once(words).map_or("", |(_, rest)| rest);
    found.split(|c: char| !c.is_ascii_digit()).next().unwrap_or_default().parse().unwrap_or(0)
}
