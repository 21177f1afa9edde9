//! Metrics of one shard.

use std::sync::Arc;
use std::time::Duration;

use prometheus::{Gauge, GaugeVec, HistogramVec, IntCounter, IntCounterVec};

use super::definitions::{
    BREAKER_OPEN, BREAKER_OPENED, CLOCK_SKEW, COUNTED, DATA_LOST, REFUSES_JOBS, REFUSES_READS,
    SHARD_UP, STORE_BYTES, STORE_ERRORS, STORE_MAX_BYTES, STORE_OP,
};
use super::registry::ShardRegistry;

/// Part of [`Metrics`](super::Metrics) that belongs to one shard, for the code that calls the shard. Cloning is
/// cheap.
#[derive(Clone, Debug)]
pub struct ShardMetrics(Arc<ShardMetricsInner>);

#[derive(Debug)]
struct ShardMetricsInner {
    ops: HistogramVec,
    errors: IntCounterVec,
    up: Gauge,
    counted: Gauge,
    breaker_open: Gauge,
    breaker_opened: IntCounter,
    data_lost: IntCounter,
    refuses_jobs: Gauge,
    refuses_reads: Gauge,
    clock_skew: Gauge,
    bytes: GaugeVec,
    max_bytes: GaugeVec,
}

// === impl ShardMetrics ===

impl ShardMetrics {
    pub(super) fn new(registry: &ShardRegistry<'_>) -> ShardMetrics {
        let errors = registry.counters(&STORE_ERRORS);
        // Counts from 0: a counter that appears with 1 shows no increase, and the first full store would cause no
        // alert.
        errors.with_label_values(&["enqueue", "STORE_FULL"]);
        ShardMetrics(Arc::new(ShardMetricsInner {
            ops: registry.histograms(&STORE_OP),
            errors,
            up: registry.gauge(&SHARD_UP),
            counted: registry.gauge(&COUNTED),
            breaker_open: registry.gauge(&BREAKER_OPEN),
            breaker_opened: registry.counter(&BREAKER_OPENED),
            data_lost: registry.counter(&DATA_LOST),
            refuses_jobs: registry.gauge(&REFUSES_JOBS),
            refuses_reads: registry.gauge(&REFUSES_READS),
            clock_skew: registry.gauge(&CLOCK_SKEW),
            bytes: registry.optional_gauge(&STORE_BYTES),
            max_bytes: registry.optional_gauge(&STORE_MAX_BYTES),
        }))
    }

    /// Records the duration of a call of the shard, whatever its result.
    pub fn op(&self, op: &'static str, took: Duration) {
        self.0.ops.with_label_values(&[op]).observe(took.as_secs_f64());
    }

    /// Counts a failed call of the shard.
    pub fn error(&self, op: &'static str, reason: &'static str) {
        self.0.errors.with_label_values(&[op, reason]).inc();
    }

    /// Sets the health of the shard: whether it refuses all calls, new jobs, and reads by users.
    pub fn set_health(&self, is_down: bool, refuses_jobs: bool, refuses_reads: bool) {
        let gauge = |gauge: &Gauge, on| gauge.set(f64::from(u8::from(on)));
        gauge(&self.0.up, !is_down);
        gauge(&self.0.breaker_open, is_down);
        gauge(&self.0.refuses_jobs, refuses_jobs);
        gauge(&self.0.refuses_reads, refuses_reads);
    }

    /// Counts an opening of the circuit breaker: all calls are refused from now on.
    pub fn breaker_opened(&self) {
        self.0.breaker_opened.inc();
    }

    /// Counts a loss of data.
    pub fn data_lost(&self) {
        self.0.data_lost.inc();
    }

    /// Sets the number of seconds that the clock of the shard is ahead of this server's.
    pub fn set_clock_skew(&self, seconds: f64) {
        self.0.clock_skew.set(seconds);
    }

    /// Sets whether the gauges of topics include the jobs of the shard.
    pub fn set_counted(&self, counted: bool) {
        self.0.counted.set(f64::from(u8::from(counted)));
    }

    /// Sets the bytes that the store uses, and the number at which it is full. `None`: not known, or no limit; the
    /// series is then absent.
    pub fn set_bytes(&self, bytes: Option<u64>, max: Option<u64>) {
        for (gauge, value) in [(&self.0.bytes, bytes), (&self.0.max_bytes, max)] {
            match value {
                Some(value) => gauge.with_label_values::<&str>(&[]).set(value as f64),
                None => gauge.reset(),
            }
        }
    }
}
