//! Queue that the clones of a producer share.

use std::collections::VecDeque;
use std::time::Duration;

use futures::StreamExt as _;
use futures::stream::FuturesUnordered;
use tokio::sync::{mpsc, oneshot};

use super::super::Client;
use super::batch::{BatchOutcome, CALL_JOBS, ProducerBatch, split};
use super::{ProducerOptions, ProducerResult};
use crate::pb::JobSpec;

/// Capacity of the queue; further callers wait for a place.
const QUEUE_JOBS: usize = 4096;
/// Maximum number of jobs in calls and in pauses before retries; at the limit no more are taken from the queue.
const SENT_JOBS_MAX: usize = 4096;
/// Maximum number of calls in flight: one that the server works on and one on the wire, in both directions.
const CALLS_MAX: usize = 4;

/// A job and the caller that waits for its answer.
pub(super) struct QueuedJob {
    pub(super) job: JobSpec,
    pub(super) caller: ReplySender,
}

type ReplySender = oneshot::Sender<ProducerResult>;

/// Starts a new queue on the runtime of the caller; it runs until the last sender is gone.
pub(super) fn spawn(client: Client, terms: ProducerOptions) -> mpsc::Sender<QueuedJob> {
    let (queue, waiting) = mpsc::channel(QUEUE_JOBS);
    tokio::spawn(serve(waiting, client, terms));
    queue
}

/// Sends the waiting jobs, a few calls at once. A retry takes no place from other jobs in its pause, and answered
/// jobs do not wait for it.
async fn serve(mut queue: mpsc::Receiver<QueuedJob>, client: Client, terms: ProducerOptions) {
    let (mut calls, mut pauses) = (FuturesUnordered::new(), FuturesUnordered::new());
    let (mut due, mut taken) = (VecDeque::new(), Vec::new());
    let (mut open, mut held) = (true, 0_usize);
    while open || held > 0 {
        while calls.len() < CALLS_MAX
            && let Some(group) = due.pop_front()
        {
            calls.push(send_batch(group, &client, &terms));
        }
        tokio::select! {
            Some((freed, again)) = calls.next() => {
                held -= freed;
                pauses.extend(Option::map(again, after_backoff));
            }
            Some(group) = pauses.next() => due.push_back(group),
            count = queue.recv_many(&mut taken, CALL_JOBS),
                if open && calls.len() < CALLS_MAX && held < SENT_JOBS_MAX =>
            {
                open = count > 0;
                held += count;
                due.extend(split(&terms, taken.drain(..).map(|item| (item.caller, item.job))));
            }
        }
    }
}

/// Makes one call and sends the answers to its callers. Returns the number of finished jobs, and the batch to retry.
async fn send_batch(
    mut group: ProducerBatch<ReplySender>,
    client: &Client,
    terms: &ProducerOptions,
) -> (usize, Option<(ProducerBatch<ReplySender>, Duration)>) {
    let held = group.len();
    // A job whose caller has gone must not be written.
    group.retain(|caller| !caller.is_closed());
    if group.len() == 0 {
        return (held, None);
    }
    let BatchOutcome { answers, retry: again } = group.send(client, terms).await;
    for (caller, answer) in answers {
        // The caller may have gone meanwhile.
        let _ = caller.send(answer);
    }
    (held - again.as_ref().map_or(0, |(group, _)| group.len()), again)
}

async fn after_backoff(
    (group, pause): (ProducerBatch<ReplySender>, Duration),
) -> ProducerBatch<ReplySender> {
    tokio::time::sleep(pause).await;
    group
}
