//! Registry of one server: creates series, and gathers their values.

use prometheus::core::Collector;
use prometheus::proto::MetricFamily;
use prometheus::{Gauge, GaugeVec, HistogramVec, IntCounter, IntCounterVec};

use super::definitions::Metric;
use super::process::ProcessCollector;

/// All series of a server. Cloning is cheap.
#[derive(Clone, Debug)]
pub(super) struct Registry(prometheus::Registry);

/// Series of one shard; each has its name in the label `shard`.
#[derive(Debug)]
pub(super) struct ShardRegistry<'r> {
    registry: &'r Registry,
    shard: &'r str,
}

// === impl Registry ===

impl Registry {
    pub(super) fn new() -> Registry {
        let registry = Registry(prometheus::Registry::new());
        registry.register(ProcessCollector::new());
        registry
    }

    /// Creates a gauge without labels.
    pub(super) fn gauge(&self, metric: &Metric) -> Gauge {
        self.register(valid(Gauge::with_opts(metric.opts())))
    }

    pub(super) fn gauges(&self, metric: &Metric) -> GaugeVec {
        self.register(valid(GaugeVec::new(metric.opts(), metric.labels)))
    }

    pub(super) fn counters(&self, metric: &Metric) -> IntCounterVec {
        self.register(valid(IntCounterVec::new(metric.opts(), metric.labels)))
    }

    pub(super) fn histograms(&self, metric: &Metric) -> HistogramVec {
        self.register(valid(HistogramVec::new(metric.histogram_opts(), metric.labels)))
    }

    /// Returns the registry for the series of a shard; once for each shard, because series are created once.
    pub(super) fn of_shard<'r>(&'r self, shard: &'r str) -> ShardRegistry<'r> {
        ShardRegistry { registry: self, shard }
    }

    /// Returns the values of all series, sorted.
    pub(super) fn gather(&self) -> Vec<MetricFamily> {
        self.0.gather()
    }

    fn register<C: Collector + Clone + 'static>(&self, collector: C) -> C {
        valid(self.0.register(Box::new(collector.clone())));
        collector
    }
}

// === impl ShardRegistry ===

// The shard is a constant label, and each shard has its own collectors. A vector with two labels would find its series
// by a hash of both values in a row, in which `a` and `unclaim` are the same as `aun` and `claim`.
impl ShardRegistry<'_> {
    pub(super) fn gauge(&self, metric: &Metric) -> Gauge {
        let opts = metric.opts().const_label("shard", self.shard);
        self.registry.register(valid(Gauge::with_opts(opts)))
    }

    /// Creates a gauge that is absent until it is set.
    pub(super) fn optional_gauge(&self, metric: &Metric) -> GaugeVec {
        let opts = metric.opts().const_label("shard", self.shard);
        self.registry.register(valid(GaugeVec::new(opts, &[])))
    }

    pub(super) fn counter(&self, metric: &Metric) -> IntCounter {
        let opts = metric.opts().const_label("shard", self.shard);
        self.registry.register(valid(IntCounter::with_opts(opts)))
    }

    pub(super) fn counters(&self, metric: &Metric) -> IntCounterVec {
        let opts = metric.opts().const_label("shard", self.shard);
        self.registry.register(valid(IntCounterVec::new(opts, &metric.labels[1..])))
    }

    pub(super) fn histograms(&self, metric: &Metric) -> HistogramVec {
        let opts = metric.histogram_opts().const_label("shard", self.shard);
        self.registry.register(valid(HistogramVec::new(opts, &metric.labels[1..])))
    }
}

/// Unwraps the creation of series, which fails only for a wrong definition; tests create those of every definition.
fn valid<T>(created: prometheus::Result<T>) -> T {
    created.expect("the definitions of metrics are valid, and each is registered once")
}
