//! Metrics by topic. Topics are named by clients, so only a limited number has series of its own; a later topic takes
//! the place of the one that was idle longest. The registry never removes series, so these are kept here.

use std::collections::{BTreeMap, HashMap};
use std::fmt::Write as _;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, PoisonError, RwLock};
use std::time::Duration;

use tokio::time::Instant;

use super::cache::HandleCache;
use super::definitions::{DELIVERED, ENQUEUED, JOBS, Metric, MetricKind, OLDEST_READY, SETTLED};
use super::{OTHER_TOPICS, TOPICS_MAX, TopicGauges};

/// Minimum time that a topic keeps its series after its last job: where more topics than have room are in use, a
/// common sum is more useful than counters that restart at 0 again and again.
pub(super) const IDLE_MIN: Duration = Duration::from_secs(600);

/// Series of all topics.
#[derive(Debug)]
pub(super) struct TopicSeries {
    begin: Instant,
    known: RwLock<HashMap<Box<str>, Arc<TopicMetrics>>>,
    other: Arc<TopicMetrics>,
    /// Time in milliseconds from `begin` before which no topic has been idle for long enough.
    next_idle: AtomicU64,
}

/// Series of one topic, or of all topics without series of their own.
#[derive(Debug)]
pub(super) struct TopicMetrics {
    label: Box<str>,
    /// Time of the last count, in milliseconds from the beginning.
    used: AtomicU64,
    pub(super) enqueued: LabelCounters,
    pub(super) delivered: LabelCounters,
    pub(super) settled: LabelCounters,
    jobs: LabelCounters,
    /// Bits of a number of seconds; present once the topic was read.
    oldest_ready: HandleCache<(), Arc<AtomicU64>>,
}

/// Numbers by outcome, mode or state.
#[derive(Debug, Default)]
pub(super) struct LabelCounters(HandleCache<&'static str, Arc<AtomicU64>>);

// === impl TopicSeries ===

impl TopicSeries {
    pub(super) fn new() -> TopicSeries {
        let other = Arc::new(TopicMetrics::new(OTHER_TOPICS));
        let (known, next_idle) = (RwLock::default(), AtomicU64::new(0));
        TopicSeries { begin: Instant::now(), known, other, next_idle }
    }

    /// Returns the series that count events of a topic now: its own, or those of all others.
    pub(super) fn metrics_of(&self, topic: &str) -> Arc<TopicMetrics> {
        let now = self.now();
        let found = self.read().get(topic).cloned();
        let series = found.or_else(|| self.add(topic, now));
        let series = series.unwrap_or_else(|| Arc::clone(&self.other));
        series.used.store(now, Ordering::Relaxed);
        series
    }

    /// Returns the topics that have series of their own.
    pub(super) fn names(&self) -> Vec<Box<str>> {
        self.read().keys().cloned().collect()
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
        for series in self.all() {
            match numbers.get(&series.label) {
                Some((jobs, oldest)) => series.set(jobs, *oldest),
                None => series.clear(),
            }
        }
    }

    /// Returns the series of a topic without events: those that it has, or new ones where there is room.
    fn idle(&self, topic: &str) -> Arc<TopicMetrics> {
        let found = self.read().get(topic).cloned();
        let room = found.is_none() && self.read().len() < TOPICS_MAX;
        let series = if room { self.add(topic, self.now()) } else { found };
        series.unwrap_or_else(|| Arc::clone(&self.other))
    }

    /// Adds series of a topic, if there is room or one of the others was idle for long.
    fn add(&self, topic: &str, now: u64) -> Option<Arc<TopicMetrics>> {
        if self.read().len() >= TOPICS_MAX && now < self.next_idle.load(Ordering::Relaxed) {
            return None;
        }
        let mut known = self.known.write().unwrap_or_else(PoisonError::into_inner);
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
        }
        let series =
            known.entry(topic.into()).or_insert_with(|| Arc::new(TopicMetrics::new(topic)));
        series.used.fetch_max(now, Ordering::Relaxed);
        Some(Arc::clone(series))
    }

    /// Renders everything, in the text format of Prometheus.
    pub(super) fn render(&self, text: &mut String) {
        let mut all = self.all();
        all.sort_by(|a, b| a.label.cmp(&b.label));
        render(text, &ENQUEUED, &all, |topic| topic.enqueued.rows());
        render(text, &DELIVERED, &all, |topic| topic.delivered.rows());
        render(text, &SETTLED, &all, |topic| topic.settled.rows());
        render(text, &JOBS, &all, |topic| topic.jobs.rows());
        render(text, &OLDEST_READY, &all, |topic| {
            let oldest = topic.oldest_ready.get(&());
            let seconds = |bits: Arc<AtomicU64>| f64::from_bits(bits.load(Ordering::Relaxed));
            oldest.into_iter().map(|bits| ("", seconds(bits).to_string())).collect()
        });
    }

    fn all(&self) -> Vec<Arc<TopicMetrics>> {
        self.read().values().chain([&self.other]).cloned().collect()
    }

    fn now(&self) -> u64 {
        millis(self.begin.elapsed())
    }

    fn read(&self) -> std::sync::RwLockReadGuard<'_, HashMap<Box<str>, Arc<TopicMetrics>>> {
        self.known.read().unwrap_or_else(PoisonError::into_inner)
    }
}

fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}

/// Renders one metric; `rows` returns for a topic the values of the second label, if there is one, and the numbers.
fn render(
    text: &mut String,
    metric: &Metric,
    topics: &[Arc<TopicMetrics>],
    rows: impl Fn(&TopicMetrics) -> Vec<(&'static str, String)>,
) {
    let Metric { name, labels, help, .. } = metric;
    let kind = if matches!(metric.kind, MetricKind::Counter) { "counter" } else { "gauge" };
    let mut has_head = false;
    for topic in topics {
        for (second, value) in rows(topic) {
            if !std::mem::replace(&mut has_head, true) {
                let _ = writeln!(text, "# HELP {name} {help}\n# TYPE {name} {kind}");
            }
            let second = labels.get(1).map(|label| format!(",{label}=\"{second}\""));
            let (label, second) = (&topic.label, second.unwrap_or_default());
            // Writing to a string does not fail.
            let _ = writeln!(text, "{name}{{topic=\"{label}\"{second}}} {value}");
        }
    }
    if has_head {
        text.push('\n');
    }
}

// === impl TopicMetrics ===

impl TopicMetrics {
    fn new(label: &str) -> TopicMetrics {
        TopicMetrics {
            label: label.into(),
            used: AtomicU64::new(0),
            enqueued: LabelCounters::default(),
            delivered: LabelCounters::default(),
            settled: LabelCounters::default(),
            jobs: LabelCounters::default(),
            oldest_ready: HandleCache::default(),
        }
    }

    fn set(&self, jobs: &HashMap<&'static str, u64>, oldest: Duration) {
        for (state, n) in jobs {
            self.jobs.counter(state).store(*n, Ordering::Relaxed);
        }
        let gauge = self.oldest_ready.get_or_insert((), Arc::default);
        gauge.store(oldest.as_secs_f64().to_bits(), Ordering::Relaxed);
    }

    /// Sets the numbers that are not known any more to 0.
    fn clear(&self) {
        let gauges = self.jobs.0.read();
        gauges.values().for_each(|gauge| gauge.store(0, Ordering::Relaxed));
        if let Some(gauge) = self.oldest_ready.get(&()) {
            gauge.store(0, Ordering::Relaxed);
        }
    }
}

// === impl LabelCounters ===

impl LabelCounters {
    /// Adds `n` to the number of a label.
    pub(super) fn add(&self, label: &'static str, n: u64) {
        self.counter(label).fetch_add(n, Ordering::Relaxed);
    }

    fn counter(&self, label: &'static str) -> Arc<AtomicU64> {
        self.0.get_or_insert(label, Arc::default)
    }

    fn rows(&self) -> Vec<(&'static str, String)> {
        let counts = self.0.read();
        let row = |(label, n): (&&'static str, &Arc<AtomicU64>)| {
            (*label, n.load(Ordering::Relaxed).to_string())
        };
        let mut rows: Vec<_> = counts.iter().map(row).collect();
        rows.sort_unstable();
        rows
    }
}
