//! Stream and Pull requests of a worker.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::time::Duration;

use crate::dispatch::{PullOptions, StreamOptions};
use crate::domain::{TopicPattern, limit};
use crate::pb;

use super::metadata::Caller;
use super::number::{capped, or_zero, to_int32, to_int64};
use super::time::{self, ANY, DELAY, LEASE, POSITIVE};
use super::{Checks, FieldPath, InvalidRequest, names};

/// Reads a Stream request: the options, and the settings in effect for its worker.
pub(crate) fn stream(
    request: pb::StreamRequest,
    caller: Caller,
) -> Result<(StreamOptions, pb::StreamInfo), InvalidRequest> {
    let (mut checks, root) = (Checks::default(), FieldPath::ROOT);
    let c = &mut checks;
    let pb::StreamRequest {
        topics,
        max_in_flight,
        worker_id,
        lease_duration,
        max_batch,
        heartbeat_interval,
        max_jobs,
        idle_timeout,
        orphan_grace,
        topic_weights,
        max_in_flight_bytes,
        continues_stream_id,
    } = request;
    let lease = lease(c, lease_duration.as_ref());
    let (idle, grace) = (root.field("idle_timeout"), root.field("orphan_grace"));
    let options = StreamOptions {
        topic_weights: self::topic_weights(c, &topics, &topic_weights),
        topics: self::topics(c, &topics),
        max_in_flight: capped(
            c,
            root.field("max_in_flight"),
            max_in_flight,
            limit::STREAM_CREDIT_DEFAULT,
            limit::STREAM_CREDIT_MAX,
        ),
        max_in_flight_bytes: or_zero(
            c,
            root.field("max_in_flight_bytes"),
            max_in_flight_bytes,
            "the server's default",
        )
        .unwrap_or(limit::STREAM_BYTES_DEFAULT),
        max_batch: capped(
            c,
            root.field("max_batch"),
            max_batch,
            limit::STREAM_BATCH_DEFAULT,
            limit::STREAM_BATCH_MAX,
        ),
        lease: lease.unwrap_or(limit::STREAM_LEASE_DEFAULT),
        names_lease: lease.is_some(),
        heartbeat: heartbeat(c, heartbeat_interval.as_ref()),
        max_jobs: or_zero(c, root.field("max_jobs"), max_jobs, "no limit"),
        idle_timeout: time::duration(c, idle, idle_timeout.as_ref(), &POSITIVE),
        orphan_grace: time::duration(c, grace, orphan_grace.as_ref(), &DELAY)
            .unwrap_or(limit::ORPHAN_GRACE_DEFAULT),
        worker_id: self::worker_id(c, worker_id),
        identity: None,
        // A worker must always be able to reconnect: an invalid stream id counts as the id of an unknown stream.
        continues: continues_stream_id.parse().ok(),
        peer: caller.peer,
        user_agent: caller.user_agent,
    };
    let info = to_stream_info(&options, lease);
    checks.finish(Some((options, info)))
}

/// Reads a Pull request; `left` is the time until the deadline of its call, if it has one.
pub(crate) fn pull(
    request: pb::PullRequest,
    caller: Caller,
    left: Option<Duration>,
) -> Result<PullOptions, InvalidRequest> {
    let (mut checks, root) = (Checks::default(), FieldPath::ROOT);
    let c = &mut checks;
    let pb::PullRequest { topics, max_jobs, worker_id, lease_duration, wait } = request;
    let wait = time::duration(c, root.field("wait"), wait.as_ref(), &ANY);
    let wait = wait.unwrap_or(limit::PULL_WAIT_DEFAULT).min(limit::PULL_WAIT_MAX);
    let left = left.map_or(Duration::MAX, |left| left.saturating_sub(limit::PULL_DEADLINE_MARGIN));
    let lease = lease(c, lease_duration.as_ref());
    let options = PullOptions {
        topics: self::topics(c, &topics),
        max_jobs: capped(c, root.field("max_jobs"), max_jobs, 1, limit::PULL_JOBS_MAX),
        lease: lease.unwrap_or(limit::PULL_LEASE_DEFAULT),
        names_lease: lease.is_some(),
        worker_id: self::worker_id(c, worker_id),
        wait: wait.min(left),
        peer: caller.peer,
        user_agent: caller.user_agent,
    };
    checks.finish(Some(options))
}

fn topics(checks: &mut Checks, given: &[String]) -> Vec<TopicPattern> {
    let root = FieldPath::ROOT;
    checks.between_one_and(root.field("topics"), given.len(), limit::STREAM_TOPICS_MAX);
    let patterns = given.iter().take(limit::STREAM_TOPICS_MAX).enumerate();
    let pattern = |(index, given): (usize, &String)| {
        names::topic_pattern(checks, root.item("topics", index), given)
    };
    patterns.filter_map(pattern).collect()
}

/// Reads the weights of topics, each under the exact text of one of the topics. Returns the weight of each topic; none if
/// all have the same: then they are served in equal turns.
fn topic_weights(
    checks: &mut Checks,
    topics: &[String],
    given: &HashMap<String, i32>,
) -> Vec<(TopicPattern, u32)> {
    const MAX: u32 = limit::TOPIC_WEIGHT_MAX;
    let root = FieldPath::ROOT;
    if given.len() > topics.len() {
        let text = format!("must have at most one entry for each of the {} topics", topics.len());
        checks.invalid(root.field("topic_weights"), text);
        return Vec::new();
    }
    for (topic, weight) in given.iter().collect::<BTreeMap<_, _>>() {
        let path = root.entry("topic_weights", topic);
        if !topics.contains(topic) {
            checks
                .invalid(path, "must be one of the topics of the request, as it is written there");
        } else if !u32::try_from(*weight).is_ok_and(|weight| (1..=MAX).contains(&weight)) {
            checks.invalid(path, format!("must be 1 to {MAX}"));
        }
    }
    let weight =
        |topic: &String| given.get(topic).and_then(|w| u32::try_from(*w).ok()).unwrap_or(1);
    if topics.windows(2).all(|pair| weight(&pair[0]) == weight(&pair[1])) {
        return Vec::new();
    }
    let patterns = topics.iter().take(limit::STREAM_TOPICS_MAX);
    patterns.filter_map(|topic| Some((TopicPattern::parse(topic).ok()?, weight(topic)))).collect()
}

fn lease(checks: &mut Checks, given: Option<&prost_types::Duration>) -> Option<Duration> {
    time::duration(checks, FieldPath::ROOT.field("lease_duration"), given, &LEASE)
}

/// Reads the heartbeat interval. A longer one is shortened; a shorter one is refused, because the worker would take
/// the time between two heartbeats of the server for a dead stream.
fn heartbeat(checks: &mut Checks, given: Option<&prost_types::Duration>) -> Duration {
    let path = FieldPath::ROOT.field("heartbeat_interval");
    let heartbeat = time::duration(checks, path, given, &ANY).unwrap_or(limit::HEARTBEAT_DEFAULT);
    if heartbeat < limit::HEARTBEAT_MIN {
        checks.invalid(path, "must be 1s to 1h");
    }
    heartbeat.min(limit::HEARTBEAT_MAX)
}

fn worker_id(checks: &mut Checks, given: String) -> Arc<str> {
    let path = FieldPath::ROOT.field("worker_id");
    checks.at_most_bytes(path, given.len(), limit::WORKER_ID_BYTES_MAX);
    given.into()
}

/// Returns the settings in effect; the server and the stream id are added when the stream is open.
fn to_stream_info(options: &StreamOptions, lease: Option<Duration>) -> pb::StreamInfo {
    pb::StreamInfo {
        stream_id: String::new(),
        replica: String::new(),
        max_in_flight: to_int32(options.max_in_flight),
        heartbeat_interval: Some(time::to_duration(options.heartbeat)),
        server_time: None,
        orphan_grace: Some(time::to_duration(options.orphan_grace)),
        lease_duration: lease.map(time::to_duration),
        max_batch: to_int32(options.max_batch),
        max_in_flight_bytes: to_int64(options.max_in_flight_bytes),
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::refused;
    use super::*;
    use crate::domain::{StreamId, TopicName};

    fn span(seconds: i64) -> Option<prost_types::Duration> {
        Some(prost_types::Duration { seconds, nanos: 0 })
    }

    fn request() -> pb::StreamRequest {
        pb::StreamRequest { topics: vec!["t".into()], ..Default::default() }
    }

    fn open(request: pb::StreamRequest) -> Result<(StreamOptions, pb::StreamInfo), InvalidRequest> {
        stream(request, Caller::default())
    }

    #[test]
    fn every_field_of_a_stream_has_its_rule() {
        type SetStreamField = fn(&mut pb::StreamRequest);
        let cases: [(SetStreamField, &[&str]); 23] = [
            (|_| (), &[]),
            (|r| r.topics.clear(), &["topics INVALID_FIELD"]),
            (|r| r.topics = vec!["t".into(); 64], &[]),
            (|r| r.topics = vec!["t".into(); 65], &["topics TOO_LARGE"]),
            (|r| r.topics.push("a b".into()), &["topics[1] INVALID_FIELD"]),
            (|r| r.topics.push("a.*.b".into()), &["topics[1] INVALID_FIELD"]),
            (|r| r.topics.push("**".into()), &["topics[1] INVALID_FIELD"]),
            (|r| r.max_in_flight = -1, &["max_in_flight INVALID_FIELD"]),
            (|r| r.max_batch = -1, &["max_batch INVALID_FIELD"]),
            (|r| r.max_jobs = -1, &["max_jobs INVALID_FIELD"]),
            (|r| r.max_in_flight_bytes = -1, &["max_in_flight_bytes INVALID_FIELD"]),
            (|r| r.lease_duration = span(0), &["lease_duration INVALID_FIELD"]),
            (|r| r.heartbeat_interval = span(0), &["heartbeat_interval INVALID_FIELD"]),
            (|r| r.heartbeat_interval = span(-1), &["heartbeat_interval INVALID_FIELD"]),
            (|r| r.idle_timeout = span(0), &["idle_timeout INVALID_FIELD"]),
            (|r| r.orphan_grace = span(-1), &["orphan_grace INVALID_FIELD"]),
            (|r| r.worker_id = "w".repeat(129), &["worker_id TOO_LARGE"]),
            (|r| r.topic_weights = weights(&[("t", 1)]), &[]),
            (|r| r.topic_weights = weights(&[("t", 100)]), &[]),
            (|r| r.topic_weights = weights(&[("t", 0)]), &["topic_weights[t] INVALID_FIELD"]),
            (|r| r.topic_weights = weights(&[("t", 101)]), &["topic_weights[t] INVALID_FIELD"]),
            (|r| r.topic_weights = weights(&[("t*", 1)]), &["topic_weights[t*] INVALID_FIELD"]),
            (
                |r| r.topic_weights = weights(&[("t", 1), ("u", 1)]),
                &["topic_weights INVALID_FIELD"],
            ),
        ];
        for (set, expected) in cases {
            let mut request = request();
            set(&mut request);
            let found = refused(open(request.clone()));
            let found: Vec<_> = found.iter().map(|(f, r)| format!("{f} {r}")).collect();
            assert_eq!(found, expected, "{request:?}");
        }
    }

    fn weights(of: &[(&str, i32)]) -> HashMap<String, i32> {
        of.iter().map(|(topic, weight)| ((*topic).to_owned(), *weight)).collect()
    }

    #[test]
    fn weights_of_topics_are_kept_where_they_differ() {
        let read = |given: &[(&str, i32)]| {
            let topics = vec!["a".into(), "b.*".into()];
            let topic_weights = weights(given);
            let request = pb::StreamRequest { topics, topic_weights, ..Default::default() };
            let (options, _) = open(request).unwrap();
            let weights = options.topic_weights.into_iter();
            weights.map(|(topic, weight)| format!("{topic}={weight}")).collect::<Vec<_>>()
        };
        assert_eq!(read(&[("b.*", 7)]), ["a=1", "b.*=7"]);
        assert_eq!(read(&[("b.*", 7), ("a", 2)]), ["a=2", "b.*=7"]);
        let equal: [&[(&str, i32)]; 4] =
            [&[], &[("a", 1)], &[("a", 1), ("b.*", 1)], &[("a", 9), ("b.*", 9)]];
        assert!(equal.into_iter().all(|given| read(given).is_empty()));
    }

    #[test]
    fn stream_info_reports_defaults_and_caps() {
        let (options, info) = open(request()).unwrap();
        assert_eq!((options.max_in_flight, options.max_batch, options.max_jobs), (1, 64, None));
        assert_eq!(options.lease, Duration::from_secs(30 * 60));
        assert_eq!(options.idle_timeout, None);
        assert_eq!(info.heartbeat_interval, span(20));
        assert_eq!(info.orphan_grace, span(5));
        assert_eq!(info.lease_duration, None);
        assert_eq!(info.max_in_flight_bytes, 64 << 20);
        let much = pb::StreamRequest {
            max_in_flight: i32::MAX,
            max_batch: i32::MAX,
            heartbeat_interval: span(7_200),
            lease_duration: span(60),
            orphan_grace: span(0),
            max_jobs: 1,
            ..request()
        };
        let (options, info) = open(much).unwrap();
        assert_eq!((info.max_in_flight, info.max_batch), (10_000, 1_000));
        assert_eq!((info.heartbeat_interval, info.lease_duration), (span(3_600), span(60)));
        assert_eq!((options.orphan_grace, options.max_jobs), (Duration::ZERO, Some(1)));
    }

    #[test]
    fn a_stream_continues_one_that_it_names_or_none() {
        for (id, expected) in [
            ("00000007-9", Some(StreamId { owner: 7, stream: 9 })),
            ("", None),
            ("7", None),
            (&"x".repeat(100_000), None),
        ] {
            let request = pb::StreamRequest { continues_stream_id: id.to_owned(), ..request() };
            assert_eq!(open(request).unwrap().0.continues, expected);
        }
    }

    #[test]
    fn topics_are_names_or_prefixes() {
        let topics = vec!["a".into(), "billing.*".into(), "b*".into(), "*".into()];
        let (options, _) = open(pb::StreamRequest { topics, ..Default::default() }).unwrap();
        let prefix = |text: &str| TopicPattern::Prefix(text.into());
        let exact = TopicPattern::Exact(TopicName::stored("a"));
        assert_eq!(options.topics, [exact, prefix("billing."), prefix("b"), prefix("")]);
    }

    #[test]
    fn a_pull_waits_within_its_limits_and_its_deadline() {
        let secs = Duration::from_secs;
        let cases = [
            (None, None, secs(10)),
            (span(0), None, secs(0)),
            (span(3600), None, secs(60)),
            (span(30), Some(secs(5)), Duration::from_millis(4_800)),
            (span(1), Some(secs(5)), secs(1)),
            (None, Some(Duration::from_millis(100)), secs(0)),
        ];
        for (wait, left, expected) in cases {
            let request = pb::PullRequest { topics: vec!["t".into()], wait, ..Default::default() };
            let options = pull(request, Caller::default(), left).unwrap();
            assert_eq!(options.wait, expected, "{wait:?} {left:?}");
            assert_eq!(options.lease, secs(30), "no stream shows that its worker lives");
        }
    }

    #[test]
    fn every_field_of_a_pull_has_its_rule() {
        type SetPullField = fn(&mut pb::PullRequest);
        let cases: [(SetPullField, Result<u32, &str>); 6] = [
            (|_| (), Ok(1)),
            (|r| r.max_jobs = 1_000, Ok(256)),
            (|r| r.max_jobs = -1, Err("max_jobs")),
            (|r| r.wait = span(-1), Err("wait")),
            (|r| r.lease_duration = span(90_000), Err("lease_duration")),
            (|r| r.topics.clear(), Err("topics")),
        ];
        for (set, expected) in cases {
            let mut request = pb::PullRequest { topics: vec!["t".into()], ..Default::default() };
            set(&mut request);
            let result = pull(request, Caller::default(), None);
            match expected {
                Ok(max_jobs) => assert_eq!(result.unwrap().max_jobs, max_jobs),
                Err(field) => assert_eq!(refused(result), [(field.to_owned(), "INVALID_FIELD")]),
            }
        }
    }
}
