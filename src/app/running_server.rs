//! Server in operation: everything beside its listeners, from the first to the last call.

use std::future::Future;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::audit::AuditLog;
use crate::auth::Authenticator;
use crate::config::Config;
use crate::dispatch::{self, Dispatcher};
use crate::metrics::Metrics;
use crate::scheduler::Scheduler;
use crate::telemetry::MetricSource;
use crate::timer::Timer;
use crate::trace::Tracer;
use crate::{grpc, http};

use super::readiness::{self, Readiness};
use super::ready_file::ReadyFile;
use super::{Error, drain, gauges, open_files};

/// Parts of a server except its listeners.
pub(super) struct RunningServer {
    config: Config,
    authenticator: Authenticator,
    audit: AuditLog,
    scheduler: Scheduler,
    dispatcher: Dispatcher,
    timers: Timer,
    timers_stop: CancellationToken,
    /// Exchange of documents.
    documents: TaskTracker,
    refresh: http::Refresh,
    health: grpc::GrpcHealth,
    ready: readiness::ReadinessSender,
}

// === impl RunningServer ===

impl RunningServer {
    /// Starts the background tasks; no call is accepted yet.
    pub(super) async fn start(
        config: Config,
        (authenticator, audit): (Authenticator, AuditLog),
        scheduler: Scheduler,
    ) -> RunningServer {
        let streams = dispatch::Config {
            streams_max: config.max_streams,
            stream_max_age: config.stream_max_age.unwrap_or(Duration::ZERO),
        };
        let dispatcher = Dispatcher::spawn(scheduler.settler.clone(), streams);
        let refresh =
            gauges::refresh(scheduler.operator.clone(), dispatcher.clone(), authenticator.clone());
        let timers_stop = CancellationToken::new();
        let documents = scheduler.documents().follow(&timers_stop);
        let timers = Timer::spawn(&scheduler.upkeep, &timers_stop);
        let health = grpc::GrpcHealth::new().await;
        let ready = readiness::ReadinessSender::new(Readiness::Starting);
        RunningServer {
            config,
            authenticator,
            audit,
            scheduler,
            dispatcher,
            timers,
            timers_stop,
            documents,
            refresh,
            health,
            ready,
        }
    }

    /// Returns the metrics of this server.
    pub(super) fn metrics(&self) -> Metrics {
        self.scheduler.metrics().clone()
    }

    /// Returns the parts that serve gRPC.
    pub(super) fn services(&self, tracer: Tracer) -> grpc::ServiceParts {
        let store = self.config.shards.first().map_or("", |shard| shard.url.kind());
        grpc::ServiceParts {
            scheduler: self.scheduler.clone(),
            dispatcher: self.dispatcher.clone(),
            health: self.health.clone(),
            tracer,
            authenticator: self.authenticator.clone(),
            audit: self.audit.clone(),
            about: grpc::ServerFacts { store, start_time: self.scheduler.clock().now() },
        }
    }

    /// Returns the limits of gRPC calls.
    pub(super) fn grpc_config(&self) -> grpc::Config {
        let max_connections = open_files::connections_max(
            self.config.max_connections,
            self.config.max_http_connections,
        );
        grpc::Config {
            max_concurrent_requests: self.config.max_concurrent_requests,
            max_message_bytes: self.config.max_message_mib << 20,
            request_timeout: self.config.request_timeout,
            connection_max_age: self.config.stream_max_age.unwrap_or(Duration::ZERO),
            max_connections,
            max_connections_per_peer: self.config.max_connections_per_peer,
        }
    }

    /// Returns the limits on connections of the HTTP port.
    pub(super) fn http_limits(&self) -> http::ConnectionLimits {
        let Config { max_http_connections, max_http_connections_per_peer, .. } = self.config;
        http::ConnectionLimits {
            max: max_http_connections,
            per_peer: max_http_connections_per_peer,
        }
    }

    /// Returns the entry for JSON calls to `grpc`, which accepts calls until `stop` is cancelled; `None`: they are
    /// switched off.
    pub(super) fn json_calls(
        &self,
        grpc: &grpc::GrpcServer,
        stop: &CancellationToken,
    ) -> Result<Option<grpc::JsonCalls>, grpc::Error> {
        let is_on = self.config.http_json;
        is_on.then(|| grpc::JsonCalls::new(grpc.clone(), stop.clone())).transpose()
    }

    /// Returns the pages of the HTTP port.
    pub(super) fn router(&self) -> Router {
        let (ready, shards) = (self.ready.subscribe(), self.scheduler.shards().clone());
        let not_ready: http::NotReady = Arc::new(move || ready.borrow().not_ready_reason(&shards));
        let readers = match self.config.metrics_open {
            true => Authenticator::off(),
            false => self.authenticator.clone(),
        };
        let refresh = self.refresh.clone();
        let access = http::MetricsAccess::new(readers, self.audit.clone());
        http::router(self.scheduler.metrics().clone(), not_ready, refresh, access)
    }

    /// Returns the function that reads all metrics, with fresh gauges if the shards answer in time.
    pub(super) fn metric_source(&self) -> MetricSource {
        let (metrics, refresh) = (self.scheduler.metrics().clone(), self.refresh.clone());
        Arc::new(move || {
            let (metrics, refresh) = (metrics.clone(), refresh.clone());
            Box::pin(async move {
                if timeout(http::REFRESH_MAX, refresh()).await.is_err() {
                    tracing::warn!(
                        "gauges of this export are outdated: the shards did not answer in time"
                    );
                }
                metrics.gather()
            })
        })
    }

    /// Accepts work until `shutdown` ends, then no new work, and waits for running jobs. The ready file exists as
    /// long as calls are answered.
    pub(super) async fn serve_until(
        &self,
        shutdown: impl Future<Output = ()>,
        (grpc, http): (SocketAddr, SocketAddr),
    ) -> Result<Option<ReadyFile>, Error> {
        let (shards, ready, health) = (self.scheduler.shards(), &self.ready, &self.health);
        readiness::publish_initial(shards, ready, health).await;
        let ready_file = ReadyFile::write(self.config.ready_file.clone(), grpc, http).await?;
        let http_json = self.config.http_json;
        let carry_calls = [Some(grpc), http_json.then_some(http)].into_iter().flatten();
        let tls = self.config.tls.is_some();
        for address in carry_calls.filter(|address| !address.ip().to_canonical().is_loopback()) {
            if !self.authenticator.is_on() {
                tracing::info!(
                    %address, tls, authentication = false,
                    "other machines can reach this address: every client there can enqueue, take and delete every job"
                );
            } else if !tls {
                tracing::warn!(
                    %address, tls, authentication = true,
                    "other machines can reach this address, and their tokens are sent to it unencrypted: set tls_cert \
                     and tls_key, unless a proxy in front of it encrypts"
                );
            }
        }
        let replica_id = format!("{:08x}", self.scheduler.replica().nonce);
        tracing::info!(%grpc, %http, replica = self.config.replica, replica_id, "serving");
        tokio::select! {
            () = shutdown => {}
            () = readiness::follow(shards, ready, health) => {}
        }
        let delay = self.config.drain_delay;
        let delay_s = delay.as_secs();
        tracing::info!(
            delay_s,
            "shutting down: the server reports NOT_SERVING now, and drains its streams after the delay"
        );
        readiness::publish(Readiness::Draining, ready, health).await;
        tokio::time::sleep(delay).await;
        let grace = self.config.shutdown_grace;
        let grace = grace.unwrap_or_else(|| drain::grace(shards.are_all_served_by_others()));
        drain::drain_streams(&self.dispatcher, grace).await;
        Ok(ready_file)
    }

    /// Returns the jobs that no worker has, and closes the shards.
    pub(super) async fn shut_down(&self) {
        self.dispatcher.close().await;
        self.timers_stop.cancel();
        self.timers.stopped().await;
        self.documents.wait().await;
        self.scheduler.shards().close().await;
    }
}
