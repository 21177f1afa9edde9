//! Leases that were revoked before the answer to their claim arrived: the store has leased them, and a delete or the end
//! of a short lease came first. Their jobs are not delivered.

use crate::domain::{Token, limit};
use crate::store::Leased;

/// Revocations of leases that a claim under way may return, by feed.
pub(super) struct EarlyRevocations(Box<[UnderWay]>);

/// The claim of a feed that is under way.
#[derive(Clone, Default)]
struct UnderWay {
    /// Shares of the stream that it asks for and that have not been answered.
    shares: usize,
    /// Tokens that were revoked meanwhile, at most as many as a claim leases.
    revoked: Vec<Token>,
}

// === impl EarlyRevocations ===

impl EarlyRevocations {
    pub(super) fn new(feeds: usize) -> EarlyRevocations {
        EarlyRevocations(vec![UnderWay::default(); feeds].into())
    }

    /// A claim of that feed asks for a share.
    pub(super) fn reserved(&mut self, feed: usize) {
        self.0[feed].shares += 1;
    }

    /// A token that the stream does not hold was revoked.
    pub(super) fn revoked(&mut self, feed: usize, token: Token) {
        let claim = &mut self.0[feed];
        if claim.shares > 0 && claim.revoked.len() < limit::CALL_JOBS_MAX {
            claim.revoked.push(token);
        }
    }

    /// A share was answered with these jobs; keeps those that are still leased.
    pub(super) fn granted(&mut self, feed: usize, jobs: &mut Vec<Leased>) {
        let claim = &mut self.0[feed];
        claim.shares = claim.shares.saturating_sub(1);
        jobs.retain(|job| !claim.revoked.contains(&job.token));
        if claim.shares == 0 {
            claim.revoked.clear();
        }
    }
}
