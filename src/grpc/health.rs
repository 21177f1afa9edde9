//! `grpc.health.v1`: liveness of the process, and readiness of this replica.

use tonic::server::NamedService as _;
use tonic_health::ServingStatus;
use tonic_health::server::{HealthReporter, HealthService};

use super::{AdminServer, QueueServer, TopicServer};

/// Services whose status is the readiness of this replica.
const SERVICES: [&str; 3] = [QueueServer::NAME, TopicServer::NAME, AdminServer::NAME];

/// Handle to the status that health probes return. Cheap to clone.
///
/// The service `""` is SERVING for as long as the process lives: it is for liveness, which a drain must not fail.
/// Each `ringq.v1` service is SERVING while [`GrpcHealth::set_serving`] is set: that is for readiness.
#[derive(Clone, Debug)]
pub struct GrpcHealth {
    reporter: HealthReporter,
}

// === impl GrpcHealth ===

impl GrpcHealth {
    /// Creates a status: alive, but not serving yet.
    pub async fn new() -> GrpcHealth {
        let health = GrpcHealth { reporter: HealthReporter::new() };
        health.set_serving(false).await;
        health
    }

    /// Sets whether this replica serves.
    pub async fn set_serving(&self, serving: bool) {
        let status = if serving { ServingStatus::Serving } else { ServingStatus::NotServing };
        for service in SERVICES {
            self.reporter.set_service_status(service, status).await;
        }
    }

    /// Returns the gRPC service with this status.
    pub(super) fn service(&self) -> HealthService {
        HealthService::from_health_reporter(self.reporter.clone())
    }
}
