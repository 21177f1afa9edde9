//! Explanations of jobs.

use crate::dispatch::TopicStream;
use crate::domain::JobKey;
use crate::domain::explain::{ExplainReason, HeldJobs, StreamFacts};
use crate::pb;

use super::time::to_timestamp;
use super::{Checks, InvalidRequest, names};

/// Reads an ExplainJob request.
pub(crate) fn explain_job(request: &pb::ExplainJobRequest) -> Result<JobKey, InvalidRequest> {
    let mut checks = Checks::default();
    let pb::ExplainJobRequest { topic, id } = request;
    let key = names::key(&mut checks, topic, id);
    checks.finish(key)
}

/// Sums up the streams that ask for a topic. `shows_all`: the caller may see all their topics, else it does not learn
/// how many jobs they hold. `draining`: the server opens no more streams.
pub(crate) fn stream_facts(
    streams: &[TopicStream],
    shows_all: bool,
    draining: bool,
) -> StreamFacts {
    let count = |is: &dyn Fn(&TopicStream) -> bool| streams.iter().filter(|s| is(s)).count();
    let sum = |of: &dyn Fn(&TopicStream) -> u32| streams.iter().map(|s| u64::from(of(s))).sum();
    StreamFacts {
        streams: count(&|stream| !stream.is_pull),
        pulls: count(&|stream| stream.is_pull),
        with_credit: count(&|stream| stream.credit.fits),
        unread: count(&|stream| stream.credit.is_unread),
        held: shows_all.then(|| HeldJobs {
            in_flight: sum(&|stream| stream.credit.in_flight),
            max_in_flight: sum(&|stream| stream.max_in_flight),
            other_topics: sum(&|stream| stream.credit.other_topics),
        }),
        draining,
    }
}

/// Converts a reason.
pub(crate) fn to_reason(reason: ExplainReason) -> pb::Reason {
    pb::Reason {
        code: reason.code.name().to_owned(),
        message: reason.message,
        until_time: reason.until.map(to_timestamp),
        remedy: reason.remedy,
    }
}

/// Returns a job of which only topic and id are known.
pub(crate) fn unknown_job(key: &JobKey) -> pb::Job {
    let (topic, id) = (key.topic.as_str().to_owned(), key.id.as_str().to_owned());
    pb::Job {
        spec: Some(pb::JobSpec { topic, id, ..pb::JobSpec::default() }),
        ..pb::Job::default()
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::refused;
    use super::*;
    use crate::dispatch::TopicCredit;
    use crate::domain::explain::ExplainCode;
    use crate::domain::{JobId, Time, TopicName};

    #[test]
    fn a_job_is_named_by_topic_and_id() {
        let request = |topic: &str, id: &str| pb::ExplainJobRequest {
            topic: topic.to_owned(),
            id: id.to_owned(),
        };
        let key = JobKey { topic: TopicName::stored("t"), id: JobId::stored("a") };
        assert_eq!(explain_job(&request("t", "a")), Ok(key));
        let both = [("topic".to_owned(), "REQUIRED_FIELD"), ("id".to_owned(), "REQUIRED_FIELD")];
        assert_eq!(refused(explain_job(&request("", ""))).len(), both.len());
    }

    #[test]
    fn the_jobs_that_streams_hold_are_shown_only_to_those_who_see_all_their_topics() {
        let credit = |in_flight, other_topics, fits| TopicCredit {
            in_flight,
            other_topics,
            fits,
            is_unread: false,
        };
        let stream =
            |is_pull, credit| TopicStream { topics: Vec::new(), is_pull, max_in_flight: 4, credit };
        let streams = [
            stream(false, credit(4, 3, false)),
            stream(false, credit(1, 0, true)),
            stream(true, credit(0, 0, true)),
        ];
        let held = HeldJobs { in_flight: 5, max_in_flight: 12, other_topics: 3 };
        let facts = stream_facts(&streams, true, false);
        assert_eq!((facts.streams, facts.pulls, facts.with_credit), (2, 1, 2));
        assert_eq!(facts.held, Some(held));
        assert_eq!(stream_facts(&streams, false, false), StreamFacts { held: None, ..facts });
    }

    #[test]
    fn a_reason_keeps_all_its_parts() {
        let reason = ExplainReason {
            code: ExplainCode::NotDue,
            message: "m".into(),
            until: Some(Time(1_000_000)),
            remedy: "r".into(),
        };
        let sent = to_reason(reason);
        assert_eq!((&*sent.code, &*sent.message, &*sent.remedy), ("NOT_DUE", "m", "r"));
        assert_eq!(sent.until_time.map(|time| time.seconds), Some(1));
    }
}
