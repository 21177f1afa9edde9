//! Tests of the rig itself: it must find the faults of a broken build. Histories of a sound run with one change, runs
//! against a Redis that answers OK and does nothing, a script that does not check tokens, a shard that stays away,
//! and data that should not remain at the end.

use std::time::Duration;

use rusqlite::Connection;

use crate::books::{Books, leftovers, leftovers_in};
use crate::checker::history::{Delivered, Event, Nanos, Was, nanos};
use crate::checker::{Verdict, check};
use crate::cluster::Shape;
use crate::harness::{Redis, millis};
use crate::load::Habits;
use crate::proxy::Way;
use crate::trial::{Outcome, Trial};

/// Duration of a load whose run must fail.
const LOAD: Duration = millis(1500);
/// Longest wait for repeats; lost jobs never come.
const PATIENCE: Duration = Duration::from_secs(6);
/// Calls in a thousand.
const SWALLOWED: u32 = 100;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn acks_that_do_nothing_are_found() {
    let Some(outcome) = against_a_liar("acks_swallowed", SWALLOWED, 0).await else { return };
    assert!(!outcome.verdict.after_ack.is_empty(), "no job came after its ack");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "make faults runs it"]
async fn enqueues_that_do_nothing_are_found() {
    let Some(outcome) = against_a_liar("enqueues_swallowed", 0, SWALLOWED).await else { return };
    assert!(!outcome.verdict.lost.is_empty(), "no job is lost");
    let missing = outcome.faults.iter().any(|fault| fault.contains("jobs were enqueued, not"));
    assert!(missing, "the books fit: {:?}", outcome.faults);
}

/// The line where `settle.lua` decides by the stored record: the token of a receipt is that of the lease, and the job
/// has no past.
const TOKEN_CHECK: &str = "    reply[r + i] = 1\n    if ack ==";

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "make faults runs it"]
async fn acks_without_a_look_at_the_token_are_found() {
    let shape = Shape {
        proxied: true,
        broken: Some((TOKEN_CHECK, "    reply[r + i] = 1\n    if runs or ack ==")),
        ..Shape::default()
    };
    let lease = Duration::from_secs(1);
    let habits = Habits { lease, slow: 0.0, late: 0.1, ..Habits::default() };
    let Some(trial) = Trial::start("tokens_unchecked", shape, habits).await else { return };
    trial.run(2 * LOAD).await;
    let outcome = trial.judge(PATIENCE).await;
    assert!(
        include_str!("../../src/store/redis/settle.lua").contains(TOKEN_CHECK),
        "it is done in another way"
    );
    assert!(!outcome.verdict.outdated.is_empty(), "{}", outcome.verdict);
}

/// The line where `lib/commit.lua` computes the due time of a job that waits again, and the ones where it removes or
/// writes one.
const WAIT: &str = "if band(mode, 1) ~= 0 then due = plus(now, due) end";
const WRITE: &str = "      write(w, found[i], mover)";

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "make faults runs it"]
async fn failures_that_are_retried_at_once_are_found() {
    assert!(include_str!("../../src/store/redis/lib/commit.lua").contains(WAIT));
    let habits = Habits { failing: 0.1, ..Habits::default() };
    let at_once = "if band(mode, 1) ~= 0 then due = now end";
    let outcome = on_broken_scripts("never_waits", (WAIT, at_once), habits).await;
    let Some(Verdict { hurried, .. }) = outcome.map(|outcome| outcome.verdict) else { return };
    assert!(!hurried.is_empty(), "no job came before its backoff");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "make faults runs it"]
async fn deletions_that_do_nothing_are_found() {
    assert!(include_str!("../../src/store/redis/lib/commit.lua").contains(WRITE));
    // The phase of an ended job that leaves nothing, or the phase of one that leaves a tombstone.
    let idle = "      local ended, phase = string.byte(ARGV[w + 3], 8), string.byte(ARGV[w + 3], 60)\n      if \
                ended ~= 4 and phase ~= 4 then write(w, found[i], mover) end";
    let habits = Habits { deleted: 0.2, ..Habits::default() };
    let outcome = on_broken_scripts("never_deletes", (WRITE, idle), habits).await;
    let Some(outcome) = outcome else { return };
    let found = &outcome.verdict.after_delete;
    assert!(!found.is_empty(), "no job came after its deletion");
    let missing = outcome.faults.iter().any(|fault| fault.contains("jobs were cancelled, not"));
    assert!(missing, "the books fit: {:?}", outcome.faults);
}

/// Runs a load on shards with changed scripts. Changes: original text and replacement.
async fn on_broken_scripts(
    name: &'static str,
    broken: (&'static str, &'static str),
    habits: Habits,
) -> Option<Outcome> {
    let shape = Shape { proxied: true, broken: Some(broken), ..Shape::default() };
    let trial = Trial::start(name, shape, habits).await?;
    trial.run(LOAD).await;
    let outcome = trial.judge(PATIENCE).await;
    assert!(!outcome.verdict.sound());
    Some(outcome)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "make faults runs it"]
async fn jobs_that_no_server_reaches_are_not_done() {
    let shape = Shape { proxied: true, ..Shape::default() };
    let trial = Trial::start("not_done", shape, Habits::default()).await;
    let Some(trial) = trial else { return };
    trial.run(LOAD).await;
    trial.network(0, Way::Reset);
    let outcome = trial.judge(Duration::from_secs(2)).await;
    let expected = ["jobs are not done", "producers get no answer", "the books cannot be read"];
    let is_expected = |fault: &String| expected.iter().any(|what| fault.contains(what));
    assert!(outcome.faults.iter().any(is_expected), "{:?}", outcome.faults);
}

#[tokio::test]
async fn what_is_left_in_a_redis_is_found() {
    let Some(redis) = Redis::start().await else { return };
    let planted: [(&[&str], &str); 7] = [
        (&["ZADD", "ringq:{s0}:ends:faults.t", "1", "x"], "there is ringq:{s0}:ends:faults.t"),
        (&["ZADD", "ringq:{s0}:wait:3:faults.t", "1", "x"], "there is ringq:{s0}:wait:3:faults.t"),
        (&["ZADD", "ringq:{s0}:back:0:faults.t", "1", "x"], "there is ringq:{s0}:back:0:faults.t"),
        (&["RPUSH", "ringq:{s0}:line:faults.t", "x"], "1 in ringq:{s0}:line:faults.t with gaps: 0"),
        (
            &["HSET", "ringq:{s0}:jobs:faults.t", "a", "x"],
            "1 in ringq:{s0}:jobs:faults.t that are in no order",
        ),
        (
            &["HSET", "ringq:{s0}:more:faults.t", "pb", "x"],
            "pb in ringq:{s0}:more:faults.t without its record",
        ),
        (
            &["ZADD", "ringq:{s0}:alarms", "1", "faults.t\0b"],
            "faults.t b in ringq:{s0}:alarms without its record",
        ),
    ];
    assert_eq!(leftovers("s0", &redis).await, [""; 0]);
    for (command, expected) in planted {
        redis.command(command).await;
        let found = leftovers("s0", &redis).await;
        assert!(found.len() == 1 && found[0].contains(expected), "{found:?}");
        redis.command(&["FLUSHALL"]).await;
    }
}

/// Sound content of a shard: a dead letter with its body in place, one with a large body, two tombstones and a topic
/// of another load.
const SOUND_FILE: &str = "
INSERT INTO topics (key, name, created, enqueued, succeeded, dead) VALUES (1, 'faults.t', 0, 5, 2, 2), (2, 'other', 0, 1, 0, 0);
INSERT INTO jobs (topic, id, phase, rank, due, created, keep, bytes, large, alarm, finished, payload, token)
VALUES (1, 'dead', 3, 5, 0, 0, -60, 9, 0, 99, 9, x'00', NULL),
       (1, 'large', 3, 5, 0, 0, 0, 9, 1, 99, 9, NULL, NULL),
       (1, 'acked', 2, 5, 0, 0, -60, 9, 0, 99, 9, NULL, NULL),
       (1, 'cancelled', 4, 5, 0, 0, -60, 9, 0, 99, 9, NULL, NULL),
       (2, 'other', 0, 5, 0, 0, 0, 9, 0, NULL, NULL, x'00', NULL);
INSERT INTO bodies VALUES (4, x'00');";

/// Changes that make it unsound, and the expected report.
const PLANTED: [(&str, &str); 17] = [
    (
        "UPDATE jobs SET next = 1 WHERE id = 'dead'",
        "dead of faults.t waits for its next generation",
    ),
    ("DELETE FROM bodies", "large of faults.t is dead and has no body"),
    ("UPDATE jobs SET phase = 0 WHERE id = 'acked'", "acked of faults.t waits"),
    ("UPDATE jobs SET phase = 1 WHERE id = 'acked'", "acked of faults.t runs"),
    ("UPDATE jobs SET phase = 5 WHERE id = 'acked'", "acked of faults.t is in phase 5"),
    (
        "UPDATE jobs SET alarm = NULL WHERE id = 'dead'",
        "dead of faults.t has ended and is not to be",
    ),
    (
        "UPDATE jobs SET keep = 0 WHERE id = 'acked'",
        "acked of faults.t has ended and is no tombstone",
    ),
    (
        "UPDATE jobs SET payload = x'00' WHERE id = 'cancelled'",
        "cancelled of faults.t has ended and is no",
    ),
    (
        "UPDATE jobs SET payload = NULL WHERE id = 'dead'",
        "dead of faults.t is dead and has no body",
    ),
    ("UPDATE jobs SET token = 7 WHERE id = 'acked'", "acked of faults.t has a lease"),
    ("UPDATE jobs SET topic = 3 WHERE id = 'acked'", "acked is of no topic"),
    ("INSERT INTO bodies VALUES (7, x'00')", "a generation of job 3, which has none"),
    ("INSERT INTO bodies VALUES (18, x'00')", "a body of job 9, which has none"),
    ("INSERT INTO lane_jobs VALUES (1, 'g', 10, 0, 1)", "job 1 waits in group g"),
    ("INSERT INTO checkpoints VALUES (1, x'00')", "a checkpoint of job 1, which has none"),
    ("UPDATE topics SET dead = 1 WHERE key = 1", "faults.t counts 1 dead letters and has 2"),
    (
        "UPDATE topics SET enqueued = 4 WHERE key = 1",
        "faults.t counts 4 enqueued and 2 succeeded, with 3",
    ),
];

#[test]
fn what_is_left_in_a_file_is_found() {
    let dir = tempfile::tempdir().unwrap();
    let left = |name: &str, planted: &str| {
        let file = dir.path().join(format!("{name}.db"));
        let connection = Connection::open(&file).unwrap();
        let schema = include_str!("../../src/store/sqlite/migrations/0001_init.sql");
        let content = [schema, SOUND_FILE, planted];
        content.iter().for_each(|sql| connection.execute_batch(sql).unwrap());
        leftovers_in(&file)
    };
    assert_eq!(left("sound", ""), [""; 0]);
    for (number, (planted, expected)) in PLANTED.into_iter().enumerate() {
        let found = left(&number.to_string(), planted);
        assert!(found.iter().any(|line| line.contains(expected)), "{planted}: {found:?}");
    }
}

/// A change of the books, and the expected misfit.
type Misfit = (fn(&mut Books), &'static str);

#[test]
fn books_that_do_not_fit_are_reported() {
    let verdict = Verdict { exist: 10, buried: 2, cancelled: 1, either: 1, ..Verdict::default() };
    let sound = Books { left: 0, dead: 2, enqueued: 10, succeeded: 7, ended_dead: 2 };
    assert!(sound.misfits(&verdict).is_empty());
    assert!(Books { succeeded: 6, ..sound.clone() }.misfits(&verdict).is_empty());
    let changed: [Misfit; 6] = [
        (|books| books.left = 1, "1 jobs are left, not 0"),
        (|books| books.enqueued = 11, "11 jobs were enqueued, not 10"),
        (|books| books.succeeded = 8, "0 jobs were cancelled, not 1"),
        (|books| books.succeeded = 5, "3 jobs were cancelled, not 2"),
        (|books| books.dead = 1, "1 are dead letters, not 2"),
        (|books| books.ended_dead = 1, "1 became dead letters, not 2"),
    ];
    for (change, expected) in changed {
        let mut books = sound.clone();
        change(&mut books);
        let found = books.misfits(&verdict);
        assert!(found.contains(&expected.to_owned()), "{found:?}");
    }
}

#[test]
fn books_may_lack_only_what_a_shard_may_have_held_back() {
    let verdict = Verdict { exist: 10, doubtful: vec![0], ..Verdict::default() };
    let misfits = |jobs| {
        let books = Books { enqueued: jobs, succeeded: jobs, ..Books::default() };
        books.misfits(&verdict).len()
    };
    assert_eq!([8, 9, 10, 11].map(misfits), [1, 0, 0, 1]);
}

/// Runs a load on shards that answer OK to this number of a thousand acks and enqueues, and do nothing.
async fn against_a_liar(name: &'static str, acks: u32, enqueues: u32) -> Option<Outcome> {
    let shape = Shape { proxied: true, ..Shape::default() };
    // Shorter than the patience: jobs that were not acknowledged are delivered again.
    let lease = Duration::from_secs(2);
    let habits = Habits { lease, slow: 0.0, late: 0.0, forgotten: 0.0, ..Habits::default() };
    let trial = Trial::start(name, shape, habits).await?;
    trial.cluster.proxy.iter().for_each(|proxy| proxy.swallow(acks, enqueues));
    trial.run(LOAD).await;
    trial.cluster.proxy.iter().for_each(|proxy| proxy.swallow(0, 0));
    let outcome = trial.judge(PATIENCE).await;
    assert!(!outcome.verdict.sound());
    Some(outcome)
}

/// A change of a history, and a check that it was found.
type Change = (&'static str, fn(&mut Vec<Event>, u32), fn(&Verdict, u32) -> bool);

const CHANGES: [Change; 10] = [
    ("the ack is not answered", |events, job| drop_acks(events, job), |v, job| v.lost == [job]),
    (
        "it comes after its ack",
        |events, job| again(events, job, |late| late.at += nanos(Duration::from_secs(3600))),
        |v, job| v.after_ack == [job],
    ),
    (
        "it comes while it is leased",
        |events, job| again(events, job, |_| ()),
        |v, job| v.overlap == [job],
    ),
    (
        "a failure is counted that no worker reported",
        |events, job| again(events, job, |second| second.attempt += 1),
        |v, job| v.miscounted == [job],
    ),
    (
        "it comes before it is due",
        |events, job| {
            let due = due(events, job);
            first(events, job).at = due - 1;
        },
        |v, job| v.early == [job],
    ),
    (
        "its ack counts under a lease that is over",
        |events, job| again(events, job, |_| ()),
        |v, job| v.outdated == [job],
    ),
    ("it has two ids", |events, job| first(events, job).id.push('x'), |v, job| v.doubled == [job]),
    (
        "its body is damaged",
        |events, job| first(events, job).intact = false,
        |v, job| v.damaged == [job],
    ),
    (
        "no client enqueued it",
        |events, job| first(events, job).job = None,
        |v, _| v.unexpected == 1,
    ),
    (
        "a receipt comes twice",
        |events, job| {
            let same = events.iter().find(|event| delivery(event, job).is_some()).unwrap().clone();
            events.push(same);
        },
        |v, _| v.reused == 1,
    ),
];

const CHANGES_OF_GIVEN_UP: [Change; 5] = [
    (
        "it comes again before its backoff",
        |events, job| {
            let failed = events.iter().find_map(|event| match event {
                Event::Failed { job: of, sent, attempt: 1, .. } if *of == job => Some(*sent),
                _ => None,
            });
            attempt(events, job, 2).at = failed.expect("its first failure") + 1;
        },
        |v, job| v.hurried == [job],
    ),
    (
        "a failure is not counted",
        |events, job| attempt(events, job, 2).attempt = 1,
        |v, job| v.miscounted.contains(&job),
    ),
    (
        "it is tried once more",
        |events, job| {
            let most = events.iter().filter(|event| delivery(event, job).is_some()).count();
            let last = attempt(events, job, i32::try_from(most).unwrap()).clone();
            let (attempt, delivery) = (last.attempt + 1, last.delivery + 1);
            let (at, receipt) = (last.at + nanos(LOAD), format!("not {}", last.receipt));
            events.push(Event::Delivered(Delivered { attempt, delivery, at, receipt, ..last }));
        },
        |v, job| v.overtried == [job],
    ),
    (
        "it is no dead letter",
        |events, job| dead_letters(events).retain(|dead| *dead != job),
        |v, job| v.misfiled == [job],
    ),
    (
        "it is two dead letters",
        |events, job| dead_letters(events).push(job),
        |v, job| v.misfiled == [job],
    ),
];

const CHANGES_OF_DELETED: [Change; 1] = [(
    "it comes after its deletion",
    |events, job| {
        let any = events.iter().find_map(|event| match event {
            Event::Delivered(delivered) => Some(delivered.clone()),
            _ => None,
        });
        let (at, receipt) = (nanos(Duration::from_secs(3600)), "its own".to_owned());
        let id = events.iter().find_map(|event| match event {
            Event::Enqueued { job: of, id, .. } if *of == job => Some(id.clone()),
            _ => None,
        });
        let (job, id) = (Some(job), id.expect("its enqueue was answered"));
        let late = Delivered { job, id, at, receipt, ..any.expect("a delivery") };
        events.push(Event::Delivered(late));
    },
    |v, job| v.after_delete == [job],
)];

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_sound_history_with_one_thing_changed_is_not_sound() {
    let habits = Habits { failing: 0.1, deleted: 0.1, ..Habits::default() };
    let trial = Trial::start("changed", Shape::default(), habits).await;
    let Some(trial) = trial else { return };
    trial.run(LOAD).await;
    let outcome = trial.finish().await;
    let (jobs, events) = (outcome.jobs(), outcome.events());
    for (job, changes) in [
        (plain_job(&events, jobs), &CHANGES[..]),
        (given_up_job(&events), &CHANGES_OF_GIVEN_UP),
        (deleted_job(&events), &CHANGES_OF_DELETED),
    ] {
        for (what, change, found) in changes {
            let mut events = events.clone();
            change(&mut events, job);
            let verdict = check(jobs, &events);
            assert!(!verdict.sound() && found(&verdict, job), "{what}: job {job}: {verdict}");
        }
    }
}

/// Finds a job with an id from its enqueue answer, delivered once and acknowledged.
fn plain_job(events: &[Event], jobs: u32) -> u32 {
    let count = |is: &dyn Fn(&Event) -> bool| events.iter().filter(|event| is(event)).count();
    let is_plain = |of: &u32| {
        let enqueued = count(&|event| matches!(event, Event::Enqueued { job, .. } if job == of));
        let acked = count(&|event| matches!(event, Event::Acked { job, .. } if job == of));
        let came = count(&|event| delivery(event, *of).is_some());
        (enqueued, acked, came) == (1, 1, 1)
    };
    (0..jobs).find(is_plain).expect("most are like that")
}

/// Finds a job that failed as often as its policy allows, each time by a nack that was answered.
fn given_up_job(events: &[Event]) -> u32 {
    let failures = |of: u32| {
        let its = |event: &&Event| matches!(event, Event::Failed { job, .. } if *job == of);
        events.iter().filter(its).count()
    };
    let mut policies = events.iter().filter_map(|event| match event {
        Event::Retried { job, policy } => Some((*job, policy.attempts_max)),
        _ => None,
    });
    let job = policies.find(|(job, most)| i32::try_from(failures(*job)) == Ok(*most));
    job.expect("half of the failing ones are like that").0
}

/// Finds a job that was deleted before it was due.
fn deleted_job(events: &[Event]) -> u32 {
    let mut deleted = events.iter().filter_map(|event| match event {
        Event::Deleted { job, was: Was::Scheduled, .. } => Some(*job),
        _ => None,
    });
    deleted.next().expect("most of the deleted ones are like that")
}

fn delivery(event: &Event, of: u32) -> Option<&Delivered> {
    match event {
        Event::Delivered(delivered) if delivered.job == Some(of) => Some(delivered),
        _ => None,
    }
}

fn first(events: &mut [Event], of: u32) -> &mut Delivered {
    let first = events.iter_mut().find_map(|event| match event {
        Event::Delivered(delivered) if delivered.job == Some(of) => Some(delivered),
        _ => None,
    });
    first.expect("it was delivered")
}

/// Returns the delivery of that attempt.
fn attempt(events: &mut [Event], of: u32, number: i32) -> &mut Delivered {
    let found = events.iter_mut().find_map(|event| match event {
        Event::Delivered(d) if d.job == Some(of) && d.attempt == number => Some(d),
        _ => None,
    });
    found.expect("an attempt of that number")
}

fn dead_letters(events: &mut [Event]) -> &mut Vec<u32> {
    let listed = events.iter_mut().find_map(|event| match event {
        Event::DeadLetters { jobs } => Some(jobs),
        _ => None,
    });
    listed.expect("they were listed")
}

/// Adds a second delivery of the job, equal to the first one except for `change`.
fn again(events: &mut Vec<Event>, job: u32, change: fn(&mut Delivered)) {
    let first = first(events, job);
    let mut second = Delivered {
        delivery: first.delivery + 1,
        receipt: format!("not {}", first.receipt),
        ..first.clone()
    };
    change(&mut second);
    events.push(Event::Delivered(second));
}

fn drop_acks(events: &mut Vec<Event>, of: u32) {
    events.retain(|event| !matches!(event, Event::Acked { job, .. } if *job == of));
}

fn due(events: &[Event], of: u32) -> Nanos {
    let due = events.iter().find_map(|event| match event {
        Event::Enqueue { job, at, delay } if *job == of => Some(at + delay),
        _ => None,
    });
    due.expect("it was asked for")
}
