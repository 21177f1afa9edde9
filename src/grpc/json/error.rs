//! Errors as JSON: `google.rpc.Status` with its details as the body, and the status code of HTTP that belongs to its
//! code.

use http::{HeaderMap, HeaderValue, Response, StatusCode, header};
use tonic::{Code, Status};
use tonic_types::StatusExt as _;

use crate::canonical_json;
use crate::contract::reason::Reason;

use super::super::status::RpcError;

/// Error of a call. A few have their own status code of HTTP, which is more precise than the one that belongs to the
/// code of gRPC.
#[derive(Clone, Debug)]
pub(crate) struct JsonError {
    http: StatusCode,
    status: Status,
}

/// Status code of HTTP of an answer that is an error: an extension of the gRPC answer.
#[derive(Clone, Copy, Debug)]
pub(super) struct HttpStatus(pub(super) StatusCode);

// === impl JsonError ===

impl JsonError {
    /// Creates the error for a path that names no RPC. HTTP 404 and UNIMPLEMENTED belong together in both directions:
    /// gRPC clients read that code from a 404, and the gRPC port returns it for an unknown RPC.
    pub(super) fn no_such_rpc() -> JsonError {
        let text = "this server has no such rpc; GetServerInfo returns its version and features";
        JsonError { http: StatusCode::NOT_FOUND, status: Status::unimplemented(text) }
    }

    /// Creates the error for an RPC that streams.
    pub(super) fn no_streams() -> JsonError {
        let text = "Stream cannot be called as JSON; call Pull, or Stream over gRPC";
        JsonError { http: StatusCode::NOT_IMPLEMENTED, status: Status::unimplemented(text) }
    }

    /// Creates the error for a server that does not serve JSON calls.
    pub(crate) fn switched_off() -> JsonError {
        let text = "JSON calls are switched off at this server (http_json = false); call over gRPC";
        JsonError { http: StatusCode::NOT_FOUND, status: Status::unimplemented(text) }
    }

    /// Creates the error for another method of HTTP than POST.
    pub(crate) fn not_post() -> JsonError {
        let text = "a JSON call is a POST request";
        JsonError { http: StatusCode::METHOD_NOT_ALLOWED, status: Status::unimplemented(text) }
    }

    /// Creates the error for a body of another content type.
    pub(crate) fn not_json() -> JsonError {
        let text = "it is not JSON in UTF-8; send it with -H 'content-type: application/json' and without compression";
        let status = RpcError::malformed(text).into();
        JsonError { http: StatusCode::UNSUPPORTED_MEDIA_TYPE, status }
    }

    /// Creates the error for a call of a page in a browser.
    pub(crate) fn from_a_browser() -> JsonError {
        let text = "pages in browsers cannot call this server: the request has an Origin header";
        JsonError { http: StatusCode::FORBIDDEN, status: Status::permission_denied(text) }
    }

    /// Creates the error for a client that has closed the connection, for logs.
    pub(super) fn client_gone() -> JsonError {
        Status::cancelled("the client has closed the connection").into()
    }

    /// Creates the error for a body that ends early, or whose parts are malformed.
    pub(super) fn broken_body() -> JsonError {
        RpcError::malformed(
            "the body of the request is malformed or incomplete; nothing was applied",
        )
        .into()
    }

    /// Creates the error for a message over the size limit.
    pub(super) fn too_large(limit: usize) -> JsonError {
        let status = RpcError::message_too_large(limit).into();
        JsonError { http: StatusCode::PAYLOAD_TOO_LARGE, status }
    }

    /// Returns the error with its own status code of HTTP, if it has one.
    pub(super) fn with_http(self, http: Option<HttpStatus>) -> JsonError {
        let http = http.map_or(self.http, |HttpStatus(http)| http);
        JsonError { http, ..self }
    }

    /// Returns the status code of HTTP.
    pub(super) fn http(&self) -> StatusCode {
        self.http
    }

    /// Returns the body and the headers of the answer.
    pub(super) fn parts(&self) -> (Vec<u8>, HeaderMap) {
        let mut headers = HeaderMap::new();
        add_retry_after(&self.status, &mut headers);
        let cause = self.status.get_details_error_info();
        if cause.is_some_and(|cause| cause.reason == Reason::Draining.name()) {
            // Another connection may lead to another server.
            headers.insert(header::CONNECTION, HeaderValue::from_static("close"));
        }
        if self.http == StatusCode::METHOD_NOT_ALLOWED {
            headers.insert(header::ALLOW, HeaderValue::from_static("POST"));
        }
        (body(&self.status), headers)
    }

    /// Converts the error to an answer of gRPC.
    pub(super) fn into_grpc<B: Default>(self) -> Response<B> {
        let mut response = self.status.into_http();
        response.extensions_mut().insert(HttpStatus(self.http));
        response
    }
}

impl From<RpcError> for JsonError {
    fn from(error: RpcError) -> JsonError {
        Status::from(error).into()
    }
}

impl From<Status> for JsonError {
    fn from(status: Status) -> JsonError {
        JsonError { http: http_status(status.code()), status }
    }
}

/// Returns `google.rpc.Status` as JSON. An error without details consists of its code and its message.
fn body(status: &Status) -> Vec<u8> {
    let details = Some(status.details()).filter(|details| !details.is_empty());
    let whole = details.zip(canonical_json::status());
    let whole = whole.and_then(|(details, descriptor)| {
        canonical_json::to_text(descriptor, details)
            .inspect_err(|error| tracing::error!(%error, "details of an error cannot be JSON"))
            .ok()
    });
    let code = i32::from(status.code());
    let plain = || serde_json::json!({"code": code, "message": status.message()});
    whole.unwrap_or_else(|| plain().to_string().into_bytes())
}

/// Adds the delay before a retry in whole seconds, rounded up.
fn add_retry_after(status: &Status, headers: &mut HeaderMap) {
    let delay = status.get_details_retry_info().and_then(|retry| retry.retry_delay);
    if let Some(delay) = delay {
        let seconds = delay.as_secs() + u64::from(delay.subsec_nanos() > 0);
        headers.insert(header::RETRY_AFTER, seconds.into());
    }
}

/// Returns the status code of HTTP for a code, as `google/rpc/code.proto` maps them.
fn http_status(code: Code) -> StatusCode {
    match code {
        Code::Ok => StatusCode::OK,
        // Of nginx: the client has closed the request. No client sees it.
        Code::Cancelled => StatusCode::from_u16(499).unwrap_or(StatusCode::BAD_REQUEST),
        Code::InvalidArgument | Code::FailedPrecondition | Code::OutOfRange => {
            StatusCode::BAD_REQUEST
        }
        Code::Unauthenticated => StatusCode::UNAUTHORIZED,
        Code::PermissionDenied => StatusCode::FORBIDDEN,
        Code::NotFound => StatusCode::NOT_FOUND,
        Code::AlreadyExists | Code::Aborted => StatusCode::CONFLICT,
        Code::ResourceExhausted => StatusCode::TOO_MANY_REQUESTS,
        Code::Unknown | Code::Internal | Code::DataLoss => StatusCode::INTERNAL_SERVER_ERROR,
        Code::Unimplemented => StatusCode::NOT_IMPLEMENTED,
        Code::Unavailable => StatusCode::SERVICE_UNAVAILABLE,
        Code::DeadlineExceeded => StatusCode::GATEWAY_TIMEOUT,
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use tonic_types::ErrorDetails;

    use super::*;

    #[test]
    fn codes_have_their_status() {
        // The numbers of google/rpc/code.proto, in order.
        let wanted =
            [200, 499, 500, 400, 504, 404, 409, 403, 429, 400, 409, 400, 501, 500, 503, 500, 401];
        let got = (0..17).map(|code| http_status(Code::from_i32(code)).as_u16());
        assert_eq!(got.collect::<Vec<_>>(), wanted);
    }

    #[test]
    fn delays_are_rounded_up() {
        for (millis, wanted) in [(0, "0"), (1, "1"), (1_000, "1"), (1_001, "2")] {
            let details = ErrorDetails::with_retry_info(Some(Duration::from_millis(millis)));
            let status = Status::with_error_details(Code::Unavailable, "", details);
            let (_, headers) = JsonError::from(status).parts();
            assert_eq!(headers[header::RETRY_AFTER], wanted);
        }
    }

    #[test]
    fn an_error_without_details_is_code_and_message() {
        let body = body(&Status::unimplemented("no \"such\""));
        assert_eq!(body, br#"{"code":12,"message":"no \"such\""}"#);
    }
}
