//! The metrics of one server. Each [`Metrics`] has its own registry, so two servers can live in one
//! process. What there is to count is declared in `definitions`; label values that come from
//! clients (topics) are bounded here, all others are known at compile time or configured.

mod cache;
mod definitions;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use metrics::{Counter, Gauge, Histogram, Level, Metadata, Recorder as _};
use metrics_exporter_prometheus::{
    Matcher, PrometheusBuilder, PrometheusHandle, PrometheusRecorder,
};

use cache::Cache;
use definitions::{
    ALL, BREAKER_OPEN, BREAKER_OPENED, BUILD, CREDIT_WAITING, DELIVERED, ENQUEUED, JOBS, Kind, LAG,
    Metric, OLDEST_READY, REFUSES_JOBS, RING_DISAGREEMENT, RINGS_OPEN, RPC, RUN, SETTLED, SHARD_UP,
    STORE_ERRORS, STORE_OP, STREAMS,
};

/// Topics that have series of their own: enough to look at, too few to overload a Prometheus.
pub const TOPICS_MAX: usize = 200;
/// The label of all further topics; no topic can have this name.
pub const OTHER_TOPICS: &str = "_other";

const METADATA: Metadata<'static> = Metadata::new("ringq", Level::INFO, None);

/// Counts and times what one server does. Cloning is cheap.
#[derive(Clone, Debug)]
pub struct Metrics(Arc<Inner>);

/// The part of [`Metrics`] that belongs to one shard, to be kept by whoever talks to it. Cloning is
/// cheap.
#[derive(Clone, Debug)]
pub struct ShardMetrics(Arc<ShardInner>);

/// What the store says of one topic.
#[derive(Clone, Debug)]
pub struct TopicGauges<'a> {
    /// The topic.
    pub topic: &'a str,
    /// Jobs by state. A state that is not named here counts as 0.
    pub jobs: &'a [(&'static str, u64)],
    /// How long the oldest ready job has been waiting, if there is one.
    pub oldest_ready_age: Option<Duration>,
}

#[derive(Debug)]
struct Inner {
    registry: Registry,
    topics: Cache<Box<str>, Arc<TopicMetrics>>,
    other: Arc<TopicMetrics>,
    rpc: Cache<(&'static str, &'static str), Histogram>,
    lag: Histogram,
    run: Histogram,
    streams: Gauge,
    credit_waiting: Gauge,
    rings_open: Gauge,
    ring_disagreement: Gauge,
}

#[derive(Debug)]
struct TopicMetrics {
    label: Box<str>,
    registry: Registry,
    enqueued: Cache<&'static str, Counter>,
    delivered: Cache<&'static str, Counter>,
    settled: Cache<&'static str, Counter>,
    jobs: Cache<&'static str, Gauge>,
    oldest_ready: Cache<(), Gauge>,
}

#[derive(Debug)]
struct ShardInner {
    name: Box<str>,
    registry: Registry,
    ops: Cache<&'static str, Histogram>,
    errors: Cache<(&'static str, &'static str), Counter>,
    up: Gauge,
    breaker_open: Gauge,
    breaker_opened: Counter,
    refuses_jobs: Gauge,
}

/// Makes handles and renders them.
#[derive(Clone, Debug)]
struct Registry {
    recorder: Arc<PrometheusRecorder>,
    handle: PrometheusHandle,
}

// === impl Metrics ===

impl Default for Metrics {
    fn default() -> Metrics {
        Metrics::new()
    }
}

impl Metrics {
    /// Metrics that nothing was counted in yet.
    #[must_use]
    pub fn new() -> Metrics {
        let registry = Registry::new();
        registry.gauge(&BUILD, &[env!("CARGO_PKG_VERSION")]).set(1.0);
        Metrics(Arc::new(Inner {
            topics: Cache::default(),
            other: TopicMetrics::new(OTHER_TOPICS, &registry),
            rpc: Cache::default(),
            lag: registry.histogram(&LAG, &[]),
            run: registry.histogram(&RUN, &[]),
            streams: registry.gauge(&STREAMS, &[]),
            credit_waiting: registry.gauge(&CREDIT_WAITING, &[]),
            rings_open: registry.gauge(&RINGS_OPEN, &[]),
            ring_disagreement: registry.gauge(&RING_DISAGREEMENT, &[]),
            registry,
        }))
    }

    /// `n` jobs were enqueued; `outcome` is what became of each.
    pub fn enqueued(&self, topic: &str, outcome: &'static str, n: u64) {
        let topic = self.topic(topic);
        let make = || topic.counter(&ENQUEUED, outcome);
        topic.enqueued.get_or(outcome, make).increment(n);
    }

    /// `n` deliveries went out; `mode` is the way: a stream, a pull.
    pub fn delivered(&self, topic: &str, mode: &'static str, n: u64) {
        let topic = self.topic(topic);
        let make = || topic.counter(&DELIVERED, mode);
        topic.delivered.get_or(mode, make).increment(n);
    }

    /// `n` leases ended; `outcome` is what ended them.
    pub fn settled(&self, topic: &str, outcome: &'static str, n: u64) {
        let topic = self.topic(topic);
        let make = || topic.counter(&SETTLED, outcome);
        topic.settled.get_or(outcome, make).increment(n);
    }

    /// A job was delivered this long after it was due.
    pub fn lag(&self, lag: Duration) {
        self.0.lag.record(lag);
    }

    /// A job was settled this long after its delivery.
    pub fn run(&self, run: Duration) {
        self.0.run.record(run);
    }

    /// A call ended. `method` is one that the server knows, never what a client sent.
    pub fn rpc(&self, method: &'static str, code: &'static str, took: Duration) {
        let make = || self.0.registry.histogram(&RPC, &[method, code]);
        self.0.rpc.get_or((method, code), make).record(took);
    }

    /// So many streams are open.
    pub fn set_streams(&self, n: usize) {
        self.0.streams.set(n as f64);
    }

    /// The open streams could take so many jobs at once.
    pub fn set_credit_waiting(&self, n: usize) {
        self.0.credit_waiting.set(n as f64);
    }

    /// Jobs may lie where one of so many rings says.
    pub fn set_rings_open(&self, n: usize) {
        self.0.rings_open.set(n as f64);
    }

    /// Whether another replica serves another ring.
    pub fn set_ring_disagreement(&self, disagrees: bool) {
        self.0.ring_disagreement.set(f64::from(u8::from(disagrees)));
    }

    /// Replaces the gauges of all topics; those of a topic that is not among them become 0.
    pub fn set_topics(&self, topics: &[TopicGauges<'_>]) {
        let mut jobs: BTreeMap<(Box<str>, &'static str), u64> = BTreeMap::new();
        let mut ages: BTreeMap<Box<str>, Duration> = BTreeMap::new();
        for gauges in topics {
            let topic = self.topic(gauges.topic);
            for (state, n) in gauges.jobs {
                // Made here, set below, where the sums are complete.
                let _ = topic.jobs.get_or(state, || topic.gauge(&JOBS, &[&topic.label, state]));
                *jobs.entry((topic.label.clone(), state)).or_default() += n;
            }
            let _ = topic.oldest_ready.get_or((), || topic.gauge(&OLDEST_READY, &[&topic.label]));
            let oldest = ages.entry(topic.label.clone()).or_default();
            *oldest = gauges.oldest_ready_age.unwrap_or_default().max(*oldest);
        }
        for topic in self.0.topics.read().values().chain([&self.0.other]) {
            topic.set(|state| jobs.get(&(topic.label.clone(), state)).copied(), &ages);
        }
    }

    /// The metrics of one shard. Asked twice for one name, both count into the same series.
    #[must_use]
    pub fn shard(&self, name: &str) -> ShardMetrics {
        let registry = self.0.registry.clone();
        ShardMetrics(Arc::new(ShardInner {
            name: name.into(),
            ops: Cache::default(),
            errors: Cache::default(),
            up: registry.gauge(&SHARD_UP, &[name]),
            breaker_open: registry.gauge(&BREAKER_OPEN, &[name]),
            breaker_opened: registry.counter(&BREAKER_OPENED, &[name]),
            refuses_jobs: registry.gauge(&REFUSES_JOBS, &[name]),
            registry,
        }))
    }

    /// Everything, in the text format of Prometheus.
    #[must_use]
    pub fn render(&self) -> String {
        self.0.registry.handle.render()
    }

    /// Sorts what histograms have collected into their buckets. To be called every few seconds:
    /// between two calls they keep every single value.
    pub fn run_upkeep(&self) {
        self.0.registry.handle.run_upkeep();
    }

    /// The series of a topic, or those of all others once there are too many.
    fn topic(&self, topic: &str) -> Arc<TopicMetrics> {
        if let Some(known) = self.0.topics.get(topic) {
            return known;
        }
        // Threads that come here at once may go over the maximum by their number; that is harmless.
        if self.0.topics.is_full(TOPICS_MAX) {
            return Arc::clone(&self.0.other);
        }
        self.0.topics.get_or(topic.into(), || TopicMetrics::new(topic, &self.0.registry))
    }
}

// === impl ShardMetrics ===

impl ShardMetrics {
    /// A call of the shard took this long, however it ended.
    pub fn op(&self, op: &'static str, took: Duration) {
        let make = || self.0.registry.histogram(&STORE_OP, &[&self.0.name, op]);
        self.0.ops.get_or(op, make).record(took);
    }

    /// A call of the shard failed.
    pub fn error(&self, op: &'static str, reason: &'static str) {
        let make = || self.0.registry.counter(&STORE_ERRORS, &[&self.0.name, op, reason]);
        self.0.errors.get_or((op, reason), make).increment(1);
    }

    /// Whether calls of the shard fail at once from now on.
    pub fn set_breaker_open(&self, open: bool) {
        self.0.breaker_open.set(f64::from(u8::from(open)));
        if open {
            self.0.breaker_opened.increment(1);
            self.set_up(false);
        }
    }

    /// Whether the shard takes no new jobs though it answers.
    pub fn set_refuses_jobs(&self, refuses: bool) {
        self.0.refuses_jobs.set(f64::from(u8::from(refuses)));
    }

    /// Whether the shard can be used.
    pub fn set_up(&self, up: bool) {
        self.0.up.set(f64::from(u8::from(up)));
    }
}

// === impl TopicMetrics ===

impl TopicMetrics {
    fn new(label: &str, registry: &Registry) -> Arc<TopicMetrics> {
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

    fn counter(&self, metric: &Metric, second: &str) -> Counter {
        self.registry.counter(metric, &[&self.label, second])
    }

    fn gauge(&self, metric: &Metric, labels: &[&str]) -> Gauge {
        self.registry.gauge(metric, labels)
    }

    /// Sets every gauge that was ever set; what is not known any more becomes 0.
    fn set(&self, jobs: impl Fn(&'static str) -> Option<u64>, ages: &BTreeMap<Box<str>, Duration>) {
        for (state, gauge) in self.jobs.read().iter() {
            gauge.set(jobs(state).unwrap_or_default() as f64);
        }
        for gauge in self.oldest_ready.read().values() {
            gauge.set(ages.get(&self.label).copied().unwrap_or_default());
        }
    }
}

// === impl Registry ===

impl Registry {
    fn new() -> Registry {
        let recorder = ALL.iter().fold(PrometheusBuilder::new(), |builder, metric| {
            let Kind::Histogram(buckets) = metric.kind else { return builder };
            let matcher = Matcher::Full(metric.name.to_owned());
            builder.set_buckets_for_metric(matcher, buckets).expect("a metric has buckets")
        });
        let recorder = recorder.build_recorder();
        for metric in ALL {
            let (name, unit, help) = (metric.name.into(), Some(metric.unit), metric.help.into());
            match metric.kind {
                Kind::Counter => recorder.describe_counter(name, unit, help),
                Kind::Gauge => recorder.describe_gauge(name, unit, help),
                Kind::Histogram(_) => recorder.describe_histogram(name, unit, help),
            }
        }
        Registry { handle: recorder.handle(), recorder: Arc::new(recorder) }
    }

    fn counter(&self, metric: &Metric, labels: &[&str]) -> Counter {
        self.recorder.register_counter(&metric.key(labels), &METADATA)
    }

    fn gauge(&self, metric: &Metric, labels: &[&str]) -> Gauge {
        self.recorder.register_gauge(&metric.key(labels), &METADATA)
    }

    fn histogram(&self, metric: &Metric, labels: &[&str]) -> Histogram {
        self.recorder.register_histogram(&metric.key(labels), &METADATA)
    }
}
