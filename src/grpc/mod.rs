//! The public contract, `ringq.v1`, over gRPC: what a request says becomes a value of
//! [`crate::domain`] or is refused (`convert`), goes to the scheduler or the dispatcher (`queue`,
//! `topics`, `admin`), and comes back as a message or as a status with a stable reason (`status`).
//! What surrounds every call is in `layers`.
//!
//! # How much at once
//! Unary calls are counted from when their message is there to when their answer is written, and refused beyond
//! [`Config::max_concurrent_requests`], at once and with a hint when to come back; Ack, Nack and Extend have a
//! reserve. Streams and pulls, which live long, are not counted here: the dispatcher has a bound of its own for
//! both. Health and reflection are counted by connection. Bytes of messages are bounded by connection and in all,
//! and connections by peer and in all.

mod admin_service;
mod convert;
mod health;
mod jobs_page;
mod layers;
mod queue_service;
mod reason;
mod serve;
mod status;
mod stream_messages;
mod topic_service;

use std::future::Future;
use std::time::Duration;

use tokio::net::TcpListener;
use tonic::server::NamedService;
use tonic::service::Routes;
use tonic_health::pb::health_server::HealthServer;
use tonic_reflection::server::Builder as Reflection;

use crate::connections::Connections;
use crate::dispatch::Dispatcher;
use crate::domain::{Time, limit};
use crate::pb::admin_service_server::AdminServiceServer;
use crate::pb::queue_service_server::QueueServiceServer;
use crate::pb::topic_service_server::TopicServiceServer;
use crate::scheduler::Scheduler;

pub use health::GrpcHealth;

type QueueServer = QueueServiceServer<queue_service::QueueHandler>;
type TopicServer = TopicServiceServer<topic_service::TopicsHandler>;
type AdminServer = AdminServiceServer<admin_service::AdminHandler>;
type HealthProbes = HealthServer<tonic_health::server::HealthService>;

/// Largest answer. Lists and deliveries end far below it; the failures of a settle repeat the
/// receipts that were sent, which may be a whole request of them, and add a sentence to each.
const ANSWER_BYTES_MAX: usize = 2 * limit::REQUEST_BYTES_MAX;

/// What is served.
#[derive(Clone)]
pub struct ServiceParts {
    /// The verbs.
    pub scheduler: Scheduler,
    /// The streams.
    pub dispatcher: Dispatcher,
    /// What health probes hear.
    pub health: GrpcHealth,
    /// What `GetServerInfo` tells beside what the others know.
    pub about: ServerFacts,
}

/// Facts about this process.
#[derive(Clone, Copy, Debug)]
pub struct ServerFacts {
    /// The kind of its store: `sqlite` or `redis`.
    pub store: &'static str,
    /// When it started.
    pub start_time: Time,
}

/// Bounds of this server.
#[derive(Clone, Debug)]
pub struct Config {
    /// Unary calls at once; more are refused with RESOURCE_EXHAUSTED. Streams, pulls, health and
    /// reflection are not among them.
    pub max_concurrent_requests: usize,
    /// Bytes of requests, and of answers that are not written yet, at once; more are refused with
    /// RESOURCE_EXHAUSTED.
    pub max_message_bytes: usize,
    /// The longest that a unary call may take, its answer included, whatever its caller says. A pull gets its
    /// longest wait on top; a stream has no bound.
    pub request_timeout: Duration,
    /// Connections at once.
    pub max_connections: usize,
    /// Connections at once from one address, or from one IPv6 network of 64 bits.
    pub max_connections_per_peer: usize,
}

/// Why a server cannot go on.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The compiled contract is broken.
    #[error("cannot offer reflection: {0}")]
    Reflection(#[from] tonic_reflection::server::Error),
}

/// A generated server with our bounds on its messages.
macro_rules! sized {
    ($server:expr) => {
        $server
            .max_decoding_message_size(limit::REQUEST_BYTES_MAX)
            .max_encoding_message_size(ANSWER_BYTES_MAX)
    };
}

/// Serves on `listener` until `shutdown` ends; then takes no more connections or calls, and returns
/// when the last call has ended. Streams do not end by themselves: the dispatcher has to be drained
/// first or meanwhile.
///
/// # Errors
/// [`Error`]; none of it depends on a client.
pub async fn serve(
    listener: TcpListener,
    services: ServiceParts,
    config: Config,
    shutdown: impl Future<Output = ()>,
) -> Result<(), Error> {
    let ServiceParts { scheduler, dispatcher, health, about } = services;
    let limits = layers::CallLimits::new(
        config.max_concurrent_requests,
        config.max_message_bytes,
        config.request_timeout,
    );
    let layer = layers::CallLayer::new(scheduler.metrics().clone(), limits);
    let connections =
        Connections::new("grpc", config.max_connections, config.max_connections_per_peer);
    let queue = queue_service::QueueHandler::new(scheduler.clone(), dispatcher.clone());
    let topics = topic_service::TopicsHandler::new(scheduler.clone(), dispatcher.clone());
    let admin = admin_service::AdminHandler::new(scheduler, dispatcher, about);
    let routes = Routes::new(sized!(QueueServer::new(queue)))
        .add_service(sized!(TopicServer::new(topics)))
        .add_service(sized!(AdminServer::new(admin)))
        .add_service(HealthProbes::new(health.service()))
        .add_service(reflection().build_v1()?)
        .add_service(reflection().build_v1alpha()?)
        .prepare();
    serve::serve(listener, connections, routes, layer, shutdown).await;
    Ok(())
}

/// The contract with its comments, what is needed to decode our error details, and the names of the
/// services that are mounted: reflection would list whatever is in a set.
fn reflection() -> Reflection<'static> {
    Reflection::configure()
        .register_encoded_file_descriptor_set(crate::pb::FILE_DESCRIPTOR_SET)
        .register_encoded_file_descriptor_set(tonic_health::pb::FILE_DESCRIPTOR_SET)
        .register_encoded_file_descriptor_set(tonic_types::pb::FILE_DESCRIPTOR_SET)
        .register_encoded_file_descriptor_set(tonic_reflection::pb::v1::FILE_DESCRIPTOR_SET)
        .register_encoded_file_descriptor_set(tonic_reflection::pb::v1alpha::FILE_DESCRIPTOR_SET)
        .with_service_name(QueueServer::NAME)
        .with_service_name(TopicServer::NAME)
        .with_service_name(AdminServer::NAME)
        .with_service_name(HealthProbes::NAME)
        .with_service_name("grpc.reflection.v1.ServerReflection")
        .with_service_name("grpc.reflection.v1alpha.ServerReflection")
}
