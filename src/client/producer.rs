//! Enqueues: what many callers have waiting goes out in one call.

use std::sync::{Arc, OnceLock};
use std::time::{Duration, SystemTime};

use futures::StreamExt as _;
use futures::stream::FuturesUnordered;
use prost::Message as _;
use tokio::sync::{mpsc, oneshot};
use tokio::time::Instant;

use super::{Client, Error};
use crate::backoff::Backoff;
use crate::pb::{
    BatchEnqueueRequest, ConflictPolicy, Durability, EnqueueOutcome, EnqueueResult, JobSpec,
    JobState,
};

/// Jobs that wait for a place in a call; callers beyond wait for a place here.
const QUEUE_JOBS: usize = 4096;
/// Jobs per call; the contract takes 1000.
const CALL_JOBS: usize = 500;
/// Bytes per call, about; the contract takes 4 MiB. A larger job goes alone.
const CALL_BYTES: usize = 1 << 20;
/// Calls under way: one that the server works on and one on the wire, in both directions.
const CALLS: usize = 4;
/// How long a job is repeated unless told otherwise.
const REPEAT_FOR: Duration = Duration::from_secs(30);
/// The pauses between repeats.
const PAUSE: (Duration, Duration) = (Duration::from_millis(100), Duration::from_secs(2));

/// Enqueues jobs. Clones share one queue: whatever waits while a call is under way goes out with the
/// next one, so that a thousand tasks that enqueue one job each are as fast as batches.
///
/// **Repeats.** A job that the server could not take for the moment (`UNAVAILABLE`) is sent again with
/// growing, jittered pauses for [`Producer::repeat_for`], if that cannot double it: when it has an id,
/// or when it is known that it was not written. Otherwise the error says
/// [`Error::outcome_unknown`].
#[derive(Clone, Debug)]
pub struct Producer {
    client: Client,
    terms: Terms,
    /// Made at the first enqueue, on the runtime of that caller.
    queue: Arc<OnceLock<mpsc::Sender<Waiting>>>,
}

/// What the server made of a job.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Enqueued {
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

#[derive(Clone, Copy, Debug)]
struct Terms {
    on_conflict: ConflictPolicy,
    durability: Durability,
    repeat_for: Duration,
}

/// A job and who waits for its answer.
struct Waiting {
    job: JobSpec,
    answer: oneshot::Sender<Answer>,
}

type Answer = Result<Enqueued, Error>;

// === impl Producer ===

impl Producer {
    pub(super) fn new(client: Client) -> Producer {
        let terms = Terms {
            on_conflict: ConflictPolicy::Unspecified,
            durability: Durability::Unspecified,
            repeat_for: REPEAT_FOR,
        };
        Producer { client, terms, queue: Arc::default() }
    }

    /// What happens when an id is taken. Default: `Keep`.
    #[must_use]
    pub fn on_conflict(self, policy: ConflictPolicy) -> Producer {
        self.with(|terms| terms.on_conflict = policy)
    }

    /// The durability that each job must reach. Default: the server's.
    #[must_use]
    pub fn durability(self, durability: Durability) -> Producer {
        self.with(|terms| terms.durability = durability)
    }

    /// How long a job is repeated. Default 30 s; zero: never.
    #[must_use]
    pub fn repeat_for(self, duration: Duration) -> Producer {
        self.with(|terms| terms.repeat_for = duration)
    }

    fn with(mut self, change: impl FnOnce(&mut Terms)) -> Producer {
        change(&mut self.terms);
        self.queue = Arc::default();
        self
    }

    /// Enqueues one job and waits for the answer. If the future is dropped, the job may be written
    /// all the same.
    ///
    /// # Errors
    /// What the server refused, or could not do in time; see [`Producer`] for repeats.
    ///
    /// # Panics
    /// Outside of a tokio runtime.
    pub async fn enqueue(&self, job: JobSpec) -> Result<Enqueued, Error> {
        let queue = self.queue.get_or_init(|| spawn(self.client.clone(), self.terms));
        let (answer, answered) = oneshot::channel();
        if queue.send(Waiting { job, answer }).await.is_err() {
            return Err(gone());
        }
        answered.await.unwrap_or_else(|_| Err(gone()))
    }

    /// Enqueues jobs, up to 1000 and 4 MiB in one call; the answers are in the order of the jobs. No
    /// two of them are one transaction: some may fail while others are written.
    pub async fn enqueue_batch(&self, jobs: Vec<JobSpec>) -> Vec<Result<Enqueued, Error>> {
        send(&self.client, self.terms, jobs).await
    }
}

/// The runtime on which the queue was served has ended.
fn gone() -> Error {
    Error::from(tonic::Status::unavailable("the runtime that sent this producer's jobs has ended"))
}

fn spawn(client: Client, terms: Terms) -> mpsc::Sender<Waiting> {
    let (queue, waiting) = mpsc::channel(QUEUE_JOBS);
    tokio::spawn(serve(waiting, client, terms));
    queue
}

/// Sends what waits, a few calls at once, until all producers are gone and all is answered.
async fn serve(mut waiting: mpsc::Receiver<Waiting>, client: Client, terms: Terms) {
    let mut calls = FuturesUnordered::new();
    let mut next = Vec::new();
    loop {
        tokio::select! {
            Some(()) = calls.next() => {}
            taken = waiting.recv_many(&mut next, CALL_JOBS), if calls.len() < CALLS => {
                if taken == 0 {
                    break;
                }
                for group in split(std::mem::take(&mut next)) {
                    calls.push(call(client.clone(), terms, group));
                }
            }
        }
    }
    while calls.next().await.is_some() {}
}

/// Groups small enough for one call each.
fn split(waiting: Vec<Waiting>) -> Vec<Vec<Waiting>> {
    let mut groups = vec![Vec::new()];
    let mut bytes = 0;
    for item in waiting {
        let size = item.job.encoded_len();
        if bytes > 0 && bytes + size > CALL_BYTES {
            groups.push(Vec::new());
            bytes = 0;
        }
        bytes += size;
        groups.last_mut().expect("it begins with one").push(item);
    }
    groups
}

async fn call(client: Client, terms: Terms, group: Vec<Waiting>) {
    let (jobs, callers): (Vec<_>, Vec<_>) =
        group.into_iter().map(|item| (item.job, item.answer)).unzip();
    for (caller, answer) in callers.into_iter().zip(send(&client, terms, jobs).await) {
        // A caller that has gone away does not want to know.
        let _ = caller.send(answer);
    }
}

/// One answer for each job, after as many repeats as are safe and allowed.
async fn send(client: &Client, terms: Terms, jobs: Vec<JobSpec>) -> Vec<Answer> {
    let until = Instant::now() + terms.repeat_for;
    let mut backoff = Backoff::new(PAUSE.0, PAUSE.1);
    let mut answers: Vec<Option<Answer>> = jobs.iter().map(|_| None).collect();
    let mut open: Vec<(usize, JobSpec)> = jobs.into_iter().enumerate().collect();
    loop {
        let got = once(client, terms, open.iter().map(|(_, job)| job.clone()).collect()).await;
        let mut pause = backoff.pause();
        let mut again = Vec::new();
        for ((index, job), answer) in open.into_iter().zip(got) {
            match &answer {
                Err(error) if may_repeat(&job, error) && Instant::now() + pause < until => {
                    pause = pause.max(error.retry_after().unwrap_or_default());
                    answers[index] = Some(answer);
                    again.push((index, job));
                }
                _ => answers[index] = Some(answer),
            }
        }
        if again.is_empty() {
            return answers
                .into_iter()
                .map(|answer| answer.unwrap_or_else(|| Err(gone())))
                .collect();
        }
        open = again;
        tokio::time::sleep(pause).await;
    }
}

/// Whether sending it again cannot make two of it, and may help.
fn may_repeat(job: &JobSpec, error: &Error) -> bool {
    error.is_unavailable() && (!job.id.is_empty() || !error.outcome_unknown())
}

/// One call.
async fn once(client: &Client, terms: Terms, jobs: Vec<JobSpec>) -> Vec<Answer> {
    let count = jobs.len();
    let request = BatchEnqueueRequest {
        jobs,
        on_conflict: terms.on_conflict.into(),
        durability: terms.durability.into(),
        ..Default::default()
    };
    match client.queue().batch_enqueue(request).await {
        Ok(answer) => answer.into_inner().results.into_iter().map(self::answer).collect(),
        Err(status) => vec![Err(Error::from(status)); count],
    }
}

/// What one row says.
fn answer(result: EnqueueResult) -> Answer {
    if let Some(error) = result.error {
        return Err(error.into());
    }
    Ok(Enqueued {
        outcome: result.outcome(),
        state: result.state(),
        durability: result.durability(),
        due_time: result.due_time.and_then(|time| SystemTime::try_from(time).ok()),
        id: result.id,
        shard: result.shard,
    })
}
