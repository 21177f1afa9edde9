//! What a job costs Redis, by Redis's own numbers: microseconds of its main thread for a life cycle, and
//! bytes of a stored delayed job.

#[path = "../../benches/regress/life.rs"]
mod life;

use std::time::Duration;

use futures::{StreamExt as _, TryStreamExt as _, stream};
use ringq::domain::When;
use ringq::store::Store;

use crate::harness::Redis;

/// Commands within scripts for the life of a whole batch, whatever its size: what a script does per job
/// instead of per call shows here, also on a busy machine, where microseconds do not.
const COMMANDS_MAX: f64 = 20.0;
/// Bytes per stored delayed job with a body of 100 bytes.
const BYTES_MAX: f64 = 420.0;

/// Calls under way at once, as of a busy server: a Redis that idles between calls is a cold one.
const CALLS: usize = 32;

/// Lets so many jobs live in batches of `batch`; what enqueue, claim and settle cost Redis for each.
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

/// Microseconds that Redis spent in scripts so far.
async fn micros(redis: &Redis) -> f64 {
    let stats = redis.command(&["INFO", "commandstats"]).await;
    let line = stats.lines().find_map(|line| line.strip_prefix("cmdstat_evalsha:"));
    let usec = line.and_then(|line| line.split(',').find_map(|part| part.strip_prefix("usec=")));
    usec.map_or(0.0, |usec| usec.parse().unwrap())
}

/// Commands that scripts ran so far.
async fn commands(redis: &Redis) -> f64 {
    let stats = redis.command(&["INFO", "commandstats"]).await;
    let outer = ["cmdstat_evalsha", "cmdstat_info", "cmdstat_config", "cmdstat_ping"];
    let inner = stats.lines().filter(|line| !outer.iter().any(|name| line.starts_with(name)));
    let calls = inner.filter_map(|line| line.split_once(":calls=")?.1.split(',').next());
    calls.map(|calls| calls.parse::<f64>().unwrap()).sum()
}

#[tokio::test]
async fn a_batch_lives_by_a_few_commands() {
    const JOBS: usize = 20_480;
    let Some(redis) = Redis::start().await else { return };
    let store = life::open(&redis.url()).await.unwrap();
    for batch in [1, 16, 128, 512] {
        live(&redis, &*store, 10 * batch, batch).await;
        let before = commands(&redis).await;
        let [enqueue, claim, settle] = live(&redis, &*store, JOBS, batch).await;
        let commands = (commands(&redis).await - before) / (JOBS / batch) as f64;
        println!(
            "{batch} per call: {:.2} us of Redis per life cycle: enqueue {enqueue:.2}, \
             claim {claim:.2}, settle {settle:.2}; {commands:.1} commands per batch",
            enqueue + claim + settle
        );
        assert!(commands <= COMMANDS_MAX, "{commands} commands for the life of {batch} jobs");
    }
}

#[tokio::test]
async fn a_delayed_job_takes_some_hundred_bytes() {
    const JOBS: usize = 100_000;
    let Some(redis) = Redis::start().await else { return };
    let store = life::open(&redis.url()).await.unwrap();
    let before = redis.info("memory", "used_memory").await;
    for first in (0..JOBS).step_by(500) {
        let due = |n| When::After(Duration::from_millis(3_600_000 + n * 7));
        let new = (first..first + 500).map(|n| life::job(n as u128, due(n as u64))).collect();
        store.enqueue(new).await.unwrap();
    }
    let used = redis.info("memory", "used_memory").await - before;
    let bytes = used as f64 / JOBS as f64;
    println!("{bytes:.0} bytes per delayed job with a body of 100 bytes");
    assert!(bytes <= BYTES_MAX, "{bytes:.0} bytes per delayed job");
}
