//! Runs a handler for each job: takes jobs within its credit, extends their leases while they run, settles each with
//! the outcome of its handler.
//!
//! ```text
//!   source ──deliveries──▶ session ──▶ handlers (tasks, `concurrency` of them)
//!   (stream, reconnect)      │ ▲            │ outcome
//!                     leases ┘ └──answers── settler (acks, nacks, extends in batches)
//! ```
//! The task [`session`] owns the state and makes all decisions; [`job_stream`], [`pending_jobs`], [`leases`] and
//! [`settler`] are its parts. It ends when it is stopped, has begun `max_jobs`, or was idle for `idle_exit`, and then
//! only after every held job is settled.

mod delivery;
mod job_stream;
mod leases;
mod pending_jobs;
mod session;
mod settler;

use std::collections::HashMap;
use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

pub use delivery::{Delivery, Outcome};

use tokio::time::{Instant, sleep_until};
use tonic::Code;

use super::limits::CREDIT_MAX;
use super::{Client, Error};
use crate::pb;
use session::WorkerSession;

/// Default timeout of an Ack, Nack or Extend.
const CALL_TIMEOUT: Duration = Duration::from_secs(10);
/// Longest pause that a server can ask for: the end of a lease, or of an outage, is seen after it.
const RETRY_AFTER_MAX: Duration = Duration::from_secs(30);

/// A worker and its options.
#[derive(Clone)]
#[must_use = "a worker does nothing until it is run"]
pub struct Worker {
    client: Client,
    topics: Vec<String>,
    topic_weights: HashMap<String, i32>,
    id: String,
    concurrency: usize,
    batch: usize,
    unbatched: Option<UnbatchedFn>,
    weight: Option<(usize, WeightFn)>,
    prefetch: Option<usize>,
    lease: Option<Duration>,
    max_jobs: Option<u64>,
    idle_exit: Option<Duration>,
    call_timeout: Duration,
    grace: Option<Duration>,
    waits_for_rights: bool,
}

/// Counts of the jobs of a worker.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Summary {
    /// Jobs that were completed.
    pub acked: u64,
    /// Jobs that failed and are retried, or dead if that was their last attempt.
    pub failed: u64,
    /// Jobs released, not counted as attempts.
    pub released: u64,
    /// Jobs dead-lettered by the handler.
    pub dead_lettered: u64,
    /// Jobs whose outcome was not stored: revoked while they were held, because they were deleted or their lease
    /// could not be extended, or because no shard stored the settle before their lease ended. Those that still exist
    /// run again. Their outcome may be stored all the same, if only the answer was lost.
    pub unsettled: u64,
}

/// Selects jobs that share no batch.
type UnbatchedFn = Arc<dyn Fn(&pb::Delivery) -> bool + Send + Sync>;
/// Returns the weight of a job in a batch.
type WeightFn = Arc<dyn Fn(&pb::Delivery) -> usize + Send + Sync>;
/// A handler, without its type.
type Handler = Arc<dyn Fn(Vec<Delivery>) -> HandlerFuture + Send + Sync>;
type HandlerFuture = Pin<Box<dyn Future<Output = Outcome> + Send>>;

// === impl Worker ===

impl Worker {
    /// Creates a worker for these topics, by exact name or by a prefix and a final `*`, served in turns. It runs one
    /// job at a time.
    pub fn new<T: Into<String>>(client: Client, topics: impl IntoIterator<Item = T>) -> Worker {
        Worker {
            client,
            topics: topics.into_iter().map(Into::into).collect(),
            topic_weights: HashMap::new(),
            id: String::new(),
            concurrency: 1,
            batch: 1,
            unbatched: None,
            weight: None,
            prefetch: None,
            lease: None,
            max_jobs: None,
            idle_exit: None,
            call_timeout: CALL_TIMEOUT,
            grace: None,
            waits_for_rights: false,
        }
    }

    /// Sets the turns per round of a topic, 1 to 100, named as in [`Worker::new`]. Default: 1 for each topic. Topics with
    /// the weights 5, 3 and 2 get the worker's jobs 5:3:2 while all three have some; one without jobs leaves its turns to
    /// the others. Each topic that matches a pattern has the weight of the pattern.
    pub fn topic_weight(mut self, topic: impl Into<String>, turns: u32) -> Worker {
        self.topic_weights.insert(topic.into(), i32::try_from(turns).unwrap_or(i32::MAX));
        self
    }

    /// Sets a name that operators see, stable while the process lives, at most 128 bytes. Default: none.
    pub fn id(mut self, id: impl Into<String>) -> Worker {
        self.id = id.into();
        self
    }

    /// Sets the number of handlers that run at once, 1 to 10,000. Default 1.
    pub fn concurrency(mut self, handlers: usize) -> Worker {
        self.concurrency = handlers.clamp(1, CREDIT_MAX);
        self
    }

    /// Sets the number of jobs held beyond those that run, so that a handler that ends has the next one at once.
    /// Default: as many as run. With 0 a slow job never keeps another one waiting behind it.
    pub fn prefetch(mut self, jobs: usize) -> Worker {
        self.prefetch = Some(jobs);
        self
    }

    /// Selects the jobs that [`Worker::run_batches`] passes to its handler one by one. Default: none.
    pub fn unbatched(
        mut self,
        alone: impl Fn(&pb::Delivery) -> bool + Send + Sync + 'static,
    ) -> Worker {
        self.unbatched = Some(Arc::new(alone));
        self
    }

    /// Limits the batches of [`Worker::run_batches`] by weight as well as by number: the jobs of one weigh at most
    /// `most` together. `weigh` returns the weight of a job, at least 1. A heavier job goes alone. Default: no limit.
    pub fn batch_weight(
        mut self,
        most: usize,
        weigh: impl Fn(&pb::Delivery) -> usize + Send + Sync + 'static,
    ) -> Worker {
        self.weight = Some((most, Arc::new(weigh)));
        self
    }

    /// Sets the lease of jobs that set none themselves, 1 s to 24 h. It is extended while the handler runs, so it
    /// only limits how soon other workers take over after this one died. Default: 30 s.
    pub fn lease(mut self, lease: Duration) -> Worker {
        self.lease = Some(lease);
        self
    }

    /// Limits the number of jobs to begin. Default: no limit.
    pub fn max_jobs(mut self, jobs: u64) -> Worker {
        self.max_jobs = Some(jobs);
        self
    }

    /// Ends the worker after this time without a job while connected. Time without a connection does not count,
    /// because jobs may be waiting then. Default: never.
    pub fn idle_exit(mut self, idle: Duration) -> Worker {
        self.idle_exit = Some(idle);
        self
    }

    /// Sets the timeout of each Ack, Nack and Extend. One without an answer until then is repeated, which is safe.
    /// Default: 10 s.
    pub fn call_timeout(mut self, timeout: Duration) -> Worker {
        self.call_timeout = timeout;
        self
    }

    /// Limits the time for which handlers may go on after the worker was stopped. Then their futures are dropped and
    /// their jobs released. Default: no limit.
    pub fn grace(mut self, grace: Duration) -> Worker {
        self.grace = Some(grace);
        self
    }

    /// Keeps trying, with long pauses, while the server rejects the stream: an operator may give the worker its rights
    /// back. Default: false, and the worker ends.
    pub fn wait_for_rights(mut self, waits: bool) -> Worker {
        self.waits_for_rights = waits;
        self
    }

    /// Runs `handler` for each job until `stop` is ready, and begun jobs to their end.
    ///
    /// The outcome of the handler settles the job: see [`Outcome`]; a `Result<(), E>` is one, with the error as the
    /// reason to retry. A panic is a failure like any other, and so is an outcome that the server rejects, such as a
    /// bad follow-up job. If a lease is revoked, because the job was deleted or the server was unreachable until the
    /// lease expired, the handler's future is dropped where it waits.
    ///
    /// Once `stop` is ready no new job begins, waiting jobs are released uncounted, and running jobs are finished and
    /// settled. To stop at once, drop the future: the server releases the leases after `orphan_grace` (5 s).
    ///
    /// A broken connection is made again with growing, jittered pauses, for as long as it takes; meanwhile handlers
    /// go on, within their leases. Such events are logged by `tracing`.
    ///
    /// # Errors
    /// Fails if the server rejects the stream for good: a bad topic name, missing rights.
    pub async fn run<F, R>(
        self,
        handler: F,
        stop: impl Future<Output = ()>,
    ) -> Result<Summary, Error>
    where
        F: Fn(Delivery) -> R + Send + Sync + 'static,
        R: Future<Output: Into<Outcome>> + Send + 'static,
    {
        let one = move |mut jobs: Vec<Delivery>| handler(jobs.remove(0));
        Worker { batch: 1, ..self }.start(erase_handler(one), stop).await
    }

    /// Runs `handler` as [`Worker::run`] does, with up to `batch` jobs of one topic that are here at the moment; it
    /// never waits for more. Its outcome is the outcome of each.
    ///
    /// # Errors
    /// Fails as [`Worker::run`] does.
    pub async fn run_batches<F, R>(
        mut self,
        batch: usize,
        handler: F,
        stop: impl Future<Output = ()>,
    ) -> Result<Summary, Error>
    where
        F: Fn(Vec<Delivery>) -> R + Send + Sync + 'static,
        R: Future<Output: Into<Outcome>> + Send + 'static,
    {
        self.batch = batch.clamp(1, CREDIT_MAX);
        self.start(erase_handler(handler), stop).await
    }

    async fn start(
        self,
        handler: Handler,
        stop: impl Future<Output = ()>,
    ) -> Result<Summary, Error> {
        WorkerSession::new(self, handler).run(stop).await
    }

    /// Returns the maximum number of held jobs: running and waiting.
    fn credit(&self) -> usize {
        let running = self.concurrency.saturating_mul(self.batch);
        running.saturating_add(self.prefetch.unwrap_or(running)).min(CREDIT_MAX)
    }
}

impl fmt::Debug for Worker {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Worker")
            .field("client", &self.client)
            .field("topics", &self.topics)
            .field("topic_weights", &self.topic_weights)
            .field("id", &self.id)
            .field("concurrency", &self.concurrency)
            .field("prefetch", &self.prefetch)
            .field("lease", &self.lease)
            .field("max_jobs", &self.max_jobs)
            .field("idle_exit", &self.idle_exit)
            .finish_non_exhaustive()
    }
}

fn erase_handler<F, R>(handler: F) -> Handler
where
    F: Fn(Vec<Delivery>) -> R + Send + Sync + 'static,
    R: Future<Output: Into<Outcome>> + Send + 'static,
{
    Arc::new(move |jobs| {
        let running = handler(jobs);
        Box::pin(async move { running.await.into() })
    })
}

/// Returns whether another attempt would be rejected the same way. A bare code proves nothing: a proxy that has no
/// way to the server at the moment answers 404 or 403, which is UNIMPLEMENTED or PERMISSION_DENIED here. Only the
/// server itself gives reasons. A token that the server does not know any more may be rotated soon.
fn is_permanent(error: &Error) -> bool {
    let code = error.code();
    !error.reason().is_empty() && is_refusal(code) && code != Code::Unauthenticated
}

/// Returns whether a call failed neither by ringq nor by an outage: one item, or its size, may be the cause, as behind a
/// proxy that limits bodies.
fn is_unexplained(error: &Error) -> bool {
    let passes = [Code::Unavailable, Code::ResourceExhausted, Code::DeadlineExceeded];
    error.reason().is_empty() && !passes.contains(&error.code())
}

fn is_refusal(code: Code) -> bool {
    matches!(
        code,
        Code::InvalidArgument
            | Code::Unauthenticated
            | Code::PermissionDenied
            | Code::Unimplemented
            | Code::FailedPrecondition
    )
}

/// Returns the pause that the server asks for before a repeat.
fn asked_pause(error: &Error) -> Duration {
    error.retry_after().unwrap_or_default().min(RETRY_AFTER_MAX)
}

/// Sleeps until `time`; for ever if there is none.
async fn sleep_until_some(time: Option<Instant>) {
    match time {
        Some(time) => sleep_until(time).await,
        None => std::future::pending().await,
    }
}

// === impl Summary ===

impl fmt::Display for Summary {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} acked", self.acked)?;
        let rest = [
            (self.failed, "failed"),
            (self.released, "released"),
            (self.dead_lettered, "dead-lettered"),
            (self.unsettled, "not settled"),
        ];
        rest.iter()
            .filter(|(count, _)| *count > 0)
            .try_for_each(|(n, what)| write!(f, ", {n} {what}"))
    }
}
