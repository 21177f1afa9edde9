//! Ids of the server's own whose jobs have succeeded and left nothing. A call whose answer was lost is
//! repeated under the same id, perhaps after the job has run: what is recalled is not written again. In
//! memory: to keep them in the file would cost each life a write more. A producer may repeat
//! over a restart of the server, so of ids that were made shortly before the file was opened it is said
//! that nobody knows, until nobody repeats them any more.

use std::collections::HashSet;

use xxhash_rust::xxh3::xxh3_64_with_seed;

use crate::domain::{JobId, Time, limit};

/// Ids of one generation: at some thousand a second they are recalled for less time, in 16 MB.
const GENERATION_MAX: usize = 500_000;

/// Two generations, each of which is filled for [`limit::TOMBSTONE`].
#[derive(Default)]
pub(super) struct Recall {
    young: HashSet<u64>,
    old: HashSet<u64>,
    since: Time,
    opened: Time,
}

// === impl Recall ===

impl Recall {
    /// Of a file that is opened now.
    pub(super) fn new(opened: Time) -> Recall {
        Recall { opened, ..Recall::default() }
    }

    /// Whether a job with that id may have succeeded before the file was opened, and be repeated still.
    pub(super) fn may_have_known(&self, id: &JobId, now: Time) -> bool {
        let made = id.made_at();
        made.is_some_and(|made| made < self.opened && now.since(made) < limit::TOMBSTONE)
    }

    /// The job with that id has left nothing.
    pub(super) fn add(&mut self, topic: i64, id: &str, now: Time) {
        if now.since(self.since) >= limit::TOMBSTONE || self.young.len() >= GENERATION_MAX {
            self.old = std::mem::take(&mut self.young);
            self.since = now;
        }
        self.young.insert(hash(topic, id));
    }

    /// Whether a job with that id has succeeded a while ago.
    pub(super) fn knows(&self, topic: i64, id: &str) -> bool {
        let hash = hash(topic, id);
        self.young.contains(&hash) || self.old.contains(&hash)
    }
}

fn hash(topic: i64, id: &str) -> u64 {
    xxh3_64_with_seed(id.as_bytes(), topic.cast_unsigned())
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn an_id_is_recalled_for_a_while() {
        let (mut recall, begin) = (Recall::default(), Time(1_000_000_000));
        let at = |seconds| begin.plus(Duration::from_secs(seconds));
        recall.add(1, "a", at(0));
        recall.add(1, "b", at(59));
        recall.add(1, "c", at(60));
        assert!(recall.knows(1, "a") && recall.knows(1, "b") && recall.knows(1, "c"));
        recall.add(1, "d", at(120));
        assert!(!recall.knows(2, "d"), "in another topic");
        assert!(!recall.knows(1, "b") && recall.knows(1, "c") && recall.knows(1, "d"));
    }
}
