//! The server's own statistics: the jobs that are left, and whether the numbers match the checker's. And the
//! remaining data in Redis or in a SQLite file when nothing should be left, by the documented schema of the store.

use std::path::Path;
use std::time::Duration;

use ringq::pb::admin_service_client::AdminServiceClient;
use ringq::pb::topic_service_client::TopicServiceClient;
use ringq::pb::{GetTopicStatsRequest, JobState, ListJobsRequest, TopicStats};
use rusqlite::{Connection, OpenFlags};
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
    /// Asks a replica; `None` while it cannot answer for all shards.
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

    /// Lists the numbers that do not match; empty: all match. Every written job has been delivered, because nothing
    /// is left: so both sides count the same jobs, except for those that a shard may have held back.
    pub(crate) fn misfits(&self, verdict: &Verdict) -> Vec<String> {
        let is = |count: usize| i64::try_from(count).unwrap();
        // Some jobs were ended by an ack or by their deletion, and no answer shows by which.
        let cancelled = self.enqueued - self.succeeded - self.ended_dead;
        let (least, most) = (is(verdict.cancelled), is(verdict.cancelled + verdict.either));
        let doubt = is(verdict.doubtful.len());
        let pairs = [
            ("jobs are left", self.left, 0, 0),
            ("jobs were enqueued", self.enqueued, is(verdict.exist), doubt),
            ("jobs were cancelled", cancelled, most, most - least + doubt),
            ("are dead letters", self.dead, is(verdict.buried), doubt),
            ("became dead letters", self.ended_dead, is(verdict.buried), doubt),
        ];
        let lines = pairs.map(|(what, found, due, doubt)| {
            let nearest = found.clamp(due - doubt, due);
            (found != nearest).then(|| format!("{found} {what}, not {nearest}"))
        });
        lines.into_iter().flatten().collect()
    }
}

/// Reads the ids of all dead letters; `None` while a replica cannot answer for all shards.
pub(crate) async fn dead_letters(replica: &Server) -> Option<Vec<String>> {
    let mut admin = AdminServiceClient::connect(format!("http://{}", replica.grpc)).await.ok()?;
    let mut ids = Vec::new();
    for topic in TOPICS {
        let mut page_token = String::new();
        loop {
            let (topic, state) = (topic.to_owned(), JobState::Dead.into());
            let page_size = 1000;
            let request =
                ListJobsRequest { topic, state, page_size, page_token, ..Default::default() };
            let page = admin.list_jobs(request).await.ok()?.into_inner();
            if !page.unreachable_shards.is_empty() {
                return None;
            }
            ids.extend(page.jobs.into_iter().filter_map(|job| job.spec).map(|spec| spec.id));
            page_token = page.next_page_token;
            if page_token.is_empty() {
                break;
            }
        }
    }
    Some(ids)
}

/// Lists data that should not be in the Redis of a shard on which all jobs have ended, by the documented schema of
/// the store: anything that waits or runs, a record in no order of finished jobs, a part without its record.
pub(crate) async fn leftovers(shard: &str, redis: &Redis) -> Vec<String> {
    let eval = ["EVAL", LEFTOVERS, "1", &format!("ringq:{{{shard}}}:")];
    let found = redis.command(&eval).await;
    assert!(!found.starts_with('-'), "{found}");
    found.lines().map(|line| format!("{shard}: {line}")).collect()
}

/// In one step, because tombstones are pruned meanwhile.
const LEFTOVERS: &str = include_str!("leftovers.lua");

/// Lists the same for a SQLite file, which a server may have open.
pub(crate) fn leftovers_in(file: &Path) -> Vec<String> {
    let connection = Connection::open_with_flags(file, OpenFlags::SQLITE_OPEN_READ_ONLY).unwrap();
    connection.busy_timeout(Duration::from_secs(5)).unwrap();
    let mut statement = connection.prepare(LEFTOVERS_SQL).unwrap();
    let lines = statement.query_map([], |row| row.get::<_, String>(0)).unwrap();
    let shard = file.file_stem().unwrap_or_default().display();
    lines.map(|line| format!("{shard}: {}", line.unwrap())).collect()
}

/// A single statement, for the same reason.
const LEFTOVERS_SQL: &str = include_str!("leftovers.sql");
