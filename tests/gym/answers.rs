//! Scripted answers of unary calls, and the statuses in them.

use std::collections::HashMap;
use std::time::Duration;

use ringq::pb::{EnqueueOutcome, ItemError, SettleError};
use tokio_util::sync::CancellationToken;
use tonic::{Code, Status};
use tonic_types::{ErrorDetails, StatusExt as _};

use super::call::Call;

/// Answer of a call.
pub(crate) enum Answer {
    /// OK, and applied, as by a server.
    Normal,
    /// Fails, and nothing is applied.
    Fail(Status),
    /// Is applied, and fails all the same: its answer was lost.
    Applied(Status),
    /// Items of these jobs fail; the others are applied.
    Items(Vec<(&'static str, SettleError)>),
    /// Results of these jobs fail, named by their position; the others are enqueued.
    Results(Vec<(usize, ItemError)>),
    /// Never comes.
    Never,
    /// Comes, and is applied, once the event has happened.
    After(CancellationToken),
}

/// Decides about the calls of a method.
pub(crate) type Rule = Box<dyn FnMut(&Call) -> Answer + Send>;

/// Builds an error of the server, with its reason and perhaps the time after which to repeat.
pub(crate) fn error(code: Code, reason: &str, retry_after: Option<f64>) -> Status {
    let mut details = ErrorDetails::with_error_info(reason, "ringq.dev", HashMap::new());
    if let Some(seconds) = retry_after {
        details.set_retry_info(Some(Duration::from_secs_f64(seconds)));
    }
    Status::with_error_details(code, format!("scripted {reason}"), details)
}

/// Builds an error without details, as a library or a proxy makes them.
pub(crate) fn bare(code: Code) -> Status {
    Status::new(code, "scripted, without details")
}

/// Builds the error of an enqueued job.
pub(crate) fn item_error(code: Code, reason: &str) -> ItemError {
    let message = format!("scripted {reason}");
    ItemError { code: code.into(), reason: reason.to_owned(), message, field: String::new() }
}

/// Returns the outcome of an enqueued job.
pub(crate) fn outcome(is_new: bool) -> EnqueueOutcome {
    if is_new { EnqueueOutcome::Created } else { EnqueueOutcome::Unchanged }
}
