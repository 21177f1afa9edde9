//! Cost of a job in Redis, by Redis's own statistics: time of its main thread for a life cycle, and bytes of a stored
//! delayed job. Time is counted in empty scripts (`EVALSHA` of `return 1`) of the same minute: their number per life
//! is the same on any machine. Targets are for a machine on which an empty script takes 0.49 microseconds. `make test`
//! counts commands and bytes; `make redis-cost` compares times, too.

#[path = "../../benches/regress/life.rs"]
mod life;

use std::time::Duration;

use crate::store_calls::{StoreCalls as _, TestJob};
use deadpool_redis::redis;
use futures::{StreamExt as _, TryStreamExt as _, stream};
use ringq::domain::{When, limit};
use ringq::store::Store;

use crate::harness::Redis;

/// Limit of commands within scripts for the life of a whole batch, whatever its size: work per job instead of per
/// call shows here, also on a busy machine, where microseconds do not.
const COMMANDS_MAX: f64 = 19.0;
/// Number of empty scripts that take as long as a life, by the jobs in each call: 18 microseconds at one and 6.5 at
/// 128 and more.
const EMPTY_SCRIPTS: [(usize, f64); 3] = [(1, 18.0 / 0.49), (128, 6.5 / 0.49), (512, 6.5 / 0.49)];
/// Factor of that on a machine with other load.
const DISTURBED: f64 = 2.0;
/// Number of rounds, of which the fastest counts: other load slows, never helps.
const ROUNDS: usize = 5;
/// Limit of the growth of an enqueue with a million stored jobs against ten thousand, by the jobs in each call.
const GROWTH: [(usize, f64); 2] = [(1, 1.5), (16, 2.0)];
/// Bytes per stored delayed job with a body of 100 bytes.
const BYTES_MAX: f64 = 420.0;

/// Calls in flight at once, as of a busy server: a Redis that idles between calls has cold caches.
const CALLS: usize = 32;

/// Runs this number of jobs in batches of `batch`; returns the cost of enqueue, claim and settle for each.
async fn live(redis: &Redis, store: &dyn Store, jobs: usize, batch: usize) -> [f64; 3] {
    let calls = jobs / batch;
    let start = micros(redis).await;
    let enqueues = stream::iter(0..calls).map(|nth| life::enqueue(store, batch, nth));
    enqueues.buffered(CALLS).try_collect::<Vec<()>>().await.unwrap();
    let enqueued = micros(redis).await;
    let claims = stream::iter(0..calls).map(|_| life::claim(store, batch));
    let acks: Vec<_> = claims.buffered(CALLS).try_collect().await.unwrap();
    let claimed = micros(redis).await;
    let settles = stream::iter(acks).map(|acks| life::settle(store, acks));
    settles.buffered(CALLS).try_collect::<Vec<()>>().await.unwrap();
    let settled = micros(redis).await;
    [enqueued - start, claimed - enqueued, settled - claimed].map(|micros| micros / jobs as f64)
}

/// Returns the microseconds that Redis spent in scripts so far.
async fn micros(redis: &Redis) -> f64 {
    let stats = redis.command(&["INFO", "commandstats"]).await;
    let line = stats.lines().find_map(|line| line.strip_prefix("cmdstat_evalsha:"));
    let usec = line.and_then(|line| line.split(',').find_map(|part| part.strip_prefix("usec=")));
    usec.map_or(0.0, |usec| usec.parse().unwrap())
}

/// Returns the commands that scripts ran so far.
async fn commands(redis: &Redis) -> f64 {
    let stats = redis.command(&["INFO", "commandstats"]).await;
    let outer = ["cmdstat_evalsha", "cmdstat_info", "cmdstat_config", "cmdstat_ping"];
    let inner = stats.lines().filter(|line| !outer.iter().any(|name| line.starts_with(name)));
    let calls = inner.filter_map(|line| line.split_once(":calls=")?.1.split(',').next());
    calls.map(|calls| calls.parse::<f64>().unwrap()).sum()
}

/// Returns the microseconds of an empty script, called like those of `live`.
async fn empty_script(redis: &Redis) -> f64 {
    const SCRIPTS: usize = 4_096;
    let client = redis::Client::open(redis.url()).unwrap();
    let connection = client.get_multiplexed_async_connection().await.unwrap();
    let script = redis::Script::new("return 1");
    let start = micros(redis).await;
    let run = |_| {
        let (script, mut connection) = (script.key("ringq:{s0}:"), connection.clone());
        async move { script.invoke_async::<u32>(&mut connection).await.unwrap() }
    };
    stream::iter(0..SCRIPTS).map(run).buffered(CALLS).collect::<Vec<_>>().await;
    (micros(redis).await - start) / SCRIPTS as f64
}

/// Sums the phases of a life.
fn sum(phases: [f64; 3]) -> f64 {
    phases.iter().sum()
}

#[tokio::test]
#[ignore = "make redis-cost runs it"]
async fn a_life_takes_as_long_as_a_few_empty_scripts() {
    const JOBS: usize = 4_096;
    let Some(redis) = Redis::start().await else { return };
    let store = life::open(&redis.url()).await.unwrap();
    for (batch, most) in EMPTY_SCRIPTS {
        let (mut empty, mut life) = (f64::MAX, [f64::MAX; 3]);
        for _ in 0..ROUNDS {
            empty = empty.min(empty_script(&redis).await);
            let phases = live(&redis, &*store, JOBS, batch).await;
            life = std::array::from_fn(|phase| life[phase].min(phases[phase]));
        }
        let [enqueue, claim, settle] = life.map(|micros| micros / empty);
        let scripts = sum(life) / empty;
        println!(
            "{batch} per call: {:.2} us of Redis per life cycle, an empty script {empty:.2}: {scripts:.1} of these \
             (enqueue {enqueue:.1}, claim {claim:.1}, settle {settle:.1}), asked {most:.1}",
            sum(life)
        );
        assert!(
            scripts <= DISTURBED * most,
            "{scripts} empty scripts for the life of a job, {batch} per call"
        );
    }
}

#[tokio::test]
async fn a_batch_lives_by_a_few_commands() {
    let Some(redis) = Redis::start().await else { return };
    let store = life::open(&redis.url()).await.unwrap();
    for batch in [1, 16, 128, 512] {
        live(&redis, &*store, 10 * batch, batch).await;
        let before = commands(&redis).await;
        live(&redis, &*store, 10 * batch, batch).await;
        let commands = (commands(&redis).await - before) / 10.0;
        println!("{batch} per call: {commands:.1} commands per batch");
        assert!(commands <= COMMANDS_MAX, "{commands} commands for the life of {batch} jobs");
    }
}

/// A list frees nothing in its middle: cancelled jobs behind a job that is never taken would stay for ever.
#[tokio::test]
async fn what_is_cancelled_behind_a_job_that_waits_leaves_no_memory_behind() {
    // However many they are, the rest is bounded by the limits of a few scripts.
    const JOBS: usize = 40_000;
    let Some(redis) = Redis::start().await else { return };
    let store = life::open(&redis.url()).await.unwrap();
    let job = |n: usize| TestJob::from(life::job(n as u128, When::Now));
    store.enqueue(vec![job(JOBS)]).await.unwrap();
    for call in (0..JOBS).collect::<Vec<_>>().chunks(limit::CALL_JOBS_MAX) {
        let jobs: Vec<_> = call.iter().map(|&n| job(n)).collect();
        let keys = jobs.iter().map(|job| job.key.clone().into()).collect();
        store.enqueue(jobs).await.unwrap();
        store.delete(keys).await.unwrap();
    }
    let topic = job(JOBS).key.topic;
    let count = async |command: &str, order: &str| {
        let answer = redis.command(&[command, &format!("ringq:{{s0}}:{order}:{topic}")]).await;
        answer.trim_start_matches(':').parse::<usize>().unwrap()
    };
    let (line, others) = (count("LLEN", "line").await, count("ZCARD", "wait:0").await);
    println!("{line} stand in the line, {others} wait beside it");
    assert!(line + others <= 3 * limit::CALL_JOBS_MAX, "{line} and {others} of {JOBS} are left");
}

/// Returns the time of an enqueue of a delayed job, `batch` per call, in empty scripts: the median of some samples.
async fn delayed_enqueue(redis: &Redis, store: &dyn Store, from: &mut u128, batch: usize) -> f64 {
    const CALLS_SAMPLED: usize = 1_024;
    let mut samples = Vec::new();
    for _ in 0..ROUNDS {
        let empty = empty_script(redis).await;
        let calls: Vec<_> = (0..CALLS_SAMPLED).map(|_| delayed(from, batch)).collect();
        let start = micros(redis).await;
        let enqueues = stream::iter(calls).map(|jobs| store.enqueue(jobs));
        enqueues.buffered(CALLS).try_collect::<Vec<_>>().await.unwrap();
        samples.push((micros(redis).await - start) / (CALLS_SAMPLED * batch) as f64 / empty);
    }
    samples.sort_by(f64::total_cmp);
    samples[ROUNDS / 2]
}

/// Builds jobs that are due at any time of the coming day.
fn delayed(from: &mut u128, count: usize) -> Vec<TestJob> {
    let job = |_| {
        *from += 1;
        let due = rand::random_range(3_600_000..90_000_000);
        life::job(*from, When::After(Duration::from_millis(due))).into()
    };
    (0..count).map(job).collect()
}

#[tokio::test]
#[ignore = "make redis-cost runs it"]
async fn an_enqueue_costs_little_more_beside_many_stored_jobs() {
    let Some(redis) = Redis::start().await else { return };
    let store = life::open(&redis.url()).await.unwrap();
    let mut stored = 0;
    let mut costs = Vec::new();
    for level in [10_000, number("RINGQ_STORED", 100_000)] {
        while stored < level {
            store.enqueue(delayed(&mut stored, 500)).await.unwrap();
        }
        let alone = delayed_enqueue(&redis, &*store, &mut stored, 1).await;
        let together = delayed_enqueue(&redis, &*store, &mut stored, 16).await;
        println!(
            "{level} stored: an enqueue takes {alone:.1} empty scripts, one of 16 {together:.1}"
        );
        costs.push([alone, together]);
    }
    for (index, (batch, most)) in GROWTH.into_iter().enumerate() {
        let growth = costs[1][index] / costs[0][index];
        println!("{batch} per call: {growth:.2} times as much, asked {most:.1}");
        assert!(growth <= DISTURBED * most, "{growth} times as much, {batch} per call");
    }
}

/// Reads a number from the environment.
#[expect(clippy::disallowed_methods, reason = "how long a test runs is no configuration")]
fn number(name: &str, otherwise: u128) -> u128 {
    std::env::var(name).map_or(otherwise, |text| text.parse().expect("a number"))
}

#[tokio::test]
async fn a_delayed_job_takes_some_hundred_bytes() {
    const JOBS: usize = 100_000;
    let Some(redis) = Redis::start().await else { return };
    let store = life::open(&redis.url()).await.unwrap();
    let before = redis.info("memory", "used_memory").await;
    for first in (0..JOBS).step_by(500) {
        let due = |n| When::After(Duration::from_millis(3_600_000 + n * 7));
        let new =
            (first..first + 500).map(|n| life::job(n as u128, due(n as u64)).into()).collect();
        store.enqueue(new).await.unwrap();
    }
    let used = redis.info("memory", "used_memory").await - before;
    let bytes = used as f64 / JOBS as f64;
    println!("{bytes:.0} bytes per delayed job with a body of 100 bytes");
    assert!(bytes <= BYTES_MAX, "{bytes:.0} bytes per delayed job");
}
