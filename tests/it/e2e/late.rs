//! Writes that reach Redis after their caller was answered: delayed on the way, they must change nothing.

use std::time::Duration;

use futures::join;
use ringq::pb::reschedule_request::Schedule;
use ringq::pb::{
    BatchEnqueueRequest, ConflictPolicy, DeleteRequest, EnqueueRequest, ExtendItem, ExtendRequest,
    ExtendResponse, GetRequest, JobSpec, JobState, JobView, NackAction, RedriveJobsRequest,
    RescheduleRequest, SetShardStateRequest, ShardState,
};
use tonic::{Request, Status};

use crate::harness::{
    HoldingProxy, Redis, Setup, SinceEpoch as _, job, nack, proto, receipts, refusal, request,
    take, wall_now, within,
};

const TOPIC: &str = "late";
/// Longer than a write waits for its answer, so that its outcome is unknown, and longer than a repeat takes.
const PATIENCE: Duration = Duration::from_secs(9);
const HOUR: Duration = Duration::from_secs(3_600);

/// Builds a request with this long deadline.
fn patient<T>(message: T) -> Request<T> {
    let mut request = Request::new(message);
    request.set_timeout(PATIENCE);
    request
}

/// Builds a request that the client gives up before the server repeats it.
fn impatient<T>(message: T) -> Request<T> {
    let mut request = Request::new(message);
    request.set_timeout(Duration::from_secs(2));
    request
}

/// Builds a job with a client-chosen id that is not due for an hour.
fn parked(id: &str) -> JobSpec {
    job(TOPIC).with_id(id).with_delay(HOUR)
}

fn delete() -> DeleteRequest {
    DeleteRequest { topic: TOPIC.into(), id: "deleted".into(), allow_missing: true }
}

fn replace(text: &str) -> EnqueueRequest {
    let on_conflict = ConflictPolicy::Replace.into();
    EnqueueRequest { on_conflict, ..request(parked("replaced").with_text(text)) }
}

fn reschedule(delay: Duration) -> RescheduleRequest {
    let schedule = Some(Schedule::Delay(proto(delay)));
    let (topic, id) = (TOPIC.into(), "rescheduled".into());
    RescheduleRequest { topic, id, schedule, ..Default::default() }
}

fn set(state: ShardState) -> SetShardStateRequest {
    SetShardStateRequest { name: "s0".into(), state: state.into() }
}

/// Checks that the outcome of the call is unknown: by the server's answer, unless the client gave it up a moment
/// earlier.
fn assert_unknown<T: std::fmt::Debug>(answer: Result<T, Status>) {
    let refused = refusal(&answer.unwrap_err());
    let is_given_up = refused.starts_with("Cancelled");
    assert!(refused.ends_with("OUTCOME_UNKNOWN") || is_given_up, "{refused}");
}

/// Checks that the call was not applied: not even its first read was answered.
fn assert_not_applied<T: std::fmt::Debug>(answer: Result<T, Status>) {
    let refused = refusal(&answer.unwrap_err());
    assert!(refused.ends_with("SHARD_UNAVAILABLE"), "{refused}");
}

#[tokio::test]
async fn a_write_that_redis_reads_after_its_caller_was_answered_changes_nothing() {
    let Some(redis) = Redis::start().await else { return };
    let proxy = HoldingProxy::start(&redis).await;
    let server = Setup::on(&proxy.url()).start().await;
    let client = server.connect().await;
    for id in ["deleted", "replaced", "rescheduled"] {
        client.enqueue(parked(id)).await;
    }

    proxy.hold();
    let queue = || client.queue.clone();
    let batch = BatchEnqueueRequest { jobs: vec![job(TOPIC); 3], ..Default::default() };
    let (single, batch, deleted, rescheduled) = join!(
        async { queue().enqueue(patient(request(job(TOPIC)))).await },
        async { queue().batch_enqueue(patient(batch)).await },
        async { queue().delete(patient(delete())).await },
        async { queue().reschedule(patient(reschedule(HOUR))).await },
    );
    // The server repeats an enqueue that cannot duplicate, on another connection.
    single.unwrap();
    assert_eq!(batch.unwrap().into_inner().failed_count, 0);
    assert_not_applied(deleted);
    assert_not_applied(rescheduled);

    // The caller repeats it, and continues.
    let mut worker = client.stream(take(TOPIC)).await;
    let mut came = worker.next_many(4).await;
    let runs = came.pop().unwrap();
    client.ack_all(&receipts(&came)).await;
    client.queue.clone().delete(delete()).await.unwrap();
    client.enqueue_by(ConflictPolicy::Replace, parked("deleted")).await.unwrap();
    let moved = client.queue.clone().reschedule(reschedule(2 * HOUR)).await.unwrap();
    let due = moved.into_inner().job.unwrap().due_time;

    assert!(within("late calls are executed", proxy.release()).await > 0);
    assert_eq!(client.state(TOPIC, "deleted").await, JobState::Scheduled);
    assert_eq!(client.get(TOPIC, "rescheduled").await.due_time, due);
    assert_eq!(client.state(TOPIC, &runs.id).await, JobState::Running);
    for delivery in came {
        assert_eq!(client.find(TOPIC, &delivery.id).await, None, "an acked job came back");
    }
    client.ack(&runs.receipt).await;
    client.enqueue(job(TOPIC).with_id("last")).await;
    assert_eq!(worker.next().await.id, "last", "nothing came twice");
}

#[tokio::test]
async fn a_late_replace_or_state_does_not_undo_the_one_that_followed_it() {
    let Some(redis) = Redis::start().await else { return };
    let Some(other) = Redis::start().await else { return };
    let (proxy, beside) = (HoldingProxy::start(&redis).await, HoldingProxy::start(&other).await);
    let ring = vec![format!("s0={}", proxy.url()), format!("s1={}", beside.url())];
    let server = Setup::new().ring(ring).start().await;
    let client = server.connect().await;
    client.enqueue(parked("replaced")).await;

    proxy.hold();
    beside.hold();
    let first = EnqueueRequest { request_id: "first".into(), ..replace("first") };
    let (replaced, drained) =
        join!(async { client.queue.clone().enqueue(impatient(first)).await }, async {
            client.admin.clone().set_shard_state(patient(set(ShardState::Draining))).await
        },);
    assert_unknown(replaced);
    assert_unknown(drained);
    let second = EnqueueRequest { request_id: "second".into(), ..replace("second") };
    client.send(second).await.unwrap();
    client.admin.clone().set_shard_state(set(ShardState::Active)).await.unwrap();

    let late = async { proxy.release().await + beside.release().await };
    assert!(within("late calls are executed", late).await > 0);
    let view = JobView::Full.into();
    let get = GetRequest { topic: TOPIC.into(), id: "replaced".into(), view };
    let job = client.queue.clone().get(get).await.unwrap().into_inner().job.unwrap();
    assert_eq!(job.spec.unwrap().payload.unwrap().bytes(), b"second");
    assert_eq!(redis.command(&["GET", "ringq:{s0}:state"]).await, "active");
}

/// Both have the same token: a late one would take back the time that the later one has given.
#[tokio::test]
async fn a_late_extend_does_not_shorten_the_one_that_followed_it() {
    let Some(redis) = Redis::start().await else { return };
    // Also a call that its caller gave up long before the server would have.
    for patience in [PATIENCE, Duration::from_millis(400)] {
        let proxy = HoldingProxy::start(&redis).await;
        let server = Setup::on(&proxy.url()).start().await;
        let client = server.connect().await;
        client.enqueue(job(TOPIC).with_lease(HOUR)).await;
        let held = client.pull_one(TOPIC).await;

        proxy.hold();
        let (receipt, lease_duration) = (held.receipt.clone(), proto(Duration::from_secs(10)));
        let short =
            ExtendItem { receipt, lease_duration: Some(lease_duration), ..Default::default() };
        let mut request = Request::new(ExtendRequest { items: vec![short] });
        request.set_timeout(patience);
        let lost = client.queue.clone().extend(request).await;
        let is_lost =
            |answer: tonic::Response<ExtendResponse>| answer.get_ref().failures.len() == 1;
        assert!(lost.map_or(true, is_lost), "its outcome is unknown");
        client.extend(&held.receipt, 2 * HOUR).await;

        assert!(within("late calls are executed", proxy.release()).await > 0);
        let ends = client.get(TOPIC, &held.id).await.lease_expire_time.since_epoch();
        assert!(ends > wall_now() + HOUR, "{patience:?}: {ends:?}");
        client.ack(&held.receipt).await;
    }
}

#[tokio::test]
async fn a_late_redrive_does_not_revive_what_died_again() {
    let Some(redis) = Redis::start().await else { return };
    let proxy = HoldingProxy::start(&redis).await;
    let server = Setup::on(&proxy.url()).start().await;
    let client = server.connect().await;
    let die = async || {
        let held = client.stream(take(TOPIC)).await.next().await;
        client.nack(nack(&held.receipt, NackAction::DeadLetter)).await;
        assert_eq!(client.state(TOPIC, "dead").await, JobState::Dead);
    };
    client.enqueue(job(TOPIC).with_id("dead")).await;
    die().await;

    proxy.hold();
    let (topic, ids) = (TOPIC.into(), vec!["dead".into()]);
    let redrive = RedriveJobsRequest { topic, ids, ..Default::default() };
    // Repeated until it is done: its reads are delayed first.
    let (mut refused, redriven) = (0, async |refused: &mut u32| {
        loop {
            match client.admin.clone().redrive_jobs(patient(redrive.clone())).await {
                Ok(answer) => return answer.into_inner().redriven_count,
                Err(_) => *refused += 1,
            }
        }
    });
    let redriven = within("it is redriven", redriven(&mut refused)).await;
    assert!(redriven == 1 && refused > 0, "{redriven} {refused}");
    die().await;

    assert!(within("late calls are executed", proxy.release()).await > 0);
    assert_eq!(client.state(TOPIC, "dead").await, JobState::Dead);
}
