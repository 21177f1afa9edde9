//! Stored form of documents, and of the parts of a job that stores do not read themselves: the messages of `stored.proto`,
//! separate from the wire contract, so that either can change without the other.

mod document;
mod history;
mod newer;
mod spec;
mod topic_policy;

use std::time::Duration;

use bytes::Bytes;
use prost::Message;

use crate::domain::{Attempt, AttemptOutcome, Payload, RetentionRule, Time};

pub use document::{decode_document, encode_document, encode_document_content};
pub use history::{AttemptsSplice, decode_history, encode_attempts, encode_history, life_key};
pub use spec::{decode_spec, encode_spec, encode_spec_without_group};

/// Generated messages.
mod stored {
    #![allow(
        missing_docs,
        unreachable_pub,
        clippy::all,
        clippy::pedantic,
        clippy::nursery,
        reason = "generated code: its documentation is in stored.proto"
    )]

    tonic::include_proto!("ringq.stored");
}

/// Stored bytes that cannot be decoded.
#[derive(Debug, thiserror::Error)]
#[error("a stored {what} cannot be decoded: {source}")]
pub struct StoredDecodeError {
    what: &'static str,
    source: prost::DecodeError,
}

/// Encodes a payload.
pub fn encode_payload(payload: &Payload) -> Vec<u8> {
    let Payload { text, body, content_type } = payload.clone();
    stored::Payload { text, body, content_type }.encode_to_vec()
}

/// Decodes a payload.
pub fn decode_payload(blob: Bytes) -> Result<Payload, StoredDecodeError> {
    let stored::Payload { text, body, content_type } = decode("payload", blob)?;
    Ok(Payload { text, body, content_type })
}

/// Decodes attempts.
pub fn decode_attempts(blob: Option<&[u8]>) -> Result<Vec<Attempt>, StoredDecodeError> {
    let Some(blob) = blob else { return Ok(Vec::new()) };
    let stored = decode::<stored::Attempts>("list of attempts", blob)?;
    let attempt = |stored: stored::Attempt| Attempt {
        number: stored.number,
        start_time: Time(stored.start_us),
        finish_time: Time(stored.finish_us),
        worker_id: stored.worker_id,
        outcome: AttemptOutcome::of(u8::try_from(stored.outcome).unwrap_or(0)),
        error: stored.error,
    };
    Ok(stored.attempts.into_iter().map(attempt).collect())
}

/// Encodes a retention rule, in microseconds: positive for a record, negative for a tombstone.
pub(super) fn retention_code(keep: RetentionRule) -> i64 {
    let micros = |duration| i64::try_from(micros(duration)).unwrap_or(i64::MAX).max(1);
    match keep {
        RetentionRule::Nothing => 0,
        RetentionRule::Record(duration) => micros(duration),
        RetentionRule::Tombstone(duration) => -micros(duration),
    }
}

/// Decodes a retention rule.
pub(super) fn retention_from_code(code: i64) -> RetentionRule {
    let duration = Duration::from_micros(code.unsigned_abs());
    match code {
        0 => RetentionRule::Nothing,
        1.. => RetentionRule::Record(duration),
        _ => RetentionRule::Tombstone(duration),
    }
}

/// Converts a duration to whole microseconds, the unit of every store, rounded up: no wait is ever cut.
pub(super) fn micros(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos().div_ceil(1_000)).unwrap_or(u64::MAX)
}

fn decode<M: Message + Default>(
    what: &'static str,
    blob: impl bytes::Buf,
) -> Result<M, StoredDecodeError> {
    M::decode(blob).map_err(|source| StoredDecodeError { what, source })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::domain::engine::{
        AttemptsChange, JobHistory, LeaseEndHistory, NextGeneration, NextGenerationSpec,
    };
    use crate::domain::{CrashTopic, GroupName, RetryOverrides, Spec, Token};

    #[test]
    fn everything_survives_its_round_trip() {
        let payload = Payload {
            text: true,
            body: Bytes::from_static("žluťoučký".as_bytes()),
            content_type: "text/plain".into(),
        };
        let retry = RetryOverrides {
            max_attempts: Some(-1),
            delays: vec![Duration::from_secs(60), Duration::from_millis(1)],
            initial_delay: Some(Duration::from_secs(2)),
            multiplier: Some(1.5),
            max_delay: Some(Duration::from_secs(90)),
            jitter: Some(0.5),
            max_retry_duration: Some(Duration::from_secs(3600)),
            ignore_expired_leases: Some(true),
            max_deliveries: Some(7),
            max_crashes: Some(3),
            crash_topic: Some(CrashTopic::stored("crashed")),
        }
        .boxed();
        let headers = vec![("a".into(), "1".into()), ("b".into(), String::new())];
        // A new field does not compile here. Fields that are `None` have columns of their own in the stores.
        let (headers_, retry_) = (headers.clone(), retry.clone());
        let group = GroupName::stored("g");
        let (payload_, lease, retention) = (None, None, Some(Duration::from_secs(5)));
        let spec =
            Spec { payload: payload_, headers: headers_, retry: retry_, lease, group, retention };
        let alone = [
            Spec { headers, ..Spec::default() },
            Spec { retry, ..Spec::default() },
            Spec::default(),
        ];
        for spec in alone.into_iter().chain([spec]) {
            assert_eq!(decode_spec(encode_spec(&spec).as_deref()), spec);
        }
        assert_eq!(decode_payload(encode_payload(&payload).into()).unwrap(), payload);
        assert_eq!(encode_spec(&Spec { payload: Some(payload), ..Spec::default() }), None);
    }

    #[test]
    fn a_life_survives_its_round_trip() {
        assert_eq!(encode_history(&JobHistory::new(1), None), None);
        let group = GroupName::stored("g");
        let spec = Spec { lease: Some(Duration::from_secs(3)), group, ..Spec::default() };
        let own = NextGenerationSpec {
            keep: RetentionRule::Record(Duration::from_secs(9)),
            bytes: 8,
            spec,
            has_payload: true,
        };
        let (due, expire, created) = (Time(1), Some(Time(2)), Time(3));
        let next = NextGeneration { priority: 9, due, expire, created, replacement: Some(own) };
        let same = NextGeneration { replacement: None, ..next.clone() };
        let life = JobHistory {
            generation: 4,
            failures: 1,
            deliveries: 2,
            crashes: 3,
            first_start: Some(Time(5)),
            worker: "w".into(),
            last_error: "e".into(),
            progress: "p".into(),
            checkpoint: 7,
            lease_ends: LeaseEndHistory(vec![(Token(u64::MAX), 4), (Token(1), 10)]),
            attempts: vec![3, 300],
        };
        for next in [None, Some(next), Some(same)] {
            let stored = encode_history(&life, next.as_ref()).unwrap();
            assert_eq!(decode_history(Some(&stored)), (life.clone(), next));
        }
        assert_eq!(decode_history(Some(b"\xff")), (JobHistory::new(1), None), "damaged");
    }

    #[test]
    fn fields_of_a_tombstone_begin_with_their_keys() {
        let first_byte = |life| i64::from(encode_history(&life, None).unwrap()[0]);
        let none = JobHistory::new(1);
        let deliveries = JobHistory { deliveries: 1, ..none.clone() };
        let worker = JobHistory { worker: "w".into(), ..none.clone() };
        let ends = JobHistory { lease_ends: LeaseEndHistory(vec![(Token(1), 1)]), ..none };
        assert_eq!(first_byte(deliveries), life_key::DELIVERIES);
        assert_eq!(first_byte(worker), life_key::WORKER);
        assert_eq!(first_byte(ends), life_key::ENDS);
    }

    /// Attempts are stored newest first, up to the limit, for any number of new ones.
    #[test]
    fn attempts_are_put_in_front() {
        let attempt = |number| Attempt {
            number,
            start_time: Time(i64::from(number) << 20),
            finish_time: Time(2),
            worker_id: "w".into(),
            outcome: AttemptOutcome::Released,
            error: "x".repeat(number as usize * 9),
        };
        let (mut blob, mut lengths) = (Vec::new(), Vec::new());
        let mut change = |cleared, numbers: &[u32]| {
            let added = numbers.iter().rev().map(|&number| attempt(number)).collect();
            let splice = encode_attempts(&AttemptsChange { cleared, added }, &mut lengths)?;
            blob = [&splice.front[..], &blob[..splice.kept]].concat();
            let read = decode_attempts(Some(&blob)).unwrap();
            assert_eq!(lengths.iter().sum::<u32>() as usize, blob.len());
            let numbers: Vec<_> = read.iter().map(|read| read.number).collect();
            let whole = numbers.iter().map(|&number| attempt(number)).eq(read);
            Some((numbers, whole))
        };
        assert_eq!(change(false, &[]), None);
        assert_eq!(change(false, &[1]), Some((vec![1], true)));
        assert_eq!(change(false, &[2, 3]), Some((vec![3, 2, 1], true)));
        let many: Vec<_> = (4..=11).collect();
        assert_eq!(change(false, &many), Some(((2..=11).rev().collect(), true)));
        let more: Vec<_> = (12..=30).collect();
        assert_eq!(change(false, &more), Some(((21..=30).rev().collect(), true)));
        assert_eq!(change(true, &[31]), Some((vec![31], true)));
        assert_eq!(change(true, &[]), Some((vec![], true)));
    }

    #[test]
    fn what_is_kept_survives_its_round_trip() {
        let day = Duration::from_secs(86_400);
        for kept in
            [RetentionRule::Nothing, RetentionRule::Record(day), RetentionRule::Tombstone(day)]
        {
            assert_eq!(retention_from_code(retention_code(kept)), kept);
        }
        let nothing = Duration::ZERO;
        assert_ne!(
            retention_code(RetentionRule::Record(nothing)),
            0,
            "a record for no time is a record"
        );
        assert_ne!(retention_code(RetentionRule::Tombstone(nothing)), 0);
    }

    /// Frozen: the format of version 0.1 must be readable for ever.
    #[test]
    fn the_first_format_is_still_read() {
        let blob = Bytes::from_static(b"\x08\x01\x12\x04body");
        let payload = decode_payload(blob.clone()).unwrap();
        assert!(payload.text);
        assert_eq!(payload.body, "body");
        assert_eq!(encode_payload(&payload), blob);
        let blob = b"\x0a\x06\x0a\x01k\x12\x01v\x12\x02\x08\x06";
        assert_eq!(decode_spec(Some(b"\xff")), Spec::default(), "damaged");
        let terms = decode_spec(Some(blob));
        assert_eq!(terms.headers, [("k".to_owned(), "v".to_owned())]);
        assert_eq!(terms.retry.as_ref().unwrap().max_attempts, Some(3));
        assert_eq!(encode_spec(&terms).as_deref(), Some(&blob[..]));
    }
}
