//! Commits decisions about jobs: writes everything that belongs together, or nothing (`commit.lua`).

use bytes::BufMut as _;

use crate::domain::engine::{
    self, CounterIncrements, LeaseChange, PartChange, PayloadChange, Phase, Record, RecordTime,
    ValidityWindow,
};
use crate::domain::{JobKey, Payload, RetentionRule, Spec, State, Time, TopicName};
use crate::store::codec;

use super::entry::{
    INLINE_BYTES_MAX, JobEntry, clamped, limit_arg, phase_of, put_extension, put_fixed, put_group,
    put_message,
};
use super::layout::{TIME_MAX, parts_inside, separate_parts};
use super::record_version;
use super::script::ScriptCall;

/// A job that was read, and the decisions about it.
pub(super) struct RecordSlot {
    /// Entry that was found under its id.
    pub(super) entry: Option<JobEntry>,
    /// Record after the decisions so far.
    pub(super) record: Option<Record>,
    pub(super) write: RecordWrite,
    pub(super) parts: engine::PartChanges,
    pub(super) counters: CounterIncrements,
    pub(super) final_state: Option<State>,
    pub(super) lease_change: Option<LeaseChange>,
    /// Deadline that its lease must still have.
    pub(super) deadline: Option<Time>,
    /// The id must not be known as that of an ended job, either.
    pub(super) is_unknown: bool,
    /// The bytes of the job are in the count of its topic.
    pub(super) is_counted: bool,
    /// Index of the item that it is part of.
    pub(super) item: Option<usize>,
    /// Entry of the job in its source topic, if it moves here from another one.
    pub(super) moved_from: Option<JobEntry>,
}

/// Kind of write of a job; the numbers are those of `commit.lua`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum RecordWrite {
    Remove = 0,
    Write = 1,
    Insert = 2,
    /// Writes nothing.
    Unchanged = 3,
}

/// Writes that belong together.
pub(super) struct CommitItem {
    /// Jobs of the item, in the order in which they are written.
    pub(super) keys: Vec<JobKey>,
    /// Time in which the decision is valid.
    pub(super) window: ValidityWindow,
    /// The item needs memory that ends of jobs do not need.
    pub(super) needs_memory: bool,
    /// The item moves a job from the first key to the second.
    pub(super) moves: bool,
    /// Limits of the topic to which the item adds. Never in an item that moves a job.
    pub(super) limit: Option<TopicLimit>,
}

/// Limits of a topic to which an item adds.
pub(super) struct TopicLimit {
    pub(super) topic: TopicName,
    /// Number of jobs that may wait with the one of the item.
    pub(super) max_waiting: Option<u64>,
    /// Number of bytes that the topic may have with those of the item.
    pub(super) max_bytes: Option<u64>,
    /// Bytes by which the topic grows.
    pub(super) added_bytes: u64,
}

/// Kinds of items; the numbers are those of `commit.lua`.
mod item_kind {
    pub(super) const PLAIN: u8 = 0;
    pub(super) const MOVES: u8 = 1;
    pub(super) const LIMITED: u8 = 2;
}

/// Bits of a plan's mode: the times that are counted from the commit, and whether the job continues to run.
mod mode {
    pub(super) const DUE: u8 = 1;
    pub(super) const CREATED: u8 = 2;
    pub(super) const EXPIRE: u8 = 4;
    pub(super) const FINISHED: u8 = 8;
    pub(super) const FORGOTTEN: u8 = 16;
    pub(super) const RUNS: u8 = 32;
}

/// A part that changes: its kind, the operation, and the bytes.
struct PartWrite {
    operation: String,
    bytes: Vec<u8>,
}

/// Letters of the kinds of parts.
mod kind {
    pub(super) const PAYLOAD: char = 'p';
    pub(super) const NEXT: char = 'q';
    pub(super) const ATTEMPTS: char = 'h';
    pub(super) const RESULT: char = 'r';
    pub(super) const CHECKPOINT: char = 'c';
}

// === impl CommitItem ===

impl CommitItem {
    /// Adds the item to a call, with its jobs.
    pub(super) fn add<'a>(
        &self,
        call: &mut ScriptCall,
        decided: Time,
        slots: impl IntoIterator<Item = (&'a JobKey, &'a RecordSlot)>,
    ) {
        let mut head = Vec::with_capacity(17);
        head.put_u16(u16::try_from(self.keys.len()).unwrap_or(u16::MAX));
        head.put_uint(clamped(self.window.from).unsigned_abs(), 7);
        head.put_uint(clamped(self.window.until).unsigned_abs(), 7);
        head.put_u8(match &self.limit {
            Some(_) => item_kind::LIMITED,
            None if self.moves => item_kind::MOVES,
            None => item_kind::PLAIN,
        });
        call.arg(head);
        if let Some(limit) = &self.limit {
            call.arg(limit.topic.as_str()).arg(limit_arg(limit.max_waiting));
            call.arg(limit_arg(limit.max_bytes)).arg(limit.added_bytes);
        }
        for (key, slot) in slots {
            slot.add(call, key, decided);
        }
    }
}

// === impl RecordSlot ===

impl RecordSlot {
    pub(super) fn new(entry: Option<JobEntry>) -> RecordSlot {
        RecordSlot {
            record: entry.as_ref().map(|entry| entry.record.clone()),
            is_counted: entry.as_ref().is_some_and(JobEntry::is_counted),
            entry,
            write: RecordWrite::Unchanged,
            parts: engine::PartChanges::default(),
            counters: CounterIncrements::default(),
            final_state: None,
            lease_change: None,
            deadline: None,
            is_unknown: false,
            item: None,
            moved_from: None,
        }
    }

    /// Entry whose parts the job has.
    fn origin_entry(&self) -> Option<&JobEntry> {
        self.moved_from.as_ref().or(self.entry.as_ref())
    }

    /// Approximate number of bytes that it sends.
    pub(super) fn bytes(&self) -> usize {
        let payload = |change: &PayloadChange| match change {
            PayloadChange::Set(payload) => payload.body.len(),
            _ => 0,
        };
        let part = |change: &PartChange<Payload>| match change {
            PartChange::Set(payload) => payload.body.len(),
            _ => 0,
        };
        let engine::PartChanges { payload: own, next_payload, result, attempts, checkpoint } =
            &self.parts;
        let errors: usize = attempts.added.iter().map(|attempt| attempt.error.len()).sum();
        let record = self.record.as_ref().map_or(0, record_bytes);
        // The script copies the parts of a job that moves to another topic.
        let moved = self.moved_from.as_ref().map_or(0, |entry| {
            let attempts: u32 = entry.record.history.attempts.iter().sum();
            usize::try_from(entry.record.bytes + u64::from(attempts)).unwrap_or(usize::MAX)
        });
        let bodies = payload(own) + part(next_payload) + part(result) + part(checkpoint);
        bodies + errors + record + moved
    }

    fn add(&self, call: &mut ScriptCall, key: &JobKey, decided: Time) {
        call.arg(key.topic.as_str()).arg(key.id.as_str()).arg(self.expected());
        let mut plan = Vec::with_capacity(96);
        plan.put_u8(self.write as u8);
        let count = |count: u32| u16::try_from(count).unwrap_or(u16::MAX);
        plan.put_u16(count(self.counters.enqueued));
        plan.put_u16(count(self.counters.succeeded));
        plan.put_u16(count(self.counters.dead));
        plan.put_u8(self.final_state.map_or(0, phase_of));
        plan.put_u8(match self.lease_change {
            // An adoption is a patch of the lease (`leases.rs`).
            None | Some(LeaseChange::Extended | LeaseChange::Adopted) => 0,
            Some(LeaseChange::Settled) => 1,
            Some(LeaseChange::Expired) => 2,
            Some(LeaseChange::Deleted) => 3,
        });
        let record = self.record.as_ref().filter(|_| self.write != RecordWrite::Remove);
        let Some(record) = record else {
            call.arg(plan).arg("").arg(0);
            return;
        };
        let (rest, parts) = self.put_record(&mut plan, record, decided);
        call.arg(plan).arg(rest).arg(parts.len());
        for PartWrite { operation: what, bytes } in parts {
            call.arg(what).arg(bytes);
        }
    }

    /// State on which the decision was based.
    fn expected(&self) -> Vec<u8> {
        let Some(entry) = &self.entry else {
            return if self.is_unknown { b"?".to_vec() } else { Vec::new() };
        };
        let mut expected = entry.version.to_vec();
        if let Some(lease) = entry.lease() {
            expected.put_u64(lease.token.0);
            if let Some(deadline) = self.deadline {
                expected.put_uint(clamped(deadline).unsigned_abs(), 7);
            }
        }
        expected
    }

    /// Returns whether this part of the found job is stored apart and keeps its place.
    fn keeps_part_apart(&self, part: u8) -> bool {
        self.origin_entry().is_some_and(|entry| entry.apart & part != 0)
    }

    /// Writes the record into its plan; returns the bytes after the fixed part of the record, and the parts that
    /// change.
    fn put_record(
        &self,
        plan: &mut Vec<u8>,
        record: &Record,
        decided: Time,
    ) -> (Vec<u8>, Vec<PartWrite>) {
        let mut parts = Vec::new();
        let payload = self.payload(&mut parts);
        let inline = payload.as_deref().filter(|payload| payload.len() <= INLINE_BYTES_MAX);
        let is_apart = match &payload {
            Some(payload) if inline.is_none() => {
                parts.push(PartWrite::set(kind::PAYLOAD, payload.clone()));
                true
            }
            Some(_) => false,
            None => self.keeps_apart(),
        };
        if !is_apart && self.keeps_part_apart(separate_parts::PAYLOAD) {
            parts.push(PartWrite::drop(kind::PAYLOAD));
        }
        let next = &self.parts.next_payload;
        let has_next = self.change_part(&mut parts, kind::NEXT, separate_parts::NEXT, next);
        let has_result =
            self.change_part(&mut parts, kind::RESULT, separate_parts::RESULT, &self.parts.result);
        let checkpoint = &self.parts.checkpoint;
        let has_checkpoint =
            self.change_part(&mut parts, kind::CHECKPOINT, separate_parts::CHECKPOINT, checkpoint);
        let mut life = record.history.clone();
        let attempts = codec::encode_attempts(&self.parts.attempts, &mut life.attempts);
        if let Some(codec::AttemptsSplice { front, kept }) = attempts {
            if !front.is_empty() {
                parts.push(PartWrite {
                    operation: format!("{}{kept}", kind::ATTEMPTS),
                    bytes: front,
                });
            } else if self.keeps_part_apart(separate_parts::ATTEMPTS) {
                parts.push(PartWrite::drop(kind::ATTEMPTS));
            }
        }
        let spec = codec::encode_spec_without_group(&record.spec);
        let group = record.spec.group.as_ref();
        let stored_life = codec::encode_history(&life, record.next.as_deref());
        let is_extended = is_extended(record);
        let flag = |flag, on| if on { flag } else { 0 };
        let keeps = record.retention != RetentionRule::Nothing;
        let flags = [
            flag(separate_parts::KEPT, keeps)
                | flag(separate_parts::FAILED, life.failures > 0)
                | flag(separate_parts::PAYLOAD, is_apart)
                | flag(separate_parts::NEXT, has_next)
                | flag(separate_parts::ATTEMPTS, !life.attempts.is_empty())
                | flag(separate_parts::RESULT, has_result)
                | flag(separate_parts::CHECKPOINT, has_checkpoint)
                | flag(separate_parts::COUNTED, self.is_counted && !record.is_tombstone()),
            flag(parts_inside::BODY, is_apart || inline.is_some())
                | flag(parts_inside::SPEC, spec.is_some())
                | flag(parts_inside::LIFE, stored_life.is_some())
                | flag(parts_inside::EXTENSION, is_extended)
                | flag(parts_inside::GROUP, group.is_some()),
        ];
        put_times(plan, record, self.entry.as_ref(), decided);
        let phase = match &record.phase {
            Phase::Finished(finish) => phase_of(finish.state),
            Phase::Waiting | Phase::Running(_) => 0,
        };
        let version = record_version::next_version();
        put_fixed(plan, flags, version, record.bytes, [phase, record.priority], record.retention);
        if is_extended {
            put_extension(plan, record.request_code, record.spec.lease);
        }
        let mut rest = Vec::new();
        put_group(&mut rest, group);
        put_message(&mut rest, spec.as_deref());
        put_message(&mut rest, stored_life.as_deref());
        rest.extend(inline.unwrap_or_default());
        (rest, parts)
    }

    /// Returns the encoded payload that is written with the record; `None`: there is none, or it stays stored apart.
    fn payload(&self, parts: &mut Vec<PartWrite>) -> Option<Vec<u8>> {
        match &self.parts.payload {
            PayloadChange::Set(payload) => Some(codec::encode_payload(payload)),
            PayloadChange::Drop => None,
            PayloadChange::Keep => {
                let payload = self.origin_entry().and_then(|entry| entry.payload.as_ref());
                payload.map(|payload| payload.to_vec())
            }
            PayloadChange::Promote => {
                parts.push(PartWrite {
                    operation: format!("{}^", kind::PAYLOAD),
                    bytes: Vec::new(),
                });
                None
            }
        }
    }

    /// Returns whether the payload is stored apart without being written.
    fn keeps_apart(&self) -> bool {
        match self.parts.payload {
            PayloadChange::Keep => self.keeps_part_apart(separate_parts::PAYLOAD),
            PayloadChange::Promote => true,
            PayloadChange::Set(_) | PayloadChange::Drop => false,
        }
    }

    /// Updates a part; returns whether the job has it afterwards.
    fn change_part(
        &self,
        parts: &mut Vec<PartWrite>,
        kind: char,
        flag: u8,
        change: &PartChange<Payload>,
    ) -> bool {
        match change {
            PartChange::Keep => self.keeps_part_apart(flag),
            PartChange::Set(payload) => {
                parts.push(PartWrite::set(kind, codec::encode_payload(payload)));
                true
            }
            PartChange::Drop => {
                // The part that replaces the payload has moved already.
                if self.keeps_part_apart(flag) && !(kind == kind::NEXT && self.is_promotion()) {
                    parts.push(PartWrite::drop(kind));
                }
                false
            }
        }
    }

    fn is_promotion(&self) -> bool {
        self.parts.payload == PayloadChange::Promote
    }
}

/// Returns whether the record has an extension.
fn is_extended(record: &Record) -> bool {
    let Record { expire, request_code, spec, .. } = record;
    expire.is_some() || request_code.is_some() || spec.lease.is_some() || spec.group.is_some()
}

/// Approximate number of bytes of a record.
fn record_bytes(record: &Record) -> usize {
    let headers = |spec: &Spec| -> usize {
        spec.headers.iter().map(|(name, value)| name.len() + value.len()).sum()
    };
    let next = record.next.as_ref().and_then(|next| next.replacement.as_ref());
    let next = next.map_or(0, |own| headers(&own.spec));
    let life = &record.history;
    INLINE_BYTES_MAX + headers(&record.spec) + next + life.last_error.len() + life.progress.len()
}

/// Writes the times of a plan, and flags of those that are counted from the commit.
fn put_times(plan: &mut Vec<u8>, record: &Record, before: Option<&JobEntry>, decided: Time) {
    let (mut mode, mut times) = (0, Vec::with_capacity(35));
    let mut put = |moment: Option<RecordTime>, bit: u8| {
        let micros = match moment {
            None => 0,
            Some(RecordTime { at, from_now: false }) => clamped(at),
            Some(RecordTime { at, from_now: true }) => {
                mode |= bit;
                at.0.saturating_sub(decided.0).clamp(0, TIME_MAX)
            }
        };
        times.put_uint(micros.unsigned_abs(), 7);
    };
    put(Some(record.due), mode::DUE);
    put(Some(record.created), mode::CREATED);
    put(record.expire, mode::EXPIRE);
    let (finished, forgotten) = match &record.phase {
        Phase::Waiting => (None, None),
        Phase::Finished(finish) => (Some(finish.at), Some(finish.until)),
        // For a job that continues to run, only the times that were moved.
        Phase::Running(lease) => {
            let is_moved = before.and_then(JobEntry::lease) != Some(lease);
            (Some(lease.deadline).filter(|_| is_moved), lease.extended.filter(|_| is_moved))
        }
    };
    put(finished, mode::FINISHED);
    put(forgotten, mode::FORGOTTEN);
    if matches!(record.phase, Phase::Running(_)) {
        mode |= mode::RUNS;
    }
    plan.put_u8(mode);
    plan.extend(times);
}

// === impl PartWrite ===

impl PartWrite {
    fn set(kind: char, bytes: Vec<u8>) -> PartWrite {
        PartWrite { operation: format!("{kind}+"), bytes }
    }

    fn drop(kind: char) -> PartWrite {
        PartWrite { operation: format!("{kind}-"), bytes: Vec::new() }
    }
}
