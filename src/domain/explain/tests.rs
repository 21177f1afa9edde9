use std::time::Duration;

use super::*;
use crate::domain::{JobId, JobKey, ShardName, Spec, TopicName};

/// 2026-11-26T14:00:00Z.
const NOW: Time = Time(1_795_701_600_000_000);

fn in_seconds(seconds: u64) -> Time {
    NOW.plus(Duration::from_secs(seconds))
}

fn ago(seconds: u64) -> Time {
    NOW.minus(Duration::from_secs(seconds))
}

fn key() -> JobKey {
    JobKey { topic: TopicName::stored("mail"), id: JobId::stored("a") }
}

fn job(state: State) -> Job {
    Job {
        key: key(),
        spec: Spec::default(),
        priority: 0,
        expire_time: None,
        state,
        failures: 0,
        deliveries: 0,
        crashes: 0,
        generation: 1,
        create_time: ago(60),
        due_time: ago(60),
        lease_expire_time: None,
        worker_id: String::new(),
        finish_time: None,
        result: None,
        last_error: String::new(),
        attempts: Vec::new(),
        progress: String::new(),
        checkpoint: None,
        shard: ShardName::try_new("s0").unwrap(),
    }
}

/// Returns the facts about a job for which one stream has credit and nothing else matters.
fn facts(job: Job) -> ExplainFacts {
    let held = Some(HeldJobs { in_flight: 0, max_in_flight: 4, other_topics: 0 });
    ExplainFacts {
        job,
        now: NOW,
        ready_before: Some(ReadyBefore::default()),
        turn: None,
        ageing: None,
        server: 7,
        lease: None,
        holder: None,
        kept: None,
        attempts_max: Some(25),
        streams: StreamFacts { streams: 1, with_credit: 1, held, ..StreamFacts::default() },
        other_servers: 0,
        topic_paused: None,
        group_paused: None,
    }
}

fn ready() -> ExplainFacts {
    facts(job(State::Ready))
}

fn codes(facts: &ExplainFacts) -> Vec<&'static str> {
    reasons(facts).iter().map(|reason| reason.code.name()).collect()
}

/// Returns the only reason that holds.
fn only(facts: &ExplainFacts) -> ExplainReason {
    let mut found = reasons(facts);
    assert_eq!(found.len(), 1, "{found:?}");
    found.remove(0)
}

#[test]
fn a_ready_job_that_nothing_holds_back_is_about_to_be_delivered() {
    let reason = only(&ready());
    assert_eq!(
        (reason.code.name(), &*reason.message),
        (
            "DELIVERING",
            "Nothing holds the job back: it comes next in topic mail on shard s0, and 1 of 1 stream on this server \
             has credit for it."
        )
    );
}

#[test]
fn a_job_whose_time_is_ahead_is_not_due() {
    let due_time = in_seconds(200);
    let scheduled = facts(Job { due_time, ..job(State::Scheduled) });
    let reason = only(&scheduled);
    assert_eq!(reason.message, "The job is due at 2026-11-26T14:03:20Z, in 3m20s.");
    assert_eq!((reason.code.name(), reason.until), ("NOT_DUE", Some(due_time)));
    let step = "Wait, or make it due now: `ringq job reschedule --now mail a`.";
    assert_eq!(reason.remedy, step);

    let expire_time = Some(in_seconds(100));
    let expires = facts(Job { due_time, expire_time, ..job(State::Scheduled) });
    let message = only(&expires).message;
    assert!(message.ends_with("; it expires before that, at 2026-11-26T14:01:40Z."), "{message}");
}

#[test]
fn a_job_in_backoff_names_its_attempts_and_its_last_error() {
    let failed = |last_error: &str| Job {
        due_time: in_seconds(5),
        failures: 2,
        last_error: last_error.to_owned(),
        ..job(State::Backoff)
    };
    let reason = only(&facts(failed("connection refused\nat line 3")));
    assert_eq!(
        reason.message,
        "2 of at most 25 attempts failed, the last with \"connection refused…\"; attempt 3 is due at \
         2026-11-26T14:00:05Z, in 5s."
    );
    let unlimited = ExplainFacts { attempts_max: None, ..facts(failed("")) };
    assert_eq!(
        only(&unlimited).message,
        "2 attempts failed; attempt 3 is due at 2026-11-26T14:00:05Z, in 5s."
    );
}

#[test]
fn pauses_come_with_their_end_and_their_note() {
    let until = Some(in_seconds(3600));
    let paused = ExplainFacts {
        topic_paused: Some(Pause { until, note: "provider is down".into() }),
        group_paused: Some(GroupPause { group: "tenant 7".into(), pause: Pause::default() }),
        ..ready()
    };
    let found = reasons(&paused);
    assert_eq!(codes(&paused), ["TOPIC_PAUSED", "GROUP_PAUSED"]);
    assert_eq!(
        found[0].message,
        "Topic mail is paused until 2026-11-26T15:00:00Z, with the note \"provider is down\"."
    );
    assert_eq!(found[0].until, until);
    assert_eq!(found[0].remedy, "Resume the topic: `ringq topic resume mail`.");
    assert_eq!(found[1].message, "Group tenant 7 of topic mail is paused.");
    assert_eq!(found[1].remedy, "Resume the group: `ringq group resume mail 'tenant 7'`.");
}

#[test]
fn without_a_stream_other_servers_are_named_if_there_are_any() {
    let alone = ExplainFacts { streams: StreamFacts::default(), ..ready() };
    let reason = only(&alone);
    assert_eq!(reason.code, ExplainCode::NoStream);
    assert_eq!(reason.message, "No stream or waiting Pull on this server asks for topic mail.");
    assert!(reason.remedy.contains("`ringq work mail --exec COMMAND`"), "{}", reason.remedy);

    let reason = only(&ExplainFacts { other_servers: 2, ..alone.clone() });
    let message = "No stream or waiting Pull on this server asks for topic mail; streams of the 2 other servers of \
                   shard s0 are not known here.";
    assert_eq!(reason.message, message);
    assert!(reason.remedy.contains("`ringq worker list mail --server URL`"), "{}", reason.remedy);

    let streams = StreamFacts { draining: true, ..StreamFacts::default() };
    let message = only(&ExplainFacts { streams, ..alone }).message;
    assert!(message.contains("this server, which is shutting down, asks"), "{message}");
}

#[test]
fn streams_without_credit_state_what_they_hold() {
    let of = |streams: StreamFacts| only(&ExplainFacts { streams, ..ready() });
    let held = Some(HeldJobs { in_flight: 8, max_in_flight: 8, other_topics: 3 });
    let full = StreamFacts { streams: 2, pulls: 1, held, ..StreamFacts::default() };
    let reason = of(full);
    assert_eq!(reason.code, ExplainCode::NoCredit);
    assert_eq!(
        reason.message,
        "2 streams and 1 Pull on this server ask for topic mail, and none has credit for this job: 8 of at most 8 \
         jobs in flight, 3 of them of other topics."
    );
    assert!(reason.remedy.contains("`ringq worker list mail`"), "{}", reason.remedy);

    let hidden = of(StreamFacts { held: None, ..full }).message;
    assert!(hidden.ends_with("none has credit for this job."), "{hidden}");
    let held = Some(HeldJobs { in_flight: 1, max_in_flight: 8, other_topics: 0 });
    let bytes = of(StreamFacts { streams: 1, pulls: 0, held, ..full }).message;
    assert!(
        bytes.ends_with("1 of at most 8 jobs in flight, and their bytes leave no room for it.")
    );
    let unread = of(StreamFacts { unread: 1, held, ..full }).message;
    assert!(unread.ends_with("1 of at most 8 jobs in flight; 1 stream unread."), "{unread}");
}

#[test]
fn jobs_before_it_are_counted_and_a_limited_count_reads_as_such() {
    let behind = |jobs, has_more| {
        let ready_before = Some(ReadyBefore { jobs, has_more });
        only(&ExplainFacts { ready_before, ..ready() }).message
    };
    let order = "before it on shard s0, by priority, due time and arrival.";
    assert_eq!(behind(1, false), format!("1 ready job of topic mail comes {order}"));
    assert_eq!(behind(9, false), format!("9 ready jobs of topic mail come {order}"));
    assert_eq!(behind(9, true), format!("At least 9 ready jobs of topic mail come {order}"));
    let unknown = format!("An unknown number of ready jobs of topic mail come {order}");
    assert_eq!(behind(0, true), unknown);
    let ready_before = Some(ReadyBefore { jobs: 1, has_more: false });
    let first = only(&ExplainFacts { ready_before, ..ready() });
    assert_eq!(first.code, ExplainCode::BehindOthers);
    assert!(first.remedy.contains("`ringq job reschedule --priority 9 mail a`"));
    let ageing = PriorityAgeing::of_setting(Some(Duration::from_secs(90)));
    let aged = only(&ExplainFacts { ready_before, ageing, ..ready() }).message;
    let order = "by due time, where a level of priority is worth 1m30s of waiting.";
    assert_eq!(aged, format!("1 ready job of topic mail comes before it on shard s0, {order}"));
}

#[test]
fn a_group_whose_turn_is_not_next_names_its_running_jobs() {
    let turn =
        |running, groups_before, has_more| Some(GroupTurn { running, groups_before, has_more });
    let spec = Spec { group: crate::domain::GroupName::stored("eu"), ..Spec::default() };
    let of_group = facts(Job { spec, ..job(State::Ready) });
    let reason = only(&ExplainFacts { turn: turn(1, 20, false), ..of_group.clone() });
    assert_eq!(
        (reason.code.name(), &*reason.message),
        (
            "GROUP_TURN",
            "The next turns of topic mail on shard s0 are those of 20 other groups: group eu has 1 running job there, \
             and each by its weight delays the next turn by 512 turns."
        )
    );
    let reason = only(&ExplainFacts { turn: turn(0, 1, true), ..ready() });
    assert!(
        reason
            .message
            .contains("of at least 1 other group: the jobs without a group have 0 running jobs")
    );
    assert_eq!(
        codes(&ExplainFacts { turn: turn(3, 0, false), ..of_group.clone() }),
        ["DELIVERING"]
    );
    let before = Some(ReadyBefore { jobs: 2, has_more: false });
    let both = ExplainFacts { turn: turn(1, 2, false), ready_before: before, ..of_group };
    assert_eq!(codes(&both), ["GROUP_TURN", "BEHIND_OTHERS"]);
    let message = &reasons(&both)[1].message;
    assert!(
        message.starts_with("2 ready jobs of group eu of topic mail come before it"),
        "{message}"
    );
    let early = ExplainFacts { job: job(State::Scheduled), ..both };
    assert_eq!(codes(&early), ["NOT_DUE"]);
}

#[test]
fn every_reason_that_holds_is_returned() {
    let held_back = ExplainFacts {
        topic_paused: Some(Pause::default()),
        group_paused: Some(GroupPause { group: "g".into(), pause: Pause::default() }),
        ready_before: Some(ReadyBefore { jobs: 3, has_more: false }),
        streams: StreamFacts { streams: 1, ..StreamFacts::default() },
        ..ready()
    };
    let all = ["TOPIC_PAUSED", "GROUP_PAUSED", "NO_CREDIT", "BEHIND_OTHERS"];
    assert_eq!(codes(&held_back), all);
    let streams = StreamFacts::default();
    assert_eq!(
        codes(&ExplainFacts { streams, ..held_back.clone() }),
        ["TOPIC_PAUSED", "GROUP_PAUSED", "NO_STREAM", "BEHIND_OTHERS"]
    );
    // Credit and order matter once the job is due; a missing worker already before.
    let early = ExplainFacts { job: job(State::Scheduled), ..held_back };
    assert_eq!(codes(&early), ["NOT_DUE", "TOPIC_PAUSED", "GROUP_PAUSED"]);
    assert_eq!(
        codes(&ExplainFacts { streams, ..facts(job(State::Scheduled)) }),
        ["NOT_DUE", "NO_STREAM"]
    );
}

#[test]
fn a_running_job_is_leased_whatever_else_holds() {
    let running = Job {
        worker_id: "w1".into(),
        deliveries: 2,
        lease_expire_time: Some(in_seconds(30)),
        ..job(State::Running)
    };
    let lease = LeaseFacts {
        stream: StreamId { owner: 7, stream: 5 },
        token: Token(9),
        extended: None,
        start: ago(10),
        deadline: in_seconds(30),
        outlives_stream: false,
        next_waits: false,
    };
    let leased = ExplainFacts {
        lease: Some(lease),
        topic_paused: Some(Pause::default()),
        streams: StreamFacts::default(),
        ..facts(running)
    };
    let reason = only(&leased);
    assert_eq!(
        reason.message,
        "Worker w1 has the job, its delivery 2, since 2026-11-26T13:59:50Z by stream 00000007-5 of this server; not \
         extended; its lease ends at 2026-11-26T14:00:30Z, in 30s."
    );
    assert_eq!((reason.code, reason.until), (ExplainCode::Leased, Some(in_seconds(30))));
    assert!(reason.remedy.contains("`ringq job delete mail a`"), "{}", reason.remedy);

    // The last signs of the worker, as far as this server has them; a stream without jobs is not silent.
    let signs = |is_sent, silent, extended: Option<Time>| {
        let holder = Some(HolderFacts { is_sent, silent_for: Duration::from_secs(silent) });
        let lease = Some(LeaseFacts { extended, ..lease });
        only(&ExplainFacts { holder, lease, ..leased.clone() }).message
    };
    for (silent, expected) in [(3, "3s"), (10, "10s"), (3_600, "10s")] {
        let message = signs(true, silent, None);
        let end = format!(
            "; not extended, and no Ack, Nack or Extend of that stream for {expected}; its"
        );
        assert!(message.contains(&end), "{message}");
    }
    let message = signs(true, 4, Some(ago(7)));
    assert!(
        message.contains("; extended 7s ago, and no Ack, Nack or Extend of that stream for 4s"),
        "{message}"
    );
    let message = signs(false, 4, None);
    assert!(message.starts_with("Worker w1 has not read the job, its delivery 2"), "{message}");
    assert!(!message.contains("Ack"), "{message}");

    let stream = StreamId { owner: 8, stream: 5 };
    let lease = LeaseFacts { stream, outlives_stream: true, next_waits: true, ..lease };
    let message = only(&ExplainFacts { lease: Some(lease), ..leased.clone() }).message;
    assert!(message.contains("by stream 00000008-5 of another server; not extended, and whether its stream is silent is known at that server;"), "{message}");
    assert!(
        message.ends_with(
            ", and lasts without the stream; a newer generation of the job waits for that end."
        ),
        "{message}"
    );
    let late = LeaseFacts { deadline: ago(1), ..lease };
    let message = only(&ExplainFacts { lease: Some(late), ..leased }).message;
    assert!(message.contains("its lease ended at 2026-11-26T13:59:59Z"), "{message}");
}

#[test]
fn an_ended_job_names_its_end_and_how_it_runs_again() {
    let until = in_seconds(60);
    let ended = |state, last_error: &str, is_tombstone| {
        let last_error = last_error.to_owned();
        let job = Job { finish_time: Some(ago(60)), last_error, ..job(state) };
        only(&ExplainFacts { kept: Some(KeptRecord { until, is_tombstone }), ..facts(job) })
    };
    let dead = ended(State::Dead, "no such address", false);
    assert_eq!(
        dead.message,
        "The job is DEAD since 2026-11-26T13:59:00Z, its last error \"no such address\"; its record is kept until \
         2026-11-26T14:01:00Z."
    );
    assert_eq!((dead.code, dead.until), (ExplainCode::Finished, Some(until)));
    assert_eq!(
        dead.remedy,
        "Correct the cause; then `ringq job redrive mail a` runs it again with fresh counters."
    );
    let done = ended(State::Succeeded, "", true);
    assert!(done.message.ends_with("; state and id are kept until 2026-11-26T14:01:00Z."));
    assert_eq!(done.remedy, "To run it again, enqueue it again.");
    let kept = ended(State::Cancelled, "", false).remedy;
    assert!(kept.contains("`ringq job redrive --state cancelled mail a`"), "{kept}");
    let late = ended(State::Expired, "", false).remedy;
    assert!(late.contains("`ringq job redrive --state expired --ttl 1h mail a`"), "{late}");
}

#[test]
fn a_silent_shard_is_named_with_its_cause() {
    let shard = ShardName::try_new("s1").unwrap();
    for (silence, what, step) in [
        (ShardSilence::Unavailable, "is unavailable", "`ringq shard list`"),
        (ShardSilence::TimedOut, "did not answer in time", "`ringq shard list`"),
        (ShardSilence::Elsewhere, "is configured at other servers", "--server"),
    ] {
        let reason = unreachable_shard(&key(), &shard, silence);
        assert_eq!(reason.code.name(), "SHARD_UNREACHABLE");
        assert!(reason.message.starts_with("Shard s1, which may have topics/mail/jobs/a, "));
        assert!(reason.message.contains(what) && reason.remedy.contains(step), "{reason:?}");
    }
}

#[test]
fn a_job_is_an_argument_of_a_command_as_it_is() {
    let dashed = JobKey { id: JobId::stored("-a"), ..key() };
    let reason =
        only(&facts(Job { key: dashed, due_time: in_seconds(1), ..job(State::Scheduled) }));
    assert!(reason.remedy.contains("`ringq job reschedule --now -- mail -a`"), "{}", reason.remedy);
}

#[test]
fn durations_show_their_two_largest_units() {
    for (seconds, want) in
        [(1, "1s"), (59, "59s"), (61, "1m1s"), (3_600, "1h"), (3_601, "1h"), (90_000, "1d1h")]
    {
        assert_eq!(text::left(in_seconds(seconds), NOW), want);
    }
    assert_eq!(text::left(Time(NOW.0 + 5_000), NOW), "5ms");
}
