//! How long enqueues of client-chosen ids took, by the shard where the id lies; and how late this machine is
//! by itself.

use std::ops::Range;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use crate::checker::history::Nanos;

/// All enqueues that were answered, at their end, and how late the ticks of a clock were.
#[derive(Default)]
pub(crate) struct Latencies {
    calls: Mutex<Vec<(String, Nanos, Duration)>>,
    ticks: Mutex<Vec<(Nanos, Duration)>>,
}

/// How long so many calls took.
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

    /// A task that was to run at some moment ran so much later.
    pub(crate) fn tick(&self, at: Nanos, late: Duration) {
        lock(&self.ticks).push((at, late));
    }

    /// Enqueues that ended within `span` on all shards but this one.
    pub(crate) fn without(&self, shard: &str, span: &Range<Nanos>) -> Quantiles {
        let calls = lock(&self.calls);
        let seen = calls.iter().filter(|(s, end, _)| s != shard && span.contains(end));
        Quantiles::of(seen.map(|(.., took)| *took).collect())
    }

    /// How late ticks were within `span`.
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

/// The one in the middle, or between the two there.
pub(crate) fn median(all: impl Iterator<Item = Duration>) -> Duration {
    let mut all: Vec<Duration> = all.collect();
    all.sort_unstable();
    let at = |index: usize| all.get(index).copied().unwrap_or_default();
    (at(all.len().saturating_sub(1) / 2) + at(all.len() / 2)) / 2
}

fn lock<T>(of: &Mutex<T>) -> MutexGuard<'_, T> {
    of.lock().unwrap_or_else(PoisonError::into_inner)
}
