//! The seam: one trait, [`Store`], and the values that cross it. A store is one shard. It knows
//! nothing of rings, other shards, streams or policies: what follows from an event is decided in
//! [`crate::domain`] before the call; a store checks the precondition (state, lease token), moves,
//! and says what it found.
//!
//! # Invariants that every store holds
//! - Only the store's clock decides what is due, expired or to be forgotten. What is past its time
//!   reads as such at once, whether or not [`Store::prune`] has come by.
//! - A call of at most [`limit::CALL_JOBS_MAX`] items and [`limit::CALL_BYTES_MAX`] bytes is atomic: another caller sees
//!   all of it or nothing. A larger one may be done in parts, and [`Error::Unknown`] says so when one of them fails.
//! - Per topic there is one order: priority (9 first), then due time, then arrival.
//! - A job has one live lease at most; a settle with another token changes nothing.
//! - Results have the order and length of the items asked for.

pub mod codec;
mod error;
mod events;
mod hint;
pub mod redis;
pub mod sqlite;

use std::sync::Arc;
use std::time::Duration;

use futures::future::BoxFuture;
use tokio::sync::broadcast;

use crate::domain::lifecycle::{LeaseEnd, Record};
use crate::domain::ring::ShardState;
use crate::domain::rings::Records;
use crate::domain::{
    Durability, Job, JobId, JobKey, Keep, OnConflict, Outcome, Payload, ShardName, Spec, State,
    Time, Token, TopicName, When, limit,
};

pub use error::Error;
pub use events::{About, Event, Events};
pub use hint::{Hint, Revoked};

/// What a call answers.
pub type Result<T> = std::result::Result<T, Error>;
/// A call under way. Dropping it does not undo it: the outcome is then unknown.
pub type Reply<'a, T> = BoxFuture<'a, Result<T>>;

/// One shard.
pub trait Store: Send + Sync {
    /// The shard's name, as written on it.
    fn name(&self) -> &ShardName;

    /// Where it is, without credentials. Known also while it does not answer.
    fn address(&self) -> String;

    /// What a write reaches, as last observed. Cheap.
    fn reach(&self) -> Reach;

    /// What is known, without asking the shard, to keep it from working. Cheap.
    fn trouble(&self) -> Option<Trouble> {
        None
    }

    /// Writes jobs; each answer says what was found and made, and what that has reached: less than a job
    /// asks for where it is not confirmed in time, which undoes nothing.
    fn enqueue(&self, jobs: Vec<NewJob>) -> Reply<'_, Vec<Enqueue>>;

    /// Leases ready jobs to those who ask, in the order of each topic.
    fn claim(&self, claim: Claim) -> Reply<'_, Claims>;

    /// Undoes leases that reached nobody: back to the old place, nothing counted.
    /// Answers how many it found.
    fn unclaim(&self, what: Unclaim) -> Reply<'_, u64>;

    /// Reads running leases, to decide what follows from them.
    fn leases(&self, refs: Vec<LeaseRef>) -> Reply<'_, Vec<std::result::Result<Lease, Refused>>>;

    /// Ends leases as decided. Repeating a settle that was applied is success while the record lives,
    /// whatever became of the job: it may have been claimed again or a later generation may have taken
    /// its place, but at most [`ATTEMPTS_KEPT`](crate::domain::limit::ATTEMPTS_KEPT) leases ago.
    fn settle(&self, items: Vec<Settle>) -> Reply<'_, Vec<std::result::Result<Settled, Refused>>>;

    /// Moves deadlines of running leases.
    fn extend(&self, items: Vec<Extend>) -> Reply<'_, Vec<std::result::Result<Time, Refused>>>;

    /// Reads jobs; with `full`, payload, result and attempts too.
    fn get(&self, keys: Vec<JobKey>, full: bool) -> Reply<'_, Vec<Option<Job>>>;

    /// Cancels waiting and running jobs, forgets finished ones.
    fn delete(&self, keys: Vec<JobKey>) -> Reply<'_, Vec<Option<Deleted>>>;

    /// Moves waiting and dead jobs; the job after it, or the state that refuses it.
    fn reschedule(&self, items: Vec<Reschedule>) -> Reply<'_, Vec<Rescheduled>>;

    /// Puts terminal jobs back with fresh counters; at most
    /// [`CALL_JOBS_MAX`](crate::domain::limit::CALL_JOBS_MAX) a call.
    fn redrive(&self, redrive: Redrive) -> Reply<'_, Redriven>;

    /// Lets leases outlive their stream: its replica's end does not give them back any more.
    /// Answers how many it found.
    fn detach(&self, refs: Vec<LeaseRef>) -> Reply<'_, u64>;

    /// Reads leases whose deadline has passed, at most `limit`, and when the next one passes.
    fn reap(&self, limit: usize) -> Reply<'_, Reaped>;

    /// Reads leases that carry a grace and belong to streams of other replicas than these.
    fn orphans(&self, living: Vec<u32>) -> Reply<'_, Vec<Lease>>;

    /// Turns what has passed its expire time EXPIRED and forgets what was kept long enough, at most
    /// `limit` jobs, and says when there is more to do.
    fn prune(&self, limit: usize) -> Reply<'_, Pruned>;

    /// Jobs of a topic in one state, by due time.
    fn list(&self, list: List) -> Reply<'_, Page>;

    /// Topics whose names begin with `prefix` and sort after `after`, in order.
    fn topics(
        &self,
        prefix: String,
        after: Option<TopicName>,
        limit: usize,
    ) -> Reply<'_, Vec<Topic>>;

    /// A part of the ids of a topic: from where the last part ended, at least `limit` of them looked at. One
    /// that is there all the time is in some part, or in several.
    fn ids(&self, topic: TopicName, from: Option<String>, limit: usize) -> Reply<'_, Ids>;

    /// Numbers of topics; `None` where there is no such topic.
    fn stats(&self, topics: Vec<TopicName>) -> Reply<'_, Vec<Option<Stats>>>;

    /// The shard about itself.
    fn info(&self) -> Reply<'_, Info>;

    /// Hints about what happens on the shard. A receiver that lags must act as after [`Event::Missed`].
    fn events(&self, about: About) -> broadcast::Receiver<Event>;

    /// Whether other replicas may use the shard too. What they do is heard of by hints, and hints can be lost:
    /// whoever relies on them asks again now and then.
    fn is_shared(&self) -> bool;

    /// Shows that a replica lives, and reads what all replicas of the shard share.
    fn beat(&self, beat: Beat) -> Reply<'_, Census>;

    /// Says for all replicas whether the shard takes new jobs; those that are there hear
    /// [`Event::Configured`].
    fn set_state(&self, state: ShardState) -> Reply<'_, ()>;

    /// Finishes what was accepted and lets go of the shard. Calls after it are refused.
    fn close(&self) -> BoxFuture<'_, ()>;
}

/// What keeps a shard from working, and what to do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Trouble {
    /// It was not reached yet, or must not be used as it is.
    Down(String),
    /// Jobs would not be safe on it: it takes no new ones, and goes on with those that it has.
    NoJobs(String),
}

/// A job to be written.
#[derive(Clone, Debug, PartialEq)]
pub struct NewJob {
    /// Its identity.
    pub key: JobKey,
    /// The lasting part of what is asked for.
    pub spec: Spec,
    /// When it becomes ready.
    pub due: When,
    /// 0 to 9; absent is 0, or unchanged under [`OnConflict::Reschedule`].
    pub priority: Option<u8>,
    /// Not running by then: EXPIRED. Never [`When::Now`].
    pub expire: Option<When>,
    /// What stays of it once it is finished.
    pub keep: Keep,
    /// What to do when the id is taken.
    pub on_conflict: OnConflict,
    /// Hash of the request id; the last one applied makes a call a repeat.
    pub request: Option<u64>,
    /// What may lie under the id.
    pub prior: Prior,
    /// What to wait for once it is written, also where nothing has to be: what is there may have been
    /// written a moment ago. `None`: nothing is waited for.
    pub durability: Option<Durability>,
}

/// What may lie under the id of a job that is to be written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Prior {
    /// Nothing: a server has made the id for this very call, which was not made before. A store need not look.
    Nothing,
    /// Anything, which [`OnConflict`] decides about.
    Anything,
    /// The job itself: it may have been written before, under an id that a server made. One that has succeeded within
    /// [`TOMBSTONE`](limit::TOMBSTONE) and left nothing is unchanged, and not written again.
    Itself,
}

/// How safe a write is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Reach {
    /// Every write, when it is answered.
    pub plain: Durability,
    /// One that asks for it: at least `plain`.
    pub most: Durability,
}

/// What an enqueue found or made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Enqueue {
    /// What it did; `None`: the id is taken and the policy is [`OnConflict::Reject`].
    pub outcome: Option<Outcome>,
    /// The state found (unchanged, deferred, refused) or made.
    pub state: State,
    /// When the job (or, deferred, its next generation) becomes ready.
    pub due: Time,
    /// What the write has reached.
    pub durability: Durability,
}

/// One claim: all of a replica's hungry streams together.
#[derive(Clone, Debug)]
pub struct Claim {
    /// Upper half of every token of this claim; random.
    pub nonce: u32,
    /// Nonce of the replica.
    pub owner: u32,
    /// One per topic.
    pub asks: Vec<Ask>,
}

/// What is asked of one topic.
#[derive(Clone, Debug)]
pub struct Ask {
    /// The topic.
    pub topic: TopicName,
    /// Who gets what is found; jobs go round from taker to taker. Nobody: only what there is is asked.
    pub takers: Vec<Taker>,
}

/// One stream that can take jobs.
#[derive(Clone, Debug)]
pub struct Taker {
    /// The stream, unique within the replica's life.
    pub stream: u32,
    /// Who works there.
    pub worker_id: Arc<str>,
    /// Lease of jobs that name none.
    pub lease: Duration,
    /// Give-back after the stream breaks; `None`: the lease outlives the call (a Pull).
    pub grace: Option<Duration>,
    /// Jobs it can take.
    pub jobs: u32,
    /// Bytes of payload and headers it can take.
    pub bytes: u64,
    /// Whether the first job may exceed `bytes`, because the stream holds nothing.
    pub oversize: bool,
}

/// What a claim answers, in the order of its asks.
#[derive(Clone, Debug)]
pub struct Claims {
    /// The store's time of the claim.
    pub now: Time,
    /// One per ask.
    pub topics: Vec<Claimed>,
}

/// What was found in one topic.
#[derive(Clone, Debug)]
pub struct Claimed {
    /// Leases by taker, in the order of [`Ask::takers`].
    pub leased: Vec<Vec<Leased>>,
    /// What to expect of the topic next.
    pub rest: Rest,
}

/// What a claim left in a topic.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rest {
    /// More is ready, or was: what has expired since may count as long as no claim has met it.
    More,
    /// Nothing before that time.
    Until(Time),
    /// Nothing at all.
    Nothing,
}

/// A job leased to a taker.
#[derive(Clone, Debug)]
pub struct Leased {
    /// The job.
    pub key: JobKey,
    /// Proof of the lease.
    pub token: Token,
    /// When it ends.
    pub deadline: Time,
    /// What was asked for.
    pub spec: Spec,
    /// Its priority.
    pub priority: u8,
    /// Counted failures so far.
    pub failures: u32,
    /// Finished hand-overs so far, this one not included.
    pub deliveries: u32,
    /// When it became ready.
    pub due: Time,
    /// When it was enqueued.
    pub create_time: Time,
    /// Of the last failed attempt.
    pub last_error: String,
}

/// Names one lease.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LeaseRef {
    /// The job.
    pub key: JobKey,
    /// Proof of the lease.
    pub token: Token,
}

/// Which leases to undo.
#[derive(Clone, Debug)]
pub enum Unclaim {
    /// These.
    Leases(Vec<LeaseRef>),
    /// All of the claim with this nonce, whose reply was lost.
    Nonce(u32),
}

/// A running lease as the store has it.
#[derive(Clone, Debug, PartialEq)]
pub struct Lease {
    /// The job.
    pub key: JobKey,
    /// Proof of the lease.
    pub token: Token,
    /// When it ends.
    pub deadline: Time,
    /// When it was last extended.
    pub extend_time: Option<Time>,
    /// Nonce of the replica that leased it.
    pub owner: u32,
    /// The stream that got it.
    pub stream: u32,
    /// Give-back after the stream breaks.
    pub grace: Option<Duration>,
    /// What deciding needs.
    pub record: Record,
    /// The store's time of reading.
    pub now: Time,
}

/// Ends one lease.
#[derive(Clone, Debug, PartialEq)]
pub struct Settle {
    /// Which.
    pub lease: LeaseRef,
    /// Nonce of the replica whose stream has it, as the receipt or the lease says. That of the caller: nobody
    /// else has to hear of it.
    pub owner: u32,
    /// How.
    pub end: End,
    /// Only while the deadline is still this one (a reap, or the give-back of a broken stream).
    pub deadline: Option<Time>,
}

/// How a lease ends.
#[derive(Clone, Debug, PartialEq)]
pub enum End {
    /// The job is done.
    Ack {
        /// Kept as long as the record is.
        result: Option<Payload>,
        /// Written together with the ack; server-made ids of this shard only.
        follow_ups: Vec<NewJob>,
    },
    /// Decided by [`lease_end`](crate::domain::lifecycle::lease_end).
    Decided {
        /// The decision.
        end: LeaseEnd,
        /// How long a dead letter is kept.
        dead_retention: Duration,
    },
}

/// A lease that has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Settled {
    /// The settle was applied before and this is a repeat, which changes nothing.
    pub repeated: bool,
    /// The state that the job is in now; SUCCEEDED also when no record is left.
    pub state: State,
}

/// Why a lease could not be settled or extended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Refused {
    /// No such job: deleted, or finished and forgotten.
    #[error("the job is gone: deleted, or finished without retention")]
    NotFound,
    /// Another lease, or none.
    #[error("the lease is gone: it ran out or was revoked")]
    Stale,
}

/// Moves the deadline of one lease to now plus a duration.
#[derive(Clone, Debug, PartialEq)]
pub struct Extend {
    /// Which.
    pub lease: LeaseRef,
    /// From now; absent: the lease's own duration.
    pub duration: Option<Duration>,
    /// Note for people; absent keeps the last one.
    pub progress: Option<String>,
}

/// What a delete found.
#[derive(Clone, Debug, PartialEq)]
pub struct Deleted {
    /// The state before.
    pub previous: State,
    /// Whose lease was revoked: owner, stream and token.
    pub revoked: Option<(u32, u32, Token)>,
}

/// Moves one job.
#[derive(Clone, Debug, PartialEq)]
pub struct Reschedule {
    /// The job.
    pub key: JobKey,
    /// The new due time; absent keeps it.
    pub due: Option<When>,
    /// The new priority; absent keeps it.
    pub priority: Option<u8>,
}

/// What a reschedule answers: the job, nothing when there is none, or the state that refuses it.
pub type Rescheduled = std::result::Result<Option<Job>, State>;

/// Puts jobs back.
#[derive(Clone, Debug, PartialEq)]
pub struct Redrive {
    /// Their topic.
    pub topic: TopicName,
    /// Which: in any terminal state that still has its payload.
    pub ids: Vec<JobId>,
    /// Time between the due times of two jobs; zero: all at once.
    pub spacing: Duration,
    /// Due time of the first, from now.
    pub delay: Duration,
    /// Move them to this topic, on this shard.
    pub target: Option<TopicName>,
    /// Only count.
    pub dry_run: bool,
}

/// What a redrive did.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Redriven {
    /// Put back.
    pub redriven: u64,
    /// Left alone: no such job, not terminal, a tombstone, or the id is taken in the target.
    pub skipped: u64,
}

/// Expired leases.
#[derive(Clone, Debug, Default)]
pub struct Reaped {
    /// At most as many as asked for.
    pub leases: Vec<Lease>,
    /// When the next deadline passes that is not among them; now or earlier: there are more.
    pub next: Option<Time>,
}

/// What a prune did.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Pruned {
    /// Jobs expired or forgotten.
    pub pruned: u64,
    /// When there is more to do.
    pub next: Option<Time>,
}

/// Asks for a page of jobs.
#[derive(Clone, Debug)]
pub struct List {
    /// Their topic.
    pub topic: TopicName,
    /// Their state.
    pub state: State,
    /// With payload, result and attempts.
    pub full: bool,
    /// At most so many.
    pub limit: usize,
    /// Where the last page ended.
    pub after: Option<Cursor>,
}

/// A place in a list: behind the job with this due time and sequence.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cursor {
    /// The job's due time.
    pub due: Time,
    /// Its sequence on the shard.
    pub sequence: i64,
}

/// A page of jobs.
#[derive(Clone, Debug, Default)]
pub struct Page {
    /// In the order of due times.
    pub jobs: Vec<Job>,
    /// Where the next page begins; `None` at the end.
    pub next: Option<Cursor>,
}

/// A part of the ids of a topic.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Ids {
    /// In no order.
    pub ids: Vec<JobId>,
    /// Where the next part begins, in the store's own words; `None` at the end.
    pub next: Option<String>,
}

/// A topic as the shard knows it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Topic {
    /// Its name.
    pub name: TopicName,
    /// When it came to be.
    pub create_time: Time,
}

/// Numbers of a topic on one shard.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Stats {
    /// When the topic came to be.
    pub create_time: Time,
    /// Jobs whose due time is ahead and that never failed.
    pub scheduled: u64,
    /// Jobs that wait for a worker.
    pub ready: u64,
    /// Leased jobs.
    pub running: u64,
    /// Failed jobs whose next attempt is ahead.
    pub backoff: u64,
    /// Dead letters.
    pub dead: u64,
    /// Age of the job that has been ready longest.
    pub oldest_ready: Option<Duration>,
    /// Jobs written since the topic exists.
    pub enqueued_total: u64,
    /// Jobs acknowledged since the topic exists.
    pub succeeded_total: u64,
    /// Jobs that died since the topic exists.
    pub dead_total: u64,
}

/// A shard about itself.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Info {
    /// `sqlite` or `redis`.
    pub kind: &'static str,
    /// Whether it takes new jobs; `None` until somebody said so.
    pub state: Option<ShardState>,
    /// Records.
    pub jobs: u64,
    /// The records by what they are.
    pub content: Content,
    /// Bytes that it takes, on disk or in memory.
    pub bytes: u64,
}

/// What lies on a shard, and how long it stays if nobody works on it. Records are counted as they lie there:
/// what is past its time counts until it is pruned, so that a shard that cannot be written tells it too.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Content {
    /// Jobs whose due time is ahead and that never failed.
    pub scheduled: u64,
    /// Jobs that wait for a worker.
    pub ready: u64,
    /// Leased jobs.
    pub running: u64,
    /// Failed jobs whose next attempt is ahead.
    pub backoff: u64,
    /// Dead letters.
    pub dead: u64,
    /// Other finished jobs whose record is kept.
    pub finished: u64,
    /// The latest due time that is ahead.
    pub latest_due: Option<Time>,
    /// When the last dead or finished job is forgotten; a little later than that where looking closer
    /// would be work without bounds.
    pub latest_forget: Option<Time>,
}

// === impl Content ===

impl Content {
    /// All records.
    #[must_use]
    pub fn jobs(&self) -> u64 {
        self.scheduled + self.ready + self.running + self.backoff + self.dead + self.finished
    }
}

/// A replica's sign of life, and what it brings along.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Beat {
    /// Nonce of the replica.
    pub owner: u32,
    /// Fingerprint of the ring that it serves.
    pub ring: u64,
    /// Written where no state is yet.
    pub state: ShardState,
    /// Written where what is there has a lower version.
    pub rings: Records,
    /// Replicas that somebody has met leases of; one that the shard does not know is taken to have shown
    /// itself now.
    pub met: Vec<u32>,
    /// Replicas to be forgotten, because nothing of them is left.
    pub gone: Vec<u32>,
}

/// What all replicas of a shard share.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Census {
    /// The store's time.
    pub now: Time,
    /// Whether the shard takes new jobs.
    pub state: ShardState,
    /// What the shard knows of rings.
    pub rings: Records,
    /// Who has shown itself, the caller included. Where nobody else can be there, the caller alone.
    pub replicas: Vec<Sign>,
}

/// The last sign of life of a replica.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sign {
    /// Its nonce.
    pub owner: u32,
    /// Fingerprint of the ring that it serves; 0 when it has not said so itself.
    pub ring: u64,
    /// When, on the store's clock.
    pub at: Time,
}

// === impl Sign ===

impl Sign {
    /// Whether the replica lives, at that time of the store.
    #[must_use]
    pub fn is_living(&self, now: Time) -> bool {
        now.since(self.at) < limit::REPLICA_SILENCE_MAX
    }
}
