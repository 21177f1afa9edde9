//! Gauges that are read from the shards when somebody asks for the metrics.

use std::sync::Arc;

use crate::dispatch::Dispatcher;
use crate::http::Refresh;
use crate::metrics::{TOPICS_MAX, TopicGauges};
use crate::scheduler::{Scheduler, TopicRow};

/// What brings the gauges up to date before a scrape.
pub(super) fn refresh(scheduler: Scheduler, dispatcher: Dispatcher) -> Refresh {
    Arc::new(move || {
        let (scheduler, dispatcher) = (scheduler.clone(), dispatcher.clone());
        Box::pin(async move {
            let metrics = scheduler.metrics();
            metrics.set_streams(dispatcher.streams_count());
            metrics.set_credit_waiting(dispatcher.credit_waiting());
            for shard in scheduler.shards().all() {
                metrics.shard(shard.name().as_str()).set_up(shard.answers().await);
            }
            match scheduler.topics("", None, TOPICS_MAX).await {
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
