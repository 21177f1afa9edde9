//! Moves to a crash topic.

use super::*;

/// Returns the decision about a job whose worker has crashed for the last time that it may.
fn crashed(record: Record, crash_move: CrashMove) -> Decision {
    let policy = RetryPolicy { max_crashes: Some(1), ..RetryPolicy::default() };
    let SettleAction::Unacked(unacked) = unacked(LeaseEndCause::WorkerCrashed) else {
        panic!("no ack")
    };
    run(record, settle(SettleAction::Unacked(Unacked { policy, crash_move, ..unacked })))
}

fn settled_state(decision: &Decision) -> State {
    match &decision.reply {
        CommandReply::Settled(Ok(settled)) => settled.state,
        reply => panic!("{reply:?}"),
    }
}

#[test]
fn a_job_that_its_crash_topic_has_is_removed_as_dead() {
    let decision = crashed(job(At::State(State::Running)), CrashMove::Copied);
    assert_eq!(decision.change, RecordChange::Remove);
    assert_eq!(decision.parts, PartChanges::drop_all());
    assert_eq!((settled_state(&decision), decision.effects.counters.dead), (State::Dead, 0));
    assert_eq!(decision.effects.final_state, Some(State::Dead));
    let (_, change) = decision.effects.lease.unwrap();
    assert_eq!(change, LeaseChange::Settled);
}

#[test]
fn a_job_that_its_crash_topic_rejects_is_dead_and_has_the_reason() {
    for (crash_move, reason) in [
        (CrashMove::None, "allows no more"),
        (CrashMove::Rejected("topic x has another".to_owned()), "; topic x has another"),
    ] {
        let decision = crashed(job(At::State(State::Running)), crash_move);
        let record = written(&decision);
        assert_eq!(settled_state(&decision), State::Dead);
        assert!(record.history.last_error.ends_with(reason), "{}", record.history.last_error);
        assert_eq!(decision.parts.payload, PayloadChange::Keep);
        assert_eq!(decision.parts.attempts.added[0].error, record.history.last_error);
    }
}

/// The caller decided on what it had read: the engine removes nothing that may still run.
#[test]
fn only_the_last_crash_removes_a_job_and_never_one_with_a_next_generation() {
    let record = job(At::State(State::Running));
    let SettleAction::Unacked(plain) = unacked(LeaseEndCause::WorkerCrashed) else { panic!() };
    for cause in [LeaseEndCause::WorkerCrashed, LeaseEndCause::StreamBroken, failed()] {
        let crash_move = CrashMove::Copied;
        let unacked = Unacked { cause, crash_move, ..plain.clone() };
        let decision = run(record.clone(), settle(SettleAction::Unacked(unacked)));
        assert_eq!(written(&decision).phase, Phase::Waiting);
    }
    let crash_move = CrashMove::Copied;
    let cause = LeaseEndCause::DeadLettered { error: String::new() };
    let unacked = Unacked { cause, crash_move, ..plain };
    let decision = run(record, settle(SettleAction::Unacked(unacked)));
    assert_eq!(settled_state(&decision), State::Dead);
    assert!(matches!(written(&decision).phase, Phase::Finished(_)), "a dead letter of its worker");
    let decision = crashed(job(At::Next), CrashMove::Copied);
    assert_eq!(written(&decision).phase, Phase::Waiting);
    assert_eq!(decision.effects.counters.dead, 0);
}

#[test]
fn a_job_from_another_topic_brings_its_last_error() {
    let error = "it crashed".to_owned();
    let enqueue = |on_conflict| {
        let history = CarriedHistory { last_error: error.clone(), ..CarriedHistory::default() };
        let new = Enqueue { history: history.boxed(), ..new("b", on_conflict) };
        Command::Enqueue(Box::new(new))
    };
    let created = apply(IdLookup::Absent(IdHistory::Free), &enqueue(OnConflict::Reject), NOW);
    let RecordChange::Insert(record) = &created.change else { panic!("{created:?}") };
    assert_eq!((&record.history.last_error, record.history.crashes), (&error, 0));
    let over = run(job(At::State(State::Dead)), enqueue(OnConflict::Replace));
    assert_eq!(written(&over).history.last_error, error);
    let taken = run(job(At::State(State::Dead)), enqueue(OnConflict::Reject));
    assert_eq!(taken.change, RecordChange::Keep);
}
