//! The rig itself: what a broken build would do is found. Histories of a sound run with one thing changed, runs
//! against a Redis that says yes and does nothing, a script that does not look at tokens, a shard that stays away,
//! and what should not be left when all is done.

use std::time::Duration;

use crate::books::{Books, leftovers};
use crate::checker::history::{Delivered, Event, Nanos, nanos};
use crate::checker::{Verdict, check};
use crate::cluster::Shape;
use crate::harness::{Redis, millis};
use crate::load::Habits;
use crate::proxy::Way;
use crate::trial::{Outcome, Trial};

/// How long a load runs that is to be judged broken.
const LOAD: Duration = millis(1500);
/// For what comes again; what is lost never does.
const PATIENCE: Duration = Duration::from_secs(6);
/// Of a thousand.
const SWALLOWED: u32 = 100;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn acks_that_do_nothing_are_found() {
    let Some(outcome) = against_a_liar("acks_swallowed", SWALLOWED, 0).await else { return };
    assert!(!outcome.verdict.after_ack.is_empty(), "no job came after its ack");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn enqueues_that_do_nothing_are_found() {
    let Some(outcome) = against_a_liar("enqueues_swallowed", 0, SWALLOWED).await else { return };
    assert!(!outcome.verdict.lost.is_empty(), "no job is lost");
    let missing = outcome.faults.iter().any(|fault| fault.contains("jobs were enqueued, not"));
    assert!(missing, "the books fit: {:?}", outcome.faults);
}

/// Where `settle.lua` compares the token of a receipt with that of the lease, once a job was leased before.
const TOKEN_CHECK: &str = "if j.lease and j.lease.token == token then return j end";

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn acks_without_a_look_at_the_token_are_found() {
    let shape = Shape {
        proxied: true,
        broken: Some((TOKEN_CHECK, "if j.lease then return j end")),
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

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn jobs_that_nobody_reaches_are_not_done() {
    let shape = Shape { proxied: true, ..Shape::default() };
    let trial = Trial::start("not_done", shape, Habits::default()).await;
    let Some(trial) = trial else { return };
    trial.run(LOAD).await;
    trial.network(0, Way::Reset);
    let outcome = trial.judge(Duration::from_secs(2)).await;
    let told = ["jobs are not done", "producers get no answer", "the books cannot be read"];
    let is_told = |fault: &String| told.iter().any(|what| fault.contains(what));
    assert!(outcome.faults.iter().any(is_told), "{:?}", outcome.faults);
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
    for (command, told) in planted {
        redis.command(command).await;
        let found = leftovers("s0", &redis).await;
        assert!(found.len() == 1 && found[0].contains(told), "{found:?}");
        redis.command(&["FLUSHALL"]).await;
    }
}

/// A change of the books, and what is told of it.
type Misfit = (fn(&mut Books), &'static str);

#[test]
fn books_that_do_not_fit_are_told() {
    let verdict = Verdict { exist: 10, buried: 2, ..Verdict::default() };
    let sound = Books { left: 0, dead: 2, enqueued: 10, succeeded: 8, ended_dead: 2 };
    assert!(sound.misfits(&verdict).is_empty());
    let changed: [Misfit; 5] = [
        (|books| books.left = 1, "1 jobs are left, not 0"),
        (|books| books.enqueued = 11, "11 jobs were enqueued, not 10"),
        (|books| books.succeeded = 9, "11 jobs ended, not 10"),
        (|books| books.dead = 1, "1 are dead letters, not 2"),
        (|books| books.ended_dead = 1, "1 became dead letters, not 2"),
    ];
    for (change, told) in changed {
        let mut books = sound.clone();
        change(&mut books);
        let found = books.misfits(&verdict);
        assert!(found.contains(&told.to_owned()), "{found:?}");
    }
}

/// A run on shards that say yes to so many of a thousand acks and enqueues, and do nothing.
async fn against_a_liar(name: &'static str, acks: u32, enqueues: u32) -> Option<Outcome> {
    let shape = Shape { proxied: true, ..Shape::default() };
    // Shorter than the patience: what was not acknowledged comes again.
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

/// A change of a history, and whether it was found.
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
        "a failure is counted that nobody reported",
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
    ("nobody asked for it", |events, job| first(events, job).job = None, |v, _| v.unexpected == 1),
    (
        "a receipt comes twice",
        |events, job| {
            let same = events.iter().find(|event| delivery(event, job).is_some()).unwrap().clone();
            events.push(same);
        },
        |v, _| v.reused == 1,
    ),
];

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_sound_history_with_one_thing_changed_is_not_sound() {
    let trial = Trial::start("changed", Shape::default(), Habits::default()).await;
    let Some(trial) = trial else { return };
    trial.run(LOAD).await;
    let outcome = trial.finish().await;
    let (jobs, events) = (outcome.jobs(), outcome.events());
    let plain = plain_job(&events, jobs);
    for (what, change, found) in CHANGES {
        let mut events = events.clone();
        change(&mut events, plain);
        let verdict = check(jobs, &events);
        assert!(!verdict.sound() && found(&verdict, plain), "{what}: job {plain}: {verdict}");
    }
}

/// A job with an id that its enqueue told, delivered once and acknowledged.
fn plain_job(events: &[Event], jobs: u32) -> u32 {
    let count = |is: &dyn Fn(&Event) -> bool| events.iter().filter(|event| is(event)).count();
    let is_plain = |of: &u32| {
        let told = count(&|event| matches!(event, Event::Enqueued { job, .. } if job == of));
        let acked = count(&|event| matches!(event, Event::Acked { job, .. } if job == of));
        let came = count(&|event| delivery(event, *of).is_some());
        (told, acked, came) == (1, 1, 1)
    };
    (0..jobs).find(is_plain).expect("most are like that")
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

/// Delivered once more, otherwise as the first time but for what `change` does.
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
