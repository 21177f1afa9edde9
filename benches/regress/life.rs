//! The life of a job on one store, through its trait: enqueued, claimed, acknowledged, nothing kept.
//!
//! The bench `regress` and the test of what a job costs Redis share this file.

use std::sync::Arc;
use std::time::Duration;

use ringq::clock::Clock;
use ringq::domain::engine::{Command, Enqueue, NewJob, Settle};
use ringq::domain::{
    JobId, JobKey, OnConflict, Payload, RetentionRule, ShardName, Spec, TopicName, When,
};
use ringq::store::redis::{Config, RedisAddress, RedisStore};
use ringq::store::{
    Claim, Error, JobRequest, LeasedJob, Result, SettleAction, Store, StreamDemand, TopicDemand,
    WritePrecondition, all_or_worst_error,
};

/// Opens the store on a Redis.
pub(crate) async fn open(url: &str) -> Result<Arc<dyn Store>> {
    let wrong = |text: String| Error::Unavailable(text);
    let name = ShardName::try_new("s0").map_err(|error| wrong(error.to_string()))?;
    let address = RedisAddress::try_new(url).map_err(|error| wrong(error.to_string()))?;
    let store = RedisStore::open(Config { name, address, clock: Clock::system(), owner: 1 }).await;
    Ok(Arc::new(store.map_err(|error| wrong(error.to_string()))?))
}

/// Builds a job with a server-made id and a body of 100 bytes, of which nothing stays.
pub(crate) fn job(number: u128, due: When) -> NewJob {
    let shard = ShardName::try_new("s0").expect("a shard's name");
    // Like in a UUIDv7: the time in front, behind it bits that look random but are the same in every run.
    let entropy =
        number.wrapping_add(1).wrapping_mul(0x9e37_79b9_7f4a_7c15_f39c_c060_5ced_c835) >> 48;
    let uuid = (0x0198_0000_0000 + number) << 80 | entropy;
    let payload = Payload { body: vec![b'x'; 100].into(), ..Payload::default() };
    let enqueue = Enqueue {
        spec: Spec { payload: Some(payload), ..Spec::default() },
        due,
        priority: None,
        expire: None,
        retention: RetentionRule::Nothing,
        on_conflict: OnConflict::Keep,
        request_code: None,
        precondition: WritePrecondition::Anything,
        max_waiting: None,
        max_bytes: None,
        history: None,
    };
    let key = JobKey { topic: TopicName::stored("orders"), id: JobId::from_uuid(&shard, uuid) };
    NewJob { key, enqueue: Box::new(enqueue) }
}

/// Enqueues the `nth` batch.
pub(crate) async fn enqueue(store: &dyn Store, batch: usize, nth: usize) -> Result<()> {
    let first = nth * batch;
    let new = (first..first + batch).map(|n| JobRequest::from(job(n as u128, When::Now)));
    all_or_worst_error(store.apply(new.collect()).await).map(drop)
}

/// Claims this number of jobs, which must exist; returns the settles that acknowledge them.
pub(crate) async fn claim(store: &dyn Store, batch: usize) -> Result<Vec<JobRequest>> {
    let taker = StreamDemand {
        stream: 1,
        worker_id: "worker-1".into(),
        lease: Duration::from_secs(30),
        grace: Some(Duration::from_secs(5)),
        jobs: u32::try_from(batch).unwrap_or(u32::MAX),
        bytes: 64 << 20,
        oversize: true,
    };
    let asks = vec![TopicDemand {
        topic: TopicName::stored("orders"),
        ageing: None,
        streams: vec![taker],
    }];
    let claims = store.claim(Claim { nonce: rand::random(), owner: 1, topics: asks }).await?;
    let leased = claims.topics.into_iter().flat_map(|topic| topic.by_stream).flatten();
    let ack = |leased: LeasedJob| {
        let action = SettleAction::Ack { result: None, follow_ups: Vec::new() };
        let settle = Settle { token: leased.token, deadline: None, action };
        JobRequest { owner: 1, ..JobRequest::new(leased.key, Command::Settle(settle)) }
    };
    let acks: Vec<_> = leased.map(ack).collect();
    assert_eq!(acks.len(), batch, "jobs are missing");
    Ok(acks)
}

/// Acknowledges the claimed jobs.
pub(crate) async fn settle(store: &dyn Store, acks: Vec<JobRequest>) -> Result<()> {
    let settled = all_or_worst_error(store.apply(acks).await)?;
    assert!(settled.iter().all(|applied| applied.settle_result().is_ok()), "an ack is refused");
    Ok(())
}
