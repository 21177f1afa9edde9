use ringq::pb::payload::Kind;
use ringq::pb::reschedule_request::Schedule;
use ringq::pb::{
    AckItem, DeleteRequest, GetRequest, JobState, JobView, NackAction, Payload, RescheduleRequest,
};
use tonic::Code;
use tonic_types::StatusExt as _;

use crate::harness::{
    Client, Server, SinceEpoch as _, assert_refused, job, millis, nack, nack_retry, proto, wall_now,
};

fn named(topic: &str, id: &str) -> DeleteRequest {
    DeleteRequest { topic: topic.into(), id: id.into(), ..Default::default() }
}

fn moved(id: &str, schedule: Option<Schedule>) -> RescheduleRequest {
    RescheduleRequest { topic: "t".into(), id: id.into(), schedule, priority: None }
}

async fn delete(client: &Client, id: &str) -> JobState {
    client.queue.clone().delete(named("t", id)).await.unwrap().into_inner().previous_state()
}

#[tokio::test]
async fn delete_cancels_what_is_alive_and_forgets_what_is_finished() {
    let server = Server::start().await;
    let client = server.connect().await;
    let kept = |id: &str| job("t").with_id(id).with_retention(millis(60_000));
    client.enqueue(kept("ready")).await;
    client.enqueue(kept("scheduled").with_delay(millis(60_000))).await;
    for (id, state) in [("ready", JobState::Ready), ("scheduled", JobState::Scheduled)] {
        assert_eq!(delete(&client, id).await, state);
        let job = client.get("t", id).await;
        assert_eq!(job.state(), JobState::Cancelled, "{id}");
        assert!(job.finish_time.is_some());
        // Once more: now it is finished.
        assert_eq!(delete(&client, id).await, JobState::Cancelled);
        assert_eq!(client.find("t", id).await, None);
    }
    assert_eq!(client.pull_now("t", 10).await, [], "cancelled jobs do not run");

    client.enqueue(kept("running")).await;
    let delivery = client.pull_one("t").await;
    assert_eq!(delete(&client, "running").await, JobState::Running);
    let failures = client.ack_items(vec![AckItem::from_receipt(&delivery.receipt)]).await;
    assert_eq!(failures.len(), 1, "the Ack of a deleted job is refused");
    assert_eq!(client.state("t", "running").await, JobState::Cancelled);

    client.enqueue(kept("dead")).await;
    client.nack(nack(&client.pull_one("t").await.receipt, NackAction::DeadLetter)).await;
    assert_eq!(delete(&client, "dead").await, JobState::Dead);
    assert_eq!(client.find("t", "dead").await, None);
}

trait FromReceipt {
    fn from_receipt(receipt: &str) -> Self;
}

impl FromReceipt for AckItem {
    fn from_receipt(receipt: &str) -> AckItem {
        AckItem { receipt: receipt.to_owned(), ..Default::default() }
    }
}

#[tokio::test]
async fn a_missing_job_is_not_found_and_named() {
    let server = Server::start().await;
    let client = server.connect().await;
    client.enqueue(job("t").with_id("other")).await;
    let get = GetRequest { topic: "t".into(), id: "none".into(), ..Default::default() };
    let statuses = [
        client.queue.clone().get(get).await.unwrap_err(),
        client.queue.clone().delete(named("t", "none")).await.unwrap_err(),
        client.queue.clone().reschedule(moved("none", None)).await.unwrap_err(),
    ];
    for status in statuses {
        assert_refused(&status, Code::NotFound, "JOB_NOT_FOUND", "");
        let resource = status.get_details_resource_info().expect("a ResourceInfo");
        assert_eq!(resource.resource_name, "topics/t/jobs/none");
    }
    let allowed = DeleteRequest { allow_missing: true, ..named("t", "none") };
    let answer = client.queue.clone().delete(allowed).await.unwrap().into_inner();
    assert_eq!(answer.previous_state(), JobState::Unspecified);
    let unknown_topic = GetRequest { topic: "nowhere".into(), id: "a".into(), view: 0 };
    let status = client.queue.clone().get(unknown_topic).await.unwrap_err();
    assert_refused(&status, Code::NotFound, "JOB_NOT_FOUND", "");
}

#[tokio::test]
async fn get_shows_everything_or_all_but_the_bodies() {
    let server = Server::start().await;
    let client = server.connect().await;
    let spec = job("t").with_id("a").with_text("hello").with_retention(millis(60_000));
    client.enqueue(spec).await;
    client.nack(nack_retry(&client.pull_one("t").await.receipt, "not today")).await;
    client
        .queue
        .clone()
        .reschedule(moved("a", Some(Schedule::Delay(proto(millis(0))))))
        .await
        .unwrap();
    let receipt = client.pull_one("t").await.receipt;
    let result = Some(Payload { kind: Some(Kind::Text("done".into())), ..Default::default() });
    assert_eq!(client.ack_items(vec![AckItem { receipt, result, enqueue: vec![] }]).await, []);

    let view = async |view: JobView| {
        let request = GetRequest { topic: "t".into(), id: "a".into(), view: view.into() };
        client.queue.clone().get(request).await.unwrap().into_inner().job.unwrap()
    };
    let full = view(JobView::Full).await;
    assert_eq!(full.state(), JobState::Succeeded);
    assert_eq!(full.result.as_ref().unwrap().kind, Some(Kind::Text("done".into())));
    assert_eq!(
        full.spec.as_ref().unwrap().payload.as_ref().unwrap().kind,
        Some(Kind::Text("hello".into()))
    );
    assert_eq!(full.attempts.len(), 2);
    assert_eq!((full.attempts[0].number, full.attempts[1].number), (2, 1), "newest first");
    assert_eq!(full.attempts[1].error, "not today");
    assert_eq!(view(JobView::Unspecified).await, full, "FULL is the default of Get");
    let basic = view(JobView::Basic).await;
    assert_eq!((basic.result, basic.attempts.len()), (None, 0));
    assert_eq!(basic.spec.unwrap().payload, None);
    assert_eq!((basic.state, basic.deliveries, basic.failures), (full.state, 2, 1));
}

#[tokio::test]
async fn reschedule_moves_waiting_jobs_and_revives_dead_ones() {
    let server = Server::start().await;
    let client = server.connect().await;
    let reschedule = async |request| client.queue.clone().reschedule(request).await;
    let delay = |ms| Some(Schedule::Delay(proto(millis(ms))));

    client.enqueue(job("t").with_id("a").with_text("x").with_delay(millis(3_600_000))).await;
    let before = wall_now();
    let answer = reschedule(moved("a", delay(7_200_000))).await.unwrap().into_inner().job.unwrap();
    assert_eq!(answer.state(), JobState::Scheduled);
    assert_eq!(answer.spec.as_ref().unwrap().payload, None, "the BASIC view");
    let ahead = answer.due_time.since_epoch() - before;
    assert!(ahead >= millis(7_200_000) && ahead < millis(7_210_000), "{ahead:?}");
    // Neither due time nor priority: nothing moves.
    let same = reschedule(moved("a", None)).await.unwrap().into_inner().job.unwrap();
    assert_eq!(same.due_time, answer.due_time);
    // Run now.
    let now = reschedule(moved("a", delay(0))).await.unwrap().into_inner().job.unwrap();
    assert_eq!(now.state(), JobState::Ready);
    let delivery = client.pull_one("t").await;
    assert_eq!((delivery.id.as_str(), delivery.attempt), ("a", 1));

    let status = reschedule(moved("a", delay(0))).await.unwrap_err();
    assert_refused(&status, Code::FailedPrecondition, "WRONG_JOB_STATE", "");
    client.nack(nack(&delivery.receipt, NackAction::DeadLetter)).await;
    let revived = reschedule(moved("a", delay(0))).await.unwrap().into_inner().job.unwrap();
    assert_eq!((revived.state(), revived.failures), (JobState::Ready, 0));
    let delivery = client.pull_one("t").await;
    assert_eq!((delivery.attempt, delivery.delivery), (1, 1), "fresh counters");
    client.ack(&delivery.receipt).await;
    let status = reschedule(moved("a", delay(0))).await.unwrap_err();
    assert_refused(&status, Code::FailedPrecondition, "WRONG_JOB_STATE", "");

    // Priority alone.
    for id in ["first", "second"] {
        client.enqueue(job("t").with_id(id)).await;
    }
    reschedule(RescheduleRequest { priority: Some(9), ..moved("second", None) }).await.unwrap();
    let order: Vec<_> = client.pull_now("t", 2).await.into_iter().map(|d| d.id).collect();
    assert_eq!(order, ["second", "first"]);
}
