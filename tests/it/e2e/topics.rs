//! Topics with policies: settings, pauses and removal, over servers and shards that die and come back.

use std::time::Duration;

use ringq::pb::{
    CreateTopicRequest, DeleteTopicRequest, GetTopicRequest, JobSpec, JobState, ListGroupsRequest,
    PauseGroupRequest, PauseTopicRequest, PauseTopicResponse, PullRequest, ResumeGroupRequest,
    ResumeTopicRequest, RetryPolicy, StreamRequest, Topic, TopicState, UpdateTopicRequest,
    UpdateTopicResponse,
};
use tokio::time::Instant;
use tonic::{Code, Status};
use tonic_types::StatusExt as _;

use crate::harness::{
    Client, JobExt as _, Redis, Server, Setup, assert_refused, eventually, job, millis, nack_retry,
    proto, request, take, wall_now,
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
async fn a_topic_with_jobs_is_not_deleted() {
    let server = Setup::new().shards(2).start().await;
    let client = server.connect().await;
    client.enqueue(job("t")).await;
    let status = delete(&client, "t", "").await.unwrap_err();
    assert_eq!(reason(&status), (Code::FailedPrecondition, "TOPIC_NOT_EMPTY".into()));
    let delivery = client.pull_one("t").await;
    assert!(delete(&client, "t", "").await.is_err(), "it runs");
    client.ack(&delivery.receipt).await;
    assert!(delete(&client, "t", "").await.unwrap().is_empty());
    assert_eq!(delete(&client, "t", "").await.unwrap_err().code(), Code::NotFound);
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

/// Calls give back what calls leave behind, which needs no record where there was none.
#[tokio::test]
async fn topics_of_one_job_leave_nothing() {
    let Some(redis) = Redis::start().await else { return };
    let server = Setup::on(&redis.url()).start().await;
    let client = server.connect().await;
    let policies = async || redis.command(&["HLEN", "ringq:{s0}:policies"]).await;
    for n in 0..7 {
        let name = format!("run.{n}");
        client.enqueue(job(&name)).await;
        let delivery = client.pull_one(&name).await;
        client.ack(&delivery.receipt).await;
        delete(&client, &name, "0").await.unwrap();
        assert_eq!(get(&client, &name).await.unwrap_err().code(), Code::NotFound);
    }
    assert_eq!(policies().await.trim(), ":0");
    // One that was resumed is as if it never was paused.
    client.enqueue(job("t")).await;
    let before = get(&client, "t").await.unwrap();
    pause(&client, "t").await;
    assert_ne!(get(&client, "t").await.unwrap().etag, before.etag);
    assert_eq!(resume(&client, "t").await, before);
}

#[tokio::test]
async fn a_topic_is_created_with_no_etag_or_that_of_none() {
    let server = Setup::new().start().await;
    let client = server.connect().await;
    let with = |etag: &str| Topic { etag: etag.into(), priority: Some(1), ..named("t") };
    let status = create(&client, with("1.1")).await.unwrap_err();
    assert_eq!(reason(&status), (Code::Aborted, "ETAG_MISMATCH".into()));
    assert_eq!(get(&client, "t").await.unwrap_err().code(), Code::NotFound);
    create(&client, with("0")).await.unwrap();
}

/// Weights of groups take no place of pauses.
#[tokio::test]
async fn a_group_is_paused_beside_as_many_weights_as_there_may_be() {
    let server = Setup::new().start().await;
    let client = server.connect().await;
    let weights = (0..1_000).map(|n| (format!("g{n}"), 2)).collect();
    create(&client, Topic { group_weights: weights, ..named("t") }).await.unwrap();
    for group in ["", "a", "g7"] {
        client.enqueue(JobSpec { group: group.into(), ..job("t") }).await;
        let request =
            PauseGroupRequest { topic: "t".into(), group: group.into(), note: String::new() };
        client.topics.clone().pause_group(request).await.unwrap();
    }
    assert!(client.pull_now("t", 10).await.is_empty());
    let request = ResumeGroupRequest { topic: "t".into(), group: "g7".into() };
    client.topics.clone().resume_group(request).await.unwrap();
    assert_eq!(client.pull_one("t").await.group, "g7");
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
    assert!((70..=77).contains(&lease), "{lease}");
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
    shards: Vec<Redis>,
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
        Some(Fleet { shards, servers, clients })
    }

    /// Waits until every server shows this.
    async fn all_show(&self, what: &str, shown: impl Fn(Result<Topic, Status>) -> bool) {
        let begun = Instant::now();
        for client in &self.clients {
            eventually(what, async || shown(get(client, "t").await).then_some(())).await;
        }
        let took = begun.elapsed();
        println!("{what}: at all servers after {took:?}");
        assert!(took < CONVERGED + millis(500), "{what}: after {took:?}");
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
    let begun = Instant::now();
    assert_eq!(resume(third, "t").await.state(), TopicState::Active);
    worker.next().await;
    assert!(begun.elapsed() < millis(500), "{:?}", begun.elapsed());
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
async fn a_shard_that_was_away_gets_the_changes_and_brings_nothing_back() {
    let Some(mut fleet) = Fleet::start().await else { return };
    let clients = fleet.clients.clone();
    create(&clients[0], Topic { priority: Some(3), ..named("t") }).await.unwrap();
    clients[1].enqueue_all(vec![job("t"); 64]).await;
    // Each shard is away once; one of them is the home of the topic, without which nothing is decided.
    let mut homes = 0;
    for n in 0..fleet.shards.len() {
        let name = format!("s{n}");
        fleet.shards[n].kill();
        let request = PauseTopicRequest { name: "t".into(), ..Default::default() };
        match clients[0].topics.clone().pause_topic(request).await {
            Ok(answer) => {
                assert_eq!(answer.into_inner().unreachable_shards, [name]);
                fleet.shards[n].restart().await;
                tokio::time::sleep(CONVERGED + millis(1_500)).await;
                assert!(clients[2].pull_now("t", 100).await.is_empty(), "s{n} delivers");
            }
            Err(status) => {
                homes += 1;
                assert_eq!(status.code(), Code::Unavailable, "{status:?}");
                fleet.shards[n].restart().await;
            }
        }
        eventually("the topic resumes", async || {
            let request = ResumeTopicRequest { name: "t".into() };
            let answer = clients[1].topics.clone().resume_topic(request).await.ok()?;
            answer.into_inner().unreachable_shards.is_empty().then_some(())
        })
        .await;
    }
    assert_eq!(homes, 1);
    let mut done = 0;
    while done < 64 {
        let pull = PullRequest {
            topics: vec!["t".into()],
            max_jobs: 64,
            wait: Some(proto(Duration::from_secs(10))),
            ..Default::default()
        };
        for delivery in clients[0].pull(pull).await.unwrap() {
            assert_eq!(delivery.priority, 3);
            clients[0].ack(&delivery.receipt).await;
            done += 1;
        }
    }
    // One that was away while the topic was deleted.
    let away = (0..4).find(|_| true).unwrap();
    fleet.shards[away].kill();
    let status = delete(&clients[1], "t", "").await;
    assert!(status.is_err(), "it may have jobs of the topic");
    fleet.shards[away].restart().await;
    eventually("the topic is deleted", async || delete(&clients[1], "t", "").await.ok()).await;
    fleet
        .all_show("the deletion", |topic| {
            topic.is_err_and(|status| status.code() == Code::NotFound)
        })
        .await;
}

#[tokio::test]
async fn a_pause_ends_at_its_time_at_every_server() {
    let Some(fleet) = Fleet::start().await else { return };
    let [first, second, _] = &fleet.clients[..] else { unreachable!() };
    first.enqueue_all(vec![job("t"); 8]).await;
    let until = wall_now() + Duration::from_secs(2);
    let request = PauseTopicRequest {
        name: "t".into(),
        note: String::new(),
        until_time: Some(prost_types::Timestamp::from(std::time::UNIX_EPOCH + until)),
    };
    let topic = first.topics.clone().pause_topic(request).await.unwrap().into_inner().topic;
    assert!(topic.unwrap().pause_until.is_some());
    let mut worker = second.stream(take("t")).await;
    worker.quiet(millis(1_500)).await;
    let begun = Instant::now();
    worker.next_many(8).await;
    assert!(begun.elapsed() < millis(1_500), "{:?}", begun.elapsed());
    assert!(wall_now() >= until, "not early");
    assert_eq!(get(first, "t").await.unwrap().state(), TopicState::Active);
}

#[tokio::test]
async fn a_paused_group_waits_at_all_servers_and_weights_count_at_once() {
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
    // Three times the running jobs for the group of weight 3, at most one per shard beside that.
    let weights = [("a".to_owned(), 3), ("b".to_owned(), 1)].into();
    let weighted = Topic { group_weights: weights, ..named("t") };
    let topic = update(first, weighted, &["group_weights"], false).await.unwrap().topic.unwrap();
    assert_eq!(topic.group_weights.len(), 2);
    tokio::time::sleep(CONVERGED + millis(500)).await;
    drop(worker);
    for group in ["a", "b"] {
        first.enqueue_all(vec![JobSpec { group: group.into(), ..job("t") }; 400]).await;
    }
    let mut worker = third.stream(StreamRequest { max_in_flight: 200, ..take("t") }).await;
    let taken = worker.next_many(200).await;
    let of_a = taken.iter().filter(|delivery| delivery.group == "a").count();
    println!("{of_a} of 200 running jobs are of the group of weight 3");
    assert!((146..=154).contains(&of_a), "{of_a}");
}

#[tokio::test]
async fn changes_at_once_are_all_applied_and_none_is_lost() {
    let Some(fleet) = Fleet::start().await else { return };
    create(&fleet.clients[0], named("t")).await.unwrap();
    let fields = [
        ("priority", Topic { priority: Some(4), ..named("t") }),
        ("description", Topic { description: "d".into(), ..named("t") }),
        ("max_payload_bytes", Topic { max_payload_bytes: 99, ..named("t") }),
    ];
    for _ in 0..5 {
        let changes = fields.iter().zip(&fleet.clients).map(|((path, topic), client)| {
            let path = [*path];
            async move { update(client, topic.clone(), &path, false).await.map(drop) }
        });
        for result in futures::future::join_all(changes).await {
            result.unwrap();
        }
        fleet
            .all_show("all three changes", |topic| {
                let topic = topic.unwrap();
                (topic.priority, &*topic.description, topic.max_payload_bytes) == (Some(4), "d", 99)
            })
            .await;
        update(&fleet.clients[1], named("t"), &fields.each_ref().map(|(path, _)| *path), false)
            .await
            .unwrap();
        fleet.all_show("the defaults", |topic| topic.unwrap().priority.is_none()).await;
    }
}

#[tokio::test]
async fn a_deleted_topic_stays_deleted_after_a_server_restarts() {
    let Some(fleet) = Fleet::start().await else { return };
    create(&fleet.clients[0], Topic { priority: Some(4), ..named("t") }).await.unwrap();
    pause(&fleet.clients[0], "t").await;
    delete(&fleet.clients[0], "t", "").await.unwrap();
    let ring: Vec<_> =
        fleet.shards.iter().enumerate().map(|(n, redis)| format!("s{n}={}", redis.url())).collect();
    let server = Setup::new().ring(ring).start().await;
    let client = server.connect().await;
    assert_eq!(get(&client, "t").await.unwrap_err().code(), Code::NotFound);
    client.enqueue(job("t").with_id("a")).await;
    let delivery = client.pull_one("t").await;
    assert_eq!((delivery.id.as_str(), delivery.priority), ("a", 0), "neither pause nor priority");
}
