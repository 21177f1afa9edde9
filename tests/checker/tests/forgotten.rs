//! Answers that a shard may have held back when it died are no loss; all others are.

use super::{Delivered, Event, MS, Verdict, acked, delivered, delivery, receipt, sound, verdict};

/// The shard of all jobs, unless a test names another one.
const SHARD: &str = "s1";

/// Builds the death of the shard, which may have held back its answers in this span.
fn held_back(from_ms: u64, to_ms: u64) -> Event {
    Event::HeldBack { shard: SHARD.to_owned(), from: from_ms * MS, to: to_ms * MS }
}

fn lies_on(job: u32, shard: &str) -> Event {
    Event::LiesOn { job, shard: shard.to_owned() }
}

/// Builds a history in which job 7 was answered at 20 ms and never delivered. It lies on this shard, the others are
/// elsewhere.
fn gone(shard: &str, fsynced: bool, more: impl IntoIterator<Item = Event>) -> Verdict {
    let mut events = sound();
    events.retain(|event| match event {
        Event::Delivered(delivered) => delivered.job != Some(7),
        Event::Acked { job, .. } => *job != 7,
        _ => true,
    });
    for event in &mut events {
        if let Event::Enqueued { job: 7, fsynced: known, .. } = event {
            *known = fsynced;
        }
    }
    events.push(lies_on(7, shard));
    events.extend((0..7).chain(8..super::JOBS).map(|job| lies_on(job, "s0")));
    events.extend(more);
    verdict(&events)
}

#[test]
fn a_job_that_was_answered_shortly_before_its_shard_died_may_be_gone() {
    let verdict = gone(SHARD, false, [held_back(15, 300)]);
    assert!(verdict.sound(), "{verdict}");
    assert_eq!((verdict.held_back, verdict.doubtful, verdict.exist), (vec![7], vec![7], 50));
}

#[test]
fn a_job_that_was_answered_before_that_is_lost() {
    let verdict = gone(SHARD, false, [held_back(21, 300)]);
    assert_eq!((verdict.lost, verdict.held_back), (vec![7], vec![]));
}

#[test]
fn a_job_that_was_answered_after_that_is_lost() {
    assert_eq!(gone(SHARD, false, [held_back(1, 19)]).lost, [7]);
}

#[test]
fn a_job_of_another_shard_is_lost() {
    assert_eq!(gone("s2", false, [held_back(15, 300)]).lost, [7]);
}

#[test]
fn a_job_that_was_answered_synced_is_lost() {
    assert_eq!(gone(SHARD, true, [held_back(15, 300)]).lost, [7]);
}

#[test]
fn a_job_that_was_answered_again_after_the_death_is_lost() {
    let again = Event::Enqueued { job: 7, at: 400 * MS, fsynced: false, id: super::id(7) };
    assert_eq!(gone(SHARD, false, [held_back(15, 300), again]).lost, [7]);
}

/// A shard holds back the end of the log, not its middle.
#[test]
fn a_job_that_one_asked_for_later_has_outlived_is_lost() {
    let later = |asked_ms, more: Option<Event>| {
        let events = [
            Event::Enqueue { job: 9, at: asked_ms * MS, delay: 0 },
            Event::Enqueued { job: 9, at: 50 * MS, fsynced: false, id: super::id(9) },
            lies_on(9, SHARD),
        ];
        // Recorded before all other events about it.
        let mut all = sound();
        all.retain(|event| match event {
            Event::Enqueue { job, .. }
            | Event::Enqueued { job, .. }
            | Event::Acked { job: job @ 7, .. } => !matches!(job, 7 | 9),
            Event::Delivered(delivered) => delivered.job != Some(7),
            _ => true,
        });
        let asked = Event::Enqueue { job: 7, at: 10 * MS, delay: 0 };
        let answered = Event::Enqueued { job: 7, at: 20 * MS, fsynced: false, id: super::id(7) };
        all.extend([asked, answered, lies_on(7, SHARD)].into_iter().chain(events));
        all.extend(more.into_iter().chain([held_back(5, 300)]));
        verdict(&all)
    };
    let (after, beside) = (later(21, None), later(19, None));
    let twice = later(21, Some(Event::Again { job: 9, at: 60 * MS }));
    assert_eq!((after.lost, after.held_back), (vec![7], vec![]));
    assert_eq!((beside.lost, beside.held_back), (vec![], vec![7]), "they were written at once");
    assert_eq!((twice.lost, twice.held_back), (vec![], vec![7]), "it may have been written anew");
}

#[test]
fn what_an_ack_has_written_may_be_gone_with_it() {
    let follow_up = |at_ms| {
        let mut events = sound();
        events.retain(|event| match event {
            Event::Enqueued { job, .. } | Event::Acked { job, .. } => *job != 7,
            Event::Delivered(delivered) => delivered.job != Some(7),
            _ => true,
        });
        let written = Event::FollowsOn { job: 7, after: 6, at: at_ms * MS };
        events.extend([written, held_back(1150, 1300)]);
        verdict(&events)
    };
    assert_eq!(follow_up(1200).held_back, [7], "its shard is unknown");
    assert_eq!(follow_up(1100).lost, [7]);
}

/// Builds a history in which job 8, acknowledged at 1200 ms, comes again then and is acknowledged again.
fn comes_again(at_ms: u64, more: impl IntoIterator<Item = Event>) -> Verdict {
    let mut events = sound();
    events.extend([delivered(8, at_ms, 2), acked(8, at_ms + 100, 2)]);
    events.extend(more);
    verdict(&events)
}

#[test]
fn an_ack_that_was_answered_shortly_before_its_shard_died_may_be_undone() {
    let verdict = comes_again(9000, [held_back(1150, 1300)]);
    assert!(verdict.sound() && verdict.undone == 1, "{verdict}");
    assert_eq!(comes_again(9000, [held_back(1201, 1300)]).after_ack, [8], "it is older");
    let elsewhere = comes_again(9000, [held_back(1150, 1300), lies_on(8, "s2")]);
    assert_eq!(elsewhere.after_ack, [8]);
}

#[test]
fn an_ack_holds_until_its_shard_dies() {
    let verdict = comes_again(1250, [held_back(1150, 1300)]);
    assert_eq!((verdict.after_ack, verdict.undone), (vec![8], 0));
}

#[test]
fn every_death_has_its_own_end() {
    let spans = || [held_back(1150, 1300), held_back(8950, 9200)];
    let third = |at_ms| {
        let third = Delivered { receipt: "third".into(), ..delivery(8, at_ms, 3) };
        [Event::Delivered(third)]
    };
    let verdict = comes_again(9000, spans().into_iter().chain(third(15_000)));
    assert!(verdict.sound() && verdict.undone == 1, "{verdict}");
    assert_eq!(comes_again(9000, spans().into_iter().chain(third(9150))).after_ack, [8]);
    let soon = [held_back(1150, 8900), held_back(1160, 9200)];
    let verdict = comes_again(9000, soon);
    assert!(verdict.sound(), "the second begins after the first: {verdict}");
}

#[test]
fn a_job_that_is_gone_after_a_death_may_be_forgotten() {
    let found = |at_ms, more: Vec<Event>| {
        let mut events = sound();
        events.retain(|event| !matches!(event, Event::Acked { job: 8, .. }));
        let (at, receipt) = (at_ms * MS, String::new());
        events.push(Event::Acked { job: 8, sent: 0, at, delivery: i32::MAX, receipt });
        events.push(Event::FollowsOn { job: 7, after: 8, at });
        // In the same way job 8 proves nothing about 7.
        events.retain(|event| match event {
            Event::Enqueued { job, .. } | Event::Acked { job, .. } => *job != 7,
            Event::Delivered(delivered) => delivered.job != Some(7),
            _ => true,
        });
        let again = Delivered { stream_since: 8000 * MS, ..delivery(8, 9000, 2) };
        events.extend([Event::Delivered(again), acked(8, 9100, 2)]);
        events.extend(more);
        verdict(&events)
    };
    let (forgotten, done) = (found(1500, vec![held_back(1000, 1300)]), found(1500, vec![]));
    assert!(forgotten.sound() && forgotten.held_back == [7], "{forgotten}");
    assert_eq!((done.after_ack, done.lost), (vec![8], vec![7]));
}

/// Numbers begin again when leases are lost.
#[test]
fn a_nack_states_nothing_of_what_came_before_it() {
    let mut events = sound();
    let (sent, delay) = (9000 * MS, 100 * MS);
    events.push(Event::Nacked { job: 5, sent, delivery: 1, delay });
    assert!(verdict(&events).early.is_empty());
}

#[test]
fn the_second_ack_holds() {
    let third = Event::Delivered(Delivered { receipt: "third".into(), ..delivery(8, 15_000, 3) });
    assert_eq!(comes_again(9000, [held_back(1150, 1300), third]).after_ack, [8]);
}

/// Builds a history in which job 8 is delivered at 1010 ms and again at 2500 under the same number: the lease is of
/// 3000.
fn handed_over_again(more: impl IntoIterator<Item = Event>) -> Verdict {
    let mut events = sound();
    events.retain(|event| !matches!(event, Event::Acked { job: 8, .. }));
    let again = Delivered { receipt: "again".into(), stream: 1, ..delivery(8, 2500, 1) };
    events.extend([Event::Delivered(again), acked(8, 2600, 1)]);
    events.extend(more);
    verdict(&events)
}

#[test]
fn a_lease_that_began_shortly_before_its_shard_died_may_be_forgotten() {
    assert!(handed_over_again([held_back(1000, 1300)]).sound());
    let older = handed_over_again([held_back(1011, 1300)]);
    assert_eq!((older.overlap, older.renumbered), (vec![8], vec![8]));
}

#[test]
fn an_extend_that_may_be_forgotten_keeps_no_lease() {
    let extended =
        Event::Extended { job: 8, sent: 3000 * MS, receipt: receipt(8, 1), lease: 9000 * MS };
    let repeated = |more: Vec<Event>| {
        let mut events = sound();
        events.retain(|event| !matches!(event, Event::Acked { job: 8, .. }));
        events.extend([extended.clone(), delivered(8, 5000, 2), acked(8, 5100, 2)]);
        events.extend(more);
        verdict(&events)
    };
    assert_eq!(repeated(vec![]).overlap, [8]);
    assert!(repeated(vec![held_back(2900, 3300)]).sound());
    assert_eq!(repeated(vec![held_back(3700, 3900)]).overlap, [8]);
}

#[test]
fn a_job_whose_last_ack_was_undone_may_be_a_dead_letter() {
    let judged = |dead: Vec<u32>| {
        let mut events = sound();
        events.extend([lies_on(7, SHARD), held_back(1100, 1300)]);
        events.extend((0..7).chain(8..super::JOBS).map(|job| lies_on(job, "s0")));
        events.push(Event::DeadLetters { jobs: dead });
        verdict(&events)
    };
    let (acked, dead, wrong) = (judged(vec![]), judged(vec![7]), judged(vec![8]));
    assert_eq!((acked.acked, acked.buried, acked.misfiled), (50, 0, vec![]));
    assert_eq!((dead.acked, dead.buried, dead.misfiled), (49, 1, vec![]));
    assert_eq!((wrong.acked, wrong.buried, wrong.misfiled), (50, 0, vec![8]));
}
