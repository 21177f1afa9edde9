//! The dispatcher over a real store in memory, with a clock that is moved by hand. What these tests
//! wait for happens within milliseconds; what they expect not to happen they give 50 of them.

mod chaos;
mod flaky;
mod harness;
mod others;
mod ring;
mod silence;

use std::time::Duration;

use super::*;
use crate::store::{End, LeaseRef, Settle, Store as _};
use harness::{Server, attempt, options, pull_options};

const SECOND: Duration = Duration::from_secs(1);

#[tokio::test]
async fn credit_is_never_exceeded_and_comes_back_with_each_settle() {
    let server = Server::start();
    server.enqueue("t", 50).await;
    let mut stream = server.open(StreamOptions { max_in_flight: 4, ..options(&["t"]) });
    let mut held = stream.jobs(4).await;
    stream.nothing().await;
    for _ in 0..23 {
        server.ack(&held.split_off(2)).await;
        held.extend(stream.jobs(2).await);
        stream.nothing_now().await;
        assert_eq!(server.stats("t").await.running, 4);
    }
    server.ack(&held).await;
    assert_eq!(server.stats("t").await.ready, 0);
}

#[tokio::test]
async fn jobs_arrive_as_they_are_enqueued_and_on_time() {
    let server = Server::start();
    let mut stream = server.open(options(&["t"]));
    stream.nothing().await;
    server.enqueue("t", 1).await;
    stream.jobs(1).await;
    server.enqueue_after("t", 10 * SECOND).await;
    server.clock.advance(10 * SECOND - Duration::from_micros(1));
    stream.nothing().await;
    server.clock.advance(Duration::from_micros(1));
    let job = stream.jobs(1).await.remove(0);
    assert_eq!(job.lease_left, 30 * SECOND);
}

#[tokio::test]
async fn globs_get_jobs_of_topics_old_and_new() {
    let server = Server::start();
    server.enqueue("mail.a", 1).await;
    server.enqueue("other", 1).await;
    let mut stream = server.open(options(&["mail.*"]));
    assert_eq!(stream.jobs(1).await[0].job.key.topic.as_str(), "mail.a");
    server.enqueue("mail.b", 1).await;
    assert_eq!(stream.jobs(1).await[0].job.key.topic.as_str(), "mail.b");
    stream.nothing().await;
}

#[tokio::test]
async fn a_pull_that_does_not_wait_finds_what_a_glob_means() {
    let server = Server::start();
    server.enqueue("mail.a", 2).await;
    let got = server.pull(pull_options(&["mail.*"], 5, Duration::ZERO)).await;
    assert_eq!(got.len(), 2);
    assert!(server.pull(pull_options(&["mail.*"], 5, Duration::ZERO)).await.is_empty());
}

#[tokio::test]
async fn a_broken_stream_gives_back_the_unsent_at_once_and_the_rest_after_its_grace() {
    let server = Server::start();
    server.enqueue("t", 4).await;
    let mut stream = server.open(StreamOptions { max_batch: 2, ..options(&["t"]) });
    let sent = stream.jobs(2).await;
    server.eventually("t", |stats| stats.running == 4).await;
    // One is spoken for by an Extend, after which the worker breaks its stream.
    server.extend(&sent[..1]).await;
    drop(stream);
    server.eventually("t", |stats| stats.running == 2 && stats.ready == 2).await;
    server.clock.advance(5 * SECOND - Duration::from_micros(1));
    harness::settle_down().await;
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
    let server = Server::start();
    server.enqueue("t", 1).await;
    let mut stream = server.open(options(&["t"]));
    let sent = stream.jobs(1).await;
    drop(stream);
    harness::settle_down().await;
    server.ack(&sent).await;
    server.clock.advance(10 * SECOND);
    harness::settle_down().await;
    let stats = server.stats("t").await;
    assert_eq!((stats.running, stats.ready, stats.succeeded_total), (0, 0, 1));
}

#[tokio::test]
async fn streams_that_the_server_ends_give_nothing_back() {
    let server = Server::start();
    server.enqueue("t", 3).await;
    let mut stream = server.open(StreamOptions { max_jobs: Some(2), ..options(&["t"]) });
    let sent = stream.jobs(2).await;
    assert!(stream.ended().await);
    drop(stream);
    server.clock.advance(20 * SECOND);
    harness::settle_down().await;
    assert_eq!(server.stats("t").await.running, 2);
    server.ack(&sent).await;
    assert_eq!(server.stats("t").await.ready, 1, "no more was claimed than asked for");
    assert!(server.dispatcher.workers().is_empty());
}

#[tokio::test]
async fn a_deleted_job_is_revoked_and_its_credit_is_free() {
    let server = Server::start();
    server.enqueue("t", 2).await;
    let mut stream = server.open(StreamOptions { max_in_flight: 1, ..options(&["t"]) });
    let sent = stream.jobs(1).await.remove(0);
    server.scheduler.delete(sent.job.key.clone()).await.unwrap();
    let batch = stream.batch().await;
    assert_eq!(batch.revocations, [(sent.receipt, Revoked::Deleted)]);
    if batch.deliveries.is_empty() {
        stream.jobs(1).await;
    }
}

#[tokio::test]
async fn an_expired_lease_is_revoked() {
    let server = Server::start();
    server.enqueue("t", 1).await;
    let mut stream = server.open(options(&["t"]));
    let sent = stream.jobs(1).await.remove(0);
    server.clock.advance(30 * SECOND);
    server.reap().await;
    assert_eq!(stream.batch().await.revocations, [(sent.receipt, Revoked::LeaseExpired)]);
}

#[tokio::test]
async fn an_end_that_nobody_told_of_is_found_in_the_store() {
    let server = Server::start();
    server.enqueue("t", 2).await;
    let mut stream = server.open(StreamOptions { max_in_flight: 1, ..options(&["t"]) });
    let sent = stream.jobs(1).await.remove(0);
    let lease = LeaseRef { key: sent.job.key.clone(), token: sent.job.token };
    let end = End::Ack { result: None, follow_ups: Vec::new() };
    let settle = Settle { lease, owner: 0, end, deadline: None };
    server.store.settle(vec![settle]).await.unwrap()[0].unwrap();
    stream.nothing().await;
    for _ in 0..32 {
        server.clock.advance(SECOND);
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    let batch = stream.batch().await;
    assert_eq!((batch.revocations.len(), batch.deliveries.len()), (0, 1), "it has not run out");
}

#[tokio::test]
async fn what_a_slow_reader_does_not_read_goes_back_before_its_lease_ends() {
    let server = Server::start();
    server.enqueue("t", 2).await;
    let slow = server.open(options(&["t"]));
    // Not only leased in the store but waiting in the outbox, whose patience begins with that.
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
async fn a_pull_gets_what_is_there_and_its_leases_outlive_it() {
    let server = Server::start();
    server.enqueue("t", 3).await;
    let got = server.pull(pull_options(&["t"], 2, SECOND)).await;
    assert_eq!(got.len(), 2);
    server.clock.advance(20 * SECOND);
    harness::settle_down().await;
    assert_eq!(server.stats("t").await.running, 2);
    server.ack(&got).await;
    assert_eq!(server.pull(pull_options(&["t"], 9, Duration::ZERO)).await.len(), 1);
    assert!(server.pull(pull_options(&["t"], 9, Duration::ZERO)).await.is_empty());
    assert!(server.pull(pull_options(&["none", "u.*"], 9, Duration::ZERO)).await.is_empty());
}

#[tokio::test]
async fn a_pull_waits_for_a_job_or_its_time() {
    let server = Server::start();
    assert!(server.pull(pull_options(&["t"], 1, Duration::from_millis(30))).await.is_empty());
    let waiting = server.pull(pull_options(&["t"], 1, 5 * SECOND));
    let (got, ()) = tokio::join!(waiting, server.enqueue("t", 1));
    assert_eq!(got.len(), 1);
}

#[tokio::test]
async fn a_pull_that_is_dropped_costs_nothing_whenever_that_is() {
    let server = Server::start();
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
async fn a_claim_whose_answer_is_lost_is_undone() {
    let server = Server::start();
    server.enqueue("t", 3).await;
    server.store.lose_claims(2);
    let mut stream = server.open(options(&["t"]));
    let got = stream.jobs(3).await;
    assert!(got.iter().all(|delivery| attempt(delivery) == (0, 0)));
    assert_eq!(server.stats("t").await.running, 3);
}

#[tokio::test]
async fn leases_of_a_former_life_are_let_go_after_their_grace() {
    let server = Server::start();
    server.enqueue("t", 1).await;
    let mut stream = server.open(StreamOptions { max_in_flight: 1, ..options(&["t"]) });
    stream.jobs(1).await;
    let server = server.restart();
    harness::settle_down().await;
    server.clock.advance(4 * SECOND);
    harness::settle_down().await;
    assert_eq!(server.stats("t").await.running, 1);
    server.clock.advance(SECOND);
    server.eventually("t", |stats| stats.ready == 1).await;
    drop(stream);
}

#[tokio::test]
async fn what_an_ended_stream_was_sent_is_not_let_go_by_the_next_life() {
    let server = Server::start();
    server.enqueue("t", 2).await;
    let mut stream = server.open(StreamOptions { max_jobs: Some(2), ..options(&["t"]) });
    let sent = stream.jobs(2).await;
    server.store.fail_detaches(2);
    assert!(stream.ended().await);
    // The stores close after this, so what is to be written must be, also at the third try.
    server.dispatcher.close().await;
    assert_eq!(server.store.detaches_to_fail(), 0);
    let server = server.restart();
    harness::settle_down().await;
    server.clock.advance(20 * SECOND);
    harness::settle_down().await;
    assert_eq!(server.stats("t").await.running, 2);
    server.ack(&sent).await;
    assert_eq!(server.stats("t").await.succeeded_total, 2);
}

#[tokio::test]
async fn a_replica_that_drains_leaves_what_was_sent_to_its_workers() {
    let server = Server::start();
    server.enqueue("t", 600).await;
    let credit = StreamOptions { max_in_flight: 600, max_batch: 600, ..options(&["t"]) };
    let mut stream = server.open(credit);
    stream.jobs(600).await;
    assert_eq!(server.left_to_the_next_life().await, 600);
    // Its transport does not read that it is to end.
    server.dispatcher.close().await;
    assert_eq!(server.left_to_the_next_life().await, 0);
    drop(stream);
}

#[tokio::test]
async fn an_old_stream_leaves_what_it_was_sent_to_its_worker() {
    let server = Server::start();
    server.enqueue("t", 1).await;
    let mut stream = server.open(StreamOptions { heartbeat: 3600 * SECOND, ..options(&["t"]) });
    stream.jobs(1).await;
    tokio::time::pause();
    assert!(stream.batch().await.draining);
    assert!(stream.ended().await);
    server.dispatcher.close().await;
    assert_eq!(server.left_to_the_next_life().await, 0);
}

#[tokio::test]
async fn an_end_that_the_store_does_not_hear_of_holds_up_nothing_for_long() {
    let server = Server::start();
    server.enqueue("t", 1).await;
    let mut stream = server.open(StreamOptions { max_jobs: Some(1), ..options(&["t"]) });
    stream.jobs(1).await;
    server.store.fail_detaches(usize::MAX);
    assert!(stream.ended().await);
    // Whatever else the store is asked for is over: time that is paused does not wait for it.
    harness::settle_down().await;
    tokio::time::pause();
    tokio::time::timeout(2 * SECOND, server.dispatcher.close()).await.unwrap();
}

#[tokio::test]
async fn a_topic_gets_its_turn_again_after_one_that_did_not_fit_beside_it() {
    let server = Server::start();
    // Four of a fill a call but for less than one of b needs.
    server.enqueue_large("a", 9, 250 << 10).await;
    server.enqueue_large("b", 1, 100 << 10).await;
    let mut stream = server.open(options(&["a", "b"]));
    stream.jobs(10).await;
}

#[tokio::test]
async fn a_large_job_comes_when_there_is_room_whatever_came_meanwhile() {
    let server = Server::start();
    server.enqueue_large("b", 1, 600 << 10).await;
    let mut stream =
        server.open(StreamOptions { max_in_flight_bytes: 1 << 20, ..options(&["a", "b"]) });
    let first = stream.jobs(1).await;
    server.enqueue_large("a", 1, 700 << 10).await;
    stream.nothing().await;
    server.enqueue("b", 1).await;
    stream.jobs(1).await;
    server.ack(&first).await;
    let large = stream.jobs(1).await;
    assert_eq!(large[0].job.key.topic.as_str(), "a");
}

#[tokio::test]
async fn a_replica_that_drains_ends_its_streams_and_waits_for_what_they_hold() {
    let server = Server::start();
    server.enqueue("t", 4).await;
    let mut stream = server.open(StreamOptions { max_batch: 2, ..options(&["t"]) });
    let sent = stream.jobs(2).await;
    server.eventually("t", |stats| stats.running == 4).await;
    server.dispatcher.drain();
    assert!(stream.batch().await.draining);
    assert!(stream.ended().await);
    drop(stream);
    server.eventually("t", |stats| stats.ready == 2).await;
    assert_eq!(server.dispatcher.open(options(&["t"])).err(), Some(OpenError::Draining));
    let idle = server.dispatcher.idle();
    tokio::pin!(idle);
    assert!(futures::poll!(idle.as_mut()).is_pending());
    server.ack(&sent).await;
    tokio::time::timeout(SECOND, idle).await.unwrap();
    tokio::time::timeout(SECOND, server.dispatcher.close()).await.unwrap();
}

#[tokio::test]
async fn streams_and_pulls_share_a_maximum() {
    let server = Server::start();
    let streams: Vec<_> = (0..harness::STREAMS_MAX).map(|_| server.open(options(&["t"]))).collect();
    let refused = server.dispatcher.pull(pull_options(&["t"], 1, SECOND)).await;
    let max = harness::STREAMS_MAX;
    assert_eq!(refused.err(), Some(OpenError::TooManyStreams { max }));
    assert_eq!((server.dispatcher.streams_count(), server.dispatcher.workers().len()), (max, max));
    drop(streams);
    assert_eq!(server.dispatcher.streams_count(), 0);
    assert!(server.dispatcher.open(options(&["t"])).is_ok());
}

#[tokio::test(start_paused = true)]
async fn silence_is_broken_by_heartbeats_and_ended_by_the_idle_timeout() {
    let server = Server::start();
    let idle = Some(Duration::from_secs(70));
    let mut stream = server.open(StreamOptions { idle_timeout: idle, ..options(&["t"]) });
    let opened = tokio::time::Instant::now();
    for beat in 1..=3 {
        let batch = stream.batch().await;
        assert!(batch.deliveries.is_empty() && !batch.draining);
        assert_eq!(opened.elapsed().as_secs(), beat * 20);
    }
    assert!(stream.ended().await);
    assert_eq!(opened.elapsed().as_secs(), 70);
}

#[tokio::test(start_paused = true)]
async fn an_old_stream_is_told_to_go_elsewhere() {
    let server = Server::start();
    let mut stream = server.open(StreamOptions { heartbeat: 3600 * SECOND, ..options(&["t"]) });
    let opened = tokio::time::Instant::now();
    assert!(stream.batch().await.draining);
    assert!(
        (harness::AGE_MAX.mul_f64(0.89)..harness::AGE_MAX.mul_f64(1.11))
            .contains(&opened.elapsed())
    );
    assert!(stream.ended().await);
}

/// Workers that come, take, settle some and break; callers that give up: nothing is lost, nothing is
/// held for ever, and nobody has more than its credit.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nothing_is_lost_among_streams_that_come_and_go() {
    const JOBS: u64 = 600;
    let server = std::sync::Arc::new(Server::start_in_real_time());
    let topics = ["mail.a", "mail.b", "c"];
    let tasks: Vec<_> = (0..6_u64)
        .map(|seed| tokio::spawn(harness::unsteady(std::sync::Arc::clone(&server), seed, topics)))
        .collect();
    for _ in 0..20 {
        for topic in topics {
            server.enqueue(topic, 10).await;
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    for task in tasks {
        task.await.unwrap();
    }
    let mut stream = server.open(StreamOptions { max_in_flight: 5, ..options(&["*"]) });
    while server.succeeded(topics).await < JOBS {
        let jobs = stream.some_jobs().await;
        server.ack(&jobs).await;
    }
}
