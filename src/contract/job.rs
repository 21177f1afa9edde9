//! Jobs in answers, and job names in requests.

use crate::domain::{Attempt, GroupName, Job, JobKey, Spec, Time};
use crate::pb;

use super::enums::{self, ReadView};
use super::number::to_int32;
use super::time::{to_duration, to_timestamp};
use super::{Checks, FieldPath, InvalidRequest, names, payload, retry};

/// Reads a Get request: the job and the view.
pub(crate) fn get(request: &pb::GetRequest) -> Result<(JobKey, ReadView), InvalidRequest> {
    let mut checks = Checks::default();
    let pb::GetRequest { topic, id, view } = request;
    let key = names::key(&mut checks, topic, id);
    let view = enums::view(&mut checks, FieldPath::ROOT.field("view"), *view, ReadView::Full);
    checks.finish(key.zip(view))
}

/// Reads a Delete request: the job, and whether it may be missing.
pub(crate) fn delete(request: &pb::DeleteRequest) -> Result<(JobKey, bool), InvalidRequest> {
    let mut checks = Checks::default();
    let pb::DeleteRequest { topic, id, allow_missing } = request;
    let key = names::key(&mut checks, topic, id);
    checks.finish(key.map(|key| (key, *allow_missing)))
}

/// Converts a job, with the parts that the view includes.
pub(crate) fn to_job(job: Job, view: ReadView) -> pb::Job {
    let full = view == ReadView::Full;
    let attempts = if full { job.attempts } else { Vec::new() };
    pb::Job {
        state: enums::to_job_state(job.state).into(),
        failures: to_int32(job.failures),
        generation: to_int32(job.generation),
        create_time: Some(to_timestamp(job.create_time)),
        due_time: Some(to_timestamp(job.due_time)),
        lease_expire_time: job.lease_expire_time.map(to_timestamp),
        worker_id: job.worker_id,
        finish_time: job.finish_time.map(to_timestamp),
        result: job.result.filter(|_| full).map(payload::to_payload),
        last_error: job.last_error,
        attempts: attempts.into_iter().map(to_attempt).collect(),
        progress: job.progress,
        pipeline_run: String::new(),
        pipeline_stage: String::new(),
        schedule: String::new(),
        shard: job.shard.as_str().to_owned(),
        deliveries: to_int32(job.deliveries),
        crashes: to_int32(job.crashes),
        spec: Some(to_job_spec(
            job.spec,
            &job.key,
            job.priority,
            view,
            job.due_time,
            job.expire_time,
        )),
    }
}

/// Converts a job to its spec, with relative times resolved and without defaults. Each field is named, so that a new
/// one cannot be omitted from reads by mistake.
fn to_job_spec(
    spec: Spec,
    key: &JobKey,
    priority: u8,
    view: ReadView,
    due: Time,
    expire: Option<Time>,
) -> pb::JobSpec {
    use pb::job_spec::{Expiration, Schedule};
    pb::JobSpec {
        topic: key.topic.as_str().to_owned(),
        id: key.id.as_str().to_owned(),
        priority: Some(i32::from(priority)).filter(|&priority| priority > 0),
        payload: spec.payload.filter(|_| view == ReadView::Full).map(payload::to_payload),
        headers: spec.headers.into_iter().collect(),
        schedule: Some(Schedule::DueTime(to_timestamp(due))),
        retry: spec.retry.and_then(|retry| retry::to_retry_policy(*retry)),
        lease_duration: spec.lease.map(to_duration),
        expiration: expire.map(|time| Expiration::ExpireTime(to_timestamp(time))),
        retention: spec.retention.map(to_duration),
        group: GroupName::text(spec.group.as_ref()).to_owned(),
        // Not implemented yet.
        http_target: None,
    }
}

fn to_attempt(attempt: Attempt) -> pb::Attempt {
    pb::Attempt {
        number: to_int32(attempt.number),
        start_time: Some(to_timestamp(attempt.start_time)),
        finish_time: Some(to_timestamp(attempt.finish_time)),
        worker_id: attempt.worker_id,
        outcome: enums::to_attempt_outcome(attempt.outcome).into(),
        error: attempt.error,
        http_status: 0,
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use std::time::Duration;

    use super::*;
    use crate::domain::{
        AttemptOutcome, JobId, JobKey, Payload, RetryOverrides, ShardName, State, TopicName,
    };

    /// Returns a dead job with a value in every field.
    pub(crate) fn job() -> Job {
        let data = |body: &'static [u8]| Payload { body: body.into(), ..Payload::default() };
        let attempt = Attempt {
            number: 2,
            start_time: Time(1_000_000),
            finish_time: Time(2_000_000),
            worker_id: "w".into(),
            outcome: AttemptOutcome::LeaseExpired,
            error: "gone".into(),
        };
        Job {
            key: JobKey { topic: TopicName::stored("t"), id: JobId::stored("i") },
            spec: Spec {
                payload: Some(data(b"in")),
                headers: vec![("a".into(), "b".into())],
                retry: RetryOverrides { max_attempts: Some(-1), ..Default::default() }.boxed(),
                lease: Some(Duration::from_secs(60)),
                group: GroupName::stored("g"),
                retention: Some(Duration::ZERO),
            },
            priority: 3,
            expire_time: Some(Time(9_000_000)),
            state: State::Dead,
            failures: 1,
            deliveries: 2,
            crashes: 1,
            generation: 4,
            create_time: Time(500_000),
            due_time: Time(1_500_000),
            lease_expire_time: None,
            worker_id: "w".into(),
            finish_time: Some(Time(2_000_000)),
            result: Some(data(b"out")),
            last_error: "gone".into(),
            attempts: vec![attempt],
            checkpoint: None,
            progress: "half".into(),
            shard: ShardName::try_new("s0").unwrap(),
        }
    }

    #[test]
    fn full_has_everything() {
        let sent = to_job(job(), ReadView::Full);
        let spec = sent.spec.clone().unwrap();
        assert_eq!((spec.topic.as_str(), spec.id.as_str(), spec.priority), ("t", "i", Some(3)));
        let due = prost_types::Timestamp { seconds: 1, nanos: 500_000_000 };
        assert_eq!(spec.schedule, Some(pb::job_spec::Schedule::DueTime(due)));
        assert_eq!(sent.due_time, Some(due));
        assert_eq!(spec.retry.unwrap().max_attempts, -1);
        assert_eq!(spec.retention, Some(prost_types::Duration::default()));
        assert!(spec.payload.is_some() && sent.result.is_some());
        assert_eq!(sent.attempts[0].outcome(), pb::AttemptOutcome::LeaseExpired);
        assert_eq!((sent.state(), sent.failures, sent.deliveries), (pb::JobState::Dead, 1, 2));
        assert_eq!(sent.crashes, 1);
    }

    #[test]
    fn basic_lacks_payload_result_and_attempts_and_nothing_else() {
        let mut full = to_job(job(), ReadView::Full);
        full.result = None;
        full.attempts.clear();
        if let Some(spec) = &mut full.spec {
            spec.payload = None;
        }
        assert_eq!(to_job(job(), ReadView::Basic), full);
    }

    #[test]
    fn a_priority_of_zero_is_a_default_and_left_out() {
        let sent = to_job(Job { priority: 0, ..job() }, ReadView::Basic);
        assert_eq!(sent.spec.unwrap().priority, None);
    }
}
