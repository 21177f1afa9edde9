//! Makes room in full topics that drop their oldest jobs. Callers that need room in one topic on one shard take turns:
//! the first one makes room for all that wait, or each of them would find the same oldest jobs.
//!
//! Nothing leaves for a job that is not written then: the store finds nothing unless the new jobs have room by it, or
//! take the places of as many in a topic over its limits. Such a topic comes down step by step: twice as many leave as
//! come. Where other callers take the room each time, the jobs are written at last whatever the limits.

use std::collections::HashMap;
use std::sync::Arc;

use parking_lot::Mutex;

use crate::domain::engine::NewJob;
use crate::domain::{JobId, OverflowPolicy, ShardName, TopicName, limit};
use crate::shards::{self, Shard};
use crate::store::{JobSum, LeavingJobs, RoomQuery};

use super::Producer;
use crate::scheduler::topic_limits::TopicLimits;

/// Number of new jobs for which jobs leave at once: up to twice as many leave in one call.
const NEW_JOBS_MAX: u64 = limit::CALL_JOBS_MAX as u64 / 2;
/// Number of times that jobs leave for new ones, whose room others take, before the new ones are written all the same.
const ROUNDS_MAX: usize = 16;

type TurnsByPlace = HashMap<(ShardName, TopicName), Arc<Turns>>;

/// Callers that make room now. Cloning shares them.
#[derive(Clone, Default)]
pub(in crate::scheduler) struct Evictions(Arc<Mutex<TurnsByPlace>>);

/// Turns of the callers that need room in one topic on one shard.
#[derive(Default)]
struct Turns {
    turn: tokio::sync::Mutex<()>,
    /// Jobs of all callers that wait for their turn.
    wanted: Mutex<JobSum>,
}

/// Some jobs of a batch, by their positions in it.
#[derive(Default)]
struct JobsToWrite {
    places: Vec<usize>,
    sum: JobSum,
}

/// Jobs for which a caller waits; they are subtracted also if the caller goes away.
struct Wanted<'t> {
    turns: &'t Turns,
    sum: JobSum,
}

/// Rounds in which room was made for jobs that are still not written.
#[derive(Default)]
pub(in crate::scheduler) struct PastRounds {
    pub(in crate::scheduler) count: usize,
    /// Topics of which jobs have left.
    pub(in crate::scheduler) topics: Vec<TopicName>,
}

/// Room that was made for some jobs of a batch.
#[derive(Default)]
pub(in crate::scheduler) struct MadeRoom {
    /// Ids of the jobs that have left.
    pub(in crate::scheduler) left: Vec<JobId>,
    /// Positions of the jobs that are written whatever the limits.
    pub(in crate::scheduler) unlimited: Vec<usize>,
}

// === impl Producer ===

impl Producer {
    /// Makes room for these jobs of a topic on a shard that had none, if the topic drops its oldest jobs. `None`: they get
    /// no room, and nothing has left for them.
    pub(in crate::scheduler) async fn make_room_on<'j>(
        &self,
        shard: &Shard,
        topic: &TopicName,
        jobs: impl Iterator<Item = (usize, &'j NewJob)>,
        past: &PastRounds,
    ) -> Option<MadeRoom> {
        if self.on_full(topic) != OverflowPolicy::DropOldest {
            return None;
        }
        let limits = self.topic_limits(topic, shard);
        if limits.max_waiting.is_none() && limits.max_bytes.is_none() {
            // The limits were removed meanwhile.
            return Some(MadeRoom::default());
        }
        let [first, smallest] = limits.fitting(jobs);
        for jobs in [&first, &smallest] {
            let TopicLimits { max_waiting, max_bytes } = limits;
            let room =
                RoomQuery { new: jobs.sum, max_waiting, max_bytes, others: JobSum::default() };
            if jobs.places.is_empty() {
                continue;
            }
            match self.inner.evictions.make_room(shard, topic, room).await {
                Ok(Some(LeavingJobs { ids, is_over })) => {
                    self.inner.metrics.evicted(topic.as_str(), ids.len() as u64);
                    let is_unlimited = is_over || past.count >= ROUNDS_MAX;
                    let unlimited = if is_unlimited { jobs.places.clone() } else { Vec::new() };
                    return Some(MadeRoom { left: ids, unlimited });
                }
                Ok(None) => {}
                Err(error) => {
                    tracing::debug!(%topic, %error, "the oldest jobs of a full topic were not dropped");
                    break;
                }
            }
        }
        // Others have taken the room for which jobs have left.
        let is_owed = past.topics.contains(topic) && !first.places.is_empty();
        is_owed.then_some(MadeRoom { left: Vec::new(), unlimited: first.places })
    }
}

// === impl TopicLimits ===

impl TopicLimits {
    /// Returns the first of these jobs, as many as fit into an empty topic together, and the smallest one alone, if it is
    /// not the only one. A job that never fits is in neither.
    fn fitting<'j>(self, jobs: impl Iterator<Item = (usize, &'j NewJob)>) -> [JobsToWrite; 2] {
        let most_jobs = self.max_waiting.map_or(NEW_JOBS_MAX, |max| max.min(NEW_JOBS_MAX));
        let most_bytes = self.max_bytes.unwrap_or(u64::MAX);
        let sizes = jobs.map(|(place, job)| (place, job.enqueue.spec.bytes() as u64));
        let sizes: Vec<_> = sizes.filter(|&(_, bytes)| bytes <= most_bytes).collect();
        let mut first = JobsToWrite::default();
        for &(place, bytes) in &sizes {
            let sum = JobSum { jobs: 1, bytes }.plus(first.sum);
            if sum.jobs > most_jobs || sum.bytes > most_bytes {
                break;
            }
            first.places.push(place);
            first.sum = sum;
        }
        let smallest = sizes.into_iter().min_by_key(|&(_, bytes)| bytes);
        let smallest = smallest.filter(|_| first.sum.jobs > 1).map(|(place, bytes)| JobsToWrite {
            places: vec![place],
            sum: JobSum { jobs: 1, bytes },
        });
        [first, smallest.unwrap_or_default()]
    }
}

// === impl Evictions ===

impl Evictions {
    /// Makes the oldest waiting jobs of a topic EXPIRED for new ones, and for those of the other callers that wait, where
    /// the topic comes down to its limits; returns those that have left. `None`: none, because the new ones get no room.
    ///
    /// # Errors
    /// Errors of the store.
    async fn make_room(
        &self,
        shard: &Shard,
        topic: &TopicName,
        room: RoomQuery,
    ) -> shards::Result<Option<LeavingJobs>> {
        let place = (shard.name().clone(), topic.clone());
        let turns = Arc::clone(self.0.lock().entry(place.clone()).or_default());
        let left = turns.make_room(shard, topic, room).await;
        let mut places = self.0.lock();
        // The map and this caller have one each: no other caller waits.
        if Arc::strong_count(&turns) == 2 {
            places.remove(&place);
        }
        left
    }
}

// === impl Turns ===

impl Turns {
    async fn make_room(
        &self,
        shard: &Shard,
        topic: &TopicName,
        room: RoomQuery,
    ) -> shards::Result<Option<LeavingJobs>> {
        let _wanted = Wanted::add(self, room.new);
        let _turn = self.turn.lock().await;
        // Nothing leaves for a caller for whom another one has made room.
        let others = self.wanted.lock().minus(room.new);
        shard.evict(topic, RoomQuery { others, ..room }).await
    }
}

// === impl Wanted ===

impl<'t> Wanted<'t> {
    fn add(turns: &'t Turns, sum: JobSum) -> Wanted<'t> {
        let mut wanted = turns.wanted.lock();
        *wanted = wanted.plus(sum);
        Wanted { turns, sum }
    }
}

impl Drop for Wanted<'_> {
    fn drop(&mut self) {
        let mut wanted = self.turns.wanted.lock();
        *wanted = wanted.minus(self.sum);
    }
}
