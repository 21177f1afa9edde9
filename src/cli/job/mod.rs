//! `ringq job`: look at jobs, move them, remove them.

mod delete;
mod get;
mod list;
mod redrive;
mod reschedule;
mod view;

use std::collections::HashSet;

use clap::Subcommand;

use super::connect::Connection;
use super::exit::{self, Failure};
use super::{connect, info, output, text, times, topic, values};
use crate::pb::GetTopicRequest;

/// What about jobs.
#[derive(Debug, Subcommand)]
pub(super) enum Job {
    /// Print one job in full: payload, attempts, errors
    #[command(visible_alias = "show")]
    Get(get::Get),
    /// List the jobs of a topic
    #[command(visible_alias = "ls")]
    List(list::List),
    /// Remove jobs in any state; a running one is taken from its worker
    #[command(visible_aliases = ["rm", "cancel"])]
    Delete(delete::Delete),
    /// Move a job to another time or priority; a dead one is revived
    Reschedule(reschedule::Reschedule),
    /// Put dead letters back to work, with fresh counters
    Redrive(redrive::Redrive),
}

// === impl Job ===

impl Job {
    pub(super) fn run(self) -> Result<(), Failure> {
        match self {
            Job::Get(get) => connect::run(get.run()),
            Job::List(list) => connect::run(list.run()),
            Job::Delete(delete) => connect::run(delete.run()),
            Job::Reschedule(reschedule) => connect::run(reschedule.run()),
            Job::Redrive(redrive) => connect::run(redrive.run()),
        }
    }
}

/// Ids in their order, each once: a second time it would meet what the first has made of its job.
fn once(ids: &[String]) -> Vec<String> {
    let mut known = HashSet::new();
    ids.iter().filter(|id| known.insert(*id)).cloned().collect()
}

/// What is wrong with a shard; others lie elsewhere.
const OF_A_SHARD: [&str; 2] = ["SHARD_UNAVAILABLE", "OUTCOME_UNKNOWN"];

/// What to do about a job that is not there.
async fn look_around(connection: &Connection, failure: Failure, topic: &str) -> Failure {
    if failure.code() != exit::NOT_FOUND {
        return failure;
    }
    let request = connection.request(GetTopicRequest { name: topic.to_owned() });
    let asked = connection.ask(connection.client().topics().get_topic(request)).await;
    if asked.is_err_and(|error| error.reason() == "TOPIC_NOT_FOUND") {
        let hint =
            format!("there is no topic {topic}: `ringq topic list` names those that are there");
        return failure.hint(hint);
    }
    failure.or_hint(|| format!("`ringq job list {topic}` shows those that are there"))
}
