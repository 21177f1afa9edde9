//! Calls of a store as the tests write them: a value per request with all its fields in one place, and a method per verb
//! that succeeds or fails as a whole. They go to [`Store::apply`] and [`Store::query_leases`], as those of the server do.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;

use ringq::domain::engine::{
    self, Adopt, CarriedHistory, Command, Enqueue, Extend, NotWrittenReason, OutageExpiry, Purge,
    Redrive, Settle, SettleAction, WritePrecondition,
};
use ringq::domain::{
    Durability, EnqueueOutcome, Job, JobId, JobKey, OnConflict, Payload, RetentionRule, Spec,
    State, StreamId, Time, TopicName, When,
};
use ringq::store::{
    Deleted, JobRequest, LeaseQuery, LeaseQueryResult, LeaseRef, LeaseRefusal, RequestResult,
    Result, RunningLease, SettleCommandReply, Store, all_or_worst_error, count_done,
};
use tokio::time::Instant;

/// A job to be written.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct TestJob {
    pub(crate) key: JobKey,
    pub(crate) spec: Spec,
    pub(crate) due: When,
    pub(crate) priority: Option<u8>,
    pub(crate) expire: Option<When>,
    pub(crate) retention: RetentionRule,
    pub(crate) on_conflict: OnConflict,
    pub(crate) request_code: Option<u64>,
    pub(crate) precondition: WritePrecondition,
    pub(crate) max_waiting: Option<u64>,
    pub(crate) max_bytes: Option<u64>,
    pub(crate) history: Option<Box<CarriedHistory>>,
    pub(crate) durability: Option<Durability>,
    pub(crate) deadline: Option<Instant>,
}

/// Result of an enqueue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct WriteResult {
    pub(crate) outcome: Option<EnqueueOutcome>,
    pub(crate) state: State,
    pub(crate) due: Time,
    pub(crate) durability: Durability,
    pub(crate) not_written: Option<NotWrittenReason>,
}

/// Deletes one job.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct JobDeletion {
    pub(crate) key: JobKey,
    pub(crate) finished: Option<Time>,
    pub(crate) deadline: Option<Instant>,
}

/// Deletes jobs of one topic that are in some states.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct PurgeBatch {
    pub(crate) topic: TopicName,
    pub(crate) ids: Vec<JobId>,
    pub(crate) purge: Purge,
    pub(crate) deadline: Option<Instant>,
}

/// Changes the due time or the priority of one job.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct JobReschedule {
    pub(crate) key: JobKey,
    pub(crate) due: Option<When>,
    pub(crate) priority: Option<u8>,
    pub(crate) deadline: Option<Instant>,
}

/// Result of a reschedule: the job, `None` if it does not exist, or the state that forbids it.
pub(crate) type RescheduleResult = std::result::Result<Option<Job>, State>;

/// Puts jobs back to READY.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct RedriveBatch {
    pub(crate) topic: TopicName,
    pub(crate) ids: Vec<JobId>,
    pub(crate) states: Vec<State>,
    pub(crate) spacing: Duration,
    pub(crate) delay: Duration,
    pub(crate) target: Option<TopicName>,
    pub(crate) ttl: Option<Duration>,
    pub(crate) dry_run: bool,
    pub(crate) deadline: Option<Instant>,
}

/// Result of a redrive.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct RedriveResult {
    pub(crate) redriven: u64,
    pub(crate) skipped: u64,
}

/// Moves leases to a stream, which answers for them from then on.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct AdoptBatch {
    pub(crate) to: StreamId,
    pub(crate) grace: Duration,
    pub(crate) items: Vec<AdoptItem>,
}

/// A lease to be adopted.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct AdoptItem {
    pub(crate) source: StreamLeaseRef,
    pub(crate) since: Option<Time>,
}

/// Ends one lease.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct LeaseSettlement {
    pub(crate) lease: LeaseRef,
    pub(crate) owner: u32,
    pub(crate) action: SettleAction,
    pub(crate) deadline: Option<Time>,
}

/// Moves the deadline of one lease to now plus a duration.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct LeaseExtension {
    pub(crate) lease: LeaseRef,
    pub(crate) duration: Option<Duration>,
    pub(crate) progress: Option<String>,
    pub(crate) checkpoint: Option<Payload>,
    pub(crate) outage_expiry: Option<OutageExpiry>,
    pub(crate) write_deadline: Option<Instant>,
}

/// A lease while this stream answers for it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct StreamLeaseRef {
    pub(crate) lease: LeaseRef,
    pub(crate) stream: StreamId,
}

/// The leases to undo.
#[derive(Clone, Debug)]
pub(crate) enum Unclaim {
    Leases(Vec<LeaseRef>),
    /// A part of the leases of a claim whose reply was lost; the first call only cancels the claim.
    Claim(LostClaim),
}

/// A claim whose reply was lost.
#[derive(Clone, Debug)]
pub(crate) struct LostClaim {
    pub(crate) nonce: u32,
    pub(crate) topics: Arc<[TopicName]>,
    /// End of the last part; `None`: the search has not begun.
    pub(crate) cursor: Option<String>,
}

/// Result of an unclaim.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct UnclaimResult {
    pub(crate) leases: u64,
    pub(crate) cursor: Option<String>,
}

// === impl TestJob ===

impl TestJob {
    pub(crate) fn new_job(self) -> engine::NewJob {
        let TestJob {
            key, spec, due, priority, expire, retention, on_conflict, request_code, ..
        } = self;
        let TestJob { precondition, max_waiting, max_bytes, history, .. } = self;
        let enqueue = Box::new(Enqueue {
            spec,
            due,
            priority,
            expire,
            retention,
            on_conflict,
            request_code,
            precondition,
            max_waiting,
            max_bytes,
            history,
        });
        engine::NewJob { key, enqueue }
    }
}

impl From<TestJob> for JobRequest {
    fn from(job: TestJob) -> JobRequest {
        let (durability, deadline) = (job.durability, job.deadline);
        JobRequest { durability, deadline, ..JobRequest::from(job.new_job()) }
    }
}

impl From<engine::NewJob> for TestJob {
    fn from(engine::NewJob { key, enqueue }: engine::NewJob) -> TestJob {
        let Enqueue { spec, due, priority, expire, retention, on_conflict, request_code, .. } =
            *enqueue;
        let Enqueue { precondition, max_waiting, max_bytes, history, .. } = *enqueue;
        TestJob {
            key,
            spec,
            due,
            priority,
            expire,
            retention,
            on_conflict,
            request_code,
            precondition,
            max_waiting,
            max_bytes,
            history,
            durability: None,
            deadline: None,
        }
    }
}

// === impl requests ===

impl From<JobKey> for JobDeletion {
    fn from(key: JobKey) -> JobDeletion {
        JobDeletion { key, finished: None, deadline: None }
    }
}

impl From<JobDeletion> for JobRequest {
    fn from(JobDeletion { key, finished, deadline }: JobDeletion) -> JobRequest {
        JobRequest { deadline, ..JobRequest::new(key, Command::Delete { finished }) }
    }
}

impl From<JobReschedule> for JobRequest {
    fn from(JobReschedule { key, due, priority, deadline }: JobReschedule) -> JobRequest {
        JobRequest { deadline, ..JobRequest::new(key, Command::Reschedule { due, priority }) }
    }
}

impl From<LeaseSettlement> for JobRequest {
    fn from(LeaseSettlement { lease, owner, action, deadline }: LeaseSettlement) -> JobRequest {
        let settle = Settle { token: lease.token, deadline, action };
        JobRequest { owner, ..JobRequest::new(lease.key, Command::Settle(settle)) }
    }
}

impl From<LeaseExtension> for JobRequest {
    fn from(extension: LeaseExtension) -> JobRequest {
        let LeaseExtension { lease: LeaseRef { key, token }, duration, progress, .. } = extension;
        let LeaseExtension { checkpoint, outage_expiry, write_deadline, .. } = extension;
        let extend = Extend { token, duration, progress, checkpoint, outage_expiry };
        JobRequest { deadline: write_deadline, ..JobRequest::new(key, Command::Extend(extend)) }
    }
}

impl From<StreamLeaseRef> for JobRequest {
    /// Detaches the lease.
    fn from(
        StreamLeaseRef { lease: LeaseRef { key, token }, stream }: StreamLeaseRef,
    ) -> JobRequest {
        JobRequest::new(key, Command::Detach { token, stream })
    }
}

impl From<RunningLease> for StreamLeaseRef {
    fn from(lease: RunningLease) -> StreamLeaseRef {
        StreamLeaseRef { lease: lease.lease_ref(), stream: lease.stream_id() }
    }
}

impl PurgeBatch {
    /// Returns one request per job.
    pub(crate) fn requests(&self) -> Vec<JobRequest> {
        let request = |id: &JobId| JobRequest {
            deadline: self.deadline,
            ..JobRequest::new(
                JobKey { topic: self.topic.clone(), id: id.clone() },
                Command::Purge(self.purge.clone()),
            )
        };
        self.ids.iter().map(request).collect()
    }
}

impl RedriveBatch {
    /// Returns one request per job. A repeated id is skipped.
    pub(crate) fn requests(&self) -> Vec<JobRequest> {
        let mut seen = HashSet::new();
        let ids = self.ids.iter().filter(|id| seen.insert(*id));
        let request = |id: &JobId| JobRequest {
            deadline: self.deadline,
            ..JobRequest::new(
                JobKey { topic: self.topic.clone(), id: id.clone() },
                Command::Redrive(self.command()),
            )
        };
        ids.map(request).collect()
    }

    fn command(&self) -> Redrive {
        Redrive {
            states: self.states.clone(),
            delay: self.delay,
            spacing: self.spacing,
            ttl: self.ttl,
            target: self.target.clone().filter(|target| *target != self.topic),
            dry_run: self.dry_run,
        }
    }
}

/// A call per verb.
pub(crate) trait StoreCalls {
    /// Applies requests, all or none of which must fail.
    async fn apply_all<I: Into<JobRequest>>(&self, items: Vec<I>) -> Result<Vec<RequestResult>>;
    async fn enqueue(&self, jobs: Vec<TestJob>) -> Result<Vec<WriteResult>>;
    async fn settle(&self, items: Vec<LeaseSettlement>)
    -> Result<LeaseResults<SettleCommandReply>>;
    async fn extend(&self, items: Vec<LeaseExtension>) -> Result<LeaseResults<Time>>;
    /// Returns the number of leases detached.
    async fn detach(&self, leases: Vec<StreamLeaseRef>) -> Result<u64>;
    /// Returns for each lease whether it moved.
    async fn adopt(&self, adopt: AdoptBatch) -> Result<Vec<bool>>;
    async fn delete(&self, items: Vec<JobDeletion>) -> Result<Vec<Option<Deleted>>>;
    async fn reschedule(&self, items: Vec<JobReschedule>) -> Result<Vec<RescheduleResult>>;
    async fn redrive(&self, redrive: RedriveBatch) -> Result<RedriveResult>;
    async fn unclaim(&self, what: Unclaim) -> Result<UnclaimResult>;
    async fn overdue_leases(&self, limit: usize) -> Result<LeaseQueryResult>;
    async fn orphaned_leases(&self, living: Vec<u32>) -> Result<Vec<RunningLease>>;
    async fn leases_of_streams(&self, streams: Vec<StreamId>) -> Result<Vec<RunningLease>>;
    async fn running_leases(&self, refs: Vec<LeaseRef>) -> Result<LeaseResults<RunningLease>>;
}

pub(crate) type LeaseResults<T> = Vec<std::result::Result<T, LeaseRefusal>>;

impl<S: Store + ?Sized> StoreCalls for S {
    async fn apply_all<I: Into<JobRequest>>(&self, items: Vec<I>) -> Result<Vec<RequestResult>> {
        all_or_worst_error(self.apply(items.into_iter().map(Into::into).collect()).await)
    }

    async fn enqueue(&self, jobs: Vec<TestJob>) -> Result<Vec<WriteResult>> {
        let written = self.apply_all(jobs).await?;
        let result = |applied: &RequestResult| {
            let engine::EnqueueCommandReply { outcome, state, due, not_written } =
                applied.enqueue_result();
            let (due, durability) = (due.at, applied.durability);
            WriteResult { outcome, state, due, durability, not_written }
        };
        Ok(written.iter().map(result).collect())
    }

    async fn settle(
        &self,
        items: Vec<LeaseSettlement>,
    ) -> Result<LeaseResults<SettleCommandReply>> {
        Ok(self.apply_all(items).await?.iter().map(RequestResult::settle_result).collect())
    }

    async fn extend(&self, items: Vec<LeaseExtension>) -> Result<LeaseResults<Time>> {
        Ok(self.apply_all(items).await?.iter().map(RequestResult::extend_result).collect())
    }

    async fn detach(&self, leases: Vec<StreamLeaseRef>) -> Result<u64> {
        let detached = self.apply_all(leases).await?;
        Ok(detached.iter().filter(|applied| applied.is_done()).count() as u64)
    }

    async fn adopt(&self, AdoptBatch { to, grace, items }: AdoptBatch) -> Result<Vec<bool>> {
        let adopt = |AdoptItem { source, since }| {
            let StreamLeaseRef { lease: LeaseRef { key, token }, stream: from } = source;
            JobRequest::new(key, Command::Adopt(Adopt { token, from, to, grace, since }))
        };
        let requests: Vec<JobRequest> = items.into_iter().map(adopt).collect();
        Ok(self.apply_all(requests).await?.iter().map(RequestResult::is_done).collect())
    }

    async fn delete(&self, items: Vec<JobDeletion>) -> Result<Vec<Option<Deleted>>> {
        let deleted = self.apply_all(items).await?;
        Ok(deleted.into_iter().map(RequestResult::into_delete_result).collect())
    }

    async fn reschedule(&self, items: Vec<JobReschedule>) -> Result<Vec<RescheduleResult>> {
        let keys: Vec<JobKey> = items.iter().map(|item| item.key.clone()).collect();
        let moved = keys.into_iter().zip(self.apply_all(items).await?);
        let shard = &self.identity().name;
        let result = |(key, applied): (JobKey, RequestResult)| {
            applied.reschedule_result().map(|_| applied.job(key, shard.clone()))
        };
        Ok(moved.map(result).collect())
    }

    async fn redrive(&self, redrive: RedriveBatch) -> Result<RedriveResult> {
        let redriven = count_done(self.apply(redrive.requests()).await)?;
        Ok(RedriveResult { redriven, skipped: redrive.ids.len() as u64 - redriven })
    }

    async fn unclaim(&self, what: Unclaim) -> Result<UnclaimResult> {
        let (refs, cursor) = match what {
            Unclaim::Leases(refs) => (refs, None),
            Unclaim::Claim(LostClaim { nonce, topics, cursor: None }) => {
                self.cancel_lost_claim(nonce).await?;
                let cursor = (!topics.is_empty()).then(String::new);
                return Ok(UnclaimResult { leases: 0, cursor });
            }
            Unclaim::Claim(LostClaim { nonce, topics, cursor: Some(cursor) }) => {
                let query = LeaseQuery::OfLostClaim { nonce, topics, cursor };
                let found = self.query_leases(query).await?;
                (found.leases.iter().map(RunningLease::lease_ref).collect(), found.cursor)
            }
        };
        let unclaim = |LeaseRef { key, token }| JobRequest::new(key, Command::Unclaim(token));
        let leases = count_done(self.apply(refs.into_iter().map(unclaim).collect()).await)?;
        Ok(UnclaimResult { leases, cursor })
    }

    async fn overdue_leases(&self, limit: usize) -> Result<LeaseQueryResult> {
        self.query_leases(LeaseQuery::Overdue { limit }).await
    }

    async fn orphaned_leases(&self, living: Vec<u32>) -> Result<Vec<RunningLease>> {
        let query = LeaseQuery::Orphaned { live_owners: living };
        Ok(self.query_leases(query).await?.leases)
    }

    async fn leases_of_streams(&self, streams: Vec<StreamId>) -> Result<Vec<RunningLease>> {
        Ok(self.query_leases(LeaseQuery::OfStreams(streams)).await?.leases)
    }

    async fn running_leases(&self, refs: Vec<LeaseRef>) -> Result<LeaseResults<RunningLease>> {
        let found = self.query_leases(LeaseQuery::ByRef(refs.clone())).await?;
        Ok(found.into_results(&refs))
    }
}
