//! JSON port: the same calls in canonical JSON, `POST /v1/ringq.v1.QueueService/METHOD`.

use std::sync::{Arc, LazyLock};

use bytes::Bytes;
use http::{Response, StatusCode, header};
use http_body_util::{BodyExt as _, Full};
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use prost::Message as _;
use prost_reflect::{DescriptorPool, DynamicMessage, MessageDescriptor};
use ringq::pb;
use tokio::net::TcpStream;
use tokio_util::sync::CancellationToken;
use tonic::{Code, Status};
use tonic_types::StatusExt as _;

use super::super::call::Method;
use super::Server;

const JSON: &str = "application/json";
const SERVICE: &str = "/v1/ringq.v1.QueueService/";

static CONTRACT: LazyLock<DescriptorPool> =
    LazyLock::new(|| DescriptorPool::decode(pb::FILE_DESCRIPTOR_SET).unwrap());
static ERRORS: LazyLock<DescriptorPool> =
    LazyLock::new(|| DescriptorPool::decode(tonic_types::pb::FILE_DESCRIPTOR_SET).unwrap());

type HttpResponse = Response<Full<Bytes>>;

/// Serves a connection until the client or `close` ends it.
pub(super) async fn connection(socket: TcpStream, server: Arc<Server>, close: CancellationToken) {
    let service = service_fn(move |request: http::Request<Incoming>| {
        let server = Arc::clone(&server);
        async move {
            let answer = call(request, &server).await.unwrap_or_else(|status| failed(&status));
            Ok::<_, std::convert::Infallible>(answer)
        }
    });
    tokio::select! {
        _ = http1::Builder::new().serve_connection(TokioIo::new(socket), service) => {}
        () = close.cancelled() => {}
    }
}

async fn call(request: http::Request<Incoming>, server: &Server) -> Result<HttpResponse, Status> {
    let name = request.uri().path().strip_prefix(SERVICE).unwrap_or_default().to_owned();
    let (Some(method), Some((input, output))) = (Method::from_name(&name), messages(&name)) else {
        return Err(Status::unimplemented(format!("{name:?} is not in the gym")));
    };
    let header = request.headers().get(header::AUTHORIZATION);
    let token = header.and_then(|token| token.to_str().ok()).map(str::to_owned);
    let invalid = |error: String| Status::invalid_argument(error);
    let text = request.into_body().collect().await.map_err(|error| invalid(error.to_string()))?;
    let text = text.to_bytes();
    let text = if text.is_empty() { Bytes::from_static(b"{}") } else { text };
    let mut reader = serde_json::Deserializer::from_slice(&text);
    let message = DynamicMessage::deserialize(input, &mut reader);
    let message = message.map_err(|error| {
        server.record.note(format!("{name}: bad JSON: {error}"));
        invalid(error.to_string())
    })?;
    let answer = server.call(method, message.encode_to_vec().into(), token).await?;
    let answer = DynamicMessage::decode(output, answer).unwrap();
    Ok(respond(StatusCode::OK, JSON, serde_json::to_vec(&answer).unwrap()))
}

/// Returns the messages of a unary method.
fn messages(name: &str) -> Option<(MessageDescriptor, MessageDescriptor)> {
    let service = CONTRACT.get_service_by_name("ringq.v1.QueueService")?;
    let method = service.methods().find(|method| method.name() == name)?;
    (!method.is_server_streaming()).then(|| (method.input(), method.output()))
}

fn respond(status: StatusCode, kind: &'static str, text: Vec<u8>) -> HttpResponse {
    let mut answer = Response::new(Full::new(text.into()));
    *answer.status_mut() = status;
    let kind = header::HeaderValue::from_static(kind);
    answer.headers_mut().insert(header::CONTENT_TYPE, kind);
    answer
}

/// Converts a status as a server does. One without details becomes the page of a proxy.
fn failed(status: &Status) -> HttpResponse {
    if status.details().is_empty() && status.code() != Code::Unimplemented {
        let page = b"<html>bad gateway</html>".to_vec();
        return respond(StatusCode::BAD_GATEWAY, "text/html", page);
    }
    let code = match status.code() {
        Code::InvalidArgument | Code::FailedPrecondition | Code::OutOfRange => 400,
        Code::Unauthenticated => 401,
        Code::PermissionDenied => 403,
        Code::NotFound | Code::Unimplemented => 404,
        Code::AlreadyExists | Code::Aborted => 409,
        Code::ResourceExhausted => 429,
        Code::Unavailable => 503,
        Code::DeadlineExceeded => 504,
        _ => 500,
    };
    let message = ERRORS.get_message_by_name("google.rpc.Status").unwrap();
    let details = DynamicMessage::decode(message, status.details()).unwrap();
    let text = serde_json::to_vec(&details).unwrap();
    let mut answer = respond(StatusCode::from_u16(code).unwrap(), JSON, text);
    let retry = status.get_details_retry_info().and_then(|retry| retry.retry_delay);
    if let Some(delay) = retry {
        let seconds = delay.as_secs() + u64::from(delay.subsec_nanos() > 0);
        answer.headers_mut().insert(header::RETRY_AFTER, seconds.into());
    }
    answer
}
