//! The calls themselves, one attempt each.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;
use tonic::{Code, Status};

use super::super::super::{Client, Error, call};
use super::super::for_good;
use super::super::leases::Slot;
use super::item::{Group, Item, Message};
use super::{Answer, Extended, Kind, Settled};
use crate::pb::{AckRequest, ExtendItem, ExtendRequest, NackRequest, SettleError, SettleFailure};

/// One call takes no longer; then it is repeated, which is safe.
const CALL_TIMEOUT: Duration = Duration::from_secs(10);

/// What an attempt to settle a group has brought.
#[derive(Debug, Default)]
pub(super) struct Attempt {
    pub(super) settled: Vec<Settled>,
    /// Why some are sent again.
    pub(super) delayed: Vec<(Slot, Error)>,
    /// What is to be sent again, after a pause.
    pub(super) again: Vec<(Group, Duration)>,
}

/// Sends a group once.
pub(super) async fn attempt(client: Client, mut group: Group) -> Attempt {
    let mut attempt = Attempt::default();
    match send(&client, &group.items).await {
        Ok(failures) => {
            let items = std::mem::take(&mut group.items);
            let again = sort(items, failures, group.repeated, &mut attempt.settled);
            attempt.repeat(group, again, Duration::ZERO);
        }
        Err(status) if status.code() == Code::InvalidArgument => attempt.isolate(group, status),
        Err(status) => {
            let error = Error::from(status);
            let items = std::mem::take(&mut group.items).into_iter();
            if for_good(&error) {
                attempt.settled.extend(items.map(|item| item.ended(Err(error.clone()))));
            } else {
                let pause = error.retry_after().unwrap_or_default();
                attempt.repeat(group, items.map(|item| (item, error.clone())).collect(), pause);
            }
        }
    }
    attempt
}

// === impl Attempt ===

impl Attempt {
    /// Keeps what has time for another attempt.
    fn repeat(&mut self, mut group: Group, items: Vec<(Item, Error)>, pause: Duration) {
        if items.is_empty() {
            return;
        }
        let pause = pause.max(group.pauses.pause());
        let next = Instant::now() + pause;
        for (mut item, error) in items {
            item.in_doubt |= error.outcome_unknown();
            if next < item.expires {
                self.delayed.push((item.slot, error));
                group.items.push(item);
            } else {
                self.settled.push(item.ended(Err(error)));
            }
        }
        group.repeated = true;
        if !group.items.is_empty() {
            self.again.push((group, pause));
        }
    }

    /// One bad item fails the call of all, with nothing applied: halves find it in a few calls.
    fn isolate(&mut self, mut group: Group, status: Status) {
        let error = Error::from(status);
        if group.items.len() > 1 {
            let rest = group.items.split_off(group.items.len() / 2);
            self.again.push((group.with(rest), Duration::ZERO));
            self.again.push((group, Duration::ZERO));
            return;
        }
        for item in std::mem::take(&mut group.items) {
            match item.without_answer(&error) {
                Some(item) => self.again.push((group.with(vec![item]), Duration::ZERO)),
                None => self.settled.push(item.ended(Err(error.clone()))),
            }
        }
    }
}

/// Sorts the items of an answered call: `done` gets those with a final answer, the others come back.
fn sort(
    items: Vec<Item>,
    failures: Vec<SettleFailure>,
    repeated: bool,
    done: &mut Vec<Settled>,
) -> Vec<(Item, Error)> {
    let index = |failure: &SettleFailure| usize::try_from(failure.index).unwrap_or(usize::MAX);
    let mut failures: HashMap<usize, SettleFailure> =
        failures.into_iter().map(|failure| (index(&failure), failure)).collect();
    let mut again = Vec::new();
    for (index, item) in items.into_iter().enumerate() {
        let Some(failure) = failures.remove(&index) else {
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

async fn send(client: &Client, items: &[Item]) -> Result<Vec<SettleFailure>, Status> {
    let mut queue = client.queue();
    let (mut acks, mut nacks) = (Vec::new(), Vec::new());
    for item in items {
        match &item.message {
            Message::Ack(ack) => acks.push(ack.clone()),
            Message::Nack(nack) => nacks.push(nack.clone()),
        }
    }
    // A group is of one sort.
    if nacks.is_empty() {
        let request = AckRequest { items: acks };
        Ok(call::within(CALL_TIMEOUT, request, |request| queue.ack(request)).await?.failures)
    } else {
        let request = NackRequest { items: nacks };
        Ok(call::within(CALL_TIMEOUT, request, |request| queue.nack(request)).await?.failures)
    }
}

/// Sends an Extend once.
pub(super) async fn extend(client: Client, leases: Vec<(Slot, Arc<str>)>) -> Answer {
    let sent = Instant::now();
    let item = |(_, receipt): &(Slot, Arc<str>)| ExtendItem {
        receipt: receipt.as_ref().to_owned(),
        ..Default::default()
    };
    let request = ExtendRequest { items: leases.iter().map(item).collect() };
    let mut queue = client.queue();
    let answer = call::within(CALL_TIMEOUT, request, |request| queue.extend(request)).await;
    let (all, failures) = match answer {
        Ok(answer) => (Extended::Yes, answer.failures),
        Err(status) => (Extended::NotNow(status.into()), Vec::new()),
    };
    let mut answers: Vec<_> = leases.into_iter().map(|(slot, _)| (slot, all.clone())).collect();
    for failure in failures {
        let index = usize::try_from(failure.index).unwrap_or(usize::MAX);
        if let Some((_, extended)) = answers.get_mut(index) {
            *extended = match failure.error() {
                SettleError::Unavailable => Extended::NotNow(failure.into()),
                _ => Extended::Gone,
            };
        }
    }
    Answer::Extended(sent, answers)
}

#[cfg(test)]
mod tests {
    use super::super::super::Outcome;
    use super::super::item::Gathering;
    use super::*;

    const LEASE: Duration = Duration::from_secs(30);

    fn group(items: Slot) -> Group {
        let lease = || ("r".into(), Instant::now() + LEASE);
        let mut gathering = Gathering::default();
        (0..items).for_each(|slot| gathering.push(Item::new(slot, lease(), Outcome::ack())));
        gathering.take_due(Instant::now() + LEASE).unwrap()
    }

    fn failure(index: i32, error: SettleError) -> SettleFailure {
        SettleFailure { index, error: error.into(), ..Default::default() }
    }

    /// The slots that are done, with whether that is well, and those that are repeated.
    fn sorted(repeated: bool, failures: Vec<SettleFailure>) -> (Vec<(Slot, bool)>, Vec<Slot>) {
        let mut done = Vec::new();
        let again = sort(group(4).items, failures, repeated, &mut done);
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
    fn a_repeated_ack_of_a_job_that_is_gone_has_counted() {
        let failures = || vec![failure(0, SettleError::NotFound)];
        assert_eq!(sorted(false, failures()).0[0], (0, false));
        assert_eq!(sorted(true, failures()).0[0], (0, true));
    }

    #[test]
    fn a_bad_item_is_found_by_halves_and_becomes_a_failure() {
        let mut groups = vec![group(100)];
        let (mut calls, mut retried) = (0, Vec::new());
        while let Some(group) = groups.pop() {
            calls += 1;
            let mut attempt = Attempt::default();
            let is_bad = |item: &Item| item.slot == 37;
            if group.items.iter().any(|item| is_bad(item) && item.kind == Kind::Ack) {
                attempt.isolate(group, Status::invalid_argument("bad"));
            } else if group.items.iter().any(is_bad) {
                retried.extend(group.items.iter().map(|item| item.kind));
            }
            groups.extend(attempt.again.into_iter().map(|(group, _)| group));
        }
        assert_eq!(retried, [Kind::Retry]);
        assert!(calls <= 16, "{calls} calls");
    }

    #[test]
    fn a_repeat_ends_with_the_lease() {
        let error = || Error::from(Status::unavailable("…"));
        let late = |mut group: Group, pause| {
            let items = std::mem::take(&mut group.items);
            let mut attempt = Attempt::default();
            attempt.repeat(group, items.into_iter().map(|item| (item, error())).collect(), pause);
            (attempt.settled.len(), attempt.again.iter().map(|(g, _)| g.items.len()).sum())
        };
        assert_eq!(late(group(3), Duration::ZERO), (0, 3_usize));
        assert_eq!(late(group(3), LEASE), (3, 0));
    }

    #[test]
    fn a_lost_answer_is_remembered_to_the_end() {
        let refused = || Error::from(Status::resource_exhausted("…"));
        let ended = |first: Error| {
            let repeat = |mut group: Group, error, pause| {
                let mut attempt = Attempt::default();
                let item = group.items.remove(0);
                attempt.repeat(group, vec![(item, error)], pause);
                attempt
            };
            let (group, _) = repeat(group(1), first, Duration::ZERO).again.remove(0);
            let mut last = repeat(group, refused(), LEASE);
            last.settled.remove(0).result.unwrap_err().outcome_unknown()
        };
        assert!(ended(Error::from(Status::unavailable("broken"))));
        assert!(!ended(refused()));
    }
}
