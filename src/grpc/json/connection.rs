//! JSON calls of one connection of the HTTP port.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::request::Parts;
use http::{HeaderName, HeaderValue, Method, Request, Response, Uri, header};
use parking_lot::Mutex;
use tokio::sync::Semaphore;
use tonic::transport::server::TcpConnectInfo;
use tower::ServiceExt as _;

use crate::connections::ConnectionSlot;
use crate::tls::PeerCertificate;

use super::super::layers::{CallService, MessageEncoding};
use super::super::status::RpcError;
use super::answer::{self, JsonBody, to_response};
use super::error::JsonError;
use super::request::{JsonInput, JsonRoutes};
use super::{CALLS_MAX, JsonCalls};

/// Part of the path in front of the one that gRPC has.
const VERSION: &str = "/v1";

/// RPC that takes jobs.
const PULL: &str = "/ringq.v1.QueueService/Pull";
/// Interval in which a Pull that waits looks for its client.
const GONE_CHECK: Duration = Duration::from_secs(1);

/// Headers that are passed on as metadata. Others belong to HTTP, or have a meaning within gRPC that they would not
/// have here.
const METADATA: [HeaderName; 6] = [
    header::AUTHORIZATION,
    header::USER_AGENT,
    HeaderName::from_static("grpc-timeout"),
    HeaderName::from_static("traceparent"),
    HeaderName::from_static("tracestate"),
    HeaderName::from_static("x-request-id"),
];

/// JSON calls of one connection. Their bytes have the limits of a connection.
pub(crate) struct JsonConnection {
    calls: JsonCalls,
    service: CallService<JsonRoutes>,
    info: TcpConnectInfo,
    /// Permits for answers that are not written yet.
    answers: Arc<Semaphore>,
    /// Slot of the connection: first among those of the HTTP port, which are few and for probes.
    slot: ConnectionSlot,
    /// True once it is among those that carry calls, together with those of the gRPC port.
    carries_calls: Mutex<bool>,
    is_gone: IsGone,
}

/// Function that returns whether the client has closed the connection.
pub(crate) type IsGone = Arc<dyn Fn() -> bool + Send + Sync>;

// === impl JsonCalls ===

impl JsonCalls {
    /// Creates the calls of a connection, which has a slot of the HTTP port, and was opened with this client certificate,
    /// or with none. `is_gone` returns whether its client has closed it.
    pub(crate) fn connection(
        &self,
        info: TcpConnectInfo,
        slot: ConnectionSlot,
        certificate: Option<Arc<PeerCertificate>>,
        is_gone: IsGone,
    ) -> JsonConnection {
        let grpc = &self.0.grpc;
        let json = MessageEncoding::Json;
        let standing = Arc::clone(slot.standing());
        let service = grpc.layer.connection_for(self.0.routes(), certificate, standing, json);
        JsonConnection {
            calls: self.clone(),
            service,
            info,
            answers: Arc::new(Semaphore::new(CALLS_MAX)),
            slot,
            carries_calls: Mutex::default(),
            is_gone,
        }
    }
}

// === impl JsonConnection ===

impl JsonConnection {
    /// Executes the call of a request, or answers `refusal`, which is logged and counted as its error.
    pub(crate) async fn call<B>(
        &self,
        request: Request<B>,
        refusal: Option<JsonError>,
    ) -> Response<JsonBody>
    where
        B: http_body::Body<Data = Bytes, Error: std::fmt::Display> + Send + Unpin + 'static,
    {
        let open = self.calls.0.open.token();
        if self.calls.0.stop.is_cancelled() {
            return last_answer(&RpcError::shutting_down().into());
        }
        if let Err(error) = self.take_slot() {
            return last_answer(&error.into());
        }
        let Ok(permit) = Arc::clone(&self.answers).acquire_owned().await else {
            return last_answer(&RpcError::internal().into());
        };
        let (head, body) = request.into_parts();
        let path = head.uri.path().strip_prefix(VERSION).unwrap_or_default();
        let method = self.calls.0.methods.get(path);
        let input = match (method, refusal) {
            (_, Some(refusal)) => Err(refusal),
            (None, None) => Err(JsonError::no_such_rpc()),
            (Some(method), None) if method.is_server_streaming() => Err(JsonError::no_streams()),
            (Some(method), None) => Ok(method.input()),
        };
        let output = method.map(|method| method.output());
        let mut call = to_call(&head, path, body);
        call.extensions_mut().insert(self.info.clone());
        if let Some(certificate) = head.extensions.get::<Arc<PeerCertificate>>() {
            call.extensions_mut().insert(Arc::clone(certificate));
        }
        call.extensions_mut().insert(JsonInput(input));
        let takes_jobs = path == PULL;
        let answer = tokio::select! {
            biased;
            Ok(answer) = self.service.clone().oneshot(call) => answer,
            () = self.gone(), if takes_jobs => return last_answer(&JsonError::client_gone()),
        };
        // Jobs that no client receives would wait for the end of their leases.
        if takes_jobs && (self.is_gone)() {
            return last_answer(&JsonError::client_gone());
        }
        answer::to_json(answer, output, permit, open, &self.calls.0.large).await
    }

    /// Waits until the client has closed the connection.
    async fn gone(&self) {
        while !(self.is_gone)() {
            tokio::time::sleep(GONE_CHECK).await;
        }
    }

    /// Moves the connection to those that carry calls, at its first one: calls and probes cannot take each other's
    /// connections.
    fn take_slot(&self) -> Result<(), RpcError> {
        let mut carries_calls = self.carries_calls.lock();
        if !*carries_calls && !self.slot.move_to(&self.calls.0.grpc.connections) {
            return Err(RpcError::too_many_connections());
        }
        *carries_calls = true;
        Ok(())
    }
}

/// Returns the call of gRPC of a request, with its text as the body.
fn to_call<B>(head: &Parts, path: &str, body: B) -> Request<B> {
    let mut call = Request::new(body);
    *call.method_mut() = Method::POST;
    *call.uri_mut() = Uri::try_from(path).unwrap_or_default();
    let given = METADATA.into_iter().filter_map(|name| Some((head.headers.get(&name)?, name)));
    call.headers_mut().extend(given.map(|(value, name)| (name, value.clone())));
    call
}

/// Returns an error after which the connection is closed.
fn last_answer(error: &JsonError) -> Response<JsonBody> {
    let mut response = to_response(error);
    response.headers_mut().insert(header::CONNECTION, HeaderValue::from_static("close"));
    response
}
