//! Handles that were registered once, by their labels.

use std::borrow::Borrow;
use std::collections::HashMap;
use std::hash::Hash;
use std::sync::{PoisonError, RwLock, RwLockReadGuard};

/// A map that mostly is read. Entries stay for ever, so whoever fills it bounds its keys.
#[derive(Debug)]
pub(super) struct HandleCache<K, H>(RwLock<HashMap<K, H>>);

// === impl Cache ===

impl<K, H> Default for HandleCache<K, H> {
    fn default() -> Self {
        HandleCache(RwLock::default())
    }
}

impl<K: Eq + Hash, H: Clone> HandleCache<K, H> {
    /// The handle of a key, if it was made before.
    pub(super) fn get<Q: Eq + Hash + ?Sized>(&self, key: &Q) -> Option<H>
    where
        K: Borrow<Q>,
    {
        self.read().get(key).cloned()
    }

    /// The handle of a key, made the first time.
    pub(super) fn get_or_insert(&self, key: K, make: impl FnOnce() -> H) -> H {
        self.get(&key).unwrap_or_else(|| self.insert(key, make))
    }

    /// All that there is.
    pub(super) fn read(&self) -> RwLockReadGuard<'_, HashMap<K, H>> {
        self.0.read().unwrap_or_else(PoisonError::into_inner)
    }

    fn insert(&self, key: K, make: impl FnOnce() -> H) -> H {
        let mut map = self.0.write().unwrap_or_else(PoisonError::into_inner);
        map.entry(key).or_insert_with(make).clone()
    }
}
