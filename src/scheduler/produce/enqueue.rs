//! Enqueue: gives each job an id and a shard, and writes it there, or elsewhere.

use futures::future::join_all;
use rand::Rng as _;
use tokio::time::Instant;

use crate::domain::engine::{Enqueue, NewJob};
use crate::domain::{
    Durability, EnqueueOutcome, JobId, JobKey, OnConflict, RetentionRule, ShardName, Spec, State,
    Time, TopicName, TopicSettings, When, limit,
};
use crate::scheduler::locate::Location;
use crate::scheduler::request_hash;
use crate::shards::{RUN_MAX, Shard, ShardError};
use crate::store::{NotWrittenReason, WritePrecondition};

use super::Producer;
use super::shard_batch::ShardBatch;

/// A job as a producer requests it, checked but without a shard.
#[derive(Clone, Debug, PartialEq)]
pub struct Draft {
    /// Topic of the job.
    pub topic: TopicName,
    /// Id that the client chose, or that follows from its request id; `None`: the server makes one.
    pub id: Option<JobId>,
    /// Request id, by which a repeat is recognized.
    pub request_id: Option<String>,
    /// Lasting part of the job: payload, headers, retry, lease and retention.
    pub spec: Spec,
    /// Due time of the first run.
    pub due: When,
    /// Priority from 0 to 9, if given.
    pub priority: Option<u8>,
    /// Expire time: a job that is not running by then becomes EXPIRED.
    pub expire: Option<When>,
    /// Policy for an id that is taken.
    pub on_conflict: OnConflict,
}

/// A job that was accepted.
#[derive(Clone, Debug, PartialEq)]
pub struct AcceptedJob {
    /// Id of the job.
    pub id: JobId,
    /// Outcome of the enqueue.
    pub outcome: EnqueueOutcome,
    /// Time when the job becomes ready.
    pub due: Time,
    /// Durability that the write has reached.
    pub durability: Durability,
    /// Shard that has the job.
    pub shard: ShardName,
    /// State of the job, found or made.
    pub state: State,
}

/// Reason why a job was not accepted.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum EnqueueError {
    /// The id is taken and the caller chose REJECT, or it is taken by another job of the same request id.
    #[error("job {key} exists already")]
    AlreadyExists {
        /// Existing job.
        key: JobKey,
        /// State of the existing job.
        state: State,
        /// True if the request id came with another job before.
        other_job: bool,
    },
    /// The shard cannot reach the requested durability; nothing was written.
    #[error("shard {shard} can reach durability {reached} at most; {asked} was requested")]
    DurabilityUnsupported {
        /// Name of the shard; the first one, if several were tried.
        shard: ShardName,
        /// Requested durability.
        asked: Durability,
        /// Highest durability of the shard.
        reached: Durability,
    },
    /// The requested durability was not confirmed in time; the job may have been written.
    #[error("durability {asked} was not confirmed in time; the job may have been written")]
    DurabilityNotReached {
        /// Requested durability.
        asked: Durability,
        /// Id for a repeat, which cannot double the job, and waits again.
        id: JobId,
    },
    /// Nothing was written under an id that a server made, and no repeat with it will write anything.
    #[error("nothing was written under the id of job {key}: {why}")]
    NotWritten {
        /// Key of the job.
        key: JobKey,
        /// Shard that the id names.
        shard: ShardName,
        /// Reason why nothing was written.
        why: NotWrittenReason,
    },
    /// The id names a shard that this server does not have.
    #[error("no shard named {0} is configured here")]
    NoSuchShard(ShardName),
    /// The topic has no room for the job; nothing was written.
    #[error("topic {} has no room for the job", .0.topic)]
    TopicFull(FullTopic),
    /// No shard takes new jobs.
    #[error("no shard takes new jobs")]
    NoActiveShard,
    /// The shard failed.
    #[error("{error}")]
    Store {
        /// Error of the shard.
        error: ShardError,
        /// Id for a repeat, which cannot double the job. `None` where nothing was written under an id that the server
        /// made: a repeat without it may find another shard.
        id: Option<JobId>,
    },
}

/// Terms under which the jobs of a call are written.
#[derive(Clone, Copy, Debug)]
pub struct WriteTerms {
    /// Durability that is awaited for as long as a shard waits for it.
    pub(in crate::scheduler) asked: Option<Durability>,
    /// Time until which a write whose outcome is unknown is retried, if it can be, for 30 s at most.
    pub(in crate::scheduler) until: Option<Instant>,
    /// Precondition for jobs with ids that servers made.
    named: WritePrecondition,
}

/// Results of the drafts of a call, by index; `None`: not known yet.
pub(in crate::scheduler) type EnqueueResults = Vec<Option<Result<AcceptedJob, EnqueueError>>>;

/// A topic without room for a job.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FullTopic {
    /// The topic.
    pub topic: TopicName,
    /// True if its waiting jobs are limited.
    pub has_max_jobs: bool,
    /// True if its bytes are limited.
    pub has_max_stored_bytes: bool,
    /// Number of bytes that it may have on the shard, if the job alone has more: it never fits.
    pub max_job_bytes: Option<u64>,
}

// === impl Producer ===

impl Producer {
    /// Writes `drafts`; each result is for the draft of its index. Shards are written to at once and independently:
    /// what one refuses does not affect the others.
    pub async fn enqueue(
        &self,
        mut drafts: Vec<Draft>,
        terms: WriteTerms,
    ) -> Vec<Result<AcceptedJob, EnqueueError>> {
        let mut results: EnqueueResults = Vec::new();
        results.resize_with(drafts.len(), || None);
        self.keep_repeats_unchanged(&mut drafts, &mut results).await;
        let runs = self.route(drafts, &mut results, terms).await;
        for (indexes, answers) in join_all(runs.into_iter().map(|run| self.write(run))).await {
            for (index, answer) in indexes.into_iter().zip(answers) {
                results[index] = Some(answer);
            }
        }
        results.into_iter().flatten().collect()
    }

    fn new_job(&self, draft: Draft, id: JobId, made: WritePrecondition) -> NewJob {
        let documents = self.inner.documents.any();
        let defaults = documents.as_ref().and_then(|documents| documents.settings(&draft.topic));
        new_job(draft, id, made, defaults)
    }

    /// Gives a draft without an id a new one of `shard`.
    pub(in crate::scheduler) fn with_new_id(&self, shard: &Shard, draft: Draft) -> NewJob {
        self.new_job(draft, self.new_id(shard), WritePrecondition::Anything)
    }

    /// Gives drafts their ids and shards: those with ids in one batch per shard, the others in batches of a bounded
    /// size, so that a small call stays together and a large one is spread. Drafts whose shard is not configured here
    /// get their result at once.
    async fn route(
        &self,
        drafts: Vec<Draft>,
        results: &mut EnqueueResults,
        terms: WriteTerms,
    ) -> Vec<ShardBatch> {
        let drafts = (0..).zip(drafts).filter(|(index, _): &(usize, _)| results[*index].is_none());
        let (named, unnamed): (Vec<_>, Vec<_>) = drafts.partition(|(_, draft)| draft.id.is_some());
        let mut runs = self.route_named(named, results, terms).await;
        let shards = &self.inner.shards;
        let mut unnamed = unnamed.into_iter().peekable();
        while unnamed.peek().is_some() {
            let next: Vec<_> = unnamed.by_ref().take(RUN_MAX).collect();
            match shards.pick_for_new_jobs(next.len(), &[]) {
                Some(shard) => {
                    let mut run = ShardBatch::new(shard.clone(), true, terms, next.len());
                    for (index, draft) in next {
                        run.push(index, self.with_new_id(shard, draft));
                    }
                    runs.push(run);
                }
                None => next.iter().for_each(|(index, _)| {
                    results[*index] = Some(Err(EnqueueError::NoActiveShard))
                }),
            }
        }
        runs
    }

    async fn route_named(
        &self,
        drafts: Vec<(usize, Draft)>,
        results: &mut EnqueueResults,
        terms: WriteTerms,
    ) -> Vec<ShardBatch> {
        let key =
            |draft: &Draft| Some(JobKey { topic: draft.topic.clone(), id: draft.id.clone()? });
        let keys: Vec<JobKey> = drafts.iter().filter_map(|(_, draft)| key(draft)).collect();
        let locations = self.locate(&keys).await;
        let mut runs = Vec::new();
        for (((index, draft), JobKey { id, .. }), location) in
            drafts.into_iter().zip(keys).zip(locations)
        {
            let error = match location {
                // A server that does not know all shards takes jobs with ids, too: a change of the configuration
                // reaches the servers one after the other.
                Location::On(shard) | Location::Elsewhere { owner: Some(shard), .. } => {
                    add(&mut runs, shard, terms, (index, self.new_job(draft, id, terms.named)));
                    continue;
                }
                Location::Blocked(_, error) => EnqueueError::Store { error, id: Some(id) },
                Location::Elsewhere { owner: None, error } if id.shard().is_some() => {
                    EnqueueError::Store { error, id: Some(id) }
                }
                Location::Elsewhere { .. } | Location::NoOwner => match id.shard() {
                    Some(name) => EnqueueError::NoSuchShard(name),
                    None => EnqueueError::NoActiveShard,
                },
            };
            results[index] = Some(Err(error));
        }
        runs
    }

    /// Makes a new id for `shard`: a UUIDv7 of now (RFC 9562), random below the millisecond.
    pub(in crate::scheduler) fn new_id(&self, shard: &Shard) -> JobId {
        let millis = u64::try_from(self.now().0 / 1_000).unwrap_or(0);
        let random: [u8; 10] = rand::rng().random();
        let uuid = uuid::Builder::from_unix_timestamp_millis(millis, &random).into_uuid();
        JobId::from_uuid(shard.name(), uuid.as_u128())
    }
}

// === impl WriteTerms ===

impl WriteTerms {
    /// Returns the terms of a call of a producer.
    #[must_use]
    pub fn of_call(asked: Option<Durability>, until: Option<Instant>) -> WriteTerms {
        WriteTerms { asked, until, named: WritePrecondition::SameJob }
    }

    /// Returns the terms of follow-ups with ids. A follow-up with the server-made id of its own job makes another job of
    /// it, in another topic.
    pub(in crate::scheduler) fn of_follow_ups() -> WriteTerms {
        WriteTerms { asked: None, until: None, named: WritePrecondition::Anything }
    }

    /// Returns whether the limits of topics hold for the jobs. Not for follow-ups, whose Ack must not fail for them.
    pub(in crate::scheduler) fn are_limited(self) -> bool {
        self.named == WritePrecondition::SameJob
    }
}

// === impl FullTopic ===

impl From<NewJob> for FullTopic {
    /// Returns the topic that had no room for this job.
    fn from(job: NewJob) -> FullTopic {
        let NewJob { key, enqueue: job } = job;
        FullTopic {
            has_max_jobs: job.max_waiting.is_some(),
            has_max_stored_bytes: job.max_bytes.is_some(),
            max_job_bytes: job.max_bytes.filter(|&max| job.spec.bytes() as u64 > max),
            topic: key.topic,
        }
    }
}

/// Builds the job to write, with the defaults of its topic; `made`: precondition if a server made the id.
fn new_job(
    draft: Draft,
    id: JobId,
    made: WritePrecondition,
    defaults: Option<&TopicSettings>,
) -> NewJob {
    // A client that chose the id, or gave a request id, may repeat the call; a follow-up under the id of its job is
    // repeated with the Ack.
    let is_follow_up = draft.id.is_some() && made == WritePrecondition::Anything;
    let repeatable = id.shard().is_none() || draft.request_id.is_some() || is_follow_up;
    let prior = if id.shard().is_some() { made } else { WritePrecondition::Anything };
    let retention = draft.spec.retention.or(defaults.and_then(|topic| topic.retention));
    // A reschedule without a priority keeps that of the job.
    let moves = draft.on_conflict == OnConflict::Reschedule;
    let priority = defaults.and_then(|topic| topic.priority).filter(|_| !moves);
    let enqueue = Enqueue {
        precondition: prior,
        max_waiting: None,
        max_bytes: None,
        history: None,
        // Without the defaults: a repeat is recognized after they have changed, too.
        request_code: request_hash::request_code(&draft),
        retention: RetentionRule::of(retention, repeatable, limit::TOMBSTONE),
        spec: draft.spec,
        due: draft.due,
        priority: draft.priority.or(priority),
        expire: draft.expire,
        on_conflict: draft.on_conflict,
    };
    NewJob { key: JobKey { topic: draft.topic, id }, enqueue: Box::new(enqueue) }
}

/// Adds a job with an id of its own to the batch of its shard.
fn add(
    runs: &mut Vec<ShardBatch>,
    shard: &Shard,
    terms: WriteTerms,
    (index, job): (usize, NewJob),
) {
    match runs.iter_mut().find(|run| run.shard.name() == shard.name()) {
        Some(run) => run.push(index, job),
        None => {
            let mut run = ShardBatch::new(shard.clone(), false, terms, 1);
            run.push(index, job);
            runs.push(run);
        }
    }
}
