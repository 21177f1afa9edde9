//! The stored form of what a store keeps as a blob: Protocol Buffers messages of our own, apart from
//! the wire contract, so that either can change without the other. A field is never renumbered;
//! a reader ignores fields that it does not know.

use std::time::Duration;

use bytes::Bytes;
use prost::Message;

use crate::domain::{Attempt, AttemptOutcome, Keep, Payload, RetryOverrides, Spec, Time};

/// What is read with the job's row, apart from the payload: small, and empty for most jobs.
#[derive(Clone, PartialEq, Message)]
struct StoredTerms {
    #[prost(message, repeated, tag = "1")]
    headers: Vec<StoredHeader>,
    #[prost(message, optional, tag = "2")]
    retry: Option<StoredRetry>,
}

#[derive(Clone, PartialEq, Message)]
struct StoredPayload {
    #[prost(bool, tag = "1")]
    text: bool,
    #[prost(bytes = "bytes", tag = "2")]
    body: Bytes,
    #[prost(string, tag = "3")]
    content_type: String,
}

#[derive(Clone, PartialEq, Message)]
struct StoredHeader {
    #[prost(string, tag = "1")]
    name: String,
    #[prost(string, tag = "2")]
    value: String,
}

/// What deciding about a lease needs, small and apart from the body.
#[derive(Clone, PartialEq, Message)]
struct StoredRetry {
    #[prost(sint32, optional, tag = "1")]
    max_attempts: Option<i32>,
    #[prost(uint64, repeated, tag = "2")]
    delays_us: Vec<u64>,
    #[prost(uint64, optional, tag = "3")]
    initial_delay_us: Option<u64>,
    #[prost(double, optional, tag = "4")]
    multiplier: Option<f64>,
    #[prost(uint64, optional, tag = "5")]
    max_delay_us: Option<u64>,
    #[prost(double, optional, tag = "6")]
    jitter: Option<f64>,
    #[prost(uint64, optional, tag = "7")]
    max_retry_duration_us: Option<u64>,
    #[prost(bool, optional, tag = "8")]
    ignore_expired_leases: Option<bool>,
    #[prost(sint32, optional, tag = "9")]
    max_deliveries: Option<i32>,
}

#[derive(Clone, PartialEq, Message)]
struct StoredHistory {
    #[prost(message, repeated, tag = "1")]
    attempts: Vec<StoredAttempt>,
}

#[derive(Clone, PartialEq, Message)]
struct StoredAttempt {
    #[prost(uint32, tag = "1")]
    number: u32,
    #[prost(int64, tag = "2")]
    start_us: i64,
    #[prost(int64, tag = "3")]
    finish_us: i64,
    #[prost(string, tag = "4")]
    worker_id: String,
    #[prost(uint32, tag = "5")]
    outcome: u32,
    #[prost(string, tag = "6")]
    error: String,
}

/// What cannot be read back.
#[derive(Debug, thiserror::Error)]
#[error("a stored {what} cannot be decoded: {source}")]
pub struct Undecodable {
    what: &'static str,
    source: prost::DecodeError,
}

/// The terms of a job as bytes: what of its spec no store looks into. `None` when there are none, which is the usual
/// case. Payload, lease and retention are fields of the stores' own.
pub fn encode_terms(spec: &Spec) -> Option<Vec<u8>> {
    let Spec { headers, payload: _, lease: _, retention: _, retry } = spec;
    let header = |(name, value): &(String, String)| StoredHeader {
        name: name.clone(),
        value: value.clone(),
    };
    let stored = StoredTerms {
        headers: headers.iter().map(header).collect(),
        retry: (*retry != RetryOverrides::default()).then(|| stored_retry(retry)),
    };
    (stored != StoredTerms::default()).then(|| stored.encode_to_vec())
}

/// The terms from bytes, in an otherwise empty spec. Damaged ones read as none: a job that waits by the server's own
/// policy is better than a topic that stands still behind it.
pub fn decode_terms(blob: Option<&[u8]>) -> Spec {
    let Some(blob) = blob else { return Spec::default() };
    let stored = decode::<StoredTerms>("terms", blob).unwrap_or_else(|error| {
        tracing::error!(%error, "a job's headers and retry policy are damaged");
        StoredTerms::default()
    });
    Spec {
        headers: stored.headers.into_iter().map(|h| (h.name, h.value)).collect(),
        payload: None,
        lease: None,
        retention: None,
        retry: stored.retry.map(retry).unwrap_or_default(),
    }
}

/// A payload as bytes.
pub fn encode_payload(payload: &Payload) -> Vec<u8> {
    stored_payload(payload).encode_to_vec()
}

/// A payload from bytes.
pub fn decode_payload(blob: Bytes) -> Result<Payload, Undecodable> {
    decode::<StoredPayload>("payload", blob).map(payload)
}

/// Attempts as bytes.
pub fn encode_history(attempts: &[Attempt]) -> Vec<u8> {
    let stored = attempts.iter().map(|attempt| StoredAttempt {
        number: attempt.number,
        start_us: attempt.start_time.0,
        finish_us: attempt.finish_time.0,
        worker_id: attempt.worker_id.clone(),
        outcome: outcome_code(attempt.outcome),
        error: attempt.error.clone(),
    });
    StoredHistory { attempts: stored.collect() }.encode_to_vec()
}

/// Attempts from bytes.
pub fn decode_history(blob: Option<&[u8]>) -> Result<Vec<Attempt>, Undecodable> {
    let Some(blob) = blob else { return Ok(Vec::new()) };
    let stored = decode::<StoredHistory>("history", blob)?;
    let attempt = |stored: StoredAttempt| Attempt {
        number: stored.number,
        start_time: Time(stored.start_us),
        finish_time: Time(stored.finish_us),
        worker_id: stored.worker_id,
        outcome: outcome(stored.outcome),
        error: stored.error,
    };
    Ok(stored.attempts.into_iter().map(attempt).collect())
}

/// The stored number of an outcome. Part of what recognizes the repeat of a settle: each way to settle has its own.
pub(super) const fn outcome_code(outcome: AttemptOutcome) -> u32 {
    match outcome {
        AttemptOutcome::Succeeded => 1,
        AttemptOutcome::Failed => 2,
        AttemptOutcome::LeaseExpired => 3,
        AttemptOutcome::Released => 4,
        AttemptOutcome::Revoked => 5,
    }
}

/// An outcome from its stored number.
pub(super) fn outcome(code: u32) -> AttemptOutcome {
    match code {
        1 => AttemptOutcome::Succeeded,
        3 => AttemptOutcome::LeaseExpired,
        4 => AttemptOutcome::Released,
        5 => AttemptOutcome::Revoked,
        _ => AttemptOutcome::Failed,
    }
}

/// The stored number of the way in which a lease ended, by which a repeat of its settle is recognized.
pub(super) fn settled_code(outcome: AttemptOutcome, dead_lettered: bool) -> u32 {
    // Above every code of an outcome.
    const DEAD_LETTERED: u32 = 8;
    outcome_code(outcome) + if dead_lettered { DEAD_LETTERED } else { 0 }
}

/// The stored number of what is kept, in microseconds: positive for a record, negative for a tombstone.
pub(super) fn keep_code(keep: Keep) -> i64 {
    let micros = |duration| i64::try_from(micros(duration)).unwrap_or(i64::MAX).max(1);
    match keep {
        Keep::Nothing => 0,
        Keep::Record(duration) => micros(duration),
        Keep::Tombstone(duration) => -micros(duration),
    }
}

/// What is kept, from its stored number.
pub(super) fn keep(code: i64) -> Keep {
    let duration = Duration::from_micros(code.unsigned_abs());
    match code {
        0 => Keep::Nothing,
        1.. => Keep::Record(duration),
        _ => Keep::Tombstone(duration),
    }
}

/// Whole microseconds, as every store counts, rounded up: no wait is ever cut.
pub(super) fn micros(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos().div_ceil(1_000)).unwrap_or(u64::MAX)
}

fn stored_retry(retry: &RetryOverrides) -> StoredRetry {
    StoredRetry {
        max_attempts: retry.max_attempts,
        delays_us: retry.delays.iter().map(|&d| micros(d)).collect(),
        initial_delay_us: retry.initial_delay.map(micros),
        multiplier: retry.multiplier,
        max_delay_us: retry.max_delay.map(micros),
        jitter: retry.jitter,
        max_retry_duration_us: retry.max_retry_duration.map(micros),
        ignore_expired_leases: retry.ignore_expired_leases,
        max_deliveries: retry.max_deliveries,
    }
}

fn retry(stored: StoredRetry) -> RetryOverrides {
    RetryOverrides {
        max_attempts: stored.max_attempts,
        delays: stored.delays_us.into_iter().map(Duration::from_micros).collect(),
        initial_delay: stored.initial_delay_us.map(Duration::from_micros),
        multiplier: stored.multiplier,
        max_delay: stored.max_delay_us.map(Duration::from_micros),
        jitter: stored.jitter,
        max_retry_duration: stored.max_retry_duration_us.map(Duration::from_micros),
        ignore_expired_leases: stored.ignore_expired_leases,
        max_deliveries: stored.max_deliveries,
    }
}

fn stored_payload(payload: &Payload) -> StoredPayload {
    StoredPayload {
        text: payload.text,
        body: payload.body.clone(),
        content_type: payload.content_type.clone(),
    }
}

fn payload(stored: StoredPayload) -> Payload {
    Payload { text: stored.text, body: stored.body, content_type: stored.content_type }
}

fn decode<M: Message + Default>(
    what: &'static str,
    blob: impl bytes::Buf,
) -> Result<M, Undecodable> {
    M::decode(blob).map_err(|source| Undecodable { what, source })
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;
    use crate::domain::RetryPolicy;
    use crate::domain::lifecycle::{Cause, Standing, lease_end};

    #[test]
    fn each_outcome_is_read_as_it_was_written() {
        use AttemptOutcome::{Failed, LeaseExpired, Released, Revoked, Succeeded};
        let all = [Succeeded, Failed, LeaseExpired, Released, Revoked];
        // One that is not above does not compile here.
        let known = |outcome| match outcome {
            Succeeded | Failed | LeaseExpired | Released | Revoked => all.contains(&outcome),
        };
        for stored in all {
            assert!(known(stored));
            assert_eq!(outcome(outcome_code(stored)), stored);
        }
    }

    /// Else the repeat of one way to settle would pass for another one.
    #[test]
    fn what_a_worker_can_ask_for_is_told_apart() {
        let (delay, error) = (None, String::new());
        let asked = [
            Cause::Failed { delay, error: error.clone() },
            Cause::Released { delay, error: error.clone() },
            Cause::DeadLettered { error },
        ];
        // One that is new does not compile here: if workers can ask for it, it belongs above.
        let _all = |cause: &Cause| match cause {
            Cause::Failed { .. } | Cause::Released { .. } | Cause::DeadLettered { .. } => (),
            Cause::Expired | Cause::Broken | Cause::Unserved => (),
        };
        let standing = Standing {
            failures: 0,
            deliveries: 0,
            first_start: Time(0),
            retry: RetryOverrides::default(),
        };
        let acked = settled_code(AttemptOutcome::Succeeded, false);
        let refused = asked.map(|cause| {
            let end = lease_end(cause, &standing, &RetryPolicy::default(), Time(0), 0.0);
            settled_code(end.outcome, end.dead_lettered)
        });
        let codes: BTreeSet<_> = refused.into_iter().chain([acked]).collect();
        assert_eq!(codes.len(), 4, "{codes:?}");
    }

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
        };
        let headers = vec![("a".into(), "1".into()), ("b".into(), String::new())];
        // One that is new does not compile here. Those that are none have fields of their own in the stores.
        let (headers_, retry_) = (headers.clone(), retry.clone());
        let (payload_, lease, retention) = (None, None, None);
        let spec = Spec { payload: payload_, headers: headers_, retry: retry_, lease, retention };
        let alone = [
            Spec { headers, ..Spec::default() },
            Spec { retry, ..Spec::default() },
            Spec::default(),
        ];
        for spec in alone.into_iter().chain([spec]) {
            assert_eq!(decode_terms(encode_terms(&spec).as_deref()), spec);
        }
        assert_eq!(decode_payload(encode_payload(&payload).into()).unwrap(), payload);
        assert_eq!(encode_terms(&Spec { payload: Some(payload), ..Spec::default() }), None);
    }

    #[test]
    fn what_is_kept_survives_its_round_trip() {
        let day = Duration::from_secs(86_400);
        for kept in [Keep::Nothing, Keep::Record(day), Keep::Tombstone(day)] {
            assert_eq!(keep(keep_code(kept)), kept);
        }
        let nothing = Duration::ZERO;
        assert_ne!(keep_code(Keep::Record(nothing)), 0, "a record for no time is a record");
        assert_ne!(keep_code(Keep::Tombstone(nothing)), 0);
    }

    /// Frozen: what version 0.1 wrote must be readable for ever.
    #[test]
    fn the_first_format_is_still_read() {
        let blob = Bytes::from_static(b"\x08\x01\x12\x04body");
        let payload = decode_payload(blob.clone()).unwrap();
        assert!(payload.text);
        assert_eq!(payload.body, "body");
        assert_eq!(encode_payload(&payload), blob);
        let blob = b"\x0a\x06\x0a\x01k\x12\x01v\x12\x02\x08\x06";
        assert_eq!(decode_terms(Some(b"\xff")), Spec::default(), "damaged");
        let terms = decode_terms(Some(blob));
        assert_eq!(terms.headers, [("k".to_owned(), "v".to_owned())]);
        assert_eq!(terms.retry.max_attempts, Some(3));
        assert_eq!(encode_terms(&terms).as_deref(), Some(&blob[..]));
    }
}
