//! Key of the receipts of a shard, which all its servers share. The first to reach an empty Redis stores the key that it
//! has, or a new one, and the others take that: at first contact, after a failover to a Redis that does not have it yet,
//! and after the shard was emptied.

use parking_lot::Mutex;

use crate::domain::ReceiptKey;
use crate::store::Result;

use super::reply::unexpected;

/// Key as this server has it.
pub(super) struct SharedReceiptKey {
    /// Key that is stored if there is none.
    made: ReceiptKey,
    /// Key that the shard had when it was last asked.
    stored: Mutex<Option<ReceiptKey>>,
}

// === impl SharedReceiptKey ===

impl SharedReceiptKey {
    pub(super) fn new() -> SharedReceiptKey {
        SharedReceiptKey { made: ReceiptKey::new(rand::random()), stored: Mutex::default() }
    }

    /// Returns the key; `None`: the shard was not reached yet.
    pub(super) fn get(&self) -> Option<ReceiptKey> {
        *self.stored.lock()
    }

    /// Returns the key to store if there is none, in hex digits.
    pub(super) fn proposal(&self) -> String {
        format!("{:032x}", self.get().unwrap_or(self.made).bits())
    }

    /// Takes the key that is stored.
    ///
    /// # Errors
    /// Fails for a text that is no key; the last one stays.
    pub(super) fn stored(&self, text: &str) -> Result<()> {
        let bits = u128::from_str_radix(text, 16).map_err(|_| unexpected("the key of receipts"))?;
        *self.stored.lock() = Some(ReceiptKey::new(bits));
        Ok(())
    }
}
