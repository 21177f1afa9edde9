//! Leases that go from a stream that is over to the worker's next one.

use crate::domain::Token;

use super::transport::OVERDUE;
use super::{Held, Ledger, Phase, Revocation};

/// A lease on its way from one stream to another.
pub(in crate::dispatch) struct Adopted {
    pub(in crate::dispatch) token: Token,
    /// What it takes of the byte credit; `None`: its worker has settled it, and its shard was down.
    pub(in crate::dispatch) bytes: Option<u64>,
    pub(in crate::dispatch) held: Held,
}

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
    /// Takes in a lease that its worker has. It counts against the credit, also beyond it: then nothing new comes until
    /// there is credit again.
    pub(in crate::dispatch) fn adopt(&mut self, adopted: Adopted) {
        let Adopted { token, bytes, held } = adopted;
        self.look_at = self.look_at.min(held.deadline.plus(OVERDUE));
        match bytes {
            Some(bytes) => self.credit.grant(token, bytes, held),
            None => self.debts.insert(token, held),
        }
    }

    /// Takes these leases out of the books, those that are in them and that a worker has.
    pub(in crate::dispatch) fn hand_over(&mut self, tokens: &[Token]) -> Vec<Adopted> {
        let mut handed = Vec::with_capacity(tokens.len());
        for &token in tokens {
            let is_sent = self.credit.get(token).is_some_and(|held| held.sent);
            if is_sent && let Some((bytes, held)) = self.credit.take(token) {
                handed.push(Adopted { token, bytes: Some(bytes), held });
            } else if let Some(held) = self.debts.remove(token) {
                handed.push(Adopted { token, bytes: None, held });
            }
        }
        handed
    }

    /// What was revoked since the stream is over, and the heir that is to send it.
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
