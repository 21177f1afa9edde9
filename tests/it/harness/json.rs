//! Clients of the calls as JSON: one that sends what a test gives it, and a bridge that passes the calls of a gRPC client
//! on as JSON, so that a test for one protocol is a test for both.

use std::convert::Infallible;
use std::net::SocketAddr;
use std::sync::LazyLock;

use bytes::Bytes;
use http::{HeaderMap, HeaderValue, Request, Response};
use http_body::Frame;
use http_body_util::{BodyExt as _, Full, StreamBody};
use hyper::body::Incoming;
use hyper::client::conn::http1::SendRequest;
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo};
use prost::Message as _;
use prost_reflect::{DescriptorPool, DynamicMessage, MessageDescriptor, MethodDescriptor};
use serde_json::Value;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, TcpStream};
use tokio_util::task::AbortOnDropHandle;
use tonic::body::Body;
use tonic::{Code, Status};

/// One HTTP/1.1 connection to the HTTP port.
pub(crate) struct JsonClient {
    sender: SendRequest<Full<Bytes>>,
    http: SocketAddr,
}

/// Answer of a JSON call.
#[derive(Debug)]
pub(crate) struct JsonAnswer {
    pub(crate) status: u16,
    pub(crate) headers: HeaderMap,
    /// The body; null if it is no JSON.
    pub(crate) body: Value,
}

/// Server that serves gRPC by JSON calls to another one.
pub(crate) struct JsonBridge {
    pub(crate) grpc: SocketAddr,
    _serving: AbortOnDropHandle<()>,
}

static CONTRACT: LazyLock<DescriptorPool> =
    LazyLock::new(|| DescriptorPool::decode(ringq::pb::FILE_DESCRIPTOR_SET).unwrap());
static ERRORS: LazyLock<DescriptorPool> =
    LazyLock::new(|| DescriptorPool::decode(tonic_types::pb::FILE_DESCRIPTOR_SET).unwrap());

/// Returns the RPCs of the contract with one answer.
pub(crate) fn unary_methods() -> Vec<MethodDescriptor> {
    let services: Vec<_> = CONTRACT.services().collect();
    let methods = services.iter().flat_map(|service| service.methods().collect::<Vec<_>>());
    methods.filter(|method| !method.is_server_streaming()).collect()
}

/// Returns an error as the JSON that a JSON call is answered with.
pub(crate) fn status_json(status: &Status) -> Value {
    if status.details().is_empty() {
        return serde_json::json!({"code": i32::from(status.code()), "message": status.message()});
    }
    let descriptor = ERRORS.get_message_by_name("google.rpc.Status").unwrap();
    let status = DynamicMessage::decode(descriptor, status.details()).unwrap();
    serde_json::to_value(&status).unwrap()
}

/// Converts the JSON of an error to the error.
fn to_status(json: &Value) -> Status {
    let descriptor = ERRORS.get_message_by_name("google.rpc.Status").unwrap();
    let details = DynamicMessage::deserialize(descriptor, json).unwrap().encode_to_vec();
    let code = Code::from_i32(json["code"].as_i64().unwrap().try_into().unwrap());
    let message = json["message"].as_str().unwrap_or_default();
    let details = if json["details"].is_null() { Vec::new() } else { details };
    Status::with_details(code, message, details.into())
}

// === impl JsonClient ===

impl JsonClient {
    pub(crate) async fn connect(http: SocketAddr) -> JsonClient {
        JsonClient::on(TcpStream::connect(http).await.unwrap(), http).await
    }

    /// Uses this socket.
    pub(crate) async fn on<S>(socket: S, http: SocketAddr) -> JsonClient
    where
        S: AsyncRead + AsyncWrite + Send + Unpin + 'static,
    {
        let io = TokioIo::new(socket);
        let (sender, connection) = hyper::client::conn::http1::handshake(io).await.unwrap();
        tokio::spawn(connection);
        JsonClient { sender, http }
    }

    /// Calls `SERVICE/METHOD` with this JSON.
    pub(crate) async fn call(&mut self, method: &str, json: &Value) -> JsonAnswer {
        self.send(method, json.to_string(), &[]).await
    }

    /// Calls and expects success.
    pub(crate) async fn ok(&mut self, method: &str, json: &Value) -> Value {
        let answer = self.call(method, json).await;
        assert_eq!(answer.status, 200, "{method} {json}: {answer:?}");
        answer.body
    }

    /// Calls with this text and more headers.
    pub(crate) async fn send(
        &mut self,
        method: &str,
        text: impl Into<Bytes>,
        headers: &[(&'static str, &str)],
    ) -> JsonAnswer {
        let answer = self.begin(method, text.into(), headers).await.unwrap();
        let (head, body) = answer.into_parts();
        let body = body.collect().await.unwrap().to_bytes();
        let body = serde_json::from_slice(&body).unwrap_or_default();
        JsonAnswer { status: head.status.as_u16(), headers: head.headers, body }
    }

    /// Begins a call, whose answer may stay unread.
    pub(crate) async fn begin(
        &mut self,
        method: &str,
        text: Bytes,
        headers: &[(&'static str, &str)],
    ) -> hyper::Result<Response<Incoming>> {
        self.sender.ready().await?;
        let mut request = Request::post(format!("/v1/ringq.v1.{method}"))
            .header("host", self.http.to_string())
            .header("content-type", "application/json")
            .body(Full::new(text))
            .unwrap();
        for (name, value) in headers {
            request.headers_mut().insert(*name, HeaderValue::from_str(value).unwrap());
        }
        self.sender.send_request(request).await
    }
}

// === impl JsonBridge ===

impl JsonBridge {
    /// Starts a bridge to the HTTP port of a server.
    pub(crate) async fn start(http: SocketAddr) -> JsonBridge {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let grpc = listener.local_addr().unwrap();
        let serve = async move {
            while let Ok((socket, _)) = listener.accept().await {
                let service = service_fn(move |request| async move {
                    Ok::<_, Infallible>(match pass_on(http, request).await {
                        Ok(answer) => answer,
                        Err(status) => status.into_http(),
                    })
                });
                let server = hyper::server::conn::http2::Builder::new(TokioExecutor::new());
                tokio::spawn(server.serve_connection(TokioIo::new(socket), service));
            }
        };
        JsonBridge { grpc, _serving: AbortOnDropHandle::new(tokio::spawn(serve)) }
    }
}

/// Passes a gRPC call on as JSON. A message that cannot be JSON is answered UNKNOWN.
async fn pass_on(http: SocketAddr, request: Request<Incoming>) -> Result<Response<Body>, Status> {
    let path = request.uri().path().trim_start_matches('/').to_owned();
    let (service, method) = path.split_once('/').unwrap();
    let service = CONTRACT.get_service_by_name(service).unwrap();
    let method = service.methods().find(|found| found.name() == method).unwrap();
    let framed = request.into_body().collect().await.unwrap().to_bytes();
    let message = DynamicMessage::decode(method.input(), framed.slice(5..)).unwrap();
    let text = serde_json::to_string(&message);
    let text = text.map_err(|error| Status::unknown(format!("cannot be JSON: {error}")))?;
    let again =
        DynamicMessage::deserialize(method.input(), &mut serde_json::Deserializer::from_str(&text));
    if !again.is_ok_and(|again| again == message) {
        return Err(Status::unknown("cannot be JSON: it would be another message"));
    }
    let name = path.strip_prefix("ringq.v1.").unwrap();
    let answer = JsonClient::connect(http).await.send(name, text, &[]).await;
    assert_eq!(answer.headers["content-type"], "application/json");
    if answer.status != 200 {
        return Err(to_status(&answer.body));
    }
    Ok(to_grpc(method.output(), &answer.body))
}

fn to_grpc(output: MessageDescriptor, json: &Value) -> Response<Body> {
    let message = DynamicMessage::deserialize(output, json).unwrap();
    let trailers = HeaderMap::from_iter([(Status::GRPC_STATUS, HeaderValue::from_static("0"))]);
    let frames = [Frame::data(super::framed(&message)), Frame::trailers(trailers)];
    let body = StreamBody::new(futures::stream::iter(frames.map(Ok::<_, Infallible>)));
    let answer = Response::builder().header("content-type", "application/grpc");
    answer.body(Body::new(body)).unwrap()
}
