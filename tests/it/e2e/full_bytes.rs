//! Topics with a limit of the bytes of their stored jobs, at several servers and shards.

use ringq::pb::payload::Kind;
use ringq::pb::{
    AckItem, DeleteRequest, Delivery, JobSpec, JobState, NackAction, OverflowPolicy,
    PauseGroupRequest, PauseTopicRequest, ResumeGroupRequest, ResumeTopicRequest, Topic,
    UpdateTopicRequest,
};
use tonic::Code;
use tonic_types::StatusExt as _;

use crate::harness::{Client, Redis, Server, Setup, job, nack, request};

use super::full::{Fleet, create, enqueue, taken};

fn limited(max_stored_bytes: i64, on_full: OverflowPolicy) -> Topic {
    Topic { name: "t".into(), max_stored_bytes, on_full: on_full.into(), ..Topic::default() }
}

/// Builds a job with a payload of this size.
fn sized(bytes: usize) -> JobSpec {
    job("t").with_text("x".repeat(bytes))
}

fn bytes_of(delivery: &Delivery) -> usize {
    match delivery.payload.as_ref().and_then(|payload| payload.kind.as_ref()) {
        Some(Kind::Text(text)) => text.len(),
        Some(Kind::Data(data)) => data.len(),
        None => 0,
    }
}

async fn set_limit(client: &Client, topic: Topic) {
    let update = UpdateTopicRequest {
        topic: Some(topic),
        update_mask: Some(prost_types::FieldMask { paths: vec!["max_stored_bytes".into()] }),
        allow_missing: false,
    };
    client.topics.clone().update_topic(update).await.unwrap();
}

/// Takes and acks all jobs that are ready; returns the bytes of their payloads.
async fn drain(client: &Client) -> usize {
    let mut bytes = 0;
    loop {
        let pulled = client.pull_now("t", 256).await;
        if pulled.is_empty() {
            return bytes;
        }
        bytes += pulled.iter().map(bytes_of).sum::<usize>();
        client.ack_all(&crate::harness::receipts(&pulled)).await;
    }
}

#[tokio::test]
async fn a_full_topic_refuses_jobs_until_bytes_are_free() {
    let server = Server::start().await;
    let client = server.connect().await;
    create(&client, limited(1_000, OverflowPolicy::Unspecified)).await;
    client.enqueue(sized(600).with_id("a")).await;
    let status = client.send(request(sized(401))).await.unwrap_err();
    let details = status.get_error_details();
    let info = details.error_info().unwrap();
    assert_eq!((status.code(), info.reason.as_str()), (Code::ResourceExhausted, "TOPIC_FULL"));
    assert!(status.message().contains("raise max_stored_bytes"), "{}", status.message());
    let subject = &details.quota_failure().unwrap().violations[0].subject;
    assert_eq!(subject, "topics/t max_stored_bytes");
    assert!(details.retry_info().unwrap().retry_delay.is_some());
    client.enqueue(sized(400)).await;
    // A dead letter keeps its bytes until it is deleted.
    let delivery = client.pull_one("t").await;
    client.nack(nack(&delivery.receipt, NackAction::DeadLetter)).await;
    assert_eq!(client.state("t", "a").await, JobState::Dead);
    assert_eq!(taken(&enqueue(&client, vec![sized(1)]).await), 0);
    let delete = DeleteRequest { topic: "t".into(), id: "a".into(), allow_missing: false };
    client.queue.clone().delete(delete).await.unwrap();
    assert_eq!(taken(&enqueue(&client, vec![sized(1), sized(700), sized(599)]).await), 2);
    assert_eq!(drain(&client).await, 1_000);
    // Without the limit again.
    set_limit(&client, limited(0, OverflowPolicy::Unspecified)).await;
    client.enqueue(sized(5_000)).await;
}

/// Changes of the policy that leave the limit in force keep the count of a Redis; a limit that comes counts all jobs.
#[tokio::test]
async fn only_a_limit_that_comes_counts_the_jobs_again() {
    let Some(redis) = Redis::start().await else { return };
    let server = Setup::on(&redis.url()).start().await;
    let client = server.connect().await;
    assert_eq!(taken(&enqueue(&client, vec![sized(10); 700]).await), 700);
    let field = async |name: &str| redis.command(&["HGET", "ringq:{s0}:topic:t", name]).await;
    let is_counted = async || field("counting").await.contains("done");
    let count = async || {
        for _ in 0..4 {
            client.enqueue(sized(0)).await;
        }
        assert!(is_counted().await);
    };
    let limit = limited(1 << 40, OverflowPolicy::Reject);
    set_limit(&client, limit.clone()).await;
    assert!(!is_counted().await);
    count().await;
    let mut topics = client.topics.clone();
    let (name, topic) = (
        || "t".to_owned(),
        |topic| UpdateTopicRequest { topic: Some(topic), ..Default::default() },
    );
    for change in 0..6 {
        match change {
            0 => {
                _ = topics
                    .pause_topic(PauseTopicRequest { name: name(), ..Default::default() })
                    .await
                    .unwrap()
            }
            1 => _ = topics.resume_topic(ResumeTopicRequest { name: name() }).await.unwrap(),
            2 => {
                _ = topics
                    .pause_group(PauseGroupRequest { topic: name(), ..Default::default() })
                    .await
                    .unwrap()
            }
            3 => {
                _ = topics
                    .resume_group(ResumeGroupRequest { topic: name(), ..Default::default() })
                    .await
                    .unwrap()
            }
            4 => set_limit(&client, limited(1 << 41, OverflowPolicy::Reject)).await,
            _ => {
                _ = topics
                    .update_topic(topic(Topic { priority: Some(3), ..limit.clone() }))
                    .await
                    .unwrap()
            }
        }
        assert!(is_counted().await, "change {change}");
    }
    set_limit(&client, limited(0, OverflowPolicy::Reject)).await;
    assert!(!is_counted().await);
    client.enqueue(sized(1_000)).await;
    set_limit(&client, limit).await;
    assert!(!is_counted().await);
    count().await;
    assert!(field("bytes").await.contains("8000"));
}

#[tokio::test]
async fn servers_together_never_exceed_the_bytes_and_fill_them() {
    for (shards, max) in [(1, 1_000), (2, 999), (3, 5_000), (4, 40_000)] {
        let topic = limited(max, OverflowPolicy::Reject);
        let Some(fleet) = Fleet::start(3, shards, topic).await else { return };
        let calls = fleet.clients.iter().flat_map(|client| {
            // Single jobs, batches, large payloads, and jobs with groups, priorities and chosen ids.
            let grouped = JobSpec { group: "g".into(), ..sized(70) };
            let first = JobSpec { priority: Some(7), ..sized(30) };
            let chosen = (0..30).map(|n| sized(40).with_id(format!("id{n}"))).collect();
            let batches = [vec![sized(100); 60], vec![grouped; 40], vec![first], chosen];
            let batches = batches.into_iter().chain([vec![sized(600); 20], vec![sized(1); 100]]);
            batches.map(|jobs| enqueue(client, jobs)).collect::<Vec<_>>()
        });
        let results = futures::future::join_all(calls).await;
        results.iter().for_each(|results| _ = taken(results));
        assert_eq!(taken(&enqueue(&fleet.clients[0], vec![sized(700)]).await), 0);
        let bytes = drain(&fleet.clients[1]).await;
        // Jobs of one byte fill what the others leave, where enough of them came late.
        assert!(bytes as i64 <= max, "{bytes} of {max} on {shards} shards");
        assert!(bytes as i64 > max * 8 / 10, "{bytes} of {max} on {shards} shards");
        // Everything is free again.
        let half = usize::try_from(max).unwrap() / shards / 2;
        assert_eq!(taken(&enqueue(&fleet.clients[2], vec![sized(half); shards]).await), shards);
    }
}

#[tokio::test]
async fn a_job_that_never_fits_drops_no_other() {
    let topic = limited(4_000, OverflowPolicy::DropOldest);
    let Some(fleet) = Fleet::start(1, 4, topic).await else { return };
    let client = &fleet.clients[0];
    assert_eq!(taken(&enqueue(client, vec![sized(500); 8]).await), 8);
    let results = enqueue(client, vec![sized(1_001), sized(500), sized(3_000)]).await;
    let written: Vec<_> = results.iter().map(Option::is_none).collect();
    assert_eq!(written, [false, true, false], "a shard has 1,000 of the 4,000 bytes");
    let status = client.send(request(sized(1_001))).await.unwrap_err();
    assert!(status.message().contains("more than 1000 bytes"), "{}", status.message());
    assert!(status.get_error_details().retry_info().is_none(), "a retry never helps");
    assert_eq!(client.stats("t").await.ready, 8, "one job left for the one that fits");
}

#[tokio::test]
async fn both_limits_hold_and_follow_ups_count() {
    let topic = Topic { max_jobs: 3, ..limited(1_000, OverflowPolicy::Reject) };
    let Some(fleet) = Fleet::start(1, 1, topic.clone()).await else { return };
    limits_hold_for(&fleet.clients[0]).await;
    let server = Server::start().await;
    let client = server.connect().await;
    create(&client, topic).await;
    limits_hold_for(&client).await;
}

async fn limits_hold_for(client: &Client) {
    assert_eq!(taken(&enqueue(client, vec![sized(10); 5]).await), 3);
    drain(client).await;
    assert_eq!(taken(&enqueue(client, vec![sized(900), sized(200), sized(10)]).await), 2);
    let status = client.send(request(sized(200))).await.unwrap_err();
    assert!(status.message().contains("raise max_jobs or max_stored_bytes"));
    drain(client).await;
    client.enqueue(job("other")).await;
    let delivery = client.pull_one("other").await;
    let enqueue_next = vec![sized(700), sized(500).with_id("named")];
    let item = AckItem { receipt: delivery.receipt, enqueue: enqueue_next, ..AckItem::default() };
    assert!(client.ack_items(vec![item]).await.is_empty());
    assert_eq!(client.stats("t").await.ready, 2);
    assert_eq!(taken(&enqueue(client, vec![sized(1)]).await), 0, "they count");
    assert_eq!(drain(client).await, 1_200);
    client.enqueue(sized(1_000)).await;
}
