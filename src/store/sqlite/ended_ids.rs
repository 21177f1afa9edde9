//! Server-made ids whose jobs have ended and left no record. A call whose answer was lost is retried under the same
//! id, perhaps after the job has ended: an id that is found here is not written again. In memory: keeping the ids in
//! the file would cost one write more per job. For ids made before the file was opened, or whose hashes were dropped
//! because there were too many, the end of their jobs is unknown.

use std::collections::{BTreeMap, HashSet};
use std::time::Duration;

use xxhash_rust::xxh3::xxh3_64_with_seed;

use crate::domain::id::created_at;
use crate::domain::{JobId, State, Time, limit};
use crate::store::NotWrittenReason;

/// Maximum number of ids kept, in some 64 MB: those of ten minutes at 6,600 a second.
const ENDED_IDS_MAX: usize = 4_000_000;
/// Ids are dropped together, by the time at which they were made.
const BUCKET: Duration = Duration::from_secs(10);

/// Hashes of ids by creation time, each with the final state of its job.
pub(super) struct EndedIds {
    buckets: BTreeMap<i64, HashSet<u64>>,
    count: usize,
    max: usize,
    /// Ids made before this time are unknown.
    known_since: Time,
}

// === impl EndedIds ===

impl EndedIds {
    /// Creates the list of a file that is opened now.
    pub(super) fn new(opened: Time) -> EndedIds {
        EndedIds { buckets: BTreeMap::new(), count: 0, max: ENDED_IDS_MAX, known_since: opened }
    }

    /// Adds the id of a job that has ended without a record.
    pub(super) fn add(&mut self, topic: i64, id: &str, ended: State, now: Time) {
        let Some(made) = created_at(id) else { return };
        // An id from the future was made before the clock went back.
        if refusal_by_age(made, now) == Some(NotWrittenReason::TooOld) {
            return;
        }
        self.drop_old(now);
        if self.buckets.entry(bucket_of(made)).or_default().insert(hash(topic, id, ended)) {
            self.count += 1;
        }
        while self.count > self.max
            && let Some((piece, dropped)) = self.buckets.pop_first()
        {
            self.count -= dropped.len();
            self.known_since = self.known_since.max(bucket_start(piece + 1));
        }
    }

    /// Returns the final state of the job with that id, if its enqueue can still be retried.
    pub(super) fn find(&self, topic: i64, id: &JobId, now: Time) -> Option<State> {
        let made = id.created_at().filter(|&made| refusal_by_age(made, now).is_none())?;
        let hashes = self.buckets.get(&bucket_of(made))?;
        let is = |state: &State| hashes.contains(&hash(topic, id.as_str(), *state));
        State::ALL.into_iter().filter(|state| state.is_terminal()).find(is)
    }

    /// Returns why a job with that id, which has no record and is not found here, must not be written.
    pub(super) fn refusal(&self, id: &JobId, now: Time) -> Option<NotWrittenReason> {
        let made = id.created_at()?;
        let unknown = (made < self.known_since).then_some(NotWrittenReason::HistoryLost);
        refusal_by_age(made, now).or(unknown)
    }

    /// Drops ids that no retry can use any more.
    fn drop_old(&mut self, now: Time) {
        let first = bucket_of(now.minus(limit::REPEAT_MAX));
        while let Some(entry) = self.buckets.first_entry().filter(|entry| *entry.key() < first) {
            self.count -= entry.remove().len();
        }
    }
}

fn refusal_by_age(made: Time, now: Time) -> Option<NotWrittenReason> {
    if now.since(made) >= limit::REPEAT_MAX {
        Some(NotWrittenReason::TooOld)
    } else if made.since(now) > limit::ID_AHEAD_MAX {
        Some(NotWrittenReason::FromFuture)
    } else {
        None
    }
}

fn bucket_of(made: Time) -> i64 {
    made.0.div_euclid(bucket_micros())
}

fn bucket_start(piece: i64) -> Time {
    Time(piece.saturating_mul(bucket_micros()))
}

fn bucket_micros() -> i64 {
    i64::try_from(BUCKET.as_micros()).unwrap_or(i64::MAX)
}

/// Hashes an id; the last two bits are the final state.
fn hash(topic: i64, id: &str, ended: State) -> u64 {
    let end = match ended {
        State::Dead => 1,
        State::Cancelled => 2,
        State::Expired => 3,
        _ => 0,
    };
    xxh3_64_with_seed(id.as_bytes(), topic.cast_unsigned()) & !3 | end
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::domain::ShardName;

    const ENDS: [State; 4] = [State::Succeeded, State::Dead, State::Cancelled, State::Expired];
    const NOW: Time = Time(1_800_000_000_123_457);

    fn made(seconds: i64) -> JobId {
        let millis = (NOW.0 / 1_000 + seconds * 1_000).cast_unsigned();
        JobId::from_uuid(&ShardName::try_new("s0").unwrap(), u128::from(millis) << 80 | 5)
    }

    fn at(seconds: u64) -> Time {
        NOW.plus(Duration::from_secs(seconds))
    }

    #[test]
    fn ended_id_is_found_while_repeatable() {
        let mut recall = EndedIds::new(at(0));
        for (n, ended) in (1..).zip(ENDS) {
            recall.add(1, made(n).as_str(), ended, at(9));
        }
        for later in [9_u64, 300, 590] {
            recall.add(1, made(later.cast_signed()).as_str(), State::Succeeded, at(later));
            for (n, state) in (1..).zip(ENDS) {
                assert_eq!(recall.find(1, &made(n), at(later)), Some(state));
                assert_eq!(recall.find(2, &made(n), at(later)), None, "in another topic");
                assert_eq!(recall.refusal(&made(n), at(later)), None);
            }
        }
        assert_eq!(recall.refusal(&made(1), at(602)), Some(NotWrittenReason::TooOld));
        assert_eq!(recall.find(1, &made(1), at(602)), None);
        recall.add(1, made(700).as_str(), State::Succeeded, at(700));
        assert_eq!(recall.count, 3, "made at 300, 590 and 700");
    }

    #[test]
    fn forgotten_id_is_not_new() {
        let mut recall = EndedIds { max: 20, ..EndedIds::new(at(0)) };
        assert_eq!(
            recall.refusal(&made(-1), at(5)),
            Some(NotWrittenReason::HistoryLost),
            "before the file was opened"
        );
        assert_eq!(recall.refusal(&made(241), at(0)), Some(NotWrittenReason::FromFuture));
        assert_eq!(recall.refusal(&made(239), at(0)), None);
        let ids: Vec<_> = (1..=50).map(made).collect();
        for (second, id) in (1..).zip(&ids) {
            recall.add(1, id.as_str(), State::Succeeded, at(second));
        }
        assert!(recall.count <= 20, "{}", recall.count);
        for id in &ids {
            let found = recall.find(1, id, at(50)).is_some();
            assert_eq!(recall.refusal(id, at(50)).is_none(), found, "{id}");
        }
        assert!(recall.find(1, &ids[49], at(50)).is_some());
    }
}
