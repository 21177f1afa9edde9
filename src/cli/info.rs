//! `ringq info`: version, features and limits of a server.

use std::collections::BTreeMap;

use clap::Args;

use super::connect::{self, ConnectArgs};
use super::exit::CommandFailure;
use super::output::{Block, OutputArgs, StdoutWriter, Table, print_json};
use super::times::Now;
use crate::pb::{GetServerInfoRequest, GetServerInfoResponse};

/// Arguments of `ringq info`.
#[derive(Debug, Args)]
#[command(after_help = "\
Example:
  ringq info -o json | jq .limits

Exit code 0 if the server answers, whatever its shards do; `ringq shard list` prints why one does not.")]
pub(super) struct InfoArgs {
    #[command(flatten)]
    output: OutputArgs,
    #[command(flatten)]
    connect: ConnectArgs,
}

// === impl InfoArgs ===

impl InfoArgs {
    pub(super) fn run(&self) -> Result<(), CommandFailure> {
        connect::run_until_interrupt(async {
            let connection = self.connect.connection()?;
            let request = connection.request(GetServerInfoRequest {});
            let mut admin = connection.client().admin();
            let info =
                connection.call("cannot read the server", admin.get_server_info(request)).await?;
            connection.note_server();
            let mut out = StdoutWriter::new();
            if self.output.is_json() { print_json(&mut out, &info) } else { show(&info, &mut out) }
        })
    }
}

fn show(info: &GetServerInfoResponse, out: &mut StdoutWriter) -> Result<(), CommandFailure> {
    let now = Now::read();
    let mut block = Block::default();
    block.line("version", &info.version);
    block.line("replica", &info.replica);
    block.line("store", &info.store);
    let durability = strip_enum_prefix(info.durability().as_str_name(), "DURABILITY_");
    block.line("durability", if durability.is_empty() { "unknown" } else { durability });
    if !info.unreachable_shards.is_empty() {
        block.line("unreachable", info.unreachable_shards.join(", "));
    }
    let features = info.features.join(", ");
    block.line("features", if features.is_empty() { "none" } else { &features });
    block.line("started", now.full(info.start_time));
    block.line("server time", now.full(info.server_time));
    let mut limits = Table::new(["NAME", "VALUE"]);
    for (name, value) in info.limits.iter().collect::<BTreeMap<_, _>>() {
        limits.row([name.clone(), value.to_string()]);
    }
    block.table("limits", limits);
    block.print(out)
}

/// Returns `FSYNCED` of `DURABILITY_FSYNCED`: in a column the prefix is redundant.
pub(super) fn strip_enum_prefix<'a>(name: &'a str, prefix: &str) -> &'a str {
    match name.strip_prefix(prefix).unwrap_or(name) {
        "UNSPECIFIED" => "",
        word => word,
    }
}
