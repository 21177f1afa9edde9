//! How long enqueues of client-chosen ids took, by the shard where the id lies.

use std::ops::Range;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use crate::checker::history::Nanos;

/// All enqueues that were answered, at their end.
#[derive(Default)]
pub(crate) struct Latencies {
    all: Mutex<Vec<(String, Nanos, Duration)>>,
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
        self.all.lock().unwrap_or_else(PoisonError::into_inner).push((shard, end, took));
    }

    /// Enqueues that ended within `span` on all shards but this one.
    pub(crate) fn without(&self, shard: &str, span: &Range<Nanos>) -> Quantiles {
        let all = self.all.lock().unwrap_or_else(PoisonError::into_inner);
        let seen = all.iter().filter(|(s, end, _)| s != shard && span.contains(end));
        let mut took: Vec<Duration> = seen.map(|(.., took)| *took).collect();
        took.sort_unstable();
        let at = |percent| took.get(took.len() * percent / 100).copied().unwrap_or_default();
        Quantiles { count: took.len(), p50: at(50), p99: at(99) }
    }
}
