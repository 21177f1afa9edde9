//! Leases that move from a closed stream to the worker's next one.

use crate::domain::Token;
use crate::domain::credit::Counted;

use super::transport::OVERDUE;
use super::{Ledger, Phase, Revocation, StreamLease};

/// How a stream has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::dispatch) enum Over {
    /// It has not.
    Not,
    /// The server has ended it: its leases are detached.
    Ended,
    /// It broke: its leases are released after its grace.
    Broken,
}

// === impl Ledger ===

impl Ledger {
    /// Takes in a lease that its worker has.
    pub(in crate::dispatch) fn adopt(&mut self, adopted: Counted<StreamLease>) {
        self.look_at = self.look_at.min(adopted.value.deadline.plus(OVERDUE));
        self.credit.hold(adopted.value.lease.token, adopted);
    }

    /// Removes these leases, those that are held and that a worker has.
    pub(in crate::dispatch) fn hand_over(&mut self, tokens: &[Token]) -> Vec<Counted<StreamLease>> {
        tokens.iter().filter_map(|&token| self.credit.release_sent(token)).collect()
    }

    /// Revocations that were not sent before the stream closed, and the heir that sends them.
    pub(in crate::dispatch) fn bequests(&mut self) -> Option<(u32, Vec<Revocation>)> {
        let heir = self.heir.filter(|_| self.phase == Phase::Closed)?;
        Some((heir, std::mem::take(&mut self.revocations)))
    }

    /// Takes in revocations of a former stream.
    pub(in crate::dispatch) fn inherit(&mut self, revocations: Vec<Revocation>) {
        if self.phase != Phase::Closed {
            self.revocations.extend(revocations);
        }
    }

    /// How the stream has ended.
    pub(in crate::dispatch) fn over(&self) -> Over {
        match (self.phase, self.broke) {
            (Phase::Open | Phase::Draining, _) => Over::Not,
            (Phase::Closed, Some(_)) => Over::Broken,
            (Phase::Closed, None) => Over::Ended,
        }
    }
}
