//! Exporters that log when exports begin to fail, and when they work again. The SDK itself logs nothing here: it would
//! log each failed batch.

use std::fmt;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use opentelemetry_sdk::Resource;
use opentelemetry_sdk::error::OTelSdkResult;
use opentelemetry_sdk::logs::{LogBatch, LogExporter};
use opentelemetry_sdk::trace::{SpanData, SpanExporter};

use crate::log_limiter::LogLimiter;

/// Interval in which a failure is logged at most once.
const LOG_EVERY: Duration = Duration::from_secs(60);

/// Logs failures of the export of one signal.
#[derive(Debug)]
pub(super) struct ExportMonitor {
    signal: &'static str,
    /// URL of the receiver.
    receiver: String,
    /// Number of failed exports since the last one that worked.
    failed: AtomicU64,
    /// True if the last line in the log is a failure.
    is_logged: AtomicBool,
    log: LogLimiter,
}

/// Exporter whose failures are logged.
#[derive(Debug)]
pub(super) struct MonitoredExporter<E> {
    exporter: E,
    monitor: ExportMonitor,
}

// === impl ExportMonitor ===

impl ExportMonitor {
    /// Creates a monitor for exports of `signal` to the URL `receiver`.
    pub(super) fn new(signal: &'static str, receiver: String) -> ExportMonitor {
        let (failed, is_logged) = (AtomicU64::new(0), AtomicBool::new(false));
        let log = LogLimiter::of_reminders(LOG_EVERY);
        ExportMonitor { signal, receiver, failed, is_logged, log }
    }

    /// Logs the result of an export if it differs from what was logged last. A failure is logged once in an interval, and
    /// what was logged of it always ends.
    pub(super) fn note<E: fmt::Display>(&self, result: &Result<(), E>) {
        let ExportMonitor { signal, receiver, .. } = self;
        match result {
            Ok(()) => {
                let failed = self.failed.swap(0, Ordering::Relaxed);
                if self.is_logged.swap(false, Ordering::Relaxed) {
                    tracing::info!(
                        signal,
                        receiver,
                        failed,
                        "exports to the OTLP receiver work again"
                    );
                }
            }
            Err(error) => {
                self.failed.fetch_add(1, Ordering::Relaxed);
                if !self.is_logged.load(Ordering::Relaxed) && self.log.allow(&["fails"]).is_some() {
                    self.is_logged.store(true, Ordering::Relaxed);
                    tracing::warn!(
                        signal, receiver, %error,
                        "an export to the OTLP receiver failed; its batch is lost, and so are those that fail from now on"
                    );
                }
            }
        }
    }
}

// === impl MonitoredExporter ===

impl<E> MonitoredExporter<E> {
    /// Wraps an exporter with a monitor.
    pub(super) fn new(exporter: E, monitor: ExportMonitor) -> MonitoredExporter<E> {
        MonitoredExporter { exporter, monitor }
    }
}

impl<E: SpanExporter> SpanExporter for MonitoredExporter<E> {
    async fn export(&self, batch: Vec<SpanData>) -> OTelSdkResult {
        let result = self.exporter.export(batch).await;
        self.monitor.note(&result);
        result
    }

    fn shutdown(&self) -> OTelSdkResult {
        self.exporter.shutdown()
    }

    fn set_resource(&mut self, resource: &Resource) {
        self.exporter.set_resource(resource);
    }
}

impl<E: LogExporter> LogExporter for MonitoredExporter<E> {
    async fn export(&self, batch: LogBatch<'_>) -> OTelSdkResult {
        let result = self.exporter.export(batch).await;
        self.monitor.note(&result);
        result
    }

    fn shutdown(&self) -> OTelSdkResult {
        self.exporter.shutdown()
    }

    fn set_resource(&mut self, resource: &Resource) {
        self.exporter.set_resource(resource);
    }
}
