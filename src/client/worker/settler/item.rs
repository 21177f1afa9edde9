//! What is sent for one job, and how it gathers for a call.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use prost::Message as _;
use tokio::time::Instant;

use super::super::super::Error;
use super::super::super::job::proto;
use super::super::super::limit::ERROR_BYTES_MAX;
use super::super::Outcome;
use super::super::leases::Slot;
use super::{Kind, Settled};
use crate::pauses::Pauses;
use crate::pb::{AckItem, NackAction, NackItem};

/// Receipts per call.
const CALL_ITEMS: usize = 100;
/// Bytes per call, about; results and follow-up jobs can be large, and the contract takes 4 MiB.
const CALL_BYTES: usize = 1 << 20;
/// A receipt waits no longer than this for others.
const WAIT: Duration = Duration::from_millis(5);
/// The pauses between repeats.
const PAUSE: (Duration, Duration) = (Duration::from_millis(50), Duration::from_secs(2));

/// Items that wait for others of their sort.
#[derive(Default)]
pub(super) struct Gathering {
    items: VecDeque<Item>,
    bytes: usize,
    /// When the first of them goes out at the latest.
    until: Option<Instant>,
}

/// Items of one call, all of one sort.
#[derive(Debug)]
pub(super) struct Group {
    pub(super) items: Vec<Item>,
    /// It may have counted before.
    pub(super) repeated: bool,
    pub(super) pauses: Pauses,
}

#[derive(Clone, Debug)]
pub(super) struct Item {
    pub(super) slot: Slot,
    pub(super) kind: Kind,
    /// The end of its lease: nothing counts after that.
    pub(super) expires: Instant,
    /// An attempt of it may have counted, and nobody said so.
    pub(super) in_doubt: bool,
    bytes: usize,
    pub(super) message: Message,
}

#[derive(Clone, Debug)]
pub(super) enum Message {
    Ack(AckItem),
    Nack(NackItem),
}

// === impl Gathering ===

impl Gathering {
    pub(super) fn push(&mut self, item: Item) {
        self.bytes += item.bytes;
        self.items.push_back(item);
        self.until.get_or_insert_with(|| Instant::now() + WAIT);
    }

    /// When the next group goes out at the latest.
    pub(super) fn until(&self) -> Option<Instant> {
        self.until
    }

    /// Lets what is here go out at once.
    pub(super) fn hurry(&mut self) {
        self.until = self.until.map(|until| until.min(Instant::now()));
    }

    /// A group for one call, if there is a full one or its time has come.
    pub(super) fn take_due(&mut self, now: Instant) -> Option<Group> {
        let full = self.items.len() >= CALL_ITEMS || self.bytes >= CALL_BYTES;
        if !full && self.until.is_none_or(|until| until > now) {
            return None;
        }
        let (mut items, mut bytes) = (Vec::new(), 0);
        while let Some(next) = self.items.front()
            && items.len() < CALL_ITEMS
            && (items.is_empty() || bytes + next.bytes <= CALL_BYTES)
            && let Some(item) = self.items.pop_front()
        {
            bytes += item.bytes;
            items.push(item);
        }
        self.bytes -= bytes;
        if self.items.is_empty() {
            self.until = None;
        }
        Some(Group { items, repeated: false, pauses: Pauses::new(PAUSE.0, PAUSE.1) })
    }
}

// === impl Group ===

impl Group {
    /// The same call with other items.
    pub(super) fn with(&self, items: Vec<Item>) -> Group {
        Group { items, repeated: self.repeated, pauses: self.pauses.clone() }
    }
}

// === impl Item ===

impl Item {
    pub(super) fn new(slot: Slot, lease: (Arc<str>, Instant), outcome: Outcome) -> Item {
        let (receipt, expires) = (lease.0.as_ref().to_owned(), lease.1);
        let (kind, message) = match outcome {
            Outcome::Ack { result, enqueue } => {
                (Kind::Ack, Message::Ack(AckItem { receipt, result, enqueue }))
            }
            Outcome::Retry { error, delay } => {
                (Kind::Retry, nack(receipt, NackAction::Retry, error, delay))
            }
            Outcome::Release { error, delay } => {
                (Kind::Release, nack(receipt, NackAction::Release, error, delay))
            }
            Outcome::DeadLetter { error } => {
                (Kind::DeadLetter, nack(receipt, NackAction::DeadLetter, error, None))
            }
        };
        let bytes = match &message {
            Message::Ack(ack) => ack.encoded_len(),
            Message::Nack(nack) => nack.encoded_len(),
        };
        Item { slot, kind, expires, in_doubt: false, bytes, message }
    }

    /// The handler's answer is one that no server takes: a bad follow-up job, a result that is too
    /// large, a delay of a century. That is a failure of the handler, with the reason for people.
    /// None: there is nothing in it that could be left out.
    pub(super) fn without_answer(&self, why: &Error) -> Option<Item> {
        let receipt = match &self.message {
            Message::Ack(ack) => &ack.receipt,
            Message::Nack(nack) if nack.delay.is_some() => &nack.receipt,
            Message::Nack(_) => return None,
        };
        let at = why.field().map(|field| format!(" ({field})")).unwrap_or_default();
        let outcome = Outcome::retry(format_args!("the handler's answer was refused: {why}{at}"));
        Some(Item::new(self.slot, (receipt.as_str().into(), self.expires), outcome))
    }

    pub(super) fn ended(self, result: Result<(), Error>) -> Settled {
        let result = result.map_err(|error| error.or_unknown(self.in_doubt));
        Settled { slot: self.slot, kind: self.kind, result }
    }
}

fn nack(receipt: String, action: NackAction, error: String, delay: Option<Duration>) -> Message {
    let (action, delay) = (action.into(), delay.map(proto));
    Message::Nack(NackItem { receipt, action, delay, error: cut(error) })
}

/// The longest part of an error that the contract takes.
fn cut(mut error: String) -> String {
    let end = error.len().min(ERROR_BYTES_MAX);
    let boundary = (0..=end).rev().find(|end| error.is_char_boundary(*end));
    error.truncate(boundary.unwrap_or_default());
    error
}

#[cfg(test)]
mod tests {
    use super::*;

    fn item(outcome: Outcome) -> Item {
        Item::new(0, ("r".into(), Instant::now()), outcome)
    }

    fn large(bytes: usize) -> Item {
        let result = Some(crate::pb::Payload::data(vec![0; bytes]));
        item(Outcome::Ack { result, enqueue: vec![] })
    }

    #[test]
    fn a_group_goes_out_when_it_is_full_or_its_time_has_come() {
        let mut gathering = Gathering::default();
        assert!(gathering.take_due(Instant::now() + WAIT).is_none());
        (0..=CALL_ITEMS).for_each(|_| gathering.push(item(Outcome::ack())));
        let now = Instant::now();
        let full = gathering.take_due(now - WAIT).map(|group| group.items.len());
        assert_eq!(full, Some(CALL_ITEMS));
        assert!(gathering.take_due(now - WAIT).is_none() && gathering.until().is_some());
        gathering.hurry();
        assert_eq!(gathering.take_due(Instant::now()).unwrap().items.len(), 1);
        assert_eq!((gathering.bytes, gathering.until()), (0, None));
    }

    #[test]
    fn groups_are_bounded_by_bytes() {
        let mut gathering = Gathering::default();
        for bytes in [CALL_BYTES, CALL_BYTES / 4, CALL_BYTES / 4, CALL_BYTES, 1] {
            gathering.push(large(bytes));
        }
        let mut take = || gathering.take_due(Instant::now() + WAIT).map(|group| group.items.len());
        assert_eq!(
            [take(), take(), take(), take(), take()],
            [Some(1), Some(2), Some(1), Some(1), None]
        );
    }

    #[test]
    fn what_no_server_takes_is_a_failure_of_the_handler() {
        let why = Error::usage("items[0].enqueue[0].topic", "bad topic");
        let delay = Some(Duration::MAX);
        for outcome in [Outcome::ack(), Outcome::Release { error: String::new(), delay }] {
            let item = item(outcome).without_answer(&why).unwrap();
            let Message::Nack(nack) = &item.message else { panic!("{item:?}") };
            assert_eq!((item.kind, nack.delay, nack.receipt.as_str()), (Kind::Retry, None, "r"));
            let want = "the handler's answer was refused: bad topic (items[0].enqueue[0].topic)";
            assert_eq!(nack.error, want);
            assert!(item.without_answer(&why).is_none(), "only once");
        }
    }

    #[test]
    fn errors_are_cut_between_characters() {
        assert_eq!(cut("ä".repeat(ERROR_BYTES_MAX)).len(), ERROR_BYTES_MAX);
        assert_eq!(cut(format!("a{}", "ä".repeat(ERROR_BYTES_MAX))).len(), ERROR_BYTES_MAX - 1);
        assert_eq!(cut("short".into()), "short");
    }
}
