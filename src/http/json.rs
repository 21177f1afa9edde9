//! Calls as JSON, `POST /v1/{service}/{method}`: what a request must be before it is a call.

use std::sync::Arc;

use axum::body::Body;
use axum::extract::{Extension, Request};
use axum::http::{HeaderMap, Method, header};
use axum::response::Response;

use crate::grpc::json::{JsonConnection, JsonError, to_response};

/// Path of the calls.
pub(super) const PATH: &str = "/v1/{service}/{method}";
/// Content type of a request.
const JSON: &str = "application/json";

/// Calls of the connection of a request; `None`: they are switched off. An extension of each request.
#[derive(Clone)]
pub(super) struct ConnectionCalls(pub(super) Option<Arc<JsonConnection>>);

/// Answers a request for the path of a call.
pub(super) async fn call(
    Extension(ConnectionCalls(calls)): Extension<ConnectionCalls>,
    request: Request,
) -> Response {
    let answer = match calls {
        None => to_response(&JsonError::switched_off()),
        Some(_) if request.method() != Method::POST => to_response(&JsonError::not_post()),
        Some(calls) => {
            let refusal = refusal(request.headers());
            calls.call(request, refusal).await
        }
    };
    answer.map(Body::new)
}

/// Returns the error of a request that no program for this API sends.
///
/// Nothing authenticates a caller, and a server on loopback is in reach of every page that a browser on its machine
/// shows. Browsers send a content type of JSON across sites only after asking, which this server does not answer, and
/// name the page in `Origin` with each POST, even to a host name that a page has pointed at this server.
fn refusal(headers: &HeaderMap) -> Option<JsonError> {
    if headers.contains_key(header::ORIGIN) {
        return Some(JsonError::from_a_browser());
    }
    (!is_json(headers)).then(JsonError::not_json)
}

/// Returns whether the content type is JSON in UTF-8.
fn is_json(headers: &HeaderMap) -> bool {
    let given = headers.get(header::CONTENT_TYPE).and_then(|given| given.to_str().ok());
    let mut parts = given.unwrap_or_default().split(';').map(str::trim);
    let is_json = parts.next().is_some_and(|kind| kind.eq_ignore_ascii_case(JSON));
    let is_utf8 = |parameter: &str| {
        let (name, value) = parameter.split_once('=').unwrap_or((parameter, ""));
        !name.eq_ignore_ascii_case("charset")
            || value.trim_matches('"').eq_ignore_ascii_case("utf-8")
    };
    is_json && parts.all(is_utf8) && !headers.contains_key(header::CONTENT_ENCODING)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_json_in_utf8_is_a_call() {
        for (given, wanted) in [
            ("application/json", true),
            ("Application/JSON; charset=UTF-8", true),
            ("application/json;charset=\"utf-8\"; v=1", true),
            ("application/json; charset=latin1", false),
            ("application/jsonx", false),
            ("application/x-www-form-urlencoded", false),
            ("text/plain", false),
            ("application/grpc", false),
            ("", false),
        ] {
            let mut headers = HeaderMap::new();
            headers.insert(header::CONTENT_TYPE, given.parse().unwrap());
            assert_eq!(refusal(&headers).is_none(), wanted, "{given}");
            headers.insert(header::ORIGIN, "http://127.0.0.1:7701".parse().unwrap());
            assert!(refusal(&headers).is_some());
            headers.remove(header::ORIGIN);
            headers.insert(header::CONTENT_ENCODING, "gzip".parse().unwrap());
            assert!(refusal(&headers).is_some());
        }
        assert!(refusal(&HeaderMap::new()).is_some());
    }
}
