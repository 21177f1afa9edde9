//! Why a run did not come to its end.

use tonic::{Code, Status};

use crate::cli::connect::Connection;
use crate::cli::exit::{self, Failure};
use crate::client::Error;

/// See the module.
#[derive(Debug)]
pub(super) enum Trouble {
    /// A call failed; the text says what was to be done.
    Call(&'static str, Box<Error>),
    /// The server did something that it must not do.
    Wrong(String),
    /// Somebody pressed Ctrl-C.
    Interrupted,
}

/// What most of this module returns.
pub(super) type Result<T> = std::result::Result<T, Trouble>;

// === impl Trouble ===

impl Trouble {
    /// Makes a failed call a trouble.
    pub(super) fn at(what: &'static str) -> impl Fn(Status) -> Trouble {
        move |status| Trouble::Call(what, Box::new(Error::from(status)))
    }

    /// What the command ends with.
    pub(super) fn failure(&self, connection: &Connection) -> Failure {
        match self {
            // A connection that breaks under a stream is reported under many codes.
            Trouble::Call(what, error) if is_broken(error) => {
                let url = connection.client().url();
                let problem = format!("{what}: the connection to {url} broke: {error}");
                Failure::new(exit::UNAVAILABLE, problem)
            }
            Trouble::Call(what, error) => connection.failure(what, error),
            Trouble::Wrong(problem) => Failure::new(exit::FAILED, problem),
            Trouble::Interrupted => Failure::new(exit::INTERRUPTED, "interrupted"),
        }
    }
}

/// Whether it was not the server that said so: its answers have a reason.
fn is_broken(error: &Error) -> bool {
    let code = matches!(error.code(), Code::Unknown | Code::Internal | Code::Cancelled);
    code && error.reason().is_empty()
}
