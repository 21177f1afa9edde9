//! Sends what ends and what extends leases, in batches, and repeats it as long as it can count.

mod calls;
mod item;

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use futures::StreamExt as _;
use futures::future::BoxFuture;
use futures::stream::FuturesUnordered;
use tokio::time::{Instant, sleep};

use super::super::limit::SETTLE_ITEMS_MAX;
use super::super::{Client, Error};
use super::leases::Slot;
use super::{Outcome, at};
use calls::Attempt;
use item::{Gathering, Group, Item, Message};

/// Acks and Nacks under way; what comes meanwhile gathers.
const CALLS: usize = 8;

/// The way of receipts back to the server.
pub(super) struct Settler {
    client: Client,
    acks: Gathering,
    nacks: Gathering,
    /// Groups that go out before what gathers.
    due: VecDeque<Group>,
    calls: FuturesUnordered<BoxFuture<'static, Attempt>>,
    /// Groups that are repeated, which take no place meanwhile.
    pauses: FuturesUnordered<BoxFuture<'static, Group>>,
    extends: FuturesUnordered<BoxFuture<'static, Answer>>,
}

/// What comes back.
#[derive(Debug)]
pub(super) enum Answer {
    /// Attempts that ended, or could not be ended; and those that are tried again, with the reason.
    Settled(Vec<Settled>, Vec<(Slot, Error)>),
    /// Leases whose Extend went out at that time.
    Extended(Instant, Vec<(Slot, Extended)>),
}

/// How one attempt was ended.
#[derive(Debug)]
pub(super) struct Settled {
    pub(super) slot: Slot,
    pub(super) kind: Kind,
    pub(super) result: Result<(), Error>,
}

/// What became of an Extend.
#[derive(Clone, Debug)]
pub(super) enum Extended {
    Yes,
    /// The server or the shard could not be reached: it may be repeated.
    NotNow(Error),
    /// The lease is not this worker's any more.
    Gone,
}

/// How an attempt is ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
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
            acks: Gathering::default(),
            nacks: Gathering::default(),
            due: VecDeque::new(),
            calls: FuturesUnordered::new(),
            pauses: FuturesUnordered::new(),
            extends: FuturesUnordered::new(),
        }
    }

    /// Ends an attempt; repeated until its lease is over. Exactly one [`Settled`] answers it.
    pub(super) fn settle(&mut self, slot: Slot, lease: (Arc<str>, Instant), outcome: Outcome) {
        let item = Item::new(slot, lease, outcome);
        match &item.message {
            Message::Ack(_) => self.acks.push(item),
            Message::Nack(_) => self.nacks.push(item),
        }
        self.start();
    }

    /// Extends leases, once: who wants them repeated asks again.
    pub(super) fn extend(&mut self, leases: &[(Slot, Arc<str>)]) {
        for part in leases.chunks(SETTLE_ITEMS_MAX) {
            self.extends.push(Box::pin(calls::extend(self.client.clone(), part.to_vec())));
        }
    }

    /// Sends what waits, full or not: nothing more will come soon.
    pub(super) fn flush(&mut self) {
        self.acks.hurry();
        self.nacks.hurry();
        self.start();
    }

    /// The next answer; never, while nothing is on its way. Dropping the future loses nothing.
    pub(super) async fn next(&mut self) -> Answer {
        loop {
            self.start();
            let until = [self.acks.until(), self.nacks.until()].into_iter().flatten().min();
            tokio::select! {
                biased;
                Some(attempt) = self.calls.next() => {
                    self.again(attempt.again);
                    if !(attempt.settled.is_empty() && attempt.delayed.is_empty()) {
                        return Answer::Settled(attempt.settled, attempt.delayed);
                    }
                }
                Some(answer) = self.extends.next() => return answer,
                Some(group) = self.pauses.next() => self.due.push_back(group),
                () = at(until), if self.calls.len() < CALLS => {}
            }
        }
    }

    fn again(&mut self, groups: Vec<(Group, Duration)>) {
        for (group, pause) in groups {
            if pause.is_zero() {
                self.due.push_back(group);
            } else {
                self.pauses.push(Box::pin(async move {
                    sleep(pause).await;
                    group
                }));
            }
        }
    }

    /// Sends what is to go out now, as far as there is place.
    fn start(&mut self) {
        let now = Instant::now();
        while self.calls.len() < CALLS {
            let next = self.due.pop_front().or_else(|| self.acks.take_due(now));
            let Some(group) = next.or_else(|| self.nacks.take_due(now)) else { return };
            self.calls.push(Box::pin(calls::attempt(self.client.clone(), group)));
        }
    }
}
