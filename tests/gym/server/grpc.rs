//! gRPC port: messages as bytes, so that a script can send those that no generated code knows.

use std::sync::Arc;

use bytes::{Buf as _, BufMut as _, Bytes};
use futures::stream::BoxStream;
use futures::{StreamExt as _, stream};
use hyper::body::Incoming;
use hyper::server::conn::http2;
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo};
use tokio::net::TcpStream;
use tokio_util::sync::CancellationToken;
use tonic::codec::{Codec, DecodeBuf, Decoder, EncodeBuf, Encoder};
use tonic::server::Grpc;
use tonic::{Request, Response, Status};
use tonic_health::ServingStatus;
use tower::Service as _;

use super::super::call::Method;
use super::{Server, StreamItem};

/// Path before the name of a method.
const SERVICE: &str = "/ringq.v1.QueueService/";
/// Largest message of a client.
const MESSAGE_MAX: usize = 64 << 20;

/// Codec whose messages stay encoded.
#[derive(Clone, Copy, Default)]
struct Raw;

type Answers = BoxStream<'static, Result<Bytes, Status>>;
type HttpResponse = http::Response<tonic::body::Body>;

// === impl Raw ===

impl Codec for Raw {
    type Encode = Bytes;
    type Decode = Bytes;
    type Encoder = Raw;
    type Decoder = Raw;

    fn encoder(&mut self) -> Raw {
        Raw
    }

    fn decoder(&mut self) -> Raw {
        Raw
    }
}

impl Encoder for Raw {
    type Item = Bytes;
    type Error = Status;

    fn encode(&mut self, message: Bytes, buffer: &mut EncodeBuf<'_>) -> Result<(), Status> {
        buffer.put(message);
        Ok(())
    }
}

impl Decoder for Raw {
    type Item = Bytes;
    type Error = Status;

    fn decode(&mut self, buffer: &mut DecodeBuf<'_>) -> Result<Option<Bytes>, Status> {
        Ok(Some(buffer.copy_to_bytes(buffer.remaining())))
    }
}

/// Serves a connection until the client or `close` ends it.
pub(super) async fn connection(socket: TcpStream, server: Arc<Server>, close: CancellationToken) {
    let (reporter, health) = tonic_health::server::health_reporter();
    // Clients with the service config of `deploy/` ask for it.
    reporter.set_service_status(SERVICE.trim_matches('/'), ServingStatus::Serving).await;
    let token = close.clone();
    let service = service_fn(move |request: http::Request<Incoming>| {
        let (server, close, mut health) = (Arc::clone(&server), token.clone(), health.clone());
        async move {
            match request.uri().path().strip_prefix(SERVICE).map(Method::from_name) {
                Some(Some(Method::Stream)) => Ok(open(request, server, close).await),
                Some(Some(method)) => Ok(unary(request, server, method).await),
                Some(None) => Ok(Status::unimplemented("not in the gym").into_http()),
                None => health.call(request).await,
            }
        }
    });
    let mut http = http2::Builder::new(TokioExecutor::new());
    let served =
        http.max_concurrent_streams(10_000).serve_connection(TokioIo::new(socket), service);
    tokio::select! {
        _ = served => {}
        () = close.cancelled() => {}
    }
}

fn codec() -> Grpc<Raw> {
    Grpc::new(Raw).max_decoding_message_size(MESSAGE_MAX)
}

async fn unary(
    request: http::Request<Incoming>,
    server: Arc<Server>,
    method: Method,
) -> HttpResponse {
    let call = tower::service_fn(move |request: Request<Bytes>| {
        let server = Arc::clone(&server);
        async move {
            let token = authorization(&request);
            server.call(method, request.into_inner(), token).await.map(Response::new)
        }
    });
    codec().unary(call, request).await
}

async fn open(
    request: http::Request<Incoming>,
    server: Arc<Server>,
    close: CancellationToken,
) -> HttpResponse {
    let call = tower::service_fn(move |request: Request<Bytes>| {
        let (server, close) = (Arc::clone(&server), close.clone());
        async move {
            let token = authorization(&request);
            let sent = server.open(request.into_inner(), token, close)?;
            let answers = stream::unfold(sent, |mut sent| async {
                match sent.recv().await? {
                    StreamItem::Message(message) => Some((Ok(message), sent)),
                    StreamItem::Fail(status) => Some((Err(status), sent)),
                    StreamItem::End => None,
                }
            });
            let answers: Answers = answers.boxed();
            Ok(Response::new(answers))
        }
    });
    codec().server_streaming(call, request).await
}

fn authorization(request: &Request<Bytes>) -> Option<String> {
    let token = request.metadata().get("authorization")?;
    token.to_str().ok().map(str::to_owned)
}
