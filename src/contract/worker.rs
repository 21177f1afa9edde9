//! Workers as operators see them.

use crate::dispatch::WorkerInfo;
use crate::domain::{TopicName, TopicPattern};
use crate::pb;

use super::number::to_int32;
use super::time::to_timestamp;
use super::{Checks, FieldPath, InvalidRequest, names};

/// Reads a ListWorkers request: the topic; `None` means all workers.
pub(crate) fn list_workers(
    request: &pb::ListWorkersRequest,
) -> Result<Option<TopicName>, InvalidRequest> {
    let pb::ListWorkersRequest { topic } = request;
    if topic.is_empty() {
        return Ok(None);
    }
    let mut checks = Checks::default();
    let topic = names::topic(&mut checks, FieldPath::ROOT.field("topic"), topic);
    checks.finish(topic.map(Some))
}

/// Returns whether a subscription to `topics` includes `topic`.
pub(crate) fn subscribes_to(topics: &[TopicPattern], topic: &TopicName) -> bool {
    topics.iter().any(|asked| asked.matches(topic))
}

/// Converts a worker of the replica of that name.
pub(crate) fn to_worker(worker: WorkerInfo, replica: &str) -> pb::Worker {
    pb::Worker {
        worker_id: worker.worker_id,
        stream_id: worker.stream_id,
        replica: replica.to_owned(),
        peer: worker.peer,
        topics: worker.topics.iter().map(ToString::to_string).collect(),
        max_in_flight: to_int32(worker.max_in_flight),
        in_flight: to_int32(worker.in_flight),
        connect_time: Some(to_timestamp(worker.connect_time)),
        user_agent: worker.user_agent,
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::super::tests::refused;
    use super::*;
    use crate::domain::Time;

    /// Returns a worker that subscribes to these topics.
    pub(crate) fn worker(topics: &[&str]) -> WorkerInfo {
        let mut checks = Checks::default();
        let pattern = |topic: &&str| names::topic_pattern(&mut checks, FieldPath::ROOT, topic);
        WorkerInfo {
            worker_id: String::new(),
            stream_id: "1".into(),
            peer: String::new(),
            user_agent: String::new(),
            topics: topics.iter().filter_map(pattern).collect(),
            max_in_flight: 16,
            in_flight: 0,
            connect_time: Time(0),
        }
    }

    #[test]
    fn worker_lists_topics_as_requested() {
        let topics = ["a", "b.*", "*"];
        assert_eq!(to_worker(worker(&topics), "r").topics, topics);
    }

    #[test]
    fn without_a_topic_all_workers_are_meant() {
        let list = |topic: &str| list_workers(&pb::ListWorkersRequest { topic: topic.to_owned() });
        assert_eq!(list(""), Ok(None));
        assert_eq!(list("a"), Ok(Some(TopicName::stored("a"))));
        assert_eq!(refused(list("a.*")), [("topic".to_owned(), "INVALID_FIELD")]);
    }
}
