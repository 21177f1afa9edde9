//! How many unary calls may be under way. Beyond that a call is refused at once: one that waited
//! would use up the time in which its answer is of use.

use std::sync::atomic::{AtomicUsize, Ordering};

/// A count of calls with a bound.
#[derive(Debug)]
pub(super) struct Gate {
    inside: AtomicUsize,
    max: usize,
}

// === impl Gate ===

impl Gate {
    /// For at most `max` calls.
    pub(super) fn new(max: usize) -> Gate {
        Gate { inside: AtomicUsize::new(0), max }
    }

    /// The bound.
    pub(super) fn max(&self) -> usize {
        self.max
    }

    /// Counts a call, unless there is no room for it. Who enters must [`Gate::leave`].
    pub(super) fn enter(&self) -> bool {
        // One too many for a moment: two calls at the bound may both be refused, never both let in.
        let admitted = self.inside.fetch_add(1, Ordering::Relaxed) < self.max;
        if !admitted {
            self.leave();
        }
        admitted
    }

    /// Forgets a call.
    pub(super) fn leave(&self) {
        self.inside.fetch_sub(1, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_more_than_the_bound_are_inside() {
        let gate = Gate::new(2);
        assert!(gate.enter() && gate.enter());
        assert!(!gate.enter());
        gate.leave();
        assert!(gate.enter());
        assert!(!gate.enter());
    }
}
