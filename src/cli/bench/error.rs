//! Why a run did not come to its end.

use tonic::{Code, Status};

use crate::cli::connect::ServerConnection;
use crate::cli::exit::{self, CommandFailure};
use crate::client::Error;

/// See the module.
#[derive(Debug)]
pub(super) enum BenchError {
    /// A call failed; the text says what was to be done.
    CallFailed(&'static str, Box<Error>),
    /// The server did something that it must not do.
    ServerViolation(String),
    /// Somebody pressed Ctrl-C.
    Interrupted,
}

/// What most of this module returns.
pub(super) type Result<T> = std::result::Result<T, BenchError>;

// === impl Trouble ===

impl BenchError {
    /// Makes a failed call a trouble.
    pub(super) fn call_failed(what: &'static str) -> impl Fn(Status) -> BenchError {
        move |status| BenchError::CallFailed(what, Box::new(Error::from(status)))
    }

    /// What the command ends with.
    pub(super) fn failure(&self, connection: &ServerConnection) -> CommandFailure {
        match self {
            // A connection that breaks under a stream is reported under many codes.
            BenchError::CallFailed(what, error) if is_broken(error) => {
                let url = connection.client().url();
                let problem = format!("{what}: the connection to {url} broke: {error}");
                CommandFailure::new(exit::UNAVAILABLE, problem)
            }
            BenchError::CallFailed(what, error) => connection.failure(what, error),
            BenchError::ServerViolation(problem) => CommandFailure::new(exit::FAILED, problem),
            BenchError::Interrupted => CommandFailure::new(exit::INTERRUPTED, "interrupted"),
        }
    }
}

/// Whether it was not the server that said so: its answers have a reason.
fn is_broken(error: &Error) -> bool {
    let code = matches!(error.code(), Code::Unknown | Code::Internal | Code::Cancelled);
    code && error.reason().is_empty()
}
