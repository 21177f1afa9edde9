//! `ringq topic get`, `create` and `set`: the settings of a topic.

use std::time::Duration;

use clap::Args;

use super::super::connect::{ConnectArgs, ServerConnection};
use super::super::exit::CommandFailure;
use super::super::info::strip_enum_prefix;
use super::super::output::{Block, OutputArgs, StdoutWriter, print_json};
use super::super::times::{Now, span};
use super::super::values;
use super::warn_missing;
use crate::client::to_proto_duration;
use crate::domain::limit::PAYLOAD_BYTES_MAX;
use crate::pb::{
    CreateTopicRequest, GetTopicRequest, OverflowPolicy, RetryPolicy, Topic, TopicState,
    UpdateTopicRequest,
};

/// Settings by the names of their flags, which `--unset` takes, and of their fields.
const UNSET: [(&str, &str); 12] = [
    ("description", "description"),
    ("retry", "retry"),
    ("lease", "lease_duration"),
    ("retention", "retention"),
    ("dead-retention", "dead_retention"),
    ("priority", "priority"),
    ("priority-ageing", "priority_ageing"),
    ("max-payload-bytes", "max_payload_bytes"),
    ("max-jobs", "max_jobs"),
    ("max-stored-bytes", "max_stored_bytes"),
    ("on-full", "on_full"),
    ("group-weights", "group_weights"),
];

/// Flags that describe the settings of a topic.
#[derive(Debug, Args)]
#[command(next_help_heading = "Settings")]
struct SettingsArgs {
    /// A text for people
    #[arg(long, value_name = "TEXT")]
    description: Option<String>,
    /// Failures allowed; 1: no retry, -1: no limit
    #[arg(long, value_name = "NUMBER", allow_negative_numbers = true, value_parser = values::attempts)]
    max_attempts: Option<i32>,
    /// The waits between attempts; the last one repeats
    #[arg(long, value_name = "DURATION,…", value_delimiter = ',', value_parser = values::duration, allow_hyphen_values = true)]
    retry_delays: Vec<Duration>,
    /// Crashes of a job's workers allowed: expired leases, and streams that they broke; -1: no limit
    #[arg(long, value_name = "N", allow_negative_numbers = true, value_parser = values::attempts)]
    max_crashes: Option<i32>,
    /// Topic to which a job moves at its last crash; -: none, it is DEAD
    #[arg(long, value_name = "TOPIC", value_parser = values::non_empty, allow_hyphen_values = true)]
    crash_topic: Option<String>,
    /// Lease of a job, unless it or its worker names one, 1s to 24h
    #[arg(long, value_name = "DURATION", value_parser = values::duration, allow_hyphen_values = true)]
    lease: Option<Duration>,
    /// Time for which finished jobs are kept
    #[arg(long, value_name = "DURATION", value_parser = values::duration, allow_hyphen_values = true)]
    retention: Option<Duration>,
    /// Time for which dead letters are kept [default: 14d]
    #[arg(long, value_name = "DURATION", value_parser = values::duration, allow_hyphen_values = true)]
    dead_retention: Option<Duration>,
    /// Priority of jobs that name none, 0 to 9; 9 goes first
    #[arg(long, value_name = "0-9", value_parser = values::priority, allow_hyphen_values = true)]
    priority: Option<i32>,
    /// Waiting time that one level of priority is worth, 0s to 24h; 0s: strict levels
    #[arg(long, value_name = "DURATION", value_parser = values::duration, allow_hyphen_values = true)]
    priority_ageing: Option<Duration>,
    /// Largest payload of a job in bytes [default: 1048576]
    #[arg(long, value_name = "BYTES", value_parser = values::integer_in_range::<i32>(1..=PAYLOAD_BYTES_MAX as i64))]
    max_payload_bytes: Option<i32>,
    /// Jobs that may wait, over all shards [default: no limit]
    #[arg(long, value_name = "NUMBER", value_parser = values::integer_in_range::<i64>(1..=i64::MAX))]
    max_jobs: Option<i64>,
    /// Bytes that its stored jobs may have, over all shards [default: no limit]
    #[arg(long, value_name = "BYTES", value_parser = values::integer_in_range::<i64>(1..=i64::MAX))]
    max_stored_bytes: Option<i64>,
    /// Rule for a new job of a full topic [default: reject]
    #[arg(long, value_enum, value_name = "RULE")]
    on_full: Option<OnFull>,
    /// Weights of groups, 1 to 100; those that are not named have 1. Replaces all former ones
    #[arg(long, value_name = "GROUP=WEIGHT,…", value_delimiter = ',', value_parser = values::group_weight)]
    group_weights: Vec<(String, i32)>,
}

/// Rule for a new job of a full topic.
#[derive(Clone, Copy, Debug, clap::ValueEnum)]
enum OnFull {
    /// Refuse it with TOPIC_FULL
    Reject,
    /// Expire the job of the lowest priority that has waited longest
    DropOldest,
}

/// Arguments of `ringq topic create`.
#[derive(Debug, Args)]
#[command(after_help = "\
The first job of a topic creates it, too, with the defaults. `ringq topic set` changes the settings later.

Examples:
  ringq topic create emails --max-attempts 5 --retry-delays 1m,5m,30m
  ringq topic create reports --lease 2h --retention 1d --description nightly")]
pub(in crate::cli) struct TopicCreateArgs {
    /// The topic
    #[arg(value_parser = values::non_empty)]
    topic: String,
    #[command(flatten)]
    settings: SettingsArgs,
    #[command(flatten)]
    output: OutputArgs,
    #[command(flatten)]
    connect: ConnectArgs,
}

/// Arguments of `ringq topic set`.
#[derive(Debug, Args)]
#[command(after_help = "\
Only the settings that are given change. Stored jobs keep their priority and retention; retries, leases and dead letters \
follow the new settings from then on.

Examples:
  ringq topic set emails --max-attempts 3
  ringq topic set emails --unset retry --unset priority   back to the defaults
  ringq topic set emails --lease 5m --create              creates the topic if there is none")]
pub(in crate::cli) struct TopicSetArgs {
    /// The topic
    #[arg(value_parser = values::non_empty)]
    topic: String,
    #[command(flatten)]
    settings: SettingsArgs,
    /// A setting that gets its default back; may be repeated
    #[arg(long, value_name = "SETTING", value_parser = UNSET.map(|(flag, _)| flag))]
    unset: Vec<String>,
    /// Create the topic if there is none
    #[arg(long)]
    create: bool,
    /// Change it only if it still has this etag, which `ringq topic get` prints
    #[arg(long, value_name = "ETAG")]
    etag: Option<String>,
    #[command(flatten)]
    output: OutputArgs,
    #[command(flatten)]
    connect: ConnectArgs,
}

/// Arguments of `ringq topic get`.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  ringq topic get emails
  ringq topic get emails -o json | jq -r .etag")]
pub(in crate::cli) struct TopicGetArgs {
    /// The topic
    #[arg(value_parser = values::non_empty)]
    topic: String,
    #[command(flatten)]
    output: OutputArgs,
    #[command(flatten)]
    connect: ConnectArgs,
}

// === impl SettingsArgs ===

impl SettingsArgs {
    /// Returns a topic with these settings.
    fn topic(&self, name: &str) -> Topic {
        let retry = RetryPolicy {
            max_attempts: self.max_attempts.unwrap_or_default(),
            delays: self.retry_delays.iter().copied().map(to_proto_duration).collect(),
            max_crashes: self.max_crashes.unwrap_or_default(),
            crash_topic: self.crash_topic.clone().unwrap_or_default(),
            ..Default::default()
        };
        Topic {
            name: name.to_owned(),
            description: self.description.clone().unwrap_or_default(),
            retry: Some(retry).filter(|retry| *retry != RetryPolicy::default()),
            lease_duration: self.lease.map(to_proto_duration),
            retention: self.retention.map(to_proto_duration),
            dead_retention: self.dead_retention.map(to_proto_duration),
            priority: self.priority,
            priority_ageing: self.priority_ageing.map(to_proto_duration),
            max_payload_bytes: self.max_payload_bytes.unwrap_or_default(),
            max_jobs: self.max_jobs.unwrap_or_default(),
            max_stored_bytes: self.max_stored_bytes.unwrap_or_default(),
            on_full: match self.on_full {
                None => OverflowPolicy::Unspecified.into(),
                Some(OnFull::Reject) => OverflowPolicy::Reject.into(),
                Some(OnFull::DropOldest) => OverflowPolicy::DropOldest.into(),
            },
            group_weights: self.group_weights.iter().cloned().collect(),
            ..Topic::default()
        }
    }

    /// Returns the fields of the settings that are given.
    fn fields(&self) -> Vec<&'static str> {
        let given = [
            self.description.is_some(),
            self.max_attempts.is_some()
                || !self.retry_delays.is_empty()
                || self.max_crashes.is_some()
                || self.crash_topic.is_some(),
            self.lease.is_some(),
            self.retention.is_some(),
            self.dead_retention.is_some(),
            self.priority.is_some(),
            self.priority_ageing.is_some(),
            self.max_payload_bytes.is_some(),
            self.max_jobs.is_some(),
            self.max_stored_bytes.is_some(),
            self.on_full.is_some(),
            !self.group_weights.is_empty(),
        ];
        let fields = UNSET.into_iter().zip(given).filter(|(_, is_given)| *is_given);
        fields.map(|((_, field), _)| field).collect()
    }
}

// === impl TopicCreateArgs ===

impl TopicCreateArgs {
    pub(super) async fn run(&self) -> Result<(), CommandFailure> {
        let connection = self.connect.connection()?;
        let topic = Some(self.settings.topic(&self.topic));
        let request = connection.request(CreateTopicRequest { topic });
        let mut topics = connection.client().topics();
        let what = format!("cannot create topic {}", self.topic);
        let answer = connection.call(&what, topics.create_topic(request)).await?;
        print(&self.output, answer.topic, &answer.unreachable_shards)
    }
}

// === impl TopicSetArgs ===

impl TopicSetArgs {
    pub(super) async fn run(&self) -> Result<(), CommandFailure> {
        let mut paths: Vec<_> = self.settings.fields();
        for unset in &self.unset {
            let field = UNSET.iter().find(|(flag, _)| flag == unset).map(|(_, field)| *field);
            match field {
                Some(field) if paths.contains(&field) => {
                    return Err(CommandFailure::usage(format!("--unset {unset}: it is set, too")));
                }
                field => paths.extend(field),
            }
        }
        if paths.is_empty() && !self.create {
            return Err(CommandFailure::usage("give a setting to change".to_owned()));
        }
        let connection = self.connect.connection()?;
        let topic = self.with_whole_retry(&connection).await?;
        let paths = paths.into_iter().map(str::to_owned).collect();
        let update_mask = Some(prost_types::FieldMask { paths });
        let allow_missing = self.create;
        let request = UpdateTopicRequest { topic: Some(topic), update_mask, allow_missing };
        let mut topics = connection.client().topics();
        let answer = topics.update_topic(connection.request(request));
        let what = format!("cannot change topic {}", self.topic);
        let answer = connection.call(&what, answer).await?;
        print(&self.output, answer.topic, &answer.unreachable_shards)
    }

    /// Returns the topic to send. A retry policy is sent whole: the flags change only their part of the one that is set.
    async fn with_whole_retry(
        &self,
        connection: &ServerConnection,
    ) -> Result<Topic, CommandFailure> {
        let mut topic = self.settings.topic(&self.topic);
        topic.etag = self.etag.clone().unwrap_or_default();
        let Some(changed) = topic.retry.take() else { return Ok(topic) };
        let request = connection.request(GetTopicRequest { name: self.topic.clone() });
        let mut topics = connection.client().topics();
        let found = connection.try_call(topics.get_topic(request)).await;
        let found = match found {
            Ok(answer) => answer.topic.unwrap_or_default(),
            Err(error) if error.reason() == "TOPIC_NOT_FOUND" => Topic::default(),
            Err(error) => {
                return Err(
                    connection.failure(&format!("cannot read topic {}", self.topic), &error)
                );
            }
        };
        if topic.etag.is_empty() {
            // Or another change of the policy, made meanwhile, would be undone.
            topic.etag = found.etag;
        }
        // Settings that a pattern gives are not the topic's own.
        let own = found.retry.filter(|_| found.settings_from == self.topic).unwrap_or_default();
        topic.retry = Some(RetryPolicy {
            max_attempts: self.settings.max_attempts.unwrap_or(own.max_attempts),
            delays: if changed.delays.is_empty() { own.delays } else { changed.delays },
            max_crashes: self.settings.max_crashes.unwrap_or(own.max_crashes),
            crash_topic: self.settings.crash_topic.clone().unwrap_or(own.crash_topic),
            ..own
        });
        Ok(topic)
    }
}

// === impl TopicGetArgs ===

impl TopicGetArgs {
    pub(super) async fn run(&self) -> Result<(), CommandFailure> {
        let connection = self.connect.connection()?;
        let request = connection.request(GetTopicRequest { name: self.topic.clone() });
        let mut topics = connection.client().topics();
        let what = format!("cannot read topic {}", self.topic);
        let answer = connection.call(&what, topics.get_topic(request)).await?;
        print(&self.output, answer.topic, &[])
    }
}

fn print(
    output: &OutputArgs,
    topic: Option<Topic>,
    missing: &[String],
) -> Result<(), CommandFailure> {
    let (topic, mut out) = (topic.unwrap_or_default(), StdoutWriter::new());
    if output.is_json() {
        print_json(&mut out, &topic)?;
    } else {
        block(&topic).print(&mut out)?;
        out.flush()?;
    }
    warn_missing(missing);
    Ok(())
}

fn block(topic: &Topic) -> Block {
    let (mut block, now) = (Block::default(), Now::read());
    block.line("topic", &topic.name);
    let state = strip_enum_prefix(topic.state().as_str_name(), "TOPIC_STATE_");
    block.line("state", state);
    if topic.state() == TopicState::Paused {
        if topic.pause_until.is_some() {
            block.line("paused until", now.full(topic.pause_until));
        }
        if !topic.pause_note.is_empty() {
            block.line("reason", &topic.pause_note);
        }
    }
    if !topic.description.is_empty() {
        block.line("description", &topic.description);
    }
    let from = match (topic.settings_from.as_str(), topic.file_revision) {
        ("", _) => "the server's defaults".to_owned(),
        (name, None) => name.to_owned(),
        (name, Some(revision)) => format!("{name}, a file of revision {revision}"),
    };
    block.line("settings from", from);
    if let Some(retry) = &topic.retry {
        block.line("retry", retry_text(retry));
    }
    for (name, duration) in [
        ("lease", topic.lease_duration),
        ("retention", topic.retention),
        ("dead retention", topic.dead_retention),
    ] {
        if duration.is_some() {
            block.line(name, span(duration));
        }
    }
    if let Some(priority) = topic.priority {
        block.line("priority", priority.to_string());
    }
    if topic.priority_ageing.is_some() {
        block.line("priority ageing", span(topic.priority_ageing));
    }
    if topic.max_payload_bytes > 0 {
        block.line("largest payload", format!("{} bytes", topic.max_payload_bytes));
    }
    let beyond = match topic.on_full() {
        OverflowPolicy::Unspecified | OverflowPolicy::Reject => "more are refused",
        OverflowPolicy::DropOldest => "the oldest expire for more",
    };
    if topic.max_jobs > 0 {
        block.line("waiting jobs", format!("at most {}; {beyond}", topic.max_jobs));
    }
    if topic.max_stored_bytes > 0 {
        block.line("stored bytes", format!("at most {}; {beyond}", topic.max_stored_bytes));
    }
    if !topic.group_weights.is_empty() {
        block.line("group weights", group_weights(topic));
    }
    block.line("created", now.full(topic.create_time));
    block.line("changed", now.full(topic.update_time));
    block.line("etag", &topic.etag);
    block
}

/// Formats the weights of groups, in the order of their names.
pub(super) fn group_weights(topic: &Topic) -> String {
    let mut weights: Vec<_> = topic.group_weights.iter().collect();
    weights.sort_unstable();
    let weights = weights.into_iter().map(|(group, weight)| format!("{group}={weight}"));
    weights.collect::<Vec<_>>().join(", ")
}

fn retry_text(retry: &RetryPolicy) -> String {
    let mut parts = Vec::new();
    match retry.max_attempts {
        0 => {}
        -1 => parts.push("no limit of attempts".to_owned()),
        attempts => parts.push(format!("{attempts} attempts")),
    }
    if !retry.delays.is_empty() {
        let delays: Vec<_> = retry.delays.iter().map(|delay| span(Some(*delay))).collect();
        parts.push(format!("after {}", delays.join(", ")));
    }
    match retry.max_crashes {
        0 => {}
        -1 => parts.push("no limit of crashes".to_owned()),
        crashes => parts.push(format!("{crashes} crashes")),
    }
    match retry.crash_topic.as_str() {
        "" => {}
        "-" => parts.push("no crash topic".to_owned()),
        topic => parts.push(format!("crash topic {topic}")),
    }
    let is_more = retry.initial_delay.is_some()
        || retry.max_delay.is_some()
        || retry.max_retry_duration.is_some()
        || retry.multiplier != 0.0
        || retry.jitter.is_some()
        || retry.max_deliveries != 0
        || retry.ignore_expired_leases.is_some();
    if is_more {
        parts.push("more with -o json".to_owned());
    }
    parts.join("; ")
}
