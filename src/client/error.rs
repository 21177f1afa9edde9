//! Why a call failed, as the server's error model says it (see `ItemError` in `job.proto`).

use std::collections::HashMap;
use std::error::Error as _;
use std::time::Duration;

use tonic::{Code, Status};
use tonic_types::StatusExt as _;

use crate::pb::{ItemError, SettleError, SettleFailure};

/// A call, or one item of a call, that failed.
#[derive(Clone, Debug, thiserror::Error)]
#[error("{message}")]
pub struct Error {
    code: Code,
    reason: String,
    message: String,
    field: Option<String>,
    retry_after: Option<Duration>,
    metadata: HashMap<String, String>,
    reached: bool,
}

// === impl Error ===

impl Error {
    /// A mistake found before any call.
    pub(super) fn usage(field: &str, message: impl Into<String>) -> Error {
        Error {
            code: Code::InvalidArgument,
            reason: "INVALID_ARGUMENT".to_owned(),
            message: message.into(),
            field: Some(field.to_owned()),
            retry_after: None,
            metadata: HashMap::new(),
            reached: false,
        }
    }

    /// The gRPC code.
    #[must_use]
    pub fn code(&self) -> Code {
        self.code
    }

    /// The stable reason, UPPER_SNAKE_CASE. Empty when the failure was not the server's answer, as
    /// with a refused connection.
    #[must_use]
    pub fn reason(&self) -> &str {
        &self.reason
    }

    /// A sentence for people.
    #[must_use]
    pub fn message(&self) -> &str {
        &self.message
    }

    /// The path of the field that is to blame, as in `job.retry.delays[2]`.
    #[must_use]
    pub fn field(&self) -> Option<&str> {
        self.field.as_deref()
    }

    /// When the server wants the next attempt.
    #[must_use]
    pub fn retry_after(&self) -> Option<Duration> {
        self.retry_after
    }

    /// What the reason is about, by name: `id`, `topic`, `state`, ….
    #[must_use]
    pub fn metadata(&self, key: &str) -> Option<&str> {
        self.metadata.get(key).map(String::as_str)
    }

    /// Whether the server, a shard or the way there is down at the moment, so that the same call may
    /// succeed later.
    #[must_use]
    pub fn is_unavailable(&self) -> bool {
        matches!(self.code, Code::Unavailable | Code::DeadlineExceeded)
    }

    /// Whether there is no such job or topic.
    #[must_use]
    pub fn is_not_found(&self) -> bool {
        self.code == Code::NotFound
    }

    /// Whether the failed call may have been carried out all the same. Repeat it only if that is
    /// harmless, as it is for a job with an id.
    #[must_use]
    pub fn outcome_unknown(&self) -> bool {
        match self.reason.as_str() {
            "OUTCOME_UNKNOWN" | "DURABILITY_NOT_REACHED" => true,
            // No answer of the server: only a connection that never was has carried nothing.
            "" => self.reached,
            _ => self.code == Code::DeadlineExceeded,
        }
    }
}

impl From<Status> for Error {
    fn from(status: Status) -> Error {
        let details = status.get_error_details();
        let info = details.error_info();
        let field = details
            .bad_request()
            .and_then(|bad| bad.field_violations.first())
            .map(|violation| violation.field.clone());
        let cause = innermost(&status);
        Error {
            code: status.code(),
            reason: info.map(|info| info.reason.clone()).unwrap_or_default(),
            message: cause.clone().unwrap_or_else(|| status.message().to_owned()),
            field: field.filter(|field| !field.is_empty()),
            retry_after: details.retry_info().and_then(|retry| retry.retry_delay),
            metadata: info.map(|info| info.metadata.clone()).unwrap_or_default(),
            reached: !refused(&status),
        }
    }
}

impl From<ItemError> for Error {
    fn from(item: ItemError) -> Error {
        Error {
            code: Code::from_i32(item.code),
            reason: item.reason,
            message: item.message,
            field: Some(item.field).filter(|field| !field.is_empty()),
            retry_after: None,
            metadata: HashMap::new(),
            reached: true,
        }
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
        Error {
            code,
            reason: failure.error().as_str_name().trim_start_matches("SETTLE_ERROR_").to_owned(),
            message: failure.message,
            field: None,
            retry_after: None,
            metadata: HashMap::new(),
            reached: true,
        }
    }
}

/// What broke the transport, for people: "Connection refused", not "transport error".
fn innermost(status: &Status) -> Option<String> {
    let mut cause = status.source()?;
    while let Some(deeper) = cause.source() {
        cause = deeper;
    }
    Some(cause.to_string())
}

/// Whether no connection came about, so that the call cannot have reached a server.
fn refused(status: &Status) -> bool {
    let mut cause = status.source();
    while let Some(error) = cause {
        // The connector of tonic says so in a type that is private to it.
        if error.to_string().contains("tcp connect error")
            || error.to_string().contains("dns error")
        {
            return true;
        }
        cause = error.source();
    }
    false
}
