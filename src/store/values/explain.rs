//! A job with what explains why it does not run.

use crate::domain::engine::{Finish, Phase, Record};
use crate::domain::explain::{GroupTurn, KeptRecord, LeaseFacts, ReadyBefore};
use crate::domain::{Job, JobKey, RetentionRule, ShardName, State, Time};

/// A job with what explains why it does not run.
#[derive(Clone, Debug, PartialEq)]
pub struct ExplainedJob {
    /// The store's time of the read.
    pub now: Time,
    /// The job, without payload, result and attempts.
    pub job: Job,
    /// Bytes of payload, headers and checkpoint, which take credit of a stream.
    pub bytes: u64,
    /// Lease of the job, if it runs.
    pub lease: Option<LeaseFacts>,
    /// Record of the job, if it has ended.
    pub kept: Option<KeptRecord>,
    /// Jobs that come before it, if it is READY.
    pub ready_before: Option<ReadyBefore>,
    /// Turn of its group, if it is READY and its topic has groups.
    pub turn: Option<GroupTurn>,
}

// === impl ExplainedJob ===

impl ExplainedJob {
    /// Returns the job of a record as it reads at `now`; `None`: the record is no longer kept. `before`: jobs that come
    /// before it, if it is READY; `turn`: that of its group.
    #[must_use]
    pub fn from_record(
        key: JobKey,
        shard: &ShardName,
        record: Record,
        now: Time,
        before: ReadyBefore,
        turn: Option<GroupTurn>,
    ) -> Option<ExplainedJob> {
        let (bytes, lease, kept) = (record.bytes, lease_of(&record), kept_of(&record, now));
        let job = record.job(key, shard.clone(), now, Default::default())?;
        let is_ready = job.state == State::Ready;
        let (ready_before, turn) = (is_ready.then_some(before), turn.filter(|_| is_ready));
        Some(ExplainedJob { now, job, bytes, lease, kept, ready_before, turn })
    }
}

fn lease_of(record: &Record) -> Option<LeaseFacts> {
    let Phase::Running(lease) = &record.phase else { return None };
    Some(LeaseFacts {
        stream: lease.stream_id(),
        token: lease.token,
        start: lease.started,
        extended: lease.extended.map(|extended| extended.at),
        deadline: lease.deadline.at,
        outlives_stream: lease.grace.is_none(),
        next_waits: record.next.is_some(),
    })
}

fn kept_of(record: &Record, now: Time) -> Option<KeptRecord> {
    match (&record.phase, record.expire) {
        (Phase::Finished(Finish { until, .. }), _) => {
            Some(KeptRecord { until: until.at, is_tombstone: record.is_tombstone() })
        }
        // A prune will make it EXPIRED.
        (Phase::Waiting, Some(expire)) if expire.at <= now => Some(KeptRecord {
            until: record.retention.until(expire.at)?,
            is_tombstone: matches!(record.retention, RetentionRule::Tombstone(_)),
        }),
        _ => None,
    }
}
