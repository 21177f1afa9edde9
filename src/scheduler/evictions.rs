//! Makes room in full topics that drop their oldest jobs. Callers that need room in one topic on one shard take turns:
//! the first one makes room for all that wait, or each of them would find the same oldest jobs.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::domain::{OverflowPolicy, ShardName, TopicName};
use crate::shards::{self, Shard};
use crate::store::{NewJob, RoomQuery};

use super::Scheduler;
use super::enqueue::TopicLimits;

type TurnsByPlace = HashMap<(ShardName, TopicName), Arc<Turns>>;

/// Callers that make room now. Cloning shares them.
#[derive(Clone, Default)]
pub(super) struct Evictions(Arc<Mutex<TurnsByPlace>>);

/// Turns of the callers that need room in one topic on one shard.
#[derive(Default)]
struct Turns {
    turn: tokio::sync::Mutex<()>,
    /// Jobs of all callers that wait for their turn.
    wanted: Mutex<JobSum>,
}

/// Number of some jobs, and their bytes.
#[derive(Clone, Copy, Default)]
struct JobSum {
    jobs: usize,
    bytes: u64,
}

/// Room that jobs of one caller need.
#[derive(Clone, Copy)]
struct NeededRoom {
    all: RoomQuery,
    /// Room for the smallest job alone.
    least: RoomQuery,
}

/// Jobs for which a caller waits; they are subtracted also if the caller goes away.
struct Wanted<'t> {
    turns: &'t Turns,
    sum: JobSum,
}

// === impl Scheduler ===

impl Scheduler {
    /// Makes room for these jobs of a topic on a shard that had none, if the topic drops its oldest jobs. Returns whether
    /// there may be room now.
    pub(super) async fn make_room_on(
        &self,
        shard: &Shard,
        topic: &TopicName,
        jobs: impl Iterator<Item = &NewJob>,
    ) -> bool {
        if self.on_full(topic) != OverflowPolicy::DropOldest {
            return false;
        }
        let limits = self.topic_limits(topic, shard);
        if limits.max_waiting.is_none() && limits.max_bytes.is_none() {
            // The limits were removed meanwhile.
            return true;
        }
        let Some(room) = limits.room_for(jobs) else { return false };
        match self.inner.evictions.make_room(shard, topic, room).await {
            Ok(evicted) => {
                self.inner.metrics.evicted(topic.as_str(), evicted.unwrap_or(0));
                evicted.is_some()
            }
            Err(error) => {
                tracing::debug!(%topic, %error, "the oldest jobs of a full topic were not dropped");
                false
            }
        }
    }
}

// === impl TopicLimits ===

impl TopicLimits {
    /// Returns the room that the jobs need, as far as an empty topic has it, and that for the smallest of them; `None`: it
    /// has none for any.
    fn room_for<'j>(self, jobs: impl Iterator<Item = &'j NewJob>) -> Option<NeededRoom> {
        let TopicLimits { max_waiting, max_bytes } = self;
        let (most_jobs, most_bytes) =
            (max_waiting.unwrap_or(u64::MAX), max_bytes.unwrap_or(u64::MAX));
        let bytes = jobs.map(|job| job.spec.bytes() as u64).filter(|&bytes| bytes <= most_bytes);
        let bytes: Vec<u64> = bytes.collect();
        let jobs = bytes.len().min(usize::try_from(most_jobs).unwrap_or(usize::MAX));
        let sum = bytes.iter().fold(0, |sum: u64, bytes| sum.saturating_add(*bytes));
        let all = RoomQuery { jobs, max_waiting, bytes: sum.min(most_bytes), max_bytes };
        let least = RoomQuery { jobs: 1, bytes: bytes.into_iter().min()?, ..all };
        (jobs > 0).then_some(NeededRoom { all, least })
    }
}

// === impl Evictions ===

impl Evictions {
    /// Makes the oldest waiting jobs of a topic EXPIRED, so that it has this room on the shard, and that for the jobs of
    /// the other callers that wait; returns how many. `None`: none, because not even the smallest job gets room by that.
    ///
    /// # Errors
    /// Errors of the store.
    async fn make_room(
        &self,
        shard: &Shard,
        topic: &TopicName,
        room: NeededRoom,
    ) -> shards::Result<Option<u64>> {
        let place = (shard.name().clone(), topic.clone());
        let turns = Arc::clone(lock(&self.0).entry(place.clone()).or_default());
        let evicted = turns.make_room(shard, topic, room).await;
        let mut places = lock(&self.0);
        // The map and this caller have one each: no other caller waits.
        if Arc::strong_count(&turns) == 2 {
            places.remove(&place);
        }
        evicted
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

// === impl Turns ===

impl Turns {
    async fn make_room(
        &self,
        shard: &Shard,
        topic: &TopicName,
        NeededRoom { all: room, least }: NeededRoom,
    ) -> shards::Result<Option<u64>> {
        let sum = JobSum { jobs: room.jobs, bytes: room.bytes };
        let _wanted = Wanted::add(self, sum);
        let _turn = self.turn.lock().await;
        let wanted = *lock(&self.wanted);
        let most = usize::try_from(room.max_waiting.unwrap_or(u64::MAX)).unwrap_or(usize::MAX);
        let most_bytes = room.max_bytes.unwrap_or(u64::MAX);
        let of_all_callers = RoomQuery {
            jobs: wanted.jobs.clamp(sum.jobs, most.max(sum.jobs)),
            bytes: wanted.bytes.clamp(sum.bytes, most_bytes.max(sum.bytes)),
            ..room
        };
        // Nothing is evicted for a caller for whom another one has made room, or who gets none by it.
        for room in [of_all_callers, room, least] {
            if let Some(evicted) = shard.evict(topic, room).await? {
                return Ok(Some(evicted as u64));
            }
        }
        Ok(None)
    }
}

// === impl JobSum ===

impl JobSum {
    fn plus(self, other: JobSum) -> JobSum {
        JobSum { jobs: self.jobs + other.jobs, bytes: self.bytes.saturating_add(other.bytes) }
    }

    fn minus(self, other: JobSum) -> JobSum {
        JobSum { jobs: self.jobs - other.jobs, bytes: self.bytes.saturating_sub(other.bytes) }
    }
}

// === impl Wanted ===

impl<'t> Wanted<'t> {
    fn add(turns: &'t Turns, sum: JobSum) -> Wanted<'t> {
        let mut wanted = lock(&turns.wanted);
        *wanted = wanted.plus(sum);
        Wanted { turns, sum }
    }
}

impl Drop for Wanted<'_> {
    fn drop(&mut self) {
        let mut wanted = lock(&self.turns.wanted);
        *wanted = wanted.minus(self.sum);
    }
}
