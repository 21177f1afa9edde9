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

    /// A line has got in on this shard: it is waited for the next time that it is away. So is any shard, where none
    /// took new jobs: what is said then names none.
    pub(super) fn is_back(&self, shard: &str) {
        let named = format!("shard {shard} ");
        let is_of_another = |said: &String| said.starts_with("shard ") && !said.starts_with(&named);
        self.sentences().retain(is_of_another);
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
        left_out(format!("shard {shard} is unavailable and nothing was applied"))
    }

    fn left_out(message: String) -> Error {
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

    #[test]
    fn each_absence_of_all_shards_is_waited_for_once() {
        let shards = Away::default();
        let all = || left_out("no shard takes new jobs and nothing was written".to_owned());
        shards.waited_for(&all());
        shards.waited_for(&away("s1"));
        assert!(!shards.is_worth_a_repeat(&all()));
        shards.is_back("s0");
        assert!(shards.is_worth_a_repeat(&all()));
        assert!(!shards.is_worth_a_repeat(&away("s1")), "it is away as it was");
    }
}
