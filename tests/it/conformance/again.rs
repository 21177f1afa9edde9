//! Jobs that may already be written: a call whose answer was lost is repeated with its server-made ids, which leave
//! no tombstone.

use std::time::Duration;

use crate::store_calls::{LeaseSettlement, RedriveBatch, StoreCalls as _, TestJob};
use ringq::domain::open_rings::RingRecords;
use ringq::domain::ring::ShardState;
use ringq::domain::{EnqueueOutcome, JobId, OnConflict, RetentionRule, State, When, limit};
use ringq::store::{Heartbeat, NotWrittenReason, SettleAction, StreamDemand, WritePrecondition};

use super::fixture::Fixture;
use super::values::{
    OWNER, TOPIC, ack, dead_lettered, failed_for, key, new_job, one, taker, topic,
};

/// Builds a job with a server-made id, of which nothing stays.
fn made(q: &Fixture, n: u128) -> TestJob {
    let millis = u128::try_from(q.now().0).unwrap() / 1_000 + 1;
    let id = JobId::from_uuid(q.store.name(), millis << 80 | n);
    TestJob { retention: RetentionRule::Nothing, ..new_job(id.as_str()) }
}

fn again(job: &TestJob) -> TestJob {
    TestJob { precondition: WritePrecondition::SameJob, ..job.clone() }
}

/// Repeats the enqueue; returns the outcome and the state found.
async fn repeat(q: &Fixture, job: &TestJob) -> (Option<EnqueueOutcome>, State) {
    let found = q.put(again(job)).await;
    (found.outcome, found.state)
}

const DONE: (Option<EnqueueOutcome>, State) = (Some(EnqueueOutcome::Unchanged), State::Succeeded);

pub(crate) async fn a_job_that_was_never_written_is_created(q: Fixture) {
    let job = made(&q, 1);
    assert_eq!(repeat(&q, &job).await, (Some(EnqueueOutcome::Created), State::Ready));
    assert_eq!(repeat(&q, &job).await, (Some(EnqueueOutcome::Unchanged), State::Ready));
    assert_eq!(q.claim_ids().await, [job.key.id.as_str()]);
    assert_eq!(repeat(&q, &job).await, (Some(EnqueueOutcome::Unchanged), State::Running));
}

pub(crate) async fn a_job_that_is_done_is_not_written_again(q: Fixture) {
    let jobs: Vec<_> = (1..=5).map(|n| made(&q, n)).collect();
    q.put(jobs[0].clone()).await;
    let alone = q.claim_one().await;
    q.ack(&alone).await;
    assert_eq!(repeat(&q, &jobs[0]).await, DONE, "acknowledged alone");
    q.store.enqueue(jobs[1..].to_vec()).await.unwrap();
    let leased = q.claim(10).await;
    assert_eq!(leased.len(), 4);
    q.end(&leased[0], failed_for(0)).await;
    q.store.settle(leased[1..].iter().map(ack).collect()).await.unwrap();
    for job in &jobs[2..] {
        assert_eq!(repeat(&q, job).await, DONE, "acknowledged together");
    }
    assert_eq!(repeat(&q, &jobs[1]).await.1, State::Ready, "it failed, and waits");
    let retried = q.claim_one().await;
    q.ack(&retried).await;
    assert_eq!(repeat(&q, &jobs[1]).await, DONE, "acknowledged with a past");
    assert!(q.claim_ids().await.is_empty());
    let fresh = [made(&q, 9), made(&q, 10)];
    let mixed = vec![again(&jobs[0]), fresh[0].clone(), again(&fresh[1]), again(&jobs[4])];
    let found = q.store.enqueue(mixed).await.unwrap();
    let outcomes: Vec<_> = found.iter().map(|found| found.outcome.unwrap()).collect();
    use EnqueueOutcome::{Created, Unchanged};
    assert_eq!(outcomes, [Unchanged, Created, Created, Unchanged]);
}

/// Also for the first job of its topic.
pub(crate) async fn a_job_that_had_expired_when_it_came_is_counted_once_and_recalled(q: Fixture) {
    let job = TestJob { expire: Some(When::At(q.now())), ..made(&q, 1) };
    assert_eq!(repeat(&q, &job).await, (Some(EnqueueOutcome::Created), State::Expired));
    assert_eq!(repeat(&q, &job).await, (Some(EnqueueOutcome::Unchanged), State::Expired));
    assert_eq!(q.stats(TOPIC).await.enqueued_total, 1);
    assert!(q.claim_ids().await.is_empty());
}

/// New ids skip the lookup of an existing job; ids that may be taken are found all the same, beside new ones and
/// alone.
pub(crate) async fn new_ids_are_written_beside_ones_that_are_taken(q: Fixture) {
    let fresh = |topic: &str, n| {
        let job = TestJob { precondition: WritePrecondition::Anything, ..made(&q, n) };
        TestJob { key: key(topic, job.key.id.as_str()), ..job }
    };
    let taken = |topic: &str| TestJob { key: key(topic, "taken"), ..new_job("taken") };
    for topic in ["mixed", "chosen"] {
        q.put(taken(topic)).await;
    }
    let jobs = vec![
        fresh("fresh", 1),
        fresh("mixed", 2),
        taken("chosen"),
        fresh("fresh", 3),
        taken("mixed"),
        fresh("mixed", 4),
        fresh("fresh", 5),
    ];
    let found = q.store.enqueue(jobs.clone()).await.unwrap();
    let outcomes: Vec<_> = found.iter().map(|found| found.outcome.unwrap()).collect();
    use EnqueueOutcome::{Created, Unchanged};
    assert_eq!(outcomes, [Created, Created, Unchanged, Created, Unchanged, Created, Created]);
    assert_eq!(q.put(fresh("fresh", 6)).await.outcome, Some(Created), "alone");
    for (topic, count) in [("fresh", 4), ("mixed", 3), ("chosen", 1)] {
        let claimed = q.claim_for(topic, vec![StreamDemand { jobs: 10, ..taker() }]).await;
        assert_eq!(claimed.by_stream[0].len(), count, "{topic}");
    }
    let repeats = q.store.enqueue(jobs.iter().map(again).collect()).await.unwrap();
    assert!(repeats.iter().all(|found| found.outcome == Some(Unchanged)), "{repeats:?}");
}

pub(crate) async fn only_that_job_is_recalled(q: Fixture) {
    let job = made(&q, 1);
    let leased = q.run(job.clone()).await;
    q.ack(&leased).await;
    let elsewhere = TestJob { key: key("other", job.key.id.as_str()), ..job.clone() };
    assert_eq!(
        repeat(&q, &elsewhere).await.0,
        Some(EnqueueOutcome::Created),
        "the next step of a pipeline"
    );
    assert_eq!(
        q.put(job.clone()).await.outcome,
        Some(EnqueueOutcome::Created),
        "it was not marked as a repeat"
    );
    assert_eq!(
        repeat(&q, &job).await,
        (Some(EnqueueOutcome::Unchanged), State::Ready),
        "there is one now"
    );
    q.delete(job.key.id.as_str()).await;
    let deleted = made(&q, 2);
    q.put(deleted.clone()).await;
    q.delete(deleted.key.id.as_str()).await;
    let cancelled = (Some(EnqueueOutcome::Unchanged), State::Cancelled);
    assert_eq!(repeat(&q, &deleted).await, cancelled, "a deleted one does not come anew");
}

/// A store that cannot recall after a restart which jobs have left nothing reports it, as long as such calls are
/// repeated.
pub(crate) async fn a_job_that_ran_before_a_restart_is_not_written_again(q: Fixture) {
    let Some(mut q) = q.lasting() else { return };
    let (ran, waits) = (made(&q, 1), made(&q, 2));
    q.put(ran.clone()).await;
    q.ack(&q.claim_one().await).await;
    q.put(waits.clone()).await;
    q.sleep(1);
    q.reopen().await;
    let found = q.put(again(&ran)).await;
    let is_unsure = found.not_written == Some(NotWrittenReason::HistoryLost);
    assert!(is_unsure || (found.outcome, found.state) == DONE, "{found:?}");
    assert_eq!(repeat(&q, &waits).await, (Some(EnqueueOutcome::Unchanged), State::Ready));
    assert_eq!(q.claim_ids().await, [waits.key.id.as_str()], "the other one does not run again");
    // Later jobs are recalled again.
    q.sleep(2);
    assert_eq!(repeat(&q, &made(&q, 3)).await, (Some(EnqueueOutcome::Created), State::Ready));
    // Older jobs are not recalled for longer than they may be repeated.
    q.sleep(limit::REPEAT_MAX.as_secs());
    assert_eq!(q.put(again(&ran)).await.not_written, Some(NotWrittenReason::TooOld));
}

/// State of a job with a server-made id when its enqueue is repeated.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Life {
    NeverWritten,
    Waiting,
    Running,
    Acked,
    AckedByAnother,
    AckedAfterAFailure,
    AckedAndKeptAWhile,
    AckedAndKept,
    Dead,
    DeadAndDeleted,
    DeadAndForgotten,
    Moved,
    DeletedWaiting,
    DeletedRunning,
    DeletedAndKept,
    Expired,
    ExpiredAndKeptAWhile,
}

const LIVES: [Life; 17] = [
    Life::NeverWritten,
    Life::Waiting,
    Life::Running,
    Life::Acked,
    Life::AckedByAnother,
    Life::AckedAfterAFailure,
    Life::AckedAndKeptAWhile,
    Life::AckedAndKept,
    Life::Dead,
    Life::DeadAndDeleted,
    Life::DeadAndForgotten,
    Life::Moved,
    Life::DeletedWaiting,
    Life::DeletedRunning,
    Life::DeletedAndKept,
    Life::Expired,
    Life::ExpiredAndKeptAWhile,
];

/// Result of a repeat, however old the job is.
enum Left {
    Nothing,
    /// No record, but a job that ended in this state.
    Ended(State),
    Record(State),
}

const LONG: Duration = Duration::from_secs(7_200);

impl Life {
    fn job(self, q: &Fixture, n: u128) -> TestJob {
        let keep = match self {
            Life::AckedAndKeptAWhile | Life::ExpiredAndKeptAWhile => {
                RetentionRule::Record(Duration::from_millis(100))
            }
            Life::AckedAndKept | Life::DeletedAndKept => RetentionRule::Record(LONG),
            _ => RetentionRule::Nothing,
        };
        let expires = matches!(self, Life::Expired | Life::ExpiredAndKeptAWhile);
        let expire = expires.then_some(When::After(Duration::from_millis(50)));
        TestJob { retention: keep, expire, ..made(q, n) }
    }

    /// Brings the job into this state; nothing else of its topic is ready.
    async fn live(self, q: &Fixture, job: &TestJob) -> Left {
        let id = job.key.id.as_str();
        if self == Life::NeverWritten {
            return Left::Nothing;
        }
        q.put(TestJob { precondition: WritePrecondition::Anything, ..job.clone() }).await;
        match self {
            Life::NeverWritten => unreachable!(),
            Life::Waiting => return Left::Record(State::Ready),
            Life::Running => {
                let leased = q.claim_one().await;
                q.extend(&leased, Some(LONG), None).await.unwrap();
                return Left::Record(State::Running);
            }
            Life::Acked | Life::AckedAndKeptAWhile => drop(q.ack(&q.claim_one().await).await),
            Life::AckedByAnother => {
                let ack = LeaseSettlement { owner: OWNER + 1, ..ack(&q.claim_one().await) };
                q.settle(ack).await.unwrap();
            }
            Life::AckedAfterAFailure => {
                q.end(&q.claim_one().await, failed_for(0)).await;
                q.ack(&q.claim_one().await).await;
            }
            Life::AckedAndKept => {
                q.ack(&q.claim_one().await).await;
                return Left::Record(State::Succeeded);
            }
            Life::Dead | Life::DeadAndDeleted | Life::DeadAndForgotten | Life::Moved => {
                return self.die(q, id).await;
            }
            Life::DeletedWaiting => drop(q.delete(id).await),
            Life::DeletedRunning => {
                q.claim_one().await;
                q.delete(id).await;
            }
            Life::DeletedAndKept => {
                q.delete(id).await;
                return Left::Record(State::Cancelled);
            }
            Life::Expired | Life::ExpiredAndKeptAWhile => {
                q.clock.advance(Duration::from_millis(200));
                q.store.prune(100).await.unwrap();
                return Left::Ended(State::Expired);
            }
        }
        if self == Life::AckedAndKeptAWhile {
            q.clock.advance(Duration::from_millis(200));
        }
        let deleted = matches!(self, Life::DeletedWaiting | Life::DeletedRunning);
        Left::Ended(if deleted { State::Cancelled } else { State::Succeeded })
    }

    async fn die(self, q: &Fixture, id: &str) -> Left {
        let leased = q.claim_one().await;
        let LeaseSettlement { action: end, .. } = q.decide(&leased, dead_lettered()).await;
        let SettleAction::Unacked(unacked) = end else { unreachable!() };
        let forgotten = self == Life::DeadAndForgotten;
        let dead_retention = if forgotten { Duration::from_millis(100) } else { LONG };
        let end =
            SettleAction::Unacked(ringq::domain::engine::Unacked { dead_retention, ..unacked });
        q.settle(LeaseSettlement { action: end, ..ack(&leased) }).await.unwrap();
        match self {
            Life::DeadAndForgotten => q.clock.advance(Duration::from_millis(200)),
            Life::DeadAndDeleted => drop(q.delete(id).await),
            Life::Moved => {
                let redrive = RedriveBatch {
                    topic: topic(TOPIC),
                    ids: vec![JobId::stored(id)],
                    states: vec![State::Dead],
                    spacing: Duration::ZERO,
                    delay: Duration::ZERO,
                    target: Some(topic("elsewhere")),
                    ttl: None,
                    dry_run: false,
                    deadline: None,
                };
                assert_eq!(q.store.redrive(redrive).await.unwrap().redriven, 1);
            }
            _ => return Left::Record(State::Dead),
        }
        Left::Ended(State::Dead)
    }
}

async fn beat(q: &Fixture) {
    let (state, rings) = (ShardState::Active, RingRecords::new());
    let beat = Heartbeat {
        owner: OWNER,
        ring: 0,
        state,
        rings,
        seen_owners: Vec::new(),
        removed_owners: Vec::new(),
    };
    q.store.heartbeat(beat).await.unwrap();
}

/// The rule of repeats: under a server-made id no second job is ever created, however the first one ended, whatever
/// the age of the id and of the store.
pub(crate) async fn a_repeat_of_whatever_age_never_doubles_a_job(q: Fixture) {
    let mut n = 0;
    for policy in
        [OnConflict::Keep, OnConflict::Reject, OnConflict::Replace, OnConflict::Reschedule]
    {
        for seconds in [1, 9 * 60, 11 * 60] {
            let mut lives = Vec::new();
            for life in LIVES {
                n += 1;
                let job = TestJob { on_conflict: policy, ..life.job(&q, n) };
                let born = q.now();
                let left = life.live(&q, &job).await;
                q.until(born.plus(Duration::from_secs(seconds)));
                // Housekeeping continues meanwhile.
                beat(&q).await;
                q.store.prune(100).await.unwrap();
                lives.push((life, job.clone()));
                let case = format!("{life:?} under {policy:?} after {seconds} s");
                check_repeat(&q, &job, &left, seconds, &case).await;
                for id in ["elsewhere", TOPIC] {
                    let left = q.claim_for(id, vec![taker()]).await;
                    for leased in &one(left.by_stream) {
                        q.ack(leased).await;
                    }
                }
                q.delete(job.key.id.as_str()).await;
            }
            beat(&q).await;
            // Every job is gone now, and the store can recall that.
            for (life, job) in lives {
                let repeat = q.put(again(&job)).await;
                let unwritten = repeat.not_written.is_some();
                assert!(unwritten || repeat.outcome == Some(EnqueueOutcome::Unchanged), "{life:?}");
            }
            assert_eq!(q.claim_ids().await, [""; 0]);
        }
    }
}

async fn check_repeat(q: &Fixture, job: &TestJob, left: &Left, seconds: u64, case: &str) {
    let before = q.get(job.key.id.as_str()).await;
    // The scheduler has found that it is a repeat, and keeps the existing job.
    let repeats = [again(job), TestJob { on_conflict: OnConflict::Keep, ..again(job) }];
    let is_old = seconds > limit::REPEAT_MAX.as_secs();
    let first = usize::from(matches!(left, Left::Record(_)));
    for (n, repeat) in repeats.iter().enumerate().skip(first) {
        let found = q.put(repeat.clone()).await;
        let answer = (found.not_written, found.outcome, found.state);
        let unchanged = Some(EnqueueOutcome::Unchanged);
        match left {
            Left::Record(state) => assert_eq!(answer, (None, unchanged, *state), "{case}"),
            Left::Nothing | Left::Ended(_) if is_old => {
                assert_eq!(found.not_written, Some(NotWrittenReason::TooOld), "{case}");
            }
            Left::Ended(state) => assert_eq!(answer, (None, unchanged, *state), "{case}"),
            Left::Nothing => {
                let created = (n == 0).then_some(EnqueueOutcome::Created);
                assert_eq!(answer, (None, created.or(unchanged), State::Ready), "{case}");
                continue;
            }
        }
        assert_eq!(q.get(job.key.id.as_str()).await, before, "{case}");
    }
}

pub(crate) async fn a_shard_that_drains_takes_no_job_under_an_id_of_a_server(q: Fixture) {
    let (there, done, new) = (made(&q, 1), made(&q, 2), made(&q, 3));
    q.ack(&q.run(done.clone()).await).await;
    q.put(there.clone()).await;
    beat(&q).await;
    for (state, expected) in [
        (ShardState::Draining, Some(NotWrittenReason::Draining)),
        (ShardState::Active, None),
        (ShardState::Draining, None),
    ] {
        q.store.set_state(state, None).await.unwrap();
        assert_eq!(q.put(again(&new)).await.not_written, expected, "{state:?}");
        assert_eq!(repeat(&q, &done).await, DONE);
        assert_eq!(repeat(&q, &there).await, (Some(EnqueueOutcome::Unchanged), State::Ready));
    }
    assert_eq!(q.claim_ids().await.len(), 2);
}
