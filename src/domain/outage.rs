//! Expiry of a lease while no server served its shard, so that its worker could not extend it. Once the shard is served
//! again, the worker may extend or settle the lease within the grace of its stream; then the lease ends, uncounted.

use std::time::Duration;

use super::limit;
use super::time::Time;

/// The last outage of a shard, in which no server served it. Times are on the shard's clock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ShardOutage {
    /// Last heartbeat of a server before the outage.
    pub since: Time,
    /// Time at which the shard was served again.
    pub until: Time,
}

/// A lease whose deadline has passed, reduced to the fields that the decision needs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ExpiredLease {
    /// Start of the lease.
    pub started: Time,
    /// Time of the last extension.
    pub extended: Option<Time>,
    /// Deadline of the lease.
    pub deadline: Time,
    /// Orphan grace of its stream; `None`: the lease outlives the call that claimed it.
    pub grace: Option<Duration>,
}

/// Decision about a lease whose deadline has passed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ExpiryDecision {
    /// The worker could have extended the lease: it ends, and counts as the policy demands.
    Expired,
    /// The worker could not extend the lease during the outage, and may still do so until this time.
    InGrace(Time),
    /// The worker could not extend the lease during the outage, and has not since: it ends, uncounted.
    Unserved,
}

// === impl ShardOutage ===

impl ShardOutage {
    /// Decides about a lease whose deadline has passed at `now`. A lease that waits has `extended` equal to `until`, to
    /// the microsecond: if that deadline passes too, the wait is over, even if the grace has changed.
    #[must_use]
    pub fn decide(&self, term: &ExpiredLease, now: Time) -> ExpiryDecision {
        if term.extended == Some(self.until) {
            return ExpiryDecision::Unserved;
        }
        let wait = term.grace.unwrap_or(limit::ORPHAN_GRACE_DEFAULT).min(limit::OUTAGE_GRACE_MAX);
        let end = self.until.plus(wait);
        let last_contact = term.extended.unwrap_or(term.started).max(term.started);
        let could_extend = last_contact >= self.until || term.deadline <= self.since;
        if could_extend || term.deadline > end {
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
        let longest = AWAY.until.plus(limit::OUTAGE_GRACE_MAX);
        assert_eq!(waits(grace(86_400)), ExpiryDecision::InGrace(longest));
    }
}
