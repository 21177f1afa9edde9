//! Errors that end a run early.

use tonic::{Code, Status};

use crate::cli::connect::{self, ServerConnection};
use crate::cli::exit::{self, CommandFailure};
use crate::client::Error;

/// Error that ends a run early.
#[derive(Debug)]
pub(super) enum BenchError {
    /// A call failed; the text names its purpose.
    CallFailed(&'static str, Box<Error>),
    /// The server violated its contract.
    ServerViolation(String),
    /// The run was interrupted by Ctrl-C.
    Interrupted,
}

/// Result of most functions of this module.
pub(super) type Result<T> = std::result::Result<T, BenchError>;

// === impl BenchError ===

impl BenchError {
    /// Builds the error of a failed call.
    pub(super) fn call_failed(what: &'static str) -> impl Fn(Status) -> BenchError {
        move |status| BenchError::CallFailed(what, Box::new(Error::from(status)))
    }

    /// Returns the failure with which the command ends.
    pub(super) fn failure(&self, connection: &ServerConnection) -> CommandFailure {
        match self {
            // A connection that breaks under a stream is reported under many codes.
            BenchError::CallFailed(what, error) if is_broken(error) => {
                let url = connect::one_of(connection.client());
                let problem = format!("{what}: the connection to {url} broke: {error}");
                CommandFailure::new(exit::UNAVAILABLE, problem)
            }
            BenchError::CallFailed(what, error) => connection.failure(what, error),
            BenchError::ServerViolation(problem) => CommandFailure::new(exit::FAILED, problem),
            BenchError::Interrupted => CommandFailure::new(exit::INTERRUPTED, "interrupted"),
        }
    }
}

/// Returns whether the connection broke: errors of the server have a reason.
fn is_broken(error: &Error) -> bool {
    let code = matches!(error.code(), Code::Unknown | Code::Internal | Code::Cancelled);
    code && error.reason().is_empty()
}
