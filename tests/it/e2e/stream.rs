use ringq::pb::{ListWorkersRequest, StreamRequest};
use tonic::Code;
use tonic_types::StatusExt as _;

use crate::harness::{
    Client, JobExt as _, Server, Setup, SinceEpoch as _, Worker, assert_refused, eventually, job,
    millis, proto, take, wall_now,
};

fn credit(topic: &str, max_in_flight: i32) -> StreamRequest {
    StreamRequest { max_in_flight, ..take(topic) }
}

async fn fill(client: &Client, topic: &str, count: usize) -> Vec<String> {
    client.enqueue_all(vec![job(topic).with_text("x"); count]).await
}

#[tokio::test]
async fn the_settings_come_first_whether_or_not_there_are_jobs() {
    let server = Server::start().await;
    let client = server.connect().await;
    let topics = vec!["topic.that.is.not.there".to_owned()];
    let before = wall_now();
    let worker = client.stream(StreamRequest { topics, ..Default::default() }).await;
    let after = wall_now();
    let info = &worker.info;
    assert!(!info.stream_id.is_empty() && !info.replica.is_empty(), "{info:?}");
    assert_eq!((info.max_in_flight, info.max_batch), (1, 64), "the defaults");
    assert_eq!(info.max_in_flight_bytes, 64 << 20);
    assert_eq!(info.heartbeat_interval, Some(proto(millis(20_000))));
    assert_eq!(info.orphan_grace, Some(proto(millis(5_000))));
    let clock = info.server_time.since_epoch();
    assert!(before <= clock && clock <= after, "{before:?}, {clock:?}, {after:?}");
    assert_eq!((worker.messages[0].deliveries, worker.messages[0].in_flight), (0, 0));

    fill(&client, "mail", 3).await;
    let mut worker = client
        .stream(StreamRequest {
            max_in_flight: 1_000_000,
            max_batch: 1_000_000,
            worker_id: "w-1".into(),
            lease_duration: Some(proto(millis(7_000))),
            heartbeat_interval: Some(proto(millis(3_000))),
            orphan_grace: Some(proto(millis(250))),
            max_in_flight_bytes: 12_345_678,
            ..take("mail")
        })
        .await;
    let info = &worker.info;
    assert_eq!((info.max_in_flight, info.max_batch), (10_000, 1_000), "too much is capped");
    assert_eq!(info.lease_duration, Some(proto(millis(7_000))));
    assert_eq!(info.heartbeat_interval, Some(proto(millis(3_000))));
    assert_eq!(info.orphan_grace, Some(proto(millis(250))));
    assert_eq!(info.max_in_flight_bytes, 12_345_678);
    worker.next_many(3).await;
}

#[tokio::test]
async fn a_delivery_states_all_that_a_worker_needs() {
    let server = Server::start().await;
    let client = server.connect().await;
    let before = wall_now();
    let spec = job("mail").with_id("a").with_priority(7).with_lease(millis(9_000));
    client.enqueue(spec.with_max_attempts(3)).await;
    client.enqueue(job("mail").with_id("b")).await;
    let mut worker = client
        .stream(StreamRequest { lease_duration: Some(proto(millis(5_000))), ..take("mail") })
        .await;
    let [a, b]: [_; 2] = worker.next_many(2).await.try_into().unwrap();
    assert_eq!((a.topic.as_str(), a.id.as_str(), a.priority), ("mail", "a", 7));
    assert_eq!((a.attempt, a.max_attempts, a.delivery), (1, 3, 1));
    assert_eq!((b.attempt, b.max_attempts, b.delivery), (1, 25, 1), "the server's own policy");
    assert_eq!((a.last_error.as_str(), a.group.as_str()), ("", ""));
    // The remaining lease at sending: of the job's own length, else of the stream's.
    let took = wall_now() - before;
    for (delivery, lease) in [(&a, 9_000), (&b, 5_000)] {
        let left = crate::harness::duration(&delivery.lease_duration);
        let is_whole = left <= millis(lease) && left + took >= millis(lease);
        assert!(is_whole, "{}: {left:?} after {took:?}", delivery.id);
        assert!(delivery.due_time.since_epoch() >= before);
        assert!(delivery.create_time.since_epoch() >= before);
        assert!(delivery.receipt.len() <= 512);
        let url_safe = |c: char| c.is_ascii_alphanumeric() || "-_.~".contains(c);
        assert!(delivery.receipt.chars().all(url_safe), "{}", delivery.receipt);
    }
    client.nack(crate::harness::nack_retry(&b.receipt, "try again")).await;
    let again = worker.next().await;
    assert_eq!((again.attempt, again.delivery), (2, 2));
    assert_eq!(again.last_error, "try again");
    assert_ne!(again.receipt, b.receipt, "a receipt is one lease");
}

#[tokio::test]
async fn a_batch_is_never_waited_for_and_holds_at_most_max_batch_and_one_mebibyte() {
    let server = Server::start().await;
    let client = server.connect().await;
    let mut idle = client.stream(credit("idle", 100)).await;
    for _ in 0..5 {
        client.enqueue(job("idle")).await;
        idle.next().await;
    }
    fill(&client, "busy", 100).await;
    let mut busy = client.stream(StreamRequest { max_batch: 7, ..credit("busy", 100) }).await;
    busy.next_many(100).await;
    let sizes: Vec<_> = busy.messages.iter().map(|m| m.deliveries).collect();
    assert!(sizes.iter().all(|&size| size <= 7), "{sizes:?}");
    assert!(sizes.contains(&7), "a busy queue fills its messages: {sizes:?}");

    fill(&client, "single", 10).await;
    let mut single = client.stream(StreamRequest { max_batch: 1, ..credit("single", 100) }).await;
    single.next_many(10).await;
    let sizes: Vec<_> = single.messages.iter().map(|m| m.deliveries).collect();
    assert!(sizes.iter().all(|&size| size <= 1), "{sizes:?}");

    for _ in 0..7 {
        client.enqueue(job("large").with_bytes(300_000)).await;
    }
    let mut large = client.stream(credit("large", 100)).await;
    large.next_many(7).await;
    let sizes: Vec<_> = large.messages.iter().map(|m| m.deliveries).collect();
    assert!(sizes.iter().all(|&size| size <= 3), "a message ends at 1 MiB: {sizes:?}");
}

#[tokio::test]
async fn all_that_fits_the_credit_comes_without_a_settle_in_between() {
    const JOBS: usize = 50;
    let server = Server::start().await;
    let client = server.connect().await;
    for round in 0..12 {
        let topic = format!("files.{round}");
        for _ in 0..2 {
            client.enqueue_all(vec![job(&topic).with_bytes(90_000); JOBS / 2]).await;
        }
        // More than the buffer of a transport: what it takes must make room for the next, without a heartbeat.
        let heartbeat_interval = Some(proto(millis(3_600_000)));
        let request = StreamRequest { heartbeat_interval, ..credit(&topic, 1_000) };
        client.stream(request).await.next_many(JOBS).await;
    }
}

#[tokio::test]
async fn a_stream_too_many_is_refused_and_a_closed_one_makes_room() {
    let server = Setup::new().config("max_streams = 2").start().await;
    let client = server.connect().await;
    let one = client.stream(take("mail")).await;
    let _two = client.stream(take("mail")).await;
    let Err(status) = Worker::try_open(&client, take("mail")).await else {
        panic!("the third of two streams was opened")
    };
    assert_refused(&status, Code::ResourceExhausted, "TOO_MANY_STREAMS", "");
    assert!(status.get_details_retry_info().is_some(), "the error has a retry delay");
    drop(one);
    let third = eventually("room for a stream", async || {
        Worker::try_open(&client, take("mail")).await.ok()
    })
    .await;
    let workers = client.admin.clone().list_workers(ListWorkersRequest::default()).await.unwrap();
    assert_eq!(workers.into_inner().workers.len(), 2);
    drop(third);
}
