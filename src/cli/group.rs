//! `ringq group`: the groups of a topic and their numbers.

use clap::{Args, Subcommand};

use super::connect::{self, ConnectArgs, ServerConnection};
use super::exit::{CommandFailure, fail_if_partial, print_note};
use super::output::{JsonList, OutputArgs, StdoutWriter, Table};
use super::purge::{PurgeArgs, PurgedPart};
use super::text::one_line;
use super::times::span;
use super::topic::warn_missing;
use super::values;
use crate::pb::{GroupSummary, ListGroupsRequest, PauseGroupRequest, ResumeGroupRequest};

/// Groups per call.
const PAGE: i32 = 1_000;

/// Subcommands of `ringq group`.
#[derive(Debug, Subcommand)]
pub(super) enum GroupCommand {
    /// List the groups of a topic that have waiting or running jobs
    #[command(visible_alias = "ls")]
    List(GroupListArgs),
    /// Stop the delivery of the jobs of a group
    Pause(GroupPauseArgs),
    /// Start the delivery again
    Resume(GroupResumeArgs),
    /// Remove the jobs of a group that are in given states
    Purge(GroupPurgeArgs),
}

/// Arguments of `ringq group pause`.
#[derive(Debug, Args)]
#[command(after_help = "\
The other groups of the topic go on. Jobs are still enqueued, and those that run go on. The group - has the jobs without \
a group.

Examples:
  ringq group pause emails tenant-7 --note 'sends to a wrong list'
  ringq group pause emails -")]
pub(super) struct GroupPauseArgs {
    /// The topic
    #[arg(value_parser = values::non_empty)]
    topic: String,
    /// The group; -: the jobs without one
    #[arg(value_parser = values::non_empty, allow_hyphen_values = true)]
    group: String,
    /// Why, for people
    #[arg(long, value_name = "TEXT")]
    note: Option<String>,
    #[command(flatten)]
    connect: ConnectArgs,
}

/// Arguments of `ringq group resume`.
#[derive(Debug, Args)]
#[command(after_help = "\
Example:
  ringq group resume emails tenant-7")]
pub(super) struct GroupResumeArgs {
    /// The topic
    #[arg(value_parser = values::non_empty)]
    topic: String,
    /// The group; -: the jobs without one
    #[arg(value_parser = values::non_empty, allow_hyphen_values = true)]
    group: String,
    #[command(flatten)]
    connect: ConnectArgs,
}

/// Arguments of `ringq group purge`.
#[derive(Debug, Args)]
#[command(after_help = "\
As `ringq topic purge`, for the jobs of one group. Of jobs that left only a tombstone the group is not known; they stay. \
The group - has the jobs without a group.

Examples:
  ringq group purge emails tenant-7 --state ready,scheduled,backoff --dry-run
  ringq group purge emails tenant-7 --state ready,scheduled,backoff")]
pub(super) struct GroupPurgeArgs {
    /// The topic
    #[arg(value_parser = values::non_empty)]
    topic: String,
    /// The group; -: the jobs without one
    #[arg(value_parser = values::non_empty, allow_hyphen_values = true)]
    group: String,
    #[command(flatten)]
    purge: PurgeArgs,
}

/// Arguments of `ringq group list`.
#[derive(Debug, Args)]
#[command(after_help = "\
The group - has the jobs without a group. On each shard the next job is that of the group with the least RUNNING / \
WEIGHT there.

Examples:
  ringq group list emails
  ringq group list emails -o json | jq -r '.[] | select(.paused).group'")]
pub(super) struct GroupListArgs {
    /// The topic
    #[arg(value_parser = values::non_empty)]
    topic: String,
    #[command(flatten)]
    output: OutputArgs,
    #[command(flatten)]
    connect: ConnectArgs,
}

// === impl GroupCommand ===

impl GroupCommand {
    pub(super) fn run(&self) -> Result<(), CommandFailure> {
        match self {
            GroupCommand::List(list) => connect::run_until_interrupt(list.run()),
            GroupCommand::Pause(pause) => connect::run_until_interrupt(pause.run()),
            GroupCommand::Resume(resume) => connect::run_until_interrupt(resume.run()),
            GroupCommand::Purge(purge) => connect::run_until_interrupt(purge.run()),
        }
    }
}

// === impl GroupPauseArgs ===

impl GroupPauseArgs {
    async fn run(&self) -> Result<(), CommandFailure> {
        let connection = self.connect.connection()?;
        let (topic, group) = (self.topic.clone(), sent_name(&self.group));
        let note = self.note.clone().unwrap_or_default();
        let request = connection.request(PauseGroupRequest { topic, group, note });
        let mut topics = connection.client().topics();
        let what = format!("cannot pause group {} of topic {}", self.group, self.topic);
        let answer = connection.call(&what, topics.pause_group(request)).await?;
        print_state(&self.topic, &self.group, "PAUSED")?;
        warn_missing(&answer.unreachable_shards);
        Ok(())
    }
}

// === impl GroupResumeArgs ===

impl GroupResumeArgs {
    async fn run(&self) -> Result<(), CommandFailure> {
        let connection = self.connect.connection()?;
        let (topic, group) = (self.topic.clone(), sent_name(&self.group));
        let request = connection.request(ResumeGroupRequest { topic, group });
        let mut topics = connection.client().topics();
        let what = format!("cannot resume group {} of topic {}", self.group, self.topic);
        let answer = connection.call(&what, topics.resume_group(request)).await?;
        print_state(&self.topic, &self.group, "ACTIVE")?;
        warn_missing(&answer.unreachable_shards);
        Ok(())
    }
}

// === impl GroupPurgeArgs ===

impl GroupPurgeArgs {
    async fn run(&self) -> Result<(), CommandFailure> {
        let group = sent_name(&self.group);
        self.purge.run(&PurgedPart { topic: &self.topic, group: Some(&group) }).await
    }
}

/// Returns the name of a group in requests.
fn sent_name(group: &str) -> String {
    if group == "-" { String::new() } else { group.to_owned() }
}

fn print_state(topic: &str, group: &str, state: &str) -> Result<(), CommandFailure> {
    let mut out = StdoutWriter::new();
    out.write_line(&one_line(&format!("{topic} {group} {state}")))?;
    out.flush()
}

// === impl GroupListArgs ===

impl GroupListArgs {
    async fn run(&self) -> Result<(), CommandFailure> {
        let (rows, unreachable) = self.rows(&self.connect.connection()?).await?;
        let mut out = StdoutWriter::new();
        if self.output.is_json() {
            let mut list = JsonList::new();
            rows.iter().try_for_each(|row| list.row(&mut out, row))?;
            list.end(&mut out)?;
        } else {
            if rows.is_empty() {
                print_note(&format!("no job of {} waits or runs", self.topic));
            }
            table(&rows).print(&mut out)?;
        }
        fail_if_partial(unreachable.iter())
    }

    /// Reads all pages: columns can be laid out only with all rows.
    async fn rows(
        &self,
        connection: &ServerConnection,
    ) -> Result<(Vec<GroupSummary>, Vec<String>), CommandFailure> {
        let (mut rows, mut unreachable, mut page_token) = (Vec::new(), Vec::new(), String::new());
        loop {
            let topic = self.topic.clone();
            let request =
                connection.request(ListGroupsRequest { topic, page_size: PAGE, page_token });
            let mut topics = connection.client().topics();
            let answer = topics.list_groups(request);
            let what = format!("cannot list the groups of topic {}", self.topic);
            let page = connection.call(&what, answer).await?;
            rows.extend(page.groups);
            unreachable.extend(page.unreachable_shards);
            page_token = page.next_page_token;
            if page_token.is_empty() {
                return Ok((rows, unreachable));
            }
        }
    }
}

fn table(rows: &[GroupSummary]) -> Table {
    let mut table =
        Table::new(["GROUP", "STATE", "WEIGHT", "READY", "RUNNING", "SCHEDULED", "OLDEST"]);
    for row in rows {
        table.row([
            if row.group.is_empty() { "-".to_owned() } else { row.group.clone() },
            if row.paused { "PAUSED" } else { "ACTIVE" }.to_owned(),
            row.weight.to_string(),
            row.ready.to_string(),
            row.running.to_string(),
            row.scheduled.to_string(),
            span(row.oldest_ready_age),
        ]);
    }
    table
}
