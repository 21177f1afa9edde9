//! Metrics by topic. Topics are named by clients, so only a limited number has series of its own; a later topic takes
//! the place of the one that was idle longest, whose series are removed.

use std::collections::{BTreeMap, HashMap};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use parking_lot::{Mutex, RwLock};
use prometheus::core::{MetricVec, MetricVecBuilder};
use prometheus::{Gauge, GaugeVec, Histogram, HistogramVec, IntCounter, IntCounterVec};
use tokio::time::Instant;

use super::definitions::{DELIVERED, ENQUEUED, EVICTED, JOBS, LAG, OLDEST_READY, RUN, SETTLED};
use super::registry::Registry;
use super::{OTHER_TOPICS, TOPICS_MAX, TopicGauges};

/// Minimum time that a topic keeps its series after its last job: where more topics than have room are in use, a
/// common sum is more useful than counters that restart at 0 again and again.
pub(super) const IDLE_MIN: Duration = Duration::from_secs(600);

// A vector finds its series by a hash of all values in a row, so no value may be the end of another one.
const ENQUEUE_OUTCOMES: &[&str] =
    &["created", "replaced", "unchanged", "deferred", "rescheduled", "refused"];
const DELIVERY_MODES: &[&str] = &["stream", "pull"];
const SETTLE_OUTCOMES: &[&str] =
    &["succeeded", "retried", "released", "lease_expired", "orphaned", "dead", "moved", "refused"];
const STATES: &[&str] = &["scheduled", "ready", "running", "backoff", "dead"];

/// Series of all topics.
#[derive(Debug)]
pub(super) struct TopicSeries {
    begin: Instant,
    vectors: TopicVectors,
    known: RwLock<HashMap<Box<str>, Arc<TopicMetrics>>>,
    other: OnceLock<Arc<TopicMetrics>>,
    /// Time in milliseconds from `begin` before which no topic has been idle for long enough.
    next_idle: AtomicU64,
}

/// Creates and removes the series of one topic.
#[derive(Debug)]
struct TopicVectors {
    enqueued: IntCounterVec,
    evicted: IntCounterVec,
    delivered: IntCounterVec,
    settled: IntCounterVec,
    lag: HistogramVec,
    run: HistogramVec,
    jobs: GaugeVec,
    oldest_ready: GaugeVec,
}

/// Series of one topic, or of all topics without series of their own. All but the gauges are created together, so that
/// none can appear after they were removed; and counters begin with 0, so that their first increase is seen.
#[derive(Debug)]
pub(super) struct TopicMetrics {
    label: Box<str>,
    /// Time of the last count, in milliseconds from the beginning.
    used: AtomicU64,
    pub(super) enqueued: LabelCounters,
    pub(super) evicted: IntCounter,
    pub(super) delivered: LabelCounters,
    pub(super) settled: LabelCounters,
    pub(super) lag: Histogram,
    pub(super) run: Histogram,
    /// Present while the topic is read.
    gauges: Mutex<Option<StateGauges>>,
}

/// Counters by outcome or mode.
#[derive(Debug)]
pub(super) struct LabelCounters(Vec<(&'static str, IntCounter)>);

/// Gauges of the jobs of a topic.
#[derive(Debug)]
struct StateGauges {
    jobs: Vec<(&'static str, Gauge)>,
    oldest_ready: Gauge,
}

// === impl TopicSeries ===

impl TopicSeries {
    pub(super) fn new(registry: &Registry) -> TopicSeries {
        let vectors = TopicVectors {
            enqueued: registry.counters(&ENQUEUED),
            evicted: registry.counters(&EVICTED),
            delivered: registry.counters(&DELIVERED),
            settled: registry.counters(&SETTLED),
            lag: registry.histograms(&LAG),
            run: registry.histograms(&RUN),
            jobs: registry.gauges(&JOBS),
            oldest_ready: registry.gauges(&OLDEST_READY),
        };
        let (known, next_idle) = (RwLock::default(), AtomicU64::new(0));
        TopicSeries { begin: Instant::now(), vectors, known, other: OnceLock::new(), next_idle }
    }

    /// Returns the series that count events of a topic now: its own, or those of all others.
    pub(super) fn metrics_of(&self, topic: &str) -> Arc<TopicMetrics> {
        let now = self.now();
        let found = self.known.read().get(topic).cloned();
        let series = found.or_else(|| self.add(topic, now)).unwrap_or_else(|| self.other());
        series.used.store(now, Ordering::Relaxed);
        series
    }

    /// Returns the topics that have series of their own.
    pub(super) fn names(&self) -> Vec<Box<str>> {
        self.known.read().keys().cloned().collect()
    }

    /// Replaces the gauges of all topics.
    pub(super) fn set(&self, topics: &[TopicGauges<'_>]) {
        let mut numbers: BTreeMap<Box<str>, (HashMap<&'static str, u64>, Duration)> =
            BTreeMap::new();
        for gauges in topics {
            let in_use = gauges.jobs.iter().any(|(_, jobs)| *jobs > 0);
            let series =
                if in_use { self.metrics_of(gauges.topic) } else { self.idle(gauges.topic) };
            let (jobs, oldest) = numbers.entry(series.label.clone()).or_default();
            for (state, n) in gauges.jobs {
                *jobs.entry(state).or_default() += n;
            }
            *oldest = gauges.oldest_ready_age.unwrap_or_default().max(*oldest);
        }
        // Locked to the end: gauges of a topic that is removed meanwhile would stay.
        let known = self.known.read();
        for series in known.values().chain(self.other.get()) {
            match numbers.get(&series.label) {
                Some((jobs, oldest)) => series.set(&self.vectors, jobs, *oldest),
                None => series.clear(),
            }
        }
    }

    /// Removes the gauges of all topics, until they are set again.
    pub(super) fn forget(&self) {
        let known = self.known.read();
        for series in known.values().chain(self.other.get()) {
            *series.gauges.lock() = None;
        }
        self.vectors.jobs.reset();
        self.vectors.oldest_ready.reset();
    }

    /// Returns the series of a topic without events: those that it has, or new ones where there is room.
    fn idle(&self, topic: &str) -> Arc<TopicMetrics> {
        let found = self.known.read().get(topic).cloned();
        let room = found.is_none() && self.known.read().len() < TOPICS_MAX;
        let series = if room { self.add(topic, self.now()) } else { found };
        series.unwrap_or_else(|| self.other())
    }

    /// Adds series of a topic, if there is room or one of the others was idle for long.
    fn add(&self, topic: &str, now: u64) -> Option<Arc<TopicMetrics>> {
        if self.known.read().len() >= TOPICS_MAX && now < self.next_idle.load(Ordering::Relaxed) {
            return None;
        }
        let mut known = self.known.write();
        if known.len() >= TOPICS_MAX && !known.contains_key(topic) {
            let used = |series: &TopicMetrics| series.used.load(Ordering::Relaxed);
            let (name, oldest) = known.iter().min_by_key(|(_, series)| used(series))?;
            let idle_at = used(oldest) + millis(IDLE_MIN);
            if now < idle_at {
                self.next_idle.store(idle_at, Ordering::Relaxed);
                return None;
            }
            let name = name.clone();
            known.remove(&name);
            self.vectors.remove(&name);
        }
        let series =
            known.entry(topic.into()).or_insert_with(|| Arc::new(self.vectors.create(topic)));
        series.used.fetch_max(now, Ordering::Relaxed);
        Some(Arc::clone(series))
    }

    fn other(&self) -> Arc<TopicMetrics> {
        Arc::clone(self.other.get_or_init(|| Arc::new(self.vectors.create(OTHER_TOPICS))))
    }

    fn now(&self) -> u64 {
        millis(self.begin.elapsed())
    }
}

fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}

// === impl TopicVectors ===

impl TopicVectors {
    fn create(&self, topic: &str) -> TopicMetrics {
        TopicMetrics {
            label: topic.into(),
            used: AtomicU64::new(0),
            enqueued: LabelCounters(series(&self.enqueued, topic, ENQUEUE_OUTCOMES)),
            evicted: self.evicted.with_label_values(&[topic]),
            delivered: LabelCounters(series(&self.delivered, topic, DELIVERY_MODES)),
            settled: LabelCounters(series(&self.settled, topic, SETTLE_OUTCOMES)),
            lag: self.lag.with_label_values(&[topic]),
            run: self.run.with_label_values(&[topic]),
            gauges: Mutex::default(),
        }
    }

    fn remove(&self, topic: &str) {
        remove_series(&self.enqueued, topic, ENQUEUE_OUTCOMES);
        remove_series(&self.delivered, topic, DELIVERY_MODES);
        remove_series(&self.settled, topic, SETTLE_OUTCOMES);
        remove_series(&self.jobs, topic, STATES);
        let _ = self.evicted.remove_label_values(&[topic]);
        let _ = self.lag.remove_label_values(&[topic]);
        let _ = self.run.remove_label_values(&[topic]);
        let _ = self.oldest_ready.remove_label_values(&[topic]);
    }
}

/// Returns the series of a topic in a vector, one for each value of the second label.
fn series<B: MetricVecBuilder>(
    vector: &MetricVec<B>,
    topic: &str,
    values: &[&'static str],
) -> Vec<(&'static str, B::M)> {
    values.iter().map(|value| (*value, vector.with_label_values(&[topic, value]))).collect()
}

/// Removes the series of a topic from a vector, as far as they exist.
fn remove_series<B: MetricVecBuilder>(vector: &MetricVec<B>, topic: &str, values: &[&str]) {
    for value in values {
        let _ = vector.remove_label_values(&[topic, value]);
    }
}

// === impl TopicMetrics ===

impl TopicMetrics {
    /// Returns whether these are the series of this topic, and of no other.
    pub(super) fn is_of(&self, topic: &str) -> bool {
        *self.label == *topic
    }

    fn set(&self, vectors: &TopicVectors, jobs: &HashMap<&'static str, u64>, oldest: Duration) {
        let mut gauges = self.gauges.lock();
        let gauges = gauges.get_or_insert_with(|| StateGauges {
            jobs: series(&vectors.jobs, &self.label, STATES),
            oldest_ready: vectors.oldest_ready.with_label_values(&[&*self.label]),
        });
        for (state, gauge) in &gauges.jobs {
            gauge.set(jobs.get(state).copied().unwrap_or(0) as f64);
        }
        gauges.oldest_ready.set(oldest.as_secs_f64());
    }

    /// Sets the numbers that are not known any more to 0.
    fn clear(&self) {
        if let Some(gauges) = &*self.gauges.lock() {
            gauges.jobs.iter().for_each(|(_, gauge)| gauge.set(0.0));
            gauges.oldest_ready.set(0.0);
        }
    }
}

// === impl LabelCounters ===

impl LabelCounters {
    /// Adds `n` to the counter of a label.
    pub(super) fn add(&self, label: &'static str, n: u64) {
        let counter = self.0.iter().find(|(known, _)| *known == label);
        debug_assert!(counter.is_some(), "{label} is not a value of the label");
        counter.into_iter().for_each(|(_, counter)| counter.inc_by(n));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_value_of_a_label_is_the_end_of_another() {
        for values in [ENQUEUE_OUTCOMES, DELIVERY_MODES, SETTLE_OUTCOMES, STATES] {
            for (i, value) in values.iter().enumerate() {
                let mut others = values.iter().enumerate().filter(|(j, _)| *j != i);
                assert!(others.all(|(_, other)| !value.ends_with(other)), "{value}");
            }
        }
    }
}
