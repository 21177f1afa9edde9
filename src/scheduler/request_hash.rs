//! Request of an enqueue: its request id and a hash of its content, by which stores recognize a repeat.

use xxhash_rust::xxh3::Xxh3;

use crate::domain::{Job, Spec, When, conflict};
use crate::store::codec;

use super::Draft;

/// Headers of a trace context: the server adds them, and tracing clients change them with each attempt of a call.
const TRACE_HEADERS: [&str; 2] = ["traceparent", "tracestate"];

/// Hash of several parts, each with its length. Records keep it as long as they live, so its content and method must
/// stay as they are.
struct ContentHash(Xxh3);

/// Returns the request of a draft, as stores keep it; `None` without a request id.
pub(super) fn request_code(draft: &Draft) -> Option<u64> {
    let request_id = draft.request_id.as_deref()?;
    Some(conflict::request_code(request_id, content_hash(draft)))
}

/// Returns the request of a copy of this job, which has ended and is moved to another shard.
pub(super) fn redrive_request_code(job: &Job) -> u64 {
    let mut content = ContentHash(Xxh3::new());
    content.add(job.key.topic.as_str().as_bytes());
    content.add(job.key.id.as_str().as_bytes());
    content.add_when(job.finish_time.map(When::At));
    content.0.digest()
}

/// Returns the request of the copy of this job in its crash topic. The same generation has the same request, so that a
/// move that is repeated recognizes its own copy.
pub(super) fn crash_request_code(job: &Job) -> u64 {
    let mut content = ContentHash(Xxh3::new());
    content.add(b"crash");
    content.add(job.key.topic.as_str().as_bytes());
    content.add(job.key.id.as_str().as_bytes());
    content.add(&job.generation.to_le_bytes());
    content.add_when(Some(When::At(job.create_time)));
    content.0.digest()
}

/// Hashes everything that makes the job: topic, id, spec, schedule and priority.
fn content_hash(draft: &Draft) -> u64 {
    let Draft { topic, id, request_id: _, spec, due, priority, expire, on_conflict: _ } = draft;
    let Spec { payload, headers, retry, lease, group, retention } = spec;
    let mut content = ContentHash(Xxh3::new());
    content.add(topic.as_str().as_bytes());
    content.add(id.as_ref().map_or("", |id| id.as_str()).as_bytes());
    match payload {
        None => content.add(b"-"),
        Some(payload) => {
            content.add(if payload.text { b"t" } else { b"d" });
            content.add(payload.content_type.as_bytes());
            content.add(&payload.body);
        }
    }
    content.add(&(without_trace_headers(headers).count() as u64).to_le_bytes());
    for (name, value) in without_trace_headers(headers) {
        content.add(name.as_bytes());
        content.add(value.as_bytes());
    }
    if retry.is_some() {
        let terms = Spec { retry: retry.clone(), ..Spec::default() };
        content.add(&codec::encode_spec(&terms).unwrap_or_default());
    }
    content.add_when(lease.map(When::After));
    content.add_when(retention.map(When::After));
    content.add_when(Some(*due));
    content.add_when(*expire);
    content.add(priority.as_slice());
    // Last, and only where there is one: requests without it keep the codes that older records have.
    if let Some(group) = group {
        content.add(group.as_str().as_bytes());
    }
    content.0.digest()
}

/// Returns the headers without the trace context.
pub(super) fn without_trace_headers(
    headers: &[(String, String)],
) -> impl Iterator<Item = &(String, String)> {
    headers.iter().filter(|(name, _)| !TRACE_HEADERS.contains(&&**name))
}

// === impl ContentHash ===

impl ContentHash {
    fn add(&mut self, part: &[u8]) {
        self.0.update(&(part.len() as u64).to_le_bytes());
        self.0.update(part);
    }

    fn add_when(&mut self, when: Option<When>) {
        match when {
            None => self.add(b""),
            Some(When::Now) => self.add(b"n"),
            Some(When::After(delay)) => self.add(&delay.as_nanos().to_le_bytes()),
            Some(When::At(time)) => self.add(&time.0.to_le_bytes()),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::domain::{GroupName, JobId, OnConflict, Payload, RetryOverrides, Time, TopicName};

    fn draft() -> Draft {
        Draft {
            topic: TopicName::stored("t"),
            id: Some(JobId::from_request_id("q", None)),
            request_id: Some("q".to_owned()),
            spec: Spec::default(),
            due: When::Now,
            priority: None,
            expire: None,
            on_conflict: OnConflict::Keep,
        }
    }

    fn header(name: &str, value: &str) -> (String, String) {
        (name.to_owned(), value.to_owned())
    }

    #[test]
    fn whatever_makes_another_job_makes_another_request() {
        type DraftChange = fn(&mut Draft);
        let payload = |body: &'static [u8], text| {
            Some(Payload { text, body: body.into(), content_type: String::new() })
        };
        let changes: [DraftChange; 15] = [
            |_| (),
            |d| d.topic = TopicName::stored("u"),
            |d| d.id = Some(JobId::stored("mine")),
            |d| d.spec.headers = vec![header("a", "bc")],
            |d| d.spec.headers = vec![header("ab", "c")],
            |d| {
                d.spec.retry =
                    RetryOverrides { max_attempts: Some(3), ..Default::default() }.boxed()
            },
            |d| d.spec.lease = Some(Duration::from_secs(1)),
            |d| d.spec.group = GroupName::stored("g"),
            |d| d.spec.retention = Some(Duration::from_secs(1)),
            |d| d.due = When::After(Duration::from_secs(1)),
            |d| d.due = When::At(Time(1_000_000_000)),
            |d| d.expire = Some(When::After(Duration::from_secs(1))),
            |d| d.priority = Some(0),
            |d| d.priority = Some(1),
            |d| d.request_id = Some("other".to_owned()),
        ];
        let mut requests: Vec<_> = changes
            .iter()
            .map(|change| {
                let mut draft = draft();
                change(&mut draft);
                request_code(&draft).unwrap()
            })
            .collect();
        for payload in [payload(b"", true), payload(b"", false), payload(b"x", true)] {
            let spec = Spec { payload, ..Spec::default() };
            requests.push(request_code(&Draft { spec, ..draft() }).unwrap());
        }
        let count = requests.len();
        requests.sort_unstable();
        requests.dedup();
        assert_eq!(requests.len(), count);
    }

    /// A repeat may have another policy or another trace, and records are older than this build.
    #[test]
    fn a_repeat_has_the_same_request_for_ever() {
        assert_eq!(request_code(&Draft { request_id: None, ..draft() }), None);
        let traced = Spec {
            headers: vec![header("traceparent", "00-1"), header("tracestate", "s=1")],
            ..Spec::default()
        };
        let repeat = Draft { on_conflict: OnConflict::Replace, spec: traced, ..draft() };
        assert_eq!(request_code(&repeat), request_code(&draft()));
        assert_eq!(request_code(&draft()), Some(17_453_812_990_577_672_718));
    }
}
