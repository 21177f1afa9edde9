//! Cache of registered handles, by their labels.

use std::borrow::Borrow;
use std::collections::HashMap;
use std::hash::Hash;
use std::sync::{PoisonError, RwLock, RwLockReadGuard};

/// Map that is mostly read. Entries are never removed, so the caller must bound its keys.
#[derive(Debug)]
pub(super) struct HandleCache<K, H>(RwLock<HashMap<K, H>>);

// === impl HandleCache ===

impl<K, H> Default for HandleCache<K, H> {
    fn default() -> Self {
        HandleCache(RwLock::default())
    }
}

impl<K: Eq + Hash, H: Clone> HandleCache<K, H> {
    /// Returns the handle of a key, if it was made before.
    pub(super) fn get<Q: Eq + Hash + ?Sized>(&self, key: &Q) -> Option<H>
    where
        K: Borrow<Q>,
    {
        self.read().get(key).cloned()
    }

    /// Returns the handle of a key, which is made the first time.
    pub(super) fn get_or_insert(&self, key: K, make: impl FnOnce() -> H) -> H {
        self.get(&key).unwrap_or_else(|| self.insert(key, make))
    }

    /// Returns all handles by key.
    pub(super) fn read(&self) -> RwLockReadGuard<'_, HashMap<K, H>> {
        self.0.read().unwrap_or_else(PoisonError::into_inner)
    }

    fn insert(&self, key: K, make: impl FnOnce() -> H) -> H {
        let mut map = self.0.write().unwrap_or_else(PoisonError::into_inner);
        map.entry(key).or_insert_with(make).clone()
    }
}
