//! Batches of the SDK: sizes and times from the variables of OpenTelemetry, within bounds. The SDK takes any number: a
//! queue that is too large ends the process, and a delay of 0 keeps a CPU busy.

use std::ops::RangeInclusive;
use std::time::Duration;

use opentelemetry_sdk::{logs, trace};

use super::signals::OtelVariables;

/// Maximum time for the last exports at the end of the process, all at once: its supervisor waits for it, and so does the next
/// server.
pub(super) const SHUTDOWN_MAX: Duration = Duration::from_secs(5);
/// Bounds of the number of spans or records in a queue or a batch.
const SIZES: RangeInclusive<u64> = 1..=1_000_000;
/// Bounds of a time in milliseconds: up to an hour.
const MILLIS: RangeInclusive<u64> = 1..=3_600_000;
/// Variables that are whole numbers, with their bounds.
pub(super) const NUMBERS: [(&str, RangeInclusive<u64>); 10] = [
    ("OTEL_BSP_SCHEDULE_DELAY", MILLIS),
    ("OTEL_BSP_EXPORT_TIMEOUT", MILLIS),
    ("OTEL_BSP_MAX_QUEUE_SIZE", SIZES),
    ("OTEL_BSP_MAX_EXPORT_BATCH_SIZE", SIZES),
    ("OTEL_BLRP_SCHEDULE_DELAY", MILLIS),
    ("OTEL_BLRP_EXPORT_TIMEOUT", MILLIS),
    ("OTEL_BLRP_MAX_QUEUE_SIZE", SIZES),
    ("OTEL_BLRP_MAX_EXPORT_BATCH_SIZE", SIZES),
    ("OTEL_METRIC_EXPORT_INTERVAL", MILLIS),
    ("OTEL_SPAN_ATTRIBUTE_COUNT_LIMIT", 0..=1_000_000),
];

/// Returns the number in a variable, if it has a valid one.
pub(super) fn number(variables: &OtelVariables, name: &str) -> Option<u64> {
    let bounds = NUMBERS.iter().find(|(known, _)| *known == name).map(|(_, bounds)| bounds)?;
    variables.get(name)?.parse().ok().filter(|number| bounds.contains(number))
}

/// Returns the sizes of batches of spans. What has no valid variable has the default of the specification.
pub(super) fn spans(variables: &OtelVariables) -> trace::BatchConfig {
    let (size, millis) = (size(variables, "BSP"), millis(variables, "BSP"));
    trace::BatchConfigBuilder::default()
        .with_max_queue_size(size("MAX_QUEUE_SIZE", 2_048))
        .with_max_export_batch_size(size("MAX_EXPORT_BATCH_SIZE", 512))
        .with_scheduled_delay(millis("SCHEDULE_DELAY", 5_000))
        .build()
}

/// Returns the sizes of batches of log records, likewise.
pub(super) fn records(variables: &OtelVariables) -> logs::BatchConfig {
    let (size, millis) = (size(variables, "BLRP"), millis(variables, "BLRP"));
    logs::BatchConfigBuilder::default()
        .with_max_queue_size(size("MAX_QUEUE_SIZE", 2_048))
        .with_max_export_batch_size(size("MAX_EXPORT_BATCH_SIZE", 512))
        .with_scheduled_delay(millis("SCHEDULE_DELAY", 1_000))
        .build()
}

fn size(variables: &OtelVariables, prefix: &str) -> impl Fn(&str, usize) -> usize {
    move |name, default| {
        let found = number(variables, &format!("OTEL_{prefix}_{name}"));
        found.and_then(|number| number.try_into().ok()).unwrap_or(default)
    }
}

fn millis(variables: &OtelVariables, prefix: &str) -> impl Fn(&str, u64) -> Duration {
    move |name, default| {
        let found = number(variables, &format!("OTEL_{prefix}_{name}"));
        Duration::from_millis(found.unwrap_or(default))
    }
}
