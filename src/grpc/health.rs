//! `grpc.health.v1`: whether the process lives, and whether it serves.

use tonic::server::NamedService as _;
use tonic_health::ServingStatus;
use tonic_health::server::{HealthReporter, HealthService};

use super::{AdminServer, QueueServer, TopicServer};

/// The services whose status tells whether this replica serves.
const SERVICES: [&str; 3] = [QueueServer::NAME, TopicServer::NAME, AdminServer::NAME];

/// A handle to what health probes hear. Cheap to clone.
///
/// The service `""` is SERVING for as long as the process lives: it is for liveness, which a drain
/// must not fail. Each `ringq.v1` service is SERVING while [`Health::set_serving`] says so: that is
/// for readiness.
#[derive(Clone, Debug)]
pub struct GrpcHealth {
    reporter: HealthReporter,
}

// === impl Health ===

impl GrpcHealth {
    /// Alive, but not serving yet.
    pub async fn new() -> GrpcHealth {
        let health = GrpcHealth { reporter: HealthReporter::new() };
        health.set_serving(false).await;
        health
    }

    /// Whether this replica serves.
    pub async fn set_serving(&self, serving: bool) {
        let status = if serving { ServingStatus::Serving } else { ServingStatus::NotServing };
        for service in SERVICES {
            self.reporter.set_service_status(service, status).await;
        }
    }

    /// The service that tells it.
    pub(super) fn service(&self) -> HealthService {
        HealthService::from_health_reporter(self.reporter.clone())
    }
}
