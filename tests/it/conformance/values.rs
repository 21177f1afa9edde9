//! Values for cases: jobs, takers, causes, ways to end a lease.

use std::time::Duration;

use crate::store_calls::{LeaseSettlement, StreamLeaseRef, TestJob};
use bytes::Bytes;
use ringq::domain::engine::{CrashMove, Unacked};
use ringq::domain::lifecycle::LeaseEndCause;
use ringq::domain::{
    DocumentName, JobId, JobKey, OnConflict, Payload, PolicyEffect, RetentionRule, RetryPolicy,
    Spec, StreamId, Time, TopicName, TopicPattern, When, limit,
};
use ringq::store::{
    DocumentWrite, LeaseRef, LeasedJob, RunningLease, SettleAction, StreamDemand, TopicEffect,
    WritePrecondition,
};

/// The topic of a case with one topic.
pub(crate) const TOPIC: &str = "t";
/// The replica that claims, by default.
pub(crate) const OWNER: u32 = 7;
/// A retention that outlasts every case.
pub(crate) const RETENTION: Duration = Duration::from_secs(600);
/// Lease of [`taker`], for jobs without one.
pub(crate) const LEASE: Duration = Duration::from_secs(30);
/// Builds a plain job of [`TOPIC`]: ready at once, with a payload, kept as a tombstone.
pub(crate) fn new_job(id: &str) -> TestJob {
    job_in(TOPIC, id)
}

/// Builds a plain job.
pub(crate) fn job_in(topic: &str, id: &str) -> TestJob {
    TestJob {
        key: key(topic, id),
        spec: Spec { payload: Some(text(id)), ..Spec::default() },
        due: When::Now,
        priority: None,
        expire: None,
        retention: RetentionRule::Tombstone(limit::TOMBSTONE),
        on_conflict: OnConflict::Keep,
        request_code: None,
        durability: None,
        deadline: None,
        precondition: WritePrecondition::Anything,
        max_waiting: None,
        max_bytes: None,
        history: None,
    }
}

/// Builds a write of the policy of a topic with this effect, or of a pattern.
pub(crate) fn policy_write(
    name: &str,
    expected: u64,
    version: u64,
    policy: PolicyEffect,
) -> DocumentWrite {
    let name = TopicPattern::parse(name).unwrap();
    let effect = |topic: &TopicName| TopicEffect {
        topic: topic.clone(),
        policy,
        limits_bytes: None,
        groups: Vec::new(),
    };
    let effect = match &name {
        TopicPattern::Exact(topic) => Some(effect(topic)),
        TopicPattern::Prefix(_) => None,
    };
    let is_live = !matches!(policy, PolicyEffect::Release | PolicyEffect::Forget);
    let name = DocumentName::TopicPolicy(name);
    DocumentWrite { name, expected, version, is_live, body: Bytes::new(), effect }
}

/// Packs a request id and its content as stores keep them.
pub(crate) const fn request(id: u64, content: u64) -> Option<u64> {
    Some(id << 24 | content)
}

/// Builds a payload of text.
pub(crate) fn text(body: &str) -> Payload {
    Payload { text: true, body: body.to_owned().into(), content_type: String::new() }
}

/// Builds a taker with [`LEASE`] and room for everything.
pub(crate) fn taker() -> StreamDemand {
    StreamDemand {
        stream: 1,
        worker_id: "worker-1".into(),
        lease: LEASE,
        grace: Some(limit::ORPHAN_GRACE_DEFAULT),
        jobs: 10_000,
        bytes: u64::MAX >> 1,
        oversize: true,
    }
}

/// Builds the settle that acks a lease.
pub(crate) fn ack(leased: &LeasedJob) -> LeaseSettlement {
    let end = SettleAction::Ack { result: None, follow_ups: Vec::new() };
    LeaseSettlement { lease: lease_ref(leased), owner: OWNER, action: end, deadline: None }
}

/// Builds the settle that ends a lease for `cause`, without jitter.
pub(crate) fn decide(lease: &RunningLease, cause: LeaseEndCause) -> LeaseSettlement {
    let (policy, dead_retention) = (RetryPolicy::default(), limit::DEAD_RETENTION);
    LeaseSettlement {
        lease: LeaseRef { key: lease.key.clone(), token: lease.token },
        owner: lease.owner,
        action: SettleAction::Unacked(Unacked {
            cause,
            policy,
            entropy: 0.0,
            dead_retention,
            crash_move: CrashMove::None,
        }),
        deadline: None,
    }
}

/// A failed attempt, retried by its policy.
pub(crate) fn failed() -> LeaseEndCause {
    LeaseEndCause::Failed { delay: None, error: "it failed".into() }
}

/// A failed attempt, retried after this number of seconds.
pub(crate) fn failed_for(seconds: u64) -> LeaseEndCause {
    LeaseEndCause::Failed { delay: Some(Duration::from_secs(seconds)), error: "it failed".into() }
}

/// A released attempt.
pub(crate) fn released() -> LeaseEndCause {
    LeaseEndCause::Released { delay: None, error: String::new() }
}

/// An attempt that ends its job.
pub(crate) fn dead_lettered() -> LeaseEndCause {
    LeaseEndCause::DeadLettered { error: "hopeless".into() }
}

/// Returns the reference of a lease.
pub(crate) fn lease_ref(leased: &LeasedJob) -> LeaseRef {
    LeaseRef { key: leased.key.clone(), token: leased.token }
}

/// Returns the reference of a lease that is valid while the first stream of `owner` holds it.
pub(crate) fn tied(leased: &LeasedJob, owner: u32) -> StreamLeaseRef {
    StreamLeaseRef { lease: lease_ref(leased), stream: StreamId { owner, stream: 1 } }
}

/// Builds the key of a job.
pub(crate) fn key(name: &str, id: &str) -> JobKey {
    JobKey { topic: topic(name), id: JobId::stored(id) }
}

/// Builds a topic name.
pub(crate) fn topic(name: &str) -> TopicName {
    TopicName::try_new(name).unwrap()
}

/// Returns a time this number of seconds from now.
pub(crate) fn after(seconds: u64) -> When {
    When::After(Duration::from_secs(seconds))
}

/// Returns `time` plus this number of seconds.
pub(crate) fn plus(time: Time, seconds: u64) -> Time {
    time.plus(Duration::from_secs(seconds))
}

/// Returns the ids of leases, in order.
pub(crate) fn ids_of(leased: &[LeasedJob]) -> Vec<String> {
    leased.iter().map(|leased| leased.key.id.to_string()).collect()
}

/// Returns the only item.
pub(crate) fn one<T>(items: Vec<T>) -> T {
    let [item] = <[T; 1]>::try_from(items)
        .unwrap_or_else(|items| panic!("{} items where one is expected", items.len()));
    item
}
