//! Call in flight: its span, and the log line and metrics at its end.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use http::HeaderValue;
use tokio::time::Instant;
use tonic::{Code, Status};
use tonic_types::{ErrorInfo, StatusExt as _};
use tracing::Span;
use tracing::span::EnteredSpan;

use crate::audit::{AuditNote, AuditedCall};
use crate::auth::Caller;
use crate::contract::reason::{Reason, code_name};
use crate::log_limiter::LogPermit;
use crate::trace::{CallEnd, CallSpan, ScopeGuard};

use super::LayerState;
use super::admission::CallAdmission;
use super::method::RpcMethod;

/// Call from its first header to its last frame. It ends once: with a code, or by being dropped, because its client
/// has disconnected.
pub(super) struct RpcCall {
    shared: Arc<LayerState>,
    method: RpcMethod,
    id: HeaderValue,
    span: Span,
    /// Span for OpenTelemetry, if the call is recorded.
    trace: Option<CallSpan>,
    began: Instant,
    /// Resources that it holds of the limits; `None`: the call was refused.
    admission: Option<Arc<CallAdmission>>,
    /// Time at which the call is ended, its answer included.
    deadline: Option<Instant>,
    audit: AuditFacts,
    ended: bool,
}

/// Facts for the audit log.
#[derive(Default)]
struct AuditFacts {
    peer: Option<SocketAddr>,
    /// Caller, once it is recognized.
    caller: Option<Caller>,
    /// Note of what it touches and is denied.
    note: Option<AuditNote>,
}

/// Time in which a thread works for a call.
pub(super) struct CallScope {
    _span: EnteredSpan,
    _trace: Option<ScopeGuard>,
}

// === impl RpcCall ===

impl RpcCall {
    /// Starts a call now.
    pub(super) fn begin(
        shared: Arc<LayerState>,
        method: RpcMethod,
        id: HeaderValue,
        began: Instant,
        trace: Option<CallSpan>,
    ) -> RpcCall {
        // At debug level, so that the span costs nothing by default.
        let span = tracing::debug_span!("rpc", method = method.name, request_id = text(&id));
        let (admission, deadline) = (None, None);
        let audit = AuditFacts::default();
        RpcCall { shared, method, id, span, trace, began, admission, deadline, audit, ended: false }
    }

    /// Sets the address of its client.
    pub(super) fn set_peer(&mut self, peer: Option<SocketAddr>) {
        self.audit.peer = peer;
    }

    /// Sets the resources that it holds of the limits.
    pub(super) fn set_admission(&mut self, admission: Arc<CallAdmission>) {
        self.admission = Some(admission);
    }

    /// Sets its caller.
    pub(super) fn set_caller(&mut self, caller: Caller) {
        self.audit.caller = Some(caller);
    }

    /// Sets the note that its handler fills for the audit log.
    pub(super) fn set_note(&mut self, note: AuditNote) {
        self.audit.note = Some(note);
    }

    /// Sets the time at which the call is ended, whatever its client does.
    pub(super) fn set_deadline(&mut self, deadline: Option<Instant>) {
        self.deadline = deadline;
    }

    /// Returns the time at which the call is ended, whatever its client does.
    pub(super) fn deadline(&self) -> Option<Instant> {
        self.deadline
    }

    /// Returns the resources that it holds of the limits; `None`: the call was refused.
    pub(super) fn admission(&self) -> Option<&Arc<CallAdmission>> {
        self.admission.as_ref()
    }

    /// Returns the RPC of the call.
    pub(super) fn method(&self) -> RpcMethod {
        self.method
    }

    /// Returns the request id, which is sent back with the answer.
    pub(super) fn id(&self) -> &HeaderValue {
        &self.id
    }

    /// Enters the spans: later log lines belong to the call.
    pub(super) fn enter(&self) -> CallScope {
        let trace = self.trace.as_ref().map(CallSpan::enter);
        CallScope { _span: self.span.clone().entered(), _trace: trace }
    }

    /// Logs and measures the end of the call; `failure` is its error, if it failed.
    pub(super) fn end(&mut self, code: Code, failure: Option<&Status>) {
        if std::mem::replace(&mut self.ended, true) {
            return;
        }
        let took = self.began.elapsed();
        let (method, request_id) = (self.method.name, text(&self.id));
        let name = code_name(code);
        self.shared.metrics.rpc(method, name, took);
        self.end_trace(code, failure);
        self.write_audit(name, failure, took);
        // The log record of the end belongs to the trace, too.
        let _trace = self.trace.as_ref().map(CallSpan::enter);
        let trace_id = self.trace_id();
        let trace_id = trace_id.as_deref();
        let error = failure.map_or("", Status::message);
        match code {
            Code::Ok | Code::Cancelled => {
                tracing::debug!(method, request_id, trace_id, code = name, ?took, "call ended");
            }
            Code::Internal | Code::Unknown | Code::DataLoss => {
                tracing::error!(
                    method,
                    request_id,
                    trace_id,
                    code = name,
                    ?took,
                    error,
                    "call failed"
                );
            }
            _ => self.log_refusal(name, took, failure),
        }
    }

    /// Logs a refusal, at level debug if one with the same reason and shard was logged a moment ago.
    fn log_refusal(&self, code: &str, took: Duration, failure: Option<&Status>) {
        let (method, request_id) = (self.method.name, text(&self.id));
        let trace_id = self.trace_id();
        let trace_id = trace_id.as_deref();
        let error = failure.map_or("", Status::message);
        let cause = failure.and_then(Status::get_details_error_info);
        let reason = cause.as_ref().map_or("", |cause| &cause.reason);
        match self.log_permit(code, cause.as_ref()) {
            Some(passed) => {
                let suppressed = passed.suppressed();
                tracing::info!(
                    method,
                    request_id,
                    trace_id,
                    code,
                    reason,
                    ?took,
                    suppressed,
                    error,
                    "call refused"
                );
            }
            None => {
                tracing::debug!(method, request_id, trace_id, code, reason, error, "call refused");
            }
        }
    }

    /// Writes the line of the audit log, if the call has one.
    fn write_audit(&self, code: &str, failure: Option<&Status>, took: Duration) {
        let AuditFacts { peer, caller, note } = &self.audit;
        let identity = caller.as_ref().and_then(|caller| caller.identity());
        self.shared.audit.call_ended(&AuditedCall {
            rpc: self.method.name,
            identity: identity.map(|identity| identity.name.as_str()),
            peer: *peer,
            request_id: text(&self.id),
            note: note.as_ref(),
            code,
            error: failure.map(Status::message),
            took,
        });
    }

    /// Ends the span of OpenTelemetry.
    fn end_trace(&self, code: Code, failure: Option<&Status>) {
        let Some(trace) = &self.trace else { return };
        let cause = failure.and_then(Status::get_details_error_info);
        trace.end(&CallEnd {
            code: code_name(code),
            number: code.into(),
            reason: cause.as_ref().map_or("", |cause| &cause.reason),
            is_server_error: is_server_error(code),
        });
    }

    /// Returns the id of the trace, if the call is recorded.
    fn trace_id(&self) -> Option<String> {
        self.trace.as_ref().map(|trace| trace.trace_id().to_string())
    }

    /// Returns a permit to log a refusal, unless one with the same reason and shard was logged a moment ago.
    fn log_permit(&self, code: &str, cause: Option<&ErrorInfo>) -> Option<LogPermit> {
        let reason = cause.map_or("", |cause| &cause.reason);
        let of_a_shard = cause.filter(|cause| Reason::is_shard_reason(&cause.reason));
        let shard = of_a_shard.and_then(|cause| cause.metadata.get("shard"));
        let shard = shard.map_or("", String::as_str);
        self.shared.log.allow(&[self.method.name, code, reason, shard])
    }
}

/// Returns whether the code counts as an error of a server's span (semantic conventions for gRPC).
fn is_server_error(code: Code) -> bool {
    matches!(
        code,
        Code::Unknown
            | Code::DeadlineExceeded
            | Code::Unimplemented
            | Code::Internal
            | Code::Unavailable
            | Code::DataLoss
    )
}

impl Drop for RpcCall {
    fn drop(&mut self) {
        // The call was cut off at its deadline: its client did not read the answer.
        let is_late = self.deadline.is_some_and(|deadline| deadline <= Instant::now());
        self.end(if is_late { Code::DeadlineExceeded } else { Code::Cancelled }, None);
    }
}

/// Returns the id as text. Ids that are accepted or generated are always text.
fn text(id: &HeaderValue) -> &str {
    id.to_str().unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use crate::audit::AuditLog;
    use crate::auth::Authenticator;
    use crate::domain::ShardName;
    use crate::grpc::status::RpcError;
    use crate::metrics::Metrics;
    use crate::scheduler::{EnqueueError, SetShardStateError, ShardError};
    use crate::trace::Tracer;

    use super::super::{CallLayer, CallLimits};
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn refusals_are_logged_by_configured_shard_only() {
        let CallLayer { shared } = CallLayer::new(
            Metrics::new(),
            Tracer::default(),
            (Authenticator::off(), AuditLog::off()),
            CallLimits::new(1, 1 << 20, Duration::from_secs(1)),
        );
        let method = RpcMethod::from_path("/ringq.v1.QueueService/Enqueue");
        let id = HeaderValue::from_static("a");
        let call = RpcCall::begin(shared, method, id, Instant::now(), None);
        let lines = |failure: fn(ShardName) -> RpcError| {
            let names = ["a", "b", "c"].map(|name| ShardName::try_new(name).unwrap());
            let refused = names.map(|name| Status::from(failure(name)));
            let causes = refused.iter().map(|status| status.get_details_error_info());
            causes.filter(|cause| call.log_permit("X", cause.as_ref()).is_some()).count()
        };
        assert_eq!(lines(|name| ShardError::unavailable(&name, "").into()), 3);
        assert_eq!(lines(|name| ShardError::unknown(&name, "").into()), 3);
        assert_eq!(lines(|name| EnqueueError::NoSuchShard(name).into()), 1);
        assert_eq!(lines(|name| SetShardStateError::NotFound(name).into()), 1);
    }
}
