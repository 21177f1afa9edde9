//! Export of the metrics by OTLP: the same series as on `/metrics`, read anew for each export.
//!
//! The SDK exports only instruments of its own, and has none that reads a histogram. So the series of the registry are
//! converted here to the messages of the protocol.

use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use futures::future::BoxFuture;
use opentelemetry_proto::tonic::collector::metrics::v1::ExportMetricsServiceRequest;
use opentelemetry_proto::tonic::collector::metrics::v1::metrics_service_client::MetricsServiceClient;
use opentelemetry_proto::tonic::common::v1::InstrumentationScope;
use opentelemetry_proto::tonic::metrics::v1::{ResourceMetrics, ScopeMetrics};
use opentelemetry_proto::tonic::resource::v1::Resource;
use parking_lot::Mutex;
use prometheus::proto::MetricFamily;
use tokio::task::JoinHandle;
use tokio::time::{MissedTickBehavior, interval, timeout};
use tokio_util::task::AbortOnDropHandle;
use tonic::Request;
use tonic::metadata::MetadataMap;
use tonic::transport::Channel;

use super::batches::{self, SHUTDOWN_MAX};
use super::export_monitor::ExportMonitor;
use super::metric_messages::to_metrics;
use super::receiver;
use super::signals::OtelVariables;

/// Default of `OTEL_METRIC_EXPORT_INTERVAL`.
const INTERVAL_DEFAULT: Duration = Duration::from_secs(60);
/// Name of the signal in variables.
const SIGNAL: &str = "METRICS";

/// Function that reads all series.
pub type MetricSource = Arc<dyn Fn() -> BoxFuture<'static, Vec<MetricFamily>> + Send + Sync>;

/// Settings of the export.
#[derive(Debug)]
pub(super) struct MetricPush {
    client: MetricsServiceClient<Channel>,
    metadata: MetadataMap,
    resource: Resource,
    interval: Duration,
    monitor: ExportMonitor,
    /// Time since which counters count.
    start: SystemTime,
    /// The last export, while the process ends.
    last: Mutex<Option<JoinHandle<()>>>,
}

/// Export in operation. If it is dropped, it ends at once.
pub struct MetricExport {
    push: Arc<MetricPush>,
    source: MetricSource,
    _task: AbortOnDropHandle<()>,
}

/// Last values of the series, which are not sent yet.
pub struct LastMetrics {
    push: Arc<MetricPush>,
    families: Vec<MetricFamily>,
}

// === impl MetricPush ===

impl MetricPush {
    /// Reads the settings from the variables.
    pub(super) fn new(
        variables: &OtelVariables,
        resource: &opentelemetry_sdk::Resource,
        monitor: ExportMonitor,
    ) -> anyhow::Result<MetricPush> {
        let url = receiver::url(variables, SIGNAL);
        let channel = receiver::connection(variables, SIGNAL, url)?;
        let mut client = MetricsServiceClient::new(channel);
        if let Some(compression) = receiver::compression(variables, SIGNAL) {
            client = client.send_compressed(compression);
        }
        let interval = batches::number(variables, "OTEL_METRIC_EXPORT_INTERVAL");
        let interval = interval.map_or(INTERVAL_DEFAULT, Duration::from_millis);
        let attributes = resource.iter();
        let attributes = attributes
            .map(|(key, value)| (&opentelemetry::KeyValue::new(key.clone(), value.clone())).into());
        Ok(MetricPush {
            client,
            metadata: receiver::metadata(variables, SIGNAL),
            resource: Resource { attributes: attributes.collect(), ..Resource::default() },
            interval,
            monitor,
            start: opentelemetry::time::now(),
            last: Mutex::default(),
        })
    }

    /// Waits for the export that [`LastMetrics::send`] has begun.
    pub(super) async fn last_sent(&self) {
        let last = self.last.lock().take();
        if let Some(last) = last {
            // A failed export was logged.
            let _ = last.await;
        }
    }

    /// Exports what `source` returns, at each interval.
    pub(super) fn spawn(self: Arc<Self>, source: MetricSource) -> MetricExport {
        let (push, read) = (Arc::clone(&self), Arc::clone(&source));
        let task = async move {
            let mut ticks = interval(push.interval);
            ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
            // The first tick is due at once, when there is nothing to export.
            ticks.tick().await;
            loop {
                ticks.tick().await;
                push.export(read().await).await;
            }
        };
        MetricExport { push: self, source, _task: AbortOnDropHandle::new(tokio::spawn(task)) }
    }

    async fn export(&self, families: Vec<MetricFamily>) {
        let (start, now) = (nanos(self.start), nanos(opentelemetry::time::now()));
        let scope = InstrumentationScope {
            name: "ringq".to_owned(),
            version: env!("CARGO_PKG_VERSION").to_owned(),
            ..InstrumentationScope::default()
        };
        let scope_metrics = vec![ScopeMetrics {
            scope: Some(scope),
            metrics: to_metrics(families, start, now),
            schema_url: String::new(),
        }];
        let resource = Some(self.resource.clone());
        let resource = ResourceMetrics { resource, scope_metrics, schema_url: String::new() };
        let mut request =
            Request::new(ExportMetricsServiceRequest { resource_metrics: vec![resource] });
        *request.metadata_mut() = self.metadata.clone();
        let sent = self.client.clone().export(request).await;
        self.monitor.note(&sent.map(drop));
    }
}

// === impl MetricExport ===

impl MetricExport {
    /// Ends the export, an export in flight, too, and reads the last values.
    pub async fn stop(self) -> LastMetrics {
        let MetricExport { push, source, _task } = self;
        drop(_task);
        LastMetrics { families: source().await, push }
    }
}

// === impl LastMetrics ===

impl LastMetrics {
    /// Begins to export the values, for 5 s at most. [`Telemetry::shut_down`](super::Telemetry::shut_down) waits for that.
    pub fn send(self) {
        let LastMetrics { push, families } = self;
        let exporting = Arc::clone(&push);
        let task = tokio::spawn(async move {
            if timeout(SHUTDOWN_MAX, exporting.export(families)).await.is_err() {
                exporting.monitor.note(&Err("the receiver does not answer"));
            }
        });
        *push.last.lock() = Some(task);
    }
}

fn nanos(time: SystemTime) -> u64 {
    let since = time.duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_nanos()).unwrap_or(u64::MAX)
}
