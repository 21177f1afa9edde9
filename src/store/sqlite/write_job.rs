//! Writes of the engine's decisions about jobs.

use rusqlite::params;

use crate::domain::engine::{
    Decision, Effects, Finish, JobIndex, Lease, PartChange, PartChanges, PayloadChange, Phase,
    Placement, Record, RecordChange, RecordTime, placement,
};
use crate::domain::{JobKey, Payload, Spec, TopicName};
use crate::store::codec;

use super::error_mapping::SqliteResult;
use super::job_row::{
    INLINE_BYTES_MAX, JobRow, RUNNING, WAITING, body, micros, next_payload_key, payload_key,
    phase_of, rank_of, signed, stored_rank,
};
use super::lanes::{LanePlace, move_job};
use super::statement::statement;
use super::transaction::{TotalKind, WriteTransaction};

const FILE: &str = include_str!("write_job.sql");
const UPDATE: &str = statement(FILE, "update");
const HOLDER: &str = statement(FILE, "holder");
const ATTEMPTS: &str = statement(FILE, "attempts");
const UPDATE_SPEC: &str = statement(FILE, "update_spec");
const UPDATE_PAYLOAD: &str = statement(FILE, "update_payload");
const MOVE: &str = statement(FILE, "move");
const MOVE_BODY: &str = statement(FILE, "move_body");
const PUT_BODY: &str = statement(FILE, "put_body");
const DROP_BODY: &str = statement(FILE, "drop_body");
const PUT_CHECKPOINT: &str = statement(FILE, "put_checkpoint");
const MOVE_CHECKPOINT: &str = statement(FILE, "move_checkpoint");
const DROP_CHECKPOINT: &str = statement(FILE, "drop_checkpoint");
const REMOVE: &str = statement(FILE, "remove");
const INSERT: &str = statement(include_str!("enqueue.sql"), "insert");

/// A payload as stored: in the row of its job, or in the table of bodies if it is large.
pub(super) struct StoredPayload(pub(super) Option<Vec<u8>>);

// === impl StoredPayload ===

impl StoredPayload {
    pub(super) fn new(payload: Option<&Payload>) -> StoredPayload {
        StoredPayload(payload.map(codec::encode_payload))
    }

    pub(super) fn is_large(&self) -> bool {
        self.0.as_ref().is_some_and(|payload| payload.len() > INLINE_BYTES_MAX)
    }

    /// Returns the payload, if it is stored in the row.
    pub(super) fn inline(&self) -> Option<&[u8]> {
        self.0.as_deref().filter(|_| !self.is_large())
    }

    /// Writes the payload to the table of bodies, if it is large.
    pub(super) fn write_body(&self, session: &WriteTransaction<'_>, job: i64) -> SqliteResult<()> {
        if self.is_large() {
            session.prepare(PUT_BODY)?.execute(params![payload_key(job), self.0])?;
        }
        Ok(())
    }
}

/// Specification of a job as stored.
pub(super) struct StoredJob {
    pub(super) spec: Option<Vec<u8>>,
    pub(super) payload: StoredPayload,
}

// === impl StoredJob ===

impl StoredJob {
    pub(super) fn new(spec: &Spec) -> StoredJob {
        let payload = StoredPayload::new(spec.payload.as_ref());
        StoredJob { spec: codec::encode_spec(spec), payload }
    }
}

/// Writes the decision about the job of this key, which was found in `row`, if anywhere.
pub(super) fn write(
    session: &mut WriteTransaction<'_>,
    key: &JobKey,
    row: Option<&JobRow>,
    decision: &Decision,
) -> SqliteResult<()> {
    let Decision { change, parts, effects, .. } = decision;
    let target = effects.moved_to.as_ref();
    let before = row.filter(|_| !matches!(change, RecordChange::Keep)).and_then(LanePlace::of);
    adjust_counts(session, key, row, decision);
    let written = match (change, row) {
        (RecordChange::Keep, _) | (RecordChange::Remove, None) => None,
        (RecordChange::Remove, Some(row)) => {
            remove(session, row)?;
            None
        }
        (RecordChange::Write(record), Some(row)) => {
            update(session, row, record, parts)?;
            Some((row.topic, row.key))
        }
        (RecordChange::Insert(record), Some(row)) if let Some(target) = target => {
            let row = move_to(session, row, target)?;
            update(session, &row, record, parts)?;
            Some((row.topic, row.key))
        }
        (RecordChange::Write(record) | RecordChange::Insert(record), row) => {
            if let Some(row) = row {
                remove(session, row)?;
            }
            Some(insert(session, key, record, parts)?)
        }
    };
    let after = match (change, written) {
        (RecordChange::Write(record) | RecordChange::Insert(record), Some((topic, job))) => {
            LanePlace::of_record(topic, job, record)
        }
        _ => None,
    };
    move_job(
        session,
        before.map(|place| (&key.topic, place)),
        after.map(|place| (target.unwrap_or(&key.topic), place)),
    )?;
    if let RecordChange::Write(record) | RecordChange::Insert(record) = change {
        let topic = target.unwrap_or(&key.topic);
        notify(session, topic, &placement(record), record.due);
    }
    count(session, key, row, effects)
}

/// Adjusts the numbers of the topics that the decision is about.
fn adjust_counts(
    session: &mut WriteTransaction<'_>,
    key: &JobKey,
    row: Option<&JobRow>,
    Decision { change, effects, .. }: &Decision,
) {
    let counts = session.topic_counts();
    let mut add = |topic: &TopicName, record: &Record, sign: i64| {
        counts.waiting.add(topic, sign * i64::from(record.phase == Phase::Waiting));
        counts.bytes.add(topic, sign * record.counted_bytes().cast_signed());
        counts.running.add(topic, sign * i64::from(matches!(record.phase, Phase::Running(_))));
    };
    if let Some(row) = row.filter(|_| !matches!(change, RecordChange::Keep)) {
        add(&key.topic, &row.record, -1);
    }
    if let RecordChange::Write(record) | RecordChange::Insert(record) = change {
        add(effects.moved_to.as_ref().unwrap_or(&key.topic), record, 1);
    }
}

/// Records the events of the job, for timers and feeds.
pub(super) fn notify(
    session: &mut WriteTransaction<'_>,
    topic: &TopicName,
    Placement { index: place, alarm }: &Placement<'_>,
    due: RecordTime,
) {
    match (place, *alarm) {
        (JobIndex::Running { .. }, Some(deadline)) => session.set_reap_at(deadline),
        (JobIndex::Waiting { .. } | JobIndex::Finished(_), Some(alarm)) => {
            session.set_prune_at(alarm)
        }
        (_, None) => {}
    }
    // A job with a group has notified of itself as it joined its lane.
    if let JobIndex::Waiting { priority, failed: _, group: None } = place {
        session.set_claimable(topic, rank_of(*priority), due.at);
    }
}

fn count(
    session: &mut WriteTransaction<'_>,
    key: &JobKey,
    row: Option<&JobRow>,
    effects: &Effects,
) -> SqliteResult<()> {
    let topic = match row {
        Some(row) => Some(row.topic),
        // A job that had expired when it was enqueued, and left no record, counts as enqueued all the same.
        None if effects.counters.enqueued > 0 => Some(session.topic_or_create(&key.topic)?),
        None => session.topic(&key.topic)?,
    };
    let Some(topic) = topic else { return Ok(()) };
    let counts = effects.counters;
    for (total, count) in [
        (TotalKind::Enqueued, counts.enqueued),
        (TotalKind::Succeeded, counts.succeeded),
        (TotalKind::Dead, counts.dead),
    ] {
        session.count(topic, total, count);
    }
    if let Some(ended) = effects.final_state {
        session.add_ended_id(topic, key.id.as_str(), ended);
    }
    Ok(())
}

fn insert(
    session: &mut WriteTransaction<'_>,
    key: &JobKey,
    record: &Record,
    parts: &PartChanges,
) -> SqliteResult<(i64, i64)> {
    let topic = session.topic_or_create(&key.topic)?;
    let payload = StoredPayload::new(match &parts.payload {
        PayloadChange::Set(payload) => Some(payload),
        _ => None,
    });
    let spec = codec::encode_spec(&record.spec);
    session.prepare(INSERT)?.execute(params![
        stored_rank(record.priority, record.spec.group.as_ref()),
        record.due.at.0,
        record.created.at.0,
        record.expire.map(|expire| expire.at.0),
        codec::retention_code(record.retention),
        record.request_code.map(signed),
        signed(record.bytes),
        payload.is_large(),
        record.spec.lease.map(micros),
        spec,
        payload.inline(),
        topic,
        key.id.as_str(),
    ])?;
    let job = session.connection.last_insert_rowid();
    payload.write_body(session, job)?;
    let has_history = parts.grows() || !record.history.last_error.is_empty();
    if record.phase != Phase::Waiting || has_history {
        let id = key.id.as_str().to_owned();
        let row = JobRow { key: job, topic, id, large: payload.is_large(), record: record.clone() };
        update(
            session,
            &row,
            record,
            &PartChanges { payload: PayloadChange::Keep, ..parts.clone() },
        )?;
    }
    Ok((topic, job))
}

fn update(
    session: &mut WriteTransaction<'_>,
    row: &JobRow,
    record: &Record,
    parts: &PartChanges,
) -> SqliteResult<()> {
    let mut life = record.history.clone();
    let attempts = codec::encode_attempts(&parts.attempts, &mut life.attempts);
    let sets_attempts = attempts.is_some();
    let attempts = match attempts {
        Some(splice) => {
            let mut attempts = splice.front;
            if splice.kept > 0 {
                let mut kept = session.prepare(ATTEMPTS)?;
                let kept: Option<Vec<u8>> =
                    kept.query_row(params![row.key, splice.kept], |found| found.get(0))?;
                attempts.extend(kept.unwrap_or_default());
            }
            Some(attempts).filter(|attempts| !attempts.is_empty())
        }
        None => None,
    };
    let result = match &parts.result {
        PartChange::Set(result) => Some(codec::encode_payload(result)),
        PartChange::Keep | PartChange::Drop => None,
    };
    let (phase, finished, lease) = match &record.phase {
        Phase::Waiting => (WAITING, None, None),
        Phase::Running(lease) => (RUNNING, None, Some(lease)),
        Phase::Finished(Finish { state, at, .. }) => (phase_of(*state), Some(at.at.0), None),
    };
    let failed = life.failures > 0;
    session.prepare(UPDATE)?.execute(params![
        row.key,
        phase,
        stored_rank(record.priority, record.spec.group.as_ref()),
        record.due.at.0,
        failed,
        record.created.at.0,
        placement(record).alarm.map(|alarm| alarm.0),
        record.expire.map(|expire| expire.at.0),
        codec::retention_code(record.retention),
        record.request_code.map(signed),
        signed(record.bytes),
        record.next.is_some(),
        finished,
        record.spec.lease.map(micros),
        lease.map(|lease| signed(lease.token.0)),
        lease.and_then(|lease| lease.extended).map(|extended| extended.at.0),
        codec::encode_history(&life, record.next.as_deref()),
        sets_attempts,
        attempts,
        parts.result != PartChange::Keep,
        result,
        record.history.checkpoint > 0,
    ])?;
    if let Some(lease) = lease.filter(|lease| row.record.lease_of(lease.token) != Some(lease)) {
        let Lease { owner, stream, grace, .. } = lease;
        let holder = params![row.key, owner, stream, grace.map(micros)];
        session.prepare(HOLDER)?.execute(holder)?;
    }
    update_checkpoint(session, row, &parts.checkpoint)?;
    if (Spec { lease: None, ..record.spec.clone() })
        != (Spec { lease: None, ..row.record.spec.clone() })
    {
        let spec = codec::encode_spec(&record.spec);
        session.prepare(UPDATE_SPEC)?.execute(params![row.key, spec])?;
    }
    update_payloads(session, row, parts)
}

fn update_checkpoint(
    session: &WriteTransaction<'_>,
    row: &JobRow,
    change: &PartChange<Payload>,
) -> SqliteResult<()> {
    match change {
        PartChange::Set(checkpoint) => {
            let checkpoint = codec::encode_payload(checkpoint);
            session.prepare(PUT_CHECKPOINT)?.execute(params![row.key, checkpoint])?;
        }
        PartChange::Drop if row.has_checkpoint() => {
            session.prepare(DROP_CHECKPOINT)?.execute(params![row.key])?;
        }
        PartChange::Drop | PartChange::Keep => {}
    }
    Ok(())
}

fn update_payloads(
    session: &WriteTransaction<'_>,
    row: &JobRow,
    parts: &PartChanges,
) -> SqliteResult<()> {
    let next_key = next_payload_key(row.key);
    let payload = match &parts.payload {
        PayloadChange::Keep => None,
        PayloadChange::Drop => Some(None),
        PayloadChange::Set(payload) => Some(Some(codec::encode_payload(payload))),
        PayloadChange::Promote => Some(body(session.connection, next_key)?),
    };
    if let Some(payload) = payload {
        let payload = StoredPayload(payload);
        let mut statement = session.prepare(UPDATE_PAYLOAD)?;
        statement.execute(params![row.key, payload.inline(), payload.is_large()])?;
        if row.large && !payload.is_large() {
            session.prepare(DROP_BODY)?.execute(params![payload_key(row.key)])?;
        }
        payload.write_body(session, row.key)?;
    }
    match &parts.next_payload {
        PartChange::Set(payload) => {
            let payload = codec::encode_payload(payload);
            session.prepare(PUT_BODY)?.execute(params![next_key, payload])?;
        }
        PartChange::Drop if row.record.next.is_some() => {
            session.prepare(DROP_BODY)?.execute(params![next_key])?;
        }
        PartChange::Drop | PartChange::Keep => {}
    }
    Ok(())
}

/// Removes the record of a job with all its parts.
fn remove(session: &WriteTransaction<'_>, row: &JobRow) -> SqliteResult<()> {
    session.prepare(REMOVE)?.execute(params![row.key])?;
    if row.large {
        session.prepare(DROP_BODY)?.execute(params![payload_key(row.key)])?;
    }
    if row.record.next.is_some() {
        session.prepare(DROP_BODY)?.execute(params![next_payload_key(row.key)])?;
    }
    if row.has_checkpoint() {
        session.prepare(DROP_CHECKPOINT)?.execute(params![row.key])?;
    }
    Ok(())
}

/// Moves a job to another topic, behind the jobs that arrived there before: jobs due in the same microsecond are
/// ordered by arrival. The job leaves all lists of the old topic.
fn move_to(
    session: &mut WriteTransaction<'_>,
    row: &JobRow,
    target: &TopicName,
) -> SqliteResult<JobRow> {
    let topic = session.topic_or_create(target)?;
    let key: i64 =
        session.prepare(MOVE)?.query_one(params![row.key, topic], |found| found.get(0))?;
    if row.large {
        let places = params![payload_key(row.key), payload_key(key)];
        session.prepare(MOVE_BODY)?.execute(places)?;
    }
    if row.has_checkpoint() {
        session.prepare(MOVE_CHECKPOINT)?.execute(params![row.key, key])?;
    }
    Ok(JobRow { key, topic, ..row.clone() })
}
