//! What surrounds every call, as one tower layer: at tens of thousands of calls a second each layer
//! of its own would cost a box and a poll.
//!
//! In the order in which a call meets them:
//! - [`method`]: which of our RPCs it is
//! - [`request_id`]: its name in logs, here and at the caller's
//! - [`admission`]: what it takes of the server's bounds, each of them a [`gate`]
//! - [`deadline`]: until when an answer is of use
//! - [`inbound_body`]: its message as it arrives
//! - [`call`]: its span, its log line and its measurement
//! - [`future`]: the handler, guarded against panics and lateness
//! - [`foreign`]: errors of the transport become ours
//! - [`body`]: the answer until its last frame
//! - [`backlog`]: what of it is not written yet
//! - [`cut`]: its end where the client does not read it

mod admission;
mod call;
mod call_abort;
mod call_body;
mod call_future;
mod count_limit;
mod deadline;
mod inbound_body;
mod method;
mod panic;
mod request_id;
mod transport_errors;
mod write_backlog;

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

use super::status::RpcError;

use admission::{CallAdmission, ConnectionLimits, SharedLimits};
use call::RpcCall;
pub(super) use call_abort::AbortableCall;
pub(super) use call_body::{CallBody, StreamCut};
use call_future::CallFuture;
pub(super) use deadline::{CallDeadline, write_deadline};
use inbound_body::{ArrivalTimeouts, InboundBody};
use method::{MethodKind, RpcMethod};

/// Wraps the services of this server.
#[derive(Clone)]
pub(super) struct CallLayer {
    shared: Arc<LayerState>,
}

/// The services of this server, wrapped for one connection.
#[derive(Clone)]
pub(super) struct CallService<S> {
    inner: S,
    shared: Arc<LayerState>,
    connection: Arc<ConnectionLimits>,
}

/// Bounds of all calls together.
#[derive(Clone, Copy, Debug)]
pub(super) struct CallLimits {
    requests_max: usize,
    bytes_max: usize,
    request_timeout: Duration,
}

/// How often a method's refusals for the same reason are logged at most, with the number of the others.
const LOG_EVERY: Duration = Duration::from_secs(1);

/// What all calls share.
struct LayerState {
    metrics: Metrics,
    bounds: Arc<SharedLimits>,
    request_timeout: Duration,
    /// Refusals, by method, code, reason and shard.
    log: LogLimiter,
}

// === impl CallLayer ===

impl CallLayer {
    /// Keeps all calls together within `limits`.
    pub(super) fn new(metrics: Metrics, limits: CallLimits) -> CallLayer {
        let CallLimits { requests_max, bytes_max, request_timeout } = limits;
        let bounds = Arc::new(SharedLimits::new(requests_max, bytes_max));
        let log = LogLimiter::new(LOG_EVERY);
        CallLayer { shared: Arc::new(LayerState { metrics, bounds, request_timeout, log }) }
    }

    /// The services as a new connection sees them.
    pub(super) fn connection<S>(&self, inner: S) -> CallService<S> {
        let connection = Arc::new(self.shared.bounds.connection());
        CallService { inner, shared: Arc::clone(&self.shared), connection }
    }
}

// === impl Limits ===

impl CallLimits {
    /// At most `requests_max` unary calls at once, each of at most `request_timeout`, and `bytes_max` bytes of messages.
    pub(super) fn new(
        requests_max: usize,
        bytes_max: usize,
        request_timeout: Duration,
    ) -> CallLimits {
        CallLimits { requests_max, bytes_max, request_timeout }
    }
}

// === impl Calls ===

impl<S, B> Service<Request<B>> for CallService<S>
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
        let method = RpcMethod::from_path(request.uri().path());
        let id = request_id::from_headers(request.headers());
        let admitted = CallAdmission::begin(&self.shared.bounds, &self.connection, method);
        let admission = admitted.as_ref().ok().map(Arc::clone);
        let mut call = RpcCall::begin(Arc::clone(&self.shared), method, id, now, admission);
        let admission = match admitted {
            Ok(admission) => admission,
            Err(failure) => return CallFuture::refused(call, failure),
        };
        let asked = deadline::from_headers(request.headers(), now);
        let deadline = earlier(asked, self.shared.call_timeout(method.kind, now));
        if deadline.is_some_and(|deadline| deadline <= now) {
            return CallFuture::refused(call, RpcError::deadline_exceeded());
        }
        let told = match method.kind {
            MethodKind::Pull => asked,
            // To the few whose handlers ask for it.
            MethodKind::Unary if method.writes_until_deadline() => deadline,
            MethodKind::Unary | MethodKind::Stream | MethodKind::Watch | MethodKind::Other => None,
        };
        if let Some(deadline) = told {
            request.extensions_mut().insert(CallDeadline(deadline));
        }
        call.set_deadline(deadline);
        let arrival = self.shared.arrival_timeouts(method.kind, now);
        let request = request.map(|body| Body::new(InboundBody::new(body, admission, arrival)));
        let in_span = call.enter();
        let inner = self.inner.call(request);
        drop(in_span);
        CallFuture::run(call, inner)
    }
}

// === impl Shared ===

impl LayerState {
    /// When this server gives up a call, whatever its caller says.
    fn call_timeout(&self, kind: MethodKind, now: Instant) -> Option<Instant> {
        match kind {
            MethodKind::Unary => now.checked_add(self.request_timeout),
            MethodKind::Pull => now.checked_add(self.request_timeout + limit::PULL_WAIT_MAX),
            MethodKind::Other => now.checked_add(self.request_timeout),
            MethodKind::Stream | MethodKind::Watch => None,
        }
    }

    /// When the message of a call must be there, if its answer has no deadline.
    fn arrival_timeouts(&self, kind: MethodKind, now: Instant) -> ArrivalTimeouts {
        match kind {
            MethodKind::Unary | MethodKind::Pull => {
                ArrivalTimeouts { stall: limit::REQUEST_STALL_MAX, until: None }
            }
            MethodKind::Stream | MethodKind::Watch => {
                let until = now.checked_add(self.request_timeout);
                ArrivalTimeouts { stall: limit::REQUEST_STALL_MAX, until }
            }
            // Reflection asks and asks again in one call.
            MethodKind::Other => ArrivalTimeouts { stall: self.request_timeout, until: None },
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
