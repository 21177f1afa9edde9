//! `ringq shard`: the shards and their health.

use clap::{Args, Subcommand};

use super::connect::{self, Connect};
use super::exit::{self, Failure, complain};
use super::info::word;
use super::output::{JsonList, Out, OutputArgs, Table, shorten};
use crate::pb::{self, ListShardsRequest, ShardState};

/// Characters of an error in a column.
const ERROR_CHARS: usize = 60;

/// What about shards.
#[derive(Debug, Subcommand)]
pub(super) enum Shard {
    /// List the shards with their health
    #[command(visible_alias = "ls")]
    List(List),
}

/// How to print.
#[derive(Debug, Args)]
#[command(
    after_help = "Example:\n  ringq shard list\n\nExit code 4 if one of them does not answer."
)]
pub(super) struct List {
    #[command(flatten)]
    output: OutputArgs,
    #[command(flatten)]
    connect: Connect,
}

// === impl Shard ===

impl Shard {
    pub(super) fn run(&self) -> Result<(), Failure> {
        match self {
            Shard::List(list) => connect::run(list.run()),
        }
    }
}

// === impl List ===

impl List {
    async fn run(&self) -> Result<(), Failure> {
        let connection = self.connect.connection()?;
        let request = connection.request(ListShardsRequest {});
        let mut admin = connection.client().admin();
        let answer = connection.call("cannot list the shards", admin.list_shards(request)).await?;
        let mut out = Out::new();
        if self.output.is_json() {
            let mut list = JsonList::new();
            answer.shards.iter().try_for_each(|shard| list.row(&mut out, shard))?;
            list.end(&mut out)?;
        } else {
            table(&answer.shards).print(&mut out)?;
        }
        match answer.shards.iter().filter(|shard| !answers(shard)).count() {
            0 => Ok(()),
            count => {
                complain(&format!("{count} of {} shards do not answer", answer.shards.len()));
                Err(Failure::told(exit::UNAVAILABLE))
            }
        }
    }
}

fn answers(shard: &pb::Shard) -> bool {
    shard.state() != ShardState::Unreachable
}

fn table(shards: &[pb::Shard]) -> Table {
    let mut table =
        Table::new(["NAME", "STATE", "WEIGHT", "JOBS", "SIZE", "ADDRESS", "LAST ERROR"]);
    for shard in shards {
        table.row([
            shard.name.clone(),
            word(shard.state().as_str_name(), "SHARD_STATE_").to_owned(),
            shard.weight.to_string(),
            shard.jobs.to_string(),
            bytes(shard.used_memory_bytes),
            shard.address.clone(),
            shorten(&shard.last_error, ERROR_CHARS),
        ]);
    }
    table
}

/// `3.4 MiB`.
fn bytes(bytes: i64) -> String {
    indicatif::BinaryBytes(u64::try_from(bytes).unwrap_or(0)).to_string()
}
