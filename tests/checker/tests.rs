//! The checker itself: a sound history passes, and each way of spoiling it is noticed.

use super::history::{Delivered, Event, Nanos};
use super::{Verdict, check};

const JOBS: u32 = 50;
const DELAY: Nanos = 1000;

/// Each job: asked at 10, answered at 20, delivered when due, acknowledged 10 later. Every fifth is
/// nacked first, with a wait of 100.
fn sound() -> Vec<Event> {
    (0..JOBS).flat_map(life).collect()
}

fn life(job: u32) -> Vec<Event> {
    let mut events = vec![
        Event::Enqueue { job, at: 10, delay: DELAY },
        Event::Enqueued { job, at: 20, fsynced: true },
        delivered(job, 10 + DELAY, 1),
    ];
    let mut delivery = 1;
    if job.is_multiple_of(5) {
        events.push(Event::Nacked { job, sent: 1020, delivery, delay: 100 });
        delivery = 2;
        events.push(delivered(job, 1120, delivery));
    }
    events.push(Event::Acked { job, at: 1200, delivery, receipt: receipt(job, delivery) });
    events
}

fn delivered(job: u32, at: Nanos, delivery: i32) -> Event {
    let receipt = receipt(job, delivery);
    let job = Some(job);
    Event::Delivered(Delivered { job, at, stream_since: 0, delivery, receipt, intact: true })
}

fn receipt(job: u32, delivery: i32) -> String {
    format!("{job}/{delivery}")
}

fn verdict(events: &[Event]) -> Verdict {
    check(JOBS, events, true)
}

#[test]
fn a_sound_history_passes() {
    let verdict = verdict(&sound());
    assert!(verdict.sound(), "{verdict}");
    let counts = (verdict.enqueued, verdict.acked, verdict.deliveries, verdict.duplicates);
    assert_eq!(counts, (50, 50, 60, 0));
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
fn an_unanswered_enqueue_may_vanish() {
    let mut events = sound();
    events.retain(|event| match event {
        Event::Enqueued { job, .. } | Event::Acked { job, .. } => *job != 7,
        Event::Delivered(delivered) => delivered.job != Some(7),
        _ => true,
    });
    assert!(verdict(&events).sound());
}

#[test]
fn only_synced_answers_bind_across_a_power_cut() {
    let mut events = sound();
    events.retain(|event| !matches!(event, Event::Acked { job: 7, .. }));
    for event in &mut events {
        if let Event::Enqueued { job: 7, fsynced, .. } = event {
            *fsynced = false;
        }
    }
    assert!(check(JOBS, &events, true).sound());
    assert_eq!(check(JOBS, &events, false).lost, [7]);
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
    let repeat = Delivered {
        job: Some(5),
        at: 2000,
        stream_since: 1900,
        delivery: 1,
        receipt: "new".to_owned(),
        intact: true,
    };
    events.push(Event::Delivered(repeat));
    assert_eq!(verdict(&events).after_ack, [5]);
}

#[test]
fn a_repeat_before_the_ack_is_a_duplicate_and_allowed() {
    let mut events = sound();
    events.push(delivered(8, 1150, 2));
    let verdict = verdict(&events);
    assert!(verdict.sound(), "{verdict}");
    assert_eq!(verdict.duplicates, 1);
}

#[test]
fn a_message_read_late_is_a_duplicate_and_allowed() {
    let mut events = sound();
    let late = Event::Delivered(Delivered {
        job: Some(5),
        at: 1300,
        stream_since: 0,
        delivery: 1,
        receipt: "late".to_owned(),
        intact: true,
    });
    events.push(late);
    assert!(verdict(&events).sound());
}

#[test]
fn what_a_server_sent_before_its_cut_may_be_read_after_the_ack_of_the_next_one() {
    let left_over = |stream_since| {
        let delivered = Delivered {
            job: Some(8),
            at: 1300,
            stream_since,
            delivery: 1,
            receipt: "sent by the server that was cut".to_owned(),
            intact: true,
        };
        let mut events = sound();
        events.extend([Event::Cut { at: 1100 }, Event::Delivered(delivered)]);
        verdict(&events)
    };
    assert!(left_over(1000).sound());
    assert_eq!(left_over(1110).after_ack, [8], "a stream of the next server");
}

#[test]
fn an_early_delivery_is_noticed() {
    let mut events = sound();
    for event in &mut events {
        if let Event::Delivered(Delivered { job: Some(9), at, .. }) = event {
            *at -= 1;
        }
    }
    assert_eq!(verdict(&events).early, [9]);
}

#[test]
fn a_delivery_before_the_wait_of_a_nack_is_noticed() {
    let mut events = sound();
    for event in &mut events {
        if let Event::Delivered(Delivered { job: Some(5), at, delivery: 2, .. }) = event {
            *at -= 1;
        }
    }
    assert_eq!(verdict(&events).early, [5]);
}

#[test]
fn damage_strangers_and_reused_receipts_are_noticed() {
    let mut events = sound();
    for event in &mut events {
        if let Event::Delivered(Delivered { job: Some(9), intact, .. }) = event {
            *intact = false;
        }
    }
    let Event::Delivered(mut stranger) = delivered(3, 1100, 1) else { unreachable!() };
    stranger.job = None;
    events.push(Event::Delivered(stranger));
    let verdict = verdict(&events);
    assert_eq!((verdict.damaged, verdict.unexpected, verdict.reused), (vec![9], 1, 1));
}
