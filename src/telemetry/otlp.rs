//! Export by OTLP over gRPC. Receiver, headers, sampler, intervals and resource come from the variables of
//! OpenTelemetry, which its SDK reads by itself.
//!
//! Exports run on threads of the SDK, beside the runtime: a receiver that is slow or down costs spans and log records,
//! never calls. Queues are bounded (`OTEL_BSP_MAX_QUEUE_SIZE`, 2,048 spans by default).

use std::sync::Arc;

use anyhow::Context as _;
use futures::future::OptionFuture;
use opentelemetry::logs::LogRecord as _;
use opentelemetry::{InstrumentationScope, KeyValue};
use opentelemetry_appender_tracing::layer::OpenTelemetryTracingBridge;
use opentelemetry_otlp::{LogExporter, SpanExporter, WithTonicConfig as _};
use opentelemetry_sdk::Resource;
use opentelemetry_sdk::error::OTelSdkResult;
use opentelemetry_sdk::logs::{BatchLogProcessor, LogProcessor, SdkLogRecord, SdkLoggerProvider};
use opentelemetry_sdk::resource::EnvResourceDetector;
use opentelemetry_sdk::trace::{BatchSpanProcessor, SdkTracerProvider};
use tracing::Metadata;
use tracing_subscriber::Layer;
use tracing_subscriber::filter::filter_fn;
use tracing_subscriber::registry::LookupSpan;

use crate::trace::{Conventions, Tracer};

use super::batches::{self, SHUTDOWN_MAX};
use super::export_monitor::{ExportMonitor, MonitoredExporter};
use super::log::{self, LogFormat};
use super::metric_push::{MetricExport, MetricPush, MetricSource};
use super::receiver;
use super::signals::{OtelVariables, OtlpConfig};
use super::variable_check::warnings;

/// Log and exports of one process. Cloning is cheap; the default exports nothing.
#[derive(Clone, Debug, Default)]
pub struct Telemetry {
    tracer: Tracer,
    spans: Option<SdkTracerProvider>,
    logs: Option<SdkLoggerProvider>,
    metrics: Option<Arc<MetricPush>>,
}

/// Parts of which an exporter is made.
struct ExportParts<'a> {
    variables: &'a OtelVariables,
    resource: Resource,
}

// === impl Telemetry ===

impl Telemetry {
    /// Starts the log of the process and the exports that are switched on; `replica` is the name of this server. Must be
    /// called in the runtime, which carries the connections to the receiver.
    ///
    /// # Errors
    /// The filter is malformed, the process has a log already, or a variable of OpenTelemetry has no valid value.
    pub fn start(
        format: LogFormat,
        filter: &str,
        otlp: &OtlpConfig,
        replica: &str,
    ) -> anyhow::Result<Telemetry> {
        let OtlpConfig { signals, variables, setting: _ } = otlp;
        let parts = ExportParts { variables, resource: resource(variables, replica) };
        let spans = signals.traces.then(|| parts.spans()).transpose();
        let spans = spans.context("cannot export traces by OTLP")?;
        let logs = signals.logs.then(|| parts.logs()).transpose();
        let logs = logs.context("cannot export logs by OTLP")?;
        let metrics = signals.metrics.then(|| parts.metrics()).transpose();
        let metrics = metrics.context("cannot export metrics by OTLP")?.map(Arc::new);
        log::init(format, filter, logs.as_ref().map(exported_lines))?;
        if signals.any() {
            let receivers = receiver::urls(variables, *signals);
            tracing::info!(%signals, receivers, "exporting by OTLP over gRPC");
        }
        for warning in warnings(variables, *signals).into_iter().chain(otlp.overruled()) {
            tracing::warn!("{warning}");
        }
        let opt_in = variables.get("OTEL_SEMCONV_STABILITY_OPT_IN").unwrap_or_default();
        let tracer = |spans| Tracer::new(spans, Conventions::from_opt_in(opt_in));
        let tracer = spans.as_ref().map(tracer).unwrap_or_default();
        Ok(Telemetry { tracer, spans, logs, metrics })
    }

    /// Returns the tracer of this process; it is off unless traces are exported.
    #[must_use]
    pub fn tracer(&self) -> Tracer {
        self.tracer.clone()
    }

    /// Starts the export of metrics, if it is switched on; `source` reads them.
    #[must_use]
    pub fn export_metrics(&self, source: MetricSource) -> Option<MetricExport> {
        self.metrics.clone().map(|push| push.spawn(source))
    }

    /// Exports what is left of all signals, for 5 s at most.
    pub async fn shut_down(self) {
        let Telemetry { spans, logs, metrics, .. } = self;
        // Blocking calls, which wait for the threads of the SDK. A failed export was logged.
        let spans = spans.map(|spans| {
            tokio::task::spawn_blocking(move || spans.shutdown_with_timeout(SHUTDOWN_MAX))
        });
        let logs = logs.map(|logs| {
            tokio::task::spawn_blocking(move || logs.shutdown_with_timeout(SHUTDOWN_MAX))
        });
        let metrics = metrics.as_deref().map(MetricPush::last_sent);
        let (spans, logs, metrics): (OptionFuture<_>, OptionFuture<_>, OptionFuture<_>) =
            (spans.into(), logs.into(), metrics.into());
        tokio::join!(spans, logs, metrics);
    }
}

// === impl ExportParts ===

impl ExportParts<'_> {
    fn spans(&self) -> anyhow::Result<SdkTracerProvider> {
        let url = receiver::url(self.variables, "TRACES");
        let builder = SpanExporter::builder().with_tonic();
        let builder = match receiver::tls(&url) {
            Some(tls) => builder.with_tls_config(tls),
            None => builder,
        };
        let exporter = MonitoredExporter::new(builder.build()?, ExportMonitor::new("traces", url));
        let batches = BatchSpanProcessor::builder(exporter);
        let batches = batches.with_batch_config(batches::spans(self.variables)).build();
        let provider = SdkTracerProvider::builder().with_span_processor(batches);
        Ok(provider.with_resource(self.resource.clone()).build())
    }

    fn logs(&self) -> anyhow::Result<SdkLoggerProvider> {
        let url = receiver::url(self.variables, "LOGS");
        let builder = LogExporter::builder().with_tonic();
        let builder = match receiver::tls(&url) {
            Some(tls) => builder.with_tls_config(tls),
            None => builder,
        };
        let exporter = MonitoredExporter::new(builder.build()?, ExportMonitor::new("logs", url));
        let batches = BatchLogProcessor::builder(exporter);
        let batches = batches.with_batch_config(batches::records(self.variables)).build();
        let provider = SdkLoggerProvider::builder();
        let provider = provider.with_log_processor(NoEventNames).with_log_processor(batches);
        Ok(provider.with_resource(self.resource.clone()).build())
    }

    fn metrics(&self) -> anyhow::Result<MetricPush> {
        let monitor = ExportMonitor::new("metrics", receiver::url(self.variables, "METRICS"));
        MetricPush::new(self.variables, &self.resource, monitor)
    }
}

/// Removes the event name of records: it would be a file and a line of the source.
#[derive(Debug)]
struct NoEventNames;

impl LogProcessor for NoEventNames {
    fn emit(&self, record: &mut SdkLogRecord, _: &InstrumentationScope) {
        record.set_event_name("");
    }

    fn force_flush(&self) -> OTelSdkResult {
        Ok(())
    }
}

/// Returns the layer that exports the log lines of this server. Those of its libraries are left out, because the
/// connection that carries the export would log about itself without end.
fn exported_lines<S>(logs: &SdkLoggerProvider) -> Box<dyn Layer<S> + Send + Sync>
where
    S: tracing::Subscriber + for<'span> LookupSpan<'span> + Send + Sync,
{
    let is_ours = |metadata: &Metadata<'_>| metadata.target().starts_with("ringq");
    Box::new(OpenTelemetryTracingBridge::new(logs).with_filter(filter_fn(is_ours)))
}

/// Returns the attributes of this process; the variables come before the defaults.
fn resource(variables: &OtelVariables, replica: &str) -> Resource {
    let defaults = [
        KeyValue::new("service.name", "ringq"),
        KeyValue::new("service.version", env!("CARGO_PKG_VERSION")),
        KeyValue::new("service.instance.id", replica.to_owned()),
    ];
    let builder = Resource::builder_empty()
        .with_attributes(defaults)
        .with_detector(Box::new(EnvResourceDetector::new()));
    match variables.get("OTEL_SERVICE_NAME") {
        Some(name) => builder.with_service_name(name.to_owned()).build(),
        None => builder.build(),
    }
}
