//! Forbidden values of a job.

use ringq::pb::job_spec::{Expiration, Schedule};
use ringq::pb::payload::Kind;
use ringq::pb::{EnqueueRequest, HttpTarget, JobSpec, Payload, RetryPolicy};

use super::{Call, DAY, FEATURE, INVALID, LARGE, Row, YEAR, at, long, span};
use crate::harness::{Client, job, millis, request, timestamp, wall_now};

pub(super) fn rows() -> Vec<Vec<Row>> {
    vec![names(), contents(), due_times(), runs(), expiries(), retries(), groups(), features()]
}

fn names() -> Vec<Row> {
    let id = |id: &str| request(job("t").with_id(id));
    vec![
        row!("no job", queue.enqueue(EnqueueRequest::default()), INVALID "job"),
        row!("no topic", queue.enqueue(request(job(""))), INVALID "job.topic"),
        row!("a space", queue.enqueue(request(job("a b"))), INVALID "job.topic"),
        row!("a first dot", queue.enqueue(request(job(".a"))), INVALID "job.topic"),
        row!("a slash", queue.enqueue(request(job("a/b"))), INVALID "job.topic"),
        row!("a glob", queue.enqueue(request(job("a.*"))), INVALID "job.topic"),
        row!("an umlaut", queue.enqueue(request(job("a\u{e4}"))), INVALID "job.topic"),
        row!("a long topic", queue.enqueue(request(job(&long(129)))), INVALID "job.topic"),
        row!("a reserved topic", queue.enqueue(request(job("ringq.x"))), INVALID "job.topic"),
        row!("a space", queue.enqueue(id("a b")), INVALID "job.id"),
        row!("a slash", queue.enqueue(id("a/b")), INVALID "job.id"),
        row!("a tilde", queue.enqueue(id("a~b")), INVALID "job.id"),
        row!("no made id", queue.enqueue(id("s0~0123")), INVALID "job.id"),
        row!("a long id", queue.enqueue(id(&long(129))), INVALID "job.id"),
        row!(
            "two mistakes",
            queue.enqueue(request(job("a b").with_priority(77))),
            INVALID "job.topic,job.priority"
        ),
    ]
}

fn contents() -> Vec<Row> {
    let payload = |kind, content_type: &str| {
        let content_type = content_type.to_owned();
        request(JobSpec { payload: Some(Payload { kind, content_type }), ..job("t") })
    };
    let wide = |bytes: usize| request(job("t").with_header("k", long(bytes - 1)));
    vec![
        row!(
            "a payload above 1 MiB",
            queue.enqueue(payload(Some(Kind::Data(vec![0; (1 << 20) + 1].into())), "")),
            LARGE "job.payload"
        ),
        row!(
            "a text above 1 MiB",
            queue.enqueue(payload(Some(Kind::Text(long((1 << 20) + 1))), "")),
            LARGE "job.payload"
        ),
        row!(
            "a content type above 255 bytes",
            queue.enqueue(payload(None, &long(256))),
            LARGE "job.payload.content_type"
        ),
        row!("headers above 8 KiB", queue.enqueue(wide((8 << 10) + 1)), LARGE "job.headers"),
    ]
}

fn due_times() -> Vec<Row> {
    let due = |schedule| request(JobSpec { schedule: Some(schedule), ..job("t") });
    vec![
        row!(
            "a delay above ten years",
            queue.enqueue(due(Schedule::Delay(span(10 * YEAR + 1, 0)))),
            INVALID "job.delay"
        ),
        row!(
            "a negative delay",
            queue.enqueue(due(Schedule::Delay(span(-1, 0)))),
            INVALID "job.delay"
        ),
        row!(
            "a delay that is none",
            queue.enqueue(due(Schedule::Delay(span(1, 1_000_000_000)))),
            INVALID "job.delay"
        ),
        row!(
            "a due time beyond ten years",
            queue.enqueue(due(Schedule::DueTime(at(9_000_000_000)))),
            INVALID "job.due_time"
        ),
        row!(
            "a due time that is none",
            queue.enqueue(due(Schedule::DueTime(prost_types::Timestamp {
                seconds: 1,
                nanos: -1
            }))),
            INVALID "job.due_time"
        ),
    ]
}

/// Rows about the run of a job and its retention.
fn runs() -> Vec<Row> {
    vec![
        row!("priority 10", queue.enqueue(request(job("t").with_priority(10))), INVALID "job.priority"),
        row!("priority -1", queue.enqueue(request(job("t").with_priority(-1))), INVALID "job.priority"),
        row!(
            "a lease below 1 s",
            queue.enqueue(request(job("t").with_lease(millis(999)))),
            INVALID "job.lease_duration"
        ),
        row!(
            "a lease above 24 h",
            queue.enqueue(request(JobSpec { lease_duration: Some(span(DAY + 1, 0)), ..job("t") })),
            INVALID "job.lease_duration"
        ),
        row!(
            "a retention above 366 days",
            queue.enqueue(request(JobSpec { retention: Some(span(YEAR + 1, 0)), ..job("t") })),
            INVALID "job.retention"
        ),
    ]
}

fn expiries() -> Vec<Row> {
    let far = timestamp(wall_now() + millis(3_600_000));
    vec![
        row!(
            "a ttl that ends before the job is due",
            queue.enqueue(request(job("t").with_delay(millis(1_000)).with_ttl(millis(1_000)))),
            INVALID "job.ttl"
        ),
        row!("a ttl of nothing", queue.enqueue(request(job("t").with_ttl(millis(0)))), INVALID "job.ttl"),
        row!(
            "an expire time that has passed",
            queue.enqueue(request(JobSpec {
                expiration: Some(Expiration::ExpireTime(at(1))),
                ..job("t")
            })),
            INVALID "job.expire_time"
        ),
        row!(
            "an expire time before the due time",
            queue.enqueue(request(JobSpec {
                schedule: Some(Schedule::DueTime(far)),
                expiration: Some(Expiration::ExpireTime(far)),
                ..job("t")
            })),
            INVALID "job.expire_time"
        ),
    ]
}

fn retries() -> Vec<Row> {
    let retry = |retry: RetryPolicy| request(job("t").with_retry(retry));
    let none = RetryPolicy::default;
    let delays = |delays| retry(RetryPolicy { delays, ..none() });
    vec![
        row!(
            "below -1",
            queue.enqueue(retry(RetryPolicy { max_attempts: -2, ..none() })),
            INVALID "job.retry.max_attempts"
        ),
        row!(
            "below -1",
            queue.enqueue(retry(RetryPolicy { max_deliveries: -2, ..none() })),
            INVALID "job.retry.max_deliveries"
        ),
        row!(
            "a negative number of crashes",
            queue.enqueue(retry(RetryPolicy { max_crashes: -2, ..none() })),
            INVALID "job.retry.max_crashes"
        ),
        row!(
            "a bad name of a crash topic",
            queue.enqueue(retry(RetryPolicy { crash_topic: "a b".into(), ..none() })),
            INVALID "job.retry.crash_topic"
        ),
        row!("101 delays", queue.enqueue(delays(vec![span(1, 0); 101])), LARGE "job.retry.delays"),
        row!(
            "a negative delay",
            queue.enqueue(delays(vec![span(1, 0), span(1, 0), span(-1, 0)])),
            INVALID "job.retry.delays[2]"
        ),
        row!(
            "a negative first delay",
            queue.enqueue(retry(RetryPolicy { initial_delay: Some(span(-1, 0)), ..none() })),
            INVALID "job.retry.initial_delay"
        ),
        row!(
            "a negative cap",
            queue.enqueue(retry(RetryPolicy { max_delay: Some(span(-1, 0)), ..none() })),
            INVALID "job.retry.max_delay"
        ),
        row!(
            "a shrinking wait",
            queue.enqueue(retry(RetryPolicy { multiplier: 0.9, ..none() })),
            INVALID "job.retry.multiplier"
        ),
        row!(
            "no number",
            queue.enqueue(retry(RetryPolicy { multiplier: f64::NAN, ..none() })),
            INVALID "job.retry.multiplier"
        ),
        row!(
            "more than all",
            queue.enqueue(retry(RetryPolicy { jitter: Some(1.01), ..none() })),
            INVALID "job.retry.jitter"
        ),
        row!(
            "less than none",
            queue.enqueue(retry(RetryPolicy { jitter: Some(-0.01), ..none() })),
            INVALID "job.retry.jitter"
        ),
        row!(
            "a negative end",
            queue.enqueue(retry(RetryPolicy { max_retry_duration: Some(span(-1, 0)), ..none() })),
            INVALID "job.retry.max_retry_duration"
        ),
    ]
}

fn groups() -> Vec<Row> {
    let of = |group: &str| request(JobSpec { group: group.into(), ..job("t") });
    vec![
        row!("a group with a space", queue.enqueue(of("a b")), INVALID "job.group"),
        row!("a long group", queue.enqueue(of(&"g".repeat(65))), INVALID "job.group"),
    ]
}

fn features() -> Vec<Row> {
    let target = HttpTarget { url: "https://example.com".into(), ..Default::default() };
    vec![row!(
        "an http target",
        queue.enqueue(request(JobSpec { http_target: Some(target), ..job("t") })),
        FEATURE "job.http_target"
    )]
}
