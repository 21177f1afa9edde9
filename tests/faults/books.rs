//! The server's own numbers: what is left, and whether they fit what the checker counted. And what lies
//! in Redis when nothing is left, by the schema that the store documents.

use ringq::pb::topic_service_client::TopicServiceClient;
use ringq::pb::{GetTopicStatsRequest, TopicStats};
use tonic::Code;

use crate::checker::Verdict;
use crate::harness::{Redis, Server};
use crate::load::TOPICS;

/// The sums over all topics and shards.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Books {
    /// Jobs that have not ended.
    pub(crate) left: i64,
    pub(crate) dead: i64,
    pub(crate) enqueued: i64,
    pub(crate) succeeded: i64,
    pub(crate) ended_dead: i64,
}

impl Books {
    /// Asks a replica; none while it cannot speak for all shards.
    pub(crate) async fn read(replica: &Server) -> Option<Books> {
        let mut topics =
            TopicServiceClient::connect(format!("http://{}", replica.grpc)).await.ok()?;
        let mut books = Books::default();
        for name in TOPICS {
            let request = GetTopicStatsRequest { name: name.to_owned() };
            match topics.get_topic_stats(request).await {
                Ok(response) => books.add(&response.into_inner().stats?)?,
                Err(status) if status.code() == Code::NotFound => {}
                Err(_) => return None,
            }
        }
        Some(books)
    }

    fn add(&mut self, stats: &TopicStats) -> Option<()> {
        if !stats.unreachable_shards.is_empty() {
            return None;
        }
        self.left += stats.scheduled + stats.ready + stats.running + stats.backoff;
        self.dead += stats.dead;
        self.enqueued += stats.enqueued_total;
        self.succeeded += stats.succeeded_total;
        self.ended_dead += stats.dead_total;
        Some(())
    }

    /// What does not fit; empty: all fits. Every job that was written has been delivered, because
    /// nothing is left: so the two sides count the same jobs, but for those that a shard may have held back.
    pub(crate) fn misfits(&self, verdict: &Verdict) -> Vec<String> {
        let is = |count: usize| i64::try_from(count).unwrap();
        let pairs = [
            ("jobs are left", self.left, 0, 0),
            ("jobs were enqueued", self.enqueued, is(verdict.exist), is(verdict.doubtful)),
            ("jobs ended", self.succeeded + self.ended_dead, self.enqueued, 0),
            ("are dead letters", self.dead, is(verdict.buried), is(verdict.doubtful)),
            ("became dead letters", self.ended_dead, is(verdict.buried), is(verdict.doubtful)),
        ];
        let differs =
            pairs.iter().filter(|(_, found, due, doubt)| !(due - doubt..=*due).contains(found));
        differs.map(|(what, found, due, _)| format!("{found} {what}, not {due}")).collect()
    }
}

/// What should not lie in the Redis of a shard on which all jobs have ended, by the schema that the store documents:
/// whatever waits or runs, a record that no order of the finished names, a part without its record.
pub(crate) async fn leftovers(shard: &str, redis: &Redis) -> Vec<String> {
    let eval = ["EVAL", LEFTOVERS, "1", &format!("ringq:{{{shard}}}:")];
    let found = redis.command(&eval).await;
    assert!(!found.starts_with('-'), "{found}");
    found.lines().map(|line| format!("{shard}: {line}")).collect()
}

/// In one step, because tombstones are pruned meanwhile.
const LEFTOVERS: &str = include_str!("leftovers.lua");
