//! Load shedding by time in queue: whether a call has waited so long for its batch that it is refused.
//!
//! A queue may be long for a moment, after a pause or a burst: then all calls are executed, late. A queue that stays long
//! makes every call late and no more of them succeed. So a call is refused only if it has waited longer than a limit,
//! and every other call has, too, for a while. Idea: CoDel (K. Nichols, V. Jacobson, RFC 8289).

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use tokio::time::Instant;

/// Longest wait of a call for its batch while the queue stays long: a client with a deadline of a few seconds can still
/// call another server.
pub(super) const WAIT_MAX: Duration = Duration::from_secs(1);
/// Time for which no call may have had a shorter wait before calls are refused: longer than a pause of a busy store, and
/// shorter than the time in which a store that does not answer is found down.
const SUSTAINED: Duration = Duration::from_secs(1);
/// Interval in which calls are looked at that wait behind calls without an answer.
pub(super) const CHECK_INTERVAL: Duration = Duration::from_millis(250);

/// State of a queue that refuses calls, for others to read. Cloning shares it.
#[derive(Clone, Debug, Default)]
pub(super) struct Overload(Arc<AtomicBool>);

/// Waits in one queue.
#[derive(Debug)]
pub(super) struct QueueDelay {
    wait_max: Duration,
    /// Time since which no call has waited for less than the limit.
    long_since: Option<Instant>,
    overload: Overload,
}

// === impl Overload ===

impl Overload {
    /// Returns whether calls are refused because of their waits.
    pub(super) fn is_on(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }

    fn set(&self, is_on: bool) {
        if self.is_on() != is_on {
            self.0.store(is_on, Ordering::Relaxed);
        }
    }
}

// === impl QueueDelay ===

impl QueueDelay {
    /// Creates the delay of an empty queue, in which a call may wait for `wait_max`.
    pub(super) fn new(wait_max: Duration, overload: Overload) -> QueueDelay {
        QueueDelay { wait_max, long_since: None, overload }
    }

    /// Returns whether a call may still wait. One that has just come shows nothing about the queue.
    pub(super) fn may_wait(&self, queued: Instant, now: Instant) -> bool {
        now.saturating_duration_since(queued) <= self.wait_max
    }

    /// Records the wait since `queued` of a call whose turn it is, or that has waited too long, and returns whether the call is to be refused.
    pub(super) fn is_too_long(&mut self, queued: Instant, now: Instant) -> bool {
        if self.may_wait(queued, now) {
            self.reset();
            return false;
        }
        let since = *self.long_since.get_or_insert(now);
        let is_sustained = now.saturating_duration_since(since) >= SUSTAINED;
        self.overload.set(is_sustained);
        is_sustained
    }

    /// Records that no call waits.
    pub(super) fn reset(&mut self) {
        if self.long_since.take().is_some() {
            self.overload.set(false);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn calls_are_refused_only_after_long_waits_without_a_short_one() {
        let (overload, start) = (Overload::default(), Instant::now());
        let mut delay = QueueDelay::new(WAIT_MAX, overload.clone());
        let mut take = |at: u64, waited: u64| {
            let now = start + Duration::from_secs(10) + Duration::from_millis(at);
            let is_refused = delay.is_too_long(now - Duration::from_millis(waited), now);
            assert_eq!(is_refused, overload.is_on());
            is_refused
        };
        assert!(!take(0, 5_000), "a burst, or the first call after a pause");
        assert!(!take(999, 5_000));
        assert!(take(1_000, 1_001));
        assert!(take(1_500, 9_000));
        assert!(!take(1_500, 1_000), "the queue is short enough");
        assert!(!take(1_501, 9_000), "and has to stay long again");
        assert!(!take(2_500, 9_000));
        assert!(take(2_501, 9_000));
        delay.reset();
        assert!(!overload.is_on(), "no call waits");
    }
}
