//! How much a stream may hold: jobs and bytes handed to it and not yet settled.

use std::collections::hash_map::Entry;

use foldhash::{HashMap, HashMapExt as _};

use super::receipt::Token;

/// The credit of one stream. What is held never exceeds the limits, except that a single job larger
/// than the whole byte limit is held alone.
#[derive(Debug)]
pub struct Credit<T> {
    jobs_max: u32,
    bytes_max: u64,
    held: HashMap<Token, (u64, T)>,
    bytes: u64,
}

// === impl Credit ===

impl<T> Credit<T> {
    /// A credit of so many jobs and bytes, nothing held.
    #[must_use]
    pub fn new(jobs_max: u32, bytes_max: u64) -> Credit<T> {
        Credit { jobs_max, bytes_max, held: HashMap::new(), bytes: 0 }
    }

    /// Jobs that may be asked for now.
    #[must_use]
    pub fn jobs_free(&self) -> u32 {
        self.jobs_max.saturating_sub(self.in_flight())
    }

    /// Bytes that may be asked for now.
    #[must_use]
    pub fn bytes_free(&self) -> u64 {
        self.bytes_max.saturating_sub(self.bytes)
    }

    /// Jobs held.
    #[must_use]
    pub fn in_flight(&self) -> u32 {
        u32::try_from(self.held.len()).unwrap_or(u32::MAX)
    }

    /// Whether nothing is held: then one job larger than the byte limit may come alone.
    #[must_use]
    pub fn is_idle(&self) -> bool {
        self.held.is_empty()
    }

    /// Takes a delivery of `bytes` into the credit. A token that is held already changes nothing.
    pub fn grant(&mut self, token: Token, bytes: u64, what: T) {
        if let Entry::Vacant(slot) = self.held.entry(token) {
            slot.insert((bytes, what));
            self.bytes += bytes;
        }
    }

    /// Gives back the credit of `token`, once; what was held with it, or `None` when it is not held.
    pub fn release(&mut self, token: Token) -> Option<T> {
        self.take(token).map(|(_, what)| what)
    }

    /// As [`Credit::release`], with the bytes that it held.
    pub fn take(&mut self, token: Token) -> Option<(u64, T)> {
        let (bytes, what) = self.held.remove(&token)?;
        self.bytes -= bytes;
        Some((bytes, what))
    }

    /// What is held under `token`.
    #[must_use]
    pub fn get(&self, token: Token) -> Option<&T> {
        self.held.get(&token).map(|(_, what)| what)
    }

    /// What is held under `token`, to be changed.
    pub fn get_mut(&mut self, token: Token) -> Option<&mut T> {
        self.held.get_mut(&token).map(|(_, what)| what)
    }

    /// Everything that is held, to be looked at.
    pub fn iter(&self) -> impl Iterator<Item = (Token, &T)> {
        self.held.iter().map(|(&token, (_, what))| (token, what))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn held_jobs_and_bytes_come_back_exactly_once() {
        let mut credit = Credit::new(2, 100);
        credit.grant(Token(1), 60, ());
        credit.grant(Token(1), 60, ());
        assert_eq!((credit.jobs_free(), credit.bytes_free()), (1, 40));
        assert_eq!(credit.release(Token(1)), Some(()));
        assert_eq!(credit.release(Token(1)), None);
        assert_eq!((credit.jobs_free(), credit.bytes_free()), (2, 100));
    }

    #[test]
    fn one_oversized_job_is_held_alone() {
        let mut credit = Credit::new(8, 100);
        assert!(credit.is_idle());
        credit.grant(Token(1), 500, ());
        assert_eq!(credit.bytes_free(), 0);
        assert!(!credit.is_idle());
    }
}
