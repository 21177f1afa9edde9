//! `ringq shard`: the shards, their health, and which of them take new jobs.

mod list;
mod set;
pub(super) mod view;
mod wait;

use clap::Subcommand;

use super::exit::Failure;
use super::{connect, exit, info, output, text, times, values};

/// What about shards.
#[derive(Debug, Subcommand)]
pub(super) enum Shard {
    /// List the shards with their health and what lies on them
    #[command(visible_alias = "ls")]
    List(list::List),
    /// Let a shard become empty: it takes no new jobs, what lies on it is served
    Drain(set::Drain),
    /// Let a shard take new jobs again
    Activate(set::Activate),
}

// === impl Shard ===

impl Shard {
    pub(super) fn run(&self) -> Result<(), Failure> {
        match self {
            Shard::List(list) => connect::run(list.run()),
            // It looks after signals itself while it waits.
            Shard::Drain(drain) if drain.waits() => connect::block_on(drain.run()),
            Shard::Drain(drain) => connect::run(drain.run()),
            Shard::Activate(activate) => connect::run(activate.run()),
        }
    }
}
