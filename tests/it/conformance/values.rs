//! Values that cases are written with: jobs, takers, causes, ways to end a lease.

use std::time::Duration;

use ringq::domain::engine::Unacked;
use ringq::domain::lifecycle::Cause;
use ringq::domain::{
    JobId, JobKey, OnConflict, Payload, RetentionRule, RetryPolicy, Spec, StreamId, Time,
    TopicName, When, limit,
};
use ringq::store::{
    LeaseRef, LeaseSettlement, LeasedJob, NewJob, RunningLease, SettleAction, StreamDemand,
    StreamLeaseRef, WritePrecondition,
};

/// The topic of a case that needs only one.
pub(crate) const TOPIC: &str = "t";
/// The replica that claims, where a case does not say.
pub(crate) const OWNER: u32 = 7;
/// A retention that keeps the record for as long as a case needs it.
pub(crate) const RETENTION: Duration = Duration::from_secs(600);
/// Lease of [`taker`], for jobs that name none.
pub(crate) const LEASE: Duration = Duration::from_secs(30);
/// A plain job of [`TOPIC`]: ready at once, with a payload, remembered by a tombstone.
pub(crate) fn new_job(id: &str) -> NewJob {
    job_in(TOPIC, id)
}

/// A plain job.
pub(crate) fn job_in(topic: &str, id: &str) -> NewJob {
    NewJob {
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
        checkpoint: None,
    }
}

/// A request as stores keep it: a request id, and what it asks for.
pub(crate) const fn request(id: u64, content: u64) -> Option<u64> {
    Some(id << 24 | content)
}

/// A payload of text.
pub(crate) fn text(body: &str) -> Payload {
    Payload { text: true, body: body.to_owned().into(), content_type: String::new() }
}

/// A taker of [`LEASE`] with room for everything.
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

/// The settle that acknowledges a lease.
pub(crate) fn ack(leased: &LeasedJob) -> LeaseSettlement {
    let end = SettleAction::Ack { result: None, follow_ups: Vec::new() };
    LeaseSettlement { lease: lease_ref(leased), owner: OWNER, action: end, deadline: None }
}

/// The settle that ends a lease for `cause`, without jitter.
pub(crate) fn decide(lease: &RunningLease, cause: Cause) -> LeaseSettlement {
    let (policy, dead_retention) = (RetryPolicy::default(), limit::DEAD_RETENTION);
    LeaseSettlement {
        lease: LeaseRef { key: lease.key.clone(), token: lease.token },
        owner: lease.owner,
        action: SettleAction::Unacked(Unacked { cause, policy, entropy: 0.0, dead_retention }),
        deadline: None,
    }
}

/// A failed attempt, retried by policy.
pub(crate) fn failed() -> Cause {
    Cause::Failed { delay: None, error: "it failed".into() }
}

/// A failed attempt, retried after so many seconds.
pub(crate) fn failed_for(seconds: u64) -> Cause {
    Cause::Failed { delay: Some(Duration::from_secs(seconds)), error: "it failed".into() }
}

/// An attempt handed back.
pub(crate) fn released() -> Cause {
    Cause::Released { delay: None, error: String::new() }
}

/// An attempt that ends its job.
pub(crate) fn dead_lettered() -> Cause {
    Cause::DeadLettered { error: "hopeless".into() }
}

/// Names a lease.
pub(crate) fn lease_ref(leased: &LeasedJob) -> LeaseRef {
    LeaseRef { key: leased.key.clone(), token: leased.token }
}

/// A lease as long as the first stream of `owner` answers for it.
pub(crate) fn tied(leased: &LeasedJob, owner: u32) -> StreamLeaseRef {
    StreamLeaseRef { lease: lease_ref(leased), stream: StreamId { owner, stream: 1 } }
}

/// The identity of a job.
pub(crate) fn key(name: &str, id: &str) -> JobKey {
    JobKey { topic: topic(name), id: JobId::stored(id) }
}

/// A topic's name.
pub(crate) fn topic(name: &str) -> TopicName {
    TopicName::try_new(name).unwrap()
}

/// So many seconds from now.
pub(crate) fn after(seconds: u64) -> When {
    When::After(Duration::from_secs(seconds))
}

/// `time` plus so many seconds.
pub(crate) fn plus(time: Time, seconds: u64) -> Time {
    time.plus(Duration::from_secs(seconds))
}

/// The ids of leases, in order.
pub(crate) fn ids_of(leased: &[LeasedJob]) -> Vec<String> {
    leased.iter().map(|leased| leased.key.id.to_string()).collect()
}

/// The only item.
pub(crate) fn one<T>(items: Vec<T>) -> T {
    let [item] = <[T; 1]>::try_from(items)
        .unwrap_or_else(|items| panic!("{} items where one is expected", items.len()));
    item
}
