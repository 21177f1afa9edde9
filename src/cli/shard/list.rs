//! `ringq shard list`: lists the shards.

use clap::Args;

use super::connect::ConnectArgs;
use super::exit::{self, CommandFailure, print_error};
use super::output::{JsonList, OutputArgs, StdoutWriter, Table};
use super::text::one_line;
use super::times::Now;
use super::view::{is_reachable, last_error, state};
use crate::pb::{self, ListShardsRequest};

/// Arguments of `ringq shard list`.
#[derive(Debug, Args)]
#[command(after_help = "\
LAST DUE is the due time of the last delayed or retried job, KEPT UNTIL the end of the last dead or finished \
one: a draining shard is empty after both, once workers have finished the rest. A shard \
that is ACTIVE, refusing serves the jobs that it has and takes no new ones; why follows the table.

Examples:
  ringq shard list
  ringq shard list -o json | jq -r '.[] | select(.role|test(\"DRAIN\")).name'

Exit code 4 if one of them does not answer.")]
pub(in crate::cli) struct ShardListArgs {
    #[command(flatten)]
    output: OutputArgs,
    #[command(flatten)]
    connect: ConnectArgs,
}

// === impl ShardListArgs ===

impl ShardListArgs {
    pub(super) async fn run(&self) -> Result<(), CommandFailure> {
        let connection = self.connect.connection()?;
        let request = connection.request(ListShardsRequest {});
        let mut admin = connection.client().admin();
        let answer = connection.call("cannot list the shards", admin.list_shards(request)).await?;
        connection.note_server();
        let mut out = StdoutWriter::new();
        if self.output.is_json() {
            let mut list = JsonList::new();
            answer.shards.iter().try_for_each(|shard| list.row(&mut out, shard))?;
            list.end(&mut out)?;
        } else {
            table(&answer.shards).print(&mut out)?;
            for (shard, why) in
                answer.shards.iter().filter_map(|shard| Some((shard, last_error(shard)?)))
            {
                out.write_line(&one_line(&format!("{}: {why}", shard.name)))?;
            }
            out.flush()?;
        }
        match answer.shards.iter().filter(|shard| !is_reachable(shard)).count() {
            0 => Ok(()),
            count => {
                print_error(&format!("{count} of {} shards do not answer", answer.shards.len()));
                Err(CommandFailure::already_reported(exit::UNAVAILABLE))
            }
        }
    }
}

fn table(shards: &[pb::Shard]) -> Table {
    let now = Now::read();
    let mut table = Table::new([
        "NAME",
        "STATE",
        "WEIGHT",
        "JOBS",
        "READY",
        "RUNNING",
        "SCHEDULED",
        "BACKOFF",
        "DEAD",
        "FINISHED",
        "LAST DUE",
        "KEPT UNTIL",
        "SIZE",
        "ADDRESS",
    ]);
    for shard in shards {
        // Unknown numbers are left out: 0 would mean that there are no jobs.
        let count = |n: i64| if is_reachable(shard) { n.to_string() } else { String::new() };
        table.row([
            shard.name.clone(),
            state(shard),
            shard.weight.to_string(),
            count(shard.jobs),
            count(shard.ready),
            count(shard.running),
            count(shard.scheduled),
            count(shard.backoff),
            count(shard.dead),
            count(shard.finished),
            now.relative(shard.latest_due_time),
            now.relative(shard.latest_forget_time),
            if is_reachable(shard) { bytes(shard.used_memory_bytes) } else { String::new() },
            shard.address.clone(),
        ]);
    }
    table
}

/// Formats a size like `3.4 MiB`.
fn bytes(bytes: i64) -> String {
    indicatif::BinaryBytes(u64::try_from(bytes).unwrap_or(0)).to_string()
}
