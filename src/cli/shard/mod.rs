//! `ringq shard`: shards, their health, and which of them take new jobs.

mod list;
mod set;
pub(super) mod view;
mod wait;

use clap::Subcommand;

use super::exit::CommandFailure;
use super::{connect, exit, info, output, text, times, values};

/// Subcommands of `ringq shard`.
#[derive(Debug, Subcommand)]
pub(super) enum ShardCommand {
    /// List the shards with their health and their jobs
    #[command(visible_alias = "ls")]
    List(list::ShardListArgs),
    /// Let a shard become empty: it takes no new jobs, its jobs are served
    Drain(set::ShardDrainArgs),
    /// Let a shard take new jobs again
    Activate(set::ShardActivateArgs),
}

// === impl ShardCommand ===

impl ShardCommand {
    pub(super) fn run(&self) -> Result<(), CommandFailure> {
        match self {
            ShardCommand::List(list) => connect::run_until_interrupt(list.run()),
            // Handles signals itself while it waits.
            ShardCommand::Drain(drain) if drain.waits() => connect::block_on(drain.run()),
            ShardCommand::Drain(drain) => connect::run_until_interrupt(drain.run()),
            ShardCommand::Activate(activate) => connect::run_until_interrupt(activate.run()),
        }
    }
}
