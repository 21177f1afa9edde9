//! Outages: a shard that no server served for a while, and the leases that expired meanwhile.

use std::time::Duration;

use crate::store_calls::{LeaseExtension, StoreCalls as _, TestJob};
use ringq::domain::outage::{ExpiredLease, ExpiryDecision};
use ringq::domain::{ShardOutage, Spec, Time, limit};
use ringq::store::{LeaseRefusal, LeasedJob, OutageExpiry, RunningLease};

use super::beat::beat;
use super::fixture::Fixture;
use super::values::{lease_ref, new_job, one};

/// A job with a lease of 4 s.
fn short(id: &str) -> TestJob {
    let spec = Spec { lease: Some(Duration::from_secs(4)), ..Spec::default() };
    TestJob { spec, ..new_job(id) }
}

/// A way in which no server serves a shard.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Absence {
    /// No heartbeats: the server stands still, or cannot reach the shard.
    Silence,
    /// The only server restarts.
    Restart,
}

/// Leaves the shard without a server for this number of seconds.
async fn go_away(q: &mut Fixture, seconds: u64) -> ShardOutage {
    let absence = if q.store.is_shared() { Absence::Silence } else { Absence::Restart };
    go_away_by(q, absence, seconds).await
}

async fn go_away_by(q: &mut Fixture, absence: Absence, seconds: u64) -> ShardOutage {
    q.store.heartbeat(beat(1)).await.unwrap();
    let silent_since = q.now();
    q.sleep(seconds);
    if absence == Absence::Silence {
        return ShardOutage { since: silent_since, until: q.now() };
    }
    q.reopen().await;
    q.store.overdue_leases(1).await.unwrap();
    ShardOutage { since: Time(i64::MIN), until: q.now() }
}

async fn move_to(
    q: &Fixture,
    leased: &LeasedJob,
    lapsed: OutageExpiry,
) -> Result<Time, LeaseRefusal> {
    let duration = Some(Duration::from_secs(5));
    let lapsed = Some(lapsed);
    let lease = lease_ref(leased);
    let extend = LeaseExtension {
        lease,
        duration,
        progress: None,
        checkpoint: None,
        outage_expiry: lapsed,
        write_deadline: None,
    };
    one(q.store.extend(vec![extend]).await.unwrap())
}

fn lapse(lease: &RunningLease, away: ShardOutage) -> ExpiryDecision {
    let RunningLease { start_time: started, extend_time: extended, deadline, grace, now, .. } =
        *lease;
    away.decide(&ExpiredLease { started, extended, deadline, grace }, now)
}

pub(crate) async fn a_time_without_servers_is_known_whichever_call_ends_it(q: Fixture) {
    let Some(mut q) = q.lasting() else { return };
    let absences = [Absence::Silence, Absence::Restart];
    // Where several servers share the shard, the start of one ends nothing.
    let absences = if q.store.is_shared() { &absences[..1] } else { &absences };
    let cases =
        absences.iter().flat_map(|absence| [12, 7, 3_600].map(|seconds| (*absence, seconds)));
    for ((absence, seconds), is_beat_first) in
        cases.flat_map(|case| [false, true].map(|is_first| (case, is_first)))
    {
        let away = go_away_by(&mut q, absence, seconds).await;
        if is_beat_first {
            q.store.heartbeat(beat(2)).await.unwrap();
        }
        // Later heartbeats change nothing.
        for _ in 0..3 {
            let reaped = q.store.overdue_leases(10).await.unwrap();
            assert_eq!(reaped.outage, Some(away), "{absence:?}, {seconds} s");
            q.sleep(2);
            q.store.heartbeat(beat(2)).await.unwrap();
        }
    }
}

pub(crate) async fn what_ran_out_meanwhile_is_reported_from_what_ran_out_since(q: Fixture) {
    let Some(mut q) = q.lasting() else { return };
    q.store.heartbeat(beat(1)).await.unwrap();
    q.sleep(1);
    let before = q.run(short("before")).await;
    let away = go_away(&mut q, 7).await;
    let since = q.run(short("since")).await;
    q.sleep(4);
    let leases = q.store.overdue_leases(10).await.unwrap().leases;
    let found: Vec<_> = leases.iter().map(|lease| (lease.token, lapse(lease, away))).collect();
    let end = away.until.plus(limit::ORPHAN_GRACE_DEFAULT);
    assert_eq!(
        found,
        [(before.token, ExpiryDecision::InGrace(end)), (since.token, ExpiryDecision::Expired)]
    );
    let names = leases.iter().map(|lease| (lease.worker.as_str(), lease.start_time));
    let started = Time(before.deadline.0 - 4_000_000);
    assert_eq!(names.collect::<Vec<_>>(), [("worker-1", started), ("worker-1", away.until)]);
}

pub(crate) async fn a_lease_that_waits_lasts_from_when_its_shard_was_served_again(q: Fixture) {
    let Some(mut q) = q.lasting() else { return };
    let leased = q.run(short("a")).await;
    let away = go_away(&mut q, 9).await;
    let lapsed = OutageExpiry { deadline: leased.deadline, served_since: away.until };
    q.sleep(1);
    let moved = move_to(&q, &leased, lapsed).await.unwrap();
    assert_eq!(moved, away.until.plus(Duration::from_secs(5)));
    let reaped = q.store.overdue_leases(10).await.unwrap();
    assert_eq!((reaped.leases, reaped.next_deadline), (Vec::new(), Some(moved)));
    // A server that looked at the same time is too late.
    assert_eq!(move_to(&q, &leased, lapsed).await, Err(LeaseRefusal::Stale));
    q.until(moved);
    let lease = one(q.store.overdue_leases(10).await.unwrap().leases);
    assert_eq!(
        (lease.extend_time, lapse(&lease, away)),
        (Some(away.until), ExpiryDecision::Unserved)
    );
}

pub(crate) async fn a_worker_that_extends_first_keeps_what_it_asked_for(q: Fixture) {
    let Some(mut q) = q.lasting() else { return };
    let leased = q.run(short("a")).await;
    let away = go_away(&mut q, 9).await;
    q.sleep(1);
    let asked = q.extend(&leased, Some(Duration::from_secs(90)), None).await.unwrap();
    let lapsed = OutageExpiry { deadline: leased.deadline, served_since: away.until };
    assert_eq!(move_to(&q, &leased, lapsed).await, Err(LeaseRefusal::Stale));
    assert_eq!(q.lease(&leased).await.unwrap().deadline, asked);
    q.until(asked);
    let lease = one(q.store.overdue_leases(10).await.unwrap().leases);
    assert_eq!(lapse(&lease, away), ExpiryDecision::Expired, "it was spoken for since");
}

pub(crate) async fn one_server_that_goes_changes_nothing_while_others_are_there(q: Fixture) {
    let at_first = q.store.overdue_leases(10).await.unwrap().outage;
    for others in [1, 2, 3] {
        q.store.heartbeat(beat(99)).await.unwrap();
        q.run(short(&others.to_string())).await;
        for n in 0..8 {
            q.sleep(2);
            q.store.heartbeat(beat(n % others)).await.unwrap();
        }
        assert_eq!(q.store.overdue_leases(10).await.unwrap().outage, at_first);
    }
}

pub(crate) async fn a_heartbeat_that_is_late_is_no_time_without_servers(q: Fixture) {
    // For a file that was just opened, the time until which no server served it.
    let at_first =
        (!q.store.is_shared()).then_some(ShardOutage { since: Time(i64::MIN), until: q.now() });
    assert_eq!(q.store.overdue_leases(10).await.unwrap().outage, at_first);
    q.store.heartbeat(beat(1)).await.unwrap();
    let since = q.now();
    let until = since.plus(limit::OUTAGE_MIN);
    q.until_just_before(until);
    assert_eq!(q.store.overdue_leases(10).await.unwrap().outage, at_first);
    q.until(until);
    assert_eq!(
        q.store.overdue_leases(10).await.unwrap().outage,
        Some(ShardOutage { since, until })
    );
}
