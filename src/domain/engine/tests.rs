mod crash;

use std::time::Duration;

use super::*;
use crate::domain::conflict::request_code;
use crate::domain::lifecycle::LeaseEndCause;
use crate::domain::{
    AttemptOutcome, EnqueueOutcome, GroupName, OnConflict, Payload, RetentionRule, RetryOverrides,
    RetryPolicy, Spec, StreamId, Time, Token, TopicName, When, limit,
};

const NOW: Time = Time(1_000_000_000);
const MINUTE: Duration = Duration::from_secs(60);
const TOKEN: Token = Token(77);

/// State in which a job is found.
#[derive(Clone, Copy, Debug, PartialEq)]
enum At {
    State(State),
    /// RUNNING, with a waiting generation.
    Next,
}

fn all() -> impl Iterator<Item = At> {
    State::ALL.into_iter().map(At::State).chain([At::Next])
}

fn name(at: At) -> String {
    match at {
        At::State(state) => state.name().to_owned(),
        At::Next => "running, one waits".to_owned(),
    }
}

fn payload(body: &'static str) -> Payload {
    Payload { text: true, body: body.into(), content_type: String::new() }
}

fn new(body: &'static str, on_conflict: OnConflict) -> Enqueue {
    Enqueue {
        spec: Spec { payload: Some(payload(body)), ..Spec::default() },
        due: When::Now,
        priority: None,
        expire: None,
        retention: RetentionRule::Record(MINUTE),
        on_conflict,
        request_code: None,
        precondition: WritePrecondition::Anything,
        max_waiting: None,
        max_bytes: None,
        history: None,
    }
}

fn lease() -> Lease {
    Lease {
        token: TOKEN,
        started: NOW.minus(MINUTE),
        deadline: NOW.plus(MINUTE).into(),
        extended: None,
        owner: 7,
        stream: 3,
        grace: None,
        duration: MINUTE * 2,
        worker: "w".into(),
    }
}

/// Returns a job that is in this state at [`NOW`] and whose record is kept.
fn job(at: At) -> Record {
    let state = match at {
        At::State(state) => state,
        At::Next => State::Running,
    };
    let ahead = matches!(state, State::Scheduled | State::Backoff);
    let own = NextGenerationSpec {
        keep: RetentionRule::Nothing,
        bytes: 4,
        spec: Spec::default(),
        has_payload: true,
    };
    let (due, created) = (NOW.plus(MINUTE), NOW);
    let next = NextGeneration { priority: 5, due, expire: None, created, replacement: Some(own) };
    Record {
        phase: match state {
            State::Scheduled | State::Ready | State::Backoff => Phase::Waiting,
            State::Running => Phase::Running(lease()),
            state => {
                Phase::Finished(Finish { state, at: NOW.into(), until: NOW.plus(MINUTE).into() })
            }
        },
        priority: 2,
        due: (if ahead { NOW.plus(MINUTE) } else { NOW.minus(MINUTE) }).into(),
        expire: None,
        created: NOW.minus(MINUTE).into(),
        retention: RetentionRule::Record(MINUTE),
        request_code: None,
        bytes: 4,
        spec: Spec::default(),
        history: JobHistory { failures: u32::from(state == State::Backoff), ..JobHistory::new(1) },
        next: (at == At::Next).then(|| Box::new(next)),
    }
}

fn enqueue(new: Enqueue) -> Command {
    Command::Enqueue(Box::new(new))
}

fn run(record: Record, command: Command) -> Decision {
    apply(IdLookup::Record(Box::new(record)), &command, NOW)
}

fn settle(end: SettleAction) -> Command {
    Command::Settle(Settle { token: TOKEN, deadline: None, action: end })
}

fn ack() -> Command {
    settle(SettleAction::Ack { result: Some(payload("done")), follow_ups: Vec::new() })
}

/// Returns the command that ends the lease of [`job`] for `cause` under the server's own policy.
fn end(cause: LeaseEndCause) -> Command {
    settle(unacked(cause))
}

fn unacked(cause: LeaseEndCause) -> SettleAction {
    let policy = RetryPolicy::default();
    let crash_move = CrashMove::None;
    SettleAction::Unacked(Unacked {
        cause,
        policy,
        entropy: 0.0,
        dead_retention: MINUTE,
        crash_move,
    })
}

fn failed() -> LeaseEndCause {
    LeaseEndCause::Failed { delay: None, error: "no".into() }
}

fn released() -> LeaseEndCause {
    LeaseEndCause::Released { delay: None, error: String::new() }
}

fn redrive() -> Command {
    let states = State::ALL.into_iter().filter(|state| state.is_terminal()).collect();
    Command::Redrive(Redrive {
        states,
        delay: Duration::ZERO,
        spacing: Duration::ZERO,
        ttl: None,
        target: None,
        dry_run: false,
    })
}

/// Returns the result of a decision: the state, `-` if nothing changes, or `gone` if no record is left.
fn left(decision: &Decision) -> String {
    match &decision.change {
        RecordChange::Keep => "-".to_owned(),
        RecordChange::Remove => "gone".to_owned(),
        RecordChange::Write(record) | RecordChange::Insert(record) => {
            let at = record.state(NOW).map(At::State);
            name(if record.next.is_some() { At::Next } else { at.unwrap() })
        }
    }
}

fn written(decision: &Decision) -> &Record {
    match &decision.change {
        RecordChange::Write(record) | RecordChange::Insert(record) => record,
        change => panic!("nothing is written: {change:?}"),
    }
}

fn rows(columns: &[&dyn Fn(&Record) -> Command]) -> Vec<String> {
    let row = |at| {
        let cell = |command: &&dyn Fn(&Record) -> Command| left(&run(job(at), command(&job(at))));
        let cells: Vec<_> = columns.iter().map(cell).collect();
        format!("{}: {}", name(at), cells.join(", "))
    };
    all().map(row).collect()
}

/// Complete table of the commands of workers and operators, one row for each state found.
#[test]
fn the_table_of_the_life_cycle() {
    let dead_letter = |_: &Record| end(LeaseEndCause::DeadLettered { error: "x".into() });
    let columns: [&dyn Fn(&Record) -> Command; 9] = [
        &|_| ack(),
        &|_| end(failed()),
        &|_| end(released()),
        &dead_letter,
        &|_| Command::Unclaim(TOKEN),
        &|_| Command::Delete { finished: None },
        &|_| Command::Reschedule { due: None, priority: Some(1) },
        &|_| redrive(),
        &|_| Command::Prune,
    ];
    assert_eq!(
        rows(&columns),
        [
            "scheduled: -, -, -, -, -, cancelled, scheduled, -, -",
            "ready: -, -, -, -, -, cancelled, ready, -, -",
            "running: succeeded, backoff, ready, dead, ready, cancelled, -, -, -",
            "backoff: -, -, -, -, -, cancelled, backoff, -, -",
            "succeeded: -, -, -, -, -, gone, -, ready, -",
            "dead: -, -, -, -, -, gone, ready, ready, -",
            "cancelled: -, -, -, -, -, gone, -, ready, -",
            "expired: -, -, -, -, -, gone, -, ready, -",
            "running, one waits: scheduled, scheduled, scheduled, scheduled, scheduled, cancelled, -, -, -",
        ]
    );
}

fn purge(states: &[State], begin: Time) -> Command {
    Command::Purge(Purge { states: states.to_vec(), begin, group: None })
}

/// A purge is a delete of the jobs in the named states: any job, any state.
#[test]
fn a_purge_does_what_a_delete_does_in_its_states_and_nothing_else() {
    for at in all() {
        let deleted = run(job(at), Command::Delete { finished: None });
        let is = job(at).state(NOW).unwrap();
        for state in State::ALL {
            let purged = run(job(at), purge(&[state], NOW));
            if state == is {
                let (change, parts) = (&deleted.change, &deleted.parts);
                assert_eq!((&purged.change, &purged.parts), (change, parts), "{}", name(at));
                assert_eq!(purged.effects, deleted.effects, "{}", name(at));
                assert_eq!(purged.reply, deleted.reply, "{}", name(at));
            } else {
                assert_eq!(purged.change, RecordChange::Keep, "{} by {state:?}", name(at));
                assert_eq!(purged.reply, CommandReply::Deleted(None), "{}", name(at));
            }
        }
        assert_eq!(run(job(at), purge(&State::ALL, NOW)).reply, deleted.reply, "{}", name(at));
        assert_eq!(left(&run(job(at), purge(&[], NOW))), "-");
    }
}

#[test]
fn a_purge_leaves_what_was_enqueued_or_cancelled_since_it_began() {
    let begin = NOW.minus(MINUTE / 2);
    for at in all() {
        let before_begin = left(&run(job(at), purge(&State::ALL, begin)));
        let delete = left(&run(job(at), Command::Delete { finished: None }));
        let expected = match at {
            At::State(State::Cancelled) => "-".to_owned(),
            // It was enqueued since.
            At::Next => "scheduled".to_owned(),
            At::State(_) => delete,
        };
        assert_eq!(before_begin, expected, "{}", name(at));
        let record = Record { created: NOW.into(), ..job(at) };
        assert_eq!(left(&run(record, purge(&State::ALL, begin))), "-", "{}", name(at));
    }
}

/// The due time divides SCHEDULED from READY, so a decision about one of them holds on one side of it.
#[test]
fn a_purge_is_decided_anew_once_the_job_is_due() {
    let scheduled = run(job(At::State(State::Scheduled)), purge(&[State::Scheduled], NOW));
    assert_eq!(scheduled.window.until, NOW.plus(MINUTE));
    let ready = run(job(At::State(State::Ready)), purge(&[State::Ready], NOW));
    assert_eq!(ready.window.from, NOW.minus(MINUTE));
}

/// Complete table of `on_conflict`: the resulting state and the reply.
#[test]
fn the_table_of_enqueues_onto_a_taken_id() {
    let policies =
        [OnConflict::Keep, OnConflict::Replace, OnConflict::Reschedule, OnConflict::Reject];
    let columns = policies.map(|policy| move |_: &Record| enqueue(new("new", policy)));
    let columns: Vec<&dyn Fn(&Record) -> Command> =
        columns.iter().map(|column| column as &dyn Fn(&Record) -> Command).collect();
    assert_eq!(
        rows(&columns),
        [
            "scheduled: -, ready, ready, -",
            "ready: -, ready, ready, -",
            "running: -, running, one waits, running, one waits, -",
            "backoff: -, ready, ready, -",
            "succeeded: -, ready, ready, -",
            "dead: -, ready, ready, -",
            "cancelled: ready, ready, ready, ready",
            "expired: -, ready, ready, -",
            "running, one waits: -, running, one waits, running, one waits, -",
        ]
    );
    let outcome = |at, policy| match run(job(at), enqueue(new("new", policy))).reply {
        CommandReply::Enqueued(answer) => answer.outcome,
        answer => panic!("{answer:?}"),
    };
    for at in all() {
        let taken = match at {
            At::State(state) => crate::domain::conflict::ExistingJob::Job(state),
            At::Next => crate::domain::conflict::ExistingJob::RunningWithNext,
        };
        for policy in policies {
            let repeat = crate::domain::conflict::RequestMatch::Different;
            let expected = crate::domain::conflict::resolve(policy, taken, repeat).outcome();
            assert_eq!(outcome(at, policy), expected, "{at:?} {policy:?}");
        }
    }
}

#[test]
fn a_repeated_request_changes_nothing_and_another_job_under_it_is_refused() {
    let known = Some(request_code("q", 1));
    for at in all() {
        let record = Record { request_code: known, ..job(at) };
        for (request, outcome) in
            [(known, Some(EnqueueOutcome::Unchanged)), (Some(request_code("q", 2)), None)]
        {
            let new = Enqueue { request_code: request, ..new("new", OnConflict::Replace) };
            let decision = run(record.clone(), enqueue(new));
            assert_eq!(decision.change, RecordChange::Keep, "{at:?}");
            let CommandReply::Enqueued(answer) = decision.reply else { panic!("{at:?}") };
            assert_eq!(answer.outcome, outcome, "{at:?}");
        }
    }
}

/// The lease ends at the last attempt while another generation waits: that one begins, and no job becomes dead.
#[test]
fn whatever_ends_the_lease_the_waiting_generation_begins_with_fresh_counters() {
    let retry = RetryOverrides { max_attempts: Some(1), ..RetryOverrides::default() };
    let spent =
        JobHistory { failures: 24, deliveries: 99, first_start: Some(NOW), ..JobHistory::new(4) };
    let spec = Spec { retry: retry.boxed(), ..Spec::default() };
    let record = Record { history: spent, spec, ..job(At::Next) };
    let causes = [LeaseEndCause::Expired, LeaseEndCause::StreamBroken, failed(), released()];
    let ends = causes.map(end).into_iter().chain([ack()]);
    for command in ends.chain([Command::Unclaim(TOKEN)]) {
        let decision = run(record.clone(), command.clone());
        let next = written(&decision);
        assert_eq!(next.phase, Phase::Waiting);
        assert_eq!((next.due.at, next.priority), (NOW.plus(MINUTE), 5));
        let ends = if command == Command::Unclaim(TOKEN) { 0 } else { 1 };
        assert_eq!(
            next.history,
            JobHistory { lease_ends: next.history.lease_ends.clone(), ..JobHistory::new(4) }
        );
        assert_eq!(next.history.lease_ends.0.len(), ends, "{command:?}");
        assert_eq!(decision.effects.counters.dead, 0);
        assert_eq!(decision.parts.payload, PayloadChange::Promote);
        assert_eq!(decision.parts.next_payload, PartChange::Drop);
        assert!(decision.parts.attempts.cleared);
    }
}

#[test]
fn a_generation_with_the_same_spec_keeps_the_payload() {
    let deferred =
        run(job(At::State(State::Running)), enqueue(new("other", OnConflict::Reschedule)));
    let record = written(&deferred).clone();
    assert_eq!(record.next.as_ref().map(|next| next.replacement.clone()), Some(None));
    assert_eq!((record.history.generation, deferred.effects.counters.enqueued), (2, 1));
    let begun = run(record, ack());
    assert_eq!(begun.parts.payload, PayloadChange::Keep);
    assert_eq!(written(&begun).history.generation, 2, "it was counted when it was deferred");
}

#[test]
fn a_tombstone_keeps_how_it_ended_and_nothing_else() {
    let headers = vec![("a".to_owned(), "b".to_owned())];
    let spec = Spec { headers, ..Spec::default() };
    let keep = RetentionRule::Tombstone(MINUTE);
    let decision = run(Record { retention: keep, spec, ..job(At::State(State::Running)) }, ack());
    let record = written(&decision);
    assert!(record.is_tombstone() && record.spec == Spec::default());
    assert_eq!(decision.parts, PartChanges::drop_all());
    let (worker, deliveries) = (record.history.worker.as_str(), record.history.deliveries);
    assert_eq!((worker, deliveries), ("w", 1));
    // A repeat of the ack is recognized; another settle is rejected.
    let repeat = run(record.clone(), ack());
    assert_eq!(repeat.change, RecordChange::Keep);
    let settled = SettleCommandReply { repeated: true, state: State::Succeeded };
    assert_eq!(repeat.reply, CommandReply::Settled(Ok(settled)));
    let other = run(record.clone(), end(failed()));
    assert_eq!(other.reply, CommandReply::Settled(Err(LeaseRefusal::Stale)));
}

#[test]
fn an_end_is_remembered_for_as_many_leases_as_attempts_are_kept() {
    let mut record = job(At::State(State::Running));
    for n in 0..=limit::ATTEMPTS_KEPT as u64 + 1 {
        let token = Token(n);
        record.phase = Phase::Running(Lease { token, ..lease() });
        let end = unacked(released());
        let settle = Command::Settle(Settle { token, deadline: None, action: end });
        record = written(&run(record, settle)).clone();
    }
    let code = settled_code(AttemptOutcome::Released, false);
    let ended = |record: &Record, n| record.is_repeat_of_settle(Token(n), code);
    assert_eq!([0, 1, 2].map(|n| ended(&record, n)), [false, true, true]);
    // The next lease removes the oldest end, and an unclaim does not restore it.
    record.phase = Phase::Running(lease());
    assert_eq!([1, 2].map(|n| ended(&record, n)), [false, true]);
    let undone = run(record, Command::Unclaim(TOKEN));
    assert_eq!([1, 2].map(|n| ended(written(&undone), n)), [false, true]);
}

/// Each decision contains the window in which it is valid; outside of it the decision is another one.
#[test]
fn a_decision_holds_until_the_clock_makes_another_one_of_it() {
    let ready = job(At::State(State::Ready));
    let expires = Record { expire: Some(NOW.plus(MINUTE).into()), ..ready.clone() };
    let expired = Record { expire: Some(NOW.minus(MINUTE / 2).into()), ..ready };
    let kept = job(At::State(State::Succeeded));
    let after = |duration| NOW.plus(duration);
    for (record, from, until) in [
        (expires, Time(i64::MIN), after(MINUTE)),
        // The record is kept for a minute from its expire time on.
        (expired, NOW.minus(MINUTE / 2), after(MINUTE / 2)),
        (kept, Time(i64::MIN), after(MINUTE)),
    ] {
        for command in [
            enqueue(new("new", OnConflict::Reject)),
            Command::Delete { finished: None },
            Command::Reschedule { due: None, priority: None },
        ] {
            let decision = run(record.clone(), command.clone());
            assert_eq!(decision.window, ValidityWindow { from, until }, "{command:?}");
            let then = apply(IdLookup::Record(Box::new(record.clone())), &command, until);
            assert_ne!(then.reply, decision.reply, "{command:?} {record:?}");
        }
    }
}

#[test]
fn a_retry_is_decided_before_the_time_for_retries_is_used_up_or_behind_it() {
    let record = job(At::State(State::Running));
    let first_start = record.history.first_start.unwrap_or_else(|| match &record.phase {
        Phase::Running(lease) => lease.started,
        phase => panic!("{phase:?}"),
    });
    for (longest, is_left) in [(MINUTE * 60, true), (Duration::ZERO, false)] {
        let policy = RetryPolicy { max_retry_duration: Some(longest), ..RetryPolicy::default() };
        let SettleAction::Unacked(unacked) = unacked(failed()) else { panic!("no ack") };
        let unacked = SettleAction::Unacked(Unacked { policy, ..unacked });
        let decision = run(record.clone(), settle(unacked));
        let used_up = first_start.plus(longest);
        if is_left {
            assert!(decision.window.contains(NOW) && !decision.window.contains(used_up));
        } else {
            assert!(
                decision.window.contains(NOW) && !decision.window.contains(used_up.minus(MINUTE))
            );
        }
    }
}

#[test]
fn a_record_past_retention_counts_as_absent() {
    let at = NOW.minus(MINUTE * 2).into();
    let finish = Finish { state: State::Dead, at, until: NOW.into() };
    let record = Record { phase: Phase::Finished(finish), ..job(At::State(State::Dead)) };
    let pruned = run(record.clone(), Command::Prune);
    assert_eq!(
        (&pruned.change, pruned.effects.final_state),
        (&RecordChange::Remove, Some(State::Dead))
    );
    assert_eq!(run(record.clone(), redrive()).change, RecordChange::Keep);
    let created = run(record.clone(), enqueue(new("new", OnConflict::Reject)));
    assert!(matches!(created.change, RecordChange::Insert(_)), "{created:?}");
    // Under a server-made id the enqueue is a repeat.
    let again =
        Enqueue { precondition: WritePrecondition::SameJob, ..new("new", OnConflict::Keep) };
    let repeat = run(record, enqueue(again.clone()));
    assert_eq!(repeat.change, RecordChange::Keep);
    let ended = apply(IdLookup::Absent(IdHistory::Ended(State::Dead)), &enqueue(again), NOW);
    assert_eq!(repeat.reply, ended.reply);
}

#[test]
fn a_job_that_had_expired_when_it_came_is_kept_from_then_on_or_not_at_all() {
    let expire = Some(When::At(NOW.minus(MINUTE)));
    let late = Enqueue { expire, ..new("new", OnConflict::Keep) };
    let create = |keep| {
        let command = enqueue(Enqueue { retention: keep, ..late.clone() });
        apply(IdLookup::Absent(IdHistory::Free), &command, NOW)
    };
    let kept = create(RetentionRule::Record(MINUTE));
    let Phase::Finished(finish) = written(&kept).phase else { panic!("{kept:?}") };
    assert_eq!((finish.state, finish.at.at), (State::Expired, NOW));
    assert_eq!(finish.until, finish.at.plus(MINUTE));
    let gone = create(RetentionRule::Nothing);
    assert_eq!((gone.change, gone.effects.counters.enqueued), (RecordChange::Remove, 1));
}

#[test]
fn a_redriven_job_moves_to_its_target_and_expires_by_its_ttl() {
    let target = Some(TopicName::stored("other"));
    let dead = Record { expire: Some(NOW.plus(MINUTE).into()), ..job(At::State(State::Dead)) };
    let redrive = |delay, ttl| {
        let states = vec![State::Dead];
        let command = Command::Redrive(Redrive {
            states,
            delay,
            spacing: MINUTE,
            ttl,
            target: target.clone(),
            dry_run: false,
        });
        run(dead.clone(), command)
    };
    let moved = redrive(MINUTE / 2, None);
    assert_eq!(
        (moved.effects.moved_to.as_ref(), moved.effects.final_state),
        (target.as_ref(), Some(State::Dead))
    );
    assert_eq!(written(&moved).expire, dead.expire);
    assert_eq!(
        moved.window.until,
        NOW.plus(MINUTE / 2),
        "then its expire time is not after its due time"
    );
    assert_eq!(redrive(MINUTE, None).change, RecordChange::Keep, "it would have expired by then");
    let later = redrive(MINUTE, Some(MINUTE));
    let expire = written(&later).expire.unwrap();
    assert_eq!((expire.at, expire.from_now), (NOW.plus(MINUTE * 2), true));
}

#[test]
fn an_end_that_no_worker_asked_for_is_guarded_by_its_deadline() {
    let record = job(At::State(State::Running));
    let guarded = |deadline| {
        let Command::Settle(settle) = end(LeaseEndCause::Expired) else { unreachable!() };
        run(record.clone(), Command::Settle(Settle { deadline: Some(deadline), ..settle }))
    };
    let stale = guarded(NOW);
    assert_eq!(
        (stale.change, stale.reply),
        (RecordChange::Keep, CommandReply::Settled(Err(LeaseRefusal::Stale)))
    );
    let over = guarded(NOW.plus(MINUTE));
    let holder = LeaseHolder { owner: 7, stream: 3, token: TOKEN };
    assert_eq!(over.effects.lease, Some((holder, LeaseChange::Expired)));
    assert_eq!(left(&over), "backoff");
}

#[test]
fn adopt_moves_a_lease_to_another_stream() {
    let stream = |stream| StreamId { owner: 7, stream };
    let (from, to, grace) = (stream(3), StreamId { owner: 8, stream: 4 }, Some(MINUTE));
    let adopt =
        |token, from, since| Command::Adopt(Adopt { token, from, to, grace: MINUTE, since });
    let detach = |token, stream| Command::Detach { token, stream };
    let found = |owner, stream, grace, extended: Option<Time>| {
        let extended = extended.map(RecordTime::fixed);
        let lease = Lease { owner, stream, grace, extended, ..lease() };
        Record { phase: Phase::Running(lease), ..job(At::State(State::Running)) }
    };
    let now = Some(NOW);
    let earlier = Some(NOW.minus(MINUTE));
    for (n, (record, command, expected)) in [
        (found(7, 3, grace, None), adopt(TOKEN, from, None), Some((8, 4, grace))),
        (found(7, 3, grace, None), adopt(TOKEN, from, now), None),
        (found(7, 3, grace, earlier), adopt(TOKEN, from, now), None),
        (found(7, 3, grace, now), adopt(TOKEN, from, now), Some((8, 4, grace))),
        (found(7, 3, None, None), adopt(TOKEN, from, now), Some((8, 4, grace))),
        (found(7, 3, grace, None), adopt(TOKEN, stream(2), None), None),
        (found(7, 3, grace, None), adopt(Token(1), from, None), None),
        (found(7, 3, grace, now), detach(TOKEN, from), Some((7, 3, None))),
        (found(7, 3, grace, None), detach(TOKEN, stream(2)), None),
        (found(7, 3, grace, None), detach(Token(1), from), None),
        (job(At::State(State::Ready)), detach(TOKEN, from), None),
        (job(At::State(State::Dead)), adopt(TOKEN, from, None), None),
    ]
    .into_iter()
    .enumerate()
    {
        let decision = run(record.clone(), command);
        assert_eq!(decision.reply, CommandReply::Applied(expected.is_some()), "row {n}");
        let Some((owner, stream, grace)) = expected else {
            assert_eq!(decision.change, RecordChange::Keep, "row {n}");
            continue;
        };
        let Phase::Running(before) = &record.phase else { unreachable!("only a lease is tied") };
        let after = Lease { owner, stream, grace, ..before.clone() };
        let expected = Record { phase: Phase::Running(after), ..record.clone() };
        assert_eq!(*written(&decision), expected, "row {n}");
        let is_adopted = owner != before.owner;
        let change = is_adopted.then(|| (LeaseHolder::from(before), LeaseChange::Adopted));
        assert_eq!(decision.effects.lease, change, "row {n}");
    }
    let again = run(found(8, 4, grace, None), adopt(TOKEN, from, now));
    assert_eq!(
        (again.change, again.reply),
        (RecordChange::Keep, CommandReply::Applied(true)),
        "a repeat"
    );
}

fn checkpoint(body: &'static str) -> Command {
    let (duration, progress, lapsed, checkpoint) = (None, None, None, Some(payload(body)));
    Command::Extend(Extend { token: TOKEN, duration, progress, checkpoint, outage_expiry: lapsed })
}

/// Returns a record with a checkpoint of ten bytes.
fn with_checkpoint(at: At) -> Record {
    let mut record = job(at);
    (record.bytes, record.history.checkpoint) = (14, 10);
    record
}

#[test]
fn an_extend_sets_a_checkpoint_and_an_empty_one_clears_it() {
    let running = At::State(State::Running);
    let set = run(job(running), checkpoint("0123456789"));
    assert_eq!(written(&set).bytes, 14);
    assert_eq!(written(&set).history.checkpoint, 10);
    assert_eq!(set.parts.checkpoint, PartChange::Set(payload("0123456789")));
    assert!(set.parts.grows());
    let again = run(written(&set).clone(), checkpoint("abc"));
    assert_eq!((written(&again).bytes, written(&again).history.checkpoint), (7, 3));
    let cleared = run(written(&again).clone(), checkpoint(""));
    assert_eq!((written(&cleared).bytes, written(&cleared).history.checkpoint), (4, 0));
    assert_eq!(cleared.parts.checkpoint, PartChange::Drop);
    assert!(!cleared.parts.grows());
    let none = run(job(running), checkpoint(""));
    assert_eq!(none.parts.checkpoint, PartChange::Keep);
    for at in all().filter(|&at| at != running && at != At::Next) {
        let refused = run(job(at), checkpoint("late"));
        assert_eq!(
            (&refused.change, &refused.parts),
            (&RecordChange::Keep, &PartChanges::default())
        );
        assert!(matches!(refused.reply, CommandReply::Extended(Err(_))), "{}", name(at));
    }
}

#[test]
fn a_checkpoint_lasts_until_an_ack_or_another_generation() {
    let running = || with_checkpoint(At::State(State::Running));
    let broken = end(LeaseEndCause::StreamBroken);
    let kept = [
        run(running(), end(failed())),
        run(running(), end(released())),
        run(running(), end(LeaseEndCause::Expired)),
        run(running(), broken),
        run(running(), Command::Unclaim(TOKEN)),
        run(running(), Command::Delete { finished: None }),
        run(with_checkpoint(At::State(State::Dead)), redrive()),
        run(with_checkpoint(At::State(State::Backoff)), enqueue(new("a", OnConflict::Reschedule))),
        run(with_checkpoint(At::State(State::Dead)), enqueue(new("a", OnConflict::Reschedule))),
        run(running(), enqueue(new("a", OnConflict::Replace))),
    ];
    for (nth, decision) in kept.iter().enumerate() {
        assert_eq!(decision.parts.checkpoint, PartChange::Keep, "{nth}");
        let record = written(decision);
        assert_eq!((record.bytes, record.history.checkpoint), (14, 10), "{nth}");
    }
    let next = || with_checkpoint(At::Next);
    let cleared = [
        run(running(), ack()),
        run(next(), ack()),
        run(next(), end(released())),
        run(next(), Command::Unclaim(TOKEN)),
        run(with_checkpoint(At::State(State::Ready)), enqueue(new("new!", OnConflict::Replace))),
        run(with_checkpoint(At::State(State::Dead)), enqueue(new("new!", OnConflict::Replace))),
    ];
    for (nth, decision) in cleared.iter().enumerate() {
        assert_eq!(decision.parts.checkpoint, PartChange::Drop, "{nth}");
        let record = written(decision);
        assert_eq!((record.bytes, record.history.checkpoint), (4, 0), "{nth}");
    }
    // Only a tombstone is left, or no record.
    for keep in [RetentionRule::Tombstone(MINUTE), RetentionRule::Nothing] {
        let decision = run(Record { retention: keep, ..running() }, ack());
        assert_eq!(decision.parts, PartChanges::drop_all());
    }
}

/// Each way to settle that a worker can request has its own code, so that a repeat of one is not taken for another.
#[test]
fn each_settle_action_has_its_own_code() {
    let (delay, error) = (None, String::new());
    let asked = [
        LeaseEndCause::Failed { delay, error: error.clone() },
        LeaseEndCause::Released { delay, error: error.clone() },
        LeaseEndCause::DeadLettered { error },
    ];
    // A new cause does not compile here: if workers can request it, add it above.
    let _all = |cause: &LeaseEndCause| match cause {
        LeaseEndCause::Failed { .. }
        | LeaseEndCause::Released { .. }
        | LeaseEndCause::DeadLettered { .. } => (),
        LeaseEndCause::Expired
        | LeaseEndCause::StreamBroken
        | LeaseEndCause::WorkerCrashed
        | LeaseEndCause::Unserved => (),
    };
    let mut codes: Vec<u8> = asked
        .map(|cause| settled_code(cause.outcome(), cause.is_dead_letter()))
        .into_iter()
        .chain([settled_code(AttemptOutcome::Succeeded, false)])
        .collect();
    codes.sort_unstable();
    codes.dedup();
    assert_eq!(codes.len(), 4);
    for outcome in [
        AttemptOutcome::Succeeded,
        AttemptOutcome::Failed,
        AttemptOutcome::LeaseExpired,
        AttemptOutcome::Released,
        AttemptOutcome::Revoked,
    ] {
        assert_eq!(AttemptOutcome::of(outcome.code()), outcome);
    }
}

#[test]
fn a_record_is_indexed_by_phase_and_failures() {
    let waiting = |failed| JobIndex::Waiting { priority: 2, failed, group: None };
    for at in all() {
        let expected = match at {
            At::State(State::Scheduled | State::Ready) => waiting(false),
            At::State(State::Backoff) => waiting(true),
            At::State(State::Running) | At::Next => JobIndex::Running { group: None },
            At::State(state) => JobIndex::Finished(state),
        };
        assert_eq!(placement(&job(at)).index, expected, "{at:?}");
    }
    let group = GroupName::try_new("g").unwrap();
    for at in all() {
        let mut record = job(at);
        record.spec.group = Some(group.clone());
        let stands = placement(&record).index.group().is_some();
        let is_finished = matches!(record.phase, Phase::Finished(_));
        assert_eq!(stands, !is_finished, "{at:?}");
    }
    let alarm = |at| placement(&job(at)).alarm;
    assert_eq!(alarm(At::State(State::Ready)), None);
    assert_eq!(alarm(At::Next), Some(NOW.plus(MINUTE)));
    assert_eq!(alarm(At::State(State::Dead)), Some(NOW.plus(MINUTE)));
}
