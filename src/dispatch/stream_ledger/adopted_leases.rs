//! Leases that move from a closed stream to the worker's next one.

use crate::domain::Token;
use crate::domain::credit::CreditedLease;

use super::transport::OVERDUE_AFTER;
use super::{LeaseRevocation, StreamLease, StreamLedger, StreamPhase};

/// How a stream has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::dispatch) enum StreamEnd {
    /// It has not.
    StillOpen,
    /// The server has ended it: its leases are detached.
    Ended,
    /// It broke: its leases are released after its grace.
    Broken,
}

// === impl Ledger ===

impl StreamLedger {
    /// Takes in a lease that its worker has.
    pub(in crate::dispatch) fn adopt(&mut self, adopted: CreditedLease<StreamLease>) {
        self.next_check = self.next_check.min(adopted.value.deadline.plus(OVERDUE_AFTER));
        self.credit.hold(adopted.value.lease.token, adopted);
    }

    /// Removes these leases, those that are held and that a worker has.
    pub(in crate::dispatch) fn remove_adopted(
        &mut self,
        tokens: &[Token],
    ) -> Vec<CreditedLease<StreamLease>> {
        tokens.iter().filter_map(|&token| self.credit.release_sent(token)).collect()
    }

    /// Revocations that were not sent before the stream closed, and the heir that sends them.
    pub(in crate::dispatch) fn take_unsent_revocations(
        &mut self,
    ) -> Option<(u32, Vec<LeaseRevocation>)> {
        let heir = self.successor.filter(|_| self.phase == StreamPhase::Closed)?;
        Some((heir, std::mem::take(&mut self.revocations)))
    }

    /// Takes in revocations of a former stream.
    pub(in crate::dispatch) fn add_revocations(&mut self, revocations: Vec<LeaseRevocation>) {
        if self.phase != StreamPhase::Closed {
            self.revocations.extend(revocations);
        }
    }

    /// How the stream has ended.
    pub(in crate::dispatch) fn end(&self) -> StreamEnd {
        match (self.phase, self.broke_at) {
            (StreamPhase::Open | StreamPhase::Draining, _) => StreamEnd::StillOpen,
            (StreamPhase::Closed, Some(_)) => StreamEnd::Broken,
            (StreamPhase::Closed, None) => StreamEnd::Ended,
        }
    }
}
