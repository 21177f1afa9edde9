//! Repeats must have an explanation.

use super::{
    Delivered, Event, LEASE, MS, Verdict, acked, changed, delivered, delivery, receipt, sound,
    verdict,
};

/// Builds a history in which job 8, never acknowledged in time, is delivered at 1010 ms and again at `at_ms`.
fn repeated(at_ms: u64, more: impl IntoIterator<Item = Event>) -> Verdict {
    verdict(&repeat(at_ms, more))
}

fn repeat(at_ms: u64, more: impl IntoIterator<Item = Event>) -> Vec<Event> {
    let mut events = sound();
    events.retain(|event| !matches!(event, Event::Acked { job: 8, .. }));
    events.extend(more);
    events.push(delivered(8, at_ms, 2));
    events.push(acked(8, at_ms + 20, 2));
    events
}

/// Records that the recorder stood still for 600 ms until then.
fn stalled(at_ms: u64) -> Event {
    Event::Stalled { at: at_ms * MS, length: 600 * MS }
}

#[test]
fn a_second_lease_beside_the_first_is_noticed() {
    assert_eq!(repeated(1150, []).overlap, [8]);
    assert_eq!(repeated(3300, []).overlap, [8], "shortly before the lease ends");
}

#[test]
fn a_lease_that_ran_out_explains_a_repeat() {
    let verdict = repeated(4010, []);
    assert!(verdict.sound(), "{verdict}");
    assert_eq!((verdict.duplicates, verdict.ran_out, verdict.broken), (1, 1, 0));
}

#[test]
fn a_nack_without_answer_explains_a_repeat() {
    let nack = Event::Nack { job: 8, at: 1100 * MS, receipt: receipt(8, 1), failed: false };
    let verdict = repeated(1150, [nack]);
    assert!(verdict.sound() && (verdict.duplicates, verdict.unanswered) == (1, 1), "{verdict}");
}

#[test]
fn a_broken_stream_explains_a_repeat_after_the_grace() {
    let ended = || Event::Ended { stream: 0, at: 1100 * MS };
    let verdict = repeated(2100, [ended()]);
    assert!(verdict.sound() && verdict.broken == 1, "{verdict}");
    assert_eq!(repeated(1450, [ended()]).overlap, [8], "within the grace");
    assert_eq!(repeated(2100, [Event::Ended { stream: 1, at: 0 }]).overlap, [8], "another's");
}

#[test]
fn a_broken_stream_explains_no_more_repeats_than_were_open_on_it() {
    let ended = Event::Ended { stream: 0, at: 1100 * MS };
    let judged = |more: Vec<Event>| {
        let ended = [ended.clone()];
        verdict(&repeat(2100, ended.into_iter().chain(more)))
    };
    let verdict = judged(vec![]);
    assert!(verdict.sound() && (verdict.broken, verdict.open_at_breaks) == (1, 40), "{verdict}");
    // The second lease came when the stream was gone: it was not open when that broke.
    let verdict = judged(vec![delivered(8, 3200, 3), acked(8, 3220, 3)]);
    assert_eq!((verdict.overlap, verdict.beyond), (vec![], vec![8]));
    // Neither was a lease that had been settled by then.
    assert_eq!(judged(vec![acked(8, 1060, 1)]).beyond, [8]);
}

#[test]
fn a_stream_breaks_when_its_server_is_killed_though_it_is_seen_later() {
    let killed = |server| Event::Killed { server, at: 1100 * MS };
    let seen = Event::Ended { stream: 0, at: 2500 * MS };
    assert!(repeated(2100, [killed(0), seen.clone()]).sound());
    assert!(repeated(2100, [Event::Cut { at: 1100 * MS }]).sound());
    assert_eq!(repeated(2100, [killed(1), seen.clone()]).overlap, [8]);
    assert_eq!(repeated(1450, [killed(0), seen]).overlap, [8], "within the grace");
    assert!(repeated(1450, [Event::Cut { at: 1100 * MS }]).sound(), "its lease was not synced");
}

#[test]
fn an_extend_keeps_a_lease() {
    let extended = |at_ms| {
        let (sent, receipt) = (at_ms * MS, receipt(8, 1));
        Event::Extended { job: 8, sent, receipt, lease: LEASE }
    };
    assert_eq!(repeated(4010, [extended(3000)]).overlap, [8]);
    assert!(repeated(6000, [extended(3000)]).sound());
    let ended = || Event::Ended { stream: 0, at: 1100 * MS };
    assert_eq!(repeated(2200, [ended(), extended(1150)]).overlap, [8], "after the break");
    assert!(repeated(2200, [ended(), extended(1020)]).sound(), "long before it");
    let opened = |stream, at_ms| Event::Opened { stream, worker: 0, server: 0, at: at_ms * MS };
    let adopter = |at_ms| {
        let adopted = Event::Ended { stream: 7, at: (at_ms + 10) * MS };
        [opened(0, 900), ended(), extended(1150), opened(7, at_ms), adopted]
    };
    assert!(repeated(2400, adopter(1160)).sound(), "its next stream broke, too");
    assert_eq!(repeated(2400, adopter(1140)).overlap, [8], "and it has spoken for it since");
}

#[test]
fn a_recorder_that_stood_still_gives_the_benefit_of_the_doubt() {
    assert!(repeated(3200, [stalled(3200)]).sound());
    assert_eq!(repeated(2700, [stalled(2700)]).overlap, [8]);
    assert_eq!(repeated(3200, [stalled(9000)]).overlap, [8], "it stood still at another time");
}

#[test]
fn failures_that_no_client_reported_are_noticed() {
    let second = |attempt| {
        verdict(&changed(5, |delivered| {
            if delivered.delivery == 2 {
                delivered.attempt = attempt;
            }
        }))
    };
    assert!(second(1).sound());
    assert_eq!(second(2).miscounted, [5], "it was released");
    assert_eq!(second(0).miscounted, [5], "a count that falls");
}

/// Judges a history in which job 8, whose first lease expired, is delivered again at 4010 ms and acknowledged as
/// given.
fn acked_late(acks: &[(u64, i32)]) -> Vec<u32> {
    let mut events = sound();
    events.retain(|event| !matches!(event, Event::Acked { job: 8, .. }));
    events.push(delivered(8, 4010, 2));
    events.extend(acks.iter().map(|&(at_ms, delivery)| acked(8, at_ms, delivery)));
    verdict(&events).outdated
}

#[test]
fn an_ack_that_counts_under_a_lease_that_is_over_is_noticed() {
    assert_eq!(acked_late(&[(4100, 1)]), [8]);
    assert_eq!(acked_late(&[(4100, 1), (4200, 2)]), [8], "the other one came later");
    assert!(acked_late(&[(4100, 2)]).is_empty());
    assert!(acked_late(&[(4100, 2), (4200, 1)]).is_empty(), "it is done by then");
    assert!(acked_late(&[(4105, 2), (4100, 1)]).is_empty(), "it was under way by then");
}

#[test]
fn two_hand_overs_of_one_number_are_noticed() {
    let again = |at_ms| {
        let receipt = "another".to_owned();
        Event::Delivered(Delivered { receipt, ..delivery(8, at_ms, 1) })
    };
    let acks = |event: &Event| matches!(event, Event::Acked { job: 8, .. });
    let judged = |more: Vec<Event>| {
        let mut events = sound();
        events.retain(|event| !acks(event));
        events.extend(more.into_iter().chain([acked(8, 6000, 1)]));
        verdict(&events)
    };
    assert_eq!(judged(vec![again(4010)]).renumbered, [8], "the lease ran out, which counts");
    let ended = Event::Ended { stream: 0, at: 1100 * MS };
    assert!(judged(vec![ended, again(2100)]).renumbered.is_empty());
    // Its nack was sent, and the power cut before an answer came: the claim may not have been on the disk.
    let (job, receipt) = (8, receipt(8, 1));
    let nack = Event::Nack { job, at: 1090 * MS, receipt: receipt.clone(), failed: true };
    let anew = || {
        let (receipt, stream, stream_since) = ("another".to_owned(), 7, 1500 * MS);
        let again = Delivered { receipt, stream, stream_since, ..delivery(8, 2100, 1) };
        [Event::Cut { at: 1100 * MS }, Event::Delivered(again)]
    };
    let after = |events: Vec<Event>| judged(events.into_iter().chain(anew()).collect()).renumbered;
    assert!(after(vec![nack.clone()]).is_empty());
    let (sent, at, receipt_of_it) = (2110 * MS, 2115 * MS, "another".to_owned());
    let later = Event::Failed { job, sent, at, delivery: 1, attempt: 1, receipt: receipt_of_it };
    assert!(after(vec![nack.clone(), later]).is_empty(), "that was the other one");
    let (sent, at) = (1090 * MS, 1095 * MS);
    let answer = Event::Failed { job, sent, at, delivery: 1, attempt: 1, receipt };
    assert_eq!(after(vec![nack, answer]), [8], "it was");
}
