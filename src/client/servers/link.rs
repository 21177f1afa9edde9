//! Connection to one server of several: made, watched, and made again.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use hyper::rt::{Read, Write};
use tokio::time::{sleep, timeout};
use tonic::client::Grpc;
use tonic::codegen::http::Uri;
use tonic::codegen::http::uri::PathAndQuery;
use tonic::codegen::{Service, StdError};
use tonic::transport::{Channel, Endpoint};
use tonic::{Code, Request, Status, Streaming};
use tonic_prost::ProstCodec;
use tower::ServiceExt as _;
use tracing::debug;

use super::super::error::in_sentence;
use super::super::{Error, write_coalescing};
use super::choice::Phase;
use super::{CONNECT_TIMEOUT, Pool, RETRY_BACKOFF};
use crate::backoff::Backoff;

/// RPC that reports the health of a service, now and at each change.
const WATCH: &str = "/grpc.health.v1.Health/Watch";
/// Service whose health is watched: a server is SERVING while it accepts work.
const SERVICE: &str = "ringq.v1.QueueService";
/// `HealthCheckResponse.ServingStatus.SERVING`.
const SERVING: i32 = 1;

/// `grpc.health.v1.HealthCheckRequest`.
#[derive(Clone, PartialEq, Eq, prost::Message)]
struct HealthCheckRequest {
    #[prost(string, tag = "1")]
    service: String,
}

/// `grpc.health.v1.HealthCheckResponse`.
#[derive(Clone, Copy, PartialEq, Eq, prost::Message)]
struct HealthCheckResponse {
    #[prost(int32, tag = "1")]
    status: i32,
}

type HealthWatch = Streaming<HealthCheckResponse>;

/// A connection on which the server has answered.
struct Link {
    channel: Channel,
    /// Health that the server reported.
    is_serving: bool,
    /// `None`: the server, or a proxy before it, does not report its health.
    health: Option<HealthWatch>,
}

/// Keeps the state of a server up to date. Never returns.
pub(super) async fn run(pool: Arc<Pool>, index: usize) {
    let server = &pool.servers[index];
    let mut pauses = Backoff::new(RETRY_BACKOFF);
    loop {
        match connect(&server.endpoint).await {
            Ok(link) if link.is_serving => {
                pauses.reset();
                follow(&pool, index, link).await;
            }
            Ok(link) => pool.update(index, |state| {
                state.connections += 1;
                state.phase = Phase::Standby(link.channel);
            }),
            Err(error) => {
                debug!(server = server.url, %error, "server is away");
                pool.update(index, |state| state.set_away(&error));
            }
        }
        tokio::select! {
            () = sleep(pauses.next_delay()) => {}
            () = server.wake.notified() => {}
        }
    }
}

/// Publishes a connection until it breaks, or its server accepts no more work.
async fn follow(pool: &Pool, index: usize, link: Link) {
    let (server, mut health) = (&pool.servers[index], link.health);
    let mut connection = 0;
    pool.update(index, |state| {
        state.connections += 1;
        state.phase = Phase::Serving(link.channel);
        connection = state.connections;
    });
    loop {
        let changed = tokio::select! {
            changed = next_health(&mut health) => changed,
            () = server.wake.notified() => {
                let state = &pool.states.borrow()[index];
                if matches!(state.phase, Phase::Serving(_)) && state.connections == connection {
                    continue;
                }
                // A call has found that the connection broke.
                return;
            }
        };
        match changed {
            Ok(SERVING) => {}
            // The watch ends here: it would delay the end of a server that drains.
            Ok(_) => return pool.update(index, |state| state.set_standby()),
            Err(status) => {
                let error = error_text(status);
                debug!(server = server.url, %error, "connection broke");
                return pool.update(index, |state| state.set_away(&error));
            }
        }
    }
}

/// Waits for the next health; for ever if the server reports none.
async fn next_health(health: &mut Option<HealthWatch>) -> Result<i32, Status> {
    let Some(watch) = health else { return std::future::pending().await };
    match watch.message().await? {
        Some(answer) => Ok(answer.status),
        None => Err(Status::unavailable("the server ended the watch of its health")),
    }
}

/// Connects, and waits for the first answer. A listener that accepts connections and does not answer is no server.
async fn connect(endpoint: &Endpoint) -> Result<Link, String> {
    let connecting = async {
        let channel = endpoint
            .connect_with_connector(once(write_coalescing::connector(CONNECT_TIMEOUT)))
            .await
            .map_err(|error| Status::from_error(error.into()))?;
        match watch(channel.clone()).await {
            Ok((is_serving, health)) => Ok(Link { channel, is_serving, health: Some(health) }),
            Err(status) if has_no_health_service(&status) => {
                Ok(Link { channel, is_serving: true, health: None })
            }
            Err(status) => Err(status),
        }
    };
    match timeout(CONNECT_TIMEOUT, connecting).await {
        Ok(link) => link.map_err(error_text),
        Err(_) => Err("connecting timed out".to_owned()),
    }
}

/// Begins to watch the health of the server; returns whether it serves now.
async fn watch(channel: Channel) -> Result<(bool, HealthWatch), Status> {
    let mut client = Grpc::new(channel);
    client.ready().await.map_err(|error| Status::from_error(error.into()))?;
    let request = Request::new(HealthCheckRequest { service: SERVICE.to_owned() });
    let codec = ProstCodec::<HealthCheckRequest, HealthCheckResponse>::default();
    let path = PathAndQuery::from_static(WATCH);
    let mut health = client.server_streaming(request, path, codec).await?.into_inner();
    let first = health.message().await?;
    Ok((first.is_some_and(|answer| answer.status == SERVING), health))
}

/// Returns whether the answer is that of a gRPC server that has no health service, or does not let this client watch
/// it. An answer without gRPC is that of another program.
fn has_no_health_service(status: &Status) -> bool {
    let code = matches!(
        status.code(),
        Code::Unimplemented | Code::PermissionDenied | Code::Unauthenticated
    );
    code && !Error::from(status.clone()).is_not_grpc()
}

/// Makes a connector that connects once. A channel would connect again within the call that finds its connection
/// broken, and that call would wait for a server that is gone.
fn once<C>(
    connector: C,
) -> impl Service<Uri, Response = C::Response, Error = StdError, Future: Send> + Send + Clone
where
    C: Service<Uri, Response: Read + Write + Send + Unpin, Error: Into<StdError>, Future: Send>
        + Send
        + Sync
        + Clone
        + 'static,
{
    let used = Arc::new(AtomicBool::new(false));
    tower::service_fn(move |uri| {
        let first = !used.swap(true, Ordering::SeqCst);
        let connector = connector.clone();
        async move {
            if first {
                return connector.oneshot(uri).await.map_err(Into::into);
            }
            Err(io::Error::new(io::ErrorKind::NotConnected, "the connection is closed").into())
        }
    })
}

/// Returns the cause for the middle of a sentence.
fn error_text(status: Status) -> String {
    in_sentence(Error::from(status).message())
}
