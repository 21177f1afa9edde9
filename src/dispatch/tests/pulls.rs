//! Pulls: one response with the jobs that are there.

use super::harness::{TestServer, attempt, pull_options, run_pending_tasks};
use super::*;

#[tokio::test]
async fn a_pull_that_does_not_wait_finds_what_a_glob_means() {
    let server = TestServer::start();
    server.enqueue("mail.a", 2).await;
    let got = server.pull(pull_options(&["mail.*"], 5, Duration::ZERO)).await;
    assert_eq!(got.len(), 2);
    assert!(server.pull(pull_options(&["mail.*"], 5, Duration::ZERO)).await.is_empty());
}

#[tokio::test]
async fn a_pull_gets_what_is_there_and_its_leases_outlive_it() {
    let server = TestServer::start();
    server.enqueue("t", 3).await;
    let got = server.pull(pull_options(&["t"], 2, SECOND)).await;
    assert_eq!(got.len(), 2);
    server.clock.advance(20 * SECOND);
    run_pending_tasks().await;
    assert_eq!(server.stats("t").await.running, 2);
    server.ack(&got).await;
    assert_eq!(server.pull(pull_options(&["t"], 9, Duration::ZERO)).await.len(), 1);
    assert!(server.pull(pull_options(&["t"], 9, Duration::ZERO)).await.is_empty());
    assert!(server.pull(pull_options(&["none", "u.*"], 9, Duration::ZERO)).await.is_empty());
}

#[tokio::test]
async fn a_pull_waits_for_a_job_or_its_time() {
    let server = TestServer::start();
    assert!(server.pull(pull_options(&["t"], 1, Duration::from_millis(30))).await.is_empty());
    let waiting = server.pull(pull_options(&["t"], 1, 5 * SECOND));
    let (got, ()) = tokio::join!(waiting, server.enqueue("t", 1));
    assert_eq!(got.len(), 1);
}

#[tokio::test]
async fn a_pull_that_is_dropped_costs_nothing_whenever_that_is() {
    let server = TestServer::start();
    server.enqueue("t", 1).await;
    let held = server.store.hold_claims();
    let pull = server.pull(pull_options(&["t"], 1, 5 * SECOND));
    assert!(tokio::time::timeout(Duration::from_millis(50), pull).await.is_err());
    assert_eq!(server.stats("t").await.running, 1, "claimed, but the answer is on its way");
    drop(held);
    server.eventually("t", |stats| stats.ready == 1).await;
    let got = server.pull(pull_options(&["t"], 1, SECOND)).await;
    assert_eq!(attempt(&got[0]), (0, 0));
}

#[tokio::test]
async fn jobs_of_an_answer_that_is_not_sent_go_back_at_once_and_uncounted() {
    for taken in [1, 2, 3, 7] {
        let server = TestServer::start();
        server.enqueue("t", taken).await;
        let options = pull_options(&["t"], 16, SECOND);
        let (got, handover) = server.dispatcher.pull(options).await.unwrap();
        assert_eq!((got.len(), server.stats("t").await.running), (taken, taken as u64));
        drop(handover);
        server.eventually("t", |stats| stats.ready == taken as u64).await;
        server.dispatcher.wait_idle().await;
        let again = server.pull(pull_options(&["t"], 16, SECOND)).await;
        assert_eq!(again.iter().map(attempt).collect::<Vec<_>>(), vec![(0, 0); taken]);
        assert_eq!(server.stats("t").await.running, taken as u64, "what was sent stays");
        server.ack(&again).await;
    }
}
