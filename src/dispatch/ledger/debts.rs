//! Leases that their worker has settled while their shard was down. They take up no credit, so that the worker gets
//! the jobs of other shards; but as far as the store knows they run, and their stream answers for them.

use foldhash::{HashMap, HashMapExt as _};

use crate::domain::Token;

use super::{Held, Ledger};

/// See the module.
pub(super) struct Debts {
    leases: HashMap<Token, Held>,
    max: usize,
}

// === impl Debts ===

impl Debts {
    /// As many leases as the stream may hold. That is enough for each time that a shard goes down; if it comes
    /// back and goes down again before the first ones are settled, the later ones keep their credit.
    pub(super) fn new(max: u32) -> Debts {
        Debts { leases: HashMap::new(), max: max as usize }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.leases.is_empty()
    }

    pub(super) fn get(&self, token: Token) -> Option<&Held> {
        self.leases.get(&token)
    }

    pub(super) fn get_mut(&mut self, token: Token) -> Option<&mut Held> {
        self.leases.get_mut(&token)
    }

    pub(super) fn remove(&mut self, token: Token) -> Option<Held> {
        self.leases.remove(&token)
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = (Token, &Held)> {
        self.leases.iter().map(|(&token, held)| (token, held))
    }

    pub(super) fn insert(&mut self, token: Token, held: Held) {
        self.leases.insert(token, held);
    }
}

// === impl Ledger ===

impl Ledger {
    /// The worker has settled this lease and its shard, which is down, does not know it: frees its credit and keeps
    /// the lease in the books.
    pub(in crate::dispatch) fn owe(&mut self, token: Token) {
        let is_sent = self.credit.get(token).is_some_and(|held| held.sent);
        if is_sent
            && self.debts.leases.len() < self.debts.max
            && let Some(held) = self.credit.release(token)
        {
            self.debts.insert(token, held);
        }
    }
}
