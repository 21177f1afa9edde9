//! Topics as operators see them.

use std::collections::{HashMap, HashSet};

use crate::dispatch::WorkerInfo;
use crate::documents::DocumentView;
use crate::domain::{Time, TopicName, TopicPattern};
use crate::pb;
use crate::scheduler::TopicRow;
use crate::store;

use super::number::{to_int32, to_int64};
use super::time::to_duration;
use super::worker::subscribes_to;
use super::{Checks, FieldPath, InvalidRequest, names, topic_policy};

/// Number of streams that subscribe to each topic, by the topics with which they were opened.
#[derive(Default)]
pub(crate) struct StreamCounts {
    /// Number of streams with names of topics only, per topic.
    exact: HashMap<TopicName, usize>,
    /// Subscriptions of the other streams.
    globs: Vec<Vec<TopicPattern>>,
}

// === impl StreamCounts ===

impl StreamCounts {
    /// Counts the streams of these workers.
    pub(crate) fn of(workers: Vec<WorkerInfo>) -> StreamCounts {
        let mut streams = StreamCounts::default();
        for WorkerInfo { topics, .. } in workers {
            match distinct_names(&topics) {
                None => streams.globs.push(topics),
                Some(names) => {
                    names.into_iter().for_each(|name| *streams.exact.entry(name).or_default() += 1);
                }
            }
        }
        streams
    }

    /// Returns the number of streams that subscribe to `topic`.
    fn for_topic(&self, topic: &TopicName) -> usize {
        let globs = self.globs.iter().filter(|topics| subscribes_to(topics, topic)).count();
        globs + self.exact.get(topic).copied().unwrap_or(0)
    }
}

/// Returns the topics by name, each once, or `None` if there is a glob among them.
fn distinct_names(topics: &[TopicPattern]) -> Option<HashSet<TopicName>> {
    let name = |topic: &TopicPattern| match topic {
        TopicPattern::Exact(name) => Some(name.clone()),
        TopicPattern::Prefix(_) => None,
    };
    topics.iter().map(name).collect()
}

/// Reads a GetTopic request.
pub(crate) fn get_topic(request: &pb::GetTopicRequest) -> Result<TopicName, InvalidRequest> {
    let pb::GetTopicRequest { name } = request;
    named(name)
}

/// Reads a GetTopicStats request.
pub(crate) fn get_topic_stats(
    request: &pb::GetTopicStatsRequest,
) -> Result<TopicName, InvalidRequest> {
    let pb::GetTopicStatsRequest { name } = request;
    named(name)
}

fn named(name: &str) -> Result<TopicName, InvalidRequest> {
    let mut checks = Checks::default();
    let topic = names::topic(&mut checks, FieldPath::ROOT.field("name"), name);
    checks.finish(topic)
}

/// Converts the statistics of a topic.
pub(crate) fn to_topic_stats(row: TopicRow, streams: &StreamCounts) -> pb::TopicStats {
    let (stats, rate) = (row.stats, |index: usize| row.rates.map(|rates| rates[index]));
    pb::TopicStats {
        scheduled: to_int64(stats.scheduled),
        ready: to_int64(stats.ready),
        running: to_int64(stats.running),
        backoff: to_int64(stats.backoff),
        dead: to_int64(stats.dead),
        oldest_ready_age: stats.oldest_ready.map(to_duration),
        enqueue_rate: rate(0),
        finish_rate: rate(1),
        fail_rate: rate(2),
        streams: to_int32(streams.for_topic(&row.topic.name)),
        unreachable_shards: row.unreachable,
        enqueued_total: to_int64(stats.enqueued_total),
        succeeded_total: to_int64(stats.succeeded_total),
        dead_total: to_int64(stats.dead_total),
    }
}

/// Converts a topic with the policies that are known at `now`.
pub(crate) fn to_topic(topic: &store::TopicInfo, documents: &DocumentView, now: Time) -> pb::Topic {
    topic_policy::to_topic(&topic.name, topic.create_time, documents, now)
}

/// Converts a row of a list of topics.
pub(crate) fn to_topic_summary(
    row: TopicRow,
    streams: &StreamCounts,
    documents: &DocumentView,
    now: Time,
) -> pb::TopicSummary {
    let topic = Some(to_topic(&row.topic, documents, now));
    pb::TopicSummary { topic, stats: Some(to_topic_stats(row, streams)) }
}

#[cfg(test)]
mod tests {
    use super::super::tests::refused;
    use super::super::worker::tests::worker;
    use super::*;

    #[test]
    fn a_stream_counts_once_for_each_topic_it_asks_for() {
        let workers = [&["a", "a"][..], &["a", "b.*"], &["*"], &["b.c", "b.*"]];
        let streams = StreamCounts::of(workers.into_iter().map(worker).collect());
        let counts =
            ["a", "b.c", "b", "z"].map(|topic| streams.for_topic(&TopicName::stored(topic)));
        assert_eq!(counts, [3, 3, 1, 1]);
    }

    #[test]
    fn a_topic_is_asked_for_by_its_name() {
        let request = |name: &str| pb::GetTopicRequest { name: name.to_owned() };
        assert_eq!(get_topic(&request("a")), Ok(TopicName::stored("a")));
        let invalid = [("name".to_owned(), "INVALID_FIELD")];
        assert_eq!(refused(get_topic(&request("a b"))), invalid);
        let request = pb::GetTopicStatsRequest { name: String::new() };
        assert_eq!(refused(get_topic_stats(&request)), invalid);
    }
}
