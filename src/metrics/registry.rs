//! Registry of one server: creates handles, and renders their values.

use std::sync::Arc;

use metrics::{Counter, Gauge, Histogram, Level, Metadata, Recorder as _};
use metrics_exporter_prometheus::{
    Matcher, PrometheusBuilder, PrometheusHandle, PrometheusRecorder,
};

use super::definitions::{ALL, Metric, MetricKind};

const METADATA: Metadata<'static> = Metadata::new("ringq", Level::INFO, None);

/// Creates handles and renders them. Cloning is cheap.
#[derive(Clone, Debug)]
pub(super) struct Registry {
    recorder: Arc<PrometheusRecorder>,
    handle: PrometheusHandle,
}

// === impl Registry ===

impl Registry {
    pub(super) fn new() -> Registry {
        let recorder = ALL.iter().fold(PrometheusBuilder::new(), |builder, metric| {
            let MetricKind::Histogram(buckets) = metric.kind else { return builder };
            let matcher = Matcher::Full(metric.name.to_owned());
            builder.set_buckets_for_metric(matcher, buckets).expect("a metric has buckets")
        });
        let recorder = recorder.build_recorder();
        for metric in ALL {
            let (name, unit, help) = (metric.name.into(), Some(metric.unit), metric.help.into());
            match metric.kind {
                MetricKind::Counter => recorder.describe_counter(name, unit, help),
                MetricKind::Gauge => recorder.describe_gauge(name, unit, help),
                MetricKind::Histogram(_) => recorder.describe_histogram(name, unit, help),
            }
        }
        Registry { handle: recorder.handle(), recorder: Arc::new(recorder) }
    }

    pub(super) fn counter(&self, metric: &Metric, labels: &[&str]) -> Counter {
        self.recorder.register_counter(&metric.key(labels), &METADATA)
    }

    pub(super) fn gauge(&self, metric: &Metric, labels: &[&str]) -> Gauge {
        self.recorder.register_gauge(&metric.key(labels), &METADATA)
    }

    pub(super) fn histogram(&self, metric: &Metric, labels: &[&str]) -> Histogram {
        self.recorder.register_histogram(&metric.key(labels), &METADATA)
    }

    /// Renders everything, in the text format of Prometheus.
    pub(super) fn render(&self) -> String {
        self.handle.render()
    }

    /// Sorts the collected values of histograms into their buckets.
    pub(super) fn run_upkeep(&self) {
        self.handle.run_upkeep();
    }
}
