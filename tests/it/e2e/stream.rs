use std::collections::{HashMap, HashSet};

use ringq::pb::{
    DeleteRequest, JobSpec, JobState, ListWorkersRequest, NackAction, RevocationReason,
    StreamRequest,
};
use tokio::time::Instant;
use tonic::Code;
use tonic_types::StatusExt as _;

use crate::harness::{
    Client, JobExt as _, Server, Setup, SinceEpoch as _, Worker, assert_refused, eventually, job,
    millis, nack, proto, receipts, take, wall_now,
};

fn credit(topic: &str, max_in_flight: i32) -> StreamRequest {
    StreamRequest { max_in_flight, ..take(topic) }
}

async fn fill(client: &Client, topic: &str, count: usize) -> Vec<String> {
    client.enqueue_all(vec![job(topic).with_text("x"); count]).await
}

#[tokio::test]
async fn the_settings_come_first_and_at_once_whether_or_not_there_are_jobs() {
    let server = Server::start().await;
    let client = server.connect().await;
    let begin = Instant::now();
    let topics = vec!["topic.that.is.not.there".to_owned()];
    let worker = client.stream(StreamRequest { topics, ..Default::default() }).await;
    assert!(begin.elapsed() < millis(2_000), "{:?}", begin.elapsed());
    let info = &worker.info;
    assert!(!info.stream_id.is_empty() && !info.replica.is_empty(), "{info:?}");
    assert_eq!((info.max_in_flight, info.max_batch), (1, 64), "the defaults");
    assert_eq!(info.max_in_flight_bytes, 64 << 20);
    assert_eq!(info.heartbeat_interval, Some(proto(millis(20_000))));
    assert_eq!(info.orphan_grace, Some(proto(millis(5_000))));
    let clock = info.server_time.since_epoch();
    let skew = clock.abs_diff(wall_now());
    assert!(skew < millis(5_000), "the server's clock is off by {skew:?}");
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
    for (delivery, lease) in [(&a, 9_000), (&b, 5_000)] {
        let left = millis(lease) - crate::harness::duration(&delivery.lease_duration);
        assert!(left < millis(2_000), "{}: {:?}", delivery.id, delivery.lease_duration);
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
async fn credit_is_never_exceeded_and_every_settle_frees_it() {
    let server = Server::start().await;
    let client = server.connect().await;
    fill(&client, "mail", 12).await;
    let mut worker = client.stream(credit("mail", 3)).await;
    let held = worker.next_many(3).await;
    worker.quiet(millis(300)).await;
    assert_eq!(client.stats("mail").await.running, 3, "no job is leased beyond the credit");
    // An Ack frees one, on any connection.
    server.connect().await.ack(&held[0].receipt).await;
    let fourth = worker.next().await;
    client.nack(nack(&held[1].receipt, NackAction::DeadLetter)).await;
    let fifth = worker.next().await;
    client.nack(nack(&held[2].receipt, NackAction::Retry)).await;
    let sixth = worker.next().await;
    worker.quiet(millis(200)).await;
    // Settled twice, freed once.
    for _ in 0..3 {
        client.ack_items(vec![ack_item(&held[0].receipt)]).await;
    }
    worker.quiet(millis(200)).await;
    client.ack_all(&receipts(&[fourth, fifth, sixth])).await;
    worker.next_many(3).await;
    assert!(worker.messages.iter().all(|m| m.in_flight <= 3), "{:?}", worker.messages);
    assert!(worker.messages.iter().all(|m| m.in_flight >= m.deliveries as i32));
}

fn ack_item(receipt: &str) -> ringq::pb::AckItem {
    ringq::pb::AckItem { receipt: receipt.to_owned(), ..Default::default() }
}

#[tokio::test]
async fn a_thousand_jobs_flow_through_a_small_credit_each_exactly_once() {
    let server = Server::start().await;
    let client = server.connect().await;
    let ids: HashSet<_> = fill(&client, "mail", 1_000).await.into_iter().collect();
    let mut workers = Vec::new();
    for max_in_flight in [1, 5, 20] {
        workers.push(client.stream(credit("mail", max_in_flight)).await);
    }
    let mut seen = Vec::new();
    let work = workers.iter_mut().map(|worker| {
        let client = client.clone();
        async move {
            let (limit, mut ids) = (worker.info.max_in_flight, Vec::new());
            let mut held = HashSet::new();
            loop {
                let next = tokio::time::timeout(millis(1_500), worker.next()).await;
                let Ok(delivery) = next else { return ids };
                held.insert(delivery.receipt.clone());
                assert!(held.len() + worker.unread() <= limit as usize, "credit {limit}");
                if ids.len() % 3 != 0 || held.len() + worker.unread() == limit as usize {
                    let receipts: Vec<_> = held.drain().collect();
                    client.ack_all(&receipts).await;
                }
                ids.push(delivery.id);
            }
        }
    });
    for done in futures::future::join_all(work).await {
        assert!(!done.is_empty(), "every worker gets some");
        seen.extend(done);
    }
    // Jobs that a worker held when it stopped are settled or running, and never come twice.
    assert_eq!(seen.len(), 1_000);
    assert_eq!(seen.into_iter().collect::<HashSet<_>>(), ids);
}

#[tokio::test]
async fn unsettled_bytes_are_bounded_and_a_larger_job_travels_alone() {
    let server = Server::start().await;
    let client = server.connect().await;
    for _ in 0..4 {
        client.enqueue(job("files").with_bytes(100_000)).await;
    }
    let request = StreamRequest { max_in_flight_bytes: 250_000, ..credit("files", 100) };
    let mut worker = client.stream(request.clone()).await;
    let mut held = worker.next_many(2).await;
    worker.quiet(millis(300)).await;
    client.ack(&held.remove(0).receipt).await;
    held.push(worker.next().await);
    worker.quiet(millis(200)).await;
    // Larger than the bound: only when nothing else is in flight.
    let large = client.enqueue(job("files").with_bytes(600_000).with_priority(9)).await.id;
    client.ack(&held.remove(0).receipt).await;
    let mut rest = held;
    while rest.len() < 3 {
        let next = tokio::time::timeout(millis(500), worker.next()).await;
        let Ok(delivery) = next else { break };
        assert_ne!(delivery.id, large, "with others in flight");
        rest.push(delivery);
    }
    client.ack_all(&receipts(&rest)).await;
    let alone = worker.next().await;
    if alone.id != large {
        client.ack(&alone.receipt).await;
        assert_eq!(worker.next().await.id, large);
    }
    client.enqueue(job("files")).await;
    worker.quiet(millis(300)).await;
}

#[tokio::test]
async fn a_batch_is_never_waited_for_and_holds_at_most_max_batch_and_one_mebibyte() {
    let server = Server::start().await;
    let client = server.connect().await;
    let mut idle = client.stream(credit("idle", 100)).await;
    for _ in 0..5 {
        let sent = Instant::now();
        client.enqueue(job("idle")).await;
        idle.next().await;
        assert!(sent.elapsed() < millis(1_000), "one job alone took {:?}", sent.elapsed());
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
        // More than the buffer of a transport: what it takes must make room for the next.
        let begin = Instant::now();
        let mut worker = client.stream(credit(&topic, 1_000)).await;
        worker.next_many(JOBS).await;
        let took = begin.elapsed();
        assert!(took < millis(5_000), "the stream stood still: {JOBS} jobs took {took:?}");
    }
}

#[tokio::test]
async fn silence_is_filled_with_empty_messages() {
    let server = Server::start().await;
    let client = server.connect().await;
    let heartbeat_interval = Some(proto(millis(1_000)));
    let mut worker = client.stream(StreamRequest { heartbeat_interval, ..take("mail") }).await;
    for _ in 0..2 {
        let begin = Instant::now();
        let message = worker.message().await.unwrap();
        assert_eq!((message.deliveries, message.revocations, message.in_flight), (0, 0, 0));
        assert!(!message.draining);
        let silence = begin.elapsed();
        assert!(silence > millis(700) && silence < millis(2_500), "after {silence:?}");
    }
}

#[tokio::test]
async fn max_jobs_ends_the_stream_with_ok_and_its_leases_stay() {
    let server = Server::start().await;
    let client = server.connect().await;
    fill(&client, "mail", 5).await;
    let orphan_grace = Some(proto(millis(200)));
    let request = StreamRequest { max_jobs: 3, orphan_grace, ..take("mail") };
    let mut worker = client.stream(request).await;
    let held = worker.next_many(3).await;
    worker.end().await;
    // A stream that the server ends is not broken: nothing is released.
    tokio::time::sleep(millis(700)).await;
    let stats = client.stats("mail").await;
    assert_eq!((stats.ready, stats.running), (2, 3));
    client.ack_all(&receipts(&held)).await;
    // Fewer jobs than asked for: it continues until it has had them all.
    let mut worker = client.stream(StreamRequest { max_jobs: 3, ..take("mail") }).await;
    worker.next_many(2).await;
    worker.quiet(millis(200)).await;
    fill(&client, "mail", 2).await;
    worker.next().await;
    worker.end().await;
    assert_eq!(client.stats("mail").await.ready, 1);
}

#[tokio::test]
async fn idle_timeout_ends_the_stream_with_ok_after_so_long_without_a_job() {
    let server = Server::start().await;
    let client = server.connect().await;
    let idle_timeout = Some(proto(millis(600)));
    let mut worker = client.stream(StreamRequest { idle_timeout, ..take("mail") }).await;
    tokio::time::sleep(millis(400)).await;
    let begin = Instant::now();
    client.enqueue(job("mail")).await;
    let delivery = worker.next().await;
    worker.end().await;
    let idle = begin.elapsed();
    assert!(idle >= millis(550), "a job starts the time again: ended after {idle:?}");
    assert!(idle < millis(3_000), "ended after {idle:?}");
    client.ack(&delivery.receipt).await;
}

#[tokio::test]
async fn a_glob_takes_topics_that_come_later_and_no_others() {
    let server = Server::start().await;
    let client = server.connect().await;
    fill(&client, "billing.early", 1).await;
    let mut billing = client.stream(take("billing.*")).await;
    assert_eq!(billing.next().await.topic, "billing.early");
    for topic in ["billing", "billings.x", "abilling.x", "other"] {
        fill(&client, topic, 1).await;
    }
    billing.quiet(millis(300)).await;
    for topic in ["billing.late", "billing.a.b.c"] {
        fill(&client, topic, 1).await;
        assert_eq!(billing.next().await.topic, topic);
    }
    let later = job("billing.due").with_delay(millis(300));
    client.enqueue(later).await;
    assert_eq!(billing.next().await.topic, "billing.due");
    // A topic that is named before it exists.
    let mut exact = client.stream(take("not.yet")).await;
    fill(&client, "not.yet", 1).await;
    assert_eq!(exact.next().await.topic, "not.yet");
    // Everything there is.
    let mut all = client.stream(take("*")).await;
    let topics: HashSet<_> = all.next_many(4).await.into_iter().map(|d| d.topic).collect();
    let expected = ["billing", "billings.x", "abilling.x", "other"];
    assert_eq!(topics, expected.map(String::from).into());
}

#[tokio::test]
async fn the_topics_of_a_stream_are_served_in_turns() {
    let server = Server::start().await;
    let client = server.connect().await;
    for topic in ["flood", "drip", "third"] {
        fill(&client, topic, 60).await;
    }
    let topics = ["flood", "drip", "third"].map(String::from).to_vec();
    let request = StreamRequest { topics, max_in_flight: 6, ..Default::default() };
    let mut worker = client.stream(request).await;
    let mut counts: HashMap<String, usize> = HashMap::new();
    for _ in 0..60 {
        let delivery = worker.next().await;
        *counts.entry(delivery.topic).or_default() += 1;
        client.ack(&delivery.receipt).await;
    }
    let fair = |topic| counts.get(topic).is_some_and(|&n| n >= 12);
    assert!(["flood", "drip", "third"].into_iter().all(fair), "{counts:?}");
}

#[tokio::test]
async fn streams_on_one_topic_share_its_jobs() {
    let server = Server::start().await;
    let client = server.connect().await;
    let mut one = client.stream(credit("mail", 100)).await;
    let mut two = server.connect().await.stream(credit("mail", 100)).await;
    let ids: HashSet<_> = fill(&client, "mail", 100).await.into_iter().collect();
    let mut seen = HashSet::new();
    while seen.len() < 100 {
        let delivery = tokio::select! { d = one.next() => d, d = two.next() => d };
        assert!(seen.insert(delivery.id.clone()), "{} came twice", delivery.id);
    }
    assert_eq!(seen, ids);
    one.quiet(millis(100)).await;
    two.quiet(millis(100)).await;
}

#[tokio::test]
async fn higher_priorities_go_first_then_earlier_due_times() {
    let server = Server::start().await;
    let client = server.connect().await;
    let past = |seconds: i64, spec: JobSpec| JobSpec {
        schedule: Some(ringq::pb::job_spec::Schedule::DueTime(prost_types::Timestamp {
            seconds: 1_600_000_000 + seconds,
            nanos: 0,
        })),
        ..spec
    };
    let jobs = vec![
        job("mail").with_id("plain"),
        job("mail").with_id("low").with_priority(1),
        job("mail").with_id("high").with_priority(9),
        job("mail").with_id("low-2").with_priority(1),
        past(0, job("mail").with_id("past")),
    ];
    client.enqueue_all(jobs).await;
    let mut worker = client.stream(credit("mail", 1)).await;
    let mut order = Vec::new();
    for _ in 0..5 {
        let delivery = worker.next().await;
        client.ack(&delivery.receipt).await;
        order.push(delivery.id);
    }
    // A past due time means now: it gives no place ahead of existing jobs.
    assert_eq!(order[..3], ["high", "low", "low-2"]);
    assert_eq!(order[3..].iter().collect::<HashSet<_>>().len(), 2);
}

#[tokio::test]
async fn a_deleted_job_is_revoked_and_its_credit_is_free() {
    let server = Server::start().await;
    let client = server.connect().await;
    client.enqueue(job("mail").with_id("a")).await;
    client.enqueue(job("mail").with_id("b")).await;
    let mut worker = client.stream(credit("mail", 1)).await;
    let a = worker.next().await;
    let delete = DeleteRequest { topic: "mail".into(), id: "a".into(), ..Default::default() };
    server.connect().await.queue.delete(delete).await.unwrap();
    let revocation = worker.revocation().await;
    assert_eq!(revocation.receipt, a.receipt);
    assert_eq!(revocation.reason(), RevocationReason::Deleted);
    assert_eq!(worker.next().await.id, "b");
    assert!(worker.messages.iter().all(|m| m.in_flight <= 1));
    let failures = client.ack_items(vec![ack_item(&a.receipt)]).await;
    assert_eq!(failures.len(), 1, "a revoked receipt is dead");
    assert_eq!(client.state("mail", "a").await, JobState::Cancelled);
}

#[tokio::test]
async fn an_expired_lease_is_revoked_counted_and_retried() {
    let server = Server::start().await;
    let client = server.connect().await;
    let retry = ringq::pb::RetryPolicy { delays: vec![proto(millis(100))], ..Default::default() };
    client.enqueue(job("mail").with_id("a").with_lease(millis(1_000)).with_retry(retry)).await;
    let mut worker = client.stream(take("mail")).await;
    let begin = Instant::now();
    let first = worker.next().await;
    let revocation = worker.revocation().await;
    let held = begin.elapsed();
    assert!(held > millis(900) && held < millis(3_000), "revoked after {held:?}");
    assert_eq!(revocation.receipt, first.receipt);
    assert_eq!(revocation.reason(), RevocationReason::LeaseExpired);
    let second = worker.next().await;
    assert_eq!((second.attempt, second.delivery), (2, 2), "an expired lease is a failure");
    let stored = client.get("mail", "a").await;
    let outcome = stored.attempts[0].outcome();
    assert_eq!(outcome, ringq::pb::AttemptOutcome::LeaseExpired);
    client.ack(&second.receipt).await;
    assert_eq!(client.state("mail", "a").await, JobState::Succeeded);
}

#[tokio::test]
async fn in_flight_is_the_credit_in_use_after_each_message() {
    let server = Server::start().await;
    let client = server.connect().await;
    let mut worker = client.stream(StreamRequest { max_batch: 1, ..credit("mail", 10) }).await;
    for expected in 1..=3 {
        client.enqueue(job("mail")).await;
        worker.next().await;
        assert_eq!(worker.messages.last().unwrap().in_flight, expected);
    }
    client.enqueue(job("mail")).await;
    let held = worker.next().await;
    client.ack(&held.receipt).await;
    client.enqueue(job("mail")).await;
    worker.next().await;
    assert_eq!(worker.messages.last().unwrap().in_flight, 4);
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

#[tokio::test]
async fn an_old_stream_is_ended_with_draining_and_keeps_its_leases() {
    let server = Setup::new().config("stream_max_age = \"1s\"").start().await;
    let client = server.connect().await;
    fill(&client, "mail", 1).await;
    let begin = Instant::now();
    let orphan_grace = Some(proto(millis(100)));
    let mut worker = client.stream(StreamRequest { orphan_grace, ..take("mail") }).await;
    let held = worker.next().await;
    worker.end().await;
    let age = begin.elapsed();
    assert!(age > millis(800) && age < millis(4_000), "ended after {age:?}");
    assert!(worker.messages.last().unwrap().draining, "{:?}", worker.messages);
    tokio::time::sleep(millis(500)).await;
    client.ack(&held.receipt).await;
    assert_eq!(client.stats("mail").await.succeeded_total, 1);
}
