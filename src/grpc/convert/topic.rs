//! Topics and workers as operators see them.

use std::collections::{HashMap, HashSet};

use crate::dispatch::Worker;
use crate::pb;
use crate::scheduler::TopicRow;
use crate::store;

use super::delivery::int;
use super::time::{to_duration, to_timestamp};

/// How many streams ask for a topic, by what they wrote when they were opened.
#[derive(Default)]
pub(in crate::grpc) struct Streams {
    /// Streams that named topics only, per topic.
    exact: HashMap<String, i32>,
    /// What the other streams wrote.
    globs: Vec<Vec<String>>,
}

// === impl Streams ===

impl Streams {
    /// Counts the streams of these workers.
    pub(in crate::grpc) fn of(workers: Vec<Worker>) -> Streams {
        let mut streams = Streams::default();
        for Worker { topics, .. } in workers {
            if topics.iter().any(|topic| topic.ends_with('*')) {
                streams.globs.push(topics);
                continue;
            }
            for topic in topics.into_iter().collect::<HashSet<_>>() {
                *streams.exact.entry(topic).or_default() += 1;
            }
        }
        streams
    }

    /// Streams that ask for `topic`.
    pub(in crate::grpc) fn for_topic(&self, topic: &str) -> i32 {
        let globs = self.globs.iter().filter(|topics| asks_for(topics, topic)).count();
        let exact = self.exact.get(topic).copied().unwrap_or(0);
        exact.saturating_add(i32::try_from(globs).unwrap_or(i32::MAX))
    }
}

/// Whether a stream that wrote `topics` asks for `topic`.
pub(in crate::grpc) fn asks_for(topics: &[String], topic: &str) -> bool {
    topics.iter().any(|asked| match asked.strip_suffix('*') {
        Some(prefix) => topic.starts_with(prefix),
        None => asked == topic,
    })
}

/// A topic as the contract writes it. It has no settings of its own yet, so none are shown.
pub(in crate::grpc) fn to_topic(topic: &store::Topic) -> pb::Topic {
    let created = to_timestamp(topic.create_time);
    pb::Topic {
        name: topic.name.as_str().to_owned(),
        state: pb::TopicState::Active.into(),
        create_time: Some(created),
        update_time: Some(created),
        ..pb::Topic::default()
    }
}

/// The numbers of a topic as the contract writes them.
pub(in crate::grpc) fn to_stats(row: TopicRow, streams: &Streams) -> pb::TopicStats {
    let (stats, [enqueue_rate, finish_rate, fail_rate]) = (row.stats, row.rates);
    pb::TopicStats {
        scheduled: long(stats.scheduled),
        ready: long(stats.ready),
        running: long(stats.running),
        backoff: long(stats.backoff),
        dead: long(stats.dead),
        oldest_ready_age: stats.oldest_ready.map(to_duration),
        enqueue_rate,
        finish_rate,
        fail_rate,
        streams: streams.for_topic(row.topic.name.as_str()),
        unreachable_shards: row.unreachable,
        enqueued_total: long(stats.enqueued_total),
        succeeded_total: long(stats.succeeded_total),
        dead_total: long(stats.dead_total),
    }
}

/// A row of a list of topics.
pub(in crate::grpc) fn to_summary(row: TopicRow, streams: &Streams) -> pb::TopicSummary {
    let topic = Some(to_topic(&row.topic));
    pb::TopicSummary { topic, stats: Some(to_stats(row, streams)) }
}

/// A worker of the replica of that name.
pub(in crate::grpc) fn to_worker(worker: Worker, replica: &str) -> pb::Worker {
    pb::Worker {
        worker_id: worker.worker_id,
        stream_id: worker.stream_id,
        replica: replica.to_owned(),
        peer: worker.peer,
        topics: worker.topics,
        max_in_flight: int(worker.max_in_flight),
        in_flight: int(worker.in_flight),
        connect_time: Some(to_timestamp(worker.connect_time)),
        user_agent: worker.user_agent,
    }
}

/// A count as the contract writes it.
pub(in crate::grpc) fn long(count: u64) -> i64 {
    i64::try_from(count).unwrap_or(i64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::domain::Time;

    fn worker(topics: &[&str]) -> Worker {
        Worker {
            worker_id: String::new(),
            stream_id: "1".into(),
            peer: String::new(),
            user_agent: String::new(),
            topics: topics.iter().map(|&topic| topic.to_owned()).collect(),
            max_in_flight: 16,
            in_flight: 0,
            connect_time: Time(0),
        }
    }

    #[test]
    fn a_stream_counts_once_for_each_topic_it_asks_for() {
        let workers = [&["a", "a"][..], &["a", "b.*"], &["*"], &["b.c", "b.*"]];
        let streams = Streams::of(workers.into_iter().map(worker).collect());
        let counts = ["a", "b.c", "b", "z"].map(|topic| streams.for_topic(topic));
        assert_eq!(counts, [3, 3, 1, 1]);
    }
}
