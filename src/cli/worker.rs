//! `ringq worker`: who takes jobs.

use clap::{Args, Subcommand};

use super::connect::{self, Connect};
use super::exit::{Failure, note};
use super::output::{JsonList, Out, OutputArgs, Table};
use super::times::Now;
use crate::pb::{self, ListWorkersRequest};

/// What about workers.
#[derive(Debug, Subcommand)]
pub(super) enum Worker {
    /// List the open streams and their credit
    #[command(visible_alias = "ls")]
    List(List),
}

/// Which, and how to print.
#[derive(Debug, Args)]
#[command(after_help = "Examples:\n  ringq worker list\n  ringq worker list emails -o json")]
pub(super) struct List {
    /// Only streams that ask for this topic
    topic: Option<String>,
    #[command(flatten)]
    output: OutputArgs,
    #[command(flatten)]
    connect: Connect,
}

// === impl Worker ===

impl Worker {
    pub(super) fn run(&self) -> Result<(), Failure> {
        match self {
            Worker::List(list) => connect::run(list.run()),
        }
    }
}

// === impl List ===

impl List {
    async fn run(&self) -> Result<(), Failure> {
        let connection = self.connect.connection()?;
        let topic = self.topic.clone().unwrap_or_default();
        let request = connection.request(ListWorkersRequest { topic });
        let mut admin = connection.client().admin();
        let answer =
            connection.call("cannot list the workers", admin.list_workers(request)).await?;
        let mut out = Out::new();
        if self.output.is_json() {
            let mut list = JsonList::new();
            answer.workers.iter().try_for_each(|worker| list.row(&mut out, worker))?;
            return list.end(&mut out);
        }
        if answer.workers.is_empty() {
            let topic = self.topic.as_ref().map(|topic| format!(" for {topic}"));
            note(&format!(
                "no worker has a stream open{} at this server",
                topic.unwrap_or_default()
            ));
        }
        table(&answer.workers).print(&mut out)
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
