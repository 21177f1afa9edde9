//! `ringq shard drain` and `ringq shard activate`.

use clap::Args;

use super::connect::{Connect, Connection, asked_to_end};
use super::exit::Failure;
use super::output::{Out, OutputArgs, print_json};
use super::text::one_line;
use super::values;
use super::view::{answers, content, trouble, until};
use super::wait::emptied;
use crate::pb::{SetShardStateRequest, Shard, ShardState};

/// Which shard.
#[derive(Debug, Args)]
#[command(after_help = "\
For all servers, until `ringq shard activate`. New jobs go elsewhere; those that wait, run, are \
retried, dead or kept stay and are served. It is empty when the last of them is gone. --wait ends a minute \
later at least, when no server can write to it any more, and while another shard is silent nobody knows that.

Examples:
  ringq shard drain s1
  ringq shard drain s1 --wait && echo 's1 can be removed'

Exit code 4 if the shard does not answer; nothing has changed then.")]
pub(in crate::cli) struct Drain {
    /// The shard
    #[arg(value_parser = values::shard)]
    name: String,
    /// Wait until it is empty and nothing can come any more, a minute at least; tell what is left meanwhile
    #[arg(long)]
    wait: bool,
    #[command(flatten)]
    output: OutputArgs,
    #[command(flatten)]
    connect: Connect,
}

/// Which shard.
#[derive(Debug, Args)]
#[command(after_help = "\
Example:
  ringq shard activate s1

Exit code 4 if the shard does not answer; nothing has changed then.")]
pub(in crate::cli) struct Activate {
    /// The shard
    #[arg(value_parser = values::shard)]
    name: String,
    #[command(flatten)]
    output: OutputArgs,
    #[command(flatten)]
    connect: Connect,
}

// === impl Drain ===

impl Drain {
    pub(super) async fn run(&self) -> Result<(), Failure> {
        let connection = self.connect.connection()?;
        let end = asked_to_end();
        tokio::pin!(end);
        let mut shard = tokio::select! {
            shard = set(&connection, &self.name, ShardState::Draining) => shard?,
            code = &mut end, if self.wait => return Err(Failure::told(code)),
        };
        let mut out = Out::new();
        if !self.output.is_json() {
            out.line(&format!("{} DRAINING: new jobs go elsewhere", self.name))?;
            stays(&shard).iter().try_for_each(|line| out.line(line))?;
            out.flush()?;
        }
        if self.wait {
            shard = tokio::select! {
                shard = emptied(&connection, shard) => shard?,
                code = &mut end => return Err(self.left_draining(code)),
            };
        }
        if self.output.is_json() {
            return print_json(&mut out, &shard);
        }
        if self.wait {
            out.line(&format!("{} is empty", self.name))?;
        }
        out.flush()
    }
}

impl Drain {
    pub(super) fn waits(&self) -> bool {
        self.wait
    }

    fn left_draining(&self, code: u8) -> Failure {
        let name = &self.name;
        Failure::new(code, format!("{name} goes on draining, only the wait has ended"))
            .hint(format!("`ringq shard activate {name}` lets it take new jobs again"))
    }
}

/// What stays on a draining shard, and until when.
fn stays(shard: &Shard) -> Vec<String> {
    if !answers(shard) {
        return vec!["it does not answer now: `ringq shard list` shows what stays".to_owned()];
    }
    let mut lines = vec![format!("on it: {}", content(shard))];
    lines.extend(until(shard));
    lines
}

// === impl Activate ===

impl Activate {
    pub(super) async fn run(&self) -> Result<(), Failure> {
        let connection = self.connect.connection()?;
        let shard = set(&connection, &self.name, ShardState::Active).await?;
        let mut out = Out::new();
        if self.output.is_json() {
            return print_json(&mut out, &shard);
        }
        // It is again one that new jobs are meant for; whether it takes them is up to its store.
        let news = match trouble(&shard) {
            Some(why) => format!(", but refusing: {why}"),
            None => ": it takes new jobs".to_owned(),
        };
        out.line(&one_line(&format!("{} ACTIVE{news}", self.name)))?;
        out.flush()
    }
}

/// Sets the state; the shard after it.
async fn set(connection: &Connection, name: &str, state: ShardState) -> Result<Shard, Failure> {
    let verb = if state == ShardState::Draining { "drain" } else { "activate" };
    let request = SetShardStateRequest { name: name.to_owned(), state: state.into() };
    let mut admin = connection.client().admin();
    let answer = admin.set_shard_state(connection.request(request));
    let answer = connection.call(&format!("cannot {verb} shard {name}"), answer).await?;
    Ok(answer.shard.unwrap_or_default())
}
