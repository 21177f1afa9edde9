//! The jobs: numbered, each with a body that contains its number and a hash of it.

use std::time::Duration;

use bytes::Bytes;
use ringq::pb;
use xxhash_rust::xxh3::xxh3_128;

use super::TOPICS;
use crate::checker::history::{Nanos, Policy};

/// Least length of every body: an answer that is longer holds a job.
pub(crate) const BODY_MIN: usize = 200;

/// Retry policy of failing jobs: all their attempts are over in a second.
pub(super) const POLICY: Policy =
    Policy { initial: 100 * MS, factor: 2, longest: 300 * MS, jitter_percent: 30, attempts_max: 4 };
const MS: Nanos = 1_000_000;

/// Returns the client-chosen id of a job.
pub(super) fn id(job: u32) -> String {
    format!("job-{job}")
}

/// Returns the topic of a job.
pub(crate) fn topic(job: u32) -> &'static str {
    TOPICS[job as usize % TOPICS.len()]
}

/// Returns the group of a job: a third of the jobs have one.
pub(crate) fn group(job: u32) -> Option<&'static str> {
    [Some("a"), Some("b"), None, None, None, None][job as usize % 6]
}

/// Builds the body of a job, of varying length.
fn body(job: u32) -> Bytes {
    let hash = xxh3_128(&job.to_be_bytes()).to_be_bytes();
    let mut body = job.to_be_bytes().to_vec();
    while body.len() < BODY_MIN + job as usize % 16 * hash.len() {
        body.extend_from_slice(&hash);
    }
    body.into()
}

/// Returns the job of this body and whether the body is intact; `jobs`: number of jobs so far.
pub(super) fn read(payload: Option<&pb::Payload>, jobs: u32) -> Option<(u32, bool)> {
    let Some(pb::payload::Kind::Data(data)) = payload?.kind.as_ref() else { return None };
    let job = u32::from_be_bytes(*data.first_chunk()?);
    (job < jobs).then(|| (job, *data == body(job)))
}

/// Builds the job. It is never given up, except for a failing one: a rig must not mistake a dead letter for a loss.
pub(super) fn spec(job: u32, id: &str, delay: Duration, failing: bool) -> pb::JobSpec {
    pb::JobSpec {
        topic: topic(job).to_owned(),
        id: id.to_owned(),
        group: group(job).unwrap_or_default().to_owned(),
        payload: Some(pb::Payload {
            kind: Some(pb::payload::Kind::Data(body(job))),
            content_type: String::new(),
        }),
        schedule: (!delay.is_zero()).then(|| pb::job_spec::Schedule::Delay(proto(delay))),
        retry: Some(if failing { given_up() } else { never_given_up() }),
        ..Default::default()
    }
}

fn never_given_up() -> pb::RetryPolicy {
    pb::RetryPolicy {
        max_attempts: -1,
        max_deliveries: -1,
        initial_delay: Some(proto(Duration::from_millis(20))),
        multiplier: 1.0,
        ..Default::default()
    }
}

/// Converts [`POLICY`].
fn given_up() -> pb::RetryPolicy {
    pb::RetryPolicy {
        max_attempts: POLICY.attempts_max,
        max_deliveries: -1,
        initial_delay: Some(proto(Duration::from_nanos(POLICY.initial))),
        multiplier: POLICY.factor.into(),
        max_delay: Some(proto(Duration::from_nanos(POLICY.longest))),
        jitter: Some(f64::from(POLICY.jitter_percent) / 100.0),
        ..Default::default()
    }
}

fn proto(duration: Duration) -> prost_types::Duration {
    prost_types::Duration::try_from(duration).unwrap()
}
