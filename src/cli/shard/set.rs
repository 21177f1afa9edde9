//! `ringq shard drain` and `ringq shard activate`: set the state of a shard.

use clap::Args;

use super::connect::{ConnectArgs, ServerConnection, wait_for_stop_signal};
use super::exit::CommandFailure;
use super::output::{OutputArgs, StdoutWriter, print_json};
use super::text::one_line;
use super::values;
use super::view::{is_reachable, job_counts, last_error, until};
use super::wait::wait_until_empty;
use crate::pb::{SetShardStateRequest, Shard, ShardState};

/// Arguments of `ringq shard drain`.
#[derive(Debug, Args)]
#[command(after_help = "\
For all servers, until `ringq shard activate`. New jobs go elsewhere; those that wait, run, are \
retried, dead or kept stay and are served. The shard is empty when the last of them is gone. --wait ends a \
minute later at least, when no server can write to the shard any more; this is unknown while another shard \
does not answer.

Examples:
  ringq shard drain s1
  ringq shard drain s1 --wait && echo 's1 can be removed'

Exit code 4 if the shard does not answer; nothing has changed then.")]
pub(in crate::cli) struct ShardDrainArgs {
    /// The shard
    #[arg(value_parser = values::shard)]
    name: String,
    /// Wait until the shard is empty and no call can write to it, a minute at least; print what is left meanwhile
    #[arg(long)]
    wait: bool,
    #[command(flatten)]
    output: OutputArgs,
    #[command(flatten)]
    connect: ConnectArgs,
}

/// Arguments of `ringq shard activate`.
#[derive(Debug, Args)]
#[command(after_help = "\
Example:
  ringq shard activate s1

Exit code 4 if the shard does not answer; nothing has changed then.")]
pub(in crate::cli) struct ShardActivateArgs {
    /// The shard
    #[arg(value_parser = values::shard)]
    name: String,
    #[command(flatten)]
    output: OutputArgs,
    #[command(flatten)]
    connect: ConnectArgs,
}

// === impl ShardDrainArgs ===

impl ShardDrainArgs {
    pub(super) async fn run(&self) -> Result<(), CommandFailure> {
        let connection = self.connect.connection()?;
        let end = wait_for_stop_signal();
        tokio::pin!(end);
        let mut shard = tokio::select! {
            shard = set_state(&connection, &self.name, ShardState::Draining) => shard?,
            code = &mut end, if self.wait => return Err(CommandFailure::already_reported(code)),
        };
        let mut out = StdoutWriter::new();
        if !self.output.is_json() {
            out.write_line(&format!("{} DRAINING: new jobs go elsewhere", self.name))?;
            remaining_jobs(&shard).iter().try_for_each(|line| out.write_line(line))?;
            out.flush()?;
        }
        if self.wait {
            shard = tokio::select! {
                shard = wait_until_empty(&connection, shard) => shard?,
                code = &mut end => return Err(self.drain_incomplete(code)),
            };
        }
        if self.output.is_json() {
            return print_json(&mut out, &shard);
        }
        if self.wait {
            out.write_line(&format!("{} is empty", self.name))?;
        }
        out.flush()
    }
}

impl ShardDrainArgs {
    pub(super) fn waits(&self) -> bool {
        self.wait
    }

    fn drain_incomplete(&self, code: u8) -> CommandFailure {
        let name = &self.name;
        CommandFailure::new(code, format!("{name} goes on draining; only the wait has ended"))
            .with_hint(format!("`ringq shard activate {name}` lets the shard take new jobs again"))
    }
}

/// Describes what stays on a draining shard, and until when.
fn remaining_jobs(shard: &Shard) -> Vec<String> {
    if !is_reachable(shard) {
        return vec!["the shard does not answer: `ringq shard list` shows what stays".to_owned()];
    }
    let mut lines = vec![format!("on it: {}", job_counts(shard))];
    lines.extend(until(shard));
    lines
}

// === impl ShardActivateArgs ===

impl ShardActivateArgs {
    pub(super) async fn run(&self) -> Result<(), CommandFailure> {
        let connection = self.connect.connection()?;
        let shard = set_state(&connection, &self.name, ShardState::Active).await?;
        let mut out = StdoutWriter::new();
        if self.output.is_json() {
            return print_json(&mut out, &shard);
        }
        // The shard is meant for new jobs again; its store decides whether it takes them.
        let news = match last_error(&shard) {
            Some(why) => format!(", but refusing: {why}"),
            None => ": it takes new jobs".to_owned(),
        };
        out.write_line(&one_line(&format!("{} ACTIVE{news}", self.name)))?;
        out.flush()
    }
}

/// Sets the state; returns the shard after that.
async fn set_state(
    connection: &ServerConnection,
    name: &str,
    state: ShardState,
) -> Result<Shard, CommandFailure> {
    let verb = if state == ShardState::Draining { "drain" } else { "activate" };
    let request = SetShardStateRequest { name: name.to_owned(), state: state.into() };
    let mut admin = connection.client().admin();
    let answer = admin.set_shard_state(connection.request(request));
    let answer = connection.call(&format!("cannot {verb} shard {name}"), answer).await?;
    Ok(answer.shard.unwrap_or_default())
}
