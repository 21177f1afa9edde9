//! Check for topics that do not exist: they may be mistyped, or the worker is early.

use std::time::Duration;

use futures::future::join_all;
use tokio::time::timeout;

use super::super::exit::print_note;
use crate::client::Client;
use crate::pb::{GetTopicRequest, ListTopicsRequest};

/// Timeout of the check: a note must not delay the worker.
const CHECK_TIMEOUT: Duration = Duration::from_secs(2);

/// Prints a note of the topics that do not exist. A failed call prints nothing.
pub(super) async fn warn_missing_topics(client: &Client, topics: &[String]) {
    let lines = join_all(topics.iter().map(|topic| missing_topic_warning(client, topic)));
    let lines = timeout(CHECK_TIMEOUT, lines).await.unwrap_or_default();
    lines.iter().flatten().for_each(|line| print_note(line));
}

/// Returns the note about a topic that does not exist.
async fn missing_topic_warning(client: &Client, topic: &str) -> Option<String> {
    let mut topics = client.topics();
    if let Some(prefix) = topic.strip_suffix('*') {
        let request =
            ListTopicsRequest { page_size: 1, prefix: prefix.into(), ..Default::default() };
        let page = topics.list_topics(request).await.ok()?.into_inner();
        let none = page.topics.is_empty();
        return none
            .then(|| format!("ringq: no topic matches {topic} yet; waiting for the first one"));
    }
    let error = topics.get_topic(GetTopicRequest { name: topic.into() }).await.err()?;
    let none = crate::client::Error::from(error).reason() == "TOPIC_NOT_FOUND";
    none.then(|| format!("ringq: topic {topic} does not exist yet; waiting for its first job"))
}
