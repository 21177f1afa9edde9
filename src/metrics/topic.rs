//! What is counted of one topic, or of all that have no series of their own.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use metrics::{Counter, Gauge};

use super::cache::Cache;
use super::definitions::Metric;
use super::registry::Registry;

#[derive(Debug)]
pub(super) struct TopicMetrics {
    pub(super) label: Box<str>,
    registry: Registry,
    pub(super) enqueued: Cache<&'static str, Counter>,
    pub(super) delivered: Cache<&'static str, Counter>,
    pub(super) settled: Cache<&'static str, Counter>,
    pub(super) jobs: Cache<&'static str, Gauge>,
    pub(super) oldest_ready: Cache<(), Gauge>,
}

// === impl TopicMetrics ===

impl TopicMetrics {
    pub(super) fn new(label: &str, registry: &Registry) -> Arc<TopicMetrics> {
        Arc::new(TopicMetrics {
            label: label.into(),
            registry: registry.clone(),
            enqueued: Cache::default(),
            delivered: Cache::default(),
            settled: Cache::default(),
            jobs: Cache::default(),
            oldest_ready: Cache::default(),
        })
    }

    pub(super) fn counter(&self, metric: &Metric, second: &str) -> Counter {
        self.registry.counter(metric, &[&self.label, second])
    }

    pub(super) fn gauge(&self, metric: &Metric, labels: &[&str]) -> Gauge {
        self.registry.gauge(metric, labels)
    }

    /// Sets every gauge that was ever set; what is not known any more becomes 0.
    pub(super) fn set(
        &self,
        jobs: impl Fn(&'static str) -> Option<u64>,
        ages: &BTreeMap<Box<str>, Duration>,
    ) {
        for (state, gauge) in self.jobs.read().iter() {
            gauge.set(jobs(state).unwrap_or_default() as f64);
        }
        for gauge in self.oldest_ready.read().values() {
            gauge.set(ages.get(&self.label).copied().unwrap_or_default());
        }
    }
}
