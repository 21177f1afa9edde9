//! Topics that the server does not know: somebody may have mistyped one, or be early.

use std::time::Duration;

use futures::future::join_all;
use tokio::time::timeout;

use super::super::exit::print_note;
use crate::client::Client;
use crate::pb::{GetTopicRequest, ListTopicsRequest};

/// It is only a note: nobody waits long for it.
const CHECK_TIMEOUT: Duration = Duration::from_secs(2);

/// Says which of these are not there. Who may not ask, or gets no answer, is told nothing.
pub(super) async fn warn_missing_topics(client: &Client, topics: &[String]) {
    let lines = join_all(topics.iter().map(|topic| missing_topic_warning(client, topic)));
    let lines = timeout(CHECK_TIMEOUT, lines).await.unwrap_or_default();
    lines.iter().flatten().for_each(|line| print_note(line));
}

/// What is to be said of a topic that is not there.
async fn missing_topic_warning(client: &Client, topic: &str) -> Option<String> {
    let mut topics = client.topics();
    if let Some(prefix) = topic.strip_suffix('*') {
        let request =
            ListTopicsRequest { page_size: 1, prefix: prefix.into(), ..Default::default() };
        let page = topics.list_topics(request).await.ok()?.into_inner();
        let none = page.topics.is_empty();
        return none
            .then(|| format!("ringq: no topic matches {topic} yet; jobs come when there is one"));
    }
    let error = topics.get_topic(GetTopicRequest { name: topic.into() }).await.err()?;
    let none = crate::client::Error::from(error).reason() == "TOPIC_NOT_FOUND";
    none.then(|| format!("ringq: no topic {topic} yet; its jobs come when it has some"))
}
