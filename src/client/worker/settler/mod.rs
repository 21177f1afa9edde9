//! Sends settles and extends in batches, and retries them while they can be applied.

mod batch;
mod calls;

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use futures::StreamExt as _;
use futures::future::BoxFuture;
use futures::stream::FuturesUnordered;
use tokio::time::{Instant, sleep};

use super::super::limits::SETTLE_ITEMS_MAX;
use super::super::{Client, Error};
use super::leases::{JobSlot, LeaseEnd};
use super::{Outcome, sleep_until_some};
use batch::{SettleBatch, SettleBuffer, SettleItem, SettleMessage};
use calls::SettleAttempt;

/// Maximum number of first calls and of repeated ones in flight, each; further items wait in the buffers. So many that
/// jobs of a shard that hangs, whose calls end by their timeout, leave room for those of the others. So few that a proxy
/// which limits the streams of a connection, often to 100 or 128, leaves room for an Extend.
const CALLS_MAX: usize = 32;
/// Number of first calls in flight from which on a batch that is not full waits longer: under load fewer and larger calls
/// do more.
const CALLS_MANY: usize = 8;
/// Time that it waits then, beyond its own.
const CROWDED_WAIT: Duration = Duration::from_millis(50);

/// Sends receipts to the server.
pub(super) struct Settler {
    client: Client,
    /// Timeout of one call; after it the call is repeated, which is safe.
    call_timeout: Duration,
    acks: SettleBuffer,
    nacks: SettleBuffer,
    /// Batches to repeat, apart from the buffers.
    retry_queue: VecDeque<SettleBatch>,
    calls: FuturesUnordered<BoxFuture<'static, SettleAttempt>>,
    repeated_calls: FuturesUnordered<BoxFuture<'static, SettleAttempt>>,
    /// Batches in a pause before a retry, which take no place of a call.
    retries: FuturesUnordered<BoxFuture<'static, SettleBatch>>,
    extends: FuturesUnordered<BoxFuture<'static, SettlerEvent>>,
}

/// Result of calls.
#[derive(Debug)]
pub(super) enum SettlerEvent {
    /// Items with a final result, and those that are retried, with the error.
    Settled(Vec<SettledJob>, Vec<(JobSlot, Error)>),
    /// Leases whose Extend was sent at that time.
    Extended(Instant, Vec<(JobSlot, ExtendOutcome)>),
}

/// Final result of one settle.
#[derive(Debug)]
pub(super) struct SettledJob {
    pub(super) slot: JobSlot,
    pub(super) kind: SettleKind,
    pub(super) result: Result<(), Error>,
    /// Cause for which the result of the job was left out.
    pub(super) result_refused: Option<Error>,
}

/// Result of an Extend for one lease.
#[derive(Clone, Debug)]
pub(super) enum ExtendOutcome {
    Extended,
    /// The server or the shard was unreachable: the Extend may be retried.
    Unavailable(Error),
    /// The lease has ended.
    LeaseLost,
}

/// Kind of a settle.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum SettleKind {
    Ack,
    Retry,
    Release,
    DeadLetter,
}

// === impl Settler ===

impl Settler {
    pub(super) fn new(client: Client, call_timeout: Duration) -> Settler {
        Settler {
            client,
            call_timeout,
            acks: SettleBuffer::default(),
            nacks: SettleBuffer::default(),
            retry_queue: VecDeque::new(),
            calls: FuturesUnordered::new(),
            repeated_calls: FuturesUnordered::new(),
            retries: FuturesUnordered::new(),
            extends: FuturesUnordered::new(),
        }
    }

    /// Settles an attempt; retried until its lease ends. Exactly one [`SettledJob`] answers it.
    pub(super) fn settle(&mut self, slot: JobSlot, lease: (Arc<str>, LeaseEnd), outcome: Outcome) {
        let item = SettleItem::new(slot, lease, outcome);
        match &item.message {
            SettleMessage::Ack(_) => self.acks.push(item),
            SettleMessage::Nack(_) => self.nacks.push(item),
        }
        self.start_calls();
    }

    /// Extends leases, once, by calls with this timeout: the caller retries.
    pub(super) fn extend(
        &mut self,
        leases: &[(JobSlot, Arc<str>)],
        limit: Duration,
        repeat: usize,
    ) {
        for part in leases.chunks(SETTLE_ITEMS_MAX) {
            let call = calls::extend(self.client.clone(), limit, repeat, part.to_vec());
            self.extends.push(Box::pin(call));
        }
    }

    /// Sends the waiting items, full batches or not: no more will come soon.
    pub(super) fn flush(&mut self) {
        self.acks.flush_now();
        self.nacks.flush_now();
        self.start_calls();
    }

    /// Returns the next result; pending while no call is in flight. Dropping the future loses nothing.
    pub(super) async fn next(&mut self) -> SettlerEvent {
        loop {
            self.start_calls();
            let due = [self.acks.deadline(), self.nacks.deadline()].into_iter().flatten().min();
            let until = due.map(|due| due + self.batch_wait());
            let attempt = tokio::select! {
                biased;
                Some(attempt) = self.calls.next() => attempt,
                Some(attempt) = self.repeated_calls.next() => attempt,
                Some(answer) = self.extends.next() => return answer,
                Some(group) = self.retries.next() => {
                    self.retry_queue.push_back(group);
                    continue;
                }
                () = sleep_until_some(until), if self.calls.len() < CALLS_MAX => continue,
            };
            self.schedule_retries(attempt.retries);
            if !(attempt.settled.is_empty() && attempt.retry_errors.is_empty()) {
                return SettlerEvent::Settled(attempt.settled, attempt.retry_errors);
            }
        }
    }

    fn schedule_retries(&mut self, groups: Vec<(SettleBatch, Duration)>) {
        for (group, pause) in groups {
            if pause.is_zero() {
                self.retry_queue.push_back(group);
            } else {
                self.retries.push(Box::pin(async move {
                    sleep(pause).await;
                    group
                }));
            }
        }
    }

    /// Starts calls for the batches that are due, up to [`CALLS_MAX`] of each kind.
    fn start_calls(&mut self) {
        let now = Instant::now();
        while self.calls.len() < CALLS_MAX {
            let wait = self.batch_wait();
            let batch = self.acks.take_batch(now, wait);
            let Some(batch) = batch.or_else(|| self.nacks.take_batch(now, wait)) else { break };
            self.calls.push(self.call(batch));
        }
        while self.repeated_calls.len() < CALLS_MAX
            && let Some(batch) = self.retry_queue.pop_front()
        {
            self.repeated_calls.push(self.call(batch));
        }
    }

    /// Returns how long a batch that is due and not full still waits.
    fn batch_wait(&self) -> Duration {
        if self.calls.len() < CALLS_MANY { Duration::ZERO } else { CROWDED_WAIT }
    }

    fn call(&self, batch: SettleBatch) -> BoxFuture<'static, SettleAttempt> {
        Box::pin(calls::send_batch(self.client.clone(), self.call_timeout, batch))
    }
}
