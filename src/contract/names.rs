//! Topics, ids and request ids.

use crate::domain::{GroupName, JobId, JobKey, TopicName, TopicPattern, limit};

use super::{Checks, FieldPath};

/// Reads the name of a topic.
pub(crate) fn topic(checks: &mut Checks, path: FieldPath<'_>, name: &str) -> Option<TopicName> {
    checks.check(path, TopicName::try_new(name))
}

/// Reads the group of a job; empty: none.
pub(crate) fn group(checks: &mut Checks, path: FieldPath<'_>, group: &str) -> Option<GroupName> {
    if group.is_empty() { None } else { checks.check(path, GroupName::try_new(group)) }
}

/// Reads a topic by its name, or all topics by a prefix and a final `*`.
pub(crate) fn topic_pattern(
    checks: &mut Checks,
    path: FieldPath<'_>,
    pattern: &str,
) -> Option<TopicPattern> {
    checks.check(path, TopicPattern::parse(pattern))
}

/// Reads the id of a job that may exist, of any kind.
pub(crate) fn id(checks: &mut Checks, path: FieldPath<'_>, id: &str) -> Option<JobId> {
    checks.check(path, JobId::try_new(id))
}

/// Reads the id under which a call writes a job: one of the client's choice, one that a server made, or one derived
/// from the request id of this call.
pub(crate) fn new_id(
    checks: &mut Checks,
    path: FieldPath<'_>,
    id: &str,
    request_id: Option<&str>,
) -> Option<JobId> {
    let id = self::id(checks, path, id)?;
    if let Some(its) = id.request_id()
        && request_id != Some(its)
    {
        let text =
            format!("follows from the request_id {its:?}: send it with that request_id only");
        checks.invalid(path, text);
        return None;
    }
    Some(id)
}

/// Reads a request id, which is optional; its characters are those of an id.
pub(crate) fn request_id<'a>(
    checks: &mut Checks,
    path: FieldPath<'_>,
    request_id: &'a str,
) -> Option<&'a str> {
    const MAX: usize = limit::REQUEST_ID_BYTES_MAX;
    if request_id.is_empty() {
        return None;
    }
    if request_id.len() > MAX {
        checks.invalid(path, format!("must have at most {MAX} bytes"));
        return None;
    }
    checks.check(path, JobId::try_chosen(request_id)).map(|_| request_id)
}

/// Reads the job in the fields `topic` and `id`.
pub(crate) fn key(checks: &mut Checks, topic_name: &str, job_id: &str) -> Option<JobKey> {
    let topic = topic(checks, FieldPath::ROOT.field("topic"), topic_name);
    let id = id(checks, FieldPath::ROOT.field("id"), job_id);
    topic.zip(id).map(|(topic, id)| JobKey { topic, id })
}

#[cfg(test)]
mod tests {
    use super::super::tests::noted;
    use super::*;

    #[test]
    fn both_names_of_a_key_are_checked() {
        let invalid = |field: &str| (field.to_owned(), "INVALID_FIELD");
        let cases = [
            (("t", "i"), vec![]),
            (("t", "s0~00000000000000000000000000"), vec![]),
            (("", "i"), vec![invalid("topic")]),
            (("t", ""), vec![invalid("id")]),
            (("ringq.x", "a b"), vec![invalid("topic"), invalid("id")]),
            (("t", "s0~short"), vec![invalid("id")]),
        ];
        for ((topic, id), expected) in cases {
            assert_eq!(noted(|checks| _ = key(checks, topic, id)), expected, "{topic} {id}");
        }
    }

    #[test]
    fn request_ids_are_short_ids() {
        let cases = [
            ("", true),
            ("0198c5d2-7f0e-7c3a-b1f4-1d2e3f405060", true),
            (&*"r".repeat(64), true),
            (&*"r".repeat(65), false),
            ("a b", false),
            ("a~b", false),
        ];
        for (value, good) in cases {
            let found = noted(|checks| {
                request_id(checks, FieldPath::ROOT.field("request_id"), value);
            });
            assert_eq!(found.is_empty(), good, "{value}");
        }
    }

    #[test]
    fn an_id_of_a_request_is_written_with_its_request_id_alone() {
        let cases = [
            ("mine", None, true),
            ("mine", Some("x"), true),
            ("s0~00000000000000000000000000", None, true),
            ("r=x", Some("x"), true),
            ("r=x=7", Some("x"), true),
            ("r=x", None, false),
            ("r=x", Some("y"), false),
            ("r=x=7", Some("x=7"), false),
            ("r=x:7", Some("x"), false),
        ];
        for (id, request_id, good) in cases {
            let found = noted(|checks| {
                new_id(checks, FieldPath::ROOT.field("id"), id, request_id);
            });
            assert_eq!(found.is_empty(), good, "{id} {request_id:?}");
        }
    }
}
