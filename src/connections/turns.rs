//! Turns of the connections from one address: who connects again and again, or sends what is no HTTP/2, waits longer and
//! longer before the next connection is served, so that a flood of short connections costs its sender's address only.
//! Budgets of a connection do not bound that: each new connection has a new budget.
//!
//! Each address has a debt, which shrinks with time (GCRA, the "virtual scheduling" of ITU-T I.371): a connection adds
//! the time that it is worth, and waits for what the debt is more than the allowance.

use std::time::Duration;

use tokio::time::Instant;

/// Debt of a connection: 1,000 a second in the long run.
const CONNECTION_COST: Duration = Duration::from_millis(1);
/// Additional debt of a connection that the server had to end: 4 a second in the long run.
const VIOLATION_COST: Duration = Duration::from_millis(250);
/// Debt that does not wait: all connections that one address may have at once come back together after a restart.
const ALLOWANCE: Duration = Duration::from_secs(5);
/// Longest wait: others behind the same address, a gateway for example, are served late but served.
const WAIT_MAX: Duration = Duration::from_secs(5);

/// Debt of an address.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Turns {
    /// Time at which nothing is owed.
    paid_at: Option<Instant>,
}

// === impl Turns ===

impl Turns {
    /// Counts a connection and returns for how long it waits.
    pub(super) fn take(&mut self, now: Instant) -> Duration {
        self.owe(CONNECTION_COST, now);
        self.debt(now).saturating_sub(ALLOWANCE)
    }

    /// Counts a violation.
    pub(super) fn punish(&mut self, now: Instant) {
        self.owe(VIOLATION_COST, now);
    }

    /// Returns whether nothing is owed.
    pub(super) fn is_paid(&self, now: Instant) -> bool {
        self.debt(now).is_zero()
    }

    fn owe(&mut self, cost: Duration, now: Instant) {
        let debt = (self.debt(now) + cost).min(ALLOWANCE + WAIT_MAX);
        self.paid_at = Some(now + debt);
    }

    fn debt(&self, now: Instant) -> Duration {
        self.paid_at.map_or(Duration::ZERO, |at| at.saturating_duration_since(now))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the number of connections, one after the other, that are served within this time.
    fn served(turns: &mut Turns, within: Duration, is_violation: bool) -> u32 {
        let (begun, mut now, mut count) = (Instant::now(), Instant::now(), 0);
        loop {
            now += turns.take(now);
            if now - begun >= within {
                return count;
            }
            count += 1;
            if is_violation {
                turns.punish(now);
            }
            now += Duration::from_micros(10);
        }
    }

    #[test]
    fn all_connections_of_an_address_come_back_at_once() {
        let (mut turns, now) = (Turns::default(), Instant::now());
        assert!((0..5_000).all(|_| turns.take(now).is_zero()));
        assert!(!turns.take(now).is_zero());
        let later = now + Duration::from_secs(6);
        assert!(turns.is_paid(later) && turns.take(later).is_zero());
    }

    #[test]
    fn short_connections_wait_for_their_turn() {
        for seconds in [1, 2, 5, 60] {
            let count = served(&mut Turns::default(), Duration::from_secs(seconds), false);
            let max = 1_000 * u32::try_from(seconds + 5).unwrap();
            assert!((max - 1_000..=max + 1_000).contains(&count), "{seconds} s: {count}");
        }
    }

    #[test]
    fn violations_wait_longer() {
        for (seconds, range) in [(1, 19..=26), (10, 55..=65), (100, 410..=425)] {
            let count = served(&mut Turns::default(), Duration::from_secs(seconds), true);
            assert!(range.contains(&count), "{seconds} s: {count}");
        }
    }

    #[test]
    fn a_wait_is_bounded() {
        let (mut turns, now) = (Turns::default(), Instant::now());
        for _ in 0..100_000 {
            turns.punish(now);
        }
        assert_eq!(turns.take(now), WAIT_MAX);
    }
}
