//! Backoff between retries of a failing call: doubling, bounded, with jitter, so that callers that fail together do not
//! retry together.

use std::time::Duration;

use rand::Rng as _;

/// First and longest delay of a backoff.
#[derive(Clone, Copy, Debug)]
pub(crate) struct BackoffRange {
    /// First delay.
    pub(crate) min: Duration,
    /// Longest delay.
    pub(crate) max: Duration,
}

/// Backoff of one series of failures.
#[derive(Clone, Debug)]
pub(crate) struct Backoff {
    range: BackoffRange,
    next: Duration,
}

// === impl Backoff ===

impl Backoff {
    /// Creates a backoff whose delays double from the first to the longest one.
    #[must_use]
    pub(crate) fn new(range: BackoffRange) -> Backoff {
        Backoff { range, next: range.min }
    }

    /// Returns the next delay: half of it fixed, half of it random.
    pub(crate) fn next_delay(&mut self) -> Duration {
        let pause = self.next;
        self.next = self.next.saturating_mul(2).min(self.range.max);
        pause.mul_f64(rand::rng().random_range(0.5..=1.0))
    }

    /// Resets the delay to the minimum, after a success.
    pub(crate) fn reset(&mut self) {
        self.next = self.range.min;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_double_up_to_the_maximum_and_begin_anew() {
        let ms = Duration::from_millis;
        let mut pauses = Backoff::new(BackoffRange { min: ms(100), max: ms(350) });
        for longest in [100, 200, 350, 350] {
            let pause = pauses.next_delay();
            assert!((ms(longest) / 2..=ms(longest)).contains(&pause), "{pause:?}");
        }
        pauses.reset();
        assert!(pauses.next_delay() <= ms(100));
    }
}
