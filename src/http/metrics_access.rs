//! Right to the metrics, which show the whole server: that to ListShards.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use axum::http::{HeaderMap, HeaderValue, StatusCode, header};

use crate::audit::{AuditLog, AuditedCall};
use crate::auth::{Authenticator, Caller};
use crate::rpc::Rpc;
use crate::tls::PeerCertificate;

/// Name of the page in the audit log.
const PAGE: &str = "GET /metrics";

/// Identities that may read the metrics, and the log of those that may not.
#[derive(Clone)]
pub struct MetricsAccess {
    readers: Authenticator,
    audit: AuditLog,
}

/// Request without a right to the metrics.
pub(super) struct MetricsDenial {
    pub(super) status: StatusCode,
    /// Text for people, with what is missing.
    pub(super) text: String,
    /// Name of the code of a call that fails for the same reason; `None`: the request has proved nothing yet.
    code: Option<&'static str>,
    caller: Option<Caller>,
}

// === impl MetricsAccess ===

impl MetricsAccess {
    /// Creates the access of the identities of `readers`; denials are written to `audit`.
    #[must_use]
    pub fn new(readers: Authenticator, audit: AuditLog) -> MetricsAccess {
        MetricsAccess { readers, audit }
    }

    /// Allows or refuses a request from `peer` with these headers and this client certificate.
    pub(super) fn check(
        &self,
        peer: Option<SocketAddr>,
        certificate: Option<&Arc<PeerCertificate>>,
        headers: &HeaderMap,
    ) -> Result<(), MetricsDenial> {
        let checked = self.caller(certificate.cloned(), headers).and_then(allow);
        if let Err(MetricsDenial { text, code: Some(code), caller, .. }) = &checked {
            let identity = caller.as_ref().and_then(Caller::identity);
            self.audit.call_ended(&AuditedCall {
                rpc: PAGE,
                identity: identity.map(|identity| identity.name.as_str()),
                peer,
                request_id: "",
                note: None,
                code,
                error: Some(text.trim_end()),
                took: Duration::ZERO,
            });
        }
        checked
    }

    fn caller(
        &self,
        certificate: Option<Arc<PeerCertificate>>,
        headers: &HeaderMap,
    ) -> Result<Caller, MetricsDenial> {
        let header = headers.get(header::AUTHORIZATION).map(HeaderValue::as_bytes);
        self.readers.connection(certificate).caller(header).map_err(|error| {
            let (status, code) = match error.is_temporary() {
                true => (StatusCode::SERVICE_UNAVAILABLE, None),
                false => (StatusCode::UNAUTHORIZED, Some("UNAUTHENTICATED")),
            };
            MetricsDenial { status, text: format!("{error}\n"), code, caller: None }
        })
    }
}

/// Allows or refuses a caller.
fn allow(caller: Caller) -> Result<(), MetricsDenial> {
    let allowed = caller.identity().is_none_or(|who| who.may_call(Rpc::ListShards).is_ok());
    if allowed {
        return Ok(());
    }
    let text = format!(
        "the identity {caller} has no right to the metrics: it needs the role viewer or operator with the pattern *, \
         and no namespaces\n"
    );
    let (status, code) = (StatusCode::FORBIDDEN, Some("PERMISSION_DENIED"));
    Err(MetricsDenial { status, text, code, caller: Some(caller) })
}
