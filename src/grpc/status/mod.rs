//! Errors as clients receive them: the only place that sets the code, the stable reason and the details of each. The
//! table of reasons is in the contract, at `ItemError`.

mod errors;

use std::collections::HashMap;
use std::time::Duration;

use tonic::metadata::MetadataMap;
use tonic::{Code, Status};
use tonic_types::{ErrorDetails, FieldViolation, PreconditionViolation, QuotaViolation, StatusExt};

use crate::auth::{Caller, Denial, QuotaExceeded, QuotaKind, QuotaRetry, Unauthenticated};
use crate::contract::enums::to_job_state;
use crate::contract::reason::Reason;
use crate::contract::{InvalidRequest, Violation};
use crate::domain::{JobKey, State, TopicName};
use crate::pb;

pub(super) use errors::safe_id;

/// Domain of the reasons in ErrorInfo.
const DOMAIN: &str = "ringq.dev";
/// Trailer with the delay before a retry, in milliseconds (gRFC A6): clients that retry by their service config wait so
/// long, in place of their own backoff.
const RETRY_PUSHBACK: &str = "grpc-retry-pushback-ms";
/// Maximum number of violations in one error: its details are sent in a header, and clients accept 8 KiB.
const VIOLATIONS_MAX: usize = 24;

/// Error on its way to a client, for a call or for one item of a batch.
#[derive(Clone, Debug)]
pub(super) struct RpcError {
    reason: Reason,
    message: String,
    metadata: Vec<(&'static str, String)>,
    violations: Vec<Violation>,
    subject: Option<ErrorSubject>,
    retry: RetryAdvice,
}

/// Delay before a retry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum RetryAdvice {
    /// The delay of the reason, if it has one.
    OfReason,
    /// So many milliseconds. Small numbers, because errors are returned by value.
    AfterMillis(u16),
    /// So many seconds, where they are more than these.
    AfterSeconds(u16),
    /// No retry can succeed, though one can after other errors with this reason.
    Never,
}

/// Subject of an error: the resource, limit or condition.
#[derive(Clone, Debug)]
struct ErrorSubject {
    kind: &'static str,
    name: String,
}

// === impl RpcError ===

impl RpcError {
    fn new(reason: Reason, message: impl Into<String>) -> RpcError {
        RpcError {
            reason,
            message: message.into(),
            metadata: Vec::new(),
            violations: Vec::new(),
            subject: None,
            retry: RetryAdvice::OfReason,
        }
    }

    fn with(mut self, key: &'static str, value: impl Into<String>) -> RpcError {
        self.metadata.push((key, value.into()));
        self
    }

    fn with_subject(mut self, kind: &'static str, name: impl Into<String>) -> RpcError {
        self.subject = Some(ErrorSubject { kind, name: name.into() });
        self
    }

    fn with_delay(self, delay: Duration) -> RpcError {
        let retry = match u16::try_from(delay.as_millis()) {
            Ok(millis) => RetryAdvice::AfterMillis(millis),
            Err(_) => {
                let seconds = delay.as_secs().saturating_add(1);
                RetryAdvice::AfterSeconds(u16::try_from(seconds).unwrap_or(u16::MAX))
            }
        };
        RpcError { retry, ..self }
    }

    fn without_retry(self) -> RpcError {
        RpcError { retry: RetryAdvice::Never, ..self }
    }

    fn with_job(self, key: &JobKey) -> RpcError {
        self.with("topic", key.topic.as_str())
            .with("id", key.id.as_str())
            .with_subject("ringq.dev/Job", key.to_string())
    }

    /// Creates the error for a job that does not exist.
    pub(super) fn job_not_found(key: &JobKey) -> RpcError {
        let message =
            "no such job: it never existed, was deleted, or has ended and its retention has passed";
        RpcError::new(Reason::JobNotFound, message).with_job(key)
    }

    /// Creates the error for a topic that does not exist.
    pub(super) fn topic_not_found(name: &TopicName) -> RpcError {
        let message = "there is no such topic; correct its name, or enqueue a job to create it";
        RpcError::new(Reason::TopicNotFound, message)
            .with("topic", name.as_str())
            .with_subject("ringq.dev/Topic", format!("topics/{name}"))
    }

    /// Creates the error for a job whose state does not allow the call.
    pub(super) fn wrong_state(key: &JobKey, state: State) -> RpcError {
        let message = format!("a job that is {} cannot be moved; read it with Get", state.name());
        RpcError::new(Reason::WrongJobState, message)
            .with("state", to_job_state(state).as_str_name())
            .with_job(key)
    }

    /// Creates the error for a message over the size limit.
    pub(super) fn message_too_large(limit: usize) -> RpcError {
        let message = format!("the message has more than {limit} bytes; send less at once");
        RpcError::new(Reason::TooLarge, message).with("limit", limit.to_string())
    }

    /// Creates the error for a JSON text with too many objects and lists.
    pub(super) fn too_many_values(limit: usize) -> RpcError {
        let message =
            format!("the message has more than {limit} objects and lists; send less at once");
        RpcError::new(Reason::TooLarge, message).with("limit", limit.to_string())
    }

    /// Creates the error for a message with so many fields that it takes too much memory.
    pub(super) fn decoded_too_large(limit: usize) -> RpcError {
        let message = format!(
            "the message has so many fields and entries of lists that it would take more than {limit} bytes in \
             memory; send less at once"
        );
        RpcError::new(Reason::TooLarge, message).with("limit", limit.to_string())
    }

    /// Creates the error for a message that cannot be read.
    pub(super) fn malformed(message: &str) -> RpcError {
        let message = format!("the request cannot be read: {message}");
        RpcError::new(Reason::InvalidField, message)
    }

    /// Creates the error for too many requests in flight.
    pub(super) fn too_many_requests(limit: usize) -> RpcError {
        let message =
            "too many requests are in flight on this server; retry after the delay in RetryInfo";
        RpcError::new(Reason::RateLimited, message)
            .with("limit", limit.to_string())
            .with_subject("limit", "max_concurrent_requests")
    }

    /// Creates the error for too many bytes of messages in flight, on this server or on the caller's connection.
    pub(super) fn too_many_bytes(limit: usize) -> RpcError {
        let message = "too many bytes of messages are in flight on this server; retry after the delay in RetryInfo, or send less";
        RpcError::new(Reason::RateLimited, message)
            .with("limit", limit.to_string())
            .with_subject("limit", "max_message_mib")
    }

    /// Creates the error for too many watches without an identity.
    pub(super) fn too_many_watches() -> RpcError {
        let message = "your address has as many watches without an identity as it may have connections, or all addresses have; close some, or retry after the delay in RetryInfo";
        RpcError::new(Reason::RateLimited, message)
            .with_subject("limit", "max_connections_per_peer")
    }

    /// Creates the error for too many connections that carry calls.
    pub(super) fn too_many_connections() -> RpcError {
        let message = "too many connections carry calls to this server; retry after the delay in RetryInfo, or call another one";
        RpcError::new(Reason::RateLimited, message).with_subject("limit", "max_connections")
    }

    /// Creates the error for a call to a server that ends.
    pub(super) fn shutting_down() -> RpcError {
        let message =
            "this server is shutting down and nothing was applied; call another one, or retry";
        RpcError::new(Reason::Draining, message)
    }

    /// Creates the error for a message whose rest does not arrive.
    pub(super) fn request_stalled() -> RpcError {
        let message = "the message of the request did not arrive in time; nothing was applied";
        RpcError::new(Reason::DeadlineExceeded, message)
    }

    /// Creates the error for a call beyond a quota.
    pub(super) fn quota_exceeded(exceeded: &QuotaExceeded) -> RpcError {
        let QuotaExceeded { kind, subject, retry } = exceeded;
        let quota = kind.name();
        let advice = match (retry, kind) {
            (QuotaRetry::Never, _) => {
                "the call asks for more than the whole quota: send fewer jobs at once"
            }
            (_, QuotaKind::TopicSettings) => {
                "delete topics of the namespace, or unset their settings"
            }
            (_, QuotaKind::Streams) => "close streams, or retry after the delay in RetryInfo",
            _ => "retry after the delay in RetryInfo",
        };
        let message =
            format!("the quota {quota} of {subject} is used up and nothing was applied; {advice}");
        let error = RpcError::new(Reason::QuotaExceeded, message)
            .with("quota", quota)
            .with_subject("quota", subject.as_str());
        match retry {
            QuotaRetry::After(delay) => error.with_delay(*delay),
            QuotaRetry::Unknown => error,
            QuotaRetry::Never => error.without_retry(),
        }
    }

    /// Creates the error for a call that proves no identity.
    pub(super) fn unauthenticated(why: Unauthenticated) -> RpcError {
        let reason = match why.is_temporary() {
            true => Reason::KeysUnavailable,
            false => Reason::Unauthenticated,
        };
        RpcError::new(reason, why.to_string())
    }

    /// Creates the error for a call to which its caller has no right.
    pub(super) fn permission_denied(caller: &Caller, why: &Denial) -> RpcError {
        let message = format!("the identity {caller} has no right to this call: {why}");
        RpcError::new(Reason::PermissionDenied, message).with("identity", caller.to_string())
    }

    /// Creates the error for a call for payloads that its caller may not read.
    pub(super) fn payloads_denied(caller: &Caller, topic: &TopicName) -> RpcError {
        let message = format!(
            "the identity {caller} has no right to the payloads of this topic; read JOB_VIEW_BASIC, or add the topic \
             to its `payloads`"
        );
        RpcError::new(Reason::PermissionDenied, message)
            .with("identity", caller.to_string())
            .with_topic(topic)
    }

    /// Returns whether the resource does not exist.
    pub(super) fn is_not_found(&self) -> bool {
        self.reason.code() == Code::NotFound
    }

    /// Returns the error with the topic that it is about.
    pub(super) fn with_topic(self, topic: &TopicName) -> RpcError {
        self.with("topic", topic.as_str())
    }

    /// Returns the error with the path of the field that caused it.
    pub(super) fn with_field(self, field: &str) -> RpcError {
        self.with("field", field)
    }

    /// Creates the error for a passed deadline.
    pub(super) fn deadline_exceeded() -> RpcError {
        let message = "the deadline passed; the call may have been applied";
        RpcError::new(Reason::DeadlineExceeded, message)
    }

    /// Creates the error for a fault of the server, of which the client receives no details.
    pub(super) fn internal() -> RpcError {
        let message =
            "the server has an internal error; report it with the time and the server's log";
        RpcError::new(Reason::Internal, message)
    }

    /// Returns the error with the paths of its fields inside of `field`.
    pub(super) fn in_field(self, field: &str) -> RpcError {
        if self.violations.is_empty() {
            return self;
        }
        let inside = |v: Violation| Violation { field: format!("{field}.{}", v.field), ..v };
        let violations = self.violations.into_iter().map(inside).collect();
        let mut failure = RpcError::from(InvalidRequest(violations));
        failure.metadata.extend(self.metadata.into_iter().filter(|(key, _)| *key != "field"));
        failure
    }

    /// Returns the delay before a retry, where one can succeed.
    fn retry_delay(&self) -> Option<Duration> {
        match self.retry {
            RetryAdvice::OfReason => self.reason.retry_delay(),
            RetryAdvice::AfterMillis(millis) => Some(Duration::from_millis(millis.into())),
            RetryAdvice::AfterSeconds(seconds) => Some(Duration::from_secs(seconds.into())),
            RetryAdvice::Never => None,
        }
    }

    fn details(&self) -> ErrorDetails {
        let metadata: HashMap<String, String> =
            self.metadata.iter().map(|(key, value)| ((*key).to_owned(), value.clone())).collect();
        let mut details = ErrorDetails::with_error_info(self.reason.name(), DOMAIN, metadata);
        let delay = self.retry_delay();
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

    /// Adds the subject of the error, in the form that goes with its code.
    fn detail(&self, details: &mut ErrorDetails, subject: &ErrorSubject) {
        let ErrorSubject { kind, name } = subject;
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

impl From<RpcError> for Status {
    fn from(failure: RpcError) -> Status {
        let (details, mut trailers) = (failure.details(), MetadataMap::new());
        if let Some(delay) = failure.retry_delay() {
            let millis = u64::try_from(delay.as_millis()).unwrap_or(u64::MAX);
            trailers.insert(RETRY_PUSHBACK, millis.into());
        }
        Status::with_error_details_and_metadata(
            failure.reason.code(),
            failure.message,
            details,
            trailers,
        )
    }
}

impl From<RpcError> for pb::ItemError {
    fn from(failure: RpcError) -> pb::ItemError {
        let field = failure.violations.into_iter().next().map(|violation| violation.field);
        pb::ItemError {
            code: failure.reason.code().into(),
            reason: failure.reason.name().to_owned(),
            message: failure.message,
            field: field.unwrap_or_default(),
        }
    }
}

#[cfg(test)]
mod tests;
