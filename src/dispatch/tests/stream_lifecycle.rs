//! Opening of streams, and their end by the server: sent leases outlive them.

use crate::domain::limit;

use super::harness::{
    AGE_MAX, SOON, STREAMS_MAX, TestServer, options, pull_options, run_pending_tasks,
};
use super::*;

#[tokio::test]
async fn streams_and_pulls_share_a_maximum() {
    let server = TestServer::start();
    let streams: Vec<_> = (0..STREAMS_MAX).map(|_| server.open(options(&["t"]))).collect();
    let refused = server.dispatcher.pull(pull_options(&["t"], 1, SECOND)).await;
    let max = STREAMS_MAX;
    assert_eq!(refused.err(), Some(StreamOpenError::TooManyStreams { max }));
    assert_eq!((server.dispatcher.streams_count(), server.dispatcher.workers().len()), (max, max));
    drop(streams);
    assert_eq!(server.dispatcher.streams_count(), 0);
    assert!(server.dispatcher.open(options(&["t"])).is_ok());
}

#[tokio::test(start_paused = true)]
async fn silence_is_broken_by_heartbeats_and_ended_by_the_idle_timeout() {
    let server = TestServer::start();
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
async fn old_stream_is_drained() {
    let server = TestServer::start();
    let mut stream = server.open(StreamOptions { heartbeat: 3600 * SECOND, ..options(&["t"]) });
    let opened = tokio::time::Instant::now();
    assert!(stream.batch().await.draining);
    assert!((AGE_MAX.mul_f64(0.89)..AGE_MAX.mul_f64(1.11)).contains(&opened.elapsed()));
    assert!(stream.ended().await);
}

#[tokio::test]
async fn streams_that_the_server_ends_give_nothing_back() {
    let server = TestServer::start();
    server.enqueue("t", 3).await;
    let mut stream = server.open(StreamOptions { max_jobs: Some(2), ..options(&["t"]) });
    let sent = stream.jobs(2).await;
    assert!(stream.ended().await);
    drop(stream);
    server.clock.advance(20 * SECOND);
    run_pending_tasks().await;
    assert_eq!(server.stats("t").await.running, 2);
    server.ack(&sent).await;
    assert_eq!(server.stats("t").await.ready, 1, "no more was claimed than max_jobs");
    assert!(server.dispatcher.workers().is_empty());
}

#[tokio::test]
async fn leases_of_an_ended_stream_are_not_released_by_the_next_run() {
    let server = TestServer::start();
    server.enqueue("t", 2).await;
    let mut stream = server.open(StreamOptions { max_jobs: Some(2), ..options(&["t"]) });
    let sent = stream.jobs(2).await;
    server.store.fail_detaches(2);
    assert!(stream.ended().await);
    // The stores close after this, so the detach must be written, even at the third attempt.
    server.dispatcher.close().await;
    assert_eq!(server.store.detaches_to_fail(), 0);
    let server = server.restart();
    run_pending_tasks().await;
    server.clock.advance(20 * SECOND);
    run_pending_tasks().await;
    assert_eq!(server.stats("t").await.running, 2);
    server.ack(&sent).await;
    assert_eq!(server.stats("t").await.succeeded_total, 2);
}

#[tokio::test]
async fn an_old_stream_leaves_what_it_was_sent_to_its_worker() {
    let server = TestServer::start();
    server.enqueue("t", 1).await;
    let mut stream = server.open(StreamOptions { heartbeat: 3600 * SECOND, ..options(&["t"]) });
    stream.jobs(1).await;
    tokio::time::pause();
    assert!(stream.batch().await.draining);
    assert!(stream.ended().await);
    server.dispatcher.close().await;
    assert_eq!(server.leases_left_in_store().await, 0);
}

#[tokio::test]
async fn failed_detach_delays_shutdown_only_briefly() {
    let server = TestServer::start();
    server.enqueue("t", 1).await;
    let mut stream = server.open(StreamOptions { max_jobs: Some(1), ..options(&["t"]) });
    stream.jobs(1).await;
    server.store.fail_detaches(usize::MAX);
    assert!(stream.ended().await);
    // All other calls of the store are done: paused time does not wait for them.
    run_pending_tasks().await;
    tokio::time::pause();
    tokio::time::timeout(6 * SECOND, server.dispatcher.close()).await.unwrap();
}

#[tokio::test]
async fn a_replica_that_drains_leaves_what_was_sent_to_workers_that_take_their_end() {
    for takes in [true, false] {
        let server = TestServer::start();
        server.enqueue("t", 600).await;
        let credit = StreamOptions { max_in_flight: 600, max_batch: 600, ..options(&["t"]) };
        let mut stream = server.open(credit);
        stream.jobs(600).await;
        assert_eq!(server.leases_left_in_store().await, 600);
        server.dispatcher.drain();
        assert_eq!(server.leases_left_in_store().await, 600, "no client has taken the end yet");
        if takes {
            assert!(stream.batch().await.draining);
        }
        server.dispatcher.close().await;
        assert_eq!(server.leases_left_in_store().await, if takes { 0 } else { 600 });
        drop(stream);
    }
}

#[tokio::test]
async fn a_replica_that_drains_ends_its_streams_and_waits_for_what_they_hold() {
    let server = TestServer::start();
    server.enqueue("t", 4).await;
    let mut stream = server.open(StreamOptions { max_batch: 2, ..options(&["t"]) });
    let sent = stream.jobs(2).await;
    server.eventually("t", |stats| stats.running == 4).await;
    server.dispatcher.drain();
    assert!(stream.batch().await.draining);
    assert!(stream.ended().await);
    drop(stream);
    server.eventually("t", |stats| stats.ready == 2).await;
    assert_eq!(server.dispatcher.open(options(&["t"])).err(), Some(StreamOpenError::Draining));
    let idle = server.dispatcher.wait_idle();
    tokio::pin!(idle);
    assert!(futures::poll!(idle.as_mut()).is_pending());
    server.ack(&sent).await;
    tokio::time::timeout(SOON, idle).await.unwrap();
    tokio::time::timeout(SOON, server.dispatcher.close()).await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_stream_that_is_not_polled_ends_at_its_age_and_when_it_is_idle() {
    let server = TestServer::start();
    let idle = Some(Duration::from_secs(70));
    for (idle_timeout, longest) in [(idle, 81 * SECOND), (None, AGE_MAX.mul_f64(1.11))] {
        let stream = server.open(StreamOptions { idle_timeout, ..options(&["t"]) });
        let (opened, cut) = (tokio::time::Instant::now(), stream.cut());
        assert!(tokio::time::timeout(longest, cut.cancelled()).await.is_ok());
        assert!(opened.elapsed() >= longest.mul_f64(0.8), "{:?}", opened.elapsed());
        assert_eq!(server.dispatcher.streams_count(), 0);
        drop(stream);
    }
}

#[tokio::test]
async fn what_a_stream_was_sent_that_does_not_take_its_end_comes_back_after_its_grace() {
    let idle = Some(70 * SECOND);
    for lease in [30 * SECOND, Duration::from_secs(86_400)] {
        for idle_timeout in [None, idle] {
            let server = TestServer::start();
            server.enqueue("t", 2).await;
            let unread = StreamOptions { max_in_flight: 1, lease, idle_timeout, ..options(&["t"]) };
            let grace = unread.orphan_grace;
            let mut stream = server.open(unread);
            stream.jobs(1).await;
            tokio::time::pause();
            stream.cut().cancelled().await;
            tokio::time::resume();
            drop(stream);
            assert_eq!(server.stats("t").await.running, 1);
            run_pending_tasks().await;
            server.clock.advance(grace);
            server.eventually("t", |stats| stats.ready == 2).await;
        }
    }
}

#[tokio::test]
async fn a_job_in_time_keeps_a_stream_from_ending_idle() {
    let server = TestServer::start();
    let idle = Some(Duration::from_secs(70));
    let mut stream = server.open(StreamOptions { idle_timeout: idle, ..options(&["t"]) });
    let advance = async |seconds| {
        tokio::time::pause();
        tokio::time::advance(seconds * SECOND).await;
        tokio::time::resume();
    };
    for _ in 0..3 {
        advance(60).await;
        server.enqueue("t", 1).await;
        let sent = stream.jobs(1).await;
        server.ack(&sent).await;
    }
    advance(71).await;
    while !stream.ended().await {}
}

/// Uses the default credit and lease.
#[tokio::test]
async fn a_serial_worker_of_defaults_finishes_jobs_of_45_s_each_once_and_extends_none() {
    for jobs in [1, 2, 3, 4, 7, 20] {
        let server = TestServer::start();
        server.enqueue("t", jobs).await;
        let (max_in_flight, lease) = (limit::STREAM_CREDIT_DEFAULT, limit::STREAM_LEASE_DEFAULT);
        let mut stream = server.open(StreamOptions { max_in_flight, lease, ..options(&["t"]) });
        for _ in 0..jobs {
            let job = stream.jobs(1).await;
            assert_eq!((job[0].job.failures, job[0].job.deliveries), (0, 0));
            server.clock.advance(45 * SECOND);
            server.scheduler.upkeep.reap(&server.scheduler.shards().all()[0]).await.unwrap();
            server.ack(&job).await;
        }
        assert_eq!(server.stats("t").await.succeeded_total, jobs as u64);
    }
}
