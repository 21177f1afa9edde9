//! Versions of records: numbers that name one state of one record, and are compared for equality only.

use std::sync::LazyLock;
use std::sync::atomic::{AtomicU64, Ordering};

use rand::Rng as _;

/// Version of a record: names one state of it, and is drawn anew by each write.
pub(super) type RecordVersion = [u8; 8];

/// State of the sequence of this process, from a random start.
static NEXT: LazyLock<AtomicU64> = LazyLock::new(|| AtomicU64::new(rand::rng().random()));

/// Returns a version that this process has not drawn yet. Another process draws the same one only by chance, as it
/// has 64 random bits: versions are the steps of SplitMix64 (Steele, Lea and Flood, "Fast Splittable Pseudorandom
/// Number Generators", 2014), which repeats none in 2^64 steps.
pub(super) fn next_version() -> RecordVersion {
    const STEP: u64 = 0x9e37_79b9_7f4a_7c15;
    let mut bits = NEXT.fetch_add(STEP, Ordering::Relaxed);
    bits = (bits ^ bits >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    bits = (bits ^ bits >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
    (bits ^ bits >> 31).to_be_bytes()
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    #[test]
    fn no_version_is_drawn_twice() {
        let drawn: HashSet<RecordVersion> = (0..100_000).map(|_| next_version()).collect();
        assert_eq!(drawn.len(), 100_000);
    }
}
