//! Leases that move from a closed stream to the worker's next one.

use crate::domain::Token;
use crate::domain::credit::CreditedLease;

use super::transport::OVERDUE_AFTER;
use super::{LeaseRevocation, StreamLease, StreamLedger, StreamPhase};

/// End of a stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::dispatch) enum StreamEnd {
    /// The stream has not ended.
    StillOpen,
    /// The server has ended the stream: its leases are detached.
    Ended,
    /// The stream broke: its leases are released after its grace.
    Broken,
}

// === impl StreamLedger ===

impl StreamLedger {
    /// Adds a lease that the worker holds.
    pub(in crate::dispatch) fn adopt(&mut self, adopted: CreditedLease<StreamLease>) {
        self.next_check = self.next_check.min(adopted.value.deadline.plus(OVERDUE_AFTER));
        self.credit.hold(adopted.value.lease.token, adopted);
    }

    /// Removes these leases, as far as they are held and sent.
    pub(in crate::dispatch) fn remove_adopted(
        &mut self,
        tokens: &[Token],
    ) -> Vec<CreditedLease<StreamLease>> {
        tokens.iter().filter_map(|&token| self.credit.release_sent(token)).collect()
    }

    /// Takes the revocations that were not sent before the stream closed, and the id of the successor that sends
    /// them.
    pub(in crate::dispatch) fn take_unsent_revocations(
        &mut self,
    ) -> Option<(u32, Vec<LeaseRevocation>)> {
        let successor = self.successor.filter(|_| self.phase == StreamPhase::Closed)?;
        Some((successor, std::mem::take(&mut self.revocations)))
    }

    /// Adds unsent revocations of an earlier stream.
    pub(in crate::dispatch) fn add_revocations(&mut self, revocations: Vec<LeaseRevocation>) {
        if self.phase != StreamPhase::Closed {
            self.revocations.extend(revocations);
        }
    }

    /// Returns how the stream has ended.
    pub(in crate::dispatch) fn end(&self) -> StreamEnd {
        match (self.phase, self.broke_at) {
            (StreamPhase::Open | StreamPhase::Draining, _) => StreamEnd::StillOpen,
            (StreamPhase::Closed, Some(_)) => StreamEnd::Broken,
            (StreamPhase::Closed, None) => StreamEnd::Ended,
        }
    }
}
