use std::collections::HashSet;

use ringq::pb::payload::Kind;
use ringq::pb::{BatchEnqueueRequest, ConflictPolicy, Durability, EnqueueOutcome, JobState};
use tonic::Code;

use crate::harness::{JobExt as _, JsonClient, Server, Setup, SinceEpoch as _, job, wall_now};

fn is_server_made(id: &str) -> bool {
    id.split_once('~').is_some_and(|(shard, rest)| {
        shard == "s0" && rest.len() == 26 && rest.bytes().all(|b| b.is_ascii_alphanumeric())
    })
}

#[tokio::test]
async fn a_new_job_gets_an_id_made_by_its_shard_and_is_ready_at_once() {
    let server = Server::start().await;
    let client = server.connect().await;
    let before = wall_now();
    let answer = client.enqueue(job("mail").with_text("hello")).await;
    let after = wall_now();
    assert!(is_server_made(&answer.id), "{}", answer.id);
    assert_eq!(answer.outcome(), EnqueueOutcome::Created);
    assert_eq!(answer.state(), JobState::Ready);
    assert_eq!(answer.shard, "s0");
    let due = answer.due_time.since_epoch();
    assert!(due >= before && due <= after, "due {due:?}, enqueued in {before:?}..{after:?}");

    let stored = client.get("mail", &answer.id).await;
    assert_eq!(stored.state(), JobState::Ready);
    assert_eq!((stored.generation, stored.failures, stored.deliveries), (1, 0, 0));
    assert_eq!(stored.due_time, answer.due_time);
    assert_eq!(stored.shard, "s0");
    let spec = stored.spec.unwrap();
    assert_eq!((spec.topic.as_str(), spec.id), ("mail", answer.id));
    assert_eq!(spec.payload.unwrap().kind, Some(Kind::Text("hello".into())));
}

#[tokio::test]
async fn an_empty_payload_keeps_its_kind_as_json() {
    let server = Server::start().await;
    let client = server.connect().await;
    let mut json = JsonClient::connect(server.http).await;
    for kind in ["data", "text"] {
        let job = serde_json::json!({ "topic": kind, "id": "a", "payload": { kind: "" } });
        json.ok("QueueService/Enqueue", &serde_json::json!({ "job": job })).await;
        let delivered = client.pull_one(kind).await.payload.unwrap().kind.unwrap();
        assert_eq!(matches!(delivered, Kind::Data(_)), kind == "data", "{delivered:?}");
        let get = serde_json::json!({ "topic": kind, "id": "a" });
        let answer = json.ok("QueueService/Get", &get).await;
        assert_eq!(answer["job"]["spec"]["payload"][kind], "", "{answer}");
    }
}

#[tokio::test]
async fn a_batch_answers_each_job_and_counts_what_failed() {
    let server = Server::start().await;
    let client = server.connect().await;
    client.enqueue(job("mail").with_id("taken")).await;
    let jobs = vec![
        job("mail").with_id("a"),
        job("mail").with_id("no spaces please"),
        job("").with_id("b"),
        job("mail"),
        job("mail").with_bytes((1 << 20) + 1),
        job("mail").with_id("taken"),
    ];
    let on_conflict = ConflictPolicy::Reject.into();
    let request = BatchEnqueueRequest { jobs, on_conflict, ..Default::default() };
    let answer = client.queue.clone().batch_enqueue(request).await.unwrap().into_inner();
    assert_eq!(answer.failed_count, 4);
    let rows: Vec<_> = answer
        .results
        .iter()
        .map(|result| {
            let error = result.error.as_ref();
            let what = |e: &ringq::pb::ItemError| (e.code, e.reason.clone(), e.field.clone());
            (result.outcome(), error.map(what))
        })
        .collect();
    let invalid = |reason: &str, field: &str| {
        let code = Code::InvalidArgument as i32;
        (EnqueueOutcome::Unspecified, Some((code, reason.to_owned(), field.to_owned())))
    };
    let exists = (Code::AlreadyExists as i32, "JOB_EXISTS".to_owned(), String::new());
    assert_eq!(
        rows,
        [
            (EnqueueOutcome::Created, None),
            invalid("INVALID_FIELD", "id"),
            invalid("INVALID_FIELD", "topic"),
            (EnqueueOutcome::Created, None),
            invalid("TOO_LARGE", "payload"),
            (EnqueueOutcome::Unspecified, Some(exists)),
        ]
    );
    assert_eq!(answer.results[0].id, "a");
    assert_eq!(answer.results[0].state(), JobState::Ready);
    assert_eq!(answer.results[0].durability(), Durability::Fsynced);
    assert!(is_server_made(&answer.results[3].id));
    assert_eq!(client.stats("mail").await.ready, 3, "taken, a and the one with a made id");
}

#[tokio::test]
async fn what_was_accepted_survives_the_death_of_the_server() {
    let mut server = Setup::new().restartable().start().await;
    let client = server.connect().await;
    let mut ids = client.enqueue_all(vec![job("mail").with_text("x"); 500]).await;
    ids.push(client.enqueue(job("mail")).await.id);
    server.kill().await;
    server.restart().await;
    let client = server.connect().await;
    let stored = client.list("mail", JobState::Ready).await;
    let stored: HashSet<_> = stored.into_iter().map(|job| job.spec.unwrap().id).collect();
    assert_eq!(stored, ids.into_iter().collect());
}
