//! A count with a bound: unary calls under way, or bytes that wait. Beyond the bound a call is refused at once: one
//! that waited would use up the time in which its answer is of use.

use std::sync::atomic::{AtomicUsize, Ordering};

/// A count with a bound, and a reserve above it for calls that end work: they free what others wait for.
#[derive(Debug)]
pub(super) struct CountLimit {
    count: AtomicUsize,
    max: usize,
    reserve: usize,
}

// === impl Gate ===

impl CountLimit {
    /// For at most `max`, and `reserve` more for calls that may use it.
    pub(super) fn new(max: usize, reserve: usize) -> CountLimit {
        CountLimit { count: AtomicUsize::new(0), max, reserve }
    }

    /// The bound without the reserve.
    pub(super) fn max(&self) -> usize {
        self.max
    }

    /// Counts so many, unless there is no room for them. Who enters must [`CountLimit::leave`].
    pub(super) fn try_add(&self, count: usize, reserve: bool) -> bool {
        let max = if reserve { self.max + self.reserve } else { self.max };
        // Too many for a moment: two at the bound may both be refused, never both admitted.
        let admitted = self.add(count) + count <= max;
        if !admitted {
            self.subtract(count);
        }
        admitted
    }

    /// Counts so many in any case. Returns how many there were.
    pub(super) fn add(&self, count: usize) -> usize {
        self.count.fetch_add(count, Ordering::Relaxed)
    }

    /// Forgets so many.
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
