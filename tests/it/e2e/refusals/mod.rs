//! Refusals as rows: the request, its refusal by gRPC and by JSON, and a check that nothing changed.

use std::future::Future;
use std::pin::Pin;

use ringq::pb::job_spec::{Expiration, Schedule};
use ringq::pb::{
    EnqueueRequest, ExtendItem, JobSpec, JobState, ListTopicsRequest, NackAction, NackItem,
    RetryPolicy, StreamRequest,
};
use tonic::Status;

use crate::harness::{
    Client, JobExt as _, JsonBridge, Server, Worker, job, millis, nack, proto, refusal, request,
    status_json, take,
};

/// A request and its call; returns the refusal, or the unexpected answer.
type Call = Box<dyn FnOnce(Client) -> Pin<Box<dyn Future<Output = Result<String, Status>>>>>;

/// A rule: its subject, the call that breaks it, and the refusal: code, reason, fields.
struct Row(String, Call, &'static str);

const INVALID: &str = "InvalidArgument INVALID_FIELD";
const LARGE: &str = "InvalidArgument TOO_LARGE";

const YEAR: i64 = 366 * 24 * 3600;
const DAY: i64 = 24 * 3600;

/// A row of one method: its client, its name, the request, and the refusal.
macro_rules! row {
    ($what:expr, $service:ident.$method:ident($request:expr), $reason:ident $field:literal) => {{
        let request = $request;
        let call: Call = Box::new(move |client: Client| {
            Box::pin(async move {
                let mut service = client.$service.clone();
                service.$method(request).await.map(|answer| format!("{:?}", answer.into_inner()))
            })
        });
        let refusal: &'static str = match ($reason, $field) {
            (reason, "") => reason,
            (reason, field) => Box::leak(format!("{reason} {field}").into_boxed_str()),
        };
        Row(format!("{}: {}", stringify!($method), $what), call, refusal)
    }};
}

// Behind the macro that it uses.
mod rows;

fn long(bytes: usize) -> String {
    "a".repeat(bytes)
}

fn span(seconds: i64, nanos: i32) -> prost_types::Duration {
    prost_types::Duration { seconds, nanos }
}

/// Creates a topic with a job in each state that a request could move; returns the receipt of the running one.
async fn seed(client: &Client) -> (Worker, String) {
    let far = millis(3_600_000);
    client.enqueue(job("seed").with_id("dead")).await;
    client.nack(nack(&client.pull_one("seed").await.receipt, NackAction::DeadLetter)).await;
    client.enqueue(job("seed").with_id("backoff")).await;
    let retry = nack(&client.pull_one("seed").await.receipt, NackAction::Retry);
    client.nack(NackItem { delay: Some(proto(far)), ..retry }).await;
    client.enqueue(job("seed").with_id("running").with_lease(far)).await;
    let mut worker = client.stream(StreamRequest { max_in_flight: 1, ..take("seed") }).await;
    let receipt = worker.next().await.receipt;
    client.enqueue(job("seed").with_id("scheduled").with_delay(far)).await;
    client.enqueue(job("seed").with_id("ready").with_text("x")).await;
    (worker, receipt)
}

/// Returns everything that a client can see of the jobs, without fields that change by themselves.
async fn snapshot(client: &Client) -> String {
    use std::fmt::Write as _;
    let all = ListTopicsRequest { page_size: 1_000, ..Default::default() };
    let topics = client.topics.clone().list_topics(all).await.unwrap().into_inner().topics;
    let mut text = String::new();
    for row in topics {
        let (topic, mut stats) = (row.topic.unwrap(), row.stats.unwrap());
        stats.oldest_ready_age = None;
        (stats.enqueue_rate, stats.finish_rate, stats.fail_rate) = (None, None, None);
        stats.streams = 0;
        writeln!(text, "{topic:?} {stats:?}").unwrap();
        for state in 1..=8 {
            let state = JobState::try_from(state).unwrap();
            writeln!(text, "{:?}", client.list(&topic.name, state).await).unwrap();
        }
    }
    text
}

/// Each refusal of a request that can be JSON has the error of gRPC there: its code, its text and its details.
#[tokio::test]
async fn a_json_call_is_refused_with_the_same_error() {
    let server = Server::start().await;
    let client = server.connect().await;
    let bridge = JsonBridge::start(server.http).await;
    let as_json = Client::connect(bridge.grpc).await;
    let (_worker, receipt) = seed(&client).await;
    let (mut wrong, mut compared) = (Vec::new(), 0);
    let both = rows::rows(&receipt).into_iter().zip(rows::rows(&receipt));
    for (Row(what, call, _), Row(_, again, _)) in both {
        let (expected, found) = (call(client.clone()).await, again(as_json.clone()).await);
        let (expected, found) = (expected.unwrap_err(), found.map_err(|found| status_json(&found)));
        let cannot_be_sent = what.starts_with("stream:")
            || matches!(&found, Err(found) if found["message"].as_str().unwrap().starts_with("cannot be JSON"));
        if cannot_be_sent {
            continue;
        }
        compared += 1;
        let expected = Err(status_json(&expected));
        if found != expected {
            wrong.push(format!("{what}:\n  JSON {found:?}\n  gRPC {expected:?}"));
        }
    }
    assert!(wrong.is_empty(), "{} errors differ:\n{}", wrong.len(), wrong.join("\n"));
    assert!(compared > 35, "{compared} refusals were compared");
}

#[tokio::test]
async fn a_refusal_has_its_reason_and_its_field_and_nothing_changes() {
    let server = Server::start().await;
    let client = server.connect().await;
    let (_worker, receipt) = seed(&client).await;
    let mut wrong = Vec::new();
    let mut before = snapshot(&client).await;
    for Row(what, call, expected) in rows::rows(&receipt) {
        let found = match call(client.clone()).await {
            Ok(answer) => format!("accepted: {answer:.200}"),
            Err(status) => refusal(&status),
        };
        if found != expected {
            wrong.push(format!("{what}: {found}, not {expected}"));
        }
        let after = snapshot(&client).await;
        if after != before {
            wrong.push(format!("{what}: changed\n{before}to\n{after}"));
            before = after;
        }
    }
    assert!(wrong.is_empty(), "{} rules are broken:\n{}", wrong.len(), wrong.join("\n"));
}

#[tokio::test]
async fn what_is_just_within_the_limits_is_accepted() {
    let server = Server::start().await;
    let client = server.connect().await;
    let longest = long(128);
    let spec = JobSpec {
        lease_duration: Some(span(DAY, 0)),
        retention: Some(span(YEAR, 0)),
        ..job(&longest)
            .with_id(&longest)
            .with_header("k", long((8 << 10) - 1))
            .with_priority(9)
            .with_bytes(1 << 20)
            .with_retry(RetryPolicy {
                max_attempts: -1,
                max_deliveries: -1,
                delays: vec![span(10 * 365 * DAY, 0); 100],
                jitter: Some(1.0),
                multiplier: 1.0,
                ..Default::default()
            })
    };
    let request_id = long(64);
    client.send(EnqueueRequest { request_id, ..request(spec) }).await.unwrap();
    let ten_years = JobSpec {
        schedule: Some(Schedule::Delay(span(10 * 365 * DAY, 0))),
        expiration: Some(Expiration::Ttl(span(10 * 365 * DAY, 1_000_000))),
        ..job("a.B_c:d-9")
    };
    client.enqueue(ten_years.with_id("A.z_0:@-9")).await;
    let mut worker = client
        .stream(StreamRequest {
            topics: vec![longest.clone(); 64],
            worker_id: long(128),
            ..Default::default()
        })
        .await;
    let delivery = worker.next().await;
    assert!(delivery.receipt.len() <= 512, "{}", delivery.receipt.len());
    assert_eq!((delivery.max_attempts, delivery.priority), (-1, 9));
    let extend = ExtendItem {
        receipt: delivery.receipt.clone(),
        lease_duration: Some(span(1, 0)),
        progress: long(1_024),
        checkpoint: Some(ringq::pb::Payload::text(long(64 << 10))),
    };
    assert_eq!(client.extend_items(vec![extend]).await, []);
    let error = long(4_096);
    client.nack(NackItem { error, ..nack(&delivery.receipt, NackAction::DeadLetter) }).await;
    let stored = client.get(&longest, &longest).await;
    assert_eq!((stored.last_error.len(), stored.progress.len()), (4_096, 1_024));
}
