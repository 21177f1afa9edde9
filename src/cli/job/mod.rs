//! `ringq job`: shows, explains, moves and deletes jobs.

mod delete;
mod explain;
mod get;
mod list;
mod redrive;
mod reschedule;
mod view;

use std::collections::HashSet;

use clap::Subcommand;

use super::connect::ServerConnection;
use super::exit::{self, CommandFailure};
use super::{connect, info, job_state, output, text, times, values};
use crate::pb::GetTopicRequest;

/// Subcommands of `ringq job`.
#[derive(Debug, Subcommand)]
pub(super) enum JobCommand {
    /// Print one job in full: payload, attempts, errors
    #[command(visible_alias = "show")]
    Get(get::JobGetArgs),
    /// Print why a job does not run, and what to do about it
    #[command(visible_alias = "why")]
    Explain(explain::JobExplainArgs),
    /// List the jobs of a topic
    #[command(visible_alias = "ls")]
    List(list::JobListArgs),
    /// Cancel a waiting or running job; remove a finished one
    #[command(visible_aliases = ["rm", "cancel"])]
    Delete(delete::JobDeleteArgs),
    /// Move a job to another time or priority; a dead one is revived
    Reschedule(reschedule::JobRescheduleArgs),
    /// Put dead letters back to work, with fresh counters
    Redrive(redrive::RedriveArgs),
}

// === impl JobCommand ===

impl JobCommand {
    pub(super) fn run(self) -> Result<(), CommandFailure> {
        match self {
            JobCommand::Get(get) => connect::run_until_interrupt(get.run()),
            JobCommand::Explain(explain) => connect::run_until_interrupt(explain.run()),
            JobCommand::List(list) => connect::run_until_interrupt(list.run()),
            JobCommand::Delete(delete) => connect::run_until_interrupt(delete.run()),
            JobCommand::Reschedule(reschedule) => connect::run_until_interrupt(reschedule.run()),
            JobCommand::Redrive(redrive) => connect::run_until_interrupt(redrive.run()),
        }
    }
}

/// Returns the ids in their order, each once: a repeated id would see the result of the first call.
fn dedup_ids(ids: &[String]) -> Vec<String> {
    let mut known = HashSet::new();
    ids.iter().filter(|id| known.insert(*id)).cloned().collect()
}

/// Errors of a shard; jobs on other shards are not concerned.
const SHARD_REASONS: [&str; 2] = ["SHARD_UNAVAILABLE", "OUTCOME_UNKNOWN"];

/// Adds a hint to the error of a missing job.
async fn add_not_found_hint(
    connection: &ServerConnection,
    failure: CommandFailure,
    topic: &str,
) -> CommandFailure {
    if failure.code() != exit::NOT_FOUND {
        return failure;
    }
    let request = connection.request(GetTopicRequest { name: topic.to_owned() });
    let asked = connection.try_call(connection.client().topics().get_topic(request)).await;
    if asked.is_err_and(|error| error.reason() == "TOPIC_NOT_FOUND") {
        let hint =
            format!("there is no topic {topic}: `ringq topic list` prints the existing topics");
        return failure.with_hint(hint);
    }
    failure.with_default_hint(|| format!("`ringq job list {topic}` prints the existing jobs"))
}
