//! Transport of the generated clients: a connection, and the token of its calls.

use std::sync::Arc;
use std::task::{Context, Poll};

use futures::future::{BoxFuture, Either};
use tonic::Code;
use tonic::body::Body;
use tonic::codegen::http::{HeaderMap, HeaderValue, Request, Response, header};
use tonic::codegen::{Service, StdError};

use super::credentials::Credentials;
use super::servers::Connection;

/// Header with the code of a call that the server refused before it sent anything else.
const GRPC_STATUS: &str = "grpc-status";
/// Header with the error text; bytes outside of visible ASCII are written as `%XX`.
const GRPC_MESSAGE: &str = "grpc-message";

/// Transport of the generated clients of [`crate::pb`].
#[derive(Clone, Debug)]
pub struct Transport {
    connection: Connection,
    credentials: Credentials,
}

type ConnectionFuture = <Connection as Service<Request<Body>>>::Future;

// === impl Transport ===

impl Transport {
    pub(super) fn new(connection: Connection, credentials: Credentials) -> Transport {
        Transport { connection, credentials }
    }
}

impl Service<Request<Body>> for Transport {
    type Response = Response<Body>;
    type Error = StdError;
    type Future = Either<ConnectionFuture, BoxFuture<'static, Result<Response<Body>, StdError>>>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), StdError>> {
        self.connection.poll_ready(cx)
    }

    fn call(&mut self, mut request: Request<Body>) -> Self::Future {
        let authorization = self.credentials.current();
        let problem = authorization.and_then(|authorization| {
            request.headers_mut().insert(header::AUTHORIZATION, authorization.header);
            authorization.problem
        });
        let answer = self.connection.call(request);
        match problem {
            None => Either::Left(answer),
            Some(problem) => Either::Right(Box::pin(async move {
                let mut answer = answer.await?;
                explain_refusal(answer.headers_mut(), &problem);
                Ok(answer)
            })),
        }
    }
}

/// Adds the problem of the token's file to the error of a call that was refused because of its token.
fn explain_refusal(headers: &mut HeaderMap, problem: &Arc<str>) {
    let code = headers.get(GRPC_STATUS).map(|code| Code::from_bytes(code.as_bytes()));
    if code != Some(Code::Unauthenticated) {
        return;
    }
    let mut text = headers.get(GRPC_MESSAGE).map_or_else(Vec::new, |text| text.as_bytes().to_vec());
    if !text.is_empty() {
        text.extend_from_slice(b"; ");
    }
    for byte in problem.bytes() {
        match byte {
            b' '..=b'~' if byte != b'%' => text.push(byte),
            _ => text.extend_from_slice(format!("%{byte:02X}").as_bytes()),
        }
    }
    if let Ok(text) = HeaderValue::try_from(text) {
        headers.insert(GRPC_MESSAGE, text);
    }
}

#[cfg(test)]
mod tests {
    use tonic::Status;

    use super::*;

    fn explained(status: &Status) -> String {
        let mut headers = HeaderMap::new();
        status.add_header(&mut headers).unwrap();
        explain_refusal(&mut headers, &"the token file \"/ä%\" cannot be read".into());
        Status::from_header_map(&headers).unwrap().message().to_owned()
    }

    #[test]
    fn only_a_refused_token_is_explained() {
        let refused = explained(&Status::unauthenticated("expired 100 % ✓"));
        assert_eq!(refused, "expired 100 % ✓; the token file \"/ä%\" cannot be read");
        let bare = explained(&Status::unauthenticated(""));
        assert_eq!(bare, "the token file \"/ä%\" cannot be read");
        assert_eq!(explained(&Status::permission_denied("no")), "no");
        assert_eq!(explained(&Status::ok("")), "");
    }
}
