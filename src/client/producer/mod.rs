//! Enqueues jobs: the waiting jobs of many callers go out in one call.

mod batch;
mod queue;

use std::sync::{Arc, OnceLock};
use std::time::{Duration, SystemTime};

use futures::StreamExt as _;
use futures::stream;
use tokio::sync::{mpsc, oneshot};
use tonic::Code;

use super::{Client, Error};
use crate::pb::{ConflictPolicy, Durability, EnqueueOutcome, JobSpec, JobState};
pub(crate) use batch::OnRetry;
use queue::QueuedJob;

/// Default of [`Producer::repeat_for`].
const REPEAT_FOR: Duration = Duration::from_secs(30);
/// Maximum number of calls in flight for one batch of the caller.
const BATCH_CALLS: usize = 4;

/// Enqueues jobs. Clones share one queue: jobs that wait while a call is in flight go out with the next one, so that
/// a thousand tasks that enqueue one job each are as fast as batches.
///
/// **Retries.** A job that the server could not accept for the moment (`UNAVAILABLE`) is sent again with growing,
/// jittered pauses for [`Producer::repeat_for`], if that cannot create it twice:
/// - while no call can have written it;
/// - once a call may have written it, only if it has an id, and only while that id is surely kept: for the job's
///   retention, or 60 s if it sets none, from the first call that may have written it. A retry of a written job
///   returns `UNCHANGED`, under any conflict policy;
/// - without an id, with the one that the server made and returned in such an answer, unless the policy changes jobs.
///   A retry of a written job then returns `CREATED`.
///
/// Otherwise the error has [`Error::outcome_unknown`], also if only an earlier call than the last one may have
/// written the job, and contains the id that makes a retry safe, if there is one (`error.metadata("id")`).
///
/// Two cases are not visible to the producer: a topic may have a retention below 60 s, which applies to jobs that set
/// none, and a deleted job frees its id at once. Give jobs a retention, or [`Producer::repeat_for`] a shorter time,
/// where that matters.
#[derive(Clone, Debug)]
pub struct Producer {
    client: Client,
    options: ProducerOptions,
    /// The queue, made at the first enqueue, on the runtime of that caller.
    queue: Arc<OnceLock<mpsc::Sender<QueuedJob>>>,
}

/// Result of an enqueue.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EnqueueReply {
    /// Id of the job, also where the server made it.
    pub id: String,
    /// Outcome under the conflict policy.
    pub outcome: EnqueueOutcome,
    /// Time at which the job becomes ready.
    pub due_time: Option<SystemTime>,
    /// State of the job found or made.
    pub state: JobState,
    /// Durability that the write has reached.
    pub durability: Durability,
    /// Shard that stores the job.
    pub shard: String,
}

#[derive(Clone, Debug)]
struct ProducerOptions {
    on_conflict: ConflictPolicy,
    durability: Durability,
    repeat_for: Duration,
    /// Request id of all jobs with an id; `None`: each call under a policy that changes jobs has its own.
    request_id: Option<Arc<str>>,
}

type ProducerResult = Result<EnqueueReply, Error>;

// === impl Producer ===

impl Producer {
    pub(super) fn new(client: Client) -> Producer {
        let terms = ProducerOptions {
            on_conflict: ConflictPolicy::Unspecified,
            durability: Durability::Unspecified,
            repeat_for: REPEAT_FOR,
            request_id: None,
        };
        Producer { client, options: terms, queue: Arc::default() }
    }

    /// Sets the policy for an id that is taken. Default: `Keep`.
    #[must_use]
    pub fn on_conflict(self, policy: ConflictPolicy) -> Producer {
        self.update_options(|terms| terms.on_conflict = policy)
    }

    /// Sets the durability that each job must reach. Default: the server's.
    #[must_use]
    pub fn durability(self, durability: Durability) -> Producer {
        self.update_options(|terms| terms.durability = durability)
    }

    /// Sets how long a job is retried, and so the timeout of one call for it, within 5 to 30 s. Default 30 s; zero:
    /// it is never retried, and a call may take 30 s.
    #[must_use]
    pub fn repeat_for(self, duration: Duration) -> Producer {
        self.update_options(|terms| terms.repeat_for = duration)
    }

    /// Sets the request id. All enqueues under it are one change of each id, also by other producers and programs: a
    /// later one returns the stored result, under any policy, while the record lives. It has no effect on jobs
    /// without an id.
    #[cfg_attr(not(feature = "cli"), expect(dead_code, reason = "only the CLI uses it"))]
    #[must_use]
    pub(crate) fn request_id(self, id: &str) -> Producer {
        self.update_options(|terms| terms.request_id = Some(id.into()))
    }

    fn update_options(mut self, change: impl FnOnce(&mut ProducerOptions)) -> Producer {
        change(&mut self.options);
        self.queue = Arc::default();
        self
    }

    /// Enqueues one job and waits for the answer. If the future is dropped before the job is sent, it is never sent;
    /// after that it may be written all the same.
    ///
    /// # Errors
    /// Fails if the server rejects the job, or cannot write it in time; see [`Producer`] for retries.
    ///
    /// # Panics
    /// Panics outside of a tokio runtime.
    pub async fn enqueue(&self, job: JobSpec) -> Result<EnqueueReply, Error> {
        let queue =
            self.queue.get_or_init(|| queue::spawn(self.client.clone(), self.options.clone()));
        let (caller, answer) = oneshot::channel();
        if queue.send(QueuedJob { job, caller }).await.is_err() {
            return Err(queue_closed_error(false));
        }
        answer.await.unwrap_or_else(|_| Err(queue_closed_error(true)))
    }

    /// Enqueues any number of jobs, in as many calls as needed; the answers are in the order of the jobs. The jobs
    /// are not one transaction: some may fail while others are written.
    pub async fn enqueue_batch(&self, jobs: Vec<JobSpec>) -> Vec<Result<EnqueueReply, Error>> {
        self.enqueue_batch_with(jobs, &|_| ()).await
    }

    /// Enqueues jobs as [`Producer::enqueue_batch`] does; `on_retry` is called before jobs are sent again.
    pub(crate) async fn enqueue_batch_with(
        &self,
        jobs: Vec<JobSpec>,
        on_retry: OnRetry<'_>,
    ) -> Vec<Result<EnqueueReply, Error>> {
        let mut answers: Vec<Option<ProducerResult>> = jobs.iter().map(|_| None).collect();
        let groups = batch::split(&self.options, jobs.into_iter().enumerate());
        // Of two changes to one id the later one must win.
        let calls = if self.options.retry_may_change_jobs() { 1 } else { BATCH_CALLS };
        let mut ended = stream::iter(groups)
            .map(|group| group.send_all(&self.client, &self.options, on_retry))
            .buffer_unordered(calls);
        while let Some(group) = ended.next().await {
            for (index, answer) in group {
                answers[index] = Some(answer);
            }
        }
        answers
            .into_iter()
            .map(|answer| answer.unwrap_or_else(|| Err(queue_closed_error(true))))
            .collect()
    }
}

/// Returns the error for a queue whose runtime has ended.
fn queue_closed_error(reached: bool) -> Error {
    let text = "the tokio runtime of this producer's queue has ended";
    Error::no_response(Code::Unavailable, text, reached)
}
