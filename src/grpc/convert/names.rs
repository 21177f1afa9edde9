//! Topics, ids and request ids.

use crate::domain::{JobId, JobKey, TopicName, limit};

use super::{Checks, Invalid, Path};

/// A topic that the client names.
pub(in crate::grpc) fn topic(checks: &mut Checks, path: Path<'_>, name: &str) -> Option<TopicName> {
    checks.take(path, TopicName::try_new(name))
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

/// A request that names one job.
pub(in crate::grpc) fn key(topic_name: &str, job_id: &str) -> Result<JobKey, Invalid> {
    let mut checks = Checks::default();
    let key = key_in(&mut checks, topic_name, job_id);
    checks.finish(key)
}

/// The job that a request names, beside what else is in it.
pub(in crate::grpc) fn key_in(
    checks: &mut Checks,
    topic_name: &str,
    job_id: &str,
) -> Option<JobKey> {
    let topic = topic(checks, Path::ROOT.field("topic"), topic_name);
    let id = id(checks, Path::ROOT.field("id"), job_id);
    topic.zip(id).map(|(topic, id)| JobKey { topic, id })
}

/// A request that names one topic by its `name`.
pub(in crate::grpc) fn topic_name(name: &str) -> Result<TopicName, Invalid> {
    let mut checks = Checks::default();
    let topic = topic(&mut checks, Path::ROOT.field("name"), name);
    checks.finish(topic)
}

#[cfg(test)]
mod tests {
    use super::super::tests::{noted, refused};
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
            assert_eq!(refused(key(topic, id)), expected, "{topic} {id}");
        }
        assert_eq!(refused(topic_name("a b")), [invalid("name")]);
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
