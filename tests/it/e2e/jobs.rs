use ringq::pb::reschedule_request::Schedule;
use ringq::pb::{DeleteRequest, GetRequest, JobState, JobView, RescheduleRequest};
use tonic::Code;
use tonic_types::StatusExt as _;

use crate::harness::{
    Server, SinceEpoch as _, assert_refused, job, millis, nack_retry, proto, wall_now,
};

fn named(topic: &str, id: &str) -> DeleteRequest {
    DeleteRequest { topic: topic.into(), id: id.into(), ..Default::default() }
}

fn moved(id: &str, schedule: Option<Schedule>) -> RescheduleRequest {
    RescheduleRequest { topic: "t".into(), id: id.into(), schedule, priority: None }
}

#[tokio::test]
async fn a_job_is_read_moved_and_deleted() {
    let server = Server::start().await;
    let client = server.connect().await;
    let spec = job("t").with_id("a").with_text("hello").with_retention(millis(60_000));
    client.enqueue(spec).await;
    client.nack(nack_retry(&client.pull_one("t").await.receipt, "not today")).await;
    let view = async |view: JobView| {
        let request = GetRequest { topic: "t".into(), id: "a".into(), view: view.into() };
        client.queue.clone().get(request).await.unwrap().into_inner().job.unwrap()
    };
    let full = view(JobView::Full).await;
    assert_eq!((full.state(), full.deliveries, full.failures), (JobState::Backoff, 1, 1));
    assert_eq!(full.spec.as_ref().unwrap().payload.as_ref().unwrap().bytes(), b"hello");
    assert_eq!(full.attempts[0].error, "not today");
    assert_eq!(view(JobView::Unspecified).await, full, "FULL is the default of Get");
    let basic = view(JobView::Basic).await;
    assert_eq!((basic.attempts.len(), basic.spec.unwrap().payload), (0, None));

    let reschedule = async |request| client.queue.clone().reschedule(request).await;
    let delay = |ms| Some(Schedule::Delay(proto(millis(ms))));
    let before = wall_now();
    let answer = reschedule(moved("a", delay(7_200_000))).await.unwrap().into_inner().job.unwrap();
    assert_eq!(answer.spec.as_ref().unwrap().payload, None, "the BASIC view");
    assert!(answer.due_time.since_epoch() >= before + millis(7_200_000));
    let now = reschedule(moved("a", delay(0))).await.unwrap().into_inner().job.unwrap();
    assert_eq!(now.state(), JobState::Ready);

    for previous in [JobState::Ready, JobState::Cancelled] {
        let answer = client.queue.clone().delete(named("t", "a")).await.unwrap().into_inner();
        assert_eq!(answer.previous_state(), previous);
    }
    assert_eq!(client.find("t", "a").await, None);
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
}
