//! What surrounds every call, as one tower layer: at tens of thousands of calls a second each layer
//! of its own would cost a box and a poll.
//!
//! In the order in which a call meets them:
//! - [`method`]: which of our RPCs it is
//! - [`request_id`]: its name in logs, here and at the caller's
//! - [`admission`]: what it takes of the server's bounds, each of them a [`gate`]
//! - [`deadline`]: until when an answer is of use
//! - [`inbound`]: its message as it arrives
//! - [`call`]: its span, its log line and its measurement
//! - [`future`]: the handler, guarded against panics and lateness
//! - [`foreign`]: errors of the transport become ours
//! - [`body`]: the answer until its last frame
//! - [`backlog`]: what of it is not written yet
//! - [`cut`]: its end where the client does not read it

mod admission;
mod backlog;
mod body;
mod call;
mod cut;
mod deadline;
mod foreign;
mod future;
mod gate;
mod inbound;
mod method;
mod panic;
mod request_id;

use std::convert::Infallible;
use std::fmt;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use http::{Request, Response};
use tokio::time::Instant;
use tonic::body::Body;
use tower::Service;

use crate::domain::limit;
use crate::log_limiter::LogLimiter;
use crate::metrics::Metrics;

use super::status::Failure;

use admission::{Admission, Bounds, Connection};
pub(super) use body::{CallBody, Ends};
use call::Call;
pub(super) use cut::Cut;
pub(super) use deadline::{Deadline, until};
use future::CallFuture;
use inbound::{Arrival, Inbound};
use method::{Kind, Method};

/// Wraps the services of this server.
#[derive(Clone)]
pub(super) struct CallLayer {
    shared: Arc<Shared>,
}

/// The services of this server, wrapped for one connection.
#[derive(Clone)]
pub(super) struct Calls<S> {
    inner: S,
    shared: Arc<Shared>,
    connection: Arc<Connection>,
}

/// Bounds of all calls together.
#[derive(Clone, Copy, Debug)]
pub(super) struct Limits {
    requests_max: usize,
    bytes_max: usize,
    request_timeout: Duration,
}

/// How often a method's refusals for the same reason are logged at most, with the number of the others.
const LOG_EVERY: Duration = Duration::from_secs(1);

/// What all calls share.
struct Shared {
    metrics: Metrics,
    bounds: Arc<Bounds>,
    request_timeout: Duration,
    /// Refusals, by method, code, reason and shard.
    log: LogLimiter,
}

// === impl CallLayer ===

impl CallLayer {
    /// Keeps all calls together within `limits`.
    pub(super) fn new(metrics: Metrics, limits: Limits) -> CallLayer {
        let Limits { requests_max, bytes_max, request_timeout } = limits;
        let bounds = Arc::new(Bounds::new(requests_max, bytes_max));
        let log = LogLimiter::new(LOG_EVERY);
        CallLayer { shared: Arc::new(Shared { metrics, bounds, request_timeout, log }) }
    }

    /// The services as a new connection sees them.
    pub(super) fn connection<S>(&self, inner: S) -> Calls<S> {
        let connection = Arc::new(self.shared.bounds.connection());
        Calls { inner, shared: Arc::clone(&self.shared), connection }
    }
}

// === impl Limits ===

impl Limits {
    /// At most `requests_max` unary calls at once, each of at most `request_timeout`, and `bytes_max` bytes of messages.
    pub(super) fn new(requests_max: usize, bytes_max: usize, request_timeout: Duration) -> Limits {
        Limits { requests_max, bytes_max, request_timeout }
    }
}

// === impl Calls ===

impl<S, B> Service<Request<B>> for Calls<S>
where
    S: Service<Request<Body>, Response = Response<Body>, Error = Infallible>,
    B: http_body::Body<Data = Bytes, Error: fmt::Display> + Send + Unpin + 'static,
{
    type Response = Response<CallBody>;
    type Error = Infallible;
    type Future = CallFuture<S::Future>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        self.inner.poll_ready(cx)
    }

    fn call(&mut self, mut request: Request<B>) -> CallFuture<S::Future> {
        let now = Instant::now();
        let method = Method::of(request.uri().path());
        let id = request_id::of(request.headers());
        let admitted = Admission::begin(&self.shared.bounds, &self.connection, method);
        let admission = admitted.as_ref().ok().map(Arc::clone);
        let mut call = Call::begin(Arc::clone(&self.shared), method, id, now, admission);
        let admission = match admitted {
            Ok(admission) => admission,
            Err(failure) => return CallFuture::refused(call, failure),
        };
        let asked = deadline::of(request.headers(), now);
        let deadline = earlier(asked, self.shared.cap(method.kind, now));
        if deadline.is_some_and(|deadline| deadline <= now) {
            return CallFuture::refused(call, Failure::deadline_exceeded());
        }
        let told = match method.kind {
            Kind::Pull => asked,
            // To the few whose handlers ask for it.
            Kind::Unary if method.writes_until_deadline() => deadline,
            Kind::Unary | Kind::Stream | Kind::Watch | Kind::Other => None,
        };
        if let Some(deadline) = told {
            request.extensions_mut().insert(Deadline(deadline));
        }
        call.set_deadline(deadline);
        let arrival = self.shared.arrival(method.kind, now);
        let request = request.map(|body| Body::new(Inbound::new(body, admission, arrival)));
        let in_span = call.enter();
        let inner = self.inner.call(request);
        drop(in_span);
        CallFuture::run(call, inner)
    }
}

// === impl Shared ===

impl Shared {
    /// When this server gives up a call, whatever its caller says.
    fn cap(&self, kind: Kind, now: Instant) -> Option<Instant> {
        match kind {
            Kind::Unary => now.checked_add(self.request_timeout),
            Kind::Pull => now.checked_add(self.request_timeout + limit::PULL_WAIT_MAX),
            Kind::Other => now.checked_add(self.request_timeout),
            Kind::Stream | Kind::Watch => None,
        }
    }

    /// When the message of a call must be there, if its answer has no deadline.
    fn arrival(&self, kind: Kind, now: Instant) -> Arrival {
        match kind {
            Kind::Unary | Kind::Pull => Arrival { stall: limit::REQUEST_STALL_MAX, until: None },
            Kind::Stream | Kind::Watch => {
                let until = now.checked_add(self.request_timeout);
                Arrival { stall: limit::REQUEST_STALL_MAX, until }
            }
            // Reflection asks and asks again in one call.
            Kind::Other => Arrival { stall: self.request_timeout, until: None },
        }
    }
}

fn earlier(a: Option<Instant>, b: Option<Instant>) -> Option<Instant> {
    match (a, b) {
        (Some(a), Some(b)) => Some(a.min(b)),
        (a, b) => a.or(b),
    }
}

#[cfg(test)]
mod tests;
