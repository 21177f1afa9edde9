//! Quotas: refused calls and what they leave, settles that are never refused, neighbours, servers that share a rate.

use std::time::Duration;

use ringq::pb;
use tokio::time::Instant;
use tonic::{Code, Status};
use tonic_types::StatusExt as _;

use crate::harness::{
    Redis, Server, Setup, assert_refused, eventually, http_get, job, millis, proto, within,
};

use super::identities::{Caller, IdentityDir, table, token};

const ALL: &str = "producer = ['*']\nworker = ['*']\noperator = ['*']";

/// Starts a server with an identity `a` that has this quota, and an identity `free` without one.
async fn server(quota: &str) -> (IdentityDir, Server, Caller) {
    let dir = IdentityDir::new(&tables(quota));
    let server = open_metrics(&dir).start().await;
    let caller = Caller::connect(&server, "a").await;
    (dir, server, caller)
}

/// Builds a server whose metrics anyone may read.
fn open_metrics(dir: &IdentityDir) -> Setup {
    dir.setup().config("metrics_open = true")
}

pub(super) fn tables(quota: &str) -> String {
    table("a", &format!("{ALL}\nquota = {{ {quota} }}")) + &table("free", ALL)
}

pub(super) fn with_bytes(topic: &str, bytes: usize) -> pb::JobSpec {
    let kind = Some(pb::payload::Kind::Text("x".repeat(bytes)));
    let payload = Some(pb::Payload { kind, ..Default::default() });
    pb::JobSpec { payload, ..job(topic) }
}

pub(super) async fn enqueue(
    caller: &Caller,
    job: pb::JobSpec,
) -> Result<pb::EnqueueResponse, Status> {
    let request = pb::EnqueueRequest { job: Some(job), ..Default::default() };
    caller.call("QueueService/Enqueue", &request).await
}

pub(super) async fn batch(caller: &Caller, jobs: Vec<pb::JobSpec>) -> Result<usize, Status> {
    let request = pb::BatchEnqueueRequest { jobs, ..Default::default() };
    let done: pb::BatchEnqueueResponse = caller.call("QueueService/BatchEnqueue", &request).await?;
    assert_eq!(done.failed_count, 0, "{done:?}");
    Ok(done.results.len())
}

async fn info(caller: &Caller) -> Result<pb::GetServerInfoResponse, Status> {
    caller.call("AdminService/GetServerInfo", &pb::GetServerInfoRequest::default()).await
}

pub(super) async fn pull(
    caller: &Caller,
    topic: &str,
    max_jobs: i32,
    wait: Duration,
) -> Result<pb::PullResponse, Status> {
    let (topics, wait) = (vec![topic.to_owned()], Some(proto(wait)));
    let request = pb::PullRequest { topics, max_jobs, wait, ..Default::default() };
    caller.call("QueueService/Pull", &request).await
}

/// Returns the number of jobs of a topic that wait.
pub(super) async fn ready(caller: &Caller, topic: &str) -> i64 {
    let request = pb::GetTopicStatsRequest { name: topic.to_owned() };
    let stats =
        caller.call::<pb::GetTopicStatsResponse>("TopicService/GetTopicStats", &request).await;
    stats.map_or(0, |stats| stats.stats.unwrap().ready)
}

/// Checks that a quota refused the call, and returns its delay.
#[track_caller]
pub(super) fn refused<T: std::fmt::Debug>(
    result: Result<T, Status>,
    quota: &str,
    subject: &str,
) -> Duration {
    let status = result.unwrap_err();
    assert_refused(&status, Code::ResourceExhausted, "QUOTA_EXCEEDED", "");
    let details = status.get_error_details();
    assert_eq!(details.error_info().unwrap().metadata["quota"], quota);
    assert_eq!(details.quota_failure().unwrap().violations[0].subject, subject);
    details.retry_info().map_or(Duration::MAX, |retry| retry.retry_delay.unwrap())
}

/// Returns the value of a series; 0 if there is none.
pub(super) async fn value(server: &Server, series: &str) -> f64 {
    let (_, text) = http_get(server.http, "/metrics").await;
    let line = text.lines().find_map(|line| line.strip_prefix(series)?.strip_prefix(' '));
    line.map_or(0.0, |value| value.parse().unwrap())
}

#[tokio::test]
async fn calls_beyond_their_rate_are_refused_and_pass_after_the_delay() {
    let (_dir, _server, a) = server("calls_per_second = 2").await;
    let mut delay = None;
    for _ in 0..20 {
        if let Err(status) = info(&a).await {
            delay = Some(refused::<()>(Err(status), "calls_per_second", "identities/a"));
            break;
        }
    }
    let delay = delay.expect("20 calls are more than 2 per second");
    assert!(delay > Duration::ZERO && delay <= millis(500), "{delay:?}");
    info(&a.as_identity("free")).await.unwrap();
    let mut health =
        tonic_health::pb::health_client::HealthClient::new(_server.connect().await.channel);
    for _ in 0..9 {
        health.check(tonic_health::pb::HealthCheckRequest::default()).await.unwrap();
    }
    tokio::time::sleep(delay).await;
    info(&a).await.unwrap();
}

/// The rates are so small that nothing is refilled while the test runs.
#[tokio::test]
async fn jobs_beyond_their_rate_are_refused_whole_and_pass_after_the_delay() {
    let (_dir, server, a) = server("jobs_per_second = 5").await;
    let free = a.as_identity("free");
    let begin = Instant::now();
    assert_eq!(batch(&a, vec![job("t"); 50]).await.unwrap(), 50, "a full bucket passes any batch");
    let owed = refused(enqueue(&a, job("t")).await, "jobs_per_second", "identities/a");
    let all = millis(9_200);
    assert!(owed <= all && owed + begin.elapsed() >= all, "{owed:?} after {:?}", begin.elapsed());
    refused(batch(&a, vec![job("t"); 3]).await, "jobs_per_second", "identities/a");
    assert_eq!(ready(&free, "t").await, 50, "nothing was applied");
    enqueue(&free, job("other")).await.unwrap();
    info(&a).await.expect("its calls are not limited");
    // A change of one figure leaves what is owed of the other.
    _dir.write("identities.toml", &tables("jobs_per_second = 5, bytes_per_second = 1"));
    eventually("the change", async || enqueue(&a, with_bytes("t", 9)).await.is_err().then_some(()))
        .await;
    refused(enqueue(&a, job("t")).await, "jobs_per_second", "identities/a");
    let owed = refused(enqueue(&a, job("t")).await, "jobs_per_second", "identities/a");
    tokio::time::sleep(owed).await;
    enqueue(&a, job("t")).await.unwrap();
    let series = "ringq_identity_jobs_total{identity=\"a\"}";
    assert!((value(&server, series).await - 51.0).abs() < 0.1);
}

#[tokio::test]
async fn bytes_beyond_their_rate_are_refused_and_pass_after_the_delay() {
    let (_dir, server, a) = server("bytes_per_second = 1000").await;
    let begin = Instant::now();
    enqueue(&a, with_bytes("t", 3_000)).await.unwrap();
    let delay =
        refused(enqueue(&a, with_bytes("t", 100)).await, "bytes_per_second", "identities/a");
    let all = millis(2_100);
    assert!(delay <= all && delay + begin.elapsed() >= all, "{delay:?}");
    tokio::time::sleep(delay).await;
    enqueue(&a, with_bytes("t", 100)).await.unwrap();
    let usage = async |name: &str| value(&server, &format!("{name}{{identity=\"a\"}}")).await;
    assert!((usage("ringq_identity_bytes_total").await - 3_100.0).abs() < 0.1);
    assert!((usage("ringq_identity_calls_total").await - 3.0).abs() < 0.1);
    let series = "ringq_identity_refused_total{identity=\"a\",quota=\"bytes_per_second\"}";
    assert!((value(&server, series).await - 1.0).abs() < 0.1);
}

#[tokio::test]
async fn streams_and_waiting_pulls_have_a_number_and_make_room_when_they_end() {
    let (_dir, server, a) = server("streams = 2").await;
    let request = pb::StreamRequest { topics: vec!["t".to_owned()], ..Default::default() };
    let mut client = server.connect().await.queue;
    let mut open = async || {
        let mut request = tonic::Request::new(request.clone());
        let header = format!("Bearer {}", token("a")).parse().unwrap();
        request.metadata_mut().insert("authorization", header);
        client.stream(request).await.map(tonic::Response::into_inner)
    };
    let stream = open().await.unwrap();
    let waiting = tokio::spawn({
        let a = a.clone();
        async move {
            loop {
                // Refused while one of the Pulls below looks whether this one waits.
                if let Ok(pulled) = pull(&a, "p", 1, Duration::from_secs(30)).await {
                    return pulled;
                }
            }
        }
    });
    let free = a.as_identity("free");
    let is_full = async || pull(&a, "q", 1, Duration::ZERO).await.err();
    let status = eventually("the Pull waits", is_full).await;
    let delay = refused::<()>(Err(status), "streams", "identities/a");
    assert_eq!(delay, millis(1_000));
    refused(open().await.map(drop), "streams", "identities/a");
    pull(&free, "q", 1, Duration::ZERO).await.unwrap();
    enqueue(&free, job("p")).await.unwrap();
    let pulled = within("the Pull has its job", waiting).await.unwrap();
    assert_eq!(pulled.deliveries.len(), 1);
    pull(&a, "q", 1, Duration::ZERO).await.expect("the Pull has made room");
    let second = open().await.unwrap();
    assert!(open().await.is_err());
    drop((stream, second));
    eventually("room", async || open().await.ok()).await;
}

/// An Ack is not refused for its own rate, and its follow-ups not for those of jobs and bytes: both count.
#[tokio::test]
async fn settles_are_never_refused() {
    let quota = "calls_per_second = 1, jobs_per_second = 0.001, bytes_per_second = 1";
    let (_dir, server, a) = server(quota).await;
    let free = a.as_identity("free");
    batch(&free, vec![job("t"); 200]).await.unwrap();
    let pulled = pull(&free, "t", 200, Duration::ZERO).await.unwrap().deliveries;
    assert_eq!(pulled.len(), 200);
    let mut acked = 0;
    for (n, delivery) in pulled.into_iter().enumerate() {
        let receipt = delivery.receipt;
        if n % 2 == 0 {
            let item = pb::ExtendItem { receipt: receipt.clone(), ..Default::default() };
            let request = pb::ExtendRequest { items: vec![item] };
            let done: pb::ExtendResponse = a.call("QueueService/Extend", &request).await.unwrap();
            assert!(done.failures.is_empty(), "{done:?}");
        }
        let enqueue = vec![with_bytes("next", 100)];
        let item = pb::AckItem { receipt, enqueue, ..Default::default() };
        let request = pb::AckRequest { items: vec![item] };
        let done: pb::AckResponse = a.call("QueueService/Ack", &request).await.unwrap();
        assert!(done.failures.is_empty(), "{done:?}");
        acked += 1;
    }
    assert_eq!((acked, ready(&free, "next").await), (200, 200));
    let delay = refused(info(&a).await, "calls_per_second", "identities/a");
    assert!(delay <= millis(2_000), "300 settles owe {delay:?}");
    tokio::time::sleep(delay).await;
    let delay = refused(enqueue(&a, job("t")).await, "jobs_per_second", "identities/a");
    assert!(delay > Duration::from_secs(900), "{delay:?}");
    let jobs = value(&server, "ringq_identity_jobs_total{identity=\"a\"}").await;
    assert!((jobs - 200.0).abs() < 0.1, "{jobs}");
}

/// Two servers on one Redis: each passes a half of the rate, as the time until a debt is paid shows. What a server may
/// pass at once is in `auth::quota`.
#[tokio::test]
async fn two_servers_share_a_rate() {
    const JOBS: usize = 1_000;
    /// Time until a server that is alone has passed them.
    const ALONE: Duration = Duration::from_secs(100);
    let Some(redis) = Redis::start().await else { return };
    let dir = IdentityDir::new(&tables("jobs_per_second = 10"));
    let start = || {
        let identities = format!("identities = {:?}", dir.path());
        Setup::on(&redis.url()).config(&identities).start()
    };
    let (one, mut two) = (start().await, start().await);
    let (first, second) = (Caller::connect(&one, "a").await, Caller::connect(&two, "a").await);
    let owed = async |caller: &Caller| {
        refused(enqueue(caller, job("t")).await, "jobs_per_second", "identities/a")
    };
    for caller in [&first, &second] {
        batch(caller, vec![job("t"); JOBS]).await.unwrap();
        eventually("it has a half", async || (owed(caller).await > ALONE).then_some(())).await;
    }
    two.terminate();
    two.exit().await;
    eventually("it is alone", async || (owed(&first).await < ALONE).then_some(())).await;
}

/// Waiting jobs of a namespace, from several identities; what workers take makes room.
#[tokio::test]
async fn a_namespace_keeps_its_waiting_jobs_within_its_quota() {
    let dir = IdentityDir::new(&tables(""));
    dir.write("quotas.toml", "[[namespace]]\nname = 'shop.'\nwaiting_jobs = 10\n");
    let server = open_metrics(&dir).start().await;
    let a = Caller::connect(&server, "a").await;
    let free = a.as_identity("free");
    assert_eq!(batch(&a, vec![job("shop.a"); 6]).await.unwrap(), 6);
    let late = pb::JobSpec {
        schedule: Some(pb::job_spec::Schedule::Delay(proto(Duration::from_secs(3_600)))),
        ..job("shop.b")
    };
    assert_eq!(batch(&free, vec![late; 3]).await.unwrap(), 3);
    let mixed = ["other", "shop.a", "shop.b"].map(job).into();
    let delay = refused(batch(&a, mixed).await, "waiting_jobs", "namespaces/shop.");
    assert_eq!(delay, millis(1_000));
    assert_eq!(ready(&a, "other").await, 0, "nothing was applied");
    enqueue(&a, job("shop.c")).await.unwrap();
    refused(enqueue(&free, job("shop.c")).await, "waiting_jobs", "namespaces/shop.");
    enqueue(&free, job("other")).await.unwrap();
    let never =
        refused(batch(&a, vec![job("shop.a"); 11]).await, "waiting_jobs", "namespaces/shop.");
    assert_eq!(never, Duration::MAX, "no retry of so large a batch can succeed");
    let gauge = "ringq_namespace_waiting_jobs{namespace=\"shop.\"}";
    let read = async |jobs: f64| ((value(&server, gauge).await - jobs).abs() < 0.1).then_some(());
    eventually("a read", async || read(10.0).await).await;
    refused(enqueue(&a, job("shop.c")).await, "waiting_jobs", "namespaces/shop.");
    pull(&a, "shop.a", 5, Duration::ZERO).await.unwrap();
    eventually("room", async || enqueue(&a, job("shop.c")).await.ok()).await;
    dir.write("quotas.toml", "");
    let unlimited = async || batch(&a, vec![job("shop.a"); 100]).await.ok();
    eventually("no quota", unlimited).await;
    assert!(read(0.0).await.is_some(), "its series is gone");
}

/// One tenant cannot use up the settings of all, and no quota stands in the way of a pause.
#[tokio::test]
async fn a_namespace_keeps_its_topics_with_settings_within_its_quota() {
    let namespace = "\n[[namespace]]\nname = 'a.'\ntopic_settings = 2\n";
    let dir = IdentityDir::new(&(tables("streams = 9") + namespace));
    let server = open_metrics(&dir).start().await;
    let caller = Caller::connect(&server, "a").await;
    let topic =
        |name: &str| pb::Topic { name: name.into(), priority: Some(1), ..Default::default() };
    let create = async |name: &str| {
        let request = pb::CreateTopicRequest { topic: Some(topic(name)) };
        caller.call::<pb::CreateTopicResponse>("TopicService/CreateTopic", &request).await
    };
    let update = async |name: &str| {
        let request = pb::UpdateTopicRequest { topic: Some(topic(name)), ..Default::default() };
        caller.call::<pb::UpdateTopicResponse>("TopicService/UpdateTopic", &request).await
    };
    for n in 0..2 {
        create(&format!("a.{n}")).await.unwrap();
    }
    enqueue(&caller, job("a.plain")).await.unwrap();
    for status in [create("a.x").await.unwrap_err(), update("a.plain").await.unwrap_err()] {
        assert_refused(&status, Code::ResourceExhausted, "QUOTA_EXCEEDED", "");
        let subject = status.get_details_quota_failure().unwrap().violations[0].subject.clone();
        assert_eq!(subject, "namespaces/a.");
        let info = status.get_details_error_info().unwrap();
        assert_eq!(info.metadata["quota"], "topic_settings");
    }
    assert_eq!(
        value(&server, "ringq_identity_refused_total{identity=\"a\",quota=\"topic_settings\"}")
            .await,
        2.0
    );
    update("a.1").await.unwrap();
    create("b.x").await.unwrap();
    for n in ["0", "plain"] {
        let request = pb::PauseTopicRequest { name: format!("a.{n}"), ..Default::default() };
        caller.call::<pb::PauseTopicResponse>("TopicService/PauseTopic", &request).await.unwrap();
    }
    let request = pb::DeleteTopicRequest { name: "a.1".into(), ..Default::default() };
    caller.call::<pb::DeleteTopicResponse>("TopicService/DeleteTopic", &request).await.unwrap();
    create("a.x").await.unwrap();
}

/// Jobs that are not stored take no room: repeats of an id, and follow-ups of an Ack that settles nothing.
#[tokio::test]
async fn jobs_that_are_not_stored_take_no_room() {
    let dir = IdentityDir::new(&tables(""));
    dir.write("quotas.toml", "[[namespace]]\nname = 'shop.'\nwaiting_jobs = 20\n");
    let server = dir.setup().start().await;
    let a = Caller::connect(&server, "a").await;
    for _ in 0..30 {
        enqueue(&a, job("shop.a").with_id("one")).await.unwrap();
    }
    let receipt =
        pull(&a, "shop.a", 1, Duration::ZERO).await.unwrap().deliveries[0].receipt.clone();
    let ack = |follow_ups: usize| {
        let enqueue = vec![job("shop.b"); follow_ups];
        let item = pb::AckItem { receipt: receipt.clone(), enqueue, ..Default::default() };
        pb::AckRequest { items: vec![item] }
    };
    let item = pb::NackItem { receipt: receipt.clone(), ..Default::default() };
    let nack = pb::NackRequest { items: vec![item] };
    let nacked: pb::NackResponse = a.call("QueueService/Nack", &nack).await.unwrap();
    assert!(nacked.failures.is_empty());
    for _ in 0..10 {
        let stale: pb::AckResponse = a.call("QueueService/Ack", &ack(16)).await.unwrap();
        assert_eq!(stale.failures.len(), 1);
    }
    assert_eq!(batch(&a, vec![job("shop.c"); 19]).await.unwrap(), 19);
    // On a busy machine a read may come before the Nack.
    let full = async || enqueue(&a, job("shop.c")).await.err();
    let status = eventually("it is full", full).await;
    refused::<()>(Err(status), "waiting_jobs", "namespaces/shop.");
}

#[tokio::test]
async fn a_server_does_not_start_with_a_quota_that_it_cannot_keep() {
    let dir = IdentityDir::new(&tables("jobs_per_second = 0"));
    let failure = dir.setup().fail().await;
    let text = "identity[0] (a).quota.jobs_per_second: must be a number from 0.001 to 1e12";
    assert!(failure.stderr.contains(text), "{}", failure.stderr);
    dir.write("identities.toml", &(tables("") + "[[namespace]]\nname = 'a.'\nstored_bytes = 0"));
    let failure = dir.setup().fail().await;
    let text = "namespace[0] (a.).stored_bytes: must be a whole number from 1 to";
    assert!(failure.stderr.contains(text), "{}", failure.stderr);
}
