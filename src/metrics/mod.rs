//! Metrics of one server. Each [`Metrics`] has its own registry, so two servers can live in one process.
//! `definitions` declares every metric; label values that come from clients (topics) are bounded here, all others are
//! known at compile time or configured.

mod cache;
mod definitions;
mod registry;
mod shard;
#[cfg(test)]
mod tests;
mod topic;

use std::sync::Arc;
use std::time::Duration;

use metrics::{Gauge, Histogram};

use cache::HandleCache;
use definitions::{BUILD, CREDIT_WAITING, LAG, RING_DISAGREEMENT, RINGS_OPEN, RPC, RUN, STREAMS};
use registry::Registry;
pub use shard::ShardMetrics;
use topic::TopicSeries;

/// Maximum number of topics with series of their own: enough to look at, too few to overload a Prometheus. A further
/// topic takes the place of one that has been idle for ten minutes.
pub const TOPICS_MAX: usize = 200;
/// Label of topics without series of their own; no topic can have this name.
pub const OTHER_TOPICS: &str = "_other";

/// Counts and times what one server does. Cloning is cheap.
#[derive(Clone, Debug)]
pub struct Metrics(Arc<MetricsInner>);

/// Numbers of one topic, as read from the store.
#[derive(Clone, Debug)]
pub struct TopicGauges<'a> {
    /// Name of the topic.
    pub topic: &'a str,
    /// Number of jobs by state. A state that is not named here counts as 0.
    pub jobs: &'a [(&'static str, u64)],
    /// Age of the oldest ready job, if there is one.
    pub oldest_ready_age: Option<Duration>,
}

#[derive(Debug)]
struct MetricsInner {
    registry: Registry,
    topics: TopicSeries,
    rpc: HandleCache<(&'static str, &'static str), Histogram>,
    lag: Histogram,
    run: Histogram,
    streams: Gauge,
    credit_waiting: Gauge,
    rings_open: Gauge,
    ring_disagreement: Gauge,
}

// === impl Metrics ===

impl Default for Metrics {
    fn default() -> Metrics {
        Metrics::new()
    }
}

impl Metrics {
    /// Creates metrics in which nothing is counted yet.
    #[must_use]
    pub fn new() -> Metrics {
        let registry = Registry::new();
        registry.gauge(&BUILD, &[env!("CARGO_PKG_VERSION")]).set(1.0);
        Metrics(Arc::new(MetricsInner {
            topics: TopicSeries::new(),
            rpc: HandleCache::default(),
            lag: registry.histogram(&LAG, &[]),
            run: registry.histogram(&RUN, &[]),
            streams: registry.gauge(&STREAMS, &[]),
            credit_waiting: registry.gauge(&CREDIT_WAITING, &[]),
            rings_open: registry.gauge(&RINGS_OPEN, &[]),
            ring_disagreement: registry.gauge(&RING_DISAGREEMENT, &[]),
            registry,
        }))
    }

    /// Counts `n` jobs that were enqueued; `outcome` is the result of each.
    pub fn enqueued(&self, topic: &str, outcome: &'static str, n: u64) {
        self.0.topics.metrics_of(topic).enqueued.add(outcome, n);
    }

    /// Counts `n` deliveries; `mode` is the way: a stream, a pull.
    pub fn delivered(&self, topic: &str, mode: &'static str, n: u64) {
        self.0.topics.metrics_of(topic).delivered.add(mode, n);
    }

    /// Counts `n` leases that ended; `outcome` is the cause.
    pub fn settled(&self, topic: &str, outcome: &'static str, n: u64) {
        self.0.topics.metrics_of(topic).settled.add(outcome, n);
    }

    /// Records the time from the due time of a job to its delivery.
    pub fn lag(&self, lag: Duration) {
        self.0.lag.record(lag);
    }

    /// Records the time from the delivery of a job to its settle.
    pub fn run(&self, run: Duration) {
        self.0.run.record(run);
    }

    /// Records a call that ended. `method` is one that the server has, never text from a client.
    pub fn rpc(&self, method: &'static str, code: &'static str, took: Duration) {
        let make = || self.0.registry.histogram(&RPC, &[method, code]);
        self.0.rpc.get_or_insert((method, code), make).record(took);
    }

    /// Sets the number of open streams.
    pub fn set_streams(&self, n: usize) {
        self.0.streams.set(n as f64);
    }

    /// Sets the free credit of the open streams, in jobs.
    pub fn set_credit_waiting(&self, n: usize) {
        self.0.credit_waiting.set(n as f64);
    }

    /// Sets the number of rings by which jobs may be placed.
    pub fn set_rings_open(&self, n: usize) {
        self.0.rings_open.set(n as f64);
    }

    /// Sets whether another replica serves another ring.
    pub fn set_ring_disagreement(&self, disagrees: bool) {
        self.0.ring_disagreement.set(f64::from(u8::from(disagrees)));
    }

    /// Replaces the gauges of all topics; those of a topic that is not included become 0.
    pub fn set_topics(&self, topics: &[TopicGauges<'_>]) {
        self.0.topics.set(topics);
    }

    /// Returns the topics that have series of their own.
    #[must_use]
    pub fn topics(&self) -> Vec<Box<str>> {
        self.0.topics.names()
    }

    /// Returns the metrics of one shard. Two calls with one name count into the same series.
    #[must_use]
    pub fn shard(&self, name: &str) -> ShardMetrics {
        ShardMetrics::new(name, &self.0.registry)
    }

    /// Renders everything, in the text format of Prometheus.
    #[must_use]
    pub fn render(&self) -> String {
        let mut text = self.0.registry.render();
        self.0.topics.render(&mut text);
        text
    }

    /// Sorts the collected values of histograms into their buckets. Must be called every few seconds: between two
    /// calls they keep every single value.
    pub fn run_upkeep(&self) {
        self.0.registry.run_upkeep();
    }
}
