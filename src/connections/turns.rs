//! Turns of the connections from one address: who connects again and again, or sends what is no HTTP/2, waits longer and
//! longer before the next connection is served, so that a flood of short connections costs its sender's address only.
//! Budgets of a connection do not bound that: each new connection has a new budget.
//!
//! Calls without an identity have turns of the same kind: 1,000 a second of an address in the long run.
//!
//! Each address has a debt, which shrinks with time (GCRA, the "virtual scheduling" of ITU-T I.371): a connection adds
//! the time that it is worth, and waits for what the debt is more than the allowance.

use std::time::Duration;

use tokio::time::Instant;

/// Debt of a connection, or of a call without an identity: 1,000 a second in the long run.
const CONNECTION_COST: Duration = Duration::from_millis(1);
/// Additional debt of a connection that the server had to end: 4 a second in the long run.
const VIOLATION_COST: Duration = Duration::from_millis(250);
/// Largest debt for calls without an identity that does not wait: 500 calls.
const CALLS_ALLOWANCE_MAX: Duration = Duration::from_millis(500);
/// Shortest and longest of the longest waits of a port. Others behind the same address, a gateway for example, are served
/// late but served; at the port of probes within the second after which a probe fails.
const WAITS_MAX: (Duration, Duration) = (Duration::from_millis(500), Duration::from_secs(5));

/// Bounds of the debts of one port.
#[derive(Clone, Copy, Debug)]
pub(super) struct TurnBounds {
    /// Debt that does not wait: all connections that one address may have at once come back together after a restart.
    allowance: Duration,
    /// Longest wait.
    wait_max: Duration,
}

/// Debt of an address.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Turns {
    /// Time at which nothing is owed.
    paid_at: Option<Instant>,
}

// === impl TurnBounds ===

impl TurnBounds {
    /// Returns the bounds of a port with so many connections from one address.
    pub(super) fn new(peer_max: usize) -> TurnBounds {
        let allowance = CONNECTION_COST.saturating_mul(u32::try_from(peer_max).unwrap_or(u32::MAX));
        TurnBounds { allowance, wait_max: allowance.clamp(WAITS_MAX.0, WAITS_MAX.1) }
    }

    /// Returns the bounds of the calls without an identity on such a port: so many at once take a moment of a processor, and
    /// none waits longer than a probe may.
    pub(super) fn of_calls(peer_max: usize) -> TurnBounds {
        let allowance = TurnBounds::new(peer_max).allowance.min(CALLS_ALLOWANCE_MAX);
        TurnBounds { allowance, wait_max: WAITS_MAX.0 }
    }
}

// === impl Turns ===

impl Turns {
    /// Counts a connection or a call and returns for how long it waits.
    pub(super) fn take(&mut self, bounds: TurnBounds, now: Instant) -> Duration {
        self.owe(CONNECTION_COST, bounds, now);
        self.debt(now).saturating_sub(bounds.allowance)
    }

    /// Counts a violation.
    pub(super) fn punish(&mut self, bounds: TurnBounds, now: Instant) {
        self.owe(VIOLATION_COST, bounds, now);
    }

    /// Returns whether nothing is owed.
    pub(super) fn is_paid(&self, now: Instant) -> bool {
        self.debt(now).is_zero()
    }

    fn owe(&mut self, cost: Duration, bounds: TurnBounds, now: Instant) {
        let most = bounds.allowance + bounds.wait_max;
        let debt = (self.debt(now) + cost).min(most);
        self.paid_at = Some(now + debt);
    }

    fn debt(&self, now: Instant) -> Duration {
        self.paid_at.map_or(Duration::ZERO, |at| at.saturating_duration_since(now))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the bounds of the gRPC port by default.
    fn grpc() -> TurnBounds {
        TurnBounds::new(5_000)
    }

    /// Returns the number of connections, one after the other, that are served within this time.
    fn served(turns: &mut Turns, within: Duration, is_violation: bool) -> u32 {
        let (begun, mut now, mut count) = (Instant::now(), Instant::now(), 0);
        loop {
            now += turns.take(grpc(), now);
            if now - begun >= within {
                return count;
            }
            count += 1;
            if is_violation {
                turns.punish(grpc(), now);
            }
            now += Duration::from_micros(10);
        }
    }

    #[test]
    fn all_connections_of_an_address_come_back_at_once() {
        let (mut turns, now) = (Turns::default(), Instant::now());
        assert!((0..5_000).all(|_| turns.take(grpc(), now).is_zero()));
        assert!(!turns.take(grpc(), now).is_zero());
        let later = now + Duration::from_secs(6);
        assert!(turns.is_paid(later) && turns.take(grpc(), later).is_zero());
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
        for (peer_max, millis) in
            [(1, 500), (256, 500), (1_000, 1_000), (5_000, 5_000), (9_000, 5_000)]
        {
            let (mut turns, now) = (Turns::default(), Instant::now());
            let bounds = TurnBounds::new(peer_max);
            for _ in 0..100_000 {
                turns.punish(bounds, now);
            }
            assert_eq!(turns.take(bounds, now), Duration::from_millis(millis), "{peer_max}");
        }
    }
}
