//! Settles of jobs, and their collection into batches.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use prost::Message as _;
use tokio::time::Instant;
use tonic::Code;

use super::super::super::Error;
use super::super::super::job_spec::to_proto_duration;
use super::super::super::limits::ERROR_BYTES_MAX;
use super::super::leases::{JobSlot, LeaseEnd};
use super::super::{Outcome, is_unexplained};
use super::{SettleKind, SettledJob};
use crate::backoff::{Backoff, BackoffRange};
use crate::pb::{AckItem, NackAction, NackItem};

/// Maximum number of receipts per call.
const CALL_ITEMS: usize = 100;
/// Maximum bytes per call, about; results and follow-up jobs can be large, and the contract accepts 4 MiB.
const CALL_BYTES: usize = 1 << 20;
/// Longest time that a receipt waits for others.
const BATCH_WAIT: Duration = Duration::from_millis(5);
/// Shortest and longest pause between retries.
const RETRY_BACKOFF: BackoffRange =
    BackoffRange { min: Duration::from_millis(50), max: Duration::from_secs(2) };

/// Items that wait for others of their kind.
#[derive(Default)]
pub(super) struct SettleBuffer {
    items: VecDeque<SettleItem>,
    bytes: usize,
    /// Latest time at which the first of them goes out.
    deadline: Option<Instant>,
}

/// Items of one call, all Acks or all Nacks.
#[derive(Debug)]
pub(super) struct SettleBatch {
    pub(super) items: Vec<SettleItem>,
    /// Number of earlier attempts: one of them may have been applied.
    pub(super) repeats: usize,
    pub(super) pauses: Backoff,
}

#[derive(Clone, Debug)]
pub(super) struct SettleItem {
    pub(super) slot: JobSlot,
    pub(super) kind: SettleKind,
    /// End of the lease: nothing is applied after it. It is extended while the settle is in flight.
    pub(super) expires: LeaseEnd,
    /// Set when an attempt may have been applied and its answer was lost.
    pub(super) outcome_unknown: bool,
    /// Error of the last attempt.
    pub(super) error: Option<Error>,
    /// Begin of unexplained failures of calls of its own, in a row.
    pub(super) unexplained_since: Option<Instant>,
    /// Cause for which the result was left out.
    result_refused: Option<Error>,
    bytes: usize,
    pub(super) message: SettleMessage,
}

#[derive(Clone, Debug)]
pub(super) enum SettleMessage {
    Ack(AckItem),
    Nack(NackItem),
}

// === impl SettleBuffer ===

impl SettleBuffer {
    pub(super) fn push(&mut self, item: SettleItem) {
        self.bytes += item.bytes;
        self.items.push_back(item);
        self.deadline.get_or_insert_with(|| Instant::now() + BATCH_WAIT);
    }

    /// Returns the time at which the next batch is due.
    pub(super) fn deadline(&self) -> Option<Instant> {
        self.deadline
    }

    /// Makes the waiting items due now.
    pub(super) fn flush_now(&mut self) {
        self.deadline = self.deadline.map(|until| until.min(Instant::now()));
    }

    /// Takes a batch for one call, if one is full, or has been due for this time.
    pub(super) fn take_batch(&mut self, now: Instant, wait: Duration) -> Option<SettleBatch> {
        let full = self.items.len() >= CALL_ITEMS || self.bytes >= CALL_BYTES;
        if !full && self.deadline.is_none_or(|until| until + wait > now) {
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
            self.deadline = None;
        }
        Some(SettleBatch { items, repeats: 0, pauses: Backoff::new(RETRY_BACKOFF) })
    }
}

// === impl SettleBatch ===

impl SettleBatch {
    /// Creates the same batch with other items.
    pub(super) fn with_items(&self, items: Vec<SettleItem>) -> SettleBatch {
        SettleBatch { items, repeats: self.repeats, pauses: self.pauses.clone() }
    }
}

// === impl SettleItem ===

impl SettleItem {
    pub(super) fn new(slot: JobSlot, lease: (Arc<str>, LeaseEnd), outcome: Outcome) -> SettleItem {
        let (receipt, expires) = (lease.0.as_ref().to_owned(), lease.1);
        let (kind, message) = match outcome {
            Outcome::Ack { result, enqueue } => {
                (SettleKind::Ack, SettleMessage::Ack(AckItem { receipt, result, enqueue }))
            }
            Outcome::Retry { error, delay } => {
                (SettleKind::Retry, nack(receipt, NackAction::Retry, error, delay))
            }
            Outcome::Release { error, delay } => {
                (SettleKind::Release, nack(receipt, NackAction::Release, error, delay))
            }
            Outcome::DeadLetter { error } => {
                (SettleKind::DeadLetter, nack(receipt, NackAction::DeadLetter, error, None))
            }
        };
        let bytes = match &message {
            SettleMessage::Ack(ack) => ack.encoded_len(),
            SettleMessage::Nack(nack) => nack.encoded_len(),
        };
        SettleItem {
            slot,
            kind,
            expires,
            outcome_unknown: false,
            error: None,
            unexplained_since: None,
            result_refused: None,
            bytes,
            message,
        }
    }

    /// Returns what is sent in place of an outcome that the server rejects. `None`: the item has nothing that could be
    /// left out. Finished work does not run again for its result; for a follow-up job it does.
    pub(super) fn to_substitute(&self, why: &Error) -> Option<SettleItem> {
        let is_of_follow_up = why.field().is_some_and(|field| field.contains("enqueue"));
        let without_result = match why.code() {
            Code::InvalidArgument if !is_of_follow_up => self.without_result(why),
            _ => None,
        };
        without_result.or_else(|| self.to_handler_failure(why))
    }

    /// Notes that a call of this item alone has failed. If such calls have failed for a whole lease, whose Extends have
    /// passed meanwhile, the result may be the cause and is left out: finished work must not stay open for it.
    pub(super) fn fail_alone(&mut self, error: &Error, now: Instant) {
        if !is_unexplained(error) {
            self.unexplained_since = None;
            return;
        }
        let since = *self.unexplained_since.get_or_insert(now);
        if now >= since + self.expires.duration()
            && let Some(bare) = self.without_result(error)
        {
            *self = bare;
        }
    }

    /// Returns the same Ack without its result, if it has one.
    fn without_result(&self, why: &Error) -> Option<SettleItem> {
        let SettleMessage::Ack(ack @ AckItem { result: Some(_), .. }) = &self.message else {
            return None;
        };
        let ack = AckItem { result: None, ..ack.clone() };
        Some(SettleItem {
            bytes: ack.encoded_len(),
            message: SettleMessage::Ack(ack),
            unexplained_since: None,
            result_refused: Some(why.clone()),
            ..self.clone()
        })
    }

    /// Replaces an outcome that the server rejects by a failure of the handler: a bad follow-up job, a delay of a century.
    fn to_handler_failure(&self, why: &Error) -> Option<SettleItem> {
        let receipt = match &self.message {
            SettleMessage::Ack(ack) if !ack.enqueue.is_empty() => &ack.receipt,
            SettleMessage::Nack(nack) if nack.delay.is_some() => &nack.receipt,
            _ => return None,
        };
        let at = why.field().map(|field| format!(" ({field})")).unwrap_or_default();
        let outcome = Outcome::retry(format_args!("the handler's answer was refused: {why}{at}"));
        let lease = (receipt.as_str().into(), self.expires.clone());
        Some(SettleItem::new(self.slot, lease, outcome))
    }

    pub(super) fn into_settled(self, result: Result<(), Error>) -> SettledJob {
        let result = result.map_err(|error| error.with_earlier_unknown(self.outcome_unknown));
        SettledJob { slot: self.slot, kind: self.kind, result, result_refused: self.result_refused }
    }
}

fn nack(
    receipt: String,
    action: NackAction,
    error: String,
    delay: Option<Duration>,
) -> SettleMessage {
    let (action, delay) = (action.into(), delay.map(to_proto_duration));
    SettleMessage::Nack(NackItem { receipt, action, delay, error: truncate_error(error) })
}

/// Cuts an error text to the length that the contract accepts.
fn truncate_error(mut error: String) -> String {
    let end = error.len().min(ERROR_BYTES_MAX);
    let boundary = (0..=end).rev().find(|end| error.is_char_boundary(*end));
    error.truncate(boundary.unwrap_or_default());
    error
}

#[cfg(test)]
mod tests {
    use super::*;

    fn item(outcome: Outcome) -> SettleItem {
        SettleItem::new(0, ("r".into(), LeaseEnd::new(Instant::now(), Duration::ZERO)), outcome)
    }

    fn large(bytes: usize) -> SettleItem {
        let result = Some(crate::pb::Payload::data(vec![0; bytes]));
        item(Outcome::Ack { result, enqueue: vec![] })
    }

    #[test]
    fn a_group_goes_out_when_it_is_full_or_its_time_has_come() {
        let mut gathering = SettleBuffer::default();
        assert!(gathering.take_batch(Instant::now() + BATCH_WAIT, Duration::ZERO).is_none());
        (0..=CALL_ITEMS).for_each(|_| gathering.push(item(Outcome::ack())));
        let now = Instant::now();
        let full =
            gathering.take_batch(now - BATCH_WAIT, Duration::ZERO).map(|group| group.items.len());
        assert_eq!(full, Some(CALL_ITEMS));
        assert!(
            gathering.take_batch(now - BATCH_WAIT, Duration::ZERO).is_none()
                && gathering.deadline().is_some()
        );
        gathering.flush_now();
        assert_eq!(gathering.take_batch(Instant::now(), Duration::ZERO).unwrap().items.len(), 1);
        assert_eq!((gathering.bytes, gathering.deadline()), (0, None));
    }

    #[test]
    fn groups_are_bounded_by_bytes() {
        let mut gathering = SettleBuffer::default();
        for bytes in [CALL_BYTES, CALL_BYTES / 4, CALL_BYTES / 4, CALL_BYTES, 1] {
            gathering.push(large(bytes));
        }
        let mut take = || {
            gathering
                .take_batch(Instant::now() + BATCH_WAIT, Duration::ZERO)
                .map(|group| group.items.len())
        };
        assert_eq!(
            [take(), take(), take(), take(), take()],
            [Some(1), Some(2), Some(1), Some(1), None]
        );
    }

    #[test]
    fn an_invalid_outcome_becomes_a_handler_failure() {
        let why = Error::usage("items[0].enqueue[0].topic", "bad topic");
        let result = Some(crate::pb::Payload::text("42"));
        let delay = Some(Duration::MAX);
        let enqueue = vec![crate::pb::JobSpec::new("no topic")];
        for outcome in [
            Outcome::Ack { result: None, enqueue: enqueue.clone() },
            Outcome::Ack { result, enqueue },
            Outcome::Release { error: String::new(), delay },
        ] {
            let item = item(outcome).to_substitute(&why).unwrap();
            let SettleMessage::Nack(nack) = &item.message else { panic!("{item:?}") };
            assert_eq!(
                (item.kind, nack.delay, nack.receipt.as_str()),
                (SettleKind::Retry, None, "r")
            );
            let want = "the handler's answer was refused: bad topic (items[0].enqueue[0].topic)";
            assert_eq!(nack.error, want);
            assert!(item.to_substitute(&why).is_none(), "only once");
        }
    }

    #[test]
    fn a_refused_result_is_left_out_and_the_job_stays_acked() {
        let why = Error::usage("items[0].result", "too large");
        let item = large(CALL_BYTES).to_substitute(&why).unwrap();
        let SettleMessage::Ack(ack) = &item.message else { panic!("{item:?}") };
        assert_eq!((ack.receipt.as_str(), &ack.result), ("r", &None));
        assert!(item.bytes < 10, "{} bytes", item.bytes);
        let settled = item.into_settled(Ok(()));
        assert_eq!(settled.result_refused.unwrap().message(), "too large");

        let denied = Error::from(tonic::Status::permission_denied("no right to ack"));
        assert!(large(1).to_substitute(&denied).is_none(), "the result is not the cause");
    }

    #[test]
    fn an_ack_goes_without_its_result_after_unexplained_failures_over_a_whole_lease() {
        let (lease, start) = (Duration::from_secs(30), Instant::now());
        let expires = LeaseEnd::new(start, lease);
        let ack = Outcome::Ack { result: Some(crate::pb::Payload::text("42")), enqueue: vec![] };
        let mut item = SettleItem::new(0, ("r".into(), expires), ack);
        let mut fail = |status: tonic::Status, after: u64| {
            item.fail_alone(&status.into(), start + Duration::from_secs(after));
            matches!(&item.message, SettleMessage::Ack(AckItem { result: Some(_), .. }))
        };
        let (large, outage) =
            (|| tonic::Status::unknown("413"), || tonic::Status::unavailable("no server"));
        for (status, after, keeps_result) in [
            (large(), 0, true),
            (large(), 29, true),
            (outage(), 30, true),
            (large(), 40, true),
            (large(), 69, true),
            (large(), 70, false),
        ] {
            assert_eq!(fail(status, after), keeps_result, "after {after} s");
        }
    }

    #[test]
    fn errors_are_cut_between_characters() {
        assert_eq!(truncate_error("ä".repeat(ERROR_BYTES_MAX)).len(), ERROR_BYTES_MAX);
        assert_eq!(
            truncate_error(format!("a{}", "ä".repeat(ERROR_BYTES_MAX))).len(),
            ERROR_BYTES_MAX - 1
        );
        assert_eq!(truncate_error("short".into()), "short");
    }
}
