//! `ringq topic`: topics, their numbers, settings and pauses.

mod change;
mod plan;
mod settings;

mod purge;

use clap::{Args, Subcommand};

use super::connect::{self, ConnectArgs, ServerConnection};
use super::exit::{CommandFailure, fail_if_partial, print_note};
use super::info::strip_enum_prefix;
use super::output::{Block, JsonList, OutputArgs, StdoutWriter, Table, print_json};
use super::times::span;
use super::values;
use crate::pb::{GetTopicStatsRequest, ListTopicsRequest, TopicStats, TopicSummary};
use change::{TopicDeleteArgs, TopicPauseArgs, TopicResumeArgs};
use plan::TopicPlanArgs;
use settings::{TopicCreateArgs, TopicGetArgs, TopicSetArgs};

/// Topics per call.
const PAGE: i32 = 500;

/// Subcommands of `ringq topic`.
#[derive(Debug, Subcommand)]
pub(super) enum TopicCommand {
    /// List topics with their depths and rates
    #[command(visible_alias = "ls")]
    List(TopicListArgs),
    /// Print the numbers of one topic
    Stats(TopicStatsArgs),
    /// Print the settings of one topic
    #[command(alias = "show")]
    Get(TopicGetArgs),
    /// Create a topic with settings of its own
    Create(TopicCreateArgs),
    /// Change settings of a topic
    Set(TopicSetArgs),
    /// Stop the delivery of a topic's jobs
    Pause(TopicPauseArgs),
    /// Start the delivery again
    Resume(TopicResumeArgs),
    /// Show what a file with policies would change
    Plan(TopicPlanArgs),
    /// Remove a topic without jobs, with its settings
    Delete(TopicDeleteArgs),
    /// Remove the jobs of a topic that are in given states
    Purge(purge::TopicPurgeArgs),
}

/// Arguments of `ringq topic list`.
#[derive(Debug, Args)]
#[command(after_help = "\
IN/S, DONE/S, FAILED/S and STREAMS are of the server that answers, over the last minute; the other numbers are of \
the whole queue.

Examples:
  ringq topic list
  ringq topic list billing.
  ringq topic list -o json | jq '.[] | select(.stats.dead != null).topic.name'")]
pub(super) struct TopicListArgs {
    /// Only topics whose name begins with this
    prefix: Option<String>,
    #[command(flatten)]
    output: OutputArgs,
    #[command(flatten)]
    connect: ConnectArgs,
}

/// Arguments of `ringq topic stats`.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  ringq topic stats emails
  ringq topic stats emails -o json | jq -r '.ready // 0'   JSON leaves out what is 0")]
pub(super) struct TopicStatsArgs {
    /// The topic
    #[arg(value_parser = values::non_empty)]
    topic: String,
    #[command(flatten)]
    output: OutputArgs,
    #[command(flatten)]
    connect: ConnectArgs,
}

// === impl TopicCommand ===

impl TopicCommand {
    pub(super) fn run(&self) -> Result<(), CommandFailure> {
        match self {
            TopicCommand::List(list) => connect::run_until_interrupt(list.run()),
            TopicCommand::Stats(stats) => connect::run_until_interrupt(stats.run()),
            TopicCommand::Get(get) => connect::run_until_interrupt(get.run()),
            TopicCommand::Create(create) => connect::run_until_interrupt(create.run()),
            TopicCommand::Set(set) => connect::run_until_interrupt(set.run()),
            TopicCommand::Pause(pause) => connect::run_until_interrupt(pause.run()),
            TopicCommand::Resume(resume) => connect::run_until_interrupt(resume.run()),
            TopicCommand::Plan(plan) => connect::run_until_interrupt(plan.run()),
            TopicCommand::Delete(delete) => connect::run_until_interrupt(delete.run()),
            TopicCommand::Purge(purge) => connect::run_until_interrupt(purge.run()),
        }
    }
}

// === impl TopicListArgs ===

impl TopicListArgs {
    async fn run(&self) -> Result<(), CommandFailure> {
        let prefix = self.prefix.as_deref().unwrap_or_default();
        let connection = self.connect.connection()?;
        let rows = all_topics(&connection, prefix).await?;
        connection.note_server();
        let mut out = StdoutWriter::new();
        if self.output.is_json() {
            let mut list = JsonList::new();
            rows.iter().try_for_each(|row| list.row(&mut out, row))?;
            list.end(&mut out)?;
        } else {
            if rows.is_empty() {
                print_note(&self.no_topics_message());
            }
            table(&rows).print(&mut out)?;
        }
        fail_if_partial(
            rows.iter().flat_map(|row| &row.stats).flat_map(|stats| &stats.unreachable_shards),
        )
    }

    fn no_topics_message(&self) -> String {
        match &self.prefix {
            Some(prefix) => format!("no topic begins with {prefix}"),
            None => "no topics yet: the first `ringq enqueue` to a topic creates it".to_owned(),
        }
    }
}

// === impl TopicStatsArgs ===

impl TopicStatsArgs {
    async fn run(&self) -> Result<(), CommandFailure> {
        let connection = self.connect.connection()?;
        let request = connection.request(GetTopicStatsRequest { name: self.topic.clone() });
        let mut topics = connection.client().topics();
        let answer = topics.get_topic_stats(request);
        let what = format!("cannot read topic {}", self.topic);
        let stats = connection.call(&what, answer).await?.stats.unwrap_or_default();
        connection.note_server();
        let mut out = StdoutWriter::new();
        if self.output.is_json() {
            print_json(&mut out, &stats)?;
        } else {
            block(&stats).print(&mut out)?;
        }
        fail_if_partial(stats.unreachable_shards.iter())
    }
}

fn table(rows: &[TopicSummary]) -> Table {
    let mut table = Table::new([
        "NAME",
        "STATE",
        "READY",
        "RUNNING",
        "SCHEDULED",
        "BACKOFF",
        "DEAD",
        "OLDEST",
        "IN/S",
        "DONE/S",
        "FAILED/S",
        "STREAMS",
    ]);
    for row in rows {
        let topic = row.topic.clone().unwrap_or_default();
        let stats = row.stats.clone().unwrap_or_default();
        table.row([
            topic.name.clone(),
            strip_enum_prefix(topic.state().as_str_name(), "TOPIC_STATE_").to_owned(),
            stats.ready.to_string(),
            stats.running.to_string(),
            stats.scheduled.to_string(),
            stats.backoff.to_string(),
            stats.dead.to_string(),
            span(stats.oldest_ready_age),
            rate(stats.enqueue_rate),
            rate(stats.finish_rate),
            rate(stats.fail_rate),
            stats.streams.to_string(),
        ]);
    }
    table
}

fn block(stats: &TopicStats) -> Block {
    let mut block = Block::default();
    for (name, number) in [
        ("ready", stats.ready),
        ("running", stats.running),
        ("scheduled", stats.scheduled),
        ("backoff", stats.backoff),
        ("dead", stats.dead),
    ] {
        block.line(name, number.to_string());
    }
    block.line("oldest ready", span(stats.oldest_ready_age));
    for (name, per_second, total) in [
        ("enqueued", stats.enqueue_rate, stats.enqueued_total),
        ("succeeded", stats.finish_rate, stats.succeeded_total),
    ] {
        block.line(name, format!("{total} in all, {}", local_rate(per_second)));
    }
    block.line("failed", local_rate(stats.fail_rate));
    block.line("ended dead", format!("{} in all", stats.dead_total));
    block.line("streams", format!("{} at this server", stats.streams));
    block
}

/// Formats a rate; each server counts only its own calls.
fn local_rate(per_second: Option<f64>) -> String {
    format!("{}/s at this server over the last minute", rate(per_second))
}

/// Formats a rate: whole from 10 on, below with one decimal; a dash if it is unknown.
fn rate(rate: Option<f64>) -> String {
    match rate {
        Some(rate) if rate >= 10.0 => format!("{rate:.0}"),
        Some(rate) => format!("{rate:.1}"),
        None => "-".to_owned(),
    }
}

/// Reads all topics whose names begin with `prefix`: columns can be laid out only with all rows, and topics are few.
async fn all_topics(
    connection: &ServerConnection,
    prefix: &str,
) -> Result<Vec<TopicSummary>, CommandFailure> {
    let (mut rows, mut page_token) = (Vec::new(), String::new());
    loop {
        let prefix = prefix.to_owned();
        let request = connection.request(ListTopicsRequest { page_size: PAGE, page_token, prefix });
        let mut topics = connection.client().topics();
        let answer = topics.list_topics(request);
        let page = connection.call("cannot list the topics", answer).await?;
        rows.extend(page.topics);
        page_token = page.next_page_token;
        if page_token.is_empty() {
            return Ok(rows);
        }
    }
}

/// Notes on stderr which shards have not taken a change yet.
pub(super) fn warn_missing(shards: &[String]) {
    if !shards.is_empty() {
        print_note(&format!(
            "not at these shards yet, which do not answer: {}; they get the change when they are back",
            shards.join(", ")
        ));
    }
}
