//! Environment variables that describe the job to its command.

use std::time::Duration;

use jiff::Timestamp;

use super::super::trace_context::CARRIERS;
use crate::client::Delivery;
use crate::clock::Clock;
use crate::pb;

/// Most bytes of a list for a batch. Linux accepts no string of 128 KiB, name included, and all strings together
/// share a quarter of the stack's size.
pub(super) const LIST_BYTES: usize = 64 << 10;

/// Returns the number of bytes that a job adds to the longest of the lists.
pub(super) fn list_bytes(job: &pb::Delivery) -> usize {
    // A number is shorter than a receipt.
    job.id.len().max(job.receipt.len()) + 1
}

/// Builds the variables for these jobs. `batch`: there can be several jobs, so the values are lists.
pub(super) fn variables(
    jobs: &[Delivery],
    batch: bool,
    timeout: Option<Duration>,
) -> Vec<(String, String)> {
    let Some(first) = jobs.first() else { return Vec::new() };
    let deadline = timeout.unwrap_or_else(|| shortest_lease(jobs));
    let own = [
        ("TOPIC", first.topic.clone()),
        ("ID", lines(jobs, |job| job.id.clone())),
        ("ATTEMPT", lines(jobs, |job| job.attempt.to_string())),
        ("DELIVERY", lines(jobs, |job| job.delivery.to_string())),
        ("RECEIPT", lines(jobs, |job| job.receipt.clone())),
        ("DEADLINE", deadline_text(deadline)),
    ];
    let mut variables: Vec<_> =
        own.into_iter().map(|(name, value)| (format!("RINGQ_{name}"), value)).collect();
    if batch {
        variables.push(("RINGQ_BATCH".to_owned(), jobs.len().to_string()));
    } else {
        variables.extend(headers(first));
        variables.extend(trace_context(first));
    }
    variables
}

/// Returns the trace context of a job in the variables that instrumented programs read.
fn trace_context(job: &Delivery) -> impl Iterator<Item = (String, String)> {
    let carried = |(variable, header): (&str, &str)| {
        let value = job.headers.get(header).filter(|value| !value.contains('\0'))?;
        Some((variable.to_owned(), value.clone()))
    };
    CARRIERS.into_iter().filter_map(carried)
}

fn lines(jobs: &[Delivery], value: impl Fn(&Delivery) -> String) -> String {
    jobs.iter().map(value).collect::<Vec<_>>().join("\n")
}

fn shortest_lease(jobs: &[Delivery]) -> Duration {
    let leases = jobs.iter().filter_map(|job| job.lease_duration?.try_into().ok());
    leases.min().unwrap_or_default()
}

/// Returns the headers in order, so that of two names with the same variable the same one always wins.
fn headers(job: &Delivery) -> impl Iterator<Item = (String, String)> {
    let mut headers: Vec<_> = job.headers.iter().collect();
    headers.sort_unstable();
    // A variable cannot contain a NUL.
    headers.into_iter().map(|(name, value)| (header_variable(name), value.replace('\0', "")))
}

/// Returns the variable of a header: `trace-id` is `RINGQ_HEADER_TRACE_ID`.
fn header_variable(header: &str) -> String {
    let allowed = |c: char| c.is_ascii_uppercase() || c.is_ascii_digit();
    let name = header.chars().map(|c| c.to_ascii_uppercase());
    let name: String = name.map(|c| if allowed(c) { c } else { '_' }).collect();
    format!("RINGQ_HEADER_{name}")
}

/// Formats the deadline as RFC 3339, to the millisecond.
fn deadline_text(wait: Duration) -> String {
    let time = Clock::system().now().plus(wait);
    let time = Timestamp::from_millisecond(time.0 / 1000);
    time.map(|time| format!("{time:.3}")).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn headers_become_names_that_a_shell_takes() {
        for (header, name) in [
            ("traceparent", "RINGQ_HEADER_TRACEPARENT"),
            ("x-Trace.id", "RINGQ_HEADER_X_TRACE_ID"),
            ("1st", "RINGQ_HEADER_1ST"),
            ("käse=\n", "RINGQ_HEADER_K_SE__"),
        ] {
            assert_eq!(header_variable(header), name);
        }
    }

    #[test]
    fn deadlines_are_rfc_3339() {
        let text = deadline_text(Duration::from_secs(3600));
        let time: Timestamp = text.parse().unwrap();
        assert!(text.ends_with('Z') && text.len() == "2027-01-31T09:00:00.000Z".len(), "{text}");
        let wait = time.as_microsecond() - Clock::system().now().0;
        assert!((3_590_000_000..=3_600_000_000).contains(&wait), "{wait}");
    }
}
