//! Checks of refusals: a code, a stable reason and, where there is one, the field at fault.

use tonic::{Code, Status};
use tonic_types::StatusExt as _;

/// Checks that `status` is this refusal; `field` is empty when no field is at fault.
#[track_caller]
pub(crate) fn assert_refused(status: &Status, code: Code, reason: &str, field: &str) {
    let expected = refusal_of(code, reason, &[field]);
    assert_eq!(refusal(status), expected, "{}", status.message());
}

/// Returns whether this is the error of a shard whose file is locked by another process: on a busy machine the server
/// may give up waiting for SQLite before SQLite gives up waiting for the lock.
pub(crate) fn names_lock(why: &str) -> bool {
    why.contains("locked") || why.contains("no answer within")
}

/// Formats a refusal as one line: code, reason and fields. Panics on a malformed refusal.
pub(crate) fn refusal(status: &Status) -> String {
    let info = status.get_details_error_info();
    let reason = info.as_ref().map_or("(no ErrorInfo)", |info| info.reason.as_str());
    if let Some(info) = &info {
        assert_eq!(info.domain, "ringq.dev", "{}", status.message());
    }
    assert!(!status.message().is_empty(), "a refusal without a message: {status:?}");
    let bad = status.get_details_bad_request();
    let violations = bad.iter().flat_map(|bad| &bad.field_violations);
    let fields: Vec<&str> = violations.map(|violation| violation.field.as_str()).collect();
    refusal_of(status.code(), reason, &fields)
}

fn refusal_of(code: Code, reason: &str, fields: &[&str]) -> String {
    format!("{code:?} {reason} {}", fields.join(",")).trim_end().to_owned()
}
