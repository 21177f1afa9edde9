//! The public contract, `ringq.v1`, over gRPC. `contract` turns a request into values of [`crate::domain`] or refuses
//! it; `queue_service`, `topic_service`, `admin_service` and `scaler_service` pass these to the scheduler or the dispatcher; the result
//! is returned as a message or as a status with a stable reason (`status`). `layers` surrounds every call.
//!
//! # Limits
//! Unary calls are counted from the arrival of their message until their answer is written. Beyond
//! [`Config::max_concurrent_requests`] they are refused at once, with a delay for the retry; Ack, Nack and Extend
//! have a reserve. Streams and pulls live long and are not counted here: the dispatcher has its own limit for both.
//! Health and reflection are counted per connection. Bytes of messages are limited per connection and in total, and
//! connections per peer and in total.
//!
//! A call takes bytes and slots once it has shown an identity. What a client without one can fill is a pool of its own:
//! places of connections that others may take (`connections`), few calls on each of them, and watches
//! by address.

mod access;
mod admin_service;
mod connection_age;
mod decoded_size;
mod delivery_spans;
mod health;
mod job_quota;
mod jobs_page;
pub(crate) mod json;
mod layers;
mod pulled_jobs;
mod queue_service;
mod scaler_service;
mod serve;
mod status;
mod stream_messages;
mod topic_service;

use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use prost_reflect::DescriptorError;
use tokio::net::TcpListener;
use tonic::server::NamedService;
use tonic::service::Routes;
use tonic_health::pb::health_server::HealthServer;
use tonic_reflection::server::Builder as Reflection;

use crate::audit::AuditLog;
use crate::auth::Authenticator;
use crate::connections::Connections;
use crate::dispatch::Dispatcher;
use crate::domain::{Time, limit};
use crate::keda::external_scaler_server::ExternalScalerServer;
use crate::pb::admin_service_server::AdminServiceServer;
use crate::pb::queue_service_server::QueueServiceServer;
use crate::pb::topic_service_server::TopicServiceServer;
use crate::scheduler::Scheduler;
use crate::tls::PortTls;
use crate::trace::Tracer;

pub use health::GrpcHealth;
pub use json::JsonCalls;
pub(crate) use layers::AbortableCall;
pub(crate) use serve::CallExecutor;

type QueueServer = QueueServiceServer<queue_service::QueueHandler>;
type TopicServer = TopicServiceServer<topic_service::TopicsHandler>;
type AdminServer = AdminServiceServer<admin_service::AdminHandler>;
type ScalerServer = ExternalScalerServer<scaler_service::ScalerHandler>;
type HealthProbes = HealthServer<tonic_health::server::HealthService>;

/// Maximum size of an answer. Lists and deliveries stay far below it; the failures of a settle repeat the receipts
/// that were sent, which may fill a whole request, and add a sentence to each.
const ANSWER_BYTES_MAX: usize = 2 * limit::REQUEST_BYTES_MAX;

/// Parts that the services use.
#[derive(Clone)]
pub struct ServiceParts {
    /// Scheduler: executes unary calls.
    pub scheduler: Scheduler,
    /// Dispatcher: serves streams and pulls.
    pub dispatcher: Dispatcher,
    /// Status that health probes return.
    pub health: GrpcHealth,
    /// Creates the spans of calls and deliveries.
    pub tracer: Tracer,
    /// Recognizes callers.
    pub authenticator: Authenticator,
    /// Audit log.
    pub audit: AuditLog,
    /// Facts for `GetServerInfo` that the other parts do not have.
    pub about: ServerFacts,
}

/// Facts about this process.
#[derive(Clone, Copy, Debug)]
pub struct ServerFacts {
    /// Kind of its store: `sqlite` or `redis`.
    pub store: &'static str,
    /// Start time of the process.
    pub start_time: Time,
}

/// Limits of this server.
#[derive(Clone, Debug)]
pub struct Config {
    /// Maximum number of unary calls at once; more are refused with RESOURCE_EXHAUSTED. Streams, pulls, health and
    /// reflection are not counted.
    pub max_concurrent_requests: usize,
    /// Maximum bytes of requests, and of answers that are not written yet; more are refused with RESOURCE_EXHAUSTED.
    pub max_message_bytes: usize,
    /// Maximum duration of a unary call, its answer included, whatever deadline its caller has set. A pull gets its
    /// longest wait on top; a stream has no limit.
    pub request_timeout: Duration,
    /// Age at which clients are asked to make a new connection, about: zero means never. Calls in flight are finished
    /// on the old one.
    pub connection_max_age: Duration,
    /// Maximum number of connections.
    pub max_connections: usize,
    /// Maximum number of connections from one address, or from one IPv6 network of 64 bits.
    pub max_connections_per_peer: usize,
}

/// Error that stops the gRPC server.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// Descriptors of the compiled contract are broken.
    #[error("cannot offer reflection: {0}")]
    Reflection(#[from] tonic_reflection::server::Error),
    /// Descriptors of the compiled contract are broken.
    #[error("cannot serve JSON calls: {0}")]
    Descriptors(&'static DescriptorError),
}

/// Sets the limits on message sizes of a generated server.
macro_rules! sized {
    ($server:expr) => {
        $server
            .max_decoding_message_size(limit::REQUEST_BYTES_MAX)
            .max_encoding_message_size(ANSWER_BYTES_MAX)
    };
}

/// Services of this server with their limits, which its ports share.
#[derive(Clone)]
pub struct GrpcServer {
    routes: Routes,
    layer: layers::CallLayer,
    /// Connections that carry calls.
    connections: Arc<Connections>,
    connection_max_age: Duration,
}

// === impl GrpcServer ===

impl GrpcServer {
    /// Creates the services.
    ///
    /// # Errors
    /// [`Error`]; no client can cause one.
    pub fn new(services: ServiceParts, config: &Config) -> Result<GrpcServer, Error> {
        let ServiceParts { scheduler, dispatcher, health, tracer, authenticator, audit, about } =
            services;
        let limits = layers::CallLimits::new(
            config.max_concurrent_requests,
            config.max_message_bytes,
            config.request_timeout,
        );
        let layer = layers::CallLayer::new(
            scheduler.metrics().clone(),
            tracer.clone(),
            (authenticator.clone(), audit),
            limits,
        );
        let metrics = scheduler.metrics().clone();
        let connections = Connections::new(
            "grpc",
            config.max_connections,
            config.max_connections_per_peer,
            metrics,
        );
        let queue = queue_service::QueueHandler::new(
            scheduler.producer,
            scheduler.settler,
            dispatcher.clone(),
            tracer,
            authenticator.clone(),
        );
        let topics = topic_service::TopicsHandler::new(
            scheduler.operator.clone(),
            dispatcher.clone(),
            authenticator.clone(),
        );
        let scaler = scaler_service::ScalerHandler::new(
            scheduler.operator.clone(),
            dispatcher.clone(),
            authenticator,
        );
        let admin = admin_service::AdminHandler::new(scheduler.operator, dispatcher, about);
        let routes = Routes::new(sized!(QueueServer::new(queue)))
            .add_service(sized!(TopicServer::new(topics)))
            .add_service(sized!(AdminServer::new(admin)))
            .add_service(sized!(ScalerServer::new(scaler)))
            .add_service(HealthProbes::new(health.service()))
            .add_service(reflection().build_v1()?)
            .add_service(reflection().build_v1alpha()?)
            .prepare();
        let connection_max_age = config.connection_max_age;
        Ok(GrpcServer { routes, layer, connections, connection_max_age })
    }

    /// Serves on `listener` until `shutdown` ends; then accepts no more connections or calls, and returns when the
    /// last call has ended. Streams do not end by themselves: drain the dispatcher before or meanwhile.
    pub async fn serve(
        self,
        listener: TcpListener,
        tls: PortTls,
        shutdown: impl Future<Output = ()>,
    ) {
        let GrpcServer { routes, layer, connections, connection_max_age } = self;
        serve::serve(listener, connections, tls, routes, layer, connection_max_age, shutdown).await;
    }
}

/// Descriptors for reflection: the contract with its comments, the messages of error details, and the names of the
/// mounted services, because reflection lists every service in a set.
fn reflection() -> Reflection<'static> {
    Reflection::configure()
        .register_encoded_file_descriptor_set(crate::pb::FILE_DESCRIPTOR_SET)
        .register_encoded_file_descriptor_set(crate::keda::FILE_DESCRIPTOR_SET)
        .register_encoded_file_descriptor_set(tonic_health::pb::FILE_DESCRIPTOR_SET)
        .register_encoded_file_descriptor_set(tonic_types::pb::FILE_DESCRIPTOR_SET)
        .register_encoded_file_descriptor_set(tonic_reflection::pb::v1::FILE_DESCRIPTOR_SET)
        .register_encoded_file_descriptor_set(tonic_reflection::pb::v1alpha::FILE_DESCRIPTOR_SET)
        .with_service_name(QueueServer::NAME)
        .with_service_name(TopicServer::NAME)
        .with_service_name(AdminServer::NAME)
        .with_service_name(ScalerServer::NAME)
        .with_service_name(HealthProbes::NAME)
        .with_service_name("grpc.reflection.v1.ServerReflection")
        .with_service_name("grpc.reflection.v1alpha.ServerReflection")
}
