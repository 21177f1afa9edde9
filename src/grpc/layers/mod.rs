//! Single tower layer around every call: at tens of thousands of calls a second each separate layer would cost a box
//! and a poll.
//!
//! Modules, in the order in which a call passes them:
//! - [`method`]: the RPC of the path
//! - [`request_id`]: the id of the call in logs, of the server and of the caller
//! - [`admission`]: its part of the server's limits, each of them a [`count_limit`]
//! - [`deadline`]: the time until which an answer is of use
//! - [`inbound_body`]: its message as it arrives
//! - [`call`]: its span, its log line and its metrics
//! - [`call_future`]: the handler, guarded against panics and late answers
//! - [`transport_errors`]: replaces errors of tonic by errors of the contract
//! - [`call_body`]: the answer until its last frame
//! - [`write_backlog`]: bytes of the answer that are not written yet
//! - [`call_abort`]: ends a call whose client does not read the answer

mod admission;
mod call;
pub(super) mod call_abort;
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
use http::{HeaderMap, HeaderValue, Request, Response, header};
use tokio::time::Instant;
use tonic::body::Body;
use tonic::transport::server::TcpConnectInfo;
use tower::Service;

use crate::audit::AuditLog;
use crate::auth::{Authenticator, Caller, ConnectionCredentials};
use crate::connections::Standing;
use crate::domain::limit;
use crate::log_limiter::LogLimiter;
use crate::metrics::Metrics;
use crate::tls::PeerCertificate;
use crate::trace::{CallSpan, TraceHeaders, Tracer};

use super::status::RpcError;

use admission::{CallAdmission, ConnectionLimits, SharedLimits};
use call::RpcCall;
pub(crate) use call_abort::AbortableCall;
pub(super) use call_body::{CallBody, StreamCut};
use call_future::CallFuture;
pub(super) use deadline::{CallDeadline, write_deadline};
pub(super) use inbound_body::MessageEncoding;
use inbound_body::{ArrivalTimeouts, InboundBody};
use method::{MethodKind, RpcMethod};

/// Layer around the services of this server.
#[derive(Clone)]
pub(super) struct CallLayer {
    shared: Arc<LayerState>,
}

/// Services of this server, wrapped for one connection.
#[derive(Clone)]
pub(super) struct CallService<S> {
    inner: S,
    shared: Arc<LayerState>,
    connection: Arc<ConnectionLimits>,
    standing: Arc<Standing>,
    credentials: Arc<ConnectionCredentials>,
    encoding: MessageEncoding,
}

/// Limits of all calls together.
#[derive(Clone, Copy, Debug)]
pub(super) struct CallLimits {
    requests_max: usize,
    bytes_max: usize,
    request_timeout: Duration,
}

/// Interval in which refusals of a method with the same reason are logged at most once, with the number suppressed.
const LOG_EVERY: Duration = Duration::from_secs(1);

/// State shared by all calls.
struct LayerState {
    metrics: Metrics,
    tracer: Tracer,
    authenticator: Authenticator,
    audit: AuditLog,
    bounds: Arc<SharedLimits>,
    request_timeout: Duration,
    /// Log limiter for refusals, by method, code, reason and shard.
    log: LogLimiter,
}

// === impl CallLayer ===

impl CallLayer {
    /// Creates a layer that keeps all calls together within `limits`.
    pub(super) fn new(
        metrics: Metrics,
        tracer: Tracer,
        (authenticator, audit): (Authenticator, AuditLog),
        limits: CallLimits,
    ) -> CallLayer {
        let CallLimits { requests_max, bytes_max, request_timeout } = limits;
        let bounds = Arc::new(SharedLimits::new(requests_max, bytes_max));
        let log = LogLimiter::new("refused calls", LOG_EVERY);
        let shared =
            LayerState { metrics, tracer, authenticator, audit, bounds, request_timeout, log };
        CallLayer { shared: Arc::new(shared) }
    }

    /// Wraps the services for a new connection.
    #[cfg(test)]
    fn connection<S>(&self, inner: S) -> CallService<S> {
        let standing = Standing::with_place();
        self.connection_for(inner, None, standing, MessageEncoding::Protobuf)
    }

    /// Wraps the services for a new connection of this standing with messages in this encoding, which was opened with this
    /// client certificate, or with none.
    pub(super) fn connection_for<S>(
        &self,
        inner: S,
        certificate: Option<Arc<PeerCertificate>>,
        standing: Arc<Standing>,
        encoding: MessageEncoding,
    ) -> CallService<S> {
        let connection = Arc::new(self.shared.bounds.connection(encoding.bytes_max()));
        let credentials = Arc::new(self.shared.authenticator.connection(certificate));
        let shared = Arc::clone(&self.shared);
        CallService { inner, shared, connection, standing, credentials, encoding }
    }
}

// === impl CallLimits ===

impl CallLimits {
    /// Creates limits: at most `requests_max` unary calls at once, each of at most `request_timeout`, and `bytes_max`
    /// bytes of messages.
    pub(super) fn new(
        requests_max: usize,
        bytes_max: usize,
        request_timeout: Duration,
    ) -> CallLimits {
        CallLimits { requests_max, bytes_max, request_timeout }
    }
}

// === impl CallService ===

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
        let trace = self.shared.start_trace(method, &id, &request);
        if let Some(trace) = &trace {
            request.extensions_mut().insert(trace.clone());
        }
        let mut call = RpcCall::begin(Arc::clone(&self.shared), method, id, now, trace);
        let info = request.extensions().get::<TcpConnectInfo>();
        call.set_peer(info.and_then(TcpConnectInfo::remote_addr));
        if let Some(note) = method.rpc.and_then(|rpc| self.shared.audit.note(rpc)) {
            call.set_note(note.clone());
            request.extensions_mut().insert(note);
        }
        let (caller, admission) = match self.admit(method, request.headers(), now, &mut call) {
            Ok(admitted) => admitted,
            Err(failure) => return CallFuture::refused(call, failure),
        };
        request.extensions_mut().insert(caller);
        let asked = deadline::from_headers(request.headers(), now);
        let deadline = earlier(asked, self.shared.call_timeout(method.kind, now));
        if deadline.is_some_and(|deadline| deadline <= now) {
            return CallFuture::refused(call, RpcError::deadline_exceeded());
        }
        let handler_deadline = match method.kind {
            MethodKind::Pull => asked,
            // Passed to the few handlers that use it.
            MethodKind::Unary if method.writes_until_deadline() => deadline,
            MethodKind::Unary | MethodKind::Stream | MethodKind::Watch | MethodKind::Other => None,
        };
        if let Some(deadline) = handler_deadline {
            request.extensions_mut().insert(CallDeadline(deadline));
        }
        call.set_deadline(deadline);
        let arrival = self.shared.arrival_timeouts(method, now);
        let encoding = self.encoding;
        let request =
            request.map(|body| Body::new(InboundBody::new(body, admission, arrival, encoding)));
        let in_span = call.enter();
        let inner = self.inner.call(request);
        drop(in_span);
        CallFuture::run(call, inner)
    }
}

impl<S> CallService<S> {
    /// Recognizes the caller of a call, takes the resources that it needs, and refuses it beyond its rate, or without a
    /// right to it whatever the message is. A call that has to show an identity takes nothing before it has.
    fn admit(
        &self,
        method: RpcMethod,
        headers: &HeaderMap,
        now: Instant,
        call: &mut RpcCall,
    ) -> Result<(Caller, Arc<CallAdmission>), RpcError> {
        let caller = if method.is_health() {
            self.standing.touch();
            Caller::anyone()
        } else {
            let header = headers.get(header::AUTHORIZATION).map(HeaderValue::as_bytes);
            let caller = self.credentials.caller(header).map_err(|failure| {
                self.standing.touch();
                RpcError::unauthenticated(failure)
            })?;
            self.standing.identify();
            call.set_caller(caller.clone());
            caller
        };
        let (bounds, has_identity) = (&self.shared.bounds, caller.identity().is_some());
        let (connection, standing) = (&self.connection, &*self.standing);
        let call_of = (method, has_identity);
        let admission = CallAdmission::begin(bounds, connection, standing, call_of)?;
        call.set_admission(Arc::clone(&admission));
        if let Some(meter) = caller.meter() {
            let admitted = meter.admit_call(method.settles(), now);
            admitted.map_err(|exceeded| RpcError::quota_exceeded(&exceeded))?;
        }
        if let (Some(identity), Some(rpc)) = (caller.identity(), method.rpc) {
            let allowed = identity.may_call(rpc);
            allowed.map_err(|denial| RpcError::permission_denied(&caller, &denial))?;
        }
        Ok((caller, admission))
    }
}

// === impl LayerState ===

impl LayerState {
    /// Starts the span of a call, if it is recorded.
    fn start_trace<B>(
        &self,
        method: RpcMethod,
        id: &HeaderValue,
        request: &Request<B>,
    ) -> Option<CallSpan> {
        if !self.tracer.is_on() || !method.is_traced() {
            return None;
        }
        let header = |name| request.headers().get(name)?.to_str().ok();
        let trace = self.tracer.start_call(method.path, TraceHeaders::read(header))?;
        trace.set_request_id(id.to_str().unwrap_or_default());
        let info = request.extensions().get::<TcpConnectInfo>();
        if let Some(peer) = info.and_then(TcpConnectInfo::remote_addr) {
            trace.set_peer(peer);
        }
        Some(trace)
    }

    /// Returns the time at which this server ends a call, whatever deadline its caller has set.
    fn call_timeout(&self, kind: MethodKind, now: Instant) -> Option<Instant> {
        match kind {
            MethodKind::Unary => now.checked_add(self.request_timeout),
            MethodKind::Pull => now.checked_add(self.request_timeout + limit::PULL_WAIT_MAX),
            MethodKind::Other => now.checked_add(self.request_timeout),
            MethodKind::Stream | MethodKind::Watch => None,
        }
    }

    /// Returns the time limits for the message of a call; a total limit is needed only if its answer has no deadline.
    fn arrival_timeouts(&self, method: RpcMethod, now: Instant) -> ArrivalTimeouts {
        match method.kind {
            // A name, which a probe sends at once.
            _ if method.is_health() => ArrivalTimeouts {
                stall: limit::REQUEST_STALL_MAX,
                until: now.checked_add(limit::REQUEST_STALL_MAX),
            },
            MethodKind::Unary | MethodKind::Pull => {
                ArrivalTimeouts { stall: limit::REQUEST_STALL_MAX, until: None }
            }
            MethodKind::Stream | MethodKind::Watch => {
                let until = now.checked_add(self.request_timeout);
                ArrivalTimeouts { stall: limit::REQUEST_STALL_MAX, until }
            }
            // Reflection sends several requests in one call.
            MethodKind::Other => ArrivalTimeouts { stall: self.request_timeout, until: None },
        }
    }
}

/// Returns whether a path is that of an RPC of this server.
#[cfg(test)]
pub(super) fn is_served(path: &str) -> bool {
    RpcMethod::from_path(path).path != RpcMethod::from_path("").path
}

fn earlier(a: Option<Instant>, b: Option<Instant>) -> Option<Instant> {
    match (a, b) {
        (Some(a), Some(b)) => Some(a.min(b)),
        (a, b) => a.or(b),
    }
}

#[cfg(test)]
mod tests;
