//! Clients that do exactly what they are told. tonic's channel obeys `grpc-timeout` itself, so what
//! the server answers to a deadline is seen only without it.

use std::net::SocketAddr;

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

/// The queue service over this socket, with windows of so many bytes.
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

/// `GET path` over HTTP/1.1: the status and the body.
pub(crate) async fn http_get(http: SocketAddr, path: &str) -> (u16, String) {
    let mut socket = TcpStream::connect(http).await.unwrap();
    let head = format!("GET {path} HTTP/1.1\r\nhost: {http}\r\nconnection: close\r\n\r\n");
    socket.write_all(head.as_bytes()).await.unwrap();
    let mut answer = Vec::new();
    socket.read_to_end(&mut answer).await.unwrap();
    let answer = String::from_utf8_lossy(&answer).into_owned();
    let (head, body) = answer.split_once("\r\n\r\n").expect("an HTTP answer");
    let status = head.split(' ').nth(1).and_then(|code| code.parse().ok());
    (status.expect("a status line"), body.to_owned())
}
