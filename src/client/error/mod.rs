//! Errors of calls, after the server's error model (`ItemError` in `job.proto`).

mod origin;
pub(crate) mod tls;

use std::collections::HashMap;
use std::error::Error as StdError;
use std::time::Duration;

use tonic::{Code, Status};
use tonic_types::StatusExt as _;

use crate::pb::{ItemError, SettleError, SettleFailure};
use origin::{ErrorOrigin, NO_GRPC};
pub(super) use tls::NEEDS_TLS;

/// Error of a call, or of one item of a call.
#[derive(Clone, Debug, thiserror::Error)]
#[error("{}", .0.message)]
pub struct Error(Box<ErrorInner>);

#[derive(Clone, Debug)]
struct ErrorInner {
    code: Code,
    reason: String,
    message: String,
    field: Option<String>,
    retry_after: Option<Duration>,
    metadata: HashMap<String, String>,
    /// Set when the call may have reached the server.
    maybe_reached_server: bool,
    /// Set when an earlier call for the same job may have been executed.
    earlier_outcome_unknown: bool,
}

// === impl Error ===

impl Error {
    /// Creates an error about a mistake found before any call.
    pub(super) fn usage(field: &str, message: impl Into<String>) -> Error {
        Error(Box::new(ErrorInner {
            code: Code::InvalidArgument,
            reason: "INVALID_ARGUMENT".to_owned(),
            message: message.into(),
            field: Some(field.to_owned()),
            retry_after: None,
            metadata: HashMap::new(),
            maybe_reached_server: false,
            earlier_outcome_unknown: false,
        }))
    }

    /// Creates an error for a call without an answer, or for one that was not made at all.
    pub(super) fn no_response(code: Code, message: &str, reached: bool) -> Error {
        let mut error = Error::from(Status::new(code, message));
        error.0.maybe_reached_server = reached;
        error
    }

    /// Marks the error of a retry: an earlier call may have been executed if `before`.
    pub(super) fn with_earlier_unknown(mut self, before: bool) -> Error {
        self.0.earlier_outcome_unknown |= before;
        self
    }

    /// Adds the id of the job, with which a retry is safe. Empty: no id.
    pub(super) fn with_job_id(mut self, id: &str) -> Error {
        if !id.is_empty() {
            self.0.metadata.insert("id".to_owned(), id.to_owned());
        }
        self
    }

    /// Returns the gRPC code. A call whose connection failed or broke is `UNAVAILABLE`, one without an answer in time
    /// `DEADLINE_EXCEEDED`, regardless of how tonic reports it.
    #[must_use]
    pub fn code(&self) -> Code {
        self.0.code
    }

    /// Returns the stable reason, UPPER_SNAKE_CASE. Empty when the failure was not the server's answer, as with a
    /// refused connection.
    #[must_use]
    pub fn reason(&self) -> &str {
        &self.0.reason
    }

    /// Returns a sentence for people.
    #[must_use]
    pub fn message(&self) -> &str {
        &self.0.message
    }

    /// Returns the path of the invalid field, such as `job.retry.delays[2]`.
    #[must_use]
    pub fn field(&self) -> Option<&str> {
        self.0.field.as_deref()
    }

    /// Returns the time to wait before the next attempt, if the server gave one.
    #[must_use]
    pub fn retry_after(&self) -> Option<Duration> {
        self.0.retry_after
    }

    /// Returns a detail of the error by name: `id`, `topic`, `state`, ….
    #[must_use]
    pub fn metadata(&self, key: &str) -> Option<&str> {
        self.0.metadata.get(key).map(String::as_str)
    }

    /// Returns whether the server, a shard or the network is down at the moment, so that the same call may succeed
    /// later.
    #[must_use]
    pub fn is_unavailable(&self) -> bool {
        matches!(self.0.code, Code::Unavailable | Code::DeadlineExceeded)
    }

    /// Returns whether the answer came from something without gRPC, such as the HTTP port of a server.
    pub(crate) fn is_not_grpc(&self) -> bool {
        self.0.reason.is_empty()
            && self.0.message.starts_with(NO_GRPC)
            && !matches!(self.0.code, Code::Unavailable | Code::Unauthenticated)
    }

    /// Returns whether a failed call has surely not left this side: there was no connection, or it closed before.
    pub(super) fn was_not_sent(error: &(dyn StdError + 'static)) -> bool {
        origin::was_not_sent(error)
    }

    /// Returns whether there is no such job or topic.
    #[must_use]
    pub fn is_not_found(&self) -> bool {
        self.0.code == Code::NotFound
    }

    /// Returns whether the failed call, or one that it retried, may have been executed all the same. Retry it only if
    /// that is harmless, as it is for a job with an id while its record lives.
    #[must_use]
    pub fn outcome_unknown(&self) -> bool {
        if self.0.earlier_outcome_unknown {
            return true;
        }
        match self.0.reason.as_str() {
            // The last reason is that of a settle.
            "OUTCOME_UNKNOWN" | "DURABILITY_NOT_REACHED" | "DEADLINE_EXCEEDED" | "UNAVAILABLE" => {
                true
            }
            // A request handler may fail after it has written.
            "INTERNAL" => true,
            // Not an answer of the server itself, so its reason is missing; but some codes are refusals from any
            // sender, and a connection that was never made has carried nothing.
            "" => self.0.maybe_reached_server && leaves_outcome_unknown(self.0.code),
            _ => false,
        }
    }
}

/// Converts the system's "Connection refused (os error 111)" to the middle of a sentence.
pub(super) fn in_sentence(message: &str) -> String {
    let message = message.split(" (os error").next().unwrap_or(message);
    let mut chars = message.chars();
    match chars.next() {
        // TLS keeps its capitals.
        Some(first) if !chars.as_str().starts_with(char::is_uppercase) => {
            first.to_lowercase().chain(chars).collect()
        }
        _ => message.to_owned(),
    }
}

/// Returns whether a call with this code may have been executed.
fn leaves_outcome_unknown(code: Code) -> bool {
    matches!(
        code,
        Code::Unavailable
            | Code::DeadlineExceeded
            | Code::Unknown
            | Code::Cancelled
            | Code::Internal
            | Code::Aborted
            | Code::DataLoss
    )
}

impl From<Status> for Error {
    fn from(status: Status) -> Error {
        let (code, message, reached) = match ErrorOrigin::from_status(&status) {
            ErrorOrigin::Response(message) => (status.code(), message, true),
            ErrorOrigin::ConnectFailed(why) => (Code::Unavailable, why, false),
            ErrorOrigin::TimedOut => {
                (Code::DeadlineExceeded, "the server did not answer in time".to_owned(), true)
            }
            ErrorOrigin::ConnectionLost(why) => (Code::Unavailable, why, true),
        };
        let details = status.get_error_details();
        let info = details.error_info();
        let field = details
            .bad_request()
            .and_then(|bad| bad.field_violations.first())
            .map(|violation| violation.field.clone());
        Error(Box::new(ErrorInner {
            code,
            reason: info.map(|info| info.reason.clone()).unwrap_or_default(),
            message,
            field: field.filter(|field| !field.is_empty()),
            retry_after: details.retry_info().and_then(|retry| retry.retry_delay),
            metadata: info.map(|info| info.metadata.clone()).unwrap_or_default(),
            maybe_reached_server: reached,
            earlier_outcome_unknown: false,
        }))
    }
}

impl From<ItemError> for Error {
    fn from(item: ItemError) -> Error {
        Error(Box::new(ErrorInner {
            code: Code::from_i32(item.code),
            reason: item.reason,
            message: item.message,
            field: Some(item.field).filter(|field| !field.is_empty()),
            retry_after: None,
            metadata: HashMap::new(),
            maybe_reached_server: true,
            earlier_outcome_unknown: false,
        }))
    }
}

impl From<SettleFailure> for Error {
    fn from(failure: SettleFailure) -> Error {
        let code = match failure.error() {
            SettleError::Malformed => Code::InvalidArgument,
            SettleError::NotFound => Code::NotFound,
            SettleError::Unavailable => Code::Unavailable,
            SettleError::Stale | SettleError::Unspecified => Code::FailedPrecondition,
        };
        Error(Box::new(ErrorInner {
            code,
            reason: failure.error().as_str_name().trim_start_matches("SETTLE_ERROR_").to_owned(),
            message: failure.message,
            field: None,
            retry_after: None,
            metadata: HashMap::new(),
            maybe_reached_server: true,
            earlier_outcome_unknown: false,
        }))
    }
}

#[cfg(test)]
mod tests {
    use std::io;
    use std::sync::Arc;

    use tonic::ConnectError;
    use tonic_types::ErrorDetails;

    use super::origin::NO_STATUS;
    use super::*;

    fn rejected_error(code: Code, reason: &str) -> Error {
        let details = ErrorDetails::with_error_info(reason, "ringq.dev", HashMap::new());
        Status::with_error_details(code, "…", details).into()
    }

    /// Checks the reasons of the contract whose code means "later", and those of faults.
    #[test]
    fn outcome_unknown_follows_the_reason() {
        for (code, reason, unknown) in [
            (Code::Unavailable, "OUTCOME_UNKNOWN", true),
            (Code::Unavailable, "DURABILITY_NOT_REACHED", true),
            (Code::Unavailable, "SHARD_UNAVAILABLE", false),
            (Code::Unavailable, "STORE_NOT_REPLICATED", false),
            (Code::Unavailable, "DRAINING", false),
            (Code::DeadlineExceeded, "DEADLINE_EXCEEDED", true),
            (Code::Internal, "INTERNAL", true),
            (Code::Internal, "STORE_CORRUPT", false),
            (Code::ResourceExhausted, "RATE_LIMITED", false),
            (Code::InvalidArgument, "TOO_LARGE", false),
        ] {
            assert_eq!(rejected_error(code, reason).outcome_unknown(), unknown, "{reason}");
        }
    }

    #[test]
    fn without_a_reason_only_rejections_are_certain() {
        for (code, unknown) in [
            (Code::Unavailable, true),
            (Code::Cancelled, true),
            (Code::Unimplemented, false),
            (Code::Unauthenticated, false),
            (Code::ResourceExhausted, false),
        ] {
            assert_eq!(Error::from(Status::new(code, "a proxy")).outcome_unknown(), unknown);
        }
    }

    #[test]
    fn a_certain_failure_after_an_unknown_one_is_unknown() {
        let error = rejected_error(Code::Unavailable, "DRAINING").with_earlier_unknown(true);
        assert!(error.outcome_unknown() && error.with_earlier_unknown(false).outcome_unknown());
        assert!(
            !rejected_error(Code::Unavailable, "DRAINING")
                .with_earlier_unknown(false)
                .outcome_unknown()
        );
    }

    #[test]
    fn an_http_response_is_not_a_server_response() {
        let answer = |code, number| Error::from(Status::new(code, format!("{NO_STATUS}{number}")));
        let other = answer(Code::Unimplemented, 404);
        assert!(other.is_not_grpc() && other.message() == "HTTP status 404");
        assert!(!answer(Code::Unavailable, 503).is_not_grpc(), "a proxy may get better");
        assert!(!Error::from(Status::new(Code::Unimplemented, "no such call")).is_not_grpc());
    }

    #[test]
    fn transport_errors_map_to_grpc_codes() {
        let with = |code, source: Arc<dyn StdError + Send + Sync>| {
            let mut status = Status::new(code, "transport error");
            status.set_source(source);
            Error::from(status)
        };
        let reset = || io::Error::other("connection reset");
        let broken = with(Code::Unknown, Arc::new(reset()));
        assert_eq!((broken.code(), broken.message()), (Code::Unavailable, "connection reset"));
        assert!(broken.is_unavailable() && broken.outcome_unknown());
        let never = with(Code::Unavailable, Arc::new(ConnectError(Box::new(reset()))));
        assert!(never.is_unavailable() && !never.outcome_unknown());
    }

    #[test]
    fn causes_start_in_lower_case() {
        for (message, want) in [
            ("Connection refused (os error 111)", "connection refused"),
            ("TLS failed: x", "TLS failed: x"),
            ("", ""),
        ] {
            assert_eq!(in_sentence(message), want);
        }
    }
}
