//! What becomes of a lease that ran out while no server served its shard: nobody could extend it. Once the shard is
//! served again its worker has the grace of its stream to speak for it; then it ends, uncounted.

use std::time::Duration;

use super::limit;
use super::time::Time;

/// The last time in which no server served a shard, on the shard's clock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ShardOutage {
    /// The last sign of a server before it.
    pub since: Time,
    /// When the shard was served again.
    pub until: Time,
}

/// A lease whose deadline has passed, as far as it matters here.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ExpiredLease {
    /// When it began.
    pub started: Time,
    /// When it was last extended.
    pub extended: Option<Time>,
    /// When it ends.
    pub deadline: Time,
    /// The grace of its stream; `None`: it outlives the call that got it.
    pub grace: Option<Duration>,
}

/// What follows for such a lease.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ExpiryDecision {
    /// Its worker could have extended it: it ends, as the policy counts.
    Expired,
    /// Its worker could not, and may still speak for it until then.
    InGrace(Time),
    /// Its worker could not, and has not since: it ends, uncounted.
    Unserved,
}

// === impl Away ===

impl ShardOutage {
    /// What follows for a lease whose deadline has passed at `now`. One that waits is one that was extended when the
    /// shard was served again, to the microsecond: by that it is known when that time is over, whatever has become of
    /// its grace.
    #[must_use]
    pub fn decide(&self, term: &ExpiredLease, now: Time) -> ExpiryDecision {
        if term.extended == Some(self.until) {
            return ExpiryDecision::Unserved;
        }
        let wait = term.grace.unwrap_or(limit::ORPHAN_GRACE_DEFAULT).min(limit::AWAY_GRACE_MAX);
        let end = self.until.plus(wait);
        let last_word = term.extended.unwrap_or(term.started).max(term.started);
        let could_speak = last_word >= self.until || term.deadline <= self.since;
        if could_speak || term.deadline > end {
            ExpiryDecision::Expired
        } else if now < end {
            ExpiryDecision::InGrace(end)
        } else {
            ExpiryDecision::Unserved
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const AWAY: ShardOutage = ShardOutage { since: Time(10_000_000), until: Time(30_000_000) };

    fn at(seconds: i64) -> Time {
        Time(seconds * 1_000_000)
    }

    fn grace(seconds: u64) -> Option<Duration> {
        Some(Duration::from_secs(seconds))
    }

    /// A lease since second 5 that ends at `deadline`, with a grace of 3 s.
    fn term(deadline: i64) -> ExpiredLease {
        ExpiredLease { started: at(5), extended: None, deadline: at(deadline), grace: grace(3) }
    }

    #[test]
    fn lease_expired_in_outage_gets_grace_and_ends_uncounted() {
        for deadline in [11, 20, 30, 33] {
            let term = term(deadline);
            assert_eq!(AWAY.decide(&term, at(32)), ExpiryDecision::InGrace(at(33)), "{deadline}");
            assert_eq!(AWAY.decide(&term, at(33)), ExpiryDecision::Unserved, "{deadline}");
        }
        let waited = ExpiredLease { extended: Some(AWAY.until), grace: None, ..term(33) };
        assert_eq!(
            AWAY.decide(&waited, at(33)),
            ExpiryDecision::Unserved,
            "also once it is detached"
        );
    }

    #[test]
    fn a_lease_whose_worker_could_have_extended_it_has_expired() {
        let begun_since = ExpiredLease { started: at(30), ..term(32) };
        let extended_since = ExpiredLease { extended: Some(at(31)), ..term(33) };
        for (term, why) in [
            (term(10), "it was over before"),
            (term(34), "there was time enough after"),
            (begun_since, "it began after"),
            (extended_since, "it was extended after"),
        ] {
            assert_eq!(AWAY.decide(&term, at(34)), ExpiryDecision::Expired, "{why}");
        }
        let extended_before = ExpiredLease { extended: Some(at(9)), ..term(20) };
        assert_eq!(AWAY.decide(&extended_before, at(30)), ExpiryDecision::InGrace(at(33)));
    }

    #[test]
    fn a_lease_waits_for_its_own_grace_or_the_default_within_a_bound() {
        let waits = |grace| AWAY.decide(&ExpiredLease { grace, ..term(20) }, at(30));
        assert_eq!(
            waits(None),
            ExpiryDecision::InGrace(AWAY.until.plus(limit::ORPHAN_GRACE_DEFAULT))
        );
        assert_eq!(waits(grace(0)), ExpiryDecision::Unserved);
        assert_eq!(waits(grace(20)), ExpiryDecision::InGrace(at(50)));
        let longest = AWAY.until.plus(limit::AWAY_GRACE_MAX);
        assert_eq!(waits(grace(86_400)), ExpiryDecision::InGrace(longest));
    }
}
