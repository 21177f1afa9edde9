//! `ringq worker`: workers with an open stream.

use clap::{Args, Subcommand};

use super::connect::{self, ConnectArgs};
use super::exit::{CommandFailure, print_note};
use super::output::{JsonList, OutputArgs, StdoutWriter, Table};
use super::times::Now;
use super::values;
use crate::pb::{self, ListWorkersRequest};

/// Subcommands of `ringq worker`.
#[derive(Debug, Subcommand)]
pub(super) enum WorkerCommand {
    /// List the workers that take jobs: their open streams and credit
    #[command(visible_alias = "ls")]
    List(WorkerListArgs),
}

/// Arguments of `ringq worker list`.
#[derive(Debug, Args)]
#[command(after_help = "\
Lists the workers of the server that answers, each as long as it takes jobs. A worker that runs its last \
jobs, as after --max-jobs of `ringq work` or a first Ctrl-C, has closed its stream and is not listed.

Examples:
  ringq worker list
  ringq worker list emails -o json")]
pub(super) struct WorkerListArgs {
    /// Only streams that take jobs of this topic
    #[arg(value_parser = values::non_empty)]
    topic: Option<String>,
    #[command(flatten)]
    output: OutputArgs,
    #[command(flatten)]
    connect: ConnectArgs,
}

// === impl WorkerCommand ===

impl WorkerCommand {
    pub(super) fn run(&self) -> Result<(), CommandFailure> {
        match self {
            WorkerCommand::List(list) => connect::run_until_interrupt(list.run()),
        }
    }
}

// === impl WorkerListArgs ===

impl WorkerListArgs {
    async fn run(&self) -> Result<(), CommandFailure> {
        let connection = self.connect.connection()?;
        let topic = self.topic.clone().unwrap_or_default();
        let request = connection.request(ListWorkersRequest { topic });
        let mut admin = connection.client().admin();
        let answer =
            connection.call("cannot list the workers", admin.list_workers(request)).await?;
        connection.note_server();
        let mut out = StdoutWriter::new();
        if self.output.is_json() {
            let mut list = JsonList::new();
            answer.workers.iter().try_for_each(|worker| list.row(&mut out, worker))?;
            return list.end(&mut out);
        }
        if answer.workers.is_empty() {
            print_note(&self.no_workers_message());
        }
        table(&answer.workers).print(&mut out)
    }

    /// Returns the note of an empty list. A worker that is stopping is not listed, and may still run jobs.
    fn no_workers_message(&self) -> String {
        let of = self.topic.as_ref().map(|topic| format!(" of {topic}")).unwrap_or_default();
        let topic = self.topic.as_deref().unwrap_or("TOPIC");
        format!(
            "no worker takes jobs{of} at this server; `ringq job list {topic} --state running` shows what still runs"
        )
    }
}

fn table(workers: &[pb::Worker]) -> Table {
    let now = Now::read();
    let mut table = Table::new([
        "WORKER",
        "TOPICS",
        "RUNNING",
        "CREDIT",
        "CONNECTED",
        "PEER",
        "REPLICA",
        "STREAM",
        "CLIENT",
    ]);
    for worker in workers {
        table.row([
            worker.worker_id.clone(),
            worker.topics.join(","),
            worker.in_flight.to_string(),
            worker.max_in_flight.to_string(),
            now.relative(worker.connect_time),
            worker.peer.clone(),
            worker.replica.clone(),
            worker.stream_id.clone(),
            worker.user_agent.clone(),
        ]);
    }
    table
}
