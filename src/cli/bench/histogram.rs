//! Histogram of latencies: exact up to 2 ms, above within a thousandth.

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering::Relaxed};

/// Values below `2^EXACT_BITS` have a bucket each; above, every power of two has half as many.
const EXACT_BITS: u32 = 11;
/// Largest value: larger ones (13 days in microseconds) count as this.
const VALUE_MAX: u64 = (1 << 40) - 1;
const BUCKETS: usize = bucket_index(VALUE_MAX) + 1;

/// Counts of microseconds, shared by all lanes and streams: with one per round, no lane has to keep and merge its
/// own.
pub(super) struct Histogram {
    buckets: Box<[AtomicU32]>,
    count: AtomicU64,
    min: AtomicU64,
    max: AtomicU64,
}

/// Summary of a histogram, in microseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Latency {
    /// Number of values.
    pub(super) count: u64,
    /// Smallest value, exact.
    pub(super) min: u64,
    /// Median.
    pub(super) p50: u64,
    /// 90th percentile.
    pub(super) p90: u64,
    /// 99th percentile.
    pub(super) p99: u64,
    /// Largest value, exact.
    pub(super) max: u64,
}

// === impl Histogram ===

impl Histogram {
    /// Creates an empty histogram.
    pub(super) fn new() -> Histogram {
        let buckets = (0..BUCKETS).map(|_| AtomicU32::new(0)).collect();
        let [count, min, max] = [0, u64::MAX, 0].map(AtomicU64::new);
        Histogram { buckets, count, min, max }
    }

    /// Counts a value.
    pub(super) fn record(&self, us: u64) {
        let us = us.min(VALUE_MAX);
        self.buckets[bucket_index(us)].fetch_add(1, Relaxed);
        self.count.fetch_add(1, Relaxed);
        self.min.fetch_min(us, Relaxed);
        self.max.fetch_max(us, Relaxed);
    }

    /// Returns the summary; None without values.
    pub(super) fn latency(&self) -> Option<Latency> {
        let count = self.count.load(Relaxed);
        let at = |percent| self.percentile(count, percent);
        let [min, max] = [&self.min, &self.max].map(|value| value.load(Relaxed));
        (count > 0).then(|| Latency { count, min, p50: at(50), p90: at(90), p99: at(99), max })
    }

    /// Returns the value that `percent` of all values do not exceed: the upper end of its bucket.
    fn percentile(&self, count: u64, percent: u64) -> u64 {
        let rank = (count * percent).div_ceil(100).max(1);
        let mut seen = 0;
        for (index, bucket) in self.buckets.iter().enumerate() {
            seen += u64::from(bucket.load(Relaxed));
            if seen >= rank {
                return bucket_max(index).min(self.max.load(Relaxed));
            }
        }
        self.max.load(Relaxed)
    }
}

const fn bucket_index(value: u64) -> usize {
    let bits = u64::BITS - value.leading_zeros();
    let shift = bits.saturating_sub(EXACT_BITS);
    ((shift as usize) << (EXACT_BITS - 1)) + (value >> shift) as usize
}

/// Returns the largest value of a bucket.
fn bucket_max(index: usize) -> u64 {
    let half = 1_usize << (EXACT_BITS - 1);
    let shift = (index / half).saturating_sub(1);
    let top = (index - shift * half) as u64;
    ((top + 1) << shift) - 1
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(values: impl IntoIterator<Item = u64>) -> Option<Latency> {
        let histogram = Histogram::new();
        values.into_iter().for_each(|value| histogram.record(value));
        histogram.latency()
    }

    #[test]
    fn nothing_has_no_latency() {
        assert_eq!(of([]), None);
    }

    #[test]
    fn small_values_are_exact() {
        let expected = Latency { count: 1, min: 7, p50: 7, p90: 7, p99: 7, max: 7 };
        assert_eq!(of([7]), Some(expected));
        let expected = Latency { count: 1000, min: 1, p50: 500, p90: 900, p99: 990, max: 1000 };
        assert_eq!(of((1..=1000).rev()), Some(expected));
        let expected = Latency { count: 3, min: 0, p50: 0, p90: 2047, p99: 2047, max: 2047 };
        assert_eq!(of([0, 0, 2047]), Some(expected));
    }

    #[test]
    fn large_values_are_within_a_thousandth() {
        let latency = of((1..=1_000_000).map(|value| value * 7)).unwrap();
        for (found, exact) in [
            (latency.p50, 3_500_000_u64),
            (latency.p90, 6_300_000),
            (latency.p99, 6_930_000),
            (latency.max, 7_000_000),
        ] {
            assert!(found.abs_diff(exact) * 1000 <= exact, "{found} is not {exact}");
        }
    }

    #[test]
    fn every_value_has_a_bucket_that_holds_it() {
        let around = |bit: u32| [(1 << bit) - 1, 1 << bit, (1 << bit) + 1];
        for value in (0..40).flat_map(around).filter(|value| *value <= VALUE_MAX) {
            let bucket = bucket_index(value);
            assert!(value <= bucket_max(bucket), "{value}");
            assert!(bucket == 0 || value > bucket_max(bucket - 1), "{value}");
        }
        assert_eq!(of([u64::MAX]).unwrap().max, VALUE_MAX);
    }
}
