//! What surrounds every call, as one tower layer: at tens of thousands of calls a second each layer
//! of its own would cost a box and a poll.
//!
//! In the order in which a call meets them:
//! - [`method`]: which of our RPCs it is
//! - [`request_id`]: its name in logs, here and at the caller's
//! - [`gate`]: whether there is room for it
//! - [`deadline`]: until when an answer is of use
//! - [`call`]: its span, its log line and its measurement
//! - [`future`]: the handler, guarded against panics and lateness
//! - [`foreign`]: errors of the transport become ours
//! - [`body`]: the answer until its last frame

mod body;
mod call;
mod deadline;
mod foreign;
mod future;
mod gate;
mod method;
mod panic;
mod request_id;

use std::convert::Infallible;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use http::{Request, Response};
use tokio::time::Instant;
use tonic::body::Body;
use tower::{Layer, Service};

use crate::domain::limit;
use crate::metrics::Metrics;
use crate::said::Said;

use super::status::Failure;

pub(super) use body::CallBody;
use call::Call;
pub(super) use deadline::{Deadline, until};
use future::CallFuture;
use gate::Gate;
use method::{Kind, Method};

/// Wraps the services of this server.
#[derive(Clone)]
pub(super) struct CallLayer {
    shared: Arc<Shared>,
}

/// The services of this server, wrapped.
#[derive(Clone)]
pub(super) struct Calls<S> {
    inner: S,
    shared: Arc<Shared>,
}

/// A method's refusals for the same reason are said so often at most, with the number of the others.
const SAY_EVERY: Duration = Duration::from_secs(1);

/// What all calls share.
struct Shared {
    metrics: Metrics,
    gate: Gate,
    request_timeout: Duration,
    /// Refusals, by method, code, reason and shard.
    said: Said,
}

// === impl CallLayer ===

impl CallLayer {
    /// At most `requests_max` unary calls at once, each of at most `request_timeout`.
    pub(super) fn new(
        metrics: Metrics,
        requests_max: usize,
        request_timeout: Duration,
    ) -> CallLayer {
        let gate = Gate::new(requests_max);
        let said = Said::new(SAY_EVERY);
        CallLayer { shared: Arc::new(Shared { metrics, gate, request_timeout, said }) }
    }
}

impl<S> Layer<S> for CallLayer {
    type Service = Calls<S>;

    fn layer(&self, inner: S) -> Calls<S> {
        Calls { inner, shared: Arc::clone(&self.shared) }
    }
}

// === impl Calls ===

impl<S> Service<Request<Body>> for Calls<S>
where
    S: Service<Request<Body>, Response = Response<Body>, Error = Infallible>,
{
    type Response = Response<CallBody>;
    type Error = Infallible;
    type Future = CallFuture<S::Future>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        self.inner.poll_ready(cx)
    }

    fn call(&mut self, mut request: Request<Body>) -> CallFuture<S::Future> {
        let now = Instant::now();
        let method = Method::of(request.uri().path());
        let counted = method.kind == Kind::Unary;
        let admitted = !counted || self.shared.gate.enter();
        let id = request_id::of(request.headers());
        let call = Call::begin(Arc::clone(&self.shared), method, id, now, counted && admitted);
        if !admitted {
            let failure = Failure::too_many_requests(self.shared.gate.max());
            return CallFuture::refused(call, failure);
        }
        let asked = deadline::of(request.headers(), now);
        let deadline = earlier(asked, self.shared.cap(method.kind, now));
        if deadline.is_some_and(|deadline| deadline <= now) {
            return CallFuture::refused(call, Failure::deadline_exceeded());
        }
        let told = match method.kind {
            Kind::Pull => asked,
            // To the few whose handlers ask for it.
            Kind::Unary if method.writes_until_deadline() => deadline,
            Kind::Unary | Kind::Stream | Kind::Other => None,
        };
        if let Some(deadline) = told {
            request.extensions_mut().insert(Deadline(deadline));
        }
        let in_span = call.enter();
        let inner = self.inner.call(request);
        drop(in_span);
        CallFuture::run(call, inner, deadline)
    }
}

// === impl Shared ===

impl Shared {
    /// When this server gives up a call, whatever its caller says.
    fn cap(&self, kind: Kind, now: Instant) -> Option<Instant> {
        match kind {
            Kind::Unary => now.checked_add(self.request_timeout),
            Kind::Pull => now.checked_add(self.request_timeout + limit::PULL_WAIT_MAX),
            Kind::Stream | Kind::Other => None,
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
