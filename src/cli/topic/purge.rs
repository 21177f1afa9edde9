//! `ringq topic purge`: removes the jobs of a topic that are in given states.

use clap::Args;

use super::super::exit::CommandFailure;
use super::super::purge::{PurgeArgs, PurgedPart};
use super::super::values;

/// Arguments of `ringq topic purge`.
#[derive(Debug, Args)]
#[command(after_help = "\
Jobs that wait or run turn CANCELLED, and workers receive a revocation; ended ones, dead letters too, are removed at \
once. Jobs enqueued after the command began stay. On a terminal the command counts the jobs and asks; elsewhere it \
needs --yes. A call that ran out of time has removed a part: the same command again goes on with the rest. The same \
holds for jobs on a shard that did not answer; the exit code is then 4.

Examples:
  ringq topic purge emails --state dead --dry-run
  ringq topic purge emails --state dead
  ringq topic purge emails --state ready,scheduled,backoff --yes --timeout 5m
  ringq topic purge emails --state dead --yes -o json | jq -r .purgedCount")]
pub(in crate::cli) struct TopicPurgeArgs {
    /// The topic
    #[arg(value_parser = values::non_empty)]
    topic: String,
    #[command(flatten)]
    purge: PurgeArgs,
}

// === impl TopicPurgeArgs ===

impl TopicPurgeArgs {
    pub(super) async fn run(&self) -> Result<(), CommandFailure> {
        self.purge.run(&PurgedPart { topic: &self.topic, group: None }).await
    }
}
