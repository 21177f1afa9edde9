//! Return of jobs to their shard: jobs that no client received, and leases that no worker extends any more.

use crate::store::faulty_store::UnclaimFault;

use super::harness::{TestServer, attempt, options, run_pending_tasks};
use super::*;

#[tokio::test]
async fn a_broken_stream_gives_back_the_unsent_at_once_and_the_rest_after_its_grace() {
    let server = TestServer::start();
    server.enqueue("t", 4).await;
    let mut stream = server.open(StreamOptions { max_batch: 2, ..options(&["t"]) });
    let sent = stream.jobs(2).await;
    server.eventually("t", |stats| stats.running == 4).await;
    // One is kept by an Extend, after which the worker breaks its stream.
    server.extend(&sent[..1]).await;
    drop(stream);
    server.eventually("t", |stats| stats.running == 2 && stats.ready == 2).await;
    server.clock.advance(5 * SECOND - Duration::from_micros(1));
    run_pending_tasks().await;
    assert_eq!(server.stats("t").await.running, 2);
    server.clock.advance(Duration::from_micros(1));
    server.eventually("t", |stats| stats.running == 1 && stats.ready == 3).await;

    let mut next = server.open(options(&["t"]));
    let mut seen = next.jobs(3).await;
    seen.sort_by_key(|delivery| delivery.job.deliveries);
    let counts: Vec<_> = seen.iter().map(attempt).collect();
    assert_eq!(counts, [(0, 0), (0, 0), (0, 1)], "only what was sent counts, and not as a failure");
    server.ack(&sent[..1]).await;
}

#[tokio::test]
async fn a_settle_after_the_break_keeps_its_job() {
    let server = TestServer::start();
    server.enqueue("t", 1).await;
    let mut stream = server.open(options(&["t"]));
    let sent = stream.jobs(1).await;
    drop(stream);
    run_pending_tasks().await;
    server.ack(&sent).await;
    server.clock.advance(10 * SECOND);
    run_pending_tasks().await;
    let stats = server.stats("t").await;
    assert_eq!((stats.running, stats.ready, stats.succeeded_total), (0, 0, 1));
}

#[tokio::test]
async fn unread_jobs_are_returned_before_their_leases_end() {
    let server = TestServer::start();
    server.enqueue("t", 2).await;
    let slow = server.open(options(&["t"]));
    // Not only leased in the store but waiting in the outbox, where the wait for the transport begins.
    while server.dispatcher.workers()[0].in_flight < 2 {
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    server.clock.advance(10 * SECOND);
    server.eventually("t", |stats| stats.ready == 2).await;
    let mut quick = server.open(options(&["t"]));
    assert_eq!(attempt(&quick.jobs(2).await[0]), (0, 0));
    drop(slow);
}

#[tokio::test]
async fn unread_jobs_of_a_stuck_worker_go_to_other_workers() {
    for lease in [3, 30, 24 * 3_600] {
        let server = TestServer::start();
        server.enqueue("t", 2).await;
        let stuck = server.open(StreamOptions { lease: lease * SECOND, ..options(&["t"]) });
        while server.dispatcher.workers()[0].in_flight < 2 {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        server.clock.advance(10 * SECOND.min(lease * SECOND / 30));
        let mut other = server.open(options(&["t"]));
        assert_eq!(attempt(&other.jobs(2).await[0]), (0, 0), "{lease}");
        drop(stuck);
    }
}

#[tokio::test]
async fn a_claim_whose_answer_is_lost_is_undone() {
    let server = TestServer::start();
    server.enqueue("t", 3).await;
    server.store.lose_claims(2);
    let mut stream = server.open(options(&["t"]));
    let got = stream.jobs(3).await;
    assert!(got.iter().all(|delivery| attempt(delivery) == (0, 0)));
    assert_eq!(server.stats("t").await.running, 3);
}

#[tokio::test]
async fn claims_go_on_while_a_lost_one_cannot_be_undone() {
    for fault in [UnclaimFault::Fails, UnclaimFault::Hangs] {
        let server = TestServer::start();
        server.enqueue("t", 3).await;
        server.store.lose_claims(1);
        server.store.set_unclaim_fault(fault);
        let mut stream = server.open(options(&["t"]));
        server.eventually("t", |stats| stats.running == 3).await;
        server.enqueue("t", 2).await;
        stream.jobs(2).await;
        assert_eq!(server.stats("t").await.running, 5);
        server.store.set_unclaim_fault(UnclaimFault::Works);
        let undone = stream.jobs(3).await;
        assert!(undone.iter().all(|delivery| attempt(delivery) == (0, 0)), "{fault:?}");
    }
}

#[tokio::test]
async fn leases_of_a_previous_run_are_released_after_their_grace() {
    let server = TestServer::start();
    server.enqueue("t", 1).await;
    let mut stream = server.open(StreamOptions { max_in_flight: 1, ..options(&["t"]) });
    stream.jobs(1).await;
    let server = server.restart();
    run_pending_tasks().await;
    server.clock.advance(4 * SECOND);
    run_pending_tasks().await;
    assert_eq!(server.stats("t").await.running, 1);
    server.clock.advance(SECOND);
    server.eventually("t", |stats| stats.ready == 1).await;
    drop(stream);
}
