//! Jobs that are deleted before they are due.

use super::{Delivered, Event, JOBS, MS, Verdict, acked, check, delivered, delivery, sound};
use crate::checker::history::Was;

const JOB: u32 = 7;

/// Builds a sound history, except for the job: its deletion is sent at 30 ms and answered at 40, and `more` follows.
fn deleted(was: Option<Was>, more: impl IntoIterator<Item = Event>) -> Verdict {
    let mut events = sound();
    events.retain(|event| match event {
        Event::Acked { job, .. } => *job != JOB,
        Event::Delivered(delivered) => delivered.job != Some(JOB),
        _ => true,
    });
    events.push(Event::Delete { job: JOB, at: 30 * MS });
    events.extend(was.map(|was| Event::Deleted { job: JOB, at: 40 * MS, was }));
    events.extend(more);
    check(JOBS, &events)
}

#[test]
fn what_is_deleted_is_not_lost_but_cancelled() {
    let verdict = deleted(Some(Was::Scheduled), []);
    assert!(verdict.sound(), "{verdict}");
    assert_eq!((verdict.exist, verdict.acked, verdict.cancelled, verdict.either), (50, 49, 1, 0));
}

#[test]
fn a_delivery_after_the_deletion_is_noticed() {
    let came = || delivered(JOB, 1010, 1);
    assert_eq!(deleted(Some(Was::Scheduled), [came()]).after_delete, [JOB]);
    assert!(deleted(Some(Was::Open), [came()]).after_delete.is_empty(), "it was on its way");
    let late = Delivered { stream_since: 1000 * MS, ..delivery(JOB, 1010, 1) };
    let late = || Event::Delivered(late.clone());
    assert_eq!(deleted(Some(Was::Open), [late()]).after_delete, [JOB], "its stream is younger");
    assert_eq!(deleted(Some(Was::Over), [late()]).after_delete, [JOB], "it had ended");
}

#[test]
fn what_a_server_sent_before_its_cut_may_be_read_after_a_deletion() {
    let came = Delivered { server: 1, ..delivery(JOB, 1010, 1) };
    let cut = |server| Event::Killed { server, at: 35 * MS };
    let after = |cut| deleted(Some(Was::Scheduled), [cut, Event::Delivered(came.clone())]);
    assert!(after(cut(1)).after_delete.is_empty());
    assert_eq!(after(cut(0)).after_delete, [JOB], "another server");
}

#[test]
fn an_ack_that_counts_after_the_deletion_is_noticed() {
    let verdict = deleted(Some(Was::Open), [delivered(JOB, 35, 1), acked(JOB, 50, 1)]);
    assert_eq!(verdict.outdated, [JOB]);
}

#[test]
fn a_deletion_that_found_nothing_explains_no_loss() {
    assert_eq!(deleted(Some(Was::Over), []).lost, [JOB]);
    let verdict = deleted(Some(Was::Over), [delivered(JOB, 1010, 1), acked(JOB, 1200, 1)]);
    assert!(verdict.sound() && verdict.acked == 50, "{verdict}");
}

#[test]
fn a_deletion_without_answer_may_have_happened() {
    let verdict = deleted(None, []);
    assert!(verdict.sound() && verdict.cancelled == 1, "{verdict}");
    let verdict = deleted(None, [delivered(JOB, 1010, 1), acked(JOB, 1200, 1)]);
    assert!(verdict.sound() && (verdict.acked, verdict.cancelled) == (50, 0), "{verdict}");
    // It was ended by an ack whose answer was lost, or by the deletion.
    let verdict = deleted(None, [delivered(JOB, 1010, 1), acked(JOB, 1200, i32::MAX)]);
    assert!(verdict.sound() && (verdict.acked, verdict.either) == (49, 1), "{verdict}");
}
