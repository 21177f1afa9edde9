//! Makes room in full topics that drop their oldest jobs. Callers that need room in one topic on one shard take turns:
//! the first one makes room for all that wait, or each of them would find the same oldest jobs.

use std::collections::HashMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::domain::{ShardName, TopicName};
use crate::shards::{self, Shard};

type TurnsByPlace = HashMap<(ShardName, TopicName), Arc<Turns>>;

/// Callers that make room now. Cloning shares them.
#[derive(Clone, Default)]
pub(super) struct Evictions(Arc<Mutex<TurnsByPlace>>);

/// Turns of the callers that need room in one topic on one shard.
#[derive(Default)]
struct Turns {
    turn: tokio::sync::Mutex<()>,
    /// Number of jobs of all callers that wait for their turn.
    wanted: AtomicUsize,
}

/// Jobs for which a caller waits; it is subtracted also if the caller goes away.
struct Wanted<'t> {
    turns: &'t Turns,
    jobs: usize,
}

// === impl Evictions ===

impl Evictions {
    /// Makes the oldest waiting jobs of a topic EXPIRED, so that `jobs` more fit below `max_waiting` on the shard, and those
    /// of the other callers that wait; returns how many.
    ///
    /// # Errors
    /// Errors of the store.
    pub(super) async fn make_room(
        &self,
        shard: &Shard,
        topic: &TopicName,
        jobs: usize,
        max_waiting: u64,
    ) -> shards::Result<u64> {
        let place = (shard.name().clone(), topic.clone());
        let turns = Arc::clone(self.lock().entry(place.clone()).or_default());
        let evicted = turns.make_room(shard, topic, jobs, max_waiting).await;
        let mut places = self.lock();
        // The map and this caller have one each: no other caller waits.
        if Arc::strong_count(&turns) == 2 {
            places.remove(&place);
        }
        evicted
    }

    fn lock(&self) -> MutexGuard<'_, TurnsByPlace> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

// === impl Turns ===

impl Turns {
    async fn make_room(
        &self,
        shard: &Shard,
        topic: &TopicName,
        jobs: usize,
        max_waiting: u64,
    ) -> shards::Result<u64> {
        self.wanted.fetch_add(jobs, Ordering::Relaxed);
        let _wanted = Wanted { turns: self, jobs };
        let _turn = self.turn.lock().await;
        let most = usize::try_from(max_waiting).unwrap_or(usize::MAX);
        let wanted = self.wanted.load(Ordering::Relaxed).clamp(jobs, most.max(jobs));
        // Nothing is evicted for a caller for whom another one has made room.
        shard.evict(topic, wanted, max_waiting).await.map(|evicted| evicted as u64)
    }
}

// === impl Wanted ===

impl Drop for Wanted<'_> {
    fn drop(&mut self) {
        self.turns.wanted.fetch_sub(self.jobs, Ordering::Relaxed);
    }
}
