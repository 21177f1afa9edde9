//! Times of enqueues with client-chosen ids, by the shard of the id; and the lateness of this machine itself.

use std::ops::Range;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use crate::checker::history::Nanos;

/// All answered enqueues, at their end, and the lateness of a clock's ticks.
#[derive(Default)]
pub(crate) struct Latencies {
    calls: Mutex<Vec<(String, Nanos, Duration)>>,
    ticks: Mutex<Vec<(Nanos, Duration)>>,
}

/// Quantiles of the times of a number of calls.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Quantiles {
    #[allow(dead_code, reason = "printed")]
    pub(crate) count: usize,
    #[allow(dead_code, reason = "printed")]
    pub(crate) p50: Duration,
    pub(crate) p99: Duration,
}

impl Latencies {
    pub(crate) fn add(&self, shard: String, end: Nanos, took: Duration) {
        lock(&self.calls).push((shard, end, took));
    }

    /// Records that a task ran `late` after its planned time.
    pub(crate) fn tick(&self, at: Nanos, late: Duration) {
        lock(&self.ticks).push((at, late));
    }

    /// Returns the quantiles of enqueues that ended within `span` on all shards but this one.
    pub(crate) fn without(&self, shard: &str, span: &Range<Nanos>) -> Quantiles {
        let calls = lock(&self.calls);
        let seen = calls.iter().filter(|(s, end, _)| s != shard && span.contains(end));
        Quantiles::of(seen.map(|(.., took)| *took).collect())
    }

    /// Returns the lateness of ticks within `span`.
    pub(crate) fn lateness(&self, span: &Range<Nanos>) -> Quantiles {
        let ticks = lock(&self.ticks);
        let seen = ticks.iter().filter(|(at, _)| span.contains(at));
        Quantiles::of(seen.map(|(_, late)| *late).collect())
    }
}

impl Quantiles {
    fn of(mut all: Vec<Duration>) -> Quantiles {
        all.sort_unstable();
        let at = |percent| all.get(all.len() * percent / 100).copied().unwrap_or_default();
        Quantiles { count: all.len(), p50: at(50), p99: at(99) }
    }
}

/// Returns the median.
pub(crate) fn median(all: impl Iterator<Item = Duration>) -> Duration {
    let mut all: Vec<Duration> = all.collect();
    all.sort_unstable();
    let at = |index: usize| all.get(index).copied().unwrap_or_default();
    (at(all.len().saturating_sub(1) / 2) + at(all.len() / 2)) / 2
}

fn lock<T>(of: &Mutex<T>) -> MutexGuard<'_, T> {
    of.lock().unwrap_or_else(PoisonError::into_inner)
}
