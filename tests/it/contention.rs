//! Many callers change one job by several servers at once: each of them is answered, nothing is lost, and rounds grow
//! with servers, not with callers.

use std::sync::Arc;
use std::time::Duration;

use crate::store_calls::{StoreCalls as _, TestJob};
use futures::future::join_all;
use ringq::clock::Clock;
use ringq::domain::{EnqueueOutcome, OnConflict, ShardName, When};
use ringq::store::{Error, Store, redis};

use crate::conformance::values::{TOPIC, key, new_job, text};
use crate::harness::Redis;

const SERVERS: u32 = 3;
const CALLERS: usize = 100;

async fn server(redis: &Redis, owner: u32) -> Arc<dyn Store> {
    let name = ShardName::try_new("s0").unwrap();
    let address = redis::RedisAddress::try_new(&redis.url()).unwrap();
    let config = redis::Config { name, address, clock: Clock::system(), owner };
    Arc::new(redis::RedisStore::open(config).await.unwrap())
}

/// Replaces the job once, and retries when others were faster; returns the number of refusals.
async fn replace(store: Arc<dyn Store>, body: String) -> u32 {
    let mut refused = 0;
    loop {
        let mut job = TestJob {
            due: When::After(Duration::from_secs(3_600)),
            on_conflict: OnConflict::Replace,
            ..new_job("one")
        };
        job.spec.payload = Some(text(&body));
        match store.enqueue(vec![job]).await {
            Ok(answers) => {
                assert_eq!(answers[0].outcome, Some(EnqueueOutcome::Replaced));
                return refused;
            }
            Err(Error::Contention(_)) => refused += 1,
            Err(error) => panic!("{error}"),
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn many_callers_of_several_servers_change_one_job() {
    let Some(redis) = Redis::start().await else { return };
    let servers = join_all((1..=SERVERS).map(|owner| server(&redis, owner))).await;
    servers[0].enqueue(vec![new_job("one")]).await.unwrap();
    let callers = servers.iter().flat_map(|server| {
        (0..CALLERS).map(|n| tokio::spawn(replace(Arc::clone(server), format!("{n}"))))
    });
    let refused: u32 = join_all(callers).await.into_iter().map(Result::unwrap).sum();
    let all = SERVERS * CALLERS as u32;
    println!("{all} replacements by {SERVERS} servers: {refused} refused");
    let job = servers[0].get(vec![key(TOPIC, "one")], false).await.unwrap().remove(0).unwrap();
    assert_eq!(job.generation, 1 + all, "each replacement counts once");
    assert!(refused <= all / 10, "{refused} of {all} were refused");
}
