//! Metrics of one shard.

use std::sync::Arc;
use std::time::Duration;

use metrics::{Counter, Gauge, Histogram};

use super::cache::HandleCache;
use super::definitions::{
    BREAKER_OPEN, BREAKER_OPENED, CLOCK_SKEW, COUNTED, REFUSES_JOBS, REFUSES_READS, SHARD_UP,
    STORE_ERRORS, STORE_OP,
};
use super::registry::Registry;

/// Part of [`Metrics`](super::Metrics) that belongs to one shard, for the code that calls the shard. Cloning is
/// cheap.
#[derive(Clone, Debug)]
pub struct ShardMetrics(Arc<ShardMetricsInner>);

#[derive(Debug)]
struct ShardMetricsInner {
    name: Box<str>,
    registry: Registry,
    ops: HandleCache<&'static str, Histogram>,
    errors: HandleCache<(&'static str, &'static str), Counter>,
    up: Gauge,
    counted: Gauge,
    breaker_open: Gauge,
    breaker_opened: Counter,
    refuses_jobs: Gauge,
    refuses_reads: Gauge,
    clock_skew: Gauge,
}

// === impl ShardMetrics ===

impl ShardMetrics {
    pub(super) fn new(name: &str, registry: &Registry) -> ShardMetrics {
        ShardMetrics(Arc::new(ShardMetricsInner {
            name: name.into(),
            ops: HandleCache::default(),
            errors: HandleCache::default(),
            up: registry.gauge(&SHARD_UP, &[name]),
            counted: registry.gauge(&COUNTED, &[name]),
            breaker_open: registry.gauge(&BREAKER_OPEN, &[name]),
            breaker_opened: registry.counter(&BREAKER_OPENED, &[name]),
            refuses_jobs: registry.gauge(&REFUSES_JOBS, &[name]),
            refuses_reads: registry.gauge(&REFUSES_READS, &[name]),
            clock_skew: registry.gauge(&CLOCK_SKEW, &[name]),
            registry: registry.clone(),
        }))
    }

    /// Records the duration of a call of the shard, whatever its result.
    pub fn op(&self, op: &'static str, took: Duration) {
        let make = || self.0.registry.histogram(&STORE_OP, &[&self.0.name, op]);
        self.0.ops.get_or_insert(op, make).record(took);
    }

    /// Counts a failed call of the shard.
    pub fn error(&self, op: &'static str, reason: &'static str) {
        let make = || self.0.registry.counter(&STORE_ERRORS, &[&self.0.name, op, reason]);
        self.0.errors.get_or_insert((op, reason), make).increment(1);
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
        self.0.breaker_opened.increment(1);
    }

    /// Sets the number of seconds that the clock of the shard is ahead of this server's.
    pub fn set_clock_skew(&self, seconds: f64) {
        self.0.clock_skew.set(seconds);
    }

    /// Sets whether the gauges of topics include the jobs of the shard.
    pub fn set_counted(&self, counted: bool) {
        self.0.counted.set(f64::from(u8::from(counted)));
    }
}
