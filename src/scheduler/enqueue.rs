//! Enqueue: give each job an id and a shard, write it, say what was found or made.

use rand::Rng as _;
use xxhash_rust::xxh3::xxh3_64;

use crate::domain::{
    Durability, JobId, JobKey, OnConflict, Outcome, ShardName, Spec, State, Time, TopicName, When,
    limit,
};
use crate::shards::Shard;
use crate::store::{self, NewJob};

use super::Scheduler;

/// A job as a producer asks for it, checked but without a place.
#[derive(Clone, Debug, PartialEq)]
pub struct Draft {
    /// Where.
    pub topic: TopicName,
    /// The id that the client chose (or that follows from its request id); absent: one is made.
    pub id: Option<JobId>,
    /// The request id, which makes a repeat recognizable.
    pub request_id: Option<String>,
    /// The lasting part.
    pub spec: Spec,
    /// First run.
    pub due: When,
    /// 0 to 9, if given.
    pub priority: Option<u8>,
    /// Not running by then: EXPIRED.
    pub expire: Option<When>,
    /// What to do when the id is taken.
    pub on_conflict: OnConflict,
}

/// A job that was accepted.
#[derive(Clone, Debug, PartialEq)]
pub struct Enqueued {
    /// Its id.
    pub id: JobId,
    /// What the enqueue did.
    pub outcome: Outcome,
    /// When it becomes ready.
    pub due: Time,
    /// What the write has reached.
    pub durability: Durability,
    /// Where it lies.
    pub shard: ShardName,
    /// The state found or made.
    pub state: State,
}

/// Why a job was not accepted.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum EnqueueError {
    /// The id is taken and the caller wants to know.
    #[error("{key} exists already")]
    AlreadyExists {
        /// The job that is there.
        key: JobKey,
        /// Its state.
        state: State,
    },
    /// Nothing was written: the shard cannot reach what was asked.
    #[error("the shard reaches {reached:?}, not {asked:?}")]
    DurabilityUnsupported {
        /// What was asked for.
        asked: Durability,
        /// What can be had.
        reached: Durability,
    },
    /// The id names a shard that this server does not have.
    #[error("no shard named {0} is configured here")]
    NoSuchShard(ShardName),
    /// The shard failed. A repeat with this id cannot double the job.
    #[error("{error}")]
    Store {
        /// What happened.
        error: store::Error,
        /// The id that the job has, or would have had.
        id: JobId,
    },
}

/// The drafts of one call that go to one shard, by their index in the call.
struct Share<'a> {
    shard: &'a Shard,
    indexes: Vec<usize>,
    jobs: Vec<NewJob>,
}

// === impl Scheduler ===

impl Scheduler {
    /// Writes `drafts`; each result answers the draft of its index. Shards are written to one by
    /// one and independently: what one refuses does not touch the others.
    pub async fn enqueue(
        &self,
        drafts: Vec<Draft>,
        asked: Option<Durability>,
    ) -> Vec<Result<Enqueued, EnqueueError>> {
        let mut results: Vec<Option<Result<Enqueued, EnqueueError>>> = Vec::new();
        results.resize_with(drafts.len(), || None);
        let mut shares: Vec<Share<'_>> = Vec::new();
        for (index, draft) in drafts.into_iter().enumerate() {
            match self.place(draft) {
                Ok((shard, job)) => share(&mut shares, shard, index, job),
                Err(error) => results[index] = Some(Err(error)),
            }
        }
        for share in shares {
            let indexes = share.indexes.clone();
            for (index, result) in indexes.into_iter().zip(self.enqueue_share(share, asked).await) {
                results[index] = Some(result);
            }
        }
        results.into_iter().flatten().collect()
    }

    /// Makes a job without an id one of `shard`.
    pub(super) fn place_on(&self, shard: &Shard, draft: Draft) -> NewJob {
        new_job(draft, self.new_id(shard))
    }

    /// Gives a draft its id and its shard.
    fn place(&self, draft: Draft) -> Result<(&Shard, NewJob), EnqueueError> {
        let shards = &self.inner.shards;
        let (shard, id) = match draft.id.clone() {
            None => {
                let shard = shards.place();
                (shard, self.new_id(shard))
            }
            Some(id) => {
                let key = JobKey { topic: draft.topic.clone(), id };
                let shard = shards.owner(&key).ok_or_else(|| no_such_shard(&key.id))?;
                (shard, key.id)
            }
        };
        Ok((shard, new_job(draft, id)))
    }

    /// A new id for `shard`: a UUIDv7 of now (RFC 9562), random below the millisecond.
    fn new_id(&self, shard: &Shard) -> JobId {
        let millis = u64::try_from(self.now().0 / 1_000).unwrap_or(0);
        let random: [u8; 10] = rand::rng().random();
        let uuid = uuid::Builder::from_unix_timestamp_millis(millis, &random).into_uuid();
        JobId::server_made(shard.name(), uuid.as_u128())
    }

    async fn enqueue_share(
        &self,
        share: Share<'_>,
        asked: Option<Durability>,
    ) -> Vec<Result<Enqueued, EnqueueError>> {
        let Share { shard, jobs, .. } = share;
        let keys: Vec<JobKey> = jobs.iter().map(|job| job.key.clone()).collect();
        let reached = shard.store().durability();
        if let Some(asked) = asked.filter(|&asked| asked > reached) {
            let unsupported = EnqueueError::DurabilityUnsupported { asked, reached };
            return keys.iter().map(|_| Err(unsupported.clone())).collect();
        }
        match shard.enqueue(jobs).await {
            Ok(written) => {
                self.count_enqueued(&keys, &written);
                keys.into_iter().zip(written).map(|(key, w)| enqueued(shard, key, w)).collect()
            }
            Err(error) => keys.into_iter().map(|key| Err(failed(key, &error))).collect(),
        }
    }

    /// Counts a call's jobs; runs of the same topic and outcome, which is most calls, at once.
    fn count_enqueued(&self, keys: &[JobKey], written: &[store::Enqueue]) {
        let pairs: Vec<_> = keys.iter().zip(written).collect();
        for run in pairs.chunk_by(|a, b| a.0.topic == b.0.topic && a.1.outcome == b.1.outcome) {
            let (key, written) = run[0];
            let name = written.outcome.map_or("refused", Outcome::name);
            let count = run.len() as u64;
            self.inner.metrics.enqueued(key.topic.as_str(), name, count);
            if !matches!(written.outcome, None | Some(Outcome::Unchanged)) {
                self.inner.rates.enqueued(&key.topic, count, self.now());
            }
        }
    }
}

fn enqueued(shard: &Shard, key: JobKey, written: store::Enqueue) -> Result<Enqueued, EnqueueError> {
    let Some(outcome) = written.outcome else {
        return Err(EnqueueError::AlreadyExists { key, state: written.state });
    };
    Ok(Enqueued {
        id: key.id,
        outcome,
        due: written.due,
        durability: written.durability,
        shard: shard.name().clone(),
        state: written.state,
    })
}

fn new_job(draft: Draft, id: JobId) -> NewJob {
    // Who chose the id, or named the request, may repeat it.
    let repeatable = id.shard().is_none() || draft.request_id.is_some();
    NewJob {
        keep: draft.spec.keep(repeatable, limit::TOMBSTONE),
        key: JobKey { topic: draft.topic, id },
        spec: draft.spec,
        due: draft.due,
        priority: draft.priority,
        expire: draft.expire,
        on_conflict: draft.on_conflict,
        request: draft.request_id.as_deref().map(|id| xxh3_64(id.as_bytes())),
    }
}

fn share<'a>(shares: &mut Vec<Share<'a>>, shard: &'a Shard, index: usize, job: NewJob) {
    match shares.iter_mut().find(|share| share.shard.name() == shard.name()) {
        Some(share) => {
            share.indexes.push(index);
            share.jobs.push(job);
        }
        None => shares.push(Share { shard, indexes: vec![index], jobs: vec![job] }),
    }
}

fn no_such_shard(id: &JobId) -> EnqueueError {
    match id.shard() {
        Some(name) => EnqueueError::NoSuchShard(name),
        None => {
            let error = store::Error::Unavailable("no shard owns this id".into());
            EnqueueError::Store { error, id: id.clone() }
        }
    }
}

fn failed(key: JobKey, error: &store::Error) -> EnqueueError {
    EnqueueError::Store { error: error.clone(), id: key.id }
}
