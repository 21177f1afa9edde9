//! Stored form of a job in Redis. The position of each field is defined once, in [`super::layout`]; all numbers are
//! big-endian. An existing layout is only ever extended; the shard's `format` names its version.
//!
//! **Record**: due, arrival, created; two bytes of flags: the parts of the job that are stored apart from the record
//! and whether it is kept, and the parts inside; version, which each write draws anew; bytes that count; phase (0
//! waits or runs); priority; keep (0 nothing, above 0 the retention of the record, below 0 that of a tombstone). For
//! a finished job: the time at which it finished and the time at which it is deleted. With the flag for it an
//! extension: expire time (0: none), whether the job has a request id, its hash, own lease duration (stored plus one,
//! 0: none); with another flag the group, after its length of 1 byte. In the tail, each after its length of 4 bytes if
//! flagged: the spec and the life of the job, messages
//! that no script parses (`stored.proto`); then the payload, unless it is stored apart.
//!
//! **Entry** of a running job: a mark, with which no record begins, the length of its lease, the lease, the record.
//! Entry of any other job: the record.
//!
//! **Lease**: token; effect of an ack (it removes the job, or leaves its tombstone, or has to check; other numbers where
//! a lane counts the lease); started;
//! deadline; extended (0: never); owner; stream; grace (stored plus one, 0: none); duration; the worker's id. The
//! part after its times is equal for most leases of a worker, so claims send it ready made.
//!
//! **Parts** are stored apart, in `more`: attempts, result, large payloads, payload of the pending generation,
//! checkpoint; in the form of `stored.proto`, too.

use std::time::Duration;

use bytes::{Buf as _, BufMut as _, Bytes};

use crate::domain::engine::{Finish, JobParts, Lease, Phase, Record, RecordTime};
use crate::domain::{
    GroupName, Job, JobKey, Payload, RetentionRule, ShardName, Spec, State, Time, Token,
};
use crate::store::{self, Result, codec};

use super::layout::{RUNS, TIME_MAX, parts_inside, separate_parts};
use super::record_version::RecordVersion;
use super::reply::unexpected;

/// Size above which payloads are stored apart, so that moving a job does not copy them.
pub(super) const INLINE_BYTES_MAX: usize = 512;

/// Value that is stored under the id of a job.
#[derive(Clone, Debug)]
pub(super) struct JobEntry {
    pub(super) record: Record,
    pub(super) version: RecordVersion,
    /// Flags of the parts that are stored apart; see [`apart`].
    pub(super) apart: u8,
    /// The stored payload, if it is inside of the record.
    pub(super) payload: Option<Bytes>,
}

/// Reads fields from a blob; a blob that is too short is an error.
pub(super) struct FieldReader(pub(super) Bytes);

// === impl FieldReader ===

impl FieldReader {
    /// Returns the remaining bytes, if there are at least `length`.
    fn checked(&mut self, length: usize) -> Result<&mut Bytes> {
        match self.0.len() < length {
            true => Err(unexpected("a whole record")),
            false => Ok(&mut self.0),
        }
    }

    pub(super) fn take(&mut self, length: usize) -> Result<Bytes> {
        Ok(self.checked(length)?.split_to(length))
    }

    pub(super) fn skip(&mut self, length: usize) -> Result<()> {
        self.checked(length)?.advance(length);
        Ok(())
    }

    pub(super) fn unsigned(&mut self, length: usize) -> Result<u64> {
        Ok(self.checked(length)?.get_uint(length))
    }

    pub(super) fn small(&mut self) -> Result<u8> {
        Ok(self.checked(1)?.get_u8())
    }

    pub(super) fn word(&mut self) -> Result<u32> {
        Ok(self.checked(4)?.get_u32())
    }

    pub(super) fn time(&mut self) -> Result<Time> {
        Ok(Time(self.unsigned(7)?.cast_signed()))
    }

    /// Reads a time, where 0 is none.
    pub(super) fn maybe_time(&mut self) -> Result<Option<Time>> {
        Ok(Some(self.time()?).filter(|time| time.0 != 0))
    }

    /// Reads a duration that is stored plus one, where 0 is none.
    pub(super) fn maybe_duration(&mut self) -> Result<Option<Duration>> {
        Ok(self.unsigned(7)?.checked_sub(1).map(Duration::from_micros))
    }

    fn version(&mut self) -> Result<RecordVersion> {
        let mut version = RecordVersion::default();
        self.checked(version.len())?.copy_to_slice(&mut version);
        Ok(version)
    }

    /// Reads a message after its length, if there is one.
    fn message(&mut self, is_there: bool) -> Result<Option<Bytes>> {
        if !is_there {
            return Ok(None);
        }
        let length = usize::try_from(self.word()?).unwrap_or(usize::MAX);
        self.take(length).map(Some)
    }

    /// Reads a text after its length, a number of `length` bytes.
    pub(super) fn text(&mut self, length: usize) -> Result<String> {
        let length = usize::try_from(self.unsigned(length)?).unwrap_or(usize::MAX);
        Ok(text(&self.take(length)?))
    }
}

pub(super) fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

// === impl JobEntry ===

impl JobEntry {
    /// Reads the value that is stored under the id of a job.
    pub(super) fn read(entry: Bytes) -> Result<JobEntry> {
        let (lease, record) = split(entry)?;
        let mut entry = JobEntry::from_record(record)?;
        if let Some(lease) = lease {
            entry.record.phase = Phase::Running(read_lease(lease)?);
        }
        Ok(entry)
    }

    /// Reads a record.
    pub(super) fn from_record(record: Bytes) -> Result<JobEntry> {
        let mut fields = FieldReader(record);
        let due = fields.time()?;
        fields.skip(6)?;
        let created = fields.time()?;
        let (apart, inside, version) = (fields.small()?, fields.small()?, fields.version()?);
        let (bytes, phase, priority) = (fields.word()?, fields.small()?, fields.small()?);
        let keep = codec::retention_from_code(fields.checked(8)?.get_i64());
        let phase = match phase {
            0 => Phase::Waiting,
            phase => {
                let (at, until) = (fields.time()?.into(), fields.time()?.into());
                Phase::Finished(Finish { state: finished_in(phase), at, until })
            }
        };
        let (mut expire, mut request, mut own_lease) = (None, None, None);
        if inside & parts_inside::EXTENSION != 0 {
            expire = fields.maybe_time()?;
            let is_known = fields.small()? != 0;
            request = Some(fields.unsigned(8)?).filter(|_| is_known);
            own_lease = fields.maybe_duration()?;
        }
        let group = match inside & parts_inside::GROUP {
            0 => None,
            _ => GroupName::stored(&fields.text(1)?),
        };
        let spec = fields.message(inside & parts_inside::SPEC != 0)?;
        let life = fields.message(inside & parts_inside::LIFE != 0)?;
        let (life, next) = codec::decode_history(life.as_deref());
        let payload = (inside & parts_inside::BODY != 0 && apart & separate_parts::PAYLOAD == 0)
            .then_some(fields.0);
        let record = Record {
            phase,
            priority,
            due: due.into(),
            expire: expire.map(RecordTime::fixed),
            created: created.into(),
            retention: keep,
            request_code: request,
            bytes: bytes.into(),
            spec: Spec { lease: own_lease, group, ..codec::decode_spec(spec.as_deref()) },
            history: life,
            next: next.map(Box::new),
        };
        Ok(JobEntry { record, version, apart, payload })
    }

    /// Returns whether the bytes of the job are in the count of its topic.
    pub(super) fn is_counted(&self) -> bool {
        self.apart & separate_parts::COUNTED != 0
    }

    /// The running lease, if there is one.
    pub(super) fn lease(&self) -> Option<&Lease> {
        match &self.record.phase {
            Phase::Running(lease) => Some(lease),
            Phase::Waiting | Phase::Finished(_) => None,
        }
    }

    /// Lease of the job with this key, if it runs.
    pub(super) fn lease_of(&self, key: JobKey, now: Time) -> Option<store::RunningLease> {
        store::RunningLease::from_record(key, &self.record, now)
    }

    /// Returns the job at `now`; `None`: its retention has ended. `full`: with these parts.
    pub(super) fn job(
        self,
        key: JobKey,
        shard: &ShardName,
        now: Time,
        full: Option<StoredParts>,
    ) -> Result<Option<Job>> {
        let bodies = match full {
            None => JobParts::default(),
            Some(parts) => JobParts {
                payload: payload(self.payload.or(parts.payload))?,
                result: payload(parts.result)?,
                checkpoint: payload(parts.checkpoint)?,
                attempts: codec::decode_attempts(parts.attempts.as_deref())
                    .map_err(super::corrupt_error)?,
            },
        };
        Ok(self.record.job(key, shard.clone(), now, bodies))
    }
}

/// Stored parts of a job outside of its record.
#[derive(Default)]
pub(super) struct StoredParts {
    pub(super) attempts: Option<Bytes>,
    pub(super) result: Option<Bytes>,
    pub(super) payload: Option<Bytes>,
    pub(super) checkpoint: Option<Bytes>,
}

/// Reads a lease in front of a record.
pub(super) fn read_lease(blob: Bytes) -> Result<Lease> {
    let mut fields = FieldReader(blob);
    let token = Token(fields.unsigned(8)?);
    fields.skip(1)?;
    let (started, deadline, extended) = (fields.time()?, fields.time()?, fields.maybe_time()?);
    let (owner, stream, grace) = (fields.word()?, fields.word()?, fields.maybe_duration()?);
    let duration = Duration::from_micros(fields.unsigned(7)?);
    Ok(Lease {
        token,
        started,
        deadline: deadline.into(),
        extended: extended.map(RecordTime::fixed),
        owner,
        stream,
        grace,
        duration,
        worker: text(&fields.0),
    })
}

/// Splits the value under the id of a job into its lease, if it runs, and its record.
pub(super) fn split(entry: Bytes) -> Result<(Option<Bytes>, Bytes)> {
    if entry.first() != Some(&RUNS) {
        return Ok((None, entry));
    }
    let mut fields = FieldReader(entry.slice(1..));
    let length = usize::try_from(fields.unsigned(2)?).unwrap_or(usize::MAX);
    let lease = fields.take(length)?;
    Ok((Some(lease), fields.0))
}

/// Number of a terminal state.
pub(super) fn phase_of(state: State) -> u8 {
    match state {
        State::Succeeded => 2,
        State::Dead => 3,
        State::Cancelled => 4,
        State::Expired => 5,
        State::Scheduled | State::Ready | State::Running | State::Backoff => 0,
    }
}

/// Terminal state with this number.
pub(super) fn finished_in(phase: u8) -> State {
    match phase {
        2 => State::Succeeded,
        3 => State::Dead,
        4 => State::Cancelled,
        _ => State::Expired,
    }
}

/// Writes the fixed part of a record, in the form in which it is sent.
pub(super) fn put_fixed(
    blob: &mut Vec<u8>,
    flags: [u8; 2],
    version: RecordVersion,
    bytes: u64,
    [phase, priority]: [u8; 2],
    keep: RetentionRule,
) {
    blob.extend(flags);
    blob.extend(version);
    blob.put_u32(u32::try_from(bytes).unwrap_or(u32::MAX));
    blob.extend([phase, priority]);
    blob.put_i64(keep_code(keep));
}

/// Writes the fields of an extension after the expire time.
pub(super) fn put_extension(blob: &mut Vec<u8>, request: Option<u64>, own_lease: Option<Duration>) {
    blob.put_u8(u8::from(request.is_some()));
    blob.put_u64(request.unwrap_or(0));
    put_duration(blob, own_lease);
}

/// Writes the group of a job behind its extension.
pub(super) fn put_group(blob: &mut Vec<u8>, group: Option<&GroupName>) {
    if let Some(group) = group {
        blob.put_u8(u8::try_from(group.as_str().len()).unwrap_or(u8::MAX));
        blob.extend(group.as_str().as_bytes());
    }
}

/// Writes a message of the tail after its length.
pub(super) fn put_message(blob: &mut Vec<u8>, message: Option<&[u8]>) {
    if let Some(message) = message {
        blob.put_u32(u32::try_from(message.len()).unwrap_or(u32::MAX));
        blob.extend(message);
    }
}

/// Decodes a stored payload.
pub(super) fn payload(blob: Option<Bytes>) -> Result<Option<Payload>> {
    blob.map(codec::decode_payload).transpose().map_err(super::corrupt_error)
}

/// Returns a duration in microseconds, limited to the range of the scripts.
pub(super) fn micros(duration: Duration) -> i64 {
    i64::try_from(codec::micros(duration)).unwrap_or(TIME_MAX).min(TIME_MAX)
}

/// Returns a time in microseconds, limited to the range of the scripts.
pub(super) fn clamped(time: Time) -> i64 {
    time.0.clamp(0, TIME_MAX)
}

/// Returns a limit as scripts receive it: the greatest time is none.
pub(super) fn limit_arg(limit: Option<u64>) -> u64 {
    limit.unwrap_or(u64::MAX).min(TIME_MAX.unsigned_abs())
}

/// Writes an optional duration: stored plus one, 0 for none.
pub(super) fn put_duration(blob: &mut Vec<u8>, duration: Option<Duration>) {
    let micros = duration.map_or(0, |duration| micros(duration) + 1);
    blob.put_uint(micros.unsigned_abs(), 7);
}

/// Returns the field of the retention, limited to the range of the scripts.
pub(super) fn keep_code(keep: RetentionRule) -> i64 {
    codec::retention_code(keep).clamp(-TIME_MAX, TIME_MAX)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::redis::layout::resolve;

    /// Builds a blob in which each field has this number, by the positions that scripts use.
    fn blob(length: usize, fields: &[(&str, usize, i64)]) -> Bytes {
        let mut blob = vec![0; length];
        for (field, bytes, number) in fields {
            let place: usize = resolve(field).parse().unwrap();
            let number = &number.to_be_bytes()[8 - bytes..];
            blob[place - 1..place - 1 + bytes].copy_from_slice(number);
        }
        blob.into()
    }

    #[test]
    fn a_record_is_read_where_scripts_write_it() {
        let all = parts_inside::BODY | parts_inside::SPEC | parts_inside::EXTENSION;
        let fields = [
            ("$record.due", 7, 1_000),
            ("$record.arrival", 6, -1),
            ("$record.created", 7, 2_000),
            ("$record.apart", 1, separate_parts::KEPT.into()),
            ("$record.inside", 1, all.into()),
            ("$record.version", 8, 77),
            ("$record.bytes", 4, 14),
            ("$record.priority", 1, 4),
            ("$record.keep", 8, -8),
            ("$record.expire", 7, 9_000),
            ("$record.has_request", 1, 1),
            ("$record.request", 8, -1),
            ("$record.own_lease", 7, 11),
            ("$record.tail", 4, 0),
        ];
        let JobEntry { record, version, payload, .. } = JobEntry::read(blob(73, &fields)).unwrap();
        let times = (record.due.at, record.created.at, record.expire.map(|expire| expire.at));
        assert_eq!(times, (Time(1_000), Time(2_000), Some(Time(9_000))));
        assert_eq!((record.bytes, record.priority, &record.phase), (14, 4, &Phase::Waiting));
        assert_eq!((version, record.request_code), (77_u64.to_be_bytes(), Some(u64::MAX)));
        assert_eq!(record.retention, RetentionRule::Tombstone(Duration::from_micros(8)));
        assert_eq!(record.spec.lease, Some(Duration::from_micros(10)));
        assert_eq!(payload.map(|payload| payload.len()), Some(2));
    }

    #[test]
    fn a_finished_record_is_read_where_scripts_write_it() {
        let inside = parts_inside::EXTENSION.into();
        let fields = [
            ("$record.inside", 1, inside),
            ("$record.phase", 1, 3),
            ("$ended.finished", 7, 5_000),
            ("$ended.forgotten", 7, 6_000),
            ("$ended.expire", 7, 9_000),
        ];
        let record = JobEntry::read(blob(81, &fields)).unwrap().record;
        let (state, at, until) = (State::Dead, Time(5_000).into(), Time(6_000).into());
        assert_eq!(record.phase, Phase::Finished(Finish { state, at, until }));
        assert_eq!((record.expire, record.request_code), (Some(Time(9_000).into()), None));
    }

    #[test]
    fn a_lease_is_read_where_scripts_write_it() {
        let fields = [
            ("$entry.running", 1, RUNS.into()),
            ("$entry.length", 2, 53),
            ("$entry.token", 8, 1),
            ("$entry.ack", 1, -1),
            ("$entry.started", 7, 2),
            ("$entry.deadline", 7, 3),
            ("$entry.extended", 7, 4),
            ("$entry.owner", 4, 5),
            ("$entry.stream", 4, 6),
            ("$entry.grace", 7, 8),
            ("$entry.duration", 7, 9),
            ("$entry.worker", 1, 0x77),
        ];
        let (lease, record) = split(blob(63, &fields)).unwrap();
        let lease = read_lease(lease.unwrap()).unwrap();
        assert_eq!((lease.token, lease.owner, lease.stream), (Token(1), 5, 6));
        assert_eq!((lease.started, lease.deadline.at), (Time(2), Time(3)));
        assert_eq!(lease.extended, Some(Time(4).into()));
        let micros = Duration::from_micros;
        assert_eq!(
            (lease.grace, lease.duration, &*lease.worker),
            (Some(micros(7)), micros(9), "w")
        );
        assert_eq!(record.len(), 7);
    }
}
