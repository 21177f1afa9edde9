//! Jobs with a retry policy of their own: the wait after a failure, the number of attempts, and the end.
//!
//! - hurried: a delivery before the wait of the policy, jitter taken off, counted from the *start* of the nack.
//! - overtried: an attempt more than the policy allows.
//! - miscounted: a failure that was answered OK, and the next attempt has no higher number.
//! - forsaken: a dead letter that no client asked for and that has attempts left; or that has no policy.
//!
//! The checker has no rule that failing jobs do not delay others: a waiting job may be in a lease that reached no
//! worker, for longer than all attempts of a failing job take, and nothing is wrong. The order of claims is tested
//! exactly on each store (`it`, `conformance/claim.rs`, and the model), and here by the bound within which everything
//! is drained.

use super::Verdict;
use super::history::{Delivered, Nanos, Policy};
use super::life::{End, How};
use super::repeats::SLACK;

/// Facts about the retries of one job.
#[derive(Clone, Debug, Default)]
pub(super) struct Retries {
    policy: Option<Policy>,
    failures: Vec<Failure>,
    /// True if a client asked for a dead letter.
    bury_sent: bool,
    /// The last delivery: its number, its attempt, its time, and the length of its lease.
    last: Option<(i32, i32, Nanos, Nanos)>,
    /// True if a shard may have lost a part of it when it died, so that nothing can be concluded.
    forgotten: bool,
}

/// A failure that was answered OK, and the time of its sending.
#[derive(Clone, Debug)]
struct Failure {
    delivery: i32,
    attempt: i32,
    sent: Nanos,
}

// === impl Policy ===

impl Policy {
    /// Returns the shortest wait after failure number `failure`; 1 is the first.
    pub(super) fn least_wait(&self, failure: i32) -> Nanos {
        let doubled = u32::try_from(failure - 1).unwrap_or(0);
        let full = Nanos::from(self.factor).saturating_pow(doubled).saturating_mul(self.initial);
        full.min(self.longest) / 100 * Nanos::from(100 - self.jitter_percent)
    }
}

// === impl Retries ===

impl Retries {
    pub(super) fn follow(&mut self, policy: Policy) {
        self.policy = Some(policy);
    }

    pub(super) fn bury(&mut self) {
        self.bury_sent = true;
    }

    pub(super) fn came(&mut self, delivered: &Delivered) {
        let Delivered { delivery, attempt, at, lease, .. } = *delivered;
        if self.last.is_none_or(|last| last.0 < delivery) {
            self.last = Some((delivery, attempt, at, lease));
        }
    }

    /// Records a failure; returns whether its attempts are used up.
    pub(super) fn failed(&mut self, delivery: i32, attempt: i32, sent: Nanos) -> bool {
        self.failures.push(Failure { delivery, attempt, sent });
        self.is_last(attempt)
    }

    fn is_last(&self, attempt: i32) -> bool {
        self.policy.is_some_and(|policy| attempt >= policy.attempts_max)
    }

    /// Returns the number of repeats that it must have: failures that were answered OK, less the last one allowed.
    pub(super) fn repeats(&self) -> usize {
        self.failures.iter().filter(|failure| !self.is_last(failure.attempt)).count()
    }

    pub(super) fn forget(&mut self) {
        self.forgotten = true;
    }

    /// Judges one delivery against the facts so far.
    pub(super) fn judge(&self, job: u32, delivered: &Delivered, verdict: &mut Verdict) {
        if self.forgotten {
            return;
        }
        if self.is_hurried(delivered) {
            verdict.hurried.push(job);
        }
        if self.is_overtried(delivered) {
            verdict.overtried.push(job);
        }
        if self.is_miscounted(delivered) {
            verdict.miscounted.push(job);
        }
    }

    fn before(&self, delivered: &Delivered) -> impl Iterator<Item = &Failure> {
        let number = delivered.delivery;
        self.failures.iter().filter(move |failure| failure.delivery < number)
    }

    fn is_hurried(&self, delivered: &Delivered) -> bool {
        let Some(policy) = self.policy else { return false };
        self.before(delivered).any(|f| delivered.at < f.sent + policy.least_wait(f.attempt))
    }

    fn is_overtried(&self, delivered: &Delivered) -> bool {
        self.policy.is_some_and(|policy| delivered.attempt > policy.attempts_max)
    }

    fn is_miscounted(&self, delivered: &Delivered) -> bool {
        self.before(delivered).any(|failure| delivered.attempt <= failure.attempt)
    }

    /// Returns whether a dead letter that was only found has no reason: each attempt without an observed end took one
    /// lease.
    pub(super) fn is_forsaken(&self, end: &End) -> bool {
        if self.forgotten || end.how != How::Buried || end.delivery != i32::MAX || self.bury_sent {
            return false;
        }
        let (Some(policy), Some((_, attempt, at, lease))) = (self.policy, self.last) else {
            return true;
        };
        let unseen = Nanos::try_from(policy.attempts_max - attempt).unwrap_or(0);
        at + unseen * lease > end.at + unseen * SLACK
    }
}
