//! Limits of topics on the jobs that enter them.

use crate::contract::reason::Reason;
use crate::contract::{InvalidRequest, Violation};
use crate::policies::{Policies, PolicyView};
use crate::scheduler::{AckItem, Draft};

use super::status::RpcError;

/// Checks a job against the limits of its topic.
///
/// # Errors
/// INVALID_ARGUMENT TOO_LARGE, with the path of the field in the job.
pub(super) fn check_job(policies: &Policies, draft: &Draft) -> Result<(), InvalidRequest> {
    match policies.any() {
        Some(view) => check(&view, draft),
        None => Ok(()),
    }
}

/// Checks the follow-ups of acks.
///
/// # Errors
/// As of [`check_job`], of the first follow-up that is refused: nothing of the call is applied.
pub(super) fn check_follow_ups(policies: &Policies, items: &[AckItem]) -> Result<(), RpcError> {
    let Some(view) = policies.any() else { return Ok(()) };
    let mut follow_ups = items.iter().flat_map(|item| &item.follow_ups);
    let checked = follow_ups.try_for_each(|draft| check(&view, draft));
    checked.map_err(|invalid| RpcError::from(invalid).in_field("items.enqueue"))
}

fn check(view: &PolicyView, draft: &Draft) -> Result<(), InvalidRequest> {
    let max = view.settings(&draft.topic).and_then(|settings| settings.max_payload_bytes);
    let bytes = draft.spec.payload.as_ref().map_or(0, |payload| payload.body.len());
    match max {
        Some(max) if bytes > max as usize => {
            let text = format!(
                "must have at most {max} bytes, the limit of topic {}, not {bytes}",
                draft.topic
            );
            let (field, reason) = ("payload".to_owned(), Reason::TooLarge);
            Err(InvalidRequest(vec![Violation { field, reason, text, feature: None }]))
        }
        _ => Ok(()),
    }
}
