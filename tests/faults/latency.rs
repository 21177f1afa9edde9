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

impl Latencies {
    pub(crate) fn add(&self, shard: String, end: Nanos, took: Duration) {
        self.all.lock().unwrap_or_else(PoisonError::into_inner).push((shard, end, took));
    }

    /// How many enqueues ended within `span` on all shards but this one, and the time that 99 of 100 of
    /// them did not exceed.
    pub(crate) fn p99_without(&self, shard: &str, span: Range<Nanos>) -> (usize, Duration) {
        let all = self.all.lock().unwrap_or_else(PoisonError::into_inner);
        let seen = all.iter().filter(|(s, end, _)| s != shard && span.contains(end));
        let mut took: Vec<Duration> = seen.map(|(.., took)| *took).collect();
        took.sort_unstable();
        let rank = took.len() * 99 / 100;
        (took.len(), took.get(rank).copied().unwrap_or_default())
    }
}
