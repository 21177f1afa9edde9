//! Leases that end while a worker holds them.

use crate::domain::engine::{Command, Settle};
use crate::domain::{JobKey, TopicName};
use crate::store::{JobRequest, SettleAction, Store as _};

use super::harness::{TestServer, options, run_pending_tasks};
use super::*;

#[tokio::test]
async fn a_deleted_job_is_revoked_and_its_credit_is_free() {
    let server = TestServer::start();
    server.enqueue("t", 2).await;
    let mut stream = server.open(StreamOptions { max_in_flight: 1, ..options(&["t"]) });
    let sent = stream.jobs(1).await.remove(0);
    server.scheduler.producer.delete(sent.job.key.clone(), None).await.unwrap();
    let batch = stream.batch().await;
    assert_eq!(batch.revocations, [(sent.receipt, RevokeReason::Deleted)]);
    if batch.deliveries.is_empty() {
        stream.jobs(1).await;
    }
}

#[tokio::test]
async fn an_expired_lease_is_revoked() {
    let server = TestServer::start();
    server.scheduler.shards().join(1, server.scheduler.clock()).await;
    server.enqueue("t", 1).await;
    let mut stream = server.open(options(&["t"]));
    let sent = stream.jobs(1).await.remove(0);
    server.advance_with_heartbeats(30 * SECOND, &[]).await;
    server.reap().await;
    assert_eq!(stream.batch().await.revocations, [(sent.receipt, RevokeReason::LeaseExpired)]);
}

#[tokio::test]
async fn a_job_that_is_deleted_or_expires_before_its_claim_is_answered_is_not_delivered() {
    for deletes in [true, false] {
        let server = TestServer::start();
        server.scheduler.shards().join(1, server.scheduler.clock()).await;
        server.enqueue("t", 1).await;
        let held = server.store.hold_claims();
        let mut stream = server.open(StreamOptions { max_in_flight: 1, ..options(&["t"]) });
        server.eventually("t", |stats| stats.running == 1).await;
        if deletes {
            let topic = TopicName::stored("t");
            let id = server.store.ids(topic.clone(), None, 9).await.unwrap().ids.remove(0);
            server.scheduler.producer.delete(JobKey { topic, id }, None).await.unwrap();
        } else {
            server.advance_with_heartbeats(30 * SECOND, &[]).await;
            server.reap().await;
        }
        drop(held);
        run_pending_tasks().await;
        let in_flight = server.dispatcher.workers()[0].in_flight;
        assert_eq!(in_flight, 0, "deletes: {deletes}");
        server.enqueue("t", 1).await;
        let batch = stream.batch().await;
        assert_eq!((batch.deliveries.len(), batch.revocations.len()), (1, 0), "deletes: {deletes}");
    }
}

#[tokio::test]
async fn lease_end_without_an_event_is_found_in_the_store() {
    let server = TestServer::start();
    server.enqueue("t", 2).await;
    let mut stream = server.open(StreamOptions { max_in_flight: 1, ..options(&["t"]) });
    let sent = stream.jobs(1).await.remove(0);
    let action = SettleAction::Ack { result: None, follow_ups: Vec::new() };
    let settle = Command::Settle(Settle { token: sent.job.token, deadline: None, action });
    let settle = JobRequest::new(sent.job.key.clone(), settle);
    let settled = server.store.sqlite_store().apply(vec![settle]).await.remove(0);
    settled.unwrap().settle_result().unwrap();
    stream.nothing().await;
    for _ in 0..32 {
        server.clock.advance(SECOND);
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    let batch = stream.batch().await;
    assert_eq!((batch.revocations.len(), batch.deliveries.len()), (0, 1), "it has not run out");
}
