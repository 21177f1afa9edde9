//! Jobs with a retry policy of their own.

use super::{Delivered, Event, JOBS, LEASE, MS, Verdict, acked, check, delivery, receipt, sound};
use crate::checker::history::Policy;

/// Waits of at least 50, 100, 100 ms.
const POLICY: Policy =
    Policy { initial: 100 * MS, factor: 2, longest: 200 * MS, jitter_percent: 50, attempts_max: 3 };
const JOB: u32 = 7;

/// Builds a sound history in which the job is replaced: enqueued with a policy, and `more` follows.
fn with(more: impl IntoIterator<Item = Event>) -> Vec<Event> {
    let mut events = sound();
    events.retain(|event| match event {
        Event::Acked { job, .. } => *job != JOB,
        Event::Delivered(delivered) => delivered.job != Some(JOB),
        _ => true,
    });
    events.push(Event::Retried { job: JOB, policy: POLICY });
    events.extend(more);
    events
}

fn judged(events: &[Event]) -> Verdict {
    check(JOBS, events)
}

fn attempt(at_ms: u64, number: i32, attempt: i32) -> Event {
    Event::Delivered(Delivered { attempt, ..delivery(JOB, at_ms, number) })
}

/// Builds a failure that is sent then and answered 5 ms later.
fn failed(sent_ms: u64, number: i32, attempt: i32) -> [Event; 2] {
    let (sent, at, receipt) = (sent_ms * MS, (sent_ms + 5) * MS, receipt(JOB, number));
    [
        Event::Nack { job: JOB, at: sent, receipt: receipt.clone(), failed: true },
        Event::Failed { job: JOB, sent, at, delivery: number, attempt, receipt },
    ]
}

/// Builds deliveries at these times, each failing 10 ms later.
fn fails(times_ms: &[u64]) -> Vec<Event> {
    let mut events = Vec::new();
    for (number, at_ms) in (1..).zip(times_ms) {
        events.push(attempt(*at_ms, number, number));
        events.extend(failed(at_ms + 10, number, number));
    }
    with(events)
}

#[test]
fn attempts_that_are_used_up_make_a_dead_letter() {
    let mut events = fails(&[1010, 1070, 1180]);
    events.push(Event::DeadLetters { jobs: vec![JOB] });
    let verdict = judged(&events);
    assert!(verdict.sound(), "{verdict}");
    assert_eq!((verdict.buried, verdict.given_up, verdict.acked), (1, 1, 49));
    assert_eq!(verdict.duplicates, 0, "failures ask for more");
    events.push(attempt(1175, 3, 3));
    assert_eq!(judged(&events).duplicates, 1, "the last one does not");
}

#[test]
fn one_that_succeeds_before_is_acknowledged() {
    let mut events = fails(&[1010, 1070]);
    events.extend([attempt(1180, 3, 3), acked(JOB, 1200, 3)]);
    let verdict = judged(&events);
    assert!(verdict.sound() && verdict.acked == 50, "{verdict}");
}

#[test]
fn a_wait_that_is_shorter_than_the_policy_asks_for_is_noticed() {
    assert_eq!(judged(&fails(&[1010, 1069])).hurried, [JOB], "the first");
    assert_eq!(judged(&fails(&[1010, 1070, 1179])).hurried, [JOB], "the second");
    assert!(judged(&fails(&[1010, 1070, 1180])).hurried.is_empty());
}

#[test]
fn the_longest_wait_bounds_the_policy() {
    let policy = Policy { attempts_max: 9, ..POLICY };
    let last = |at_ms| {
        let mut events = fails(&[1010, 1070, 1180]);
        events.extend([Event::Retried { job: JOB, policy }, attempt(at_ms, 4, 4)]);
        judged(&events).hurried
    };
    assert_eq!(last(1289), [JOB]);
    assert!(last(1290).is_empty());
}

#[test]
fn an_attempt_more_than_allowed_is_noticed() {
    let mut events = fails(&[1010, 1070, 1180]);
    events.push(attempt(1290, 4, 4));
    let verdict = judged(&events);
    assert_eq!((verdict.overtried, verdict.after_ack), (vec![JOB], vec![JOB]));
}

#[test]
fn a_failure_that_is_not_counted_is_noticed() {
    let mut events = fails(&[1010]);
    events.extend([attempt(1070, 2, 1), acked(JOB, 1100, 2)]);
    assert_eq!(judged(&events).miscounted, [JOB]);
}

#[test]
fn dead_letters_are_listed_once_each_and_no_others() {
    let listed = |jobs: &[u32]| {
        let mut events = fails(&[1010, 1070, 1180]);
        events.push(Event::DeadLetters { jobs: jobs.to_vec() });
        judged(&events).misfiled
    };
    assert!(listed(&[JOB]).is_empty());
    assert_eq!(listed(&[]), [JOB], "there is none");
    assert_eq!(listed(&[JOB, JOB]), [JOB], "there are two");
    assert_eq!(listed(&[3, JOB]), [3], "one that was acknowledged");
}

/// Builds the event that the job was found among the dead letters.
fn found(at_ms: u64) -> Event {
    let (at, receipt) = (at_ms * MS, String::new());
    Event::Buried { job: JOB, at, delivery: i32::MAX, receipt }
}

#[test]
fn one_that_is_given_up_with_attempts_left_is_noticed() {
    let lease_ms = LEASE / MS;
    let forsaken = |at_ms| {
        let mut events = fails(&[1010, 1070]);
        events.push(found(at_ms));
        judged(&events).forsaken
    };
    assert_eq!(forsaken(1200), [JOB], "the third attempt was not seen");
    assert!(forsaken(1070 + lease_ms).is_empty(), "its lease may have run out");
    let mut events = fails(&[1010, 1070]);
    events.extend([attempt(1180, 3, 3), found(1200)]);
    assert!(judged(&events).sound(), "the last failure was not answered");
}

#[test]
fn one_without_a_policy_is_given_up_only_when_asked_for() {
    let mut events = with([attempt(1010, 1, 1), found(60_000)]);
    events.retain(|event| !matches!(event, Event::Retried { .. }));
    assert_eq!(judged(&events).forsaken, [JOB]);
    events.push(Event::Bury { job: JOB, at: 1020 * MS });
    assert!(judged(&events).sound());
}
