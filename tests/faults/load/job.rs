//! The jobs: numbered, each with a body that names its number and only that number hashes to.

use std::time::Duration;

use bytes::Bytes;
use ringq::pb;
use xxhash_rust::xxh3::xxh3_128;

use super::TOPICS;

/// So long is every body at least: an answer that is longer holds a job.
pub(crate) const BODY_MIN: usize = 200;

/// The id of a job whose id the client chooses.
pub(super) fn id(job: u32) -> String {
    format!("job-{job}")
}

/// The topic of a job.
pub(crate) fn topic(job: u32) -> &'static str {
    TOPICS[job as usize % TOPICS.len()]
}

/// The body of a job, of varying length.
fn body(job: u32) -> Bytes {
    let hash = xxh3_128(&job.to_be_bytes()).to_be_bytes();
    let mut body = job.to_be_bytes().to_vec();
    while body.len() < BODY_MIN + job as usize % 16 * hash.len() {
        body.extend_from_slice(&hash);
    }
    body.into()
}

/// The job that this body names, and whether it is whole; of `jobs` that were asked for.
pub(super) fn read(payload: Option<&pb::Payload>, jobs: u32) -> Option<(u32, bool)> {
    let Some(pb::payload::Kind::Data(data)) = payload?.kind.as_ref() else { return None };
    let job = u32::from_be_bytes(*data.first_chunk()?);
    (job < jobs).then(|| (job, *data == body(job)))
}

/// The job. It is never given up: a rig must not mistake a dead letter for a loss.
pub(super) fn spec(job: u32, id: &str, delay: Duration) -> pb::JobSpec {
    let proto = |duration| prost_types::Duration::try_from(duration).unwrap();
    pb::JobSpec {
        topic: topic(job).to_owned(),
        id: id.to_owned(),
        payload: Some(pb::Payload {
            kind: Some(pb::payload::Kind::Data(body(job))),
            content_type: String::new(),
        }),
        schedule: (!delay.is_zero()).then(|| pb::job_spec::Schedule::Delay(proto(delay))),
        retry: Some(pb::RetryPolicy {
            max_attempts: -1,
            max_deliveries: -1,
            initial_delay: Some(proto(Duration::from_millis(20))),
            multiplier: 1.0,
            ..Default::default()
        }),
        ..Default::default()
    }
}
