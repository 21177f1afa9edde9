//! Shards that were away for as long as `--lines` repeats.

use std::collections::HashSet;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::answer::is_left_out;
use crate::client::Error;

/// What lines for such shards fail with. It is waited for once: each later line is tried, and not repeated, so
/// that the lines for others go on at their pace. Clones share it.
#[derive(Clone, Default)]
pub(super) struct Away(Arc<Mutex<HashSet<String>>>);

// === impl Away ===

impl Away {
    /// A line was repeated in vain. The sentence names the shard; an item of a batch has nothing else that does.
    pub(super) fn waited_for(&self, error: &Error) {
        self.sentences().insert(error.message().to_owned());
    }

    /// A line has got in on this shard: it is waited for the next time that it is away.
    pub(super) fn is_back(&self, shard: &str) {
        let named = format!("shard {shard} ");
        self.sentences().retain(|sentence| !sentence.starts_with(&named));
    }

    /// Whether a line that failed like this is repeated.
    pub(super) fn is_worth_a_repeat(&self, error: &Error) -> bool {
        !(is_left_out(error) && self.sentences().contains(error.message()))
    }

    fn sentences(&self) -> MutexGuard<'_, HashSet<String>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pb::ItemError;

    fn away(shard: &str) -> Error {
        let message = format!("shard {shard} is unavailable and nothing was applied");
        let reason = "SHARD_UNAVAILABLE".to_owned();
        ItemError { code: tonic::Code::Unavailable.into(), reason, message, ..Default::default() }
            .into()
    }

    #[test]
    fn each_absence_of_a_shard_is_waited_for_once() {
        let shards = Away::default();
        assert!(shards.is_worth_a_repeat(&away("s1")));
        shards.clone().waited_for(&away("s1"));
        assert!(!shards.is_worth_a_repeat(&away("s1")));
        assert!(shards.is_worth_a_repeat(&away("s10")), "another one");
        shards.is_back("s10");
        assert!(!shards.is_worth_a_repeat(&away("s1")));
        shards.is_back("s1");
        assert!(shards.is_worth_a_repeat(&away("s1")));
    }
}
