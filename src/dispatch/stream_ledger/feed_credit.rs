//! The feeds that serve a stream: what their claims under way must not deliver, which of them wait for credit, and when
//! to check whether other replicas have freed some.

use std::time::Duration;

use crate::domain::credit::CreditShare;
use crate::domain::{Time, Token, limit};
use crate::store::LeasedJob;

use super::StreamLedger;

/// First pause before the store is asked about what the stream holds; each further one that frees nothing is twice as long.
const PAUSE_MIN: Duration = Duration::from_secs(1);
/// Longest such pause.
const PAUSE_MAX: Duration = Duration::from_secs(30);

/// One feed, as the stream has it.
#[derive(Clone, Default)]
pub(super) struct FeedCredit {
    /// The share that was not enough for it, if it waits for credit.
    pub(super) waiting: Option<CreditShare>,
    /// Shares that its claim under way asks for and that have not been answered.
    pub(super) shares: usize,
    /// Tokens that were revoked meanwhile, at most as many as a claim leases: a delete, or the end of a short lease, came
    /// before the answer to their claim.
    revoked: Vec<Token>,
}

/// Lookup of all leases of a stream that waits for credit: another replica may have settled them, and its notification
/// been lost.
pub(super) struct CreditCheck {
    at: Time,
    pause: Duration,
}

// === impl Feed ===

impl FeedCredit {
    /// A token that the stream does not hold was revoked.
    pub(super) fn revoke(&mut self, token: Token) {
        if self.shares > 0 && self.revoked.len() < limit::CALL_JOBS_MAX {
            self.revoked.push(token);
        }
    }

    /// A share was answered with these jobs; keeps those that are still leased.
    pub(super) fn finish_claim(&mut self, jobs: &mut Vec<LeasedJob>) {
        self.shares = self.shares.saturating_sub(1);
        jobs.retain(|job| !self.revoked.contains(&job.token));
        if self.shares == 0 {
            self.revoked.clear();
        }
    }
}

// === impl Ledger ===

impl StreamLedger {
    /// The next job did not fit `share`: `feed` waits for more credit. Returns when the stream is to be looked at, or
    /// `None` when there is more credit already.
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

    /// Whether feeds wait for credit and there is some; they wait no longer then. All are woken, also those for which it
    /// may be too little: a smaller job may have replaced the one that they waited with.
    pub(in crate::dispatch) fn wake_feeds(&mut self) -> bool {
        let wake = self.is_waiting() && self.free_share().is_some();
        if wake {
            self.feeds.iter_mut().for_each(|feed| feed.waiting = None);
            self.credit_check = None;
        }
        wake
    }

    /// The feeds beside `feed` that wait and for which the free credit may be enough; they wait no longer. Only those: two
    /// feeds whose next jobs are too large would wake each other for ever. `feed` itself knows what it reserved.
    pub(super) fn wake_other_feeds(&mut self, feed: usize) -> Vec<usize> {
        let Some(free) = self.free_share() else { return Vec::new() };
        let others = self.feeds.iter_mut().enumerate().filter(|(other, _)| *other != feed);
        let woken = others.filter_map(|(other, feed)| {
            feed.waiting.take_if(|share| free.exceeds(*share)).map(|_| other)
        });
        woken.collect()
    }

    /// Schedules the first credit check where a feed waits. A pull is over before it could matter.
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

    /// Whether the credit check is due, and when the next one is. `holds_some`: there is something to look up.
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
