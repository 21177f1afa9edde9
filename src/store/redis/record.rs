//! How a job lies in Redis, and how it reads to the world. Where each field lies is told once, in
//! [`super::layout`]; all numbers are big-endian. A layout that has landed is only ever added to; the shard's
//! `format` says which it is.
//!
//! **Record**: due, arrival, created; two bytes of flags: what there is of the job apart from the record and
//! whether it is kept, and what is inside; bytes that count; phase (0 waits or runs); priority; generation; failures;
//! deliveries; keep (0 nothing, above 0 the record for so long, below a tombstone). If flagged so an extension:
//! expire time (0: none), whether a request is known, its hash, own lease duration and retention (one more than they
//! are, 0: none). In the tail, if flagged, the length 4 of the terms and they; then the payload, unless it lies apart.
//!
//! A new field has to be read and written here, in `enqueue.rs` (`blob`) and `lib/record.lua` (`parse`, `format`), and
//! to be named where fields are copied one by one: `overwrite` of `lib/lifecycle.lua`, `defer` of `lib/arrive.lua`,
//! `bury` of `settle.lua`. What only workers see belongs in the terms, of which scripts know nothing (`codec.rs`).
//!
//! **Entry** of a job that runs: a mark, which no record begins with, the length of its lease, the lease, the
//! record. Of any other job: the record.
//!
//! **Lease**: token; what an ack does (it removes the job, or leaves what is kept of it, or has to look); started;
//! deadline; first start (0: this one); extended (0: never); owner; stream; grace (one more, 0: none); duration; the
//! worker's id. From the first start on it is the same for most leases of a worker, so claims bring that part
//! ready made.
//!
//! **Story**: first start, finished, forgotten (0: none); behind their lengths worker, error, progress, and past:
//! for each former lease its token 8 and how it ended 1, newest first.
//!
//! **History**: attempts, newest first, each behind its length 4: number 4, start 7, finish 7, outcome 1,
//! worker behind its length 1, error.

use std::time::Duration;

use bytes::{Buf as _, BufMut as _, Bytes};

use crate::domain::{Keep, Payload, Spec, Time, Token};
use crate::store::{Result, codec};

use super::layout::{RUNS, TIME_MAX, apart, inside};
use super::reply::unexpected;

/// Payloads above this size lie apart, so that what only moves a job does not carry them around.
pub(super) const INLINE_BYTES_MAX: usize = 512;

/// The record of a job, without its payload.
#[derive(Clone, Debug)]
pub(super) struct Record {
    pub(super) due: Time,
    pub(super) created: Time,
    pub(super) bytes: u32,
    pub(super) phase: u8,
    pub(super) priority: u8,
    pub(super) generation: u32,
    pub(super) failures: u32,
    pub(super) deliveries: u32,
    pub(super) keep: i64,
    pub(super) expire: Option<Time>,
    pub(super) own_lease: Option<Duration>,
    pub(super) retention: Option<Duration>,
    pub(super) terms: Option<Bytes>,
    /// Where it lies in the record.
    pub(super) payload: Option<Bytes>,
    large: bool,
}

/// A running lease.
#[derive(Clone, Debug)]
pub(super) struct StoredLease {
    pub(super) token: Token,
    pub(super) started: Time,
    pub(super) deadline: Time,
    pub(super) first_start: Time,
    pub(super) owner: u32,
    pub(super) stream: u32,
    pub(super) grace: Option<Duration>,
    pub(super) extended: Option<Time>,
    pub(super) worker: String,
}

/// Takes fields off a blob; what is too short is an error.
pub(super) struct Fields(pub(super) Bytes);

// === impl Fields ===

impl Fields {
    /// What is left, which has so many bytes.
    fn of(&mut self, length: usize) -> Result<&mut Bytes> {
        match self.0.len() < length {
            true => Err(unexpected("a whole record")),
            false => Ok(&mut self.0),
        }
    }

    pub(super) fn take(&mut self, length: usize) -> Result<Bytes> {
        Ok(self.of(length)?.split_to(length))
    }

    pub(super) fn skip(&mut self, length: usize) -> Result<()> {
        self.of(length)?.advance(length);
        Ok(())
    }

    pub(super) fn unsigned(&mut self, length: usize) -> Result<u64> {
        Ok(self.of(length)?.get_uint(length))
    }

    pub(super) fn small(&mut self) -> Result<u8> {
        Ok(self.of(1)?.get_u8())
    }

    pub(super) fn word(&mut self) -> Result<u32> {
        Ok(self.of(4)?.get_u32())
    }

    pub(super) fn time(&mut self) -> Result<Time> {
        Ok(Time(self.unsigned(7)?.cast_signed()))
    }

    /// A time, where 0 is none.
    pub(super) fn maybe_time(&mut self) -> Result<Option<Time>> {
        Ok(Some(self.time()?).filter(|time| time.0 != 0))
    }

    /// A duration that is stored as one more than it is, where 0 is none.
    pub(super) fn maybe_duration(&mut self) -> Result<Option<Duration>> {
        Ok(self.unsigned(7)?.checked_sub(1).map(Duration::from_micros))
    }

    /// Text behind its length of so many bytes.
    pub(super) fn text(&mut self, length: usize) -> Result<String> {
        let length = usize::try_from(self.unsigned(length)?).unwrap_or(usize::MAX);
        Ok(text(&self.take(length)?))
    }
}

pub(super) fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

// === impl Record ===

impl Record {
    pub(super) fn read(blob: Bytes) -> Result<Record> {
        let mut fields = Fields(blob);
        let due = fields.time()?;
        fields.skip(6)?;
        let created = fields.time()?;
        let (apart, inside) = (fields.small()?, fields.small()?);
        let mut record = Record {
            due,
            created,
            bytes: fields.word()?,
            phase: fields.small()?,
            priority: fields.small()?,
            generation: fields.word()?,
            failures: fields.word()?,
            deliveries: fields.word()?,
            keep: fields.of(8)?.get_i64(),
            expire: None,
            own_lease: None,
            retention: None,
            terms: None,
            payload: None,
            large: apart & apart::PAYLOAD != 0,
        };
        if inside & inside::EXTENSION != 0 {
            record.expire = fields.maybe_time()?;
            fields.skip(9)?;
            record.own_lease = fields.maybe_duration()?;
            record.retention = fields.maybe_duration()?;
        }
        if inside & inside::TERMS != 0 {
            let length = usize::try_from(fields.word()?).unwrap_or(usize::MAX);
            record.terms = Some(fields.take(length)?);
        }
        record.payload = (inside & inside::BODY != 0 && !record.large).then_some(fields.0);
        Ok(record)
    }

    /// What was asked for; `apart`: the payload, if it lies apart.
    pub(super) fn spec(&self, apart: Option<Bytes>, full: bool) -> Result<Spec> {
        let mut spec = codec::decode_spec(self.terms.as_deref());
        if full {
            spec.payload = payload(self.payload.clone().or(apart))?;
        }
        (spec.lease, spec.retention) = (self.own_lease, self.retention);
        Ok(spec)
    }

    /// Until when a job that finished at `finish` is kept; `None`: not at all.
    pub(super) fn kept_until(&self, finish: Time) -> Option<Time> {
        codec::keep(self.keep).until(finish)
    }
}

// === impl StoredLease ===

impl StoredLease {
    pub(super) fn read(blob: Bytes) -> Result<StoredLease> {
        let mut fields = Fields(blob);
        let token = Token(fields.unsigned(8)?);
        fields.skip(1)?;
        let (started, deadline) = (fields.time()?, fields.time()?);
        let (first_start, extended) = (fields.maybe_time()?, fields.maybe_time()?);
        let (owner, stream, grace) = (fields.word()?, fields.word()?, fields.maybe_duration()?);
        fields.skip(7)?;
        Ok(StoredLease {
            token,
            started,
            deadline,
            first_start: first_start.unwrap_or(started),
            owner,
            stream,
            grace,
            extended,
            worker: text(&fields.0),
        })
    }
}

/// What lies under the id of a job: its lease, if it runs, and its record.
pub(super) fn read_entry(entry: Bytes) -> Result<(Option<StoredLease>, Bytes)> {
    if entry.first() != Some(&RUNS) {
        return Ok((None, entry));
    }
    let mut fields = Fields(entry.slice(1..));
    let length = usize::try_from(fields.unsigned(2)?).unwrap_or(usize::MAX);
    let lease = fields.take(length)?;
    Ok((Some(StoredLease::read(lease)?), fields.0))
}

/// A payload as it is stored.
pub(super) fn payload(blob: Option<Bytes>) -> Result<Option<Payload>> {
    blob.map(codec::decode_payload).transpose().map_err(super::damaged)
}

/// A duration as the scripts count, no longer than they can.
pub(super) fn micros(duration: Duration) -> i64 {
    i64::try_from(codec::micros(duration)).unwrap_or(TIME_MAX).min(TIME_MAX)
}

/// A time as the scripts count, no later than they can.
pub(super) fn clamped(time: Time) -> i64 {
    time.0.clamp(0, TIME_MAX)
}

/// Writes an optional duration: one more than it is, 0 for none.
pub(super) fn put_duration(blob: &mut Vec<u8>, duration: Option<Duration>) {
    let micros = duration.map_or(0, |duration| micros(duration) + 1);
    blob.put_uint(micros.unsigned_abs(), 7);
}

/// The field for what is kept, no longer than the scripts can count.
pub(super) fn keep_code(keep: Keep) -> i64 {
    codec::keep_code(keep).clamp(-TIME_MAX, TIME_MAX)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::redis::layout::resolve;

    /// A blob in which each field has this number, by the places that scripts know.
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
        let all = inside::BODY | inside::TERMS | inside::EXTENSION;
        let fields = [
            ("$record.due", 7, 1_000),
            ("$record.arrival", 6, -1),
            ("$record.created", 7, 2_000),
            ("$record.apart", 1, apart::KEPT.into()),
            ("$record.inside", 1, all.into()),
            ("$record.bytes", 4, 14),
            ("$record.phase", 1, 3),
            ("$record.priority", 1, 4),
            ("$record.generation", 4, 5),
            ("$record.failures", 4, 6),
            ("$record.deliveries", 4, 7),
            ("$record.keep", 8, -8),
            ("$record.expire", 7, 9_000),
            ("$record.has_request", 1, 1),
            ("$record.request", 8, -1),
            ("$record.own_lease", 7, 11),
            ("$record.retention", 7, 13),
            ("$record.tail", 4, 1),
        ];
        let record = Record::read(blob(85, &fields)).unwrap();
        let times = (record.due, record.created, record.expire);
        assert_eq!(times, (Time(1_000), Time(2_000), Some(Time(9_000))));
        assert_eq!(record.bytes, 14);
        let counts = (record.generation, record.failures, record.deliveries);
        assert_eq!((record.phase, record.priority, counts), (3, 4, (5, 6, 7)));
        let micros = |micros| Some(Duration::from_micros(micros));
        assert_eq!((record.keep, record.own_lease, record.retention), (-8, micros(10), micros(12)));
        assert_eq!(record.terms.map(|terms| terms.len()), Some(1));
        assert_eq!(record.payload.map(|payload| payload.len()), Some(2));
    }

    #[test]
    fn a_lease_is_read_where_scripts_write_it() {
        let fields = [
            ("$entry.running", 1, RUNS.into()),
            ("$entry.length", 2, 60),
            ("$entry.token", 8, 1),
            ("$entry.ack", 1, -1),
            ("$entry.started", 7, 2),
            ("$entry.deadline", 7, 3),
            ("$entry.first_start", 7, 0),
            ("$entry.extended", 7, 4),
            ("$entry.owner", 4, 5),
            ("$entry.stream", 4, 6),
            ("$entry.grace", 7, 8),
            ("$entry.duration", 7, -1),
            ("$entry.worker", 1, 0x77),
        ];
        let (lease, record) = read_entry(blob(70, &fields)).unwrap();
        let lease = lease.unwrap();
        assert_eq!((lease.token, lease.owner, lease.stream), (Token(1), 5, 6));
        let times = (lease.first_start, lease.deadline, lease.extended);
        assert_eq!(times, (Time(2), Time(3), Some(Time(4))));
        assert_eq!((lease.grace, &*lease.worker), (Some(Duration::from_micros(7)), "w"));
        assert_eq!(record.len(), 7);
    }
}
