//! Limits of topics on the jobs that enter them.

use crate::documents::{DocumentView, Documents};
use crate::scheduler::{AckItem, Draft};

use super::{Checks, FieldPath, InvalidRequest};

/// Checks the job at this path of a request against the limits of its topic.
///
/// # Errors
/// TOO_LARGE.
pub(crate) fn check_job(
    documents: &Documents,
    path: FieldPath<'_>,
    draft: &Draft,
) -> Result<(), InvalidRequest> {
    match documents.any() {
        Some(view) => check(&view, path, draft),
        None => Ok(()),
    }
}

/// Checks the follow-ups of acks.
///
/// # Errors
/// As of [`check_job`], of the first follow-up that is refused: nothing of the call is applied.
pub(crate) fn check_follow_ups(
    documents: &Documents,
    items: &[AckItem],
) -> Result<(), InvalidRequest> {
    let Some(view) = documents.any() else { return Ok(()) };
    let path = FieldPath::ROOT.field("items.enqueue");
    let mut follow_ups = items.iter().flat_map(|item| &item.follow_ups);
    follow_ups.try_for_each(|draft| check(&view, path, draft))
}

fn check(view: &DocumentView, path: FieldPath<'_>, draft: &Draft) -> Result<(), InvalidRequest> {
    let max = view.settings(&draft.topic).and_then(|settings| settings.max_payload_bytes);
    let bytes = draft.spec.payload.as_ref().map_or(0, |payload| payload.body.len());
    let mut checks = Checks::default();
    if let Some(max) = max.filter(|max| bytes > *max as usize) {
        let topic = &draft.topic;
        let text =
            format!("must have at most {max} bytes, the limit of topic {topic}, not {bytes}");
        checks.too_large(path.field("payload"), text);
    }
    checks.finish(Some(()))
}
