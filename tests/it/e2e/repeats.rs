use ringq::pb::{
    AckItem, BatchEnqueueRequest, ConflictPolicy, DeleteRequest, EnqueueOutcome, EnqueueRequest,
    EnqueueResponse, EnqueueResult, JobSpec, JobState, NackAction, SetShardStateRequest,
    ShardState,
};
use tonic::{Code, Status};
use tonic_types::StatusExt as _;

use crate::harness::{
    Client, Server, Setup, assert_refused, job, millis, nack, refusal, request, wall_now,
};

const POLICIES: [ConflictPolicy; 4] = [
    ConflictPolicy::Keep,
    ConflictPolicy::Replace,
    ConflictPolicy::Reschedule,
    ConflictPolicy::Reject,
];

/// Lives of a job up to the repeat.
const LIVES: [&str; 5] = ["waiting", "running", "acked", "dead", "deleted"];

fn with_request(spec: JobSpec, request_id: &str, policy: ConflictPolicy) -> EnqueueRequest {
    EnqueueRequest {
        request_id: request_id.to_owned(),
        on_conflict: policy.into(),
        ..request(spec)
    }
}

async fn batch(client: &Client, request_id: &str, jobs: Vec<JobSpec>) -> Vec<EnqueueResult> {
    let request_id = request_id.to_owned();
    let request = BatchEnqueueRequest { jobs, request_id, ..Default::default() };
    client.queue.clone().batch_enqueue(request).await.unwrap().into_inner().results
}

async fn delete(client: &Client, topic: &str, id: &str) {
    let request = DeleteRequest { topic: topic.into(), id: id.into(), ..Default::default() };
    client.queue.clone().delete(request).await.unwrap();
}

/// Request ids that look like parts of each other, alone and in batches, and client-chosen ids of the old form: each
/// names a job of its own.
#[tokio::test]
async fn ids_of_requests_collide_with_no_other_id() {
    let server = Server::start().await;
    let client = server.connect().await;
    let mut ids = Vec::new();
    let named = ["import", "import:1", "import:1:1", "1", "r:import"];
    for request_id in named {
        let jobs = (0..3).map(|n| job("t").with_text(format!("{request_id} {n}"))).collect();
        for result in batch(&client, request_id, jobs).await {
            assert_eq!(result.outcome(), EnqueueOutcome::Created, "{request_id} {result:?}");
            ids.push(result.id);
        }
        let alone = job("t").with_text(format!("{request_id} alone"));
        let alone = client.send(with_request(alone, request_id, ConflictPolicy::Keep)).await;
        let alone = alone.unwrap();
        assert_eq!(alone.outcome(), EnqueueOutcome::Created, "{request_id} {alone:?}");
        ids.push(alone.id);
    }
    for id in ["r:import", "r:import:1", "r:import:1:1", "import", "b:import:1"] {
        let chosen = client.enqueue(job("t").with_id(id)).await;
        assert_eq!(chosen.outcome(), EnqueueOutcome::Created, "{id}");
        ids.push(chosen.id);
    }
    let count = ids.len();
    ids.sort_unstable();
    ids.dedup();
    assert_eq!(ids.len(), count);
    assert_eq!(client.stats("t").await.ready, count as i64);
}

/// The id of a request is accepted with that request id only, so no other job can take it.
#[tokio::test]
async fn an_id_of_a_request_is_taken_with_its_request_id_alone() {
    let server = Server::start().await;
    let client = server.connect().await;
    let jobs = || vec![job("t").with_text("0"), job("t").with_text("1")];
    let made: Vec<String> =
        batch(&client, "imp", jobs()).await.into_iter().map(|result| result.id).collect();
    let call = with_request(job("t").with_text("x"), "imp", ConflictPolicy::Keep);
    let alone = client.send(call.clone()).await.unwrap().id;
    for id in made.iter().chain([&alone]) {
        assert_eq!(client.state("t", id).await, JobState::Ready, "it can be read by it");
        for request_id in ["", "other"] {
            let spec = job("t").with_id(id).with_text("x");
            let status = client
                .send(with_request(spec, request_id, ConflictPolicy::Keep))
                .await
                .unwrap_err();
            assert_refused(&status, Code::InvalidArgument, "INVALID_FIELD", "job.id");
        }
    }
    // A part of a batch is repeated with the ids of its answer.
    let part = vec![job("t").with_id(&made[1]).with_text("1")];
    assert_eq!(batch(&client, "imp", part).await[0].outcome(), EnqueueOutcome::Unchanged);
    let alone = with_request(job("t").with_id(&alone).with_text("x"), "imp", ConflictPolicy::Keep);
    assert_eq!(client.send(alone).await.unwrap().outcome(), EnqueueOutcome::Unchanged);
    assert_eq!(client.stats("t").await.ready, 3);
}

/// UNCHANGED means that this job exists: another one under a used request id is refused, before and after the first
/// has ended.
#[tokio::test]
async fn a_request_id_that_comes_with_another_job_is_refused() {
    let server = Server::start().await;
    let client = server.connect().await;
    type Change = fn(JobSpec) -> JobSpec;
    let others: [(&str, Change); 5] = [
        ("payload", |job| job.with_text("other")),
        ("header", |job| job.with_header("k", "v")),
        ("delay", |job| job.with_delay(millis(60_000))),
        ("retention", |job| job.with_retention(millis(1_000))),
        ("priority", |job| JobSpec { priority: Some(3), ..job }),
    ];
    for policy in POLICIES {
        for (id, topic) in [("", "made"), ("mine", "chosen")] {
            let topic = &format!("{topic}.{policy:?}");
            let spec = JobSpec { id: id.into(), ..job(topic).with_text("first") };
            let send = async |spec: JobSpec| client.send(with_request(spec, "q", policy)).await;
            let batched = async |spec: JobSpec| {
                let request = BatchEnqueueRequest {
                    jobs: vec![spec],
                    request_id: "q2".into(),
                    on_conflict: policy.into(),
                    ..Default::default()
                };
                let answer = client.queue.clone().batch_enqueue(request).await.unwrap();
                answer.into_inner().results.remove(0)
            };
            assert_eq!(send(spec.clone()).await.unwrap().outcome(), EnqueueOutcome::Created);
            for ended in [false, true] {
                if ended {
                    client.ack(&client.pull_one(topic).await.receipt).await;
                }
                let repeat = send(spec.clone()).await.unwrap();
                assert_eq!(repeat.outcome(), EnqueueOutcome::Unchanged, "{topic} {ended}");
                for (what, change) in others {
                    let status = send(change(spec.clone())).await.map(|a| a.outcome());
                    let status = status.expect_err(&format!("{topic}: another {what}, {ended}"));
                    assert_refused(&status, Code::AlreadyExists, "JOB_EXISTS", "");
                }
            }
            if id.is_empty() {
                assert_eq!(batched(spec.clone()).await.outcome(), EnqueueOutcome::Created);
                assert_eq!(batched(spec.clone()).await.outcome(), EnqueueOutcome::Unchanged);
                let error = batched(spec.with_text("other")).await.error;
                assert_eq!(error.map(|e| e.reason).as_deref(), Some("JOB_EXISTS"), "{topic}");
            }
        }
    }
}

/// Creates a job under a server-made id, and brings it into this state; returns its id.
async fn live(client: &Client, call: &EnqueueRequest, how: &str) -> String {
    let topic = &call.job.as_ref().unwrap().topic;
    let made = client.send(call.clone()).await.unwrap();
    assert_eq!(made.outcome(), EnqueueOutcome::Created);
    let take = async || client.pull_one(topic).await.receipt;
    match how {
        "waiting" => {}
        "running" => drop(take().await),
        "acked" => client.ack(&take().await).await,
        "dead" => client.nack(nack(&take().await, NackAction::DeadLetter)).await,
        "deleted" => delete(client, topic, &made.id).await,
        other => panic!("{other}"),
    }
    made.id
}

/// A repeat of the call with the server-made id, as OUTCOME_UNKNOWN requires: it changes nothing, however the job has
/// ended, under every policy.
#[tokio::test]
async fn a_repeat_under_an_id_of_the_server_makes_no_second_job() {
    let server = Server::start().await;
    let client = server.connect().await;
    let mut wrong = Vec::new();
    for policy in POLICIES {
        for how in LIVES {
            let topic = format!("{policy:?}.{how}");
            let spec = job(&topic).with_text("x");
            let call = EnqueueRequest { on_conflict: policy.into(), ..request(spec.clone()) };
            let id = live(&client, &call, how).await;
            let again = EnqueueRequest { job: Some(spec.with_id(&id)), ..call };
            for _ in 0..2 {
                let outcome = client.send(again.clone()).await.map(|answer| answer.outcome());
                if !matches!(outcome, Ok(EnqueueOutcome::Unchanged)) {
                    wrong.push(format!("{how} under {policy:?}: {outcome:?}"));
                }
            }
            let left = client.pull_now(&topic, 10).await.len();
            if left != usize::from(how == "waiting") {
                wrong.push(format!("{how} under {policy:?}: {left} jobs"));
            }
            // A change is another spec, as in the conflict table.
            if how == "running" && policy == ConflictPolicy::Replace {
                let other = job(&topic).with_text("other").with_id(&id);
                let changed = client.enqueue_by(policy, other).await.unwrap();
                assert_eq!(changed.outcome(), EnqueueOutcome::Deferred);
            }
        }
    }
    assert_eq!(wrong, Vec::<String>::new());
}

/// Builds an id as a server would make it on this shard, `ago` seconds ago or, if negative, ahead.
fn made_up(shard: &str, ago: i64) -> String {
    let millis = i64::try_from(wall_now().as_millis()).unwrap() - ago * 1_000;
    let mut uuid = u128::try_from(millis).unwrap() << 80 | 0x1234_5678;
    let mut digits = vec![b'0'; 26];
    for digit in digits.iter_mut().rev() {
        *digit = b"0123456789abcdefghijklmnopqrstuv"[usize::try_from(uuid & 31).unwrap()];
        uuid >>= 5;
    }
    format!("{shard}~{}", String::from_utf8(digits).unwrap())
}

#[tokio::test]
async fn an_id_that_no_server_can_just_have_made_is_refused() {
    let server = Setup::new().shards(2).start().await;
    let client = server.connect().await;
    let enqueue = async |id: &str| -> Result<EnqueueResponse, Status> {
        client.send(request(job("t").with_id(id))).await
    };
    for ago in [660, 86_400] {
        for policy in POLICIES {
            let spec = job("t").with_id(made_up("s0", ago));
            let status = client.enqueue_by(policy, spec).await.unwrap_err();
            assert_refused(&status, Code::Unavailable, "OUTCOME_UNKNOWN", "");
            assert!(status.message().contains("too old to repeat"), "{}", status.message());
            let info = status.get_details_error_info().unwrap();
            assert!(!info.metadata.contains_key("id"), "no repeat can be answered");
            assert!(status.get_details_retry_info().is_none(), "nor after a while");
        }
    }
    let status = enqueue(&made_up("s0", -3_600)).await.unwrap_err();
    assert_refused(&status, Code::InvalidArgument, "INVALID_FIELD", "job.id");
    let rows = batch(&client, "", vec![job("t").with_id(made_up("s0", -3_600))]).await;
    assert_eq!(rows[0].error.as_ref().map(|error| error.field.as_str()), Some("id"));
    // An id that a server may have made a moment ago is the repeat of a lost call.
    assert_eq!(enqueue(&made_up("s0", 0)).await.unwrap().outcome(), EnqueueOutcome::Created);
    // A draining shard takes none of them.
    let mut known = Vec::new();
    for _ in 0..20 {
        known.push(client.enqueue(job("t")).await.id);
    }
    let on_s1 = known.iter().find(|id| id.starts_with("s1~")).expect("some lie on each");
    let (name, state) = ("s1".to_owned(), ShardState::Draining.into());
    client.admin.clone().set_shard_state(SetShardStateRequest { name, state }).await.unwrap();
    let status = enqueue(&made_up("s1", 0)).await.unwrap_err();
    assert_refused(&status, Code::FailedPrecondition, "SHARD_DRAINING", "");
    assert_eq!(enqueue(on_s1).await.unwrap().outcome(), EnqueueOutcome::Unchanged);
    assert_eq!(client.stats("t").await.ready, 21);
}

#[tokio::test]
async fn a_job_is_no_follow_up_of_its_own_ack() {
    let server = Server::start().await;
    let client = server.connect().await;
    let ids = ["tick", "tock", "other"];
    client.enqueue_all(ids.map(|id| job("t").with_id(id)).to_vec()).await;
    let held = client.pull_now("t", 3).await;
    let ack = |n: usize, next: Vec<JobSpec>| AckItem {
        receipt: held[n].receipt.clone(),
        enqueue: next,
        ..Default::default()
    };
    let refused = async |items: Vec<AckItem>| refusal(&client.try_ack(items).await.unwrap_err());
    let itself = ack(0, vec![job("t"), job("t").with_id("tick")]);
    let path = "InvalidArgument INVALID_FIELD items[0].enqueue[1].id";
    assert_eq!(refused(vec![itself]).await, path);
    for id in ids {
        assert_eq!(client.state("t", id).await, JobState::Running, "nothing was applied");
    }
    // The same id in another topic is another job.
    let next = vec![job("u").with_id("tick"), job("t").with_id("next")];
    assert_eq!(client.ack_items(vec![ack(0, next), ack(1, vec![])]).await, []);
    assert_eq!((client.stats("u").await.ready, client.stats("t").await.ready), (1, 1));
    // An Ack whose answer was lost is repeated, and so is that of the follow-up that it has written.
    let step = || job("v").with_id("step");
    assert_eq!(client.ack_items(vec![ack(2, vec![step()])]).await, []);
    let receipt = client.pull_one("v").await.receipt;
    let of_step = AckItem { receipt, ..Default::default() };
    assert_eq!(client.ack_items(vec![ack(2, vec![step()]), of_step]).await, []);
    let stats = client.stats("v").await;
    assert_eq!((stats.succeeded_total, stats.ready, stats.running), (1, 0, 0));
}

/// A server-made id of a job is a valid id of its next step, however old it is.
#[tokio::test]
async fn a_follow_up_may_carry_the_id_of_its_job_to_another_topic() {
    let server = Setup::new().shards(2).start().await;
    let client = server.connect().await;
    for _ in 0..20 {
        client.enqueue(job("one")).await;
    }
    let (name, state) = ("s1".to_owned(), ShardState::Draining.into());
    client.admin.clone().set_shard_state(SetShardStateRequest { name, state }).await.unwrap();
    let held = client.pull_now("one", 20).await;
    assert_eq!(held.len(), 20);
    let item = |n: usize, id: &str| AckItem {
        receipt: held[n].receipt.clone(),
        enqueue: vec![job("two").with_id(id)],
        ..Default::default()
    };
    let status = client.try_ack(vec![item(0, &held[1].id)]).await.unwrap_err();
    assert_refused(&status, Code::InvalidArgument, "INVALID_FIELD", "items[0].enqueue[0].id");
    let items = (0..20).map(|n| item(n, &held[n].id)).collect();
    assert_eq!(client.ack_items(items).await, []);
    assert_eq!(client.stats("two").await.ready, 20);
    // An Ack with an unknown outcome is repeated, and with it this job, which may have run by then.
    let done = client.pull_one("two").await;
    client.ack(&done.receipt).await;
    assert_eq!(client.state("two", &done.id).await, JobState::Succeeded);
}
