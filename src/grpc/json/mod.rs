//! Calls as canonical JSON: a second encoding of the same calls, for the HTTP port.
//!
//! A JSON call is a gRPC call within the process. It passes the layers and the handlers of the gRPC port, so that
//! limits, deadlines, request ids, metrics, log lines and errors are the same:
//!
//! 1. [`connection`] admits the connection, and passes a few headers on as metadata
//! 2. `layers` counts the JSON text like a message, as it arrives
//! 3. [`request`] replaces the text by the encoded message, and the services handle it
//! 4. [`answer`] replaces the message of the answer by JSON; the call ends when that is written
//! 5. [`error`] converts an error to a status code of HTTP and a JSON body

mod answer;
mod connection;
mod error;
mod methods;
mod request;

use std::sync::Arc;

use tokio::sync::Semaphore;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use super::{Error, GrpcServer};

pub(crate) use answer::to_response;
pub(crate) use connection::JsonConnection;
pub(crate) use error::JsonError;
use methods::JsonMethods;
use request::JsonRoutes;

/// Maximum number of calls in flight on one connection, answers that are not written yet included. Of HTTP/1.1 it
/// bounds the answers to a client that sends requests without reading.
pub(crate) const CALLS_MAX: usize = 128;
/// Maximum size of a text that is parsed, or of a message that becomes text, at once; a larger one would keep other calls
/// waiting.
const SMALL_BYTES_MAX: usize = 64 << 10;

/// Entry for JSON calls to the services of this server.
#[derive(Clone)]
pub struct JsonCalls(Arc<JsonServer>);

struct JsonServer {
    grpc: GrpcServer,
    methods: JsonMethods,
    /// Cancelled when the gRPC port accepts no more calls.
    stop: CancellationToken,
    /// Calls in flight.
    open: TaskTracker,
    /// Permit to parse or to write a large text.
    large: Arc<Semaphore>,
}

#[cfg(test)]
mod tests;

// === impl JsonServer ===

impl JsonServer {
    /// Returns the services for one connection.
    fn routes(&self) -> JsonRoutes {
        JsonRoutes::new(self.grpc.routes.clone(), Arc::clone(&self.large))
    }
}

// === impl JsonCalls ===

impl JsonCalls {
    /// Creates the entry to `grpc`, which accepts calls until `stop` is cancelled.
    ///
    /// # Errors
    /// [`Error::Descriptors`]; no client can cause it.
    pub fn new(grpc: GrpcServer, stop: CancellationToken) -> Result<JsonCalls, Error> {
        let methods = JsonMethods::of_the_contract()?;
        let (open, large) = (TaskTracker::new(), Arc::new(Semaphore::new(1)));
        Ok(JsonCalls(Arc::new(JsonServer { grpc, methods, stop, open, large })))
    }

    /// Waits until no more calls are accepted and the last one has ended.
    pub async fn ended(&self) {
        let JsonServer { stop, open, .. } = &*self.0;
        stop.cancelled().await;
        open.close();
        open.wait().await;
    }
}
