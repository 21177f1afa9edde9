//! Counter with a maximum: unary calls in flight, or waiting bytes. A call beyond the maximum is refused at once; if
//! it waited, its answer could come too late to be of use.

use std::sync::atomic::{AtomicUsize, Ordering};

/// Counter with a maximum, and a reserve above it for calls that end work: they free resources for other calls.
#[derive(Debug)]
pub(super) struct CountLimit {
    count: AtomicUsize,
    max: usize,
    reserve: usize,
}

// === impl CountLimit ===

impl CountLimit {
    /// Creates a counter for at most `max`, and `reserve` more for calls that may use the reserve.
    pub(super) fn new(max: usize, reserve: usize) -> CountLimit {
        CountLimit { count: AtomicUsize::new(0), max, reserve }
    }

    /// Returns the maximum without the reserve.
    pub(super) fn max(&self) -> usize {
        self.max
    }

    /// Returns the count.
    pub(super) fn count(&self) -> usize {
        self.count.load(Ordering::Relaxed)
    }

    /// Adds `count` and returns true, unless there is no room. The caller must later call [`CountLimit::subtract`].
    pub(super) fn try_add(&self, count: usize, reserve: bool) -> bool {
        let max = if reserve { self.max + self.reserve } else { self.max };
        // The count may exceed the maximum for a moment: two calls at the maximum may both be refused, never both
        // admitted.
        let admitted = self.add(count) + count <= max;
        if !admitted {
            self.subtract(count);
        }
        admitted
    }

    /// Adds `count` and returns true, unless more than the part `1 / divisor` of the maximum would be taken.
    pub(super) fn try_add_to_part(&self, count: usize, divisor: usize) -> bool {
        let admitted = self.add(count) + count <= self.max / divisor;
        if !admitted {
            self.subtract(count);
        }
        admitted
    }

    /// Adds `count` in any case. Returns the previous number.
    pub(super) fn add(&self, count: usize) -> usize {
        self.count.fetch_add(count, Ordering::Relaxed)
    }

    /// Subtracts `count`.
    pub(super) fn subtract(&self, count: usize) {
        self.count.fetch_sub(count, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_more_than_the_bound_are_inside() {
        let gate = CountLimit::new(2, 0);
        assert!(gate.try_add(1, false) && gate.try_add(1, true));
        assert!(!gate.try_add(1, true));
        gate.subtract(1);
        assert!(!gate.try_add(2, false));
        assert!(gate.try_add(1, false));
        assert!(!gate.try_add(1, false));
    }

    #[test]
    fn the_reserve_is_only_for_those_that_may_use_it() {
        let gate = CountLimit::new(1, 2);
        assert!(gate.try_add(1, false));
        assert!(!gate.try_add(1, false));
        assert!(gate.try_add(1, true) && gate.try_add(1, true));
        assert!(!gate.try_add(1, true));
        gate.subtract(1);
        assert!(!gate.try_add(1, false), "what is inside counts for all");
    }
}
