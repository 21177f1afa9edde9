//! Random faults: every few seconds another one, some of them at once, with quiet times between.

use std::time::Duration;

use rand::Rng as _;
use rand::rngs::StdRng;
use rand::seq::IndexedRandom as _;
use tokio::time::Instant;

use crate::cluster::Shape;
use crate::harness::millis;
use crate::load::Habits;
use crate::setting::number;
use crate::trial::Trial;

/// Duration of a fault.
const FAULT_MS: std::ops::Range<u64> = 200..3000;
/// Pause between two rounds.
const QUIET_MS: std::ops::Range<u64> = 200..2000;
/// Limit of the faults of one round.
const TOGETHER_MAX: usize = 3;
/// Lost messages in a thousand.
const LOST: u32 = 100;

/// A kind of fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fault {
    RedisKilled,
    RedisStopped,
    ReplicaKilled,
    AllReplicasKilled,
    ScriptsFlushed,
    ClientsKilled,
    ListenersKilled,
    AnswersLost,
    MemoryFull,
}

const FAULTS: [Fault; 9] = [
    Fault::RedisKilled,
    Fault::RedisStopped,
    Fault::ReplicaKilled,
    Fault::AllReplicasKilled,
    Fault::ScriptsFlushed,
    Fault::ClientsKilled,
    Fault::ListenersKilled,
    Fault::AnswersLost,
    Fault::MemoryFull,
];

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn everything_at_random() {
    let shape = Shape { proxied: true, ..Shape::default() };
    let habits =
        Habits { cancelled: 0.02, stream_life: Some(Duration::from_secs(5)), ..Habits::default() };
    let Some(mut trial) = Trial::start("mixed", shape, habits).await else { return };
    let mut random = trial.random();
    let length = Duration::from_secs(u64::from(number("RINGQ_MIXED_SECONDS", 6)));
    let end = Instant::now() + length;
    while Instant::now() < end {
        round(&mut trial, &mut random).await;
        trial.run(millis(random.random_range(QUIET_MS))).await;
    }
    trial.finish().await;
}

/// Applies a few faults, each of another kind and each on a Redis or replica of its own, begun one after the other
/// and undone in the same order.
async fn round(trial: &mut Trial, random: &mut StdRng) {
    let count = random.random_range(1..=TOGETHER_MAX);
    let faults: Vec<Fault> = FAULTS.choose_multiple(random, count).copied().collect();
    let first = random.random_range(0..trial.cluster.redis.len());
    let faults: Vec<(usize, Fault)> =
        (first..).zip(faults).map(|(n, fault)| (n % trial.cluster.redis.len(), fault)).collect();
    trial.note(format!("{faults:?}"));
    for (target, fault) in &faults {
        fault.begin(trial, *target).await;
    }
    trial.run(millis(random.random_range(FAULT_MS))).await;
    // A replica does not start while a Redis is away: those come back first.
    for (target, fault) in faults.iter().filter(|(_, fault)| !fault.is_of_replicas()) {
        fault.end(trial, *target).await;
    }
    for (target, fault) in faults.iter().filter(|(_, fault)| fault.is_of_replicas()) {
        fault.end(trial, *target).await;
    }
}

impl Fault {
    fn is_of_replicas(self) -> bool {
        matches!(self, Fault::ReplicaKilled | Fault::AllReplicasKilled)
    }

    async fn begin(self, trial: &mut Trial, target: usize) {
        match self {
            Fault::RedisKilled => trial.kill_redis(target),
            Fault::RedisStopped => trial.stop_redis(target),
            Fault::ReplicaKilled => trial.kill_replica(target % trial.cluster.replica.len()).await,
            Fault::AllReplicasKilled => trial.kill_replicas().await,
            Fault::ScriptsFlushed => drop(trial.command(target, &["SCRIPT", "FLUSH"]).await),
            Fault::ClientsKilled => {
                trial.command(target, &["CLIENT", "KILL", "TYPE", "normal"]).await;
            }
            Fault::ListenersKilled => {
                trial.command(target, &["CLIENT", "KILL", "TYPE", "pubsub"]).await;
            }
            Fault::AnswersLost => trial.cluster.proxy[target].lose(LOST, LOST),
            Fault::MemoryFull => {
                trial.command(target, &["CONFIG", "SET", "maxmemory", "1"]).await;
            }
        }
    }

    async fn end(self, trial: &mut Trial, target: usize) {
        match self {
            Fault::RedisKilled => trial.restart_redis(target).await,
            Fault::RedisStopped => trial.resume_redis(target),
            Fault::ReplicaKilled => {
                trial.restart_replica(target % trial.cluster.replica.len()).await;
            }
            Fault::AllReplicasKilled => trial.restart_replicas().await,
            Fault::ScriptsFlushed | Fault::ClientsKilled | Fault::ListenersKilled => {}
            Fault::AnswersLost => trial.cluster.proxy[target].lose(0, 0),
            Fault::MemoryFull => {
                trial.command(target, &["CONFIG", "SET", "maxmemory", "0"]).await;
            }
        }
    }
}
