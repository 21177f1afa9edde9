//! When a pull has waited long enough: shards are asked at once and answer one by one.

use super::{Ledger, Phase};

/// What a pull has come to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::dispatch) enum Harvest {
    /// There was nothing so far.
    Nothing,
    /// There is nothing: every feed was asked.
    Exhausted,
    /// There is something, and more may come at once.
    Some,
    /// There is all that it can take, or all that there was.
    All,
}

// === impl Ledger ===

impl Ledger {
    /// What a pull has come to.
    pub(in crate::dispatch) fn harvest(&self) -> Harvest {
        let (idle, asked) = (self.asked_jobs == 0, self.unanswered == 0);
        match (self.outbox.is_empty(), asked) {
            _ if self.phase != Phase::Open => Harvest::All,
            (true, true) if idle => Harvest::Exhausted,
            (true, _) => Harvest::Nothing,
            (false, true) if idle => Harvest::All,
            (false, _) if idle && self.want().is_none() => Harvest::All,
            (false, _) => Harvest::Some,
        }
    }
}
