//! The server's own numbers: what is left, and whether they fit what the checker counted. And what lies
//! in Redis when nothing is left, by the schema that the store documents.

use ringq::pb::topic_service_client::TopicServiceClient;
use ringq::pb::{GetTopicStatsRequest, TopicStats};
use tonic::Code;

use crate::checker::Verdict;
use crate::harness::{Redis, Server};
use crate::load::TOPICS;

/// The sums over all topics and shards.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Books {
    /// Jobs that have not ended.
    pub(crate) left: i64,
    dead: i64,
    enqueued: i64,
    succeeded: i64,
    ended_dead: i64,
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
    /// nothing is left: so the two sides count the same jobs.
    pub(crate) fn misfits(&self, verdict: &Verdict) -> Vec<String> {
        let is = |count: usize| i64::try_from(count).unwrap();
        let pairs = [
            ("jobs are left", self.left, 0),
            ("jobs were enqueued", self.enqueued, is(verdict.exist)),
            ("jobs ended", self.succeeded + self.ended_dead, self.enqueued),
            ("are dead letters", self.dead, is(verdict.buried)),
            ("became dead letters", self.ended_dead, is(verdict.buried)),
        ];
        let differs = pairs.into_iter().filter(|(_, found, due)| found != due);
        differs.map(|(what, found, due)| format!("{found} {what}, not {due}")).collect()
    }
}

/// Records of a topic without those that the orders of the finished name; at once, because tombstones are
/// pruned meanwhile.
const UNORDERED: &str = "\
    local left = redis.call('HLEN', KEYS[1])
    for i = 2, #KEYS do left = left - redis.call('ZCARD', KEYS[i]) end
    return left";

/// What should not be in the Redis of a shard on which all jobs have ended: a lease, a place in an
/// order, a record that no order of the finished names.
pub(crate) async fn leftovers(shard: &str, redis: &Redis) -> Vec<String> {
    let count = async |command: &str, key: String| -> i64 {
        number(&redis.command(&[command, &format!("ringq:{{{shard}}}:{key}")]).await)
    };
    let mut found = Vec::new();
    let mut none = |key: String, count: i64| {
        if count != 0 {
            found.push(format!("{shard}: {count} in {key}"));
        }
    };
    for topic in TOPICS {
        let ends = format!("ends:{topic}");
        none(ends.clone(), count("ZCARD", ends).await);
        let leases = format!("leases:{topic}");
        none(leases.clone(), count("HLEN", leases).await);
        for order in ["wait:0", "back:0"] {
            let order = format!("{order}:{topic}");
            none(order.clone(), count("ZCARD", order).await);
        }
        let keys = ["jobs", "done:2", "done:3", "done:4", "done:5"];
        let keys = keys.map(|key| format!("ringq:{{{shard}}}:{key}:{topic}"));
        let [jobs, done @ ..] = keys.each_ref().map(String::as_str);
        let [succeeded, dead, expired, cancelled] = done;
        let eval = ["EVAL", UNORDERED, "5", jobs, succeeded, dead, expired, cancelled];
        none(format!("jobs:{topic} that are in no order"), number(&redis.command(&eval).await));
    }
    found
}

fn number(answer: &str) -> i64 {
    answer.strip_prefix(':').and_then(|count| count.parse().ok()).expect("a number")
}
