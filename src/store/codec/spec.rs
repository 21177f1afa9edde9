//! Stored form of a job's specification.

use std::time::Duration;

use prost::Message as _;

use crate::domain::{CrashTopic, GroupName, RetryOverrides, Spec};

use super::{decode, micros, stored};

/// Encodes headers, group, retention and retry overrides of a spec. `None`: all are absent, which is the usual case.
/// Stores keep payload and lease in fields of their own.
pub fn encode_spec(spec: &Spec) -> Option<Vec<u8>> {
    encode(to_stored(spec))
}

/// Encodes a spec as [`encode_spec`] does, for a store that keeps the group in a field of its own, too.
pub fn encode_spec_without_group(spec: &Spec) -> Option<Vec<u8>> {
    encode(stored::Spec { group: String::new(), ..to_stored(spec) })
}

fn encode(stored: stored::Spec) -> Option<Vec<u8>> {
    (stored != stored::Spec::default()).then(|| stored.encode_to_vec())
}

/// Decodes a spec, without the fields that stores keep themselves. A damaged one reads as empty: a job under the
/// server's own policy is better than a topic that is blocked by it.
pub fn decode_spec(blob: Option<&[u8]>) -> Spec {
    let Some(blob) = blob else { return Spec::default() };
    let stored = decode::<stored::Spec>("spec", blob).unwrap_or_else(|error| {
        tracing::error!(%error, "stored headers and retry policy of a job are damaged; ignored");
        stored::Spec::default()
    });
    from_stored(stored)
}

pub(super) fn to_stored(spec: &Spec) -> stored::Spec {
    let Spec { headers, payload: _, lease: _, group, retention, retry } = spec;
    let header = |(name, value): &(String, String)| stored::Header {
        name: name.clone(),
        value: value.clone(),
    };
    stored::Spec {
        headers: headers.iter().map(header).collect(),
        retry: retry.as_deref().map(retry_to_stored),
        retention_us: retention.map(micros),
        group: GroupName::text(group.as_ref()).to_owned(),
    }
}

pub(super) fn from_stored(stored: stored::Spec) -> Spec {
    Spec {
        headers: stored.headers.into_iter().map(|h| (h.name, h.value)).collect(),
        payload: None,
        lease: None,
        group: GroupName::stored(&stored.group),
        retention: stored.retention_us.map(Duration::from_micros),
        retry: stored.retry.map(|retry| Box::new(retry_from(retry))),
    }
}

pub(super) fn retry_to_stored(retry: &RetryOverrides) -> stored::Retry {
    stored::Retry {
        max_attempts: retry.max_attempts,
        delays_us: retry.delays.iter().map(|&d| micros(d)).collect(),
        initial_delay_us: retry.initial_delay.map(micros),
        multiplier: retry.multiplier,
        max_delay_us: retry.max_delay.map(micros),
        jitter: retry.jitter,
        max_retry_duration_us: retry.max_retry_duration.map(micros),
        ignore_expired_leases: retry.ignore_expired_leases,
        max_deliveries: retry.max_deliveries,
        max_crashes: retry.max_crashes,
        crash_topic: retry.crash_topic.as_ref().map(|setting| setting.as_str().to_owned()),
    }
}

pub(super) fn retry_from(stored: stored::Retry) -> RetryOverrides {
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
        max_crashes: stored.max_crashes,
        crash_topic: stored.crash_topic.as_deref().map(CrashTopic::stored),
    }
}
