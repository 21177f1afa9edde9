//! Streams and waiting pulls that ask for a topic, and whether they could take a job of it: for operators who ask why a
//! job waits.

use crate::dispatch::TopicStream;
use crate::domain::TopicName;

use super::ledger::StreamMode;
use super::registry::StreamRegistry;
use super::stream::Stream;

/// Returns the streams and pulls that take jobs and ask for `topic`. `bytes`: size of the job that is to fit.
pub(in crate::dispatch) fn topic_streams(
    registry: &StreamRegistry,
    topic: &TopicName,
    bytes: u64,
) -> Vec<TopicStream> {
    registry.all().iter().filter_map(|stream| topic_stream(stream, topic, bytes)).collect()
}

fn topic_stream(stream: &Stream, topic: &TopicName, bytes: u64) -> Option<TopicStream> {
    let options = stream.options();
    if !options.topics.iter().any(|pattern| pattern.matches(topic)) {
        return None;
    }
    Some(TopicStream {
        credit: stream.ledger().credit_for(topic, bytes)?,
        topics: options.topics.clone(),
        is_pull: stream.mode() == StreamMode::Pull,
        max_in_flight: options.max_in_flight,
    })
}
