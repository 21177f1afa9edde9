//! Topics, ids and request ids.

use crate::dispatch::TopicPattern;
use crate::domain::{JobId, JobKey, TopicName, limit};

use super::{Checks, Path};

/// A topic that the client names.
pub(in crate::grpc) fn topic(checks: &mut Checks, path: Path<'_>, name: &str) -> Option<TopicName> {
    checks.take(path, TopicName::try_new(name))
}

/// A topic by its name, or all topics by a prefix and a final `*`.
pub(in crate::grpc) fn topic_pattern(
    checks: &mut Checks,
    path: Path<'_>,
    pattern: &str,
) -> Option<TopicPattern> {
    match pattern.strip_suffix('*') {
        None => topic(checks, path, pattern).map(TopicPattern::Exact),
        Some("") => Some(TopicPattern::Prefix(String::new())),
        // What a name begins with is a name, too.
        Some(prefix) => {
            topic(checks, path, prefix).map(|_| TopicPattern::Prefix(prefix.to_owned()))
        }
    }
}

/// An id that the client names: its own, or one that a server made.
pub(in crate::grpc) fn id(checks: &mut Checks, path: Path<'_>, id: &str) -> Option<JobId> {
    checks.take(path, JobId::try_new(id))
}

/// A request id, which is optional; its characters are those of an id.
pub(in crate::grpc) fn request_id<'a>(
    checks: &mut Checks,
    path: Path<'_>,
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
    checks.take(path, JobId::try_chosen(request_id)).map(|_| request_id)
}

/// The id that follows from a request id: alone, or with the job's index in its batch.
pub(in crate::grpc) fn id_of_request(request_id: &str, index: Option<usize>) -> JobId {
    // Its parts were checked, and the longest of them together stay below the limit of an id.
    match index {
        None => JobId::stored(&format!("r:{request_id}")),
        Some(index) => JobId::stored(&format!("r:{request_id}:{index}")),
    }
}

/// The job that a request names by its fields `topic` and `id`.
pub(in crate::grpc) fn key(checks: &mut Checks, topic_name: &str, job_id: &str) -> Option<JobKey> {
    let topic = topic(checks, Path::ROOT.field("topic"), topic_name);
    let id = id(checks, Path::ROOT.field("id"), job_id);
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
                request_id(checks, Path::ROOT.field("request_id"), value);
            });
            assert_eq!(found.is_empty(), good, "{value}");
        }
    }

    #[test]
    fn ids_of_requests_are_ids() {
        let longest = "r".repeat(limit::REQUEST_ID_BYTES_MAX);
        for index in [None, Some(0), Some(999)] {
            let id = id_of_request(&longest, index);
            assert_eq!(JobId::try_chosen(id.as_str()), Ok(id.clone()));
        }
        assert_eq!(id_of_request("x", None).as_str(), "r:x");
        assert_eq!(id_of_request("x", Some(7)).as_str(), "r:x:7");
    }
}
