//! Tokens that were verified before, so that many connections with one token verify it once.

use std::collections::HashMap;

use parking_lot::Mutex;

use super::super::token::TokenHash;

/// Number of tokens that are kept at least, of those used last; twice as many at most.
const TOKENS: usize = 5_000;

/// Results by token, bounded: what was not used for longest is forgotten first. Only tokens that were accepted are put
/// into it, so that no client without one can fill it.
#[derive(Debug)]
pub(in crate::auth) struct TokenCache<T> {
    parts: Mutex<Parts<T>>,
}

/// The two halves of a cache. When the first one is full, it takes the place of the second one.
#[derive(Debug)]
struct Parts<T> {
    recent: HashMap<TokenHash, Entry<T>>,
    older: HashMap<TokenHash, Entry<T>>,
}

/// Result for a token, as long as identities and keys do not change.
#[derive(Clone, Debug)]
struct Entry<T> {
    generation: u64,
    value: T,
}

// === impl TokenCache ===

impl<T: Clone> TokenCache<T> {
    /// Creates an empty cache.
    pub(in crate::auth) fn new() -> TokenCache<T> {
        TokenCache { parts: Mutex::new(Parts { recent: HashMap::new(), older: HashMap::new() }) }
    }

    /// Returns the result for a token of this generation.
    pub(in crate::auth) fn get(&self, token: &TokenHash, generation: u64) -> Option<T> {
        let mut parts = self.parts.lock();
        let entry = match parts.recent.get(token) {
            Some(entry) => entry.clone(),
            None => {
                let entry = parts.older.remove(token)?;
                parts.put(*token, entry.clone());
                entry
            }
        };
        (entry.generation == generation).then_some(entry.value)
    }

    /// Puts the result for a token.
    pub(in crate::auth) fn put(&self, token: TokenHash, generation: u64, value: T) {
        let mut parts = self.parts.lock();
        parts.older.remove(&token);
        parts.put(token, Entry { generation, value });
    }
}

// === impl Parts ===

impl<T> Parts<T> {
    fn put(&mut self, token: TokenHash, entry: Entry<T>) {
        if self.recent.len() >= TOKENS && !self.recent.contains_key(&token) {
            self.older = std::mem::take(&mut self.recent);
        }
        self.recent.insert(token, entry);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn token(number: usize) -> TokenHash {
        TokenHash::of(&number.to_string())
    }

    #[test]
    fn a_token_in_use_stays_and_the_number_is_bounded() {
        let cache = TokenCache::new();
        cache.put(token(0), 1, "in use");
        for number in 1..=10 * TOKENS {
            cache.put(token(number), 1, "other");
            assert_eq!(cache.get(&token(0), 1), Some("in use"), "{number}");
        }
        let parts = cache.parts.lock();
        assert!(parts.recent.len() + parts.older.len() <= 2 * TOKENS);
        assert!(!parts.recent.contains_key(&token(1)) && !parts.older.contains_key(&token(1)));
    }

    #[test]
    fn a_result_counts_for_its_generation_only() {
        let cache = TokenCache::new();
        cache.put(token(0), 1, "a");
        assert_eq!(cache.get(&token(0), 2), None);
        cache.put(token(0), 2, "b");
        assert_eq!((cache.get(&token(0), 1), cache.get(&token(0), 2)), (None, Some("b")));
    }
}
