//! Stored form of a job's history.

use std::time::Duration;

use prost::Message as _;

use crate::domain::engine::{
    AttemptsChange, JobHistory, LeaseEndHistory, NextGeneration, NextGenerationSpec,
};
use crate::domain::{Attempt, Time, Token, limit};

use super::{decode, micros, retention_code, retention_from_code, spec, stored};

/// First bytes of fields of an encoded history, for scripts that write a tombstone: number of the field, and its type.
pub mod life_key {
    /// Number of deliveries.
    pub const DELIVERIES: i64 = 3 << 3;
    /// Last worker.
    pub const WORKER: i64 = 5 << 3 | 2;
    /// Ends of leases.
    pub const ENDS: i64 = 8 << 3 | 2;
}

/// Bytes of a lease end: its token, and a code for how it ended.
const END_BYTES: usize = 9;

/// Change of the attempts of a job: the new bytes, followed by the first bytes of the stored ones.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AttemptsSplice {
    /// New bytes in front.
    pub front: Vec<u8>,
    /// Number of stored bytes that stay.
    pub kept: usize,
}

/// Encodes the history of a job and its waiting generation. `None`: nothing has happened to the job yet, which is the
/// usual case.
pub fn encode_history(life: &JobHistory, next: Option<&NextGeneration>) -> Option<Vec<u8>> {
    let JobHistory {
        generation,
        failures,
        deliveries,
        crashes,
        first_start,
        worker,
        last_error,
        progress,
        checkpoint,
        lease_ends: ends,
        attempts,
    } = life;
    let stored = stored::Life {
        replaced: generation.saturating_sub(1),
        failures: *failures,
        deliveries: *deliveries,
        crashes: *crashes,
        first_start_us: first_start.map(|time| time.0),
        worker: worker.clone(),
        last_error: last_error.clone(),
        progress: progress.clone(),
        checkpoint: *checkpoint,
        ends: encode_ends(ends),
        attempts: attempts.clone(),
        next: next.map(encode_next),
    };
    (stored != stored::Life::default()).then(|| stored.encode_to_vec())
}

/// Decodes the history of a job. A damaged one reads as new: a job that runs once more is better than a topic that is
/// blocked by it.
pub fn decode_history(blob: Option<&[u8]>) -> (JobHistory, Option<NextGeneration>) {
    let Some(blob) = blob else { return (JobHistory::new(1), None) };
    let stored = decode::<stored::Life>("life", blob).unwrap_or_else(|error| {
        tracing::error!(%error, "the stored history of a job is damaged; the job counts as new");
        stored::Life::default()
    });
    let life = JobHistory {
        generation: stored.replaced.saturating_add(1),
        failures: stored.failures,
        deliveries: stored.deliveries,
        crashes: stored.crashes,
        first_start: stored.first_start_us.map(Time),
        worker: stored.worker,
        last_error: stored.last_error,
        progress: stored.progress,
        checkpoint: stored.checkpoint,
        lease_ends: decode_ends(&stored.ends),
        attempts: stored.attempts,
    };
    (life, stored.next.map(decode_next))
}

/// Adds the new attempts of a job: returns the bytes to write, and updates `lengths`, the length of each attempt.
/// `None`: nothing to write.
pub fn encode_attempts(change: &AttemptsChange, lengths: &mut Vec<u32>) -> Option<AttemptsSplice> {
    if change.cleared {
        lengths.clear();
    }
    if change.added.is_empty() {
        return change.cleared.then(|| AttemptsSplice { front: Vec::new(), kept: 0 });
    }
    let (mut front, mut added) = (Vec::new(), Vec::new());
    for attempt in change.added.iter().take(limit::ATTEMPTS_KEPT) {
        let before = front.len();
        front.extend(stored::Attempts { attempts: vec![encode_attempt(attempt)] }.encode_to_vec());
        added.push(u32::try_from(front.len() - before).unwrap_or(u32::MAX));
    }
    lengths.truncate(limit::ATTEMPTS_KEPT - added.len());
    let kept = lengths.iter().map(|&length| length as usize).sum();
    lengths.splice(..0, added);
    Some(AttemptsSplice { front, kept })
}

fn encode_attempt(attempt: &Attempt) -> stored::Attempt {
    stored::Attempt {
        number: attempt.number,
        start_us: attempt.start_time.0,
        finish_us: attempt.finish_time.0,
        worker_id: attempt.worker_id.clone(),
        outcome: attempt.outcome.code().into(),
        error: attempt.error.clone(),
    }
}

fn encode_ends(ends: &LeaseEndHistory) -> Vec<u8> {
    let end = |(token, code): &(Token, u8)| {
        let mut end = token.0.to_be_bytes().to_vec();
        end.push(*code);
        end
    };
    ends.0.iter().flat_map(end).collect()
}

fn decode_ends(bytes: &[u8]) -> LeaseEndHistory {
    let end = |end: &[u8]| {
        let (token, code) = end.split_first_chunk::<8>()?;
        Some((Token(u64::from_be_bytes(*token)), *code.first()?))
    };
    LeaseEndHistory(bytes.chunks_exact(END_BYTES).filter_map(end).collect())
}

fn encode_next(next: &NextGeneration) -> stored::Generation {
    let NextGeneration { priority, due, expire, created, replacement: own } = next;
    let own =
        own.as_ref().map(|NextGenerationSpec { keep, bytes, spec, has_payload }| stored::Brought {
            keep_us: retention_code(*keep),
            bytes: *bytes,
            lease_us: spec.lease.map(micros),
            spec: Some(spec::to_stored(spec)),
            has_payload: *has_payload,
        });
    stored::Generation {
        priority: (*priority).into(),
        due_us: due.0,
        expire_us: expire.map(|expire| expire.0),
        create_us: created.0,
        own,
    }
}

fn decode_next(stored: stored::Generation) -> NextGeneration {
    let own = stored.own.map(|own| {
        let mut spec = spec::from_stored(own.spec.unwrap_or_default());
        spec.lease = own.lease_us.map(Duration::from_micros);
        NextGenerationSpec {
            keep: retention_from_code(own.keep_us),
            bytes: own.bytes,
            spec,
            has_payload: own.has_payload,
        }
    });
    NextGeneration {
        priority: u8::try_from(stored.priority).unwrap_or(0).min(limit::PRIORITY_MAX),
        due: Time(stored.due_us),
        expire: stored.expire_us.map(Time),
        created: Time(stored.create_us),
        replacement: own,
    }
}
