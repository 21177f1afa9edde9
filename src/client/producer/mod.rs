//! Enqueues: what many callers have waiting goes out in one call.

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

/// How long a job is repeated unless told otherwise.
const REPEAT_FOR: Duration = Duration::from_secs(30);
/// Calls under way for one batch.
const BATCH_CALLS: usize = 4;

/// Enqueues jobs. Clones share one queue: whatever waits while a call is under way goes out with the
/// next one, so that a thousand tasks that enqueue one job each are as fast as batches.
///
/// **Repeats.** A job that the server could not take for the moment (`UNAVAILABLE`) is sent again with
/// growing, jittered pauses for [`Producer::repeat_for`], if that cannot double it:
/// - as long as it is known that it was not written;
/// - once it may have been written, only if it has an id, and no longer than that id is surely kept:
///   for the job's retention, or 60 s if it names none, from the first call that may have written it.
///   A repeat of what had been written is answered `UNCHANGED`, under any conflict policy;
/// - without an id, with the one that the server has made and named in such an answer, unless the
///   policy changes jobs. What had been written is then answered `CREATED`.
///
/// Otherwise the error says [`Error::outcome_unknown`], also if only an earlier call than the last one
/// may have written the job, and names the id that makes a repeat safe, if there is one
/// (`error.metadata("id")`).
///
/// What the producer cannot know: a topic may have a retention that is shorter than 60 s and holds for
/// jobs that name none, and a job that somebody deletes frees its id at once. Give jobs a retention, or
/// [`Producer::repeat_for`] a shorter time, where that matters.
#[derive(Clone, Debug)]
pub struct Producer {
    client: Client,
    options: ProducerOptions,
    /// Made at the first enqueue, on the runtime of that caller.
    queue: Arc<OnceLock<mpsc::Sender<QueuedJob>>>,
}

/// What the server made of a job.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EnqueueReply {
    /// The id, also where the server made it.
    pub id: String,
    /// What became of it under the conflict policy.
    pub outcome: EnqueueOutcome,
    /// When it becomes ready.
    pub due_time: Option<SystemTime>,
    /// The state of the job found or made.
    pub state: JobState,
    /// How safely it is stored.
    pub durability: Durability,
    /// The shard that has it.
    pub shard: String,
}

#[derive(Clone, Debug)]
struct ProducerOptions {
    on_conflict: ConflictPolicy,
    durability: Durability,
    repeat_for: Duration,
    /// Of all jobs with an id; None: each call under a policy that changes jobs has its own.
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

    /// What happens when an id is taken. Default: `Keep`.
    #[must_use]
    pub fn on_conflict(self, policy: ConflictPolicy) -> Producer {
        self.update_options(|terms| terms.on_conflict = policy)
    }

    /// The durability that each job must reach. Default: the server's.
    #[must_use]
    pub fn durability(self, durability: Durability) -> Producer {
        self.update_options(|terms| terms.durability = durability)
    }

    /// How long a job is repeated, and so how long one call for it takes at most, within 5 to 30 s. Default 30 s;
    /// zero: it is never repeated, and a call may take 30 s.
    #[must_use]
    pub fn repeat_for(self, duration: Duration) -> Producer {
        self.update_options(|terms| terms.repeat_for = duration)
    }

    /// What is sent under it is one change of each id, also by other producers and programs: whoever
    /// comes later finds it done, under any policy, while the record lives. Jobs without an id have
    /// none of that.
    #[cfg_attr(not(feature = "cli"), expect(dead_code, reason = "for the commands"))]
    #[must_use]
    pub(crate) fn request_id(self, id: &str) -> Producer {
        self.update_options(|terms| terms.request_id = Some(id.into()))
    }

    fn update_options(mut self, change: impl FnOnce(&mut ProducerOptions)) -> Producer {
        change(&mut self.options);
        self.queue = Arc::default();
        self
    }

    /// Enqueues one job and waits for the answer. If the future is dropped before the job is sent, it
    /// never is; after that it may be written all the same.
    ///
    /// # Errors
    /// What the server refused, or could not do in time; see [`Producer`] for repeats.
    ///
    /// # Panics
    /// Outside of a tokio runtime.
    pub async fn enqueue(&self, job: JobSpec) -> Result<EnqueueReply, Error> {
        let queue =
            self.queue.get_or_init(|| queue::spawn(self.client.clone(), self.options.clone()));
        let (caller, answer) = oneshot::channel();
        if queue.send(QueuedJob { job, caller }).await.is_err() {
            return Err(queue_closed_error(false));
        }
        answer.await.unwrap_or_else(|_| Err(queue_closed_error(true)))
    }

    /// Enqueues jobs, any number of them, in as many calls as that takes; the answers are in the
    /// order of the jobs. No two of them are one transaction: some may fail while others are written.
    pub async fn enqueue_batch(&self, jobs: Vec<JobSpec>) -> Vec<Result<EnqueueReply, Error>> {
        self.enqueue_batch_with(jobs, &|_| ()).await
    }

    /// The same; `on_retry` is called before jobs are sent again.
    pub(crate) async fn enqueue_batch_with(
        &self,
        jobs: Vec<JobSpec>,
        on_retry: OnRetry<'_>,
    ) -> Vec<Result<EnqueueReply, Error>> {
        let mut answers: Vec<Option<ProducerResult>> = jobs.iter().map(|_| None).collect();
        let groups = batch::split(&self.options, jobs.into_iter().enumerate());
        // Of two changes to one id the later one is to stay.
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

/// The runtime on which the queue was served has ended.
fn queue_closed_error(reached: bool) -> Error {
    let text = "the runtime that sent this producer's jobs has ended";
    Error::no_response(Code::Unavailable, text, reached)
}
