//! Sends what ends and what extends leases, in batches, and repeats it as long as it can count.

use std::time::Duration;

use futures::StreamExt as _;
use futures::future::BoxFuture;
use futures::stream::FuturesUnordered;
use prost::Message as _;
use tokio::time::{Instant, sleep, sleep_until};
use tonic::{Code, Status};

use super::super::job::proto;
use super::super::{Client, Error};
use super::Outcome;
use super::leases::Slot;
use crate::backoff::Backoff;
use crate::pb::{
    AckItem, AckRequest, ExtendItem, ExtendRequest, NackAction, NackItem, NackRequest, SettleError,
    SettleFailure,
};

/// Receipts per call.
const CALL_ITEMS: usize = 100;
/// Receipts per Extend, as many as the contract takes.
const EXTEND_ITEMS: usize = 1000;
/// Bytes per call, about; results and follow-up jobs can be large.
const CALL_BYTES: usize = 1 << 20;
/// A receipt waits no longer than this for others.
const WAIT: Duration = Duration::from_millis(5);
/// Calls under way; what comes meanwhile gathers.
const CALLS: usize = 8;
/// One call takes no longer; then it is repeated, which is safe.
const CALL_TIMEOUT: Duration = Duration::from_secs(10);
/// The pauses between repeats.
const PAUSE: (Duration, Duration) = (Duration::from_millis(50), Duration::from_secs(2));
/// The longest error that the contract takes.
const ERROR_BYTES: usize = 4096;

/// The way of receipts back to the server.
pub(super) struct Settler {
    client: Client,
    acks: Gathering,
    nacks: Gathering,
    calls: FuturesUnordered<BoxFuture<'static, Answer>>,
}

/// What comes back.
#[derive(Debug)]
pub(super) enum Answer {
    /// Attempts that ended, or could not be ended.
    Settled(Vec<Settled>),
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
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Extended {
    Yes,
    /// The server could not be reached: it may be repeated.
    NotNow,
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

/// Items that wait for others of their sort.
#[derive(Default)]
struct Gathering {
    items: Vec<Item>,
    bytes: usize,
    /// When they go out at the latest.
    until: Option<Instant>,
}

#[derive(Clone)]
struct Item {
    slot: Slot,
    kind: Kind,
    /// The end of its lease: nothing counts after that.
    expires: Instant,
    message: Message,
}

#[derive(Clone)]
enum Message {
    Ack(AckItem),
    Nack(NackItem),
}

// === impl Settler ===

impl Settler {
    pub(super) fn new(client: Client) -> Settler {
        Settler {
            client,
            acks: Gathering::default(),
            nacks: Gathering::default(),
            calls: FuturesUnordered::new(),
        }
    }

    /// Ends an attempt.
    pub(super) fn settle(&mut self, slot: Slot, lease: (&str, Instant), outcome: Outcome) {
        let item = Item::new(slot, lease, outcome);
        let gathering = match &item.message {
            Message::Ack(_) => &mut self.acks,
            Message::Nack(_) => &mut self.nacks,
        };
        gathering.push(item);
        self.send_full();
    }

    /// Extends leases, once: who wants them repeated asks again.
    pub(super) fn extend(&mut self, leases: &[(Slot, String)]) {
        for part in leases.chunks(EXTEND_ITEMS) {
            self.calls.push(Box::pin(extend(self.client.clone(), part.to_vec())));
        }
    }

    /// Sends what waits, full or not: nothing more will come soon.
    pub(super) fn flush(&mut self) {
        for group in [self.acks.take(), self.nacks.take()] {
            if !group.is_empty() {
                self.calls.push(Box::pin(settle(self.client.clone(), group)));
            }
        }
    }

    /// The next answer; never, while nothing is on its way. Dropping the future loses nothing.
    pub(super) async fn next(&mut self) -> Answer {
        loop {
            let until = match (self.acks.until, self.nacks.until) {
                (Some(acks), Some(nacks)) => Some(acks.min(nacks)),
                (acks, nacks) => acks.or(nacks),
            };
            tokio::select! {
                biased;
                Some(answer) = self.calls.next() => {
                    self.send_full();
                    return answer;
                }
                () = at(until), if self.calls.len() < CALLS => self.flush(),
            }
        }
    }

    fn send_full(&mut self) {
        while self.calls.len() < CALLS && (self.acks.is_full() || self.nacks.is_full()) {
            let gathering = if self.acks.is_full() { &mut self.acks } else { &mut self.nacks };
            let group = gathering.take();
            self.calls.push(Box::pin(settle(self.client.clone(), group)));
        }
    }
}

async fn at(time: Option<Instant>) {
    match time {
        Some(time) => sleep_until(time).await,
        None => std::future::pending().await,
    }
}

// === impl Gathering ===

impl Gathering {
    fn push(&mut self, item: Item) {
        self.bytes += item.bytes();
        self.items.push(item);
        self.until.get_or_insert_with(|| Instant::now() + WAIT);
    }

    fn is_full(&self) -> bool {
        self.items.len() >= CALL_ITEMS || self.bytes >= CALL_BYTES
    }

    /// A group for one call.
    fn take(&mut self) -> Vec<Item> {
        let rest = self.items.split_off(self.items.len().min(CALL_ITEMS));
        let group = std::mem::replace(&mut self.items, rest);
        self.bytes = self.items.iter().map(Item::bytes).sum();
        if self.items.is_empty() {
            self.until = None;
        }
        group
    }
}

// === impl Item ===

impl Item {
    fn new(slot: Slot, (receipt, expires): (&str, Instant), outcome: Outcome) -> Item {
        let receipt = receipt.to_owned();
        let nack = |action: NackAction, error: String, delay: Option<Duration>| {
            let (action, delay) = (action.into(), delay.map(proto));
            Message::Nack(NackItem { receipt: receipt.clone(), action, delay, error: cut(error) })
        };
        let (kind, message) = match outcome {
            Outcome::Ack { result, enqueue } => {
                (Kind::Ack, Message::Ack(AckItem { receipt, result, enqueue }))
            }
            Outcome::Retry { error, delay } => (Kind::Retry, nack(NackAction::Retry, error, delay)),
            Outcome::Release { error, delay } => {
                (Kind::Release, nack(NackAction::Release, error, delay))
            }
            Outcome::DeadLetter { error } => {
                (Kind::DeadLetter, nack(NackAction::DeadLetter, error, None))
            }
        };
        Item { slot, kind, expires, message }
    }

    fn bytes(&self) -> usize {
        match &self.message {
            Message::Ack(ack) => ack.encoded_len(),
            Message::Nack(nack) => nack.encoded_len(),
        }
    }

    fn ended(self, result: Result<(), Error>) -> Settled {
        Settled { slot: self.slot, kind: self.kind, result }
    }
}

/// The longest part of an error that the contract takes.
fn cut(mut error: String) -> String {
    error.truncate(error.floor_char_boundary(ERROR_BYTES));
    error
}

/// Sends a group until each item has its answer or its lease is over.
async fn settle(client: Client, group: Vec<Item>) -> Answer {
    let mut done = Vec::with_capacity(group.len());
    let mut backoff = Backoff::new(PAUSE.0, PAUSE.1);
    let mut groups = vec![(group, false)];
    while let Some((group, repeated)) = groups.pop() {
        let again = match send(&client, &group).await {
            Ok(failures) => sort(group, failures, repeated, &mut done),
            // One bad item fails the call of all, with nothing applied: find it.
            Err(status) if status.code() == Code::InvalidArgument && group.len() > 1 => {
                groups.extend(group.into_iter().map(|item| (vec![item], repeated)));
                continue;
            }
            Err(status) if may_help(&status) => {
                group.into_iter().map(|item| (item, Error::from(status.clone()))).collect()
            }
            Err(status) => {
                let refused = |item: Item| item.ended(Err(status.clone().into()));
                done.extend(group.into_iter().map(refused));
                continue;
            }
        };
        let pause = backoff.pause();
        let now = Instant::now();
        let (again, over): (Vec<_>, Vec<_>) =
            again.into_iter().partition(|(item, _)| now + pause < item.expires);
        done.extend(over.into_iter().map(|(item, error)| item.ended(Err(error))));
        if !again.is_empty() {
            groups.push((again.into_iter().map(|(item, _)| item).collect(), true));
            sleep(pause).await;
        }
    }
    Answer::Settled(done)
}

/// Sorts the items of an answered call: `done` gets those with a final answer, the others come back.
fn sort(
    group: Vec<Item>,
    failures: Vec<SettleFailure>,
    repeated: bool,
    done: &mut Vec<Settled>,
) -> Vec<(Item, Error)> {
    let mut failures = failures.into_iter().peekable();
    let mut again = Vec::new();
    for (index, item) in group.into_iter().enumerate() {
        let failed = failures.next_if(|failure| usize::try_from(failure.index) == Ok(index));
        let Some(failure) = failed else {
            done.push(item.ended(Ok(())));
            continue;
        };
        match failure.error() {
            SettleError::Unavailable => again.push((item, failure.into())),
            // The first one has counted, and its answer was lost.
            SettleError::NotFound if repeated && item.kind == Kind::Ack => {
                done.push(item.ended(Ok(())));
            }
            _ => done.push(item.ended(Err(failure.into()))),
        }
    }
    again
}

/// Whether the same call may count later.
fn may_help(status: &Status) -> bool {
    !matches!(
        status.code(),
        Code::InvalidArgument
            | Code::Unauthenticated
            | Code::PermissionDenied
            | Code::Unimplemented
            | Code::FailedPrecondition
    )
}

async fn send(client: &Client, group: &[Item]) -> Result<Vec<SettleFailure>, Status> {
    let mut queue = client.queue();
    let mut acks = Vec::new();
    let mut nacks = Vec::new();
    for item in group {
        match &item.message {
            Message::Ack(ack) => acks.push(ack.clone()),
            Message::Nack(nack) => nacks.push(nack.clone()),
        }
    }
    // A group is of one sort.
    if nacks.is_empty() {
        Ok(queue.ack(timed(AckRequest { items: acks })).await?.into_inner().failures)
    } else {
        Ok(queue.nack(timed(NackRequest { items: nacks })).await?.into_inner().failures)
    }
}

fn timed<T>(message: T) -> tonic::Request<T> {
    let mut request = tonic::Request::new(message);
    request.set_timeout(CALL_TIMEOUT);
    request
}

async fn extend(client: Client, leases: Vec<(Slot, String)>) -> Answer {
    let sent = Instant::now();
    let (slots, receipts): (Vec<_>, Vec<_>) = leases.into_iter().unzip();
    let items = receipts.into_iter().map(|receipt| ExtendItem { receipt, ..Default::default() });
    let request = timed(ExtendRequest { items: items.collect() });
    let mut answers: Vec<_> = slots.into_iter().map(|slot| (slot, Extended::Yes)).collect();
    match client.queue().extend(request).await {
        Ok(answer) => {
            for failure in answer.into_inner().failures {
                let index = usize::try_from(failure.index).unwrap_or(usize::MAX);
                if let Some((_, extended)) = answers.get_mut(index) {
                    *extended = match failure.error() {
                        SettleError::Unavailable => Extended::NotNow,
                        _ => Extended::Gone,
                    };
                }
            }
        }
        Err(_) => answers.iter_mut().for_each(|(_, extended)| *extended = Extended::NotNow),
    }
    Answer::Extended(sent, answers)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn item(slot: Slot, outcome: Outcome) -> Item {
        Item::new(slot, ("r", Instant::now()), outcome)
    }

    fn failure(index: i32, error: SettleError) -> SettleFailure {
        SettleFailure { index, error: error.into(), ..Default::default() }
    }

    /// The slots that are done, with whether that is well, and those that are repeated.
    fn sorted(repeated: bool, failures: Vec<SettleFailure>) -> (Vec<(Slot, bool)>, Vec<Slot>) {
        let group = (0..4).map(|slot| item(slot, Outcome::ack())).collect();
        let mut done = Vec::new();
        let again = sort(group, failures, repeated, &mut done);
        let done = done.into_iter().map(|ended| (ended.slot, ended.result.is_ok())).collect();
        (done, again.into_iter().map(|(item, _)| item.slot).collect())
    }

    #[test]
    fn each_item_has_its_own_answer() {
        let failures = vec![failure(1, SettleError::Stale), failure(2, SettleError::Unavailable)];
        let expected = (vec![(0, true), (1, false), (3, true)], vec![2]);
        assert_eq!(sorted(false, failures), expected);
    }

    #[test]
    fn a_repeated_ack_of_a_job_that_is_gone_has_counted() {
        let failures = || vec![failure(0, SettleError::NotFound)];
        assert_eq!(sorted(false, failures()).0[0], (0, false));
        assert_eq!(sorted(true, failures()).0[0], (0, true));
    }

    #[test]
    fn groups_are_bounded_by_items_and_bytes() {
        let mut gathering = Gathering::default();
        (0..=CALL_ITEMS as Slot).for_each(|slot| gathering.push(item(slot, Outcome::ack())));
        assert!(gathering.is_full());
        assert_eq!(gathering.take().len(), CALL_ITEMS);
        assert!(!gathering.is_full() && gathering.until.is_some());
        assert_eq!(gathering.take().len(), 1);
        assert_eq!((gathering.bytes, gathering.until), (0, None));

        let result = Some(crate::pb::Payload::data(vec![0; CALL_BYTES]));
        gathering.push(item(0, Outcome::Ack { result, enqueue: vec![] }));
        assert!(gathering.is_full());
    }

    #[test]
    fn errors_are_cut_between_characters() {
        assert_eq!(cut("ä".repeat(ERROR_BYTES)).len(), ERROR_BYTES);
        assert_eq!(cut(format!("a{}", "ä".repeat(ERROR_BYTES))).len(), ERROR_BYTES - 1);
        assert_eq!(cut("short".into()), "short");
    }
}
