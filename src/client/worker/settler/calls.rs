//! Settle and Extend calls, one attempt each.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;
use tonic::{Code, Status};

use super::super::super::{Client, Error, call};
use super::super::leases::JobSlot;
use super::super::{asked_pause, is_permanent, is_unexplained};
use super::batch::{SettleBatch, SettleItem, SettleMessage};
use super::{ExtendOutcome, SettleKind, SettledJob, SettlerEvent};
use crate::pb::{AckRequest, ExtendItem, ExtendRequest, NackRequest, SettleError, SettleFailure};

/// Number of repeats of a batch as a whole after which it is divided though an outage may be the cause.
const WHOLE_REPEATS_MAX: usize = 3;

/// Result of an attempt to settle a batch.
#[derive(Debug, Default)]
pub(super) struct SettleAttempt {
    pub(super) settled: Vec<SettledJob>,
    /// Errors of the items that are sent again.
    pub(super) retry_errors: Vec<(JobSlot, Error)>,
    /// Batches to send again, each after a pause.
    pub(super) retries: Vec<(SettleBatch, Duration)>,
}

/// Sends a batch once.
pub(super) async fn send_batch(
    client: Client,
    limit: Duration,
    mut group: SettleBatch,
) -> SettleAttempt {
    let mut attempt = SettleAttempt::default();
    attempt.give_up(&mut group);
    if group.items.is_empty() {
        return attempt;
    }
    match send(&client, limit, &group).await {
        Ok(failures) => {
            let items = std::mem::take(&mut group.items);
            let again = split_results(items, failures, group.repeats > 0, &mut attempt.settled);
            attempt.retry(group, again, Duration::ZERO);
        }
        Err(status) => attempt.call_failed(group, Error::from(status)),
    }
    attempt
}

// === impl SettleAttempt ===

impl SettleAttempt {
    /// Handles the failure of a whole call, with nothing applied or not known.
    fn call_failed(&mut self, mut group: SettleBatch, error: Error) {
        let has_reason = !error.reason().is_empty();
        if has_reason && matches!(error.code(), Code::InvalidArgument | Code::PermissionDenied) {
            return self.isolate(group, &error);
        }
        let items = std::mem::take(&mut group.items).into_iter();
        if is_permanent(&error) || error.code() == Code::Internal && has_reason {
            self.settled.extend(items.map(|item| item.into_settled(Err(error.clone()))));
            return;
        }
        let mut items: Vec<_> = items.map(|item| (item, error.clone())).collect();
        let pause = asked_pause(&error);
        match items.as_mut_slice() {
            [(only, _)] => only.fail_alone(&error, Instant::now()),
            _ if is_unexplained(&error)
                || is_broken(&error) && group.repeats >= WHOLE_REPEATS_MAX =>
            {
                let rest = items.split_off(items.len() / 2);
                self.retry(group.with_items(Vec::new()), rest, pause);
            }
            _ => {}
        }
        self.retry(group, items, pause);
    }

    /// Schedules a retry of the items whose leases last. A lease that ends in the pause may be extended until then.
    fn retry(&mut self, mut group: SettleBatch, items: Vec<(SettleItem, Error)>, pause: Duration) {
        if items.is_empty() {
            return;
        }
        let pause = pause.max(group.pauses.next_delay());
        let now = Instant::now();
        for (mut item, error) in items {
            item.outcome_unknown |= error.outcome_unknown();
            if now < item.expires.time() {
                self.retry_errors.push((item.slot, error.clone()));
                item.error = Some(error);
                group.items.push(item);
            } else {
                self.settled.push(item.into_settled(Err(error)));
            }
        }
        group.repeats += 1;
        if !group.items.is_empty() {
            self.retries.push((group, pause));
        }
    }

    /// Gives up the items that have failed before and whose leases have ended since.
    fn give_up(&mut self, group: &mut SettleBatch) {
        let now = Instant::now();
        for item in std::mem::take(&mut group.items) {
            match item.error.clone().filter(|_| item.expires.time() <= now) {
                Some(error) => self.settled.push(item.into_settled(Err(error))),
                None => group.items.push(item),
            }
        }
    }

    /// Finds a bad item, which fails the whole call with nothing applied: halving finds it in a few calls.
    fn isolate(&mut self, mut group: SettleBatch, error: &Error) {
        if group.items.len() > 1 {
            let rest = group.items.split_off(group.items.len() / 2);
            self.retries.push((group.with_items(rest), Duration::ZERO));
            self.retries.push((group, Duration::ZERO));
            return;
        }
        for item in std::mem::take(&mut group.items) {
            match item.to_substitute(error) {
                Some(item) => self.retries.push((group.with_items(vec![item]), Duration::ZERO)),
                None => self.settled.push(item.into_settled(Err(error.clone()))),
            }
        }
    }
}

/// Returns whether a call broke on its way, which also looks like an outage: some proxies reset what is too large.
fn is_broken(error: &Error) -> bool {
    error.reason().is_empty() && error.outcome_unknown()
}

/// Splits the items of an answered call: those with a final answer go to `done`, the others are returned.
fn split_results(
    items: Vec<SettleItem>,
    failures: Vec<SettleFailure>,
    repeated: bool,
    done: &mut Vec<SettledJob>,
) -> Vec<(SettleItem, Error)> {
    let index = |failure: &SettleFailure| usize::try_from(failure.index).unwrap_or(usize::MAX);
    let mut failures: HashMap<usize, SettleFailure> =
        failures.into_iter().map(|failure| (index(&failure), failure)).collect();
    let mut again = Vec::new();
    for (index, mut item) in items.into_iter().enumerate() {
        item.unexplained_since = None;
        let Some(failure) = failures.remove(&index) else {
            done.push(item.into_settled(Ok(())));
            continue;
        };
        match failure.error() {
            SettleError::Unavailable => again.push((item, failure.into())),
            // The first attempt was applied, and its answer was lost.
            SettleError::NotFound if repeated && item.kind == SettleKind::Ack => {
                done.push(item.into_settled(Ok(())));
            }
            _ => done.push(item.into_settled(Err(failure.into()))),
        }
    }
    again
}

async fn send(
    client: &Client,
    limit: Duration,
    group: &SettleBatch,
) -> Result<Vec<SettleFailure>, Status> {
    let mut queue = client.queue();
    let (mut acks, mut nacks) = (Vec::new(), Vec::new());
    for item in &group.items {
        match &item.message {
            SettleMessage::Ack(ack) => acks.push(ack.clone()),
            SettleMessage::Nack(nack) => nacks.push(nack.clone()),
        }
    }
    // All items of a batch are of one kind.
    if nacks.is_empty() {
        let request = AckRequest { items: acks };
        let answer =
            call::call_with_timeout(limit, group.repeats, request, |request| queue.ack(request));
        Ok(answer.await?.failures)
    } else {
        let request = NackRequest { items: nacks };
        let answer =
            call::call_with_timeout(limit, group.repeats, request, |request| queue.nack(request));
        Ok(answer.await?.failures)
    }
}

/// Sends an Extend once, as a repeat of this number.
pub(super) async fn extend(
    client: Client,
    limit: Duration,
    repeat: usize,
    leases: Vec<(JobSlot, Arc<str>)>,
) -> SettlerEvent {
    let sent = Instant::now();
    let item = |(_, receipt): &(JobSlot, Arc<str>)| ExtendItem {
        receipt: receipt.as_ref().to_owned(),
        ..Default::default()
    };
    let request = ExtendRequest { items: leases.iter().map(item).collect() };
    let mut queue = client.queue();
    let answer =
        call::call_with_timeout(limit, repeat, request, |request| queue.extend(request)).await;
    let (all, failures) = match answer {
        Ok(answer) => (ExtendOutcome::Extended, answer.failures),
        Err(status) => (ExtendOutcome::Unavailable(status.into()), Vec::new()),
    };
    let mut answers: Vec<_> = leases.into_iter().map(|(slot, _)| (slot, all.clone())).collect();
    for failure in failures {
        let index = usize::try_from(failure.index).unwrap_or(usize::MAX);
        if let Some((_, extended)) = answers.get_mut(index) {
            *extended = match failure.error() {
                SettleError::Unavailable => ExtendOutcome::Unavailable(failure.into()),
                _ => ExtendOutcome::LeaseLost,
            };
        }
    }
    SettlerEvent::Extended(sent, answers)
}

#[cfg(test)]
mod tests {
    use super::super::super::Outcome;
    use super::super::LeaseEnd;
    use super::super::batch::SettleBuffer;
    use super::*;
    use crate::pb::JobSpec;

    const LEASE: Duration = Duration::from_secs(30);

    fn item(slot: JobSlot, outcome: Outcome) -> SettleItem {
        SettleItem::new(slot, ("r".into(), LeaseEnd::new(Instant::now(), LEASE)), outcome)
    }

    fn group(items: JobSlot) -> SettleBatch {
        let mut gathering = SettleBuffer::default();
        (0..items).for_each(|slot| gathering.push(item(slot, Outcome::ack())));
        gathering.take_batch(Instant::now() + LEASE, Duration::ZERO).unwrap()
    }

    fn failure(index: i32, error: SettleError) -> SettleFailure {
        SettleFailure { index, error: error.into(), ..Default::default() }
    }

    /// Returns the finished slots, each with whether it succeeded, and the slots to retry.
    fn sorted(
        repeated: bool,
        failures: Vec<SettleFailure>,
    ) -> (Vec<(JobSlot, bool)>, Vec<JobSlot>) {
        let mut done = Vec::new();
        let again = split_results(group(4).items, failures, repeated, &mut done);
        let done = done.into_iter().map(|ended| (ended.slot, ended.result.is_ok())).collect();
        (done, again.into_iter().map(|(item, _)| item.slot).collect())
    }

    #[test]
    fn each_item_has_its_own_answer() {
        let failures = vec![failure(2, SettleError::Unavailable), failure(1, SettleError::Stale)];
        let expected = (vec![(0, true), (1, false), (3, true)], vec![2]);
        assert_eq!(sorted(false, failures), expected);
    }

    #[test]
    fn a_retried_ack_of_a_missing_job_succeeds() {
        let failures = || vec![failure(0, SettleError::NotFound)];
        assert_eq!(sorted(false, failures()).0[0], (0, false));
        assert_eq!(sorted(true, failures()).0[0], (0, true));
    }

    #[test]
    fn a_bad_item_is_found_by_halves_and_becomes_a_failure() {
        let mut groups = vec![group(100)];
        let enqueue = vec![JobSpec::new("no topic")];
        groups[0].items[37] = item(37, Outcome::Ack { result: None, enqueue });
        let (mut calls, mut retried) = (0, Vec::new());
        while let Some(group) = groups.pop() {
            calls += 1;
            let mut attempt = SettleAttempt::default();
            let is_bad = |item: &SettleItem| item.slot == 37;
            if group.items.iter().any(|item| is_bad(item) && item.kind == SettleKind::Ack) {
                attempt.isolate(group, &Status::invalid_argument("bad").into());
            } else if group.items.iter().any(is_bad) {
                retried.extend(group.items.iter().map(|item| item.kind));
            }
            groups.extend(attempt.retries.into_iter().map(|(group, _)| group));
        }
        assert_eq!(retried, [SettleKind::Retry]);
        assert!(calls <= 16, "{calls} calls");
    }

    /// Ends the leases of a batch now.
    fn end_leases(group: &mut SettleBatch) {
        let end = LeaseEnd::new(Instant::now(), Duration::ZERO);
        group.items.iter_mut().for_each(|item| item.expires = end.clone());
    }

    #[test]
    fn a_repeat_ends_with_the_lease() {
        let error = || Error::from(Status::unavailable("…"));
        let repeat = |mut group: SettleBatch| {
            let items = std::mem::take(&mut group.items).into_iter();
            let mut attempt = SettleAttempt::default();
            attempt.retry(group, items.map(|item| (item, error())).collect(), LEASE);
            attempt
        };
        let mut over = group(3);
        end_leases(&mut over);
        let over = repeat(over);
        assert_eq!((over.settled.len(), over.retries.len()), (3, 0));

        // The pause is as long as the lease, which may be extended meanwhile.
        let mut attempt = repeat(group(3));
        let (mut group, _) = attempt.retries.remove(0);
        attempt.give_up(&mut group);
        assert_eq!((attempt.settled.len(), group.items.len()), (0, 3));
        end_leases(&mut group);
        attempt.give_up(&mut group);
        assert_eq!((attempt.settled.len(), group.items.len()), (3, 0));
    }

    #[test]
    fn a_failed_call_is_divided_if_one_item_may_be_the_cause() {
        use tonic_types::{ErrorDetails, StatusExt as _};
        let with_reason = |code| {
            let details = ErrorDetails::with_error_info("REASON", "ringq.dev", HashMap::new());
            Error::from(Status::with_error_details(code, "", details))
        };
        let calls = |error: Error, repeats| {
            let (mut attempt, mut group) = (SettleAttempt::default(), group(4));
            group.repeats = repeats;
            attempt.call_failed(group, error);
            let retries = attempt.retries.iter().map(|(group, _)| group.items.len()).collect();
            (retries, attempt.settled.len())
        };
        let broken = || Error::from(Status::unavailable("the stream was reset"));
        let not_sent = Error::no_response(Code::Unavailable, "no connection", false);
        for (error, repeats, expected) in [
            (with_reason(Code::InvalidArgument), 0, (vec![2, 2], 0)),
            (with_reason(Code::PermissionDenied), 0, (vec![2, 2], 0)),
            (with_reason(Code::Internal), 0, (vec![], 4)),
            (Status::unknown("413").into(), 0, (vec![2, 2], 0)),
            (Status::permission_denied("a proxy").into(), 0, (vec![2, 2], 0)),
            (Status::resource_exhausted("too often").into(), WHOLE_REPEATS_MAX, (vec![4], 0)),
            (not_sent, WHOLE_REPEATS_MAX, (vec![4], 0)),
            (broken(), 0, (vec![4], 0)),
            (broken(), WHOLE_REPEATS_MAX, (vec![2, 2], 0)),
        ] {
            assert_eq!(calls(error.clone(), repeats), expected, "{error}");
        }
    }

    #[test]
    fn a_lost_response_keeps_the_outcome_unknown() {
        let refused = || Error::from(Status::resource_exhausted("…"));
        let ended = |first: Error| {
            let repeat = |mut group: SettleBatch, error, pause| {
                let mut attempt = SettleAttempt::default();
                let item = group.items.remove(0);
                attempt.retry(group, vec![(item, error)], pause);
                attempt
            };
            let (mut group, _) = repeat(group(1), first, Duration::ZERO).retries.remove(0);
            end_leases(&mut group);
            let mut last = repeat(group, refused(), LEASE);
            last.settled.remove(0).result.unwrap_err().outcome_unknown()
        };
        assert!(ended(Error::from(Status::unavailable("broken"))));
        assert!(!ended(refused()));
    }
}
