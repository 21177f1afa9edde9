//! Sends what ends and what extends leases, in batches, and repeats it as long as it can count.

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
use super::leases::JobSlot;
use super::{Outcome, sleep_until_some};
use batch::{SettleBatch, SettleBuffer, SettleItem, SettleMessage};
use calls::SettleAttempt;

/// Acks and Nacks under way; what comes meanwhile gathers.
const CALLS_MAX: usize = 8;

/// The way of receipts back to the server.
pub(super) struct Settler {
    client: Client,
    acks: SettleBuffer,
    nacks: SettleBuffer,
    /// Groups that go out before what gathers.
    retry_queue: VecDeque<SettleBatch>,
    calls: FuturesUnordered<BoxFuture<'static, SettleAttempt>>,
    /// Groups that are repeated, which take no place meanwhile.
    retries: FuturesUnordered<BoxFuture<'static, SettleBatch>>,
    extends: FuturesUnordered<BoxFuture<'static, SettlerEvent>>,
}

/// What comes back.
#[derive(Debug)]
pub(super) enum SettlerEvent {
    /// Attempts that ended, or could not be ended; and those that are tried again, with the reason.
    Settled(Vec<SettledJob>, Vec<(JobSlot, Error)>),
    /// Leases whose Extend went out at that time.
    Extended(Instant, Vec<(JobSlot, ExtendOutcome)>),
}

/// How one attempt was ended.
#[derive(Debug)]
pub(super) struct SettledJob {
    pub(super) slot: JobSlot,
    pub(super) kind: SettleKind,
    pub(super) result: Result<(), Error>,
}

/// What became of an Extend.
#[derive(Clone, Debug)]
pub(super) enum ExtendOutcome {
    Extended,
    /// The server or the shard could not be reached: it may be repeated.
    Unavailable(Error),
    /// The lease is not this worker's any more.
    LeaseLost,
}

/// How an attempt is ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum SettleKind {
    Ack,
    Retry,
    Release,
    DeadLetter,
}

// === impl Settler ===

impl Settler {
    pub(super) fn new(client: Client) -> Settler {
        Settler {
            client,
            acks: SettleBuffer::default(),
            nacks: SettleBuffer::default(),
            retry_queue: VecDeque::new(),
            calls: FuturesUnordered::new(),
            retries: FuturesUnordered::new(),
            extends: FuturesUnordered::new(),
        }
    }

    /// Ends an attempt; repeated until its lease is over. Exactly one [`Settled`] answers it.
    pub(super) fn settle(&mut self, slot: JobSlot, lease: (Arc<str>, Instant), outcome: Outcome) {
        let item = SettleItem::new(slot, lease, outcome);
        match &item.message {
            SettleMessage::Ack(_) => self.acks.push(item),
            SettleMessage::Nack(_) => self.nacks.push(item),
        }
        self.start_calls();
    }

    /// Extends leases, once: who wants them repeated asks again.
    pub(super) fn extend(&mut self, leases: &[(JobSlot, Arc<str>)]) {
        for part in leases.chunks(SETTLE_ITEMS_MAX) {
            self.extends.push(Box::pin(calls::extend(self.client.clone(), part.to_vec())));
        }
    }

    /// Sends what waits, full or not: nothing more will come soon.
    pub(super) fn flush(&mut self) {
        self.acks.flush_now();
        self.nacks.flush_now();
        self.start_calls();
    }

    /// The next answer; never, while nothing is on its way. Dropping the future loses nothing.
    pub(super) async fn next(&mut self) -> SettlerEvent {
        loop {
            self.start_calls();
            let until = [self.acks.deadline(), self.nacks.deadline()].into_iter().flatten().min();
            tokio::select! {
                biased;
                Some(attempt) = self.calls.next() => {
                    self.schedule_retries(attempt.retries);
                    if !(attempt.settled.is_empty() && attempt.retry_errors.is_empty()) {
                        return SettlerEvent::Settled(attempt.settled, attempt.retry_errors);
                    }
                }
                Some(answer) = self.extends.next() => return answer,
                Some(group) = self.retries.next() => self.retry_queue.push_back(group),
                () = sleep_until_some(until), if self.calls.len() < CALLS_MAX => {}
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

    /// Sends what is to go out now, as far as there is place.
    fn start_calls(&mut self) {
        let now = Instant::now();
        while self.calls.len() < CALLS_MAX {
            let next = self.retry_queue.pop_front().or_else(|| self.acks.take_batch(now));
            let Some(group) = next.or_else(|| self.nacks.take_batch(now)) else { return };
            self.calls.push(Box::pin(calls::send_batch(self.client.clone(), group)));
        }
    }
}
