//! Gauges that are read from the shards when somebody asks for the metrics.

use std::sync::Arc;
use std::time::Duration;

use futures::future::join_all;

use crate::dispatch::Dispatcher;
use crate::http::Refresh;
use crate::metrics::{TOPICS_MAX, TopicGauges};
use crate::scheduler::{Scheduler, TopicRow};
use crate::shards::Shard;

/// How long a scrape waits for shards to say that they are up.
const LOOK_MAX: Duration = Duration::from_millis(500);

/// What brings the gauges up to date before a scrape.
pub(super) fn refresh(scheduler: Scheduler, dispatcher: Dispatcher) -> Refresh {
    Arc::new(move || {
        let (scheduler, dispatcher) = (scheduler.clone(), dispatcher.clone());
        Box::pin(async move {
            let metrics = scheduler.metrics();
            metrics.set_streams(dispatcher.streams_count());
            metrics.set_credit_waiting(dispatcher.credit_waiting());
            let look = async |shard: &Shard| {
                shard.metrics().set_refuses_jobs(shard.refuses_jobs().is_some());
                shard.metrics().set_up(shard.answers().await);
            };
            let looks = join_all(scheduler.shards().all().iter().map(look));
            // One that takes longer counts as down when its call has failed.
            let looks = tokio::time::timeout(LOOK_MAX, looks);
            let topics = scheduler.topics("", None, TOPICS_MAX);
            match tokio::join!(looks, topics).1 {
                Ok(rows) => set_topics(&scheduler, &rows),
                Err(error) => tracing::debug!(%error, "the topics could not be counted"),
            }
        })
    })
}

fn set_topics(scheduler: &Scheduler, rows: &[TopicRow]) {
    let jobs: Vec<_> = rows
        .iter()
        .map(|row| {
            let stats = &row.stats;
            [
                ("scheduled", stats.scheduled),
                ("ready", stats.ready),
                ("running", stats.running),
                ("backoff", stats.backoff),
                ("dead", stats.dead),
            ]
        })
        .collect();
    let gauges: Vec<_> = rows
        .iter()
        .zip(&jobs)
        .map(|(row, jobs)| TopicGauges {
            topic: row.topic.name.as_str(),
            jobs,
            oldest_ready_age: row.stats.oldest_ready,
        })
        .collect();
    scheduler.metrics().set_topics(&gauges);
}
