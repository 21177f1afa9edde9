//! One line of the audit log.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, UNIX_EPOCH};

use parking_lot::{Mutex, MutexGuard};
use serde::Serialize;
use serde_json::{Map, Value};

use crate::domain::Time;
use crate::log_limiter::LogPermit;

/// Maximum number of topics and of jobs that one line names; it has the number of all.
const NAMED_MAX: usize = 16;

/// Topics, jobs and shards that a call has touched, collected while it is handled. Cloning shares it.
#[derive(Clone, Debug)]
pub struct AuditNote {
    touched: Arc<Mutex<Touched>>,
    /// False if the call is logged only for what it is denied: then nothing else is collected.
    is_full: bool,
}

#[derive(Clone, Debug, Default, Serialize)]
struct Touched {
    #[serde(skip_serializing_if = "Vec::is_empty")]
    topics: Vec<String>,
    /// Jobs as `topic/id`.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    jobs: Vec<String>,
    /// Number of all jobs, if it is larger than that of the named ones, or if none is named.
    #[serde(skip_serializing_if = "Option::is_none")]
    jobs_count: Option<usize>,
    #[serde(skip_serializing_if = "Option::is_none")]
    shard: Option<String>,
    /// Number of topics and jobs that the rights of the caller do not include.
    #[serde(skip_serializing_if = "is_zero")]
    denied: usize,
}

/// A call that has ended.
#[derive(Debug)]
pub struct AuditedCall<'a> {
    /// Name of the RPC, or of the page.
    pub rpc: &'a str,
    /// Name of the identity; `None`: it proved none, or there are no identities.
    pub identity: Option<&'a str>,
    /// Address of the client, or of the proxy in front of this server.
    pub peer: Option<SocketAddr>,
    /// Id of the call. Empty: it has none.
    pub request_id: &'a str,
    /// Topics, jobs and shards that it touched.
    pub note: Option<&'a AuditNote>,
    /// Name of the code, as `PERMISSION_DENIED`.
    pub code: &'a str,
    /// Text of the error.
    pub error: Option<&'a str>,
    /// Time from its first to its last byte.
    pub took: Duration,
}

/// Refusals without a line. If no line of a later call counts them, the first of them gets one that does.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct SuppressedRefusals {
    /// Line of the first one.
    first: Map<String, Value>,
    /// Topics that they were denied.
    topics: Vec<String>,
}

/// One line.
#[derive(Debug, Serialize)]
pub(super) struct Entry<'a> {
    time: String,
    event: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    rpc: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    identity: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    peer: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    request_id: Option<&'a str>,
    #[serde(flatten)]
    touched: Touched,
    #[serde(skip_serializing_if = "Option::is_none")]
    code: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    error: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    took_ms: Option<u64>,
    /// Number of refusals like this one that have no line.
    #[serde(skip_serializing_if = "Option::is_none")]
    suppressed: Option<u64>,
    /// Topics that these were denied.
    #[serde(skip_serializing_if = "<[String]>::is_empty")]
    suppressed_topics: &'a [String],
    /// Number of lines before this one that were lost.
    #[serde(skip_serializing_if = "Option::is_none")]
    lost: Option<u64>,
}

// === impl AuditNote ===

impl AuditNote {
    /// Creates the note of a call; `is_full`: the call is logged whatever its result is.
    #[must_use]
    pub fn new(is_full: bool) -> AuditNote {
        AuditNote { touched: Arc::default(), is_full }
    }

    /// Adds a topic.
    pub fn topic(&self, topic: &str) {
        if self.is_full {
            self.lock().add_topic(topic);
        }
    }

    /// Adds a job and its topic.
    pub fn job(&self, topic: &str, id: &str) {
        if self.is_full {
            self.lock().add_job(topic, id);
        }
    }

    /// Sets the number of jobs of a call that names none.
    pub fn jobs_count(&self, count: usize) {
        self.lock().jobs_count = Some(count);
    }

    /// Sets the shard.
    pub fn shard(&self, shard: &str) {
        self.lock().shard = Some(shard.to_owned());
    }

    /// Adds a topic that the rights of the caller do not include.
    pub fn denied_topic(&self, topic: &str) {
        self.deny(|touched| touched.add_topic(topic));
    }

    /// Adds a job that the rights of the caller do not include.
    pub fn denied_job(&self, topic: &str, id: &str) {
        self.deny(|touched| touched.add_job(topic, id));
    }

    /// Returns whether the call is logged whatever its result is.
    pub(super) fn is_full(&self) -> bool {
        self.is_full
    }

    /// Returns whether the call was denied a topic or a job.
    pub(super) fn has_denials(&self) -> bool {
        self.lock().denied > 0
    }

    /// Counts a denial; a full note has its topic and job already.
    fn deny(&self, add: impl FnOnce(&mut Touched)) {
        let mut touched = self.lock();
        touched.denied += 1;
        if !self.is_full {
            add(&mut touched);
        }
    }

    fn lock(&self) -> MutexGuard<'_, Touched> {
        self.touched.lock()
    }
}

// === impl Touched ===

impl Touched {
    fn add_topic(&mut self, topic: &str) {
        if self.topics.len() < NAMED_MAX && !self.topics.iter().any(|known| known == topic) {
            self.topics.push(topic.to_owned());
        }
    }

    fn add_job(&mut self, topic: &str, id: &str) {
        self.add_topic(topic);
        if self.jobs.len() < NAMED_MAX {
            self.jobs.push(format!("{topic}/{id}"));
        } else {
            let named = self.jobs.len();
            *self.jobs_count.get_or_insert(named) += 1;
        }
    }
}

// === impl SuppressedRefusals ===

impl SuppressedRefusals {
    /// Adds a refusal.
    pub(super) fn add(&mut self, now: Time, call: &AuditedCall<'_>) {
        if self.first.is_empty()
            && let Ok(Value::Object(line)) = serde_json::to_value(Entry::of_call(now, call, None))
        {
            self.first = line;
        }
        let Some(note) = call.note else { return };
        for topic in &note.lock().topics {
            if self.topics.len() < NAMED_MAX && !self.topics.contains(topic) {
                self.topics.push(topic.clone());
            }
        }
    }

    /// Returns the line of the first one of `count` refusals, which counts the others.
    pub(super) fn into_line(self, count: u64) -> Map<String, Value> {
        let SuppressedRefusals { first: mut line, topics } = self;
        if count > 1 {
            line.insert("suppressed".to_owned(), (count - 1).into());
            line.insert("suppressed_topics".to_owned(), topics.into());
        }
        line
    }
}

// === impl Entry ===

impl<'a> Entry<'a> {
    /// Returns the line of a call; `permit` counts suppressed ones before it.
    pub(super) fn of_call(
        now: Time,
        call: &AuditedCall<'a>,
        permit: Option<&'a LogPermit<SuppressedRefusals>>,
    ) -> Entry<'a> {
        let touched = call.note.map(|note| note.lock().clone());
        Entry {
            time: rfc3339(now),
            event: "call",
            rpc: Some(call.rpc),
            identity: call.identity,
            peer: call.peer.map(|peer| peer.to_string()),
            request_id: Some(call.request_id).filter(|id| !id.is_empty()),
            touched: touched.unwrap_or_default(),
            code: Some(call.code),
            error: call.error.filter(|error| !error.is_empty()),
            took_ms: u64::try_from(call.took.as_millis()).ok(),
            suppressed: permit.and_then(LogPermit::suppressed),
            suppressed_topics: permit.map_or(&[], |permit| &permit.noted().topics),
            lost: None,
        }
    }

    pub(super) fn of_event(now: Time, event: &'a str, error: Option<&'a str>) -> Entry<'a> {
        Entry {
            time: rfc3339(now),
            event,
            rpc: None,
            identity: None,
            peer: None,
            request_id: None,
            touched: Touched::default(),
            code: None,
            error,
            took_ms: None,
            suppressed: None,
            suppressed_topics: &[],
            lost: None,
        }
    }

    pub(super) fn of_lost_lines(now: Time, lost: u64) -> Entry<'a> {
        Entry { lost: Some(lost), ..Entry::of_event(now, "lines_lost", None) }
    }
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde passes a reference")]
fn is_zero(count: &usize) -> bool {
    *count == 0
}

fn rfc3339(time: Time) -> String {
    let micros = u64::try_from(time.0).unwrap_or(0);
    humantime::format_rfc3339_millis(UNIX_EPOCH + Duration::from_micros(micros)).to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_names_what_was_touched_and_the_number_of_the_rest() {
        let note = AuditNote::new(true);
        for number in 0..20 {
            note.job("a", &number.to_string());
        }
        note.shard("s0");
        let call = AuditedCall {
            rpc: "RedriveJobs",
            identity: Some("ops"),
            peer: Some("10.0.0.1:9".parse().unwrap()),
            request_id: "r",
            note: Some(&note),
            code: "OK",
            error: None,
            took: Duration::from_millis(7),
        };
        let line = serde_json::to_value(Entry::of_call(Time(1_500_000), &call, None)).unwrap();
        assert_eq!(line["time"], "1970-01-01T00:00:01.500Z");
        assert_eq!((&line["rpc"], &line["identity"]), (&"RedriveJobs".into(), &"ops".into()));
        assert_eq!((&line["shard"], &line["took_ms"]), (&"s0".into(), &7.into()));
        assert_eq!(line["topics"], serde_json::json!(["a"]));
        assert_eq!(line["jobs"].as_array().unwrap().len(), NAMED_MAX);
        assert_eq!((&line["jobs"][1], &line["jobs_count"]), (&"a/1".into(), &20.into()));
        assert!(line.get("error").is_none() && line.get("suppressed").is_none());
    }

    #[test]
    fn a_call_that_is_logged_for_denials_only_names_nothing_else() {
        let note = AuditNote::new(false);
        note.topic("allowed");
        note.job("allowed", "1");
        assert!(!note.has_denials());
        note.denied_topic("a");
        note.denied_job("b", "2");
        let touched = serde_json::to_value(&*note.lock()).unwrap();
        let wanted = serde_json::json!({"topics": ["a", "b"], "jobs": ["b/2"], "denied": 2});
        assert_eq!(touched, wanted);
    }

    #[test]
    fn what_a_caller_chooses_cannot_end_a_line() {
        let event = serde_json::to_string(&Entry::of_event(Time(0), "x", Some("a\n{}"))).unwrap();
        assert_eq!(event.lines().count(), 1);
    }
}
