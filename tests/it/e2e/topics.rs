//! Topics with policies: settings, pauses and removal, over servers and shards that die and come back.

use std::time::Duration;

use ringq::pb::{
    CreateTopicRequest, DeleteTopicRequest, GetTopicRequest, JobSpec, JobState, ListGroupsRequest,
    PauseGroupRequest, PauseTopicRequest, PauseTopicResponse, PullRequest, ResumeGroupRequest,
    ResumeTopicRequest, RetryPolicy, Topic, TopicState, UpdateTopicRequest, UpdateTopicResponse,
};
use tonic::{Code, Status};
use tonic_types::StatusExt as _;

use crate::harness::{
    Client, JobExt as _, Redis, Server, Setup, assert_refused, eventually, job, millis, nack_retry,
    proto, request, take,
};

/// Returns code and reason of a refusal.
fn reason(status: &Status) -> (Code, String) {
    let info = status.get_details_error_info();
    (status.code(), info.map(|info| info.reason).unwrap_or_default())
}

/// Time within which every server has a change.
const CONVERGED: Duration = Duration::from_secs(1);

fn named(name: &str) -> Topic {
    Topic { name: name.into(), ..Topic::default() }
}

async fn create(client: &Client, topic: Topic) -> Result<Topic, Status> {
    let request = CreateTopicRequest { topic: Some(topic) };
    let answer = client.topics.clone().create_topic(request).await?.into_inner();
    assert!(answer.unreachable_shards.is_empty());
    Ok(answer.topic.unwrap())
}

async fn update(
    client: &Client,
    topic: Topic,
    paths: &[&str],
    allow_missing: bool,
) -> Result<UpdateTopicResponse, Status> {
    let paths = paths.iter().map(|path| (*path).to_owned()).collect();
    let update_mask = Some(prost_types::FieldMask { paths });
    let request = UpdateTopicRequest { topic: Some(topic), update_mask, allow_missing };
    Ok(client.topics.clone().update_topic(request).await?.into_inner())
}

async fn get(client: &Client, name: &str) -> Result<Topic, Status> {
    let answer = client.topics.clone().get_topic(GetTopicRequest { name: name.into() }).await?;
    Ok(answer.into_inner().topic.unwrap())
}

async fn pause(client: &Client, name: &str) -> PauseTopicResponse {
    let note = "a migration".into();
    let request = PauseTopicRequest { name: name.into(), note, until_time: None };
    client.topics.clone().pause_topic(request).await.unwrap().into_inner()
}

async fn resume(client: &Client, name: &str) -> Topic {
    let request = ResumeTopicRequest { name: name.into() };
    let answer = client.topics.clone().resume_topic(request).await.unwrap().into_inner();
    answer.topic.unwrap()
}

async fn delete(client: &Client, name: &str, etag: &str) -> Result<Vec<String>, Status> {
    let request = DeleteTopicRequest { name: name.into(), etag: etag.into(), force: false };
    Ok(client.topics.clone().delete_topic(request).await?.into_inner().unreachable_shards)
}

#[tokio::test]
async fn a_topic_is_created_read_changed_and_deleted() {
    let server = Setup::new().shards(3).start().await;
    let client = server.connect().await;
    let seconds = |seconds| Some(proto(Duration::from_secs(seconds)));
    let retry = RetryPolicy { max_attempts: 3, ..Default::default() };
    let settings = Topic {
        description: "orders of customers".into(),
        retry: Some(retry),
        lease_duration: seconds(60),
        retention: seconds(3_600),
        dead_retention: seconds(86_400),
        priority: Some(5),
        priority_ageing: seconds(600),
        max_payload_bytes: 1_000,
        max_stored_bytes: 1 << 40,
        ..named("orders")
    };
    let created = create(&client, settings.clone()).await.unwrap();
    let read = get(&client, "orders").await.unwrap();
    assert_eq!(read, created);
    assert_eq!((&read.retry, read.priority), (&settings.retry, Some(5)));
    assert_eq!(read.priority_ageing, seconds(600));
    assert_eq!((read.state(), read.settings_from.as_str()), (TopicState::Active, "orders"));
    let status = create(&client, named("orders")).await.unwrap_err();
    assert_eq!(reason(&status), (Code::AlreadyExists, "TOPIC_EXISTS".into()));

    // What was read can be sent back, and the etag of an older reading is refused.
    let changed = Topic { description: "orders".into(), ..read.clone() };
    let changed = update(&client, changed, &[], false).await.unwrap().topic.unwrap();
    assert_eq!((changed.description.as_str(), changed.lease_duration), ("orders", seconds(60)));
    assert_ne!(changed.etag, read.etag);
    let status = update(&client, read.clone(), &["priority"], false).await.unwrap_err();
    assert_eq!(reason(&status), (Code::Aborted, "ETAG_MISMATCH".into()));
    let cleared =
        update(&client, named("orders"), &["priority", "retry", "priority_ageing"], false);
    let cleared = cleared.await.unwrap().topic.unwrap();
    assert_eq!((cleared.priority, cleared.retry, cleared.priority_ageing), (None, None, None));
    assert_eq!(cleared.retention, seconds(3_600), "the mask does not name it");

    assert!(delete(&client, "orders", &read.etag).await.is_err());
    assert!(delete(&client, "orders", &cleared.etag).await.unwrap().is_empty());
    let status = get(&client, "orders").await.unwrap_err();
    assert_eq!(reason(&status), (Code::NotFound, "TOPIC_NOT_FOUND".into()));
    let status = update(&client, named("orders"), &["priority"], false).await.unwrap_err();
    assert_eq!(status.code(), Code::NotFound);
    update(&client, named("orders"), &["priority"], true).await.unwrap();
    assert_eq!(get(&client, "orders").await.unwrap().retention, None, "nothing came back");
}

#[tokio::test]
async fn a_topic_is_deleted_by_force_with_jobs_in_every_state() {
    let server = Setup::new().shards(3).start().await;
    let client = server.connect().await;
    create(&client, Topic { priority: Some(4), ..named("t") }).await.unwrap();
    client.enqueue_all(vec![job("t"); 100]).await;
    client.enqueue(job("t").with_delay(millis(60_000))).await;
    let mut worker = client.stream(take("t")).await;
    let held = worker.next_many(16).await;
    client.nack(nack_retry(&held[0].receipt, "no")).await;
    let status = delete(&client, "t", "").await.unwrap_err();
    assert_eq!(reason(&status), (Code::FailedPrecondition, "TOPIC_NOT_EMPTY".into()));
    let force =
        |etag: &str| DeleteTopicRequest { name: "t".into(), etag: etag.into(), force: true };
    let status = client.topics.clone().delete_topic(force("1.1")).await.unwrap_err();
    assert_eq!(reason(&status).1, "ETAG_MISMATCH");
    assert!(client.stats("t").await.ready > 0, "nothing is deleted");
    client.topics.clone().delete_topic(force("")).await.unwrap();
    worker.revocation().await;
    assert_eq!(get(&client, "t").await.unwrap_err().code(), Code::NotFound);
}

async fn check_deletion_under_traffic(setup: Setup) {
    const DELETIONS: usize = 4;
    let server = setup.start().await;
    let client = server.connect().await;
    create(&client, Topic { priority: Some(4), ..named("t") }).await.unwrap();
    pause(&client, "t").await;
    let stop = tokio_util::sync::CancellationToken::new();
    let (begun, last) = tokio::sync::watch::channel(0);
    let producers: Vec<_> = (0..3)
        .map(|_| {
            let (client, stop, last) = (client.clone(), stop.clone(), last.clone());
            tokio::spawn(async move {
                let mut kept = Vec::new();
                while !stop.is_cancelled() {
                    let calls = *last.borrow();
                    let ids = client.enqueue_all(vec![job("t"); 20]).await;
                    if calls == DELETIONS {
                        kept.extend(ids);
                    }
                }
                kept
            })
        })
        .collect();
    for n in 1..=DELETIONS {
        eventually("jobs came", async || {
            let request = ringq::pb::GetTopicStatsRequest { name: "t".into() };
            let stats =
                client.topics.clone().get_topic_stats(request).await.ok()?.into_inner().stats?;
            (stats.ready > 0).then_some(())
        })
        .await;
        begun.send_replace(n);
        if n < DELETIONS {
            let request = DeleteTopicRequest { name: "t".into(), etag: String::new(), force: true };
            let deleted = client.topics.clone().delete_topic(request).await.unwrap().into_inner();
            assert!(deleted.unreachable_shards.is_empty());
            let read = get(&client, "t").await;
            let is_anew =
                |t: &Topic| (t.state(), t.priority, &*t.etag) == (TopicState::Active, None, "0");
            assert!(
                read.as_ref().map_or_else(|error| error.code() == Code::NotFound, is_anew),
                "{read:?}"
            );
        }
    }
    stop.cancel();
    let mut kept = std::collections::BTreeSet::new();
    for producer in producers {
        kept.extend(producer.await.unwrap());
    }
    while !kept.is_empty() {
        let delivery = client.pull_one("t").await;
        kept.remove(&delivery.id);
        client.ack(&delivery.receipt).await;
    }
}

#[tokio::test]
async fn a_topic_is_deleted_by_force_while_jobs_come() {
    check_deletion_under_traffic(Setup::new().shards(2)).await;
    if let Some(redis) = Redis::start().await {
        check_deletion_under_traffic(Setup::on(&redis.url())).await;
    }
}

#[tokio::test]
async fn jobs_get_the_defaults_of_their_topic_and_go_before_them() {
    let server = Setup::new().start().await;
    let client = server.connect().await;
    let seconds = |seconds| Some(proto(Duration::from_secs(seconds)));
    let retry =
        RetryPolicy { max_attempts: 2, delays: vec![proto(Duration::ZERO)], ..Default::default() };
    let settings = Topic {
        retry: Some(retry),
        lease_duration: seconds(77),
        retention: seconds(600),
        priority: Some(7),
        max_payload_bytes: 10,
        ..named("t")
    };
    create(&client, settings).await.unwrap();
    client.enqueue(job("t").with_id("plain").with_text("0123456789")).await;
    client.enqueue(job("t").with_id("own").with_priority(1).with_max_attempts(1)).await;
    let status = client.send(request(job("t").with_text("0123456789a"))).await;
    assert_refused(&status.unwrap_err(), Code::InvalidArgument, "TOO_LARGE", "job.payload");

    let pull = PullRequest { topics: vec!["t".into()], max_jobs: 2, ..Default::default() };
    let pulled = client.pull(pull).await.unwrap();
    let [plain, own] = &pulled[..] else { panic!("{pulled:?}") };
    assert_eq!((plain.id.as_str(), plain.priority, plain.max_attempts), ("plain", 7, 2));
    assert_eq!((own.id.as_str(), own.priority, own.max_attempts), ("own", 1, 1));
    let lease = plain.lease_duration.unwrap().seconds;
    assert!((1..=77).contains(&lease), "{lease}");
    client.nack(nack_retry(&own.receipt, "no")).await;
    assert_eq!(client.state("t", "own").await, JobState::Dead);
    client.nack(nack_retry(&plain.receipt, "no")).await;
    let again = client.pull_one("t").await;
    assert_eq!((again.id.as_str(), again.attempt), ("plain", 2));
    client.ack(&again.receipt).await;
    assert_eq!(client.state("t", "plain").await, JobState::Succeeded, "kept as the topic keeps");

    // What the worker chooses goes before the topic.
    client.enqueue(job("t").with_id("chosen")).await;
    let pull =
        PullRequest { topics: vec!["t".into()], lease_duration: seconds(20), ..Default::default() };
    let pulled = client.pull(pull).await.unwrap();
    assert!(pulled[0].lease_duration.unwrap().seconds <= 20);
}

/// Three servers on four shards, each server with a stream.
struct Fleet {
    _shards: Vec<Redis>,
    servers: Vec<Server>,
    clients: Vec<Client>,
}

impl Fleet {
    async fn start() -> Option<Fleet> {
        let mut shards = Vec::new();
        for _ in 0..4 {
            shards.push(Redis::durable().await?);
        }
        let ring: Vec<_> =
            shards.iter().enumerate().map(|(n, redis)| format!("s{n}={}", redis.url())).collect();
        let (mut servers, mut clients) = (Vec::new(), Vec::new());
        for _ in 0..3 {
            let server = Setup::new().ring(ring.clone()).start().await;
            clients.push(server.connect().await);
            servers.push(server);
        }
        Some(Fleet { _shards: shards, servers, clients })
    }

    /// Waits until every server shows this.
    async fn all_show(&self, what: &str, shown: impl Fn(Result<Topic, Status>) -> bool) {
        for client in &self.clients {
            eventually(what, async || shown(get(client, "t").await).then_some(())).await;
        }
    }
}

#[tokio::test]
async fn a_pause_holds_at_all_servers_and_shards() {
    let Some(fleet) = Fleet::start().await else { return };
    let [first, second, third] = &fleet.clients[..] else { unreachable!() };
    let _servers = &fleet.servers;
    first.enqueue_all(vec![job("t"); 200]).await;
    let mut worker = second.stream(take("t")).await;
    let running = worker.next_many(16).await;
    assert!(pause(first, "t").await.unreachable_shards.is_empty());
    // From the answer on no shard delivers, whatever a server knows.
    for delivery in &running {
        third.ack(&delivery.receipt).await;
    }
    first.enqueue_all(vec![job("t"); 100]).await;
    worker.quiet(millis(1_500)).await;
    assert!(third.pull_now("t", 10).await.is_empty());
    fleet
        .all_show("the pause", |topic| {
            topic.is_ok_and(|topic| {
                topic.state() == TopicState::Paused && topic.pause_note == "a migration"
            })
        })
        .await;
    assert_eq!(second.stats("t").await.ready, 284);
    assert_eq!(resume(third, "t").await.state(), TopicState::Active);
    worker.next().await;
    fleet
        .all_show("the resume", |topic| {
            topic.is_ok_and(|topic| topic.state() == TopicState::Active)
        })
        .await;
    for paused in [true, false, true, false] {
        if paused {
            drop(pause(second, "t").await)
        } else {
            drop(resume(first, "t").await)
        }
        fleet
            .all_show("each of many changes", |topic| {
                topic.is_ok_and(|topic| (topic.state() == TopicState::Paused) == paused)
            })
            .await;
    }
}

#[tokio::test]
async fn a_paused_group_waits_at_all_servers() {
    let Some(fleet) = Fleet::start().await else { return };
    let [first, second, third] = &fleet.clients[..] else { unreachable!() };
    for group in ["a", "b", ""] {
        first.enqueue_all(vec![JobSpec { group: group.into(), ..job("t") }; 40]).await;
    }
    let pause = async |client: &Client, group: &str| {
        let request =
            PauseGroupRequest { topic: "t".into(), group: group.into(), note: "wrong list".into() };
        let answer = client.topics.clone().pause_group(request).await.unwrap().into_inner();
        assert!(answer.unreachable_shards.is_empty());
    };
    pause(first, "a").await;
    pause(second, "").await;
    // A server may bring the former settings back, but not for longer than a second.
    tokio::time::sleep(CONVERGED + millis(500)).await;
    let mut worker = second.stream(take("t")).await;
    let mut seen = Vec::new();
    while seen.len() < 40 {
        let delivery = worker.next().await;
        assert_eq!(delivery.group, "b");
        third.ack(&delivery.receipt).await;
        seen.push(delivery.id);
    }
    worker.quiet(millis(1_200)).await;
    let request = ListGroupsRequest { topic: "t".into(), ..ListGroupsRequest::default() };
    let groups = third.topics.clone().list_groups(request).await.unwrap().into_inner().groups;
    let rows: Vec<_> = groups.iter().map(|row| (&*row.group, row.paused, row.ready)).collect();
    assert_eq!(rows, [("", true, 40), ("a", true, 40)]);
    for group in ["", "a"] {
        let request = ResumeGroupRequest { topic: "t".into(), group: group.into() };
        third.topics.clone().resume_group(request).await.unwrap();
    }
    for _ in 0..80 {
        let delivery = worker.next().await;
        first.ack(&delivery.receipt).await;
    }
}
