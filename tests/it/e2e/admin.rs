use std::collections::BTreeSet;

use ringq::pb::{
    Delivery, Durability, GetServerInfoRequest, GetTopicRequest, GetTopicStatsRequest, JobState,
    ListShardsRequest, ListTopicsRequest, ListWorkersRequest, NackAction, RedriveJobsRequest,
    ShardState, StreamRequest, TopicState,
};
use tonic::Code;

use crate::harness::{
    Client, Server, SinceEpoch as _, assert_refused, eventually, job, millis, nack, take, wall_now,
    within,
};

/// Creates dead letters with these ids.
async fn bury(client: &Client, topic: &str, ids: &[&str]) {
    for &id in ids {
        client.enqueue(job(topic).with_id(id).with_text("x")).await;
        let receipt = client.pull_one(topic).await.receipt;
        client.nack(nack(&receipt, NackAction::DeadLetter)).await;
    }
}

async fn bury_all_that_is_ready(client: &Client, topic: &str) {
    loop {
        let deliveries = client.pull_now(topic, 256).await;
        if deliveries.is_empty() {
            return;
        }
        dead_letter(client, &deliveries).await;
    }
}

async fn dead_letter(client: &Client, deliveries: &[Delivery]) {
    let items = deliveries.iter().map(|d| nack(&d.receipt, NackAction::DeadLetter)).collect();
    assert_eq!(client.nack_items(items).await, []);
}

#[tokio::test]
async fn redrive_counts_moves_and_skips() {
    let server = Server::start().await;
    let client = server.connect().await;
    let redrive = async |request: RedriveJobsRequest| {
        let answer = client.admin.clone().redrive_jobs(request).await.unwrap().into_inner();
        (answer.redriven_count, answer.skipped_count)
    };
    bury(&client, "mail", &["a", "b", "c", "d"]).await;
    client.enqueue(job("mail").with_id("alive").with_delay(millis(60_000))).await;
    let all = RedriveJobsRequest { topic: "mail".into(), all: true, ..Default::default() };

    let count = RedriveJobsRequest { validate_only: true, ..all.clone() };
    assert_eq!(redrive(count).await, (4, 0));
    assert_eq!(client.stats("mail").await.dead, 4, "only counted");

    let named = ["a", "alive", "missing"].map(String::from).to_vec();
    let request = RedriveJobsRequest { ids: named, all: false, ..all.clone() };
    assert_eq!(redrive(request).await, (1, 2));
    let a = client.pull_one("mail").await;
    assert_eq!((a.id.as_str(), a.attempt), ("a", 1));
    assert_eq!(client.state("mail", "alive").await, JobState::Scheduled);

    // Moved to another topic; an id that is taken there is skipped.
    client.enqueue(job("rescue").with_id("b").with_delay(millis(60_000))).await;
    let ids = ["b", "c"].map(String::from).to_vec();
    let target_topic = "rescue".to_owned();
    let request = RedriveJobsRequest { ids, all: false, target_topic, ..all.clone() };
    assert_eq!(redrive(request).await, (1, 1));
    assert_eq!(client.find("mail", "c").await, None);
    assert_eq!(client.state("mail", "b").await, JobState::Dead);
    assert_eq!(client.pull_one("rescue").await.id, "c");

    assert_eq!(redrive(all.clone()).await, (2, 0));
    let back: BTreeSet<_> = client.pull_now("mail", 10).await.into_iter().map(|d| d.id).collect();
    assert_eq!(back, ["b", "d"].map(String::from).into());
    assert_eq!(redrive(all.clone()).await, (0, 0));

    let nowhere = RedriveJobsRequest { topic: "nowhere".into(), ..all };
    let status = client.admin.clone().redrive_jobs(nowhere).await.unwrap_err();
    assert_refused(&status, Code::NotFound, "TOPIC_NOT_FOUND", "");
}

#[tokio::test]
async fn a_redrive_ends_though_its_jobs_die_again_at_once() {
    // More jobs than the server moves per step, so that jobs of its first step can die before the last.
    const DEAD: usize = 2_500;
    let server = Server::start().await;
    let client = server.connect().await;
    let jobs: Vec<_> = (0..DEAD).map(|n| job("mail").with_id(format!("n{n}"))).collect();
    client.enqueue_all(jobs).await;
    bury_all_that_is_ready(&client, "mail").await;
    assert_eq!(client.stats("mail").await.dead, DEAD as i64);

    let worker = tokio::spawn({
        let client = client.clone();
        async move {
            let mut stream =
                client.stream(StreamRequest { max_in_flight: 1_000, ..take("mail") }).await;
            loop {
                let delivery = stream.next().await;
                let more = stream.next_many(stream.unread()).await;
                dead_letter(&client, &[&[delivery][..], &more].concat()).await;
            }
        }
    });
    let all = RedriveJobsRequest { topic: "mail".into(), all: true, ..Default::default() };
    for validate_only in [true, false, false] {
        let before = client.stats("mail").await;
        let request = RedriveJobsRequest { validate_only, ..all.clone() };
        let mut admin = client.admin.clone();
        let done = within("the redrive's end", admin.redrive_jobs(request)).await;
        let done = done.unwrap().into_inner();
        assert_eq!((done.redriven_count, done.skipped_count), (DEAD as i64, 0));
        let moved = if validate_only { 0 } else { DEAD as i64 };
        eventually("each job died once more", async || {
            let now = client.stats("mail").await;
            (now.dead_total == before.dead_total + moved && now.dead == DEAD as i64).then_some(())
        })
        .await;
    }
    worker.abort();
}

#[tokio::test]
async fn list_workers_shows_the_open_streams() {
    let server = Server::start().await;
    let client = server.connect().await;
    let list = async |topic: &str| {
        let request = ListWorkersRequest { topic: topic.into() };
        client.admin.clone().list_workers(request).await.unwrap().into_inner().workers
    };
    assert_eq!(list("").await, []);
    client.enqueue_all(vec![job("mail.a"); 2]).await;
    let before = wall_now();
    let request = StreamRequest {
        topics: vec!["mail.*".into(), "sms".into()],
        worker_id: "host-7".into(),
        max_in_flight: 5,
        ..Default::default()
    };
    let mut worker = client.stream(request).await;
    let held = worker.next_many(2).await;
    let other = client.stream(take("other")).await;
    assert_eq!(list("").await.len(), 2);
    for topic in ["sms", "mail.a"] {
        let [row] = list(topic).await.try_into().expect("one stream asks for it");
        assert_eq!((row.worker_id.as_str(), row.max_in_flight), ("host-7", 5));
        assert_eq!(row.in_flight, 2);
        assert_eq!(row.stream_id, worker.info.stream_id);
        assert_eq!(row.replica, worker.info.replica);
        assert_eq!(row.topics, ["mail.*", "sms"], "as it wrote them");
        assert!(row.peer.starts_with("127.0.0.1"), "{}", row.peer);
        assert!(row.user_agent.contains("tonic"), "{}", row.user_agent);
        let connected = row.connect_time.since_epoch();
        assert!(connected >= before && connected <= wall_now());
    }
    assert_eq!(client.stats("mail.a").await.streams, 1);
    client.ack(&held[0].receipt).await;
    eventually("the ack frees credit", async || {
        (list("sms").await[0].in_flight == 1).then_some(())
    })
    .await;
    drop(worker);
    drop(other);
    eventually("closed streams are not listed", async || list("").await.is_empty().then_some(()))
        .await;
}

#[tokio::test]
async fn list_shards_and_server_info_report_what_there_is() {
    let before = wall_now();
    let server = Server::start().await;
    let client = server.connect().await;
    client.enqueue_all(vec![job("mail").with_text("x"); 10]).await;
    let answer = client.admin.clone().list_shards(ListShardsRequest {}).await.unwrap();
    let [shard] = answer.into_inner().shards.try_into().expect("one shard");
    assert_eq!((shard.name.as_str(), shard.state()), ("s0", ShardState::Active));
    assert!(shard.address.contains("s0.db"), "{}", shard.address);
    assert_eq!((shard.weight > 0, shard.jobs), (true, 10));
    assert!(shard.used_memory_bytes > 0);
    assert_eq!(shard.last_error, "");

    let answer = client.admin.clone().get_server_info(GetServerInfoRequest {}).await.unwrap();
    let info = answer.into_inner();
    assert_eq!(info.version, env!("CARGO_PKG_VERSION"));
    assert_eq!(info.store, "sqlite");
    assert_eq!(info.durability(), Durability::Fsynced);
    assert!(!info.replica.is_empty());
    let features = [
        "shard_state",
        "explain",
        "groups",
        "group_purge",
        "topic_admin",
        "topic_max_jobs",
        "topic_max_stored_bytes",
        "topic_purge",
        "topic_weights",
        "priority_ageing",
        "crash_topic",
    ];
    assert_eq!(info.features, features);
    let (start, now) = (info.start_time.since_epoch(), info.server_time.since_epoch());
    assert!(before <= start && start <= now && now <= wall_now());
    for (name, bound) in [
        ("payload_bytes_max", 1 << 20),
        ("headers_bytes_max", 8 << 10),
        ("batch_jobs_max", 1_000),
        ("request_bytes_max", 4 << 20),
        ("stream_lease_ms_default", 1_800_000),
        ("pull_lease_ms_default", 30_000),
        ("stream_credit_default", 1),
        ("stream_credit_max", 10_000),
        ("settle_items_max", 1_000),
        ("follow_ups_max", 16),
    ] {
        assert_eq!(info.limits.get(name), Some(&bound), "{name}");
    }
}

#[tokio::test]
async fn topics_are_listed_by_name_with_their_numbers() {
    let server = Server::start().await;
    let client = server.connect().await;
    let before = wall_now();
    for topic in ["mail.b", "mail.a", "sms", "mail.c"] {
        client.enqueue_all(vec![job(topic); 2]).await;
    }
    client.ack(&client.pull_one("mail.b").await.receipt).await;
    let list = async |request: ListTopicsRequest| {
        client.topics.clone().list_topics(request).await.map(tonic::Response::into_inner)
    };
    let names = |page: &ringq::pb::ListTopicsResponse| -> Vec<String> {
        page.topics.iter().map(|row| row.topic.as_ref().unwrap().name.clone()).collect()
    };
    let all = list(ListTopicsRequest::default()).await.unwrap();
    assert_eq!(names(&all), ["mail.a", "mail.b", "mail.c", "sms"]);
    assert_eq!(all.next_page_token, "");
    let b = all.topics[1].stats.as_ref().unwrap();
    assert_eq!((b.ready, b.enqueued_total, b.succeeded_total), (1, 2, 1));
    let rates = [b.enqueue_rate, b.finish_rate];
    assert!(rates.iter().all(|rate| rate.is_some_and(|rate| rate > 0.0)), "{rates:?}");
    assert!(b.oldest_ready_age.is_some() && b.unreachable_shards.is_empty(), "{b:?}");

    let prefix = "mail.".to_owned();
    let first = ListTopicsRequest { page_size: 2, prefix, ..Default::default() };
    let page = list(first.clone()).await.unwrap();
    assert_eq!(names(&page), ["mail.a", "mail.b"]);
    let page_token = page.next_page_token;
    let second = list(ListTopicsRequest { page_token: page_token.clone(), ..first.clone() }).await;
    let second = second.unwrap();
    assert_eq!((names(&second), second.next_page_token.as_str()), (vec!["mail.c".into()], ""));
    let other = ListTopicsRequest { page_token, prefix: "sms".into(), ..first };
    let status = list(other).await.unwrap_err();
    assert_refused(&status, Code::InvalidArgument, "INVALID_FIELD", "page_token");

    let get = GetTopicRequest { name: "sms".into() };
    let topic = client.topics.clone().get_topic(get).await.unwrap().into_inner().topic.unwrap();
    assert_eq!((topic.name.as_str(), topic.state()), ("sms", TopicState::Active));
    assert!(topic.create_time.since_epoch() >= before);
    for status in [
        client.topics.clone().get_topic(GetTopicRequest { name: "no".into() }).await.unwrap_err(),
        client
            .topics
            .clone()
            .get_topic_stats(GetTopicStatsRequest { name: "no".into() })
            .await
            .unwrap_err(),
    ] {
        assert_refused(&status, Code::NotFound, "TOPIC_NOT_FOUND", "");
    }
}
