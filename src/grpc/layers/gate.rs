//! A count with a bound: unary calls under way, or bytes that wait. Beyond the bound a call is refused at once: one
//! that waited would use up the time in which its answer is of use.

use std::sync::atomic::{AtomicUsize, Ordering};

/// A count with a bound, and a reserve above it for calls that end work: they free what others wait for.
#[derive(Debug)]
pub(super) struct Gate {
    inside: AtomicUsize,
    max: usize,
    reserve: usize,
}

// === impl Gate ===

impl Gate {
    /// For at most `max`, and `reserve` more for calls that may use it.
    pub(super) fn new(max: usize, reserve: usize) -> Gate {
        Gate { inside: AtomicUsize::new(0), max, reserve }
    }

    /// The bound without the reserve.
    pub(super) fn max(&self) -> usize {
        self.max
    }

    /// Counts so many, unless there is no room for them. Who enters must [`Gate::leave`].
    pub(super) fn enter(&self, count: usize, reserve: bool) -> bool {
        let max = if reserve { self.max + self.reserve } else { self.max };
        // Too many for a moment: two at the bound may both be refused, never both admitted.
        let admitted = self.force(count) + count <= max;
        if !admitted {
            self.leave(count);
        }
        admitted
    }

    /// Counts so many in any case. Returns how many there were.
    pub(super) fn force(&self, count: usize) -> usize {
        self.inside.fetch_add(count, Ordering::Relaxed)
    }

    /// Forgets so many.
    pub(super) fn leave(&self, count: usize) {
        self.inside.fetch_sub(count, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_more_than_the_bound_are_inside() {
        let gate = Gate::new(2, 0);
        assert!(gate.enter(1, false) && gate.enter(1, true));
        assert!(!gate.enter(1, true));
        gate.leave(1);
        assert!(!gate.enter(2, false));
        assert!(gate.enter(1, false));
        assert!(!gate.enter(1, false));
    }

    #[test]
    fn the_reserve_is_only_for_those_that_may_use_it() {
        let gate = Gate::new(1, 2);
        assert!(gate.enter(1, false));
        assert!(!gate.enter(1, false));
        assert!(gate.enter(1, true) && gate.enter(1, true));
        assert!(!gate.enter(1, true));
        gate.leave(1);
        assert!(!gate.enter(1, false), "what is inside counts for all");
    }
}
