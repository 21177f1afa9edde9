//! Wires the server together; the only module that depends on every other.

mod drain;
mod error;
mod gauges;
mod listener;
mod open;
mod open_files;
mod quota_upkeep;
mod readiness;
mod ready_file;
mod running_server;
#[cfg(test)]
mod tests;
mod topic_file;

use std::future::Future;
use std::net::SocketAddr;
use std::path::Path;

use futures::future::OptionFuture;
use tokio_util::sync::CancellationToken;
use tokio_util::task::AbortOnDropHandle;

use crate::audit::{AuditLog, AuditWriter};
use crate::auth::{Authenticator, IdentitySource};
use crate::clock::Clock;
use crate::config::Config;
use crate::metrics::Metrics;
use crate::scheduler::{ReplicaIdentity, Scheduler};
use crate::shards::Shards;
use crate::telemetry::{LastMetrics, MetricExport, Telemetry};
use crate::tls::{PortTls, ServerTls};
use crate::{grpc, http};

pub use error::Error;
use listener::BoundListener;
use running_server::RunningServer;

/// Server that has its listeners and its shards, but does not serve yet.
pub struct App {
    config: Config,
    authenticator: Authenticator,
    audit: AuditLog,
    scheduler: Scheduler,
    telemetry: Telemetry,
    /// Certificates of both ports; `None`: they do not use TLS.
    tls: Option<ServerTls>,
    /// Held so that the address is reserved and known.
    grpc: BoundListener,
    http: BoundListener,
}

// === impl App ===

impl App {
    /// Acquires everything that the server needs: its listeners, its directories and its shards. `telemetry`
    /// exports its spans and metrics.
    ///
    /// # Errors
    /// [`Error`], if an address is in use, a directory cannot be written or a shard cannot be opened.
    pub async fn build(config: Config, telemetry: Telemetry) -> Result<App, Error> {
        open_files::raise_limit();
        let metrics = Metrics::new();
        let clock = Clock::system();
        let authenticator = authenticator(&config, &clock, &metrics).map_err(Error::Identities)?;
        let audit = audit(&config, &clock).map_err(Error::AuditLog)?;
        let topics = config.topics.as_deref().map(topic_file::read).transpose();
        let topics = topics.map_err(Error::Topics)?;
        open::directories(&config.shards).await?;
        let grpc = BoundListener::bind(config.listen, "listen").await?;
        let http = BoundListener::bind(config.http_listen, "http-listen").await?;
        metrics.set_replica(&config.replica);
        let tls = config.tls.clone();
        let tls = tls.map(|files| ServerTls::load(files, clock.clone(), metrics.clone()));
        let tls = OptionFuture::from(tls).await.transpose()?;
        let replica = ReplicaIdentity { name: config.replica.clone(), nonce: rand::random() };
        let stores = open::stores(&config.shards, &clock, replica.nonce).await?;
        let shards = Shards::new(stores, &metrics);
        shards.join(replica.nonce, &clock).await;
        let fingerprint = format!("{:016x}", shards.fingerprint());
        tracing::info!(shards = shards.all().len(), fingerprint, "ring at start");
        let scheduler = Scheduler::new(shards, clock, metrics, replica);
        scheduler.documents().read_all().await;
        if let Some(file) = topics {
            topic_file::apply_first(&file, scheduler.documents()).await;
        }
        authenticator.keys_tried().await;
        Ok(App { config, authenticator, audit, scheduler, telemetry, tls, grpc, http })
    }

    /// Returns the address at which gRPC is served.
    #[must_use]
    pub fn grpc_address(&self) -> SocketAddr {
        self.grpc.address
    }

    /// Returns the address at which probes, metrics and JSON calls are served.
    #[must_use]
    pub fn http_address(&self) -> SocketAddr {
        self.http.address
    }

    /// Serves until `shutdown` ends, then drains.
    ///
    /// # Errors
    /// [`Error`], if a listener or the ready file fails.
    pub async fn run(self, shutdown: impl Future<Output = ()>) -> Result<(), Error> {
        let App {
            config,
            authenticator,
            audit,
            scheduler,
            telemetry,
            tls,
            grpc: grpc_listener,
            http: http_listener,
        } = self;
        let _following = follow_identities(&config, &authenticator, &audit);
        let topics = config.topics.clone();
        let topics = topics.map(|path| {
            let (documents, metrics) = (scheduler.documents().clone(), scheduler.metrics().clone());
            topic_file::follow(path, documents, metrics)
        });
        let _topics = topics.map(|follow| AbortOnDropHandle::new(tokio::spawn(follow)));
        let upkeep = quota_upkeep::run(scheduler.upkeep.clone(), authenticator.clone());
        let _upkeep = AbortOnDropHandle::new(tokio::spawn(upkeep));
        let addresses = (grpc_listener.address, http_listener.address);
        let (grpc_stop, http_stop) = (CancellationToken::new(), CancellationToken::new());
        let serving = RunningServer::start(config, (authenticator, audit), scheduler).await;
        let metrics = telemetry.export_metrics(serving.metric_source());
        let grpc =
            grpc::GrpcServer::new(serving.services(telemetry.tracer()), &serving.grpc_config())?;
        let json = serving.json_calls(&grpc, &grpc_stop)?;
        let tls_metrics = serving.metrics();
        let _tls_files = tls.clone().map(|tls| {
            AbortOnDropHandle::new(tokio::spawn(async move { tls.follow_files().await }))
        });
        let serve_http = http::serve(
            http_listener.socket,
            (serving.http_limits(), serving.metrics()),
            PortTls::http(tls.clone(), tls_metrics.clone()),
            serving.router(),
            json.clone(),
            http_stop.clone().cancelled_owned(),
        );
        let grpc_tls = PortTls::grpc(tls, tls_metrics);
        let serve_grpc =
            grpc.serve(grpc_listener.socket, grpc_tls, grpc_stop.clone().cancelled_owned());
        let serve_calls = async {
            let json_ended = OptionFuture::from(json.as_ref().map(grpc::JsonCalls::ended));
            tokio::join!(serve_grpc, json_ended);
        };
        let serve_until_shutdown = async {
            let ready_file = serving.serve_until(shutdown, addresses).await?;
            grpc_stop.cancel();
            drop(ready_file);
            Ok::<(), Error>(())
        };
        let grpc_and_drain = async {
            drain::serve_bounded(serve_until_shutdown, serve_calls).await?;
            // Sent beside all that follows: the receiver may be slow, and the next server waits for the file of a shard.
            let last_metrics = OptionFuture::from(metrics.map(MetricExport::stop)).await;
            last_metrics.into_iter().for_each(LastMetrics::send);
            drain::close_shards(serving.shut_down()).await;
            http_stop.cancel();
            Ok(())
        };
        let serve_http = async {
            serve_http.await;
            Ok::<(), Error>(())
        };
        tokio::try_join!(serve_http, grpc_and_drain)?;
        tracing::info!("stopped");
        Ok(())
    }
}

/// Returns what recognizes callers.
fn authenticator(
    config: &Config,
    clock: &Clock,
    metrics: &Metrics,
) -> Result<Authenticator, Vec<String>> {
    let Some(path) = &config.identities else { return Ok(Authenticator::off()) };
    let identities = identity_source(path).read()?;
    let (count, issuers) = (identities.len(), identities.issuers().count());
    tracing::info!(identities = count, issuers, path = %path.display(), "identities read");
    Ok(Authenticator::new(identities, clock.clone(), metrics))
}

/// Keeps the identities as their files are, until the task is dropped.
fn follow_identities(
    config: &Config,
    authenticator: &Authenticator,
    audit: &AuditLog,
) -> Option<AbortOnDropHandle<()>> {
    let source = identity_source(config.identities.as_deref()?);
    let audit = audit.clone();
    let log = move |error: Option<&str>| match error {
        None => audit.event("identities_read", None),
        Some(error) => audit.event("identities_not_read", Some(error)),
    };
    Some(AbortOnDropHandle::new(tokio::spawn(source.follow(authenticator.clone(), log))))
}

/// Opens the audit log.
fn audit(config: &Config, clock: &Clock) -> std::io::Result<AuditLog> {
    let Some(target) = &config.audit_log else { return Ok(AuditLog::off()) };
    let writer = AuditWriter::open(target, clock.clone())?;
    Ok(AuditLog::new(clock.clone(), config.audit_calls, writer))
}

fn identity_source(path: &Path) -> IdentitySource {
    IdentitySource::new(path.to_owned(), crate::config::variable)
}
