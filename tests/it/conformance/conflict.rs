//! Every cell of the `on_conflict` table: found state × policy × identical or different request. Deferred generations
//! are in `generations`.

use crate::store_calls::{TestJob, WriteResult};
use ringq::domain::{EnqueueOutcome, Job, OnConflict, RetentionRule, Spec, State, Time, limit};
use ringq::store::LeasedJob;

use super::fixture::Fixture;
use super::values::{RETENTION, after, dead_lettered, failed_for, new_job, plus, request, text};

pub(super) const POLICIES: [OnConflict; 4] =
    [OnConflict::Keep, OnConflict::Replace, OnConflict::Reschedule, OnConflict::Reject];
/// The request that made the existing job.
const FIRST: Option<u64> = request(1, 0);
/// Due time and priority of the second job.
pub(super) const LATER: u64 = 500;
pub(super) const URGENT: u8 = 7;
/// Seconds until the generation behind a running job is due.
const NEXT: u64 = 900;

/// The existing job under an id, and how it came to be.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Found {
    Nothing,
    Cancelled,
    Scheduled,
    Ready,
    Backoff,
    Running,
    RunningWithNext,
    Tombstone,
    Record,
    Expired,
    Dead,
}

/// The expected result of a cell.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Cell {
    Created,
    Replaced,
    Unchanged,
    Rescheduled,
    Deferred,
    Refused,
}

/// An enqueue onto an existing job: state before, answer, state after.
struct Meeting {
    before: Option<Job>,
    put: WriteResult,
    after: Job,
    now: Time,
}

// === the table ===

/// Returns a row of the table at `ConflictPolicy` in the contract: KEEP, REPLACE, RESCHEDULE, REJECT, for a different
/// request.
fn row(found: Found) -> [Cell; 4] {
    use Cell::*;
    match found {
        Found::Nothing | Found::Cancelled => [Created; 4],
        Found::Scheduled | Found::Ready | Found::Backoff => {
            [Unchanged, Replaced, Rescheduled, Refused]
        }
        Found::Running | Found::RunningWithNext => [Unchanged, Deferred, Deferred, Refused],
        Found::Tombstone | Found::Record | Found::Expired => [Unchanged, Created, Created, Refused],
        Found::Dead => [Unchanged, Replaced, Rescheduled, Refused],
    }
}

async fn check_row(q: &Fixture, found: Found) {
    for (policy, cell) in POLICIES.into_iter().zip(row(found)) {
        for request in [None, request(2, 0)] {
            check(q, found, policy, request, cell).await;
        }
        let repeated = if found == Found::Nothing { Cell::Created } else { Cell::Unchanged };
        check(q, found, policy, FIRST, repeated).await;
        let other_job = if found == Found::Nothing { Cell::Created } else { Cell::Refused };
        check(q, found, policy, request(1, 1), other_job).await;
    }
}

async fn check(q: &Fixture, found: Found, policy: OnConflict, request: Option<u64>, cell: Cell) {
    let id = format!("{found:?}-{policy:?}-{request:?}").replace(['(', ')'], "");
    prepare(q, found, &id).await;
    let before = q.get(&id).await;
    let again = TestJob { on_conflict: policy, request_code: request, ..second(&id) };
    let put = q.put(again).await;
    let meeting = Meeting { before, put, after: q.job(&id).await, now: q.now() };
    println!("{id}: {cell:?}");
    meeting.check(cell, found);
}

/// Builds the job that is enqueued first.
pub(super) fn first(id: &str) -> TestJob {
    let spec = Spec { payload: Some(text("first")), ..Spec::default() };
    TestJob { spec, request_code: FIRST, ..new_job(id) }
}

/// Builds the job that is enqueued second.
pub(super) fn second(id: &str) -> TestJob {
    let spec = Spec { payload: Some(text("second")), ..Spec::default() };
    TestJob {
        spec,
        due: after(LATER),
        priority: Some(URGENT),
        request_code: request(2, 0),
        ..new_job(id)
    }
}

/// Creates `found` under `id`, by the request [`FIRST`].
async fn prepare(q: &Fixture, found: Found, id: &str) {
    match found {
        Found::Nothing => {}
        Found::Ready => drop(q.put(first(id)).await),
        Found::Scheduled => drop(q.put(TestJob { due: after(900), ..first(id) }).await),
        Found::Cancelled => {
            q.put(first(id)).await;
            q.delete(id).await;
        }
        Found::Expired => {
            q.put(TestJob { due: after(900), expire: Some(after(1)), ..first(id) }).await;
            q.sleep(1);
        }
        Found::Record => {
            let keep = RetentionRule::Record(RETENTION);
            let leased = take(q, TestJob { retention: keep, ..first(id) }).await;
            q.ack(&leased).await;
        }
        Found::Tombstone => drop(q.ack(&take(q, first(id)).await).await),
        Found::Backoff => drop(q.end(&take(q, first(id)).await, failed_for(900)).await),
        Found::Dead => drop(q.end(&take(q, first(id)).await, dead_lettered()).await),
        Found::Running => drop(take(q, first(id)).await),
        Found::RunningWithNext => {
            take(q, TestJob { request_code: request(3, 0), ..first(id) }).await;
            let spec = Spec { payload: Some(text("waiting")), ..Spec::default() };
            let on_conflict = OnConflict::Replace;
            q.put(TestJob { spec, on_conflict, due: after(NEXT), ..first(id) }).await;
        }
    }
}

/// Enqueues before everything else that is ready, and claims.
pub(super) async fn take(q: &Fixture, job: TestJob) -> LeasedJob {
    let key = job.key.clone();
    q.put(TestJob { priority: Some(9), ..job }).await;
    let leased = q.claim_one().await;
    assert_eq!(leased.key, key);
    leased
}

// === impl Meeting ===

impl Meeting {
    fn check(&self, cell: Cell, found: Found) {
        match cell {
            Cell::Created => self.check_fresh(EnqueueOutcome::Created),
            Cell::Replaced => self.check_fresh(EnqueueOutcome::Replaced),
            Cell::Unchanged => self.check_same(Some(EnqueueOutcome::Unchanged), found),
            Cell::Refused => self.check_same(None, found),
            Cell::Rescheduled => self.check_moved(found == Found::Dead),
            Cell::Deferred => self.check_deferred(),
        }
    }

    /// Checks that the new job reads like the first one under its id, except for its generation.
    fn check_fresh(&self, outcome: EnqueueOutcome) {
        let due = plus(self.now, LATER);
        assert_eq!(self.put.outcome, Some(outcome));
        assert_eq!((self.put.state, self.put.due), (State::Scheduled, due));
        let expected = Job {
            key: self.after.key.clone(),
            spec: second("").spec,
            priority: URGENT,
            expire_time: None,
            state: State::Scheduled,
            failures: 0,
            deliveries: 0,
            crashes: 0,
            generation: self.generation_before() + 1,
            create_time: self.now,
            due_time: due,
            lease_expire_time: None,
            worker_id: String::new(),
            finish_time: None,
            result: None,
            last_error: String::new(),
            attempts: Vec::new(),
            progress: String::new(),
            checkpoint: None,
            shard: self.after.shard.clone(),
        };
        assert_eq!(self.after, expected);
    }

    /// Checks that nothing has changed.
    fn check_same(&self, outcome: Option<EnqueueOutcome>, found: Found) {
        let before = self.before.as_ref().unwrap();
        assert_eq!(self.put.outcome, outcome);
        assert_eq!(self.put.state, before.state);
        let due = if found == Found::RunningWithNext { self.next_due() } else { before.due_time };
        assert_eq!(self.put.due, due);
        assert_eq!(&self.after, before);
    }

    /// Checks that the job is the same with another due time and priority; a dead one with counters at zero.
    fn check_moved(&self, revived: bool) {
        let before = self.before.clone().unwrap();
        assert_eq!(self.put.outcome, Some(EnqueueOutcome::Rescheduled));
        assert_eq!((self.put.state, self.put.due), (self.after.state, plus(self.now, LATER)));
        let failures = if revived { 0 } else { before.failures };
        let deliveries = if revived { 0 } else { before.deliveries };
        let waits = if failures > 0 { State::Backoff } else { State::Scheduled };
        assert_eq!(self.after.state, waits);
        assert_eq!((self.after.failures, self.after.deliveries), (failures, deliveries));
        assert_eq!((self.after.due_time, self.after.priority), (self.put.due, URGENT));
        assert_eq!(self.after.finish_time, None);
        assert_eq!(self.after.generation, before.generation);
        assert_eq!(self.after.spec, before.spec);
        assert_eq!(self.after.create_time, before.create_time);
    }

    /// Checks that the job runs on, with another generation.
    fn check_deferred(&self) {
        let before = self.before.clone().unwrap();
        assert_eq!(self.put.outcome, Some(EnqueueOutcome::Deferred));
        assert_eq!((self.put.state, self.put.due), (State::Running, plus(self.now, LATER)));
        let expected = Job { generation: before.generation + 1, ..before };
        assert_eq!(self.after, expected);
    }

    /// Returns the due time of the waiting generation of [`prepare`].
    fn next_due(&self) -> Time {
        plus(self.now, NEXT)
    }

    fn generation_before(&self) -> u32 {
        self.before.as_ref().map_or(0, |job| job.generation)
    }
}

pub(crate) async fn nothing_found(q: Fixture) {
    check_row(&q, Found::Nothing).await;
}

pub(crate) async fn a_cancelled_job_found(q: Fixture) {
    check_row(&q, Found::Cancelled).await;
}

pub(crate) async fn a_scheduled_job_found(q: Fixture) {
    check_row(&q, Found::Scheduled).await;
}

pub(crate) async fn a_ready_job_found(q: Fixture) {
    check_row(&q, Found::Ready).await;
}

pub(crate) async fn a_job_in_backoff_found(q: Fixture) {
    check_row(&q, Found::Backoff).await;
}

pub(crate) async fn a_running_job_found(q: Fixture) {
    check_row(&q, Found::Running).await;
}

pub(crate) async fn a_running_job_with_a_generation_waiting_found(q: Fixture) {
    check_row(&q, Found::RunningWithNext).await;
}

pub(crate) async fn the_tombstone_of_a_finished_job_found(q: Fixture) {
    check_row(&q, Found::Tombstone).await;
}

pub(crate) async fn a_kept_finished_job_found(q: Fixture) {
    check_row(&q, Found::Record).await;
}

pub(crate) async fn an_expired_job_found(q: Fixture) {
    check_row(&q, Found::Expired).await;
}

pub(crate) async fn a_dead_job_found(q: Fixture) {
    check_row(&q, Found::Dead).await;
}

// === requests ===

pub(crate) async fn only_the_last_request_applied_makes_a_repeat(q: Fixture) {
    let replace =
        |of| TestJob { on_conflict: OnConflict::Replace, request_code: of, ..new_job("a") };
    q.put(replace(request(1, 0))).await;
    assert_eq!(q.put(replace(request(2, 0))).await.outcome, Some(EnqueueOutcome::Replaced));
    assert_eq!(q.put(replace(request(2, 0))).await.outcome, Some(EnqueueOutcome::Unchanged));
    assert_eq!(q.put(replace(request(1, 0))).await.outcome, Some(EnqueueOutcome::Replaced));
}

pub(crate) async fn a_call_without_a_request_leaves_the_last_one_applied(q: Fixture) {
    let replace =
        |of| TestJob { on_conflict: OnConflict::Replace, request_code: of, ..new_job("a") };
    q.put(replace(request(1, 0))).await;
    assert_eq!(q.put(replace(None)).await.outcome, Some(EnqueueOutcome::Replaced));
    assert_eq!(q.put(replace(request(1, 0))).await.outcome, Some(EnqueueOutcome::Unchanged));
}

pub(crate) async fn a_call_without_a_request_is_never_a_repeat(q: Fixture) {
    let replace =
        || TestJob { on_conflict: OnConflict::Replace, request_code: None, ..new_job("a") };
    q.put(replace()).await;
    assert_eq!(q.put(replace()).await.outcome, Some(EnqueueOutcome::Replaced));
}

pub(crate) async fn a_repeated_reschedule_does_not_move_the_job_again(q: Fixture) {
    q.put(new_job("a")).await;
    let debounce = || TestJob { on_conflict: OnConflict::Reschedule, ..second("a") };
    let put = q.put(debounce()).await;
    assert_eq!(put.outcome, Some(EnqueueOutcome::Rescheduled));
    q.sleep(5);
    let repeat = q.put(debounce()).await;
    assert_eq!((repeat.outcome, repeat.due), (Some(EnqueueOutcome::Unchanged), put.due));
}

pub(crate) async fn a_repeated_deferral_is_recognized(q: Fixture) {
    let running = take(&q, first("a")).await;
    let defer = || TestJob { on_conflict: OnConflict::Replace, ..second("a") };
    assert_eq!(q.put(defer()).await.outcome, Some(EnqueueOutcome::Deferred));
    assert_eq!(q.put(defer()).await.outcome, Some(EnqueueOutcome::Unchanged));
    q.ack(&running).await;
    assert_eq!(q.put(defer()).await.outcome, Some(EnqueueOutcome::Unchanged), "after it started");
}

pub(crate) async fn a_request_is_remembered_by_the_tombstone(q: Fixture) {
    let replace = || TestJob { on_conflict: OnConflict::Replace, ..first("a") };
    let running = take(&q, replace()).await;
    q.ack(&running).await;
    assert_eq!(q.put(replace()).await.outcome, Some(EnqueueOutcome::Unchanged));
    q.sleep(60);
    assert_eq!(q.put(replace()).await.outcome, Some(EnqueueOutcome::Created));
}

// === tombstones and generations ===

pub(crate) async fn a_repeat_within_the_tombstone_is_unchanged_and_after_it_created(q: Fixture) {
    let running = q.running("a").await;
    q.ack(&running).await;
    let forgotten = q.now().plus(limit::TOMBSTONE);
    q.until_just_before(forgotten);
    let put = q.put(new_job("a")).await;
    assert_eq!((put.outcome, put.state), (Some(EnqueueOutcome::Unchanged), State::Succeeded));
    q.until(forgotten);
    let put = q.put(new_job("a")).await;
    assert_eq!((put.outcome, put.state), (Some(EnqueueOutcome::Created), State::Ready));
    assert_eq!(q.job("a").await.generation, 1);
}

pub(crate) async fn a_reschedule_without_priority_keeps_it(q: Fixture) {
    q.put(TestJob { priority: Some(4), ..new_job("a") }).await;
    q.put(TestJob { on_conflict: OnConflict::Reschedule, due: after(1), ..new_job("a") }).await;
    assert_eq!(q.job("a").await.priority, 4);
}

pub(crate) async fn a_reschedule_moves_neither_payload_nor_policy(q: Fixture) {
    let keep = RetentionRule::Record(RETENTION);
    q.put(TestJob { retention: keep, expire: Some(after(700)), ..first("a") }).await;
    let before = q.job("a").await;
    let on_conflict = OnConflict::Reschedule;
    q.put(TestJob { on_conflict, retention: RetentionRule::Nothing, expire: None, ..second("a") })
        .await;
    assert_eq!(q.job("a").await.expire_time, before.expire_time);
    q.sleep(LATER);
    let leased = q.claim_one().await;
    assert_eq!(leased.spec, before.spec);
    q.ack(&leased).await;
    assert_eq!(q.job("a").await.spec.payload, Some(text("first")), "the record is kept");
}
