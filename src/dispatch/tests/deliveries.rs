//! Deliveries of a stream: contents, time and number.

use super::harness::{TestServer, options};
use super::*;

#[tokio::test]
async fn credit_is_never_exceeded_and_comes_back_with_each_settle() {
    let server = TestServer::start();
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
    let server = TestServer::start();
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
    let server = TestServer::start();
    server.enqueue("mail.a", 1).await;
    server.enqueue("other", 1).await;
    let mut stream = server.open(options(&["mail.*"]));
    assert_eq!(stream.jobs(1).await[0].job.key.topic.as_str(), "mail.a");
    server.enqueue("mail.b", 1).await;
    assert_eq!(stream.jobs(1).await[0].job.key.topic.as_str(), "mail.b");
    stream.nothing().await;
}

#[tokio::test]
async fn a_topic_gets_its_turn_again_after_one_that_did_not_fit_beside_it() {
    let server = TestServer::start();
    // Four jobs of a fill a call, except for less than one job of b needs.
    server.enqueue_large("a", 9, 250 << 10).await;
    server.enqueue_large("b", 1, 100 << 10).await;
    let mut stream = server.open(options(&["a", "b"]));
    stream.jobs(10).await;
}

#[tokio::test]
async fn a_large_job_comes_when_there_is_room_whatever_came_meanwhile() {
    let server = TestServer::start();
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

/// Reads can be slow while claims work.
#[tokio::test]
async fn glob_whose_topics_cannot_be_listed_delays_no_other_stream() {
    let server = TestServer::start();
    let mut plain = server.open(options(&["t"]));
    server.store.hang_topics();
    let glob = server.open(options(&["u.*"]));
    for _ in 0..5 {
        server.enqueue("t", 1).await;
        let sent = plain.jobs(1).await;
        server.ack(&sent).await;
    }
    drop(glob);
}
