//! A Redis dies, stands still, forgets its scripts, throws its clients out.

use std::ops::Range;
use std::time::Duration;

use tokio::time::Instant;

use crate::checker::history::Nanos;
use crate::cluster::Shape;
use crate::harness::millis;
use crate::load::{Habits, NO_ID};
use crate::trial::{Trial, harm_time, long};

/// Between two blows of a loop.
const EVERY: Duration = millis(150);
/// The Redis that is hit.
const HIT: usize = 1;
/// What a busy machine takes by itself: a p99 below it says nothing of ours.
const NOISE: Duration = millis(250);

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn killed_with_aof_everysec() {
    killed("redis_killed_everysec", "everysec").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn killed_with_aof_always() {
    killed("redis_killed_always", "always").await;
}

/// Killed and brought back, again and again in the long form.
async fn killed(name: &'static str, fsync: &'static str) {
    let shape = Shape { fsync, ..Shape::default() };
    let Some(mut trial) = Trial::start(name, shape, Habits::default()).await else { return };
    let turn = harm_time().min(Duration::from_secs(10)) / 2;
    let end = Instant::now() + harm_time();
    while Instant::now() < end {
        let quiet = trial.run(turn).await;
        trial.kill_redis(HIT);
        let outage = trial.run(turn).await;
        trial.restart_redis(HIT).await;
        others_are_quick(&trial, &quiet, &outage);
    }
    let outcome = trial.finish().await;
    // Jobs whose id the server makes go to another shard while one lives.
    assert_eq!(outcome.troubles(&format!("{NO_ID}: SHARD_UNAVAILABLE")), 0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn stands_still() {
    let Some(trial) = Trial::start("redis_stands_still", Shape::default(), Habits::default()).await
    else {
        return;
    };
    let still = if long() { Duration::from_secs(10) } else { harm_time() };
    let quiet = trial.run(still / 2).await;
    trial.note("stop redis");
    trial.cluster.redis[HIT].pause();
    let outage = trial.run(still).await;
    trial.cluster.redis[HIT].resume();
    trial.note("redis goes on");
    others_are_quick(&trial, &quiet, &outage);
    trial.finish().await;
}

/// While one shard is away, enqueues on the others take less than twice as long.
fn others_are_quick(trial: &Trial, quiet: &Range<Nanos>, outage: &Range<Nanos>) {
    let shard = format!("s{HIT}");
    let on_others = |span| trial.shared().latencies.without(&shard, span);
    let (quiet, outage) = (on_others(quiet), on_others(outage));
    println!("enqueues on the other shards: quiet {quiet:?}, during the outage {outage:?}");
    // Few calls or a busy machine prove nothing.
    if long() {
        assert!(outage.p99 < 2 * quiet.p99.max(NOISE), "{outage:?} after {quiet:?}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn forgets_its_scripts() {
    let name = "scripts_flushed";
    let trial = Trial::start(name, Shape::default(), Habits::default()).await;
    let Some(trial) = trial else { return };
    trial.again_and_again(EVERY, &["SCRIPT", "FLUSH"]).await;
    let outcome = trial.finish().await;
    assert_eq!(outcome.troubles(""), 0, "a client noticed that scripts were forgotten");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn throws_its_clients_out() {
    let name = "clients_killed";
    let trial = Trial::start(name, Shape::default(), Habits::default()).await;
    let Some(trial) = trial else { return };
    trial.again_and_again(EVERY * 3, &["CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes"]).await;
    trial.finish().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn throws_its_listeners_out() {
    let name = "listeners_killed";
    let trial = Trial::start(name, Shape::default(), Habits::default()).await;
    let Some(trial) = trial else { return };
    trial.again_and_again(EVERY * 3, &["CLIENT", "KILL", "TYPE", "pubsub"]).await;
    let outcome = trial.finish().await;
    assert_eq!(outcome.troubles(""), 0, "a client noticed that hints were lost");
}

impl Trial {
    /// A command to every Redis in turn, as long as harm is done.
    async fn again_and_again(&self, pause: Duration, command: &[&str]) {
        self.note(format!("{command:?} in a loop"));
        let end = Instant::now() + harm_time();
        while Instant::now() < end {
            for redis in &self.cluster.redis {
                redis.command(command).await;
                tokio::time::sleep(pause / u32::try_from(self.cluster.redis.len()).unwrap()).await;
            }
        }
    }
}
