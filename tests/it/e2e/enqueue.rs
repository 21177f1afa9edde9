use std::collections::HashSet;

use ringq::pb::payload::Kind;
use ringq::pb::{
    AckItem, BatchEnqueueRequest, ConflictPolicy, Durability, EnqueueOutcome, EnqueueRequest,
    JobSpec, JobState, NackAction, Payload, StreamRequest,
};
use tonic::{Code, Request};
use tonic_types::StatusExt as _;

use crate::harness::{
    Client, JobExt as _, JsonClient, Server, Setup, SinceEpoch as _, assert_refused, job, millis,
    nack, request, take, wall_now,
};

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
async fn ids_made_by_the_server_differ_and_lead_back_to_their_job() {
    let server = Server::start().await;
    let client = server.connect().await;
    let ids = client.enqueue_all(vec![job("mail"); 300]).await;
    assert!(ids.iter().all(|id| is_server_made(id)));
    assert_eq!(ids.iter().collect::<HashSet<_>>().len(), 300);
    // Sent back, such an id names the same job.
    let repeat = client.enqueue(job("mail").with_id(&ids[7])).await;
    assert_eq!(
        (repeat.id.as_str(), repeat.outcome()),
        (ids[7].as_str(), EnqueueOutcome::Unchanged)
    );
    assert_eq!(client.stats("mail").await.ready, 300);
}

#[tokio::test]
async fn payload_and_headers_reach_the_worker_exactly_as_they_were_sent() {
    let server = Server::start().await;
    let client = server.connect().await;
    let every_byte: Vec<u8> = (0..=255).collect();
    let text = " {\"user\":42, \"big\": 12345678901234567890}\n\u{1F980}\0 ".to_owned();
    let payloads = [
        Payload { kind: Some(Kind::Text(text)), content_type: "application/vnd.x+json".into() },
        Payload { kind: Some(Kind::Data(every_byte.into())), content_type: "a/b; c=d".into() },
        Payload { kind: Some(Kind::Data(vec![b'z'; 1 << 20].into())), ..Default::default() },
        Payload { kind: Some(Kind::Data(Vec::new().into())), content_type: "a/b".into() },
        Payload { kind: Some(Kind::Text(String::new())), ..Default::default() },
    ];
    for payload in payloads {
        let mut spec = job("mail").with_header("tenant", "ä ö").with_header("empty", "");
        spec = spec.with_retention(millis(60_000));
        spec.payload = Some(payload.clone());
        let id = client.enqueue(spec.clone()).await.id;
        let stored = client.get("mail", &id).await.spec.unwrap();
        assert_eq!(stored.payload.unwrap().kind, payload.kind);
        assert_eq!(stored.headers, spec.headers);
        let delivery = client.pull_one("mail").await;
        let delivered = delivery.payload.unwrap();
        assert_eq!(delivered.kind, payload.kind);
        if !payload.content_type.is_empty() {
            assert_eq!(delivered.content_type, payload.content_type);
        }
        assert_eq!(delivery.headers, spec.headers);
        // A result, too.
        let (receipt, result) = (delivery.receipt, Some(payload.clone()));
        let ack = AckItem { receipt, result, ..AckItem::default() };
        assert_eq!(client.ack_items(vec![ack]).await, []);
        let result = client.get("mail", &id).await.result.unwrap();
        assert_eq!(result.kind, payload.kind);
    }
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
async fn the_callers_traceparent_goes_into_the_headers_unless_the_job_has_one() {
    const CALLER: &str = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";
    const OWN: &str = "00-11111111111111111111111111111111-2222222222222222-01";
    let server = Server::start().await;
    let client = server.connect().await;
    for (spec, expected) in [
        (job("trace").with_id("without"), CALLER),
        (job("trace").with_id("with").with_header("traceparent", OWN), OWN),
    ] {
        let mut call = Request::new(request(spec));
        call.metadata_mut().insert("traceparent", CALLER.parse().unwrap());
        client.queue.clone().enqueue(call).await.unwrap();
        let delivery = client.pull_one("trace").await;
        assert_eq!(delivery.headers["traceparent"], expected, "{}", delivery.id);
    }
}

/// A cell of the conflict table: the outcome, or ALREADY_EXISTS.
type Cell = Result<EnqueueOutcome, Code>;

/// Brings `topic/x` into a state; each cell has a topic of its own, so a pull finds this job.
async fn bring(client: &Client, topic: &str, found: &str) {
    let kept = job(topic).with_id("x").with_text("old").with_retention(millis(60_000));
    let pull = async || client.pull_one(topic).await.receipt;
    let first = match found {
        "nothing" => None,
        "scheduled" => Some(kept.clone().with_delay(millis(3_600_000))),
        "expired" => Some(kept.clone().with_ttl(millis(20))),
        _ => Some(kept.clone()),
    };
    if let Some(first) = first {
        client.enqueue(first).await;
    }
    match found {
        "nothing" | "scheduled" | "ready" => {}
        "expired" => drop(client.until(topic, "x", JobState::Expired).await),
        "cancelled" => {
            let (topic, id) = (topic.into(), "x".into());
            let delete = ringq::pb::DeleteRequest { topic, id, ..Default::default() };
            client.queue.clone().delete(delete).await.unwrap();
        }
        "running" => drop(pull().await),
        "running, a generation waiting" => {
            pull().await;
            let next = kept.with_text("waiting");
            client.enqueue_by(ConflictPolicy::Replace, next).await.unwrap();
        }
        "backoff" => {
            let mut item = nack(&pull().await, NackAction::Retry);
            item.delay = Some(crate::harness::proto(millis(3_600_000)));
            client.nack(item).await;
        }
        "succeeded" => client.ack(&pull().await).await,
        "dead" => client.nack(nack(&pull().await, NackAction::DeadLetter)).await,
        other => panic!("{other}"),
    }
}

#[tokio::test]
async fn a_taken_id_is_answered_as_the_conflict_table_states() {
    use ConflictPolicy::{Keep, Reject, Replace, Reschedule};
    use EnqueueOutcome::{Created, Deferred, Replaced, Rescheduled, Unchanged};
    let exists: Cell = Err(Code::AlreadyExists);
    let table: [(&str, [Cell; 4]); 10] = [
        ("nothing", [Ok(Created), Ok(Created), Ok(Created), Ok(Created)]),
        ("cancelled", [Ok(Created), Ok(Created), Ok(Created), Ok(Created)]),
        ("scheduled", [Ok(Unchanged), Ok(Replaced), Ok(Rescheduled), exists]),
        ("ready", [Ok(Unchanged), Ok(Replaced), Ok(Rescheduled), exists]),
        ("backoff", [Ok(Unchanged), Ok(Replaced), Ok(Rescheduled), exists]),
        ("running", [Ok(Unchanged), Ok(Deferred), Ok(Deferred), exists]),
        ("running, a generation waiting", [Ok(Unchanged), Ok(Deferred), Ok(Deferred), exists]),
        ("succeeded", [Ok(Unchanged), Ok(Created), Ok(Created), exists]),
        ("expired", [Ok(Unchanged), Ok(Created), Ok(Created), exists]),
        ("dead", [Ok(Unchanged), Ok(Replaced), Ok(Rescheduled), exists]),
    ];
    let server = Server::start().await;
    let client = server.connect().await;
    let mut wrong = Vec::new();
    for (row, (found, cells)) in table.into_iter().enumerate() {
        for (policy, expected) in [Keep, Replace, Reschedule, Reject].into_iter().zip(cells) {
            let topic = format!("cell.{row}.{policy:?}");
            bring(&client, &topic, found).await;
            let before = client.find(&topic, "x").await;
            let new = job(&topic).with_id("x").with_text("new").with_delay(millis(7_200_000));
            let answer = client.enqueue_by(policy, new).await;
            let got = answer.as_ref().map(|a| a.outcome()).map_err(|status| status.code());
            if got != expected {
                wrong.push(format!("{found} under {policy:?}: {got:?}, not {expected:?}"));
                continue;
            }
            if let Err(status) = &answer {
                assert_refused(status, Code::AlreadyExists, "JOB_EXISTS", "");
                let resource = status.get_details_resource_info().expect("a ResourceInfo");
                assert_eq!(resource.resource_name, format!("topics/{topic}/jobs/x"));
            }
            let before = before.map_or(0, |job| job.generation);
            let after = client.get(&topic, "x").await;
            let raised = matches!(got, Ok(Created | Replaced)) as i32;
            // A deferred generation waits: the record still shows the one that runs.
            if found != "cancelled" && after.generation != before + raised && got != Ok(Deferred) {
                let generations = (before, after.generation);
                wrong.push(format!("{found} under {policy:?}: generations {generations:?}"));
            }
            let text = after.spec.unwrap().payload.and_then(|payload| payload.kind);
            let new_text = Some(Kind::Text("new".into()));
            if matches!(got, Ok(Created | Replaced)) != (text == new_text) {
                wrong.push(format!("{found} under {policy:?}: payload {text:?}"));
            }
        }
    }
    assert_eq!(wrong, Vec::<String>::new());
}

#[tokio::test]
async fn a_deferred_generation_starts_when_the_lease_ends_whatever_ends_it() {
    let server = Server::start().await;
    let client = server.connect().await;
    for (topic, action) in [
        ("ack", None),
        ("retry", Some(NackAction::Retry)),
        ("release", Some(NackAction::Release)),
        ("dead", Some(NackAction::DeadLetter)),
    ] {
        client.enqueue(job(topic).with_id("x").with_text("one").with_max_attempts(1)).await;
        let first = client.pull_one(topic).await;
        for text in ["two", "three"] {
            let next = job(topic).with_id("x").with_text(text);
            let answer = client.enqueue_by(ConflictPolicy::Replace, next).await.unwrap();
            assert_eq!(answer.outcome(), EnqueueOutcome::Deferred);
            assert_eq!(answer.state(), JobState::Running);
        }
        assert_eq!(client.pull_now(topic, 1).await, [], "one id never runs twice at once");
        match action {
            None => client.ack(&first.receipt).await,
            Some(action) => client.nack(nack(&first.receipt, action)).await,
        }
        let second = client.pull_one(topic).await;
        assert_eq!(second.payload.unwrap().kind, Some(Kind::Text("three".into())), "{topic}");
        assert_eq!((second.attempt, second.delivery), (1, 1), "{topic}: fresh counters");
        let stored = client.get(topic, "x").await;
        assert!(stored.generation > 1, "{topic}: {}", stored.generation);
        assert_eq!(client.stats(topic).await.dead, 0);
    }
}

#[tokio::test]
async fn a_request_id_makes_any_call_repeatable() {
    let server = Server::start().await;
    let client = server.connect().await;
    let repeatable = |spec: JobSpec, request_id: &str, policy: ConflictPolicy| EnqueueRequest {
        request_id: request_id.to_owned(),
        on_conflict: policy.into(),
        ..request(spec)
    };
    // Without an id the id follows from the request id.
    let call = repeatable(job("mail"), "7f3a", ConflictPolicy::Keep);
    let first = client.send(call.clone()).await.unwrap();
    assert_eq!((first.id.as_str(), first.outcome()), ("r=7f3a", EnqueueOutcome::Created));
    for policy in [ConflictPolicy::Keep, ConflictPolicy::Replace, ConflictPolicy::Reject] {
        let again = repeatable(job("mail"), "7f3a", policy);
        let again = client.send(again).await.unwrap();
        assert_eq!((again.id.as_str(), again.outcome()), ("r=7f3a", EnqueueOutcome::Unchanged));
    }
    // With an id, the last applied value is recognized, and only that one.
    let outcomes = [
        ("a", EnqueueOutcome::Created),
        ("a", EnqueueOutcome::Unchanged),
        ("b", EnqueueOutcome::Replaced),
        ("b", EnqueueOutcome::Unchanged),
    ];
    for (request_id, expected) in outcomes {
        let spec = job("mail").with_id("order-1").with_text(request_id);
        let call = repeatable(spec, request_id, ConflictPolicy::Replace);
        let answer = client.send(call).await.unwrap();
        assert_eq!((answer.id.as_str(), answer.outcome()), ("order-1", expected), "{request_id}");
    }
    let debounce = |request_id| {
        let spec = job("mail").with_id("order-2").with_delay(millis(60_000));
        repeatable(spec, request_id, ConflictPolicy::Reschedule)
    };
    let first = client.send(debounce("c")).await.unwrap();
    let repeat = client.send(debounce("c")).await.unwrap();
    assert_eq!(repeat.outcome(), EnqueueOutcome::Unchanged);
    assert_eq!(repeat.due_time, first.due_time, "a repeat does not count the delay again");
    let stats = client.stats("mail").await;
    assert_eq!((stats.ready, stats.scheduled), (2, 1), "a repeat is no new job");
}

#[tokio::test]
async fn a_repeat_after_the_job_has_been_run_and_acked_creates_nothing() {
    let server = Server::start().await;
    let client = server.connect().await;
    let by_id = request(job("mail").with_id("once").with_text("x"));
    let by_request = EnqueueRequest { request_id: "q1".into(), ..request(job("mail")) };
    for call in [by_id, by_request] {
        client.send(call.clone()).await.unwrap();
        let delivery = client.pull_one("mail").await;
        client.ack(&delivery.receipt).await;
        let repeat = client.send(call).await.unwrap();
        assert_eq!(repeat.id, delivery.id);
        assert_eq!(repeat.outcome(), EnqueueOutcome::Unchanged);
        assert_eq!(repeat.state(), JobState::Succeeded);
        assert_eq!(client.pull_now("mail", 10).await, []);
    }
    // Removed at once, as its retention requests: a late repeat runs again.
    let forgotten = job("mail").with_id("twice").with_retention(millis(0));
    for _ in 0..2 {
        let answer = client.enqueue(forgotten.clone()).await;
        assert_eq!(answer.outcome(), EnqueueOutcome::Created);
        client.ack(&client.pull_one("mail").await.receipt).await;
        assert_eq!(client.find("mail", "twice").await, None);
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
async fn a_batch_with_a_request_id_can_be_repeated_as_a_whole() {
    let server = Server::start().await;
    let client = server.connect().await;
    let jobs = vec![job("mail"), job("mail").with_id("own"), job("mail")];
    let request_id = "batch-1".to_owned();
    let request = BatchEnqueueRequest { jobs, request_id, ..Default::default() };
    for expected in [EnqueueOutcome::Created, EnqueueOutcome::Unchanged] {
        let answer =
            client.queue.clone().batch_enqueue(request.clone()).await.unwrap().into_inner();
        let ids: Vec<_> = answer.results.iter().map(|result| result.id.as_str()).collect();
        assert_eq!(ids, ["r=batch-1=0", "own", "r=batch-1=2"]);
        assert!(answer.results.iter().all(|result| result.outcome() == expected));
    }
    assert_eq!(client.stats("mail").await.ready, 3);
}

#[tokio::test]
async fn one_batch_may_carry_a_thousand_jobs() {
    let server = Server::start().await;
    let client = server.connect().await;
    let jobs = (0..1_000).map(|n| job("bulk").with_id(format!("n{n}")).with_text("x")).collect();
    let ids = client.enqueue_all(jobs).await;
    assert_eq!(ids[999], "n999");
    let mut worker = client.stream(StreamRequest { max_in_flight: 2_000, ..take("bulk") }).await;
    let delivered: Vec<_> = worker.next_many(1_000).await.into_iter().map(|d| d.id).collect();
    assert_eq!(delivered, ids, "equal priorities go by the time they became due");
}

#[tokio::test]
async fn durability_is_answered_and_what_cannot_be_reached_is_refused_before_writing() {
    let server = Server::start().await;
    let client = server.connect().await;
    for asked in [Durability::Unspecified, Durability::Memory, Durability::Fsynced] {
        let call = EnqueueRequest { durability: asked.into(), ..request(job("mail")) };
        let answer = client.send(call).await.unwrap();
        assert_eq!(answer.durability(), Durability::Fsynced, "asked for {asked:?}");
    }
    let durability = Durability::Replicated.into();
    let call = EnqueueRequest { durability, ..request(job("mail").with_id("safe")) };
    let status = client.send(call).await.unwrap_err();
    assert_refused(&status, Code::FailedPrecondition, "DURABILITY_UNSUPPORTED", "");
    assert_eq!(client.find("mail", "safe").await, None);

    let jobs = vec![job("mail"), job("other")];
    let batch = BatchEnqueueRequest { jobs, durability, ..Default::default() };
    let answer = client.queue.clone().batch_enqueue(batch).await.unwrap().into_inner();
    assert_eq!(answer.failed_count, 2);
    let error = answer.results[0].error.clone().unwrap();
    let expected = (Code::FailedPrecondition as i32, "DURABILITY_UNSUPPORTED");
    assert_eq!((error.code, error.reason.as_str()), expected);
    assert_eq!(client.stats("mail").await.ready, 3);
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
