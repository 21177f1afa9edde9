//! State of the feeds that serve a stream: revoked leases of claims in flight, feeds that wait for credit, and the
//! schedule of checks whether other replicas have freed some.

use std::time::Duration;

use crate::domain::credit::CreditShare;
use crate::domain::{Time, Token, limit};
use crate::store::LeasedJob;

use super::StreamLedger;

/// First pause before the stream's leases are looked up in the store; each further one that frees no credit is twice
/// as long.
const PAUSE_MIN: Duration = Duration::from_secs(1);
/// Longest pause between such lookups.
const PAUSE_MAX: Duration = Duration::from_secs(30);

/// State of one feed in the ledger of a stream.
#[derive(Clone, Default)]
pub(super) struct FeedCredit {
    /// Share that was too small, if the feed waits for credit.
    pub(super) waiting: Option<CreditShare>,
    /// Number of shares of its claim in flight that have no result yet.
    pub(super) shares: usize,
    /// Tokens revoked during the claim, at most as many as a claim leases: a delete, or the end of a short lease,
    /// came before the result of their claim.
    revoked: Vec<Token>,
}

/// Lookup of all leases of a stream that waits for credit: another replica may have settled them, and its
/// notification may be lost.
pub(super) struct CreditCheck {
    at: Time,
    pause: Duration,
}

// === impl FeedCredit ===

impl FeedCredit {
    /// Records the revocation of a token that the stream does not hold.
    pub(super) fn revoke(&mut self, token: Token) {
        if self.shares > 0 && self.revoked.len() < limit::CALL_JOBS_MAX {
            self.revoked.push(token);
        }
    }

    /// Records the result of a share; keeps only jobs that are still leased.
    pub(super) fn finish_claim(&mut self, jobs: &mut Vec<LeasedJob>) {
        self.shares = self.shares.saturating_sub(1);
        jobs.retain(|job| !self.revoked.contains(&job.token));
        if self.shares == 0 {
            self.revoked.clear();
        }
    }
}

// === impl StreamLedger ===

impl StreamLedger {
    /// Makes `feed` wait for more credit, because the next job did not fit `share`. Returns the time of the next
    /// check, or `None` when there is more credit already.
    pub(in crate::dispatch) fn wait_for_credit(
        &mut self,
        feed: usize,
        share: CreditShare,
        now: Time,
    ) -> Option<Time> {
        if self.free_share().is_some_and(|free| free.exceeds(share)) {
            return None;
        }
        let waiting = &mut self.feeds[feed].waiting;
        *waiting = Some(waiting.map_or(share, |other| share.min(other)));
        self.schedule_credit_check(now);
        Some(self.next_check)
    }

    /// Returns whether feeds were waiting for credit and there is some; they no longer wait then. All are woken, also
    /// those for which it may be too little: a smaller job may have replaced the one that they waited for.
    pub(in crate::dispatch) fn wake_feeds(&mut self) -> bool {
        let wake = self.is_waiting() && self.free_share().is_some();
        if wake {
            self.feeds.iter_mut().for_each(|feed| feed.waiting = None);
            self.credit_check = None;
        }
        wake
    }

    /// Returns the feeds other than `feed` that wait and for which the free credit may be enough; they no longer
    /// wait. Not all: two feeds whose next jobs are too large would wake each other for ever. `feed` itself has
    /// reserved its share already.
    pub(super) fn wake_other_feeds(&mut self, feed: usize) -> Vec<usize> {
        let Some(free) = self.free_share() else { return Vec::new() };
        let others = self.feeds.iter_mut().enumerate().filter(|(other, _)| *other != feed);
        let woken = others.filter_map(|(other, feed)| {
            feed.waiting.take_if(|share| free.exceeds(*share)).map(|_| other)
        });
        woken.collect()
    }

    /// Schedules the first credit check when a feed waits. Not for a pull, which ends before the check.
    pub(super) fn schedule_credit_check(&mut self, now: Time) {
        if !self.is_waiting() {
            self.credit_check = None;
        } else if self.shared && !self.is_pull && self.credit_check.is_none() {
            let at = now.plus(PAUSE_MIN);
            self.credit_check = Some(CreditCheck { at, pause: PAUSE_MIN });
            self.next_check = self.next_check.min(at);
        }
    }

    fn is_waiting(&self) -> bool {
        self.feeds.iter().any(|feed| feed.waiting.is_some())
    }

    /// Returns whether the credit check is due, and the time of the next one. `holds_some`: there are leases to look
    /// up.
    pub(super) fn check_credit(&mut self, now: Time, holds_some: bool) -> (bool, Time) {
        let Some(check) = &mut self.credit_check else { return (false, Time::MAX) };
        let is_due = check.at <= now;
        if is_due {
            if holds_some {
                check.pause = (check.pause * 2).min(PAUSE_MAX);
            }
            check.at = now.plus(check.pause);
        }
        (is_due && holds_some, check.at)
    }
}
