//! Ack, Nack and Extend.
//!
//! A malformed receipt is not an error of the request: it is returned among the failures, and the other items are
//! applied. Any other violation refuses the whole call.

use crate::domain::lifecycle::LeaseEndCause;
use crate::domain::{JobKey, Receipt, ReceiptKey, ReceiptProof, ShardName, limit};
use crate::pb;
use crate::scheduler::{
    AckItem, Draft, EnqueueError, ExtendItem, NackItem, SettleError, SettleResult,
};

use super::number::to_int32;
use super::payload::{self, payload};
use super::spec::{EnqueueTerms, SpecContext, draft};
use super::time::{self, DELAY, LEASE};
use super::{Checks, FieldPath, InvalidRequest, enums, text_for_people};

/// Items of one call, separated from those whose receipt settles nothing.
#[derive(Debug)]
pub(crate) struct SettleItems<I> {
    /// Items for the scheduler.
    valid: Vec<I>,
    /// Jobs of forged receipts.
    forged: Vec<JobKey>,
    /// Receipts of the call as they were sent.
    receipts: Vec<(String, ReceiptCheck)>,
}

/// Result of a look at the receipt of an item.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ReceiptCheck {
    /// The item goes to the scheduler.
    Passed,
    /// Its receipt is malformed.
    Malformed,
    /// No server has made its receipt. Answered like one of a lease that is over: that reveals nothing.
    Forged,
    /// The shard of its receipt was not reached yet, or is not configured here.
    Unknown,
    /// The caller has no right to its job, which does not exist for it.
    Hidden,
}

/// Reads an Ack request: jobs to complete.
pub(crate) fn ack(
    request: pb::AckRequest,
    context: SpecContext<'_>,
    key_of: impl Fn(&ShardName) -> Option<ReceiptKey>,
) -> Result<SettleItems<AckItem>, InvalidRequest> {
    let pb::AckRequest { items } = request;
    self::items(items, key_of, |checks, path, item| {
        let pb::AckItem { receipt, result, enqueue } = item;
        let result = payload(checks, path.field("result"), result);
        let own = match enqueue.is_empty() {
            true => None,
            false => Receipt::decode(&receipt, |_| None).map(|(own, _)| own.key),
        };
        let follow_ups = follow_ups(checks, path, enqueue, context);
        for (index, follow_up) in &follow_ups {
            let path = path.item("enqueue", *index);
            check_id(checks, path.field("id"), follow_up, own.as_ref());
        }
        let follow_ups = follow_ups.into_iter().map(|(_, follow_up)| follow_up).collect();
        (receipt, move |receipt| AckItem { receipt, result, follow_ups })
    })
}

/// Refuses a follow-up that would be lost, because its id is the id of the job which its item completes, and one
/// under an id that a server made for another job. Jobs of other items are not compared: a retry may complete a job
/// together with the follow-up that it has written the first time.
fn check_id(checks: &mut Checks, path: FieldPath<'_>, follow_up: &Draft, own: Option<&JobKey>) {
    let Some(id) = &follow_up.id else { return };
    let key = JobKey { topic: follow_up.topic.clone(), id: id.clone() };
    if own == Some(&key) {
        let text = "names the job that this item completes, so KEEP would drop it; choose another id, or \
                    before the Ack enqueue it with REPLACE, which defers it until the job ends";
        checks.invalid(path, text);
    } else if id.shard().is_some() && own.is_some_and(|own| own.id != *id) {
        checks.invalid(
            path,
            "was made by a server for another job than the one that this item completes",
        );
    }
}

/// Reads a Nack request: jobs to fail, release or dead-letter.
pub(crate) fn nack(
    request: pb::NackRequest,
    key_of: impl Fn(&ShardName) -> Option<ReceiptKey>,
) -> Result<SettleItems<NackItem>, InvalidRequest> {
    let pb::NackRequest { items } = request;
    self::items(items, key_of, |checks, path, item| {
        let pb::NackItem { receipt, action, delay, error } = item;
        let action = enums::nack_action(checks, path.field("action"), action);
        let delay = time::duration(checks, path.field("delay"), delay.as_ref(), &DELAY);
        let error = text_for_people(error, limit::ERROR_BYTES_MAX);
        let cause = match action.unwrap_or_default() {
            pb::NackAction::Unspecified | pb::NackAction::Retry => {
                LeaseEndCause::Failed { delay, error }
            }
            pb::NackAction::Release => LeaseEndCause::Released { delay, error },
            pb::NackAction::DeadLetter => LeaseEndCause::DeadLettered { error },
        };
        (receipt, move |receipt| NackItem { receipt, cause })
    })
}

/// Reads an Extend request: leases to extend.
pub(crate) fn extend(
    request: pb::ExtendRequest,
    key_of: impl Fn(&ShardName) -> Option<ReceiptKey>,
) -> Result<SettleItems<ExtendItem>, InvalidRequest> {
    let pb::ExtendRequest { items } = request;
    self::items(items, key_of, |checks, path, item| {
        let pb::ExtendItem { receipt, lease_duration, progress, checkpoint } = item;
        let lease = path.field("lease_duration");
        let duration = time::duration(checks, lease, lease_duration.as_ref(), &LEASE);
        let progress = Some(progress).filter(|note| !note.is_empty());
        let progress = progress.map(|note| text_for_people(note, limit::PROGRESS_BYTES_MAX));
        let checkpoint = payload::checkpoint(checks, path.field("checkpoint"), checkpoint);
        (receipt, move |receipt| ExtendItem { receipt, duration, progress, checkpoint })
    })
}

/// Converts each item to its receipt and a function that makes the item from the decoded receipt, if a server of its shard
/// has made it.
fn items<P, I, F: FnOnce(Receipt) -> I>(
    given: Vec<P>,
    key_of: impl Fn(&ShardName) -> Option<ReceiptKey>,
    mut convert: impl FnMut(&mut Checks, FieldPath<'_>, P) -> (String, F),
) -> Result<SettleItems<I>, InvalidRequest> {
    let (mut checks, root) = (Checks::default(), FieldPath::ROOT);
    checks.between_one_and(root.field("items"), given.len(), limit::SETTLE_ITEMS_MAX);
    let mut good = Vec::with_capacity(given.len());
    let mut forged = Vec::new();
    let mut receipts = Vec::with_capacity(given.len());
    for (index, item) in given.into_iter().enumerate() {
        let (text, with) = convert(&mut checks, root.item("items", index), item);
        let check = match Receipt::decode(&text, &key_of) {
            Some((receipt, ReceiptProof::Genuine)) => {
                good.push(with(receipt));
                ReceiptCheck::Passed
            }
            Some((receipt, ReceiptProof::Forged)) => {
                forged.push(receipt.key);
                ReceiptCheck::Forged
            }
            Some((_, ReceiptProof::Unknown)) => ReceiptCheck::Unknown,
            None => ReceiptCheck::Malformed,
        };
        receipts.push((text, check));
    }
    checks.finish(Some(SettleItems { valid: good, forged, receipts }))
}

/// Returns the valid follow-ups, with their indexes.
fn follow_ups(
    checks: &mut Checks,
    path: FieldPath<'_>,
    given: Vec<pb::JobSpec>,
    context: SpecContext<'_>,
) -> Vec<(usize, Draft)> {
    checks.at_most_items(path.field("enqueue"), given.len(), limit::FOLLOW_UPS_MAX);
    let specs = given.into_iter().take(limit::FOLLOW_UPS_MAX).enumerate();
    let one = |(index, spec)| {
        let terms = EnqueueTerms::default();
        draft(checks, path.item("enqueue", index), spec, terms, context).map(|d| (index, d))
    };
    specs.filter_map(one).collect()
}

// === impl SettleItems ===

/// Receipts of a call, for the report of its failures.
#[derive(Debug)]
pub(crate) struct ItemReceipts(Vec<(String, ReceiptCheck)>);

impl<I> SettleItems<I> {
    /// Returns the jobs of forged receipts.
    pub(crate) fn forged(&self) -> &[JobKey] {
        &self.forged
    }

    /// Returns the items with a genuine receipt.
    pub(crate) fn valid(&self) -> &[I] {
        &self.valid
    }

    /// Splits into the items for the scheduler, which are those that `is_allowed`, and the receipts for the answer.
    pub(crate) fn split(self, is_allowed: impl Fn(&I) -> bool) -> (Vec<I>, ItemReceipts) {
        let SettleItems { valid, forged: _, mut receipts } = self;
        let genuine = receipts.iter_mut().filter(|(_, check)| *check == ReceiptCheck::Passed);
        let mut allowed = Vec::with_capacity(valid.len());
        for ((_, check), item) in genuine.zip(valid) {
            if is_allowed(&item) {
                allowed.push(item);
            } else {
                *check = ReceiptCheck::Hidden;
            }
        }
        (allowed, ItemReceipts(receipts))
    }
}

impl ItemReceipts {
    /// Returns the failures among `results`, which belong to the valid items in their order.
    pub(crate) fn failures(self, results: Vec<SettleResult>) -> Vec<pb::SettleFailure> {
        let mut results = results.into_iter();
        let mut failures = Vec::new();
        let mut next = |check| if check == ReceiptCheck::Passed { results.next() } else { None };
        for (index, (receipt, check)) in self.0.into_iter().enumerate() {
            let (error, message) = match (check, next(check)) {
                (ReceiptCheck::Malformed, _) => {
                    (pb::SettleError::Malformed, "this is not a receipt of this system".into())
                }
                (ReceiptCheck::Forged, _) => to_settle_error(&SettleError::Stale),
                (ReceiptCheck::Hidden, _) => to_settle_error(&SettleError::NotFound),
                (ReceiptCheck::Passed, Some(Ok(()))) => continue,
                (ReceiptCheck::Passed, Some(Err(error))) => to_settle_error(&error),
                (ReceiptCheck::Passed, None) => {
                    (pb::SettleError::Unavailable, "repeat with the same receipt".into())
                }
                (ReceiptCheck::Unknown, _) => {
                    let text = "the shard of the receipt was not reached yet, or is not configured here; repeat with the \
                                same receipt";
                    (pb::SettleError::Unavailable, text.into())
                }
            };
            let index = to_int32(index);
            failures.push(pb::SettleFailure { index, receipt, error: error.into(), message });
        }
        failures
    }
}

/// Converts an error of a settle to text with advice for the client. The text of the shard is in the server's log.
fn to_settle_error(error: &SettleError) -> (pb::SettleError, String) {
    match error {
        SettleError::NotFound => (pb::SettleError::NotFound, error.to_string()),
        SettleError::Stale => (pb::SettleError::Stale, error.to_string()),
        SettleError::Unavailable(_) | SettleError::Full(_) => {
            (pb::SettleError::Unavailable, error.to_string())
        }
        SettleError::FollowUp(why) => {
            let why = match &**why {
                EnqueueError::Store { error, .. } => {
                    format!("shard {} did not answer, or refused", error.shard)
                }
                other => other.to_string(),
            };
            let message =
                format!("a follow-up job is not confirmed: {why}; repeat with the same receipt");
            (pb::SettleError::Unavailable, message)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::refused;
    use super::*;
    use crate::domain::{JobId, Time, Token, TopicName};
    use crate::scheduler::ShardError;
    use prost_types::Duration;

    const CONTEXT: SpecContext<'static> = SpecContext { now: Time(0), trace: None };

    const KEY: ReceiptKey = ReceiptKey::new(7);

    fn key(shard: &ShardName) -> Option<ReceiptKey> {
        Some(KEY).filter(|_| shard.as_str() == "s0")
    }

    fn receipt() -> String {
        receipt_of("s0", Some(KEY))
    }

    fn receipt_of(shard: &str, receipt_key: Option<ReceiptKey>) -> String {
        let key = JobKey { topic: TopicName::stored("t"), id: JobId::stored("i") };
        let shard = ShardName::try_new(shard).unwrap();
        Receipt { shard, owner: 1, stream: 2, token: Token(3), key }.encode(receipt_key)
    }

    fn fields<T>(result: Result<T, InvalidRequest>) -> Vec<String> {
        refused(result).into_iter().map(|(field, reason)| format!("{field} {reason}")).collect()
    }

    #[test]
    fn a_call_has_one_to_a_thousand_items() {
        let item = pb::AckItem { receipt: receipt(), ..Default::default() };
        let cases = [
            (0, vec!["items INVALID_FIELD"]),
            (1, vec![]),
            (1000, vec![]),
            (1001, vec!["items TOO_LARGE"]),
        ];
        for (count, expected) in cases {
            let request = pb::AckRequest { items: vec![item.clone(); count] };
            assert_eq!(fields(ack(request, CONTEXT, key)), expected, "{count}");
        }
    }

    #[test]
    fn one_bad_item_refuses_an_ack_with_its_path() {
        type SetAckField = fn(&mut pb::AckItem);
        let follow_up = || pb::JobSpec { topic: "t".into(), ..Default::default() };
        let cases: [(SetAckField, &[&str]); 4] = [
            (
                |i| {
                    let data = vec![0; limit::PAYLOAD_BYTES_MAX + 1].into();
                    let kind = Some(pb::payload::Kind::Data(data));
                    i.result = Some(pb::Payload { kind, ..Default::default() });
                },
                &["items[1].result TOO_LARGE"],
            ),
            (|i| i.enqueue[1].topic.clear(), &["items[1].enqueue[1].topic INVALID_FIELD"]),
            (|i| i.enqueue[0].group = "g h".into(), &["items[1].enqueue[0].group INVALID_FIELD"]),
            (|i| i.enqueue = vec![i.enqueue[0].clone(); 17], &["items[1].enqueue TOO_LARGE"]),
        ];
        for (set, expected) in cases {
            let good = pb::AckItem {
                receipt: receipt(),
                enqueue: vec![follow_up(), follow_up()],
                ..Default::default()
            };
            let mut bad = good.clone();
            set(&mut bad);
            let request = pb::AckRequest { items: vec![good, bad] };
            assert_eq!(fields(ack(request, CONTEXT, key)), expected);
        }
    }

    #[test]
    fn nacks_are_checked() {
        type SetNackField = fn(&mut pb::NackItem);
        let cases: [(SetNackField, &[&str]); 5] = [
            (|i| i.error = "e".repeat(4096), &[]),
            (|i| i.error = "e".repeat(4097), &[]),
            (|i| i.action = 4, &["items[0].action INVALID_FIELD"]),
            (|i| i.delay = Some(Duration::default()), &[]),
            (
                |i| i.delay = Some(Duration { seconds: -1, nanos: 0 }),
                &["items[0].delay INVALID_FIELD"],
            ),
        ];
        for (set, expected) in cases {
            let mut item = pb::NackItem { receipt: receipt(), ..Default::default() };
            set(&mut item);
            assert_eq!(fields(nack(pb::NackRequest { items: vec![item] }, key)), expected);
        }
    }

    #[test]
    fn extends_are_checked() {
        type SetExtendField = fn(&mut pb::ExtendItem);
        let cases: [(SetExtendField, &[&str]); 7] = [
            (|i| i.checkpoint = Some(pb::Payload::default()), &[]),
            (|i| i.checkpoint = Some(pb::Payload::data(vec![0; 64 << 10])), &[]),
            (
                |i| i.checkpoint = Some(pb::Payload::data(vec![0; (64 << 10) + 1])),
                &["items[0].checkpoint TOO_LARGE"],
            ),
            (|i| i.progress = "p".repeat(1024), &[]),
            (|i| i.progress = "p".repeat(1025), &[]),
            (
                |i| i.lease_duration = Some(Duration::default()),
                &["items[0].lease_duration INVALID_FIELD"],
            ),
            (
                |i| i.lease_duration = Some(Duration { seconds: 86_401, nanos: 0 }),
                &["items[0].lease_duration INVALID_FIELD"],
            ),
        ];
        for (set, expected) in cases {
            let mut item = pb::ExtendItem { receipt: receipt(), ..Default::default() };
            set(&mut item);
            assert_eq!(fields(extend(pb::ExtendRequest { items: vec![item] }, key)), expected);
        }
    }

    #[test]
    fn actions_become_causes() {
        let cause = |action: pb::NackAction| {
            let item = pb::NackItem {
                receipt: receipt(),
                action: action.into(),
                delay: Some(Duration { seconds: 5, nanos: 0 }),
                error: "e".into(),
            };
            nack(pb::NackRequest { items: vec![item] }, key).unwrap().valid.remove(0).cause
        };
        let (delay, error) = (Some(std::time::Duration::from_secs(5)), "e".to_owned());
        let failed = LeaseEndCause::Failed { delay, error: error.clone() };
        assert_eq!(cause(pb::NackAction::Unspecified), failed);
        assert_eq!(cause(pb::NackAction::Retry), failed);
        let released = LeaseEndCause::Released { delay, error: error.clone() };
        assert_eq!(cause(pb::NackAction::Release), released);
        assert_eq!(cause(pb::NackAction::DeadLetter), LeaseEndCause::DeadLettered { error });
    }

    #[test]
    fn a_receipt_that_no_server_of_its_shard_made_is_stale_and_one_of_an_unknown_shard_waits() {
        let forged = [receipt_of("s0", None), receipt_of("s0", Some(ReceiptKey::new(8)))];
        let elsewhere = receipt_of("s1", Some(KEY));
        let [first, second] = forged.clone();
        let texts = [first, receipt(), elsewhere, second];
        let item = |receipt| pb::NackItem { receipt, ..Default::default() };
        let items = nack(pb::NackRequest { items: texts.map(item).into() }, key).unwrap();
        assert_eq!((items.forged().len(), items.valid().len()), (2, 1));
        let (good, receipts) = items.split(|_| true);
        assert_eq!(good.len(), 1);
        let failures = receipts.failures(vec![Ok(())]);
        let reported: Vec<_> = failures.iter().map(|f| (f.index, f.error())).collect();
        let (stale, later) = (pb::SettleError::Stale, pb::SettleError::Unavailable);
        assert_eq!(reported, [(0, stale), (2, later), (3, stale)]);
        assert_eq!(failures[0].message, SettleError::Stale.to_string(), "it reveals nothing more");
    }

    #[test]
    fn a_malformed_receipt_fails_alone_and_keeps_its_index() {
        let item = |receipt: &str| pb::ExtendItem { receipt: receipt.into(), ..Default::default() };
        let good = receipt();
        let request = pb::ExtendRequest {
            items: vec![item(&good), item("nonsense"), item(&good), item(""), item(&good)],
        };
        let (good_items, receipts) = extend(request, key).unwrap().split(|_| true);
        assert_eq!(good_items.len(), 3);
        let error = ShardError::unavailable(&ShardName::try_new("s0").unwrap(), "disk /secret");
        let follow_up = EnqueueError::Store { error, id: None };
        let unavailable = SettleError::FollowUp(Box::new(follow_up));
        let results = vec![Ok(()), Err(SettleError::Stale), Err(unavailable)];
        let failures = receipts.failures(results);
        let reported: Vec<_> = failures.iter().map(|f| (f.index, &*f.receipt, f.error())).collect();
        assert_eq!(
            reported,
            [
                (1, "nonsense", pb::SettleError::Malformed),
                (2, &*good, pb::SettleError::Stale),
                (3, "", pb::SettleError::Malformed),
                (4, &*good, pb::SettleError::Unavailable),
            ]
        );
        let message = &failures[3].message;
        assert!(message.contains("shard s0") && !message.contains("secret"), "{message}");
    }
}
