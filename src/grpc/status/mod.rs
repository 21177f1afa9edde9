//! Errors as clients see them: one place where each gets its code, its stable reason and its
//! details. The table of reasons is in the contract, at `ItemError`.

use std::collections::HashMap;
use std::time::Duration;

use tonic::{Code, Status};
use tonic_types::{ErrorDetails, FieldViolation, PreconditionViolation, QuotaViolation, StatusExt};

use crate::dispatch::OpenError;
use crate::domain::{JobId, JobKey, State, TopicName};
use crate::pb;
use crate::scheduler::EnqueueError;
use crate::store;

use super::convert::enums::{from_durability, from_state};
use super::convert::{Invalid, Violation};

/// Whose reasons these are.
const DOMAIN: &str = "ringq.dev";
/// Most violations that one error names: its details travel in a header, and clients take 8 KiB.
const VIOLATIONS_MAX: usize = 24;

/// Why something failed: the stable part of an error.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Reason {
    /// A field holds what it must not.
    InvalidField,
    /// A limit on a size or a count is exceeded.
    TooLarge,
    /// A field needs what this server does not have.
    FeatureUnsupported,
    /// There is no such job.
    JobNotFound,
    /// There is no such topic.
    TopicNotFound,
    /// The id is taken.
    JobExists,
    /// The state of the job does not allow it.
    WrongJobState,
    /// The shard cannot reach what was asked.
    DurabilityUnsupported,
    /// Too many requests are under way.
    RateLimited,
    /// Too many streams are open.
    TooManyStreams,
    /// The store has no room.
    StoreFull,
    /// The shard does not answer; nothing was applied.
    ShardUnavailable,
    /// This replica is leaving; nothing was applied.
    Draining,
    /// It may have been applied.
    OutcomeUnknown,
    /// The caller's deadline passed.
    DeadlineExceeded,
    /// A fault of the server.
    Internal,
    /// The store holds what cannot be read.
    StoreCorrupt,
}

/// An error on its way to a client: the same for a call and for one item of a batch.
#[derive(Clone, Debug)]
pub(super) struct Failure {
    reason: Reason,
    message: String,
    metadata: Vec<(&'static str, String)>,
    violations: Vec<Violation>,
    subject: Option<Subject>,
}

/// What an error is about.
#[derive(Clone, Debug)]
struct Subject {
    kind: &'static str,
    name: String,
}

// === impl Reason ===

impl Reason {
    /// Its name in the contract.
    pub(super) fn name(self) -> &'static str {
        match self {
            Reason::InvalidField => "INVALID_FIELD",
            Reason::TooLarge => "TOO_LARGE",
            Reason::FeatureUnsupported => "FEATURE_UNSUPPORTED",
            Reason::JobNotFound => "JOB_NOT_FOUND",
            Reason::TopicNotFound => "TOPIC_NOT_FOUND",
            Reason::JobExists => "JOB_EXISTS",
            Reason::WrongJobState => "WRONG_JOB_STATE",
            Reason::DurabilityUnsupported => "DURABILITY_UNSUPPORTED",
            Reason::RateLimited => "RATE_LIMITED",
            Reason::TooManyStreams => "TOO_MANY_STREAMS",
            Reason::StoreFull => "STORE_FULL",
            Reason::ShardUnavailable => "SHARD_UNAVAILABLE",
            Reason::Draining => "DRAINING",
            Reason::OutcomeUnknown => "OUTCOME_UNKNOWN",
            Reason::DeadlineExceeded => "DEADLINE_EXCEEDED",
            Reason::Internal => "INTERNAL",
            Reason::StoreCorrupt => "STORE_CORRUPT",
        }
    }

    /// Its code.
    pub(super) fn code(self) -> Code {
        match self {
            Reason::InvalidField | Reason::TooLarge | Reason::FeatureUnsupported => {
                Code::InvalidArgument
            }
            Reason::JobNotFound | Reason::TopicNotFound => Code::NotFound,
            Reason::JobExists => Code::AlreadyExists,
            Reason::WrongJobState | Reason::DurabilityUnsupported => Code::FailedPrecondition,
            Reason::RateLimited | Reason::TooManyStreams | Reason::StoreFull => {
                Code::ResourceExhausted
            }
            Reason::ShardUnavailable | Reason::Draining | Reason::OutcomeUnknown => {
                Code::Unavailable
            }
            Reason::DeadlineExceeded => Code::DeadlineExceeded,
            Reason::Internal | Reason::StoreCorrupt => Code::Internal,
        }
    }

    /// How long to wait before a repeat, where one can succeed: as long as its cause usually lasts.
    fn retry_delay(self) -> Option<Duration> {
        match self {
            Reason::RateLimited | Reason::Draining => Some(Duration::from_millis(100)),
            Reason::OutcomeUnknown => Some(Duration::from_millis(500)),
            Reason::ShardUnavailable => Some(Duration::from_secs(1)),
            Reason::TooManyStreams => Some(Duration::from_secs(2)),
            Reason::StoreFull => Some(Duration::from_secs(5)),
            Reason::InvalidField
            | Reason::TooLarge
            | Reason::FeatureUnsupported
            | Reason::JobNotFound
            | Reason::TopicNotFound
            | Reason::JobExists
            | Reason::WrongJobState
            | Reason::DurabilityUnsupported
            | Reason::DeadlineExceeded
            | Reason::Internal
            | Reason::StoreCorrupt => None,
        }
    }
}

// === impl Failure ===

impl Failure {
    fn new(reason: Reason, message: impl Into<String>) -> Failure {
        Failure {
            reason,
            message: message.into(),
            metadata: Vec::new(),
            violations: Vec::new(),
            subject: None,
        }
    }

    fn with(mut self, key: &'static str, value: impl Into<String>) -> Failure {
        self.metadata.push((key, value.into()));
        self
    }

    fn about(mut self, kind: &'static str, name: impl Into<String>) -> Failure {
        self.subject = Some(Subject { kind, name: name.into() });
        self
    }

    fn about_job(self, key: &JobKey) -> Failure {
        self.with("topic", key.topic.as_str())
            .with("id", key.id.as_str())
            .about("ringq.dev/Job", key.to_string())
    }

    /// There is no such job.
    pub(super) fn job_not_found(key: &JobKey) -> Failure {
        let message = "there is no such job: it never was, or its record has been forgotten";
        Failure::new(Reason::JobNotFound, message).about_job(key)
    }

    /// There is no such topic.
    pub(super) fn topic_not_found(name: &TopicName) -> Failure {
        let message = "there is no such topic; correct its name, or enqueue a job to create it";
        Failure::new(Reason::TopicNotFound, message)
            .with("topic", name.as_str())
            .about("ringq.dev/Topic", format!("topics/{name}"))
    }

    /// The job is in a state that does not allow it.
    pub(super) fn wrong_state(key: &JobKey, state: State) -> Failure {
        let message = format!("a job that is {} cannot be moved; read it with Get", state.name());
        Failure::new(Reason::WrongJobState, message)
            .with("state", from_state(state).as_str_name())
            .about_job(key)
    }

    /// A message over the limit.
    pub(super) fn message_too_large(limit: usize) -> Failure {
        let message = format!("the message has more than {limit} bytes; send less at once");
        Failure::new(Reason::TooLarge, message).with("limit", limit.to_string())
    }

    /// A message that cannot be read.
    pub(super) fn malformed(message: &str) -> Failure {
        let message = format!("the request cannot be read: {message}");
        Failure::new(Reason::InvalidField, message)
    }

    /// Too many requests are under way.
    pub(super) fn too_many_requests(limit: usize) -> Failure {
        let message = "too many requests are under way here; wait as RetryInfo says";
        Failure::new(Reason::RateLimited, message)
            .with("limit", limit.to_string())
            .about("limit", "max_concurrent_requests")
    }

    /// The deadline passed.
    pub(super) fn deadline_exceeded() -> Failure {
        let message = "the deadline passed; what was asked may have been applied all the same";
        Failure::new(Reason::DeadlineExceeded, message)
    }

    /// A fault of the server, of which the client hears nothing else.
    pub(super) fn internal() -> Failure {
        let message = "a fault of the server; report it with the time and the server's log";
        Failure::new(Reason::Internal, message)
    }

    /// The same failure of the message in this field.
    pub(super) fn within(self, field: &str) -> Failure {
        if self.violations.is_empty() {
            return self;
        }
        let inside = |v: Violation| Violation { field: format!("{field}.{}", v.field), ..v };
        let violations = self.violations.into_iter().map(inside).collect();
        let mut failure = Failure::from(Invalid(violations));
        failure.metadata.extend(self.metadata.into_iter().filter(|(key, _)| *key != "field"));
        failure
    }

    fn details(&self) -> ErrorDetails {
        let metadata: HashMap<String, String> =
            self.metadata.iter().map(|(key, value)| ((*key).to_owned(), value.clone())).collect();
        let mut details = ErrorDetails::with_error_info(self.reason.name(), DOMAIN, metadata);
        let delay = self.reason.retry_delay();
        if delay.is_some() {
            details.set_retry_info(delay);
        }
        if !self.violations.is_empty() {
            let shown = self.violations.iter().take(VIOLATIONS_MAX);
            let shown = shown.map(|v| FieldViolation::new(v.field.clone(), v.text.clone()));
            details.set_bad_request(shown.collect::<Vec<_>>());
        }
        if let Some(subject) = &self.subject {
            self.detail(&mut details, subject);
        }
        details
    }

    /// The detail that says what the failure is about, in the form that goes with its code.
    fn detail(&self, details: &mut ErrorDetails, subject: &Subject) {
        let Subject { kind, name } = subject;
        let (name, text) = (name.clone(), self.message.clone());
        match self.reason.code() {
            Code::FailedPrecondition => {
                let violation = PreconditionViolation::new(self.reason.name(), name, text);
                details.set_precondition_failure(vec![violation]);
            }
            Code::ResourceExhausted => {
                details.set_quota_failure(vec![QuotaViolation::new(name, text)]);
            }
            _ => {
                details.set_resource_info(*kind, name, "", text);
            }
        }
    }
}

impl From<Failure> for Status {
    fn from(failure: Failure) -> Status {
        let details = failure.details();
        Status::with_error_details(failure.reason.code(), failure.message, details)
    }
}

impl From<Failure> for pb::ItemError {
    fn from(failure: Failure) -> pb::ItemError {
        let field = failure.violations.into_iter().next().map(|violation| violation.field);
        pb::ItemError {
            code: failure.reason.code().into(),
            reason: failure.reason.name().to_owned(),
            message: failure.message,
            field: field.unwrap_or_default(),
        }
    }
}

// === the errors of the other modules ===

impl From<Invalid> for Failure {
    fn from(Invalid(violations): Invalid) -> Failure {
        let Some(first) = violations.first() else { return Failure::internal() };
        let more = match violations.len() - 1 {
            0 => String::new(),
            more => format!(" (and {more} more)"),
        };
        let message = format!("{}: {}{more}", first.field, first.text);
        let mut failure = Failure::new(first.reason, message).with("field", first.field.clone());
        if let Some(feature) = first.feature {
            failure = failure.with("feature", feature);
        }
        Failure { violations, ..failure }
    }
}

impl From<Invalid> for Status {
    fn from(invalid: Invalid) -> Status {
        Failure::from(invalid).into()
    }
}

/// What a shard answers. Its own words stay in the server's log.
impl From<store::Error> for Failure {
    fn from(error: store::Error) -> Failure {
        let (reason, message) = match error {
            store::Error::Full(_) => (
                Reason::StoreFull,
                "the store is full and nothing was written; wait as RetryInfo says",
            ),
            store::Error::Unavailable(_) => (
                Reason::ShardUnavailable,
                "the shard does not answer and nothing was applied; repeat as RetryInfo says",
            ),
            store::Error::Unknown(_) => (
                Reason::OutcomeUnknown,
                "the shard did not answer in time and may have applied it; repeat with the same id",
            ),
            store::Error::Corrupt(_) => (
                Reason::StoreCorrupt,
                "the store holds something that cannot be read; an operator must look at the log",
            ),
        };
        let failure = Failure::new(reason, message);
        if reason == Reason::StoreFull { failure.about("limit", "store") } else { failure }
    }
}

impl From<store::Error> for Status {
    fn from(error: store::Error) -> Status {
        Failure::from(error).into()
    }
}

impl From<EnqueueError> for Failure {
    fn from(error: EnqueueError) -> Failure {
        match error {
            EnqueueError::AlreadyExists { key, state } => {
                let message =
                    "the id is taken; read the job with Get, or ask for another conflict policy";
                Failure::new(Reason::JobExists, message)
                    .with("state", from_state(state).as_str_name())
                    .about_job(&key)
            }
            EnqueueError::DurabilityUnsupported { asked, reached } => {
                let [asked, reached] = [asked, reached].map(|d| from_durability(d).as_str_name());
                let message = format!("the shard reaches {reached}, not {asked}; ask for less");
                Failure::new(Reason::DurabilityUnsupported, message)
                    .with("asked", asked)
                    .with("reached", reached)
                    .about("durability", "durability")
            }
            EnqueueError::NoSuchShard(shard) => {
                let text = format!("names the shard {shard}, which this server does not have");
                let violation = Violation {
                    field: "id".into(),
                    reason: Reason::InvalidField,
                    text,
                    feature: None,
                };
                Failure::from(Invalid(vec![violation])).with("shard", shard.as_str())
            }
            EnqueueError::Store { error, id } => Failure::from(error).with("id", id.as_str()),
        }
    }
}

impl From<OpenError> for Failure {
    fn from(error: OpenError) -> Failure {
        match error {
            OpenError::TooManyStreams { max } => {
                let message =
                    "too many streams are open here; close some, or wait as RetryInfo says";
                Failure::new(Reason::TooManyStreams, message)
                    .with("limit", max.to_string())
                    .about("limit", "streams")
            }
            OpenError::Draining => Failure::new(
                Reason::Draining,
                "this replica is leaving; repeat on another connection",
            ),
        }
    }
}

impl From<OpenError> for Status {
    fn from(error: OpenError) -> Status {
        Failure::from(error).into()
    }
}

/// The id with which a repeat of this failed enqueue is safe, if it tells one.
pub(super) fn safe_id(error: &EnqueueError) -> Option<&JobId> {
    match error {
        EnqueueError::AlreadyExists { key, .. } => Some(&key.id),
        EnqueueError::Store { id, .. } => Some(id),
        EnqueueError::DurabilityUnsupported { .. } | EnqueueError::NoSuchShard(_) => None,
    }
}

#[cfg(test)]
mod tests;
