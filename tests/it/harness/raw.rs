//! Clients that send exactly what a test gives them. tonic's channel applies `grpc-timeout` itself, so the server's
//! own answer to a deadline is visible only without it.

use std::convert::Infallible;
use std::future::Future;
use std::net::SocketAddr;
use std::pin::Pin;
use std::task::{Context, Poll};

use bytes::{BufMut as _, Bytes, BytesMut};
use http_body::Frame;
use hyper::body::Incoming;
use hyper::client::conn::http2::SendRequest;
use hyper_util::rt::{TokioExecutor, TokioIo};
use ringq::pb::queue_service_client::QueueServiceClient;
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tonic::body::Body;
use tower::util::BoxCloneSyncService;

/// The queue service over one bare HTTP/2 connection.
pub(crate) type RawQueue = QueueServiceClient<
    BoxCloneSyncService<http::Request<Body>, http::Response<hyper::body::Incoming>, hyper::Error>,
>;

/// Connects to the queue service without tonic's channel.
pub(crate) async fn raw_queue(grpc: SocketAddr) -> RawQueue {
    queue_on(TcpStream::connect(grpc).await.unwrap(), grpc, None).await
}

/// Builds a queue client on this socket; `window`: receive window in bytes.
pub(crate) async fn queue_on<S>(socket: S, grpc: SocketAddr, window: Option<u32>) -> RawQueue
where
    S: AsyncRead + AsyncWrite + Send + Unpin + 'static,
{
    let mut client = hyper::client::conn::http2::Builder::new(TokioExecutor::new());
    if let Some(window) = window {
        client.initial_stream_window_size(window).initial_connection_window_size(window);
    }
    let (sender, connection) = client.handshake(TokioIo::new(socket)).await.unwrap();
    tokio::spawn(connection);
    let service = tower::service_fn(move |request: http::Request<Body>| {
        let mut sender = sender.clone();
        async move {
            sender.ready().await?;
            sender.send_request(request).await
        }
    });
    let origin = format!("http://{grpc}").parse().unwrap();
    QueueServiceClient::with_origin(BoxCloneSyncService::new(service), origin)
}

/// Sends `GET path` over HTTP/1.1 and returns the status and the body.
pub(crate) async fn http_get(http: SocketAddr, path: &str) -> (u16, String) {
    http_get_on(TcpStream::connect(http).await.unwrap(), path).await
}

/// Sends `GET path` over HTTP/1.1 on this socket and returns the status and the body.
pub(crate) async fn http_get_on(
    mut socket: impl AsyncRead + AsyncWrite + Unpin,
    path: &str,
) -> (u16, String) {
    let head = format!("GET {path} HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n");
    socket.write_all(head.as_bytes()).await.unwrap();
    let mut answer = Vec::new();
    socket.read_to_end(&mut answer).await.unwrap();
    let answer = String::from_utf8_lossy(&answer).into_owned();
    let (head, body) = answer.split_once("\r\n\r\n").expect("an HTTP answer");
    let status = head.split(' ').nth(1).and_then(|code| code.parse().ok());
    (status.expect("a status line"), body.to_owned())
}

/// A connection whose calls may stay incomplete and whose answers may stay unread.
pub(crate) struct RawCalls {
    sender: SendRequest<Body>,
    origin: String,
}

/// The body of a request: its bytes, then its end or nothing more.
struct Upload {
    bytes: Option<Bytes>,
    ends: bool,
}

/// The result of a raw call: its headers, and a body that may stay unread.
pub(crate) type RawAnswer = Result<http::Response<Incoming>, hyper::Error>;

/// Encodes a message with its gRPC frame.
pub(crate) fn framed(message: &impl prost::Message) -> Bytes {
    let mut framed = BytesMut::new();
    framed.put_u8(0);
    framed.put_u32(u32::try_from(message.encoded_len()).unwrap());
    message.encode(&mut framed).unwrap();
    framed.freeze()
}

// === impl RawCalls ===

impl RawCalls {
    /// Connects; `window`: bytes of each answer that may arrive before it is read.
    pub(crate) async fn connect(grpc: SocketAddr, window: u32) -> RawCalls {
        let socket = TcpStream::connect(grpc).await.unwrap();
        let mut client = hyper::client::conn::http2::Builder::new(TokioExecutor::new());
        client.initial_stream_window_size(window);
        let (sender, connection) = client.handshake(TokioIo::new(socket)).await.unwrap();
        tokio::spawn(connection);
        RawCalls { sender, origin: format!("http://{grpc}") }
    }

    /// Begins a call of this method with these bytes; unless `ends` is set, the request stays open.
    pub(crate) fn begin(
        &mut self,
        method: &str,
        bytes: Bytes,
        ends: bool,
    ) -> impl Future<Output = RawAnswer> + Send + use<> {
        let upload = Upload { bytes: Some(bytes), ends };
        let request = http::Request::post(format!("{}/ringq.v1.{method}", self.origin))
            .header("content-type", "application/grpc")
            .header("te", "trailers");
        self.sender.send_request(request.body(Body::new(upload)).unwrap())
    }
}

// === impl Upload ===

impl http_body::Body for Upload {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        _: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        match self.bytes.take() {
            Some(bytes) => Poll::Ready(Some(Ok(Frame::data(bytes)))),
            None if self.ends => Poll::Ready(None),
            None => Poll::Pending,
        }
    }
}
