//! A small store with a job of every kind. Frozen files were written from it, and the behaviour of frozen stores is
//! compared with it: a new kind of job is added beside the others.

use std::time::Duration;

use crate::store_calls::{LeaseSettlement, LostClaim, StoreCalls as _, TestJob, Unclaim};
use bytes::Bytes;
use ringq::domain::open_rings::{RingMembers, RingRecord, RingRecords};
use ringq::domain::ring::ShardState;
use ringq::domain::{
    JobId, OnConflict, Payload, RetentionRule, RetryOverrides, ShardName, Spec, Time,
};
use ringq::store::{Heartbeat, SettleAction, WritePrecondition};

use crate::conformance::values::{
    OWNER, RETENTION, after, dead_lettered, failed_for, key, lease_ref, new_job, text,
};
use crate::conformance::{Fixture, START};

/// Nonce of a claim that was given up before it arrived.
pub(super) const VOID: u32 = 0xDEAD;
/// Request of a job.
pub(super) const REQUEST: u64 = 0x0123_4567_89AB_CDEF;

/// Builds a job of which nothing stays.
fn fleeting(id: &str) -> TestJob {
    TestJob { retention: RetentionRule::Nothing, ..new_job(id) }
}

/// Builds a job with a retention.
pub(super) fn kept(id: &str) -> TestJob {
    let mut job = TestJob { retention: RetentionRule::Record(RETENTION), ..new_job(id) };
    job.spec.retention = Some(RETENTION);
    job
}

/// Builds a job with a server-made id.
pub(super) fn made(prior: WritePrecondition) -> TestJob {
    let millis = u128::try_from(START.0 / 1_000).unwrap();
    let id = JobId::from_uuid(&ShardName::try_new("s0").unwrap(), millis << 80 | 7 << 76);
    TestJob { precondition: prior, ..fleeting(id.as_str()) }
}

/// Builds the job that [`REQUEST`] has written.
pub(super) fn asked() -> TestJob {
    TestJob { request_code: Some(REQUEST), ..new_job("asked") }
}

/// Builds a second generation, whose payload is stored apart.
fn next() -> TestJob {
    let spec = Spec { payload: Some(text(&"next ".repeat(120))), ..Spec::default() };
    TestJob { spec, on_conflict: OnConflict::Replace, ..new_job("next") }
}

/// Returns the time at which everything is written.
pub(super) fn end() -> Time {
    START.plus(Duration::from_secs(10))
}

/// Builds a heartbeat of a replica with its ring.
pub(super) fn beat() -> Heartbeat {
    let members = RingMembers::stored("s0:1,s1:2").unwrap();
    let rings = RingRecords::from([(members, RingRecord { version: 3, open: true })]);
    let (seen, gone) = (Vec::new(), Vec::new());
    Heartbeat {
        owner: OWNER,
        ring: 0xF1E2,
        state: ShardState::Draining,
        rings,
        seen_owners: seen,
        removed_owners: gone,
    }
}

pub(super) async fn fill(q: &Fixture) {
    q.store.heartbeat(beat()).await.unwrap();
    let lost = LostClaim { nonce: VOID, topics: [].into(), cursor: None };
    q.store.unclaim(Unclaim::Claim(lost)).await.unwrap();
    over(q).await;
    waits_after_a_failure(q).await;
    runs(q).await;
    waits(q).await;
    line(q).await;
    q.until(end());
}

/// Creates jobs that ended, in each way.
async fn over(q: &Fixture) {
    let leased = q.run(kept("succeeded")).await;
    let end = SettleAction::Ack { result: Some(text("its result")), follow_ups: Vec::new() };
    let ack =
        LeaseSettlement { lease: lease_ref(&leased), owner: OWNER, action: end, deadline: None };
    q.settle(ack).await.unwrap();
    let leased = q.running("tombstone").await;
    q.ack(&leased).await;
    let leased = q.run(made(WritePrecondition::Anything)).await;
    q.ack(&leased).await;
    let leased = q.running("dead").await;
    q.end(&leased, dead_lettered()).await;
    q.put(kept("cancelled")).await;
    q.delete("cancelled").await;
    q.put(TestJob { expire: Some(after(1)), ..kept("expired") }).await;
    q.sleep(2);
    assert_eq!(q.store.prune(10).await.unwrap().pruned, 1);
}

/// Creates jobs that have failed and wait for their time, or have waited.
async fn waits_after_a_failure(q: &Fixture) {
    let leased = q.running("backoff").await;
    q.save(&leased, "half").await.unwrap();
    q.end(&leased, failed_for(3_600)).await;
    let leased = q.running("retried").await;
    q.end(&leased, failed_for(7)).await;
}

/// Creates running jobs: for the second time, extended, with a next generation, with a lease of their own, and plain.
async fn runs(q: &Fixture) {
    let leased = q.running("second").await;
    q.end(&leased, failed_for(1)).await;
    q.sleep(1);
    assert_eq!(q.claim_ids().await, ["second"]);
    let leased = q.running("extended").await;
    q.extend(&leased, Some(Duration::from_secs(120)), Some("half way")).await.unwrap();
    q.running("next").await;
    q.put(next()).await;
    let mut job = kept("own-lease");
    job.spec.lease = Some(Duration::from_secs(90));
    q.run(job).await;
    q.run(fleeting("leased")).await;
}

/// Creates waiting jobs with all kinds of content.
async fn waits(q: &Fixture) {
    let due = |id, seconds| TestJob { due: after(seconds), ..new_job(id) };
    let with = |id, spec| TestJob { spec, ..new_job(id) };
    q.put(due("delayed", 3_600)).await;
    q.put(due("was-delayed", 5)).await;
    q.put(TestJob { priority: Some(9), ..new_job("urgent") }).await;
    q.put(TestJob { expire: Some(after(7_200)), ..new_job("expires") }).await;
    q.put(asked()).await;
    let headers = [("traceparent", "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01")];
    let headers = headers.map(|(name, value)| (name.to_owned(), value.to_owned())).into();
    let retry = RetryOverrides {
        max_attempts: Some(3),
        delays: vec![Duration::from_secs(60), Duration::from_secs(180)],
        jitter: Some(0.5),
        ..RetryOverrides::default()
    };
    q.put(with("trace", Spec { headers, retry: retry.boxed(), ..Spec::default() })).await;
    let payload = |text, body: Bytes, content_type: &str| {
        let payload = Some(Payload { text, body, content_type: content_type.to_owned() });
        Spec { payload, ..Spec::default() }
    };
    q.put(with("bytes", payload(false, Bytes::from_static(b"\0\x01\xFE\xFF"), "image/png"))).await;
    q.put(with("large", payload(true, "large ".repeat(100).into(), ""))).await;
}

/// Creates jobs in a row, one of which has left a gap.
async fn line(q: &Fixture) {
    q.put_ids(&["first", "gap", "last"]).await;
    q.delete("gap").await;
    q.put(TestJob { key: key("other", "alone"), ..new_job("alone") }).await;
}
