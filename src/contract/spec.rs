//! Job specs: from a producer, or from a worker for a follow-up.

use std::collections::HashMap;

use crate::domain::{JobId, OnConflict, Spec, Time, When, limit};
use crate::pb;
use crate::scheduler::Draft;
use crate::trace::{TRACEPARENT, TRACESTATE, TraceHeaders};

use super::time::{self, LEASE, RETENTION};
use super::{Checks, FieldPath, names, payload, retry, schedule};

/// Context in which a spec is read.
#[derive(Clone, Copy, Debug)]
pub(crate) struct SpecContext<'a> {
    /// Time of the server's clock.
    pub(crate) now: Time,
    /// Trace context of the call, for jobs that have none of their own.
    pub(crate) trace: Option<TraceHeaders<'a>>,
}

/// Terms of an enqueue: the parameters of the call beside the spec.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct EnqueueTerms<'a> {
    /// Conflict policy for an id that is taken.
    pub(crate) on_conflict: OnConflict,
    /// Request id of the call.
    pub(crate) request_id: Option<&'a str>,
    /// Index of the job in its batch.
    pub(crate) index: Option<usize>,
}

/// Reads a spec as a draft for the scheduler; `None` when a part of it was refused.
pub(crate) fn draft(
    checks: &mut Checks,
    path: FieldPath<'_>,
    spec: pb::JobSpec,
    terms: EnqueueTerms<'_>,
    context: SpecContext<'_>,
) -> Option<Draft> {
    let pb::JobSpec {
        topic,
        id,
        payload,
        headers,
        schedule,
        priority,
        retry,
        lease_duration,
        expiration,
        retention,
        http_target,
        group,
    } = spec;
    refuse_features(checks, path, http_target.as_ref());
    let topic = names::topic(checks, path.field("topic"), &topic);
    let due = schedule::due(checks, path, schedule.map(Into::into), context.now);
    let due = due.unwrap_or(When::Now);
    let (lease_at, retention_at) = (path.field("lease_duration"), path.field("retention"));
    Some(Draft {
        id: self::id(checks, path.field("id"), &id, terms),
        request_id: terms.request_id.map(str::to_owned),
        priority: self::priority(checks, path.field("priority"), priority),
        expire: schedule::expiration(checks, path, expiration, due, context.now),
        due,
        on_conflict: terms.on_conflict,
        spec: Spec {
            payload: payload::payload(checks, path.field("payload"), payload),
            headers: self::headers(checks, path.field("headers"), headers, context.trace),
            retry: retry.and_then(|given| {
                retry::retry(checks, path.field("retry"), Some(given), topic.as_ref()).boxed()
            }),
            lease: time::duration(checks, lease_at, lease_duration.as_ref(), &LEASE),
            group: names::group(checks, path.field("group"), &group),
            retention: time::duration(checks, retention_at, retention.as_ref(), &RETENTION),
        },
        topic: topic?,
    })
}

/// Refuses the fields whose features this server does not have: if they were ignored, a promise would be broken.
fn refuse_features(checks: &mut Checks, path: FieldPath<'_>, http_target: Option<&pb::HttpTarget>) {
    if http_target.is_some() {
        checks.unsupported(path.field("http_target"), "http_dispatch");
    }
}

/// Returns the id that the client chose, or the one derived from its request id.
fn id(
    checks: &mut Checks,
    path: FieldPath<'_>,
    given: &str,
    terms: EnqueueTerms<'_>,
) -> Option<JobId> {
    match (given, terms.request_id) {
        ("", None) => None,
        ("", Some(request_id)) => Some(JobId::from_request_id(request_id, terms.index)),
        (given, request_id) => names::new_id(checks, path, given, request_id),
    }
}

/// Reads a priority, if there is one.
pub(crate) fn priority(checks: &mut Checks, path: FieldPath<'_>, given: Option<i32>) -> Option<u8> {
    let given = given?;
    let priority = u8::try_from(given).ok().filter(|&p| p <= limit::PRIORITY_MAX);
    if priority.is_none() {
        checks.invalid(path, format!("must be 0 to {}", limit::PRIORITY_MAX));
    }
    priority
}

/// Returns headers sorted by name, with the trace of the call when they have none. The trace does not count towards
/// their size: the client did not send it with them.
fn headers(
    checks: &mut Checks,
    path: FieldPath<'_>,
    given: HashMap<String, String>,
    trace: Option<TraceHeaders<'_>>,
) -> Vec<(String, String)> {
    let bytes = given.iter().map(|(name, value)| name.len() + value.len()).sum();
    checks.at_most_bytes(path, bytes, limit::HEADERS_BYTES_MAX);
    if given.contains_key("") {
        checks.invalid(path, "must not have an empty name");
    }
    // Workers may read names of headers without regard to case.
    let has_trace = given.keys().any(|name| name.eq_ignore_ascii_case(TRACEPARENT));
    let trace = trace.filter(|_| !has_trace);
    let mut headers: Vec<_> = given.into_iter().collect();
    if let Some(TraceHeaders { parent, state }) = trace {
        headers.retain(|(name, _)| !name.eq_ignore_ascii_case(TRACESTATE));
        headers.push((TRACEPARENT.into(), parent.into()));
        if !state.is_empty() {
            headers.push((TRACESTATE.into(), state.into()));
        }
    }
    headers.sort_unstable();
    headers
}

#[cfg(test)]
mod tests {
    use super::super::tests::refused;
    use super::*;
    use prost_types::Duration;

    const CONTEXT: SpecContext<'static> =
        SpecContext { now: Time(1_800_000_000_000_000), trace: None };

    fn convert(
        spec: pb::JobSpec,
        terms: EnqueueTerms<'_>,
        context: SpecContext<'_>,
    ) -> Result<Draft, super::super::InvalidRequest> {
        let mut checks = Checks::default();
        let draft = draft(&mut checks, FieldPath::ROOT.field("job"), spec, terms, context);
        checks.finish(draft)
    }

    fn spec() -> pb::JobSpec {
        pb::JobSpec { topic: "t".into(), ..Default::default() }
    }

    #[test]
    fn every_field_has_its_rule() {
        type SetSpecField = fn(&mut pb::JobSpec);
        let invalid = "INVALID_FIELD";
        let cases: [(SetSpecField, &[(&str, &str)]); 18] = [
            (|_| (), &[]),
            (|s| s.topic.clear(), &[("job.topic", invalid)]),
            (|s| s.id = "a b".into(), &[("job.id", invalid)]),
            (|s| s.priority = Some(9), &[]),
            (|s| s.priority = Some(10), &[("job.priority", invalid)]),
            (|s| s.priority = Some(-1), &[("job.priority", invalid)]),
            (|s| s.group = "tenant:7@example.com".into(), &[]),
            (|s| s.group = "g".repeat(65), &[("job.group", invalid)]),
            (|s| s.group = "a/b".into(), &[("job.group", invalid)]),
            (
                |s| s.http_target = Some(pb::HttpTarget::default()),
                &[("job.http_target", "FEATURE_UNSUPPORTED")],
            ),
            (
                |s| s.lease_duration = Some(Duration { seconds: 0, nanos: 1 }),
                &[("job.lease_duration", invalid)],
            ),
            (
                |s| s.retention = Some(Duration { seconds: 367 * 86_400, nanos: 0 }),
                &[("job.retention", invalid)],
            ),
            (|s| s.headers = [(String::new(), "v".into())].into(), &[("job.headers", invalid)]),
            (|s| s.headers = [("k".repeat(4096), "v".repeat(4096))].into(), &[]),
            (
                |s| s.headers = [("k".repeat(4096), "v".repeat(4097))].into(),
                &[("job.headers", "TOO_LARGE")],
            ),
            (
                |s| {
                    s.schedule =
                        Some(pb::job_spec::Schedule::Delay(Duration { seconds: -1, nanos: 0 }))
                },
                &[("job.delay", invalid)],
            ),
            (
                |s| s.expiration = Some(pb::job_spec::Expiration::Ttl(Duration::default())),
                &[("job.ttl", invalid)],
            ),
            (
                |s| {
                    s.topic = "ringq.x".into();
                    s.retry = Some(pb::RetryPolicy {
                        delays: vec![Duration { seconds: -1, nanos: 0 }],
                        ..Default::default()
                    });
                },
                &[("job.topic", invalid), ("job.retry.delays[0]", invalid)],
            ),
        ];
        for (set, expected) in cases {
            let mut spec = spec();
            set(&mut spec);
            let found = refused(convert(spec.clone(), EnqueueTerms::default(), CONTEXT));
            let found: Vec<_> = found.iter().map(|(field, r)| (field.as_str(), *r)).collect();
            assert_eq!(found, expected, "{spec:?}");
        }
    }

    #[test]
    fn ids_are_chosen_or_follow_from_the_request_or_are_left_to_the_server() {
        let cases = [
            ("", None, None, None),
            ("mine", None, None, Some("mine")),
            ("mine", Some("r1"), None, Some("mine")),
            ("", Some("r1"), None, Some("r=r1")),
            ("", Some("r1"), Some(3), Some("r=r1=3")),
            ("r=r1=3", Some("r1"), Some(0), Some("r=r1=3")),
        ];
        for (id, request_id, index, expected) in cases {
            let terms = EnqueueTerms { request_id, index, ..EnqueueTerms::default() };
            let draft = convert(pb::JobSpec { id: id.into(), ..spec() }, terms, CONTEXT).unwrap();
            assert_eq!(draft.id.as_ref().map(JobId::as_str), expected);
            assert_eq!(draft.request_id.as_deref(), request_id);
        }
    }

    #[test]
    fn the_callers_trace_is_added_and_never_changes_a_given_one() {
        let trace = Some(TraceHeaders { parent: "00-caller", state: "s=1" });
        let traced = |headers: &[(&str, &str)]| {
            let given = headers.iter().map(|(k, v)| ((*k).to_owned(), (*v).to_owned())).collect();
            let spec = pb::JobSpec { headers: given, ..spec() };
            convert(spec, EnqueueTerms::default(), SpecContext { trace, ..CONTEXT })
                .unwrap()
                .spec
                .headers
        };
        let own = |k: &str, v: &str| (k.to_owned(), v.to_owned());
        assert_eq!(
            traced(&[("a", "b")]),
            [own("a", "b"), own("traceparent", "00-caller"), own("tracestate", "s=1")]
        );
        assert_eq!(traced(&[("traceparent", "00-mine")]), [own("traceparent", "00-mine")]);
        assert_eq!(traced(&[("Traceparent", "00-mine")]), [own("Traceparent", "00-mine")]);
    }
}
