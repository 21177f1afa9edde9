//! The queue that the clones of a producer share.

use std::collections::VecDeque;
use std::time::Duration;

use futures::StreamExt as _;
use futures::stream::FuturesUnordered;
use tokio::sync::{mpsc, oneshot};

use super::super::Client;
use super::batch::{BatchOutcome, CALL_JOBS, ProducerBatch, split};
use super::{ProducerOptions, ProducerResult};
use crate::pb::JobSpec;

/// Jobs that wait for a place in a call; callers beyond wait for a place here.
const QUEUE_JOBS: usize = 4096;
/// Jobs in calls and in pauses before repeats; beyond, no more are taken from the queue.
const SENT_JOBS_MAX: usize = 4096;
/// Calls under way: one that the server works on and one on the wire, in both directions.
const CALLS_MAX: usize = 4;

/// A job and who waits for its answer.
pub(super) struct QueuedJob {
    pub(super) job: JobSpec,
    pub(super) caller: ReplySender,
}

type ReplySender = oneshot::Sender<ProducerResult>;

/// Serves a new queue on the runtime of the caller until the last sender is gone.
pub(super) fn spawn(client: Client, terms: ProducerOptions) -> mpsc::Sender<QueuedJob> {
    let (queue, waiting) = mpsc::channel(QUEUE_JOBS);
    tokio::spawn(serve(waiting, client, terms));
    queue
}

/// Sends what waits, a few calls at once. What is repeated takes no place from others in its pause,
/// and what was answered does not wait for it.
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

/// Makes one call and tells its callers: how many jobs are done with, and what is to be repeated.
async fn send_batch(
    mut group: ProducerBatch<ReplySender>,
    client: &Client,
    terms: &ProducerOptions,
) -> (usize, Option<(ProducerBatch<ReplySender>, Duration)>) {
    let held = group.len();
    // A caller that has gone away wants nothing written.
    group.retain(|caller| !caller.is_closed());
    if group.len() == 0 {
        return (held, None);
    }
    let BatchOutcome { answers, retry: again } = group.send(client, terms).await;
    for (caller, answer) in answers {
        // It may have gone meanwhile.
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
