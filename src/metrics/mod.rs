//! Metrics of one server. Each [`Metrics`] has its own registry, so two servers can live in one process.
//! `definitions` declares every metric; label values that come from clients (topics) are bounded here, all others are
//! known at compile time or configured.

mod definitions;
mod identity;
mod process;
mod registry;
mod shard;
#[cfg(test)]
mod tests;
mod topic;

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use prometheus::proto::MetricFamily;
use prometheus::{Gauge, GaugeVec, HistogramVec, IntCounterVec, TextEncoder};

use definitions::{
    ALL, BUILD, CONNECTIONS_REFUSED, CREDIT_WAITING, IDENTITIES_FAILED, RING_DISAGREEMENT,
    RINGS_OPEN, RPC, STREAMS, TLS_EXPIRY, TLS_FAILURES, TLS_RELOAD_FAILED, TOPICS_NOT_IN_FORCE,
    Unit,
};
use identity::IdentitySeries;
use registry::Registry;

pub use identity::IdentityMetrics;
pub use shard::ShardMetrics;
use topic::{TopicMetrics, TopicSeries};

/// Maximum number of topics with series of their own: enough to look at, too few to overload a Prometheus. A further
/// topic takes the place of one that has been idle for ten minutes.
pub const TOPICS_MAX: usize = 200;
/// Maximum number of identities with series of their own; the others are counted together.
pub const IDENTITIES_MAX: usize = 1_000;
/// Label of topics, and of identities, without series of their own; no topic can have this name.
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

/// Records run times, of which most in a row are of one topic.
#[derive(Debug)]
pub struct RunTimes<'m> {
    topics: &'m TopicSeries,
    last: Option<Arc<TopicMetrics>>,
}

#[derive(Debug)]
struct MetricsInner {
    registry: Registry,
    topics: TopicSeries,
    identities: IdentitySeries,
    shards: Mutex<HashMap<Box<str>, ShardMetrics>>,
    rpc: HistogramVec,
    build: GaugeVec,
    streams: Gauge,
    credit_waiting: Gauge,
    rings_open: Gauge,
    ring_disagreement: Gauge,
    identities_failed: Gauge,
    topics_not_in_force: Gauge,
    connections_refused: IntCounterVec,
    tls_failures: IntCounterVec,
    tls_expiry: GaugeVec,
    tls_reload_failed: Gauge,
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
        Metrics(Arc::new(MetricsInner {
            topics: TopicSeries::new(&registry),
            identities: IdentitySeries::new(&registry),
            shards: Mutex::default(),
            rpc: registry.histograms(&RPC),
            build: registry.gauges(&BUILD),
            streams: registry.gauge(&STREAMS),
            credit_waiting: registry.gauge(&CREDIT_WAITING),
            rings_open: registry.gauge(&RINGS_OPEN),
            ring_disagreement: registry.gauge(&RING_DISAGREEMENT),
            identities_failed: registry.gauge(&IDENTITIES_FAILED),
            topics_not_in_force: registry.gauge(&TOPICS_NOT_IN_FORCE),
            connections_refused: registry.counters(&CONNECTIONS_REFUSED),
            tls_failures: registry.counters(&TLS_FAILURES),
            tls_expiry: registry.gauges(&TLS_EXPIRY),
            tls_reload_failed: registry.gauge(&TLS_RELOAD_FAILED),
            registry,
        }))
    }

    /// Sets the name of this server, for `ringq_build_info`.
    pub fn set_replica(&self, replica: &str) {
        let build = self.0.build.with_label_values(&[env!("CARGO_PKG_VERSION"), replica]);
        build.set(1.0);
    }

    /// Counts `n` jobs that were enqueued; `outcome` is the result of each.
    pub fn enqueued(&self, topic: &str, outcome: &'static str, n: u64) {
        self.0.topics.metrics_of(topic).enqueued.add(outcome, n);
    }

    /// Counts `n` waiting jobs that a full topic dropped.
    pub fn evicted(&self, topic: &str, n: u64) {
        self.0.topics.metrics_of(topic).evicted.inc_by(n);
    }

    /// Counts deliveries, and records for each the time from the due time of the job to its delivery; `mode` is the
    /// way: a stream, a pull.
    pub fn delivered(
        &self,
        topic: &str,
        mode: &'static str,
        lags: impl ExactSizeIterator<Item = Duration>,
    ) {
        let series = self.0.topics.metrics_of(topic);
        series.delivered.add(mode, lags.len() as u64);
        lags.for_each(|lag| series.lag.observe(lag.as_secs_f64()));
    }

    /// Counts `n` leases that ended; `outcome` is the cause.
    pub fn settled(&self, topic: &str, outcome: &'static str, n: u64) {
        self.0.topics.metrics_of(topic).settled.add(outcome, n);
    }

    /// Returns a recorder of times from the delivery of a job to its settle.
    #[must_use]
    pub fn run_times(&self) -> RunTimes<'_> {
        RunTimes { topics: &self.0.topics, last: None }
    }

    /// Records a call that ended. `method` is one that the server has, never text from a client.
    pub fn rpc(&self, method: &'static str, code: &'static str, took: Duration) {
        self.0.rpc.with_label_values(&[method, code]).observe(took.as_secs_f64());
    }

    /// Sets the number of open streams.
    pub fn set_streams(&self, n: usize) {
        self.0.streams.set(n as f64);
    }

    /// Sets the number of attempts to read changed identities that failed since they were last read.
    pub fn set_identities_failed(&self, n: u64) {
        self.0.identities_failed.set(n as f64);
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

    /// Counts a connection that a limit closed; neither label is text from a client.
    pub fn connection_refused(&self, port: &'static str, reason: &'static str) {
        self.0.connections_refused.with_label_values(&[port, reason]).inc();
    }

    /// Counts a connection that was closed because of TLS; neither label is text from a client.
    pub fn tls_handshake_failed(&self, port: &'static str, reason: &'static str) {
        self.0.tls_failures.with_label_values(&[port, reason]).inc();
    }

    /// Sets the time until the certificates of a file expire, in seconds; negative: since then.
    pub fn set_tls_expiry(&self, file: &'static str, seconds: f64) {
        self.0.tls_expiry.with_label_values(&[file]).set(seconds);
    }

    /// Sets whether the file of topics is not in force.
    pub fn set_topics_not_in_force(&self, not_in_force: bool) {
        self.0.topics_not_in_force.set(f64::from(u8::from(not_in_force)));
    }

    /// Sets whether the TLS files cannot be used.
    pub fn set_tls_reload_failed(&self, failed: bool) {
        self.0.tls_reload_failed.set(f64::from(u8::from(failed)));
    }

    /// Replaces the gauges of all topics; those of a topic that is not included become 0.
    pub fn set_topics(&self, topics: &[TopicGauges<'_>]) {
        self.0.topics.set(topics);
    }

    /// Removes the gauges of all topics: no shard answers, and the last values are not true any more.
    pub fn forget_topics(&self) {
        self.0.topics.forget();
    }

    /// Returns the topics that have series of their own.
    #[must_use]
    pub fn topics(&self) -> Vec<Box<str>> {
        self.0.topics.names()
    }

    /// Returns the usage of one identity, or of all without series of their own.
    #[must_use]
    pub fn identity(&self, name: &str) -> IdentityMetrics {
        self.0.identities.metrics_of(name)
    }

    /// Returns the usage of the identities without series of their own.
    #[must_use]
    pub fn other_identities(&self) -> IdentityMetrics {
        self.0.identities.other()
    }

    /// Removes the usage of an identity that is gone.
    pub fn forget_identity(&self, name: &str) {
        self.0.identities.forget(name);
    }

    /// Sets the number of waiting jobs of a namespace with a quota.
    pub fn set_namespace_waiting(&self, name: &str, jobs: u64) {
        self.0.identities.set_waiting(name, jobs);
    }

    /// Sets the stored bytes of a namespace with a quota.
    pub fn set_namespace_stored(&self, name: &str, bytes: u64) {
        self.0.identities.set_stored(name, bytes);
    }

    /// Removes the number of waiting jobs of a namespace that has no quota of them any more.
    pub fn forget_namespace_waiting(&self, name: &str) {
        self.0.identities.forget_waiting(name);
    }

    /// Removes the stored bytes of a namespace that has no quota of them any more.
    pub fn forget_namespace_stored(&self, name: &str) {
        self.0.identities.forget_stored(name);
    }

    /// Returns the metrics of one shard. Two calls with one name count into the same series.
    #[must_use]
    pub fn shard(&self, name: &str) -> ShardMetrics {
        let mut shards = self.0.shards.lock();
        let new = || ShardMetrics::new(&self.0.registry.of_shard(name));
        shards.entry(name.into()).or_insert_with(new).clone()
    }

    /// Returns the values of all series: families in the order of their names, series in that of their labels.
    #[must_use]
    pub(crate) fn gather(&self) -> Vec<MetricFamily> {
        self.0.registry.gather()
    }

    /// Returns the unit of a metric as OpenTelemetry writes it: `s`, `By`, or nothing for a number. A Prometheus that
    /// receives metrics by OTLP would append `_ratio` to the name of a gauge of unit `1`.
    #[must_use]
    pub fn unit(name: &str) -> &'static str {
        let metric = ALL.iter().find(|metric| metric.name == name);
        match metric.map_or(Unit::Count, |metric| metric.unit) {
            Unit::Count => "",
            Unit::Seconds => "s",
            Unit::Bytes => "By",
        }
    }

    /// Renders everything, in the text format of Prometheus.
    #[must_use]
    pub fn render(&self) -> String {
        let text = TextEncoder::new().encode_to_string(&self.gather());
        text.expect("writing to a string does not fail, and families without a name or series are not gathered")
    }
}

// === impl RunTimes ===

impl RunTimes<'_> {
    /// Records the run time of a job.
    pub fn record(&mut self, topic: &str, run: Duration) {
        let last = self.last.take().filter(|last| last.is_of(topic));
        let series = last.unwrap_or_else(|| self.topics.metrics_of(topic));
        series.run.observe(run.as_secs_f64());
        self.last = Some(series);
    }
}
