//! The checker itself: a sound history passes, and each way to spoil it is found.

/// Jobs that are deleted before they are due.
mod deletions;
/// Answers that a shard may have held back when it died.
mod forgotten;
/// Exclusive leases.
mod leases;
/// Jobs with a retry policy of their own.
mod retries;

use super::history::{Delivered, Event, Nanos};
use super::{Verdict, check};

const JOBS: u32 = 50;
const MS: Nanos = 1_000_000;
const DELAY: Nanos = 1000 * MS;
const LEASE: Nanos = 3000 * MS;
const GRACE: Nanos = 1000 * MS;

/// Builds a sound history. Each job: enqueued at 10 ms, answered at 20, delivered when due, acknowledged 190 later.
/// Every fifth is nacked first, with a wait of 100; every other of those as a failure.
fn sound() -> Vec<Event> {
    (0..JOBS).flat_map(life).collect()
}

fn life(job: u32) -> Vec<Event> {
    let mut events = vec![
        Event::Enqueue { job, at: 10 * MS, delay: DELAY },
        Event::Enqueued { job, at: 20 * MS, fsynced: true, id: id(job) },
        delivered(job, 1010, 1),
    ];
    let mut last = 1;
    if job.is_multiple_of(5) {
        let (at, failed) = (1020 * MS, job.is_multiple_of(10));
        events.push(Event::Nack { job, at, receipt: receipt(job, 1), failed });
        events.push(Event::Nacked { job, sent: at, delivery: 1, delay: 100 * MS });
        last = 2;
        let attempt = 1 + i32::from(failed);
        events.push(Event::Delivered(Delivered { attempt, ..delivery(job, 1120, last) }));
    }
    events.push(acked(job, 1200, last));
    events
}

fn acked(job: u32, at_ms: u64, delivery: i32) -> Event {
    let (sent, at) = ((at_ms - 10) * MS, at_ms * MS);
    Event::Acked { job, sent, at, delivery, receipt: receipt(job, delivery) }
}

fn delivered(job: u32, at_ms: u64, number: i32) -> Event {
    Event::Delivered(delivery(job, at_ms, number))
}

fn delivery(job: u32, at_ms: u64, number: i32) -> Delivered {
    Delivered {
        job: Some(job),
        id: id(job),
        at: at_ms * MS,
        server: 0,
        stream: 0,
        stream_since: 0,
        delivery: number,
        attempt: 1,
        receipt: receipt(job, number),
        lease: LEASE,
        grace: GRACE,
        intact: true,
    }
}

fn id(job: u32) -> String {
    format!("job-{job}")
}

fn receipt(job: u32, delivery: i32) -> String {
    format!("{job}/{delivery}")
}

fn verdict(events: &[Event]) -> Verdict {
    check(JOBS, events)
}

/// Builds a sound history, except that `change` is applied to the deliveries of `job`.
fn changed(job: u32, change: impl Fn(&mut Delivered)) -> Vec<Event> {
    let mut events = sound();
    for event in &mut events {
        if let Event::Delivered(delivered) = event
            && delivered.job == Some(job)
        {
            change(delivered);
        }
    }
    events
}

#[test]
fn a_sound_history_passes() {
    let verdict = verdict(&sound());
    assert!(verdict.sound(), "{verdict}");
    let counts = (verdict.enqueued, verdict.acked, verdict.deliveries, verdict.duplicates);
    assert_eq!(counts, (50, 50, 60, 0));
    assert_eq!((verdict.exist, verdict.buried, verdict.broken, verdict.ran_out), (50, 0, 0, 0));
}

#[test]
fn a_dropped_job_is_lost() {
    let mut events = sound();
    events.retain(|event| {
        !matches!(
            event,
            Event::Delivered(Delivered { job: Some(7), .. }) | Event::Acked { job: 7, .. }
        )
    });
    assert_eq!(verdict(&events).lost, [7]);
}

#[test]
fn a_job_without_ack_is_lost() {
    let mut events = sound();
    events.retain(|event| !matches!(event, Event::Acked { job: 7, .. }));
    assert_eq!(verdict(&events).lost, [7]);
}

#[test]
fn a_follow_up_that_never_runs_is_lost() {
    let mut events = sound();
    events.retain(|event| match event {
        Event::Enqueued { job, .. } | Event::Acked { job, .. } => *job != 7,
        Event::Delivered(delivered) => delivered.job != Some(7),
        _ => true,
    });
    events.push(Event::FollowsOn { job: 7, after: 6, at: 1200 * MS });
    assert_eq!(verdict(&events).lost, [7]);
}

#[test]
fn a_dead_letter_is_not_lost_and_must_not_come_again() {
    let mut events = sound();
    events.retain(|event| !matches!(event, Event::Acked { job: 7, .. }));
    events.push(Event::Buried { job: 7, at: 1200 * MS, delivery: 1, receipt: receipt(7, 1) });
    let passed = verdict(&events);
    assert!(passed.sound() && passed.buried == 1, "{passed}");
    events.push(delivered(7, 9000, 2));
    assert_eq!(verdict(&events).after_ack, [7]);
}

#[test]
fn an_unanswered_enqueue_may_vanish() {
    let mut events = sound();
    events.retain(|event| match event {
        Event::Enqueued { job, .. } | Event::Acked { job, .. } => *job != 7,
        Event::Delivered(delivered) => delivered.job != Some(7),
        _ => true,
    });
    let verdict = verdict(&events);
    assert!(verdict.sound() && verdict.exist == 49, "{verdict}");
}

#[test]
fn a_delivery_after_the_ack_is_noticed() {
    let mut events = sound();
    events.push(delivered(8, 1300, 2));
    assert_eq!(verdict(&events).after_ack, [8]);
}

#[test]
fn a_delivery_that_starts_counting_again_is_noticed() {
    let mut events = sound();
    let again =
        Delivered { stream_since: 1900 * MS, receipt: "new".to_owned(), ..delivery(5, 2000, 1) };
    events.push(Event::Delivered(again));
    assert_eq!(verdict(&events).after_ack, [5]);
}

#[test]
fn a_message_read_late_is_a_duplicate_and_allowed() {
    let mut events = sound();
    let receipt = "late".to_owned();
    let late = Delivered { server: 1, stream: 1, receipt, ..delivery(5, 1300, 1) };
    events.extend([Event::Killed { server: 1, at: 50 * MS }, Event::Delivered(late)]);
    let verdict = verdict(&events);
    assert!(verdict.sound(), "{verdict}");
    assert_eq!(verdict.duplicates, 1);
}

#[test]
fn what_a_server_sent_before_its_cut_may_be_read_after_the_ack_of_the_next_one() {
    let left_over = |since_ms, cut| {
        let left_over = Delivered {
            stream_since: since_ms * MS,
            receipt: "sent by the server that was cut".to_owned(),
            ..delivery(8, 1300, 1)
        };
        let mut events = sound();
        events.extend([cut, Event::Delivered(left_over)]);
        verdict(&events).after_ack
    };
    let at = 1100 * MS;
    assert!(left_over(1000, Event::Cut { at }).is_empty());
    assert_eq!(left_over(1110, Event::Cut { at }), [8], "a stream of the next server");
    assert!(left_over(1000, Event::Killed { server: 0, at }).is_empty());
    assert_eq!(left_over(1000, Event::Killed { server: 1, at }), [8], "another server");
}

#[test]
fn an_early_delivery_is_noticed() {
    assert_eq!(verdict(&changed(9, |delivered| delivered.at -= 1)).early, [9]);
}

#[test]
fn a_delivery_before_the_wait_of_a_nack_is_noticed() {
    let second = |delivered: &mut Delivered| delivered.at -= u64::from(delivered.delivery == 2);
    assert_eq!(verdict(&changed(5, second)).early, [5]);
}

#[test]
fn one_job_under_two_ids_is_noticed() {
    let second = |delivered: &mut Delivered| {
        if delivered.delivery == 2 {
            "another".clone_into(&mut delivered.id);
        }
    };
    assert_eq!(verdict(&changed(5, second)).doubled, [5]);
    let mut events = sound();
    events.push(Event::Enqueued { job: 4, at: 30 * MS, fsynced: true, id: "another".to_owned() });
    assert_eq!(verdict(&events).doubled, [4]);
}

#[test]
fn damage_strangers_and_reused_receipts_are_noticed() {
    let mut events = changed(9, |delivered| delivered.intact = false);
    let stranger = Delivered { job: None, ..delivery(3, 1100, 1) };
    events.push(Event::Delivered(stranger));
    let verdict = verdict(&events);
    assert_eq!((verdict.damaged, verdict.unexpected, verdict.reused), (vec![9], 1, 1));
}
