//! `ringq topic plan`: what a file with policies would change.

use std::collections::BTreeSet;
use std::path::PathBuf;

use clap::Args;

use super::super::connect::{ConnectArgs, ServerConnection};
use super::super::exit::CommandFailure;
use super::super::output::StdoutWriter;
use super::super::text::one_line;
use super::all_topics;
use super::settings::group_weights;
use crate::client::to_proto_duration;
use crate::config::TopicFile;
use crate::domain::{OverflowPolicy, RetryOverrides, TopicName, TopicPattern, TopicSettings};
use crate::pb::{self, RetryPolicy, Topic};

/// Arguments of `ringq topic plan`.
#[derive(Debug, Args)]
#[command(after_help = "\
Compares the file with the topics of a server and prints each setting that would change, by topic, and each table that \
takes settings of a pattern away; nothing is changed. \
Servers take the file by their setting `topics`.

Examples:
  ringq topic plan -f topics.toml
  ringq topic plan -f topics.d && kubectl apply -f topics.yaml

Exit code 2 if the file has mistakes, 1 if the servers would refuse it.")]
pub(in crate::cli) struct TopicPlanArgs {
    /// File with [topic.\"NAME\"] tables and a revision, or a directory of *.toml files
    #[arg(short, long, value_name = "PATH")]
    file: PathBuf,
    #[command(flatten)]
    connect: ConnectArgs,
}

/// Settings of a topic in the order in which they are printed; the texts are empty where the default holds.
type SettingTexts = Vec<(&'static str, String)>;

// === impl TopicPlanArgs ===

impl TopicPlanArgs {
    pub(super) async fn run(&self) -> Result<(), CommandFailure> {
        let file = TopicFile::read(&self.file)
            .map_err(|problems| CommandFailure::usage(problems.join("\n")))?;
        let topics = self.topics(&self.connect.connection()?).await?;
        let mut out = StdoutWriter::new();
        check_revision(&file, &topics)?;
        let mut changed = 0;
        for topic in &topics {
            let lines = differences(&file, topic);
            changed += usize::from(!lines.is_empty());
            if !lines.is_empty() {
                out.write_line(&one_line(&topic.name))?;
            }
            lines.iter().try_for_each(|line| out.write_line(&one_line(line)))?;
        }
        for line in hidden(&file) {
            out.write_line(&one_line(&line))?;
        }
        for name in unused(&file, &topics) {
            out.write_line(&one_line(&format!("{name}: no topic yet")))?;
        }
        let (total, revision) = (topics.len(), file.revision);
        out.write_line(&format!("revision {revision} changes {changed} of {total} topics"))?;
        out.flush()
    }

    async fn topics(&self, connection: &ServerConnection) -> Result<Vec<Topic>, CommandFailure> {
        let rows = all_topics(connection, "").await?;
        Ok(rows.into_iter().filter_map(|row| row.topic).collect())
    }
}

/// Fails if the servers would refuse the file.
fn check_revision(file: &TopicFile, topics: &[Topic]) -> Result<(), CommandFailure> {
    let revision = i64::try_from(file.revision).unwrap_or(i64::MAX);
    let refused = |text: String| {
        Err(CommandFailure::new(super::super::exit::FAILED, text)
            .with_hint("raise the revision of the file".to_owned()))
    };
    let highest = topics.iter().filter_map(|topic| topic.file_revision).max().unwrap_or(0);
    if highest > revision {
        return refused(format!(
            "the servers would refuse the file: revision {highest} is in force, and this is {revision}"
        ));
    }
    let differs = topics.iter().find(|topic| {
        topic.file_revision == Some(revision) && !differences(file, topic).is_empty()
    });
    match differs {
        Some(topic) => refused(format!(
            "the servers would refuse the file: another one of revision {revision} is in force, which differs in topic {}",
            topic.name
        )),
        None => Ok(()),
    }
}

/// Returns a line for each setting of a topic that the file changes.
fn differences(file: &TopicFile, topic: &Topic) -> Vec<String> {
    let by_file = file.settings(&TopicName::stored(&topic.name));
    let is_own = topic.file_revision.is_none() && topic.settings_from == topic.name;
    let wanted = match by_file {
        // What calls have set stays, unless the file names the topic itself.
        _ if is_own && by_file.is_none_or(|(name, _)| name != topic.name) => return Vec::new(),
        Some((_, settings)) => to_topic(settings),
        None => Topic::default(),
    };
    let pairs = texts(topic).into_iter().zip(texts(&wanted));
    let changed = pairs.filter(|((_, now), (_, then))| now != then);
    let shown = |text: String| if text.is_empty() { "default".to_owned() } else { text };
    changed
        .map(|((key, now), (_, then))| format!("  {key}: {} -> {}", shown(now), shown(then)))
        .collect()
}

/// Returns a line for each table that takes settings of a pattern away, because it does not repeat them.
fn hidden(file: &TopicFile) -> Vec<String> {
    let line = |(name, (_, settings)): (&String, &(TopicPattern, TopicSettings))| {
        let (pattern, below) = file.pattern_below(name)?;
        let pairs = texts(&to_topic(below)).into_iter().zip(texts(&to_topic(settings)));
        let lost = pairs.filter(|((_, below), (_, own))| !below.is_empty() && own.is_empty());
        let lost: Vec<_> = lost.map(|((key, _), _)| key).collect();
        let lost = Some(lost.join(", ")).filter(|lost| !lost.is_empty())?;
        Some(format!(
            "{name}: its table has no {lost}, which {pattern} sets; tables are not merged"
        ))
    };
    file.topics.iter().filter_map(line).collect()
}

/// Returns the names in the file that no topic gets settings from.
fn unused<'f>(file: &'f TopicFile, topics: &[Topic]) -> Vec<&'f str> {
    let used: BTreeSet<&str> = topics
        .iter()
        .filter_map(|topic| file.settings(&TopicName::stored(&topic.name)))
        .map(|(name, _)| name)
        .collect();
    file.topics.keys().map(String::as_str).filter(|name| !used.contains(name)).collect()
}

fn to_topic(settings: &TopicSettings) -> Topic {
    let RetryOverrides { delays, multiplier, jitter, .. } = &settings.retry;
    let retry = RetryPolicy {
        max_attempts: settings.retry.max_attempts.unwrap_or_default(),
        delays: delays.iter().copied().map(to_proto_duration).collect(),
        initial_delay: settings.retry.initial_delay.map(to_proto_duration),
        multiplier: multiplier.unwrap_or_default(),
        max_delay: settings.retry.max_delay.map(to_proto_duration),
        jitter: *jitter,
        max_retry_duration: settings.retry.max_retry_duration.map(to_proto_duration),
        ignore_expired_leases: settings.retry.ignore_expired_leases,
        max_deliveries: settings.retry.max_deliveries.unwrap_or_default(),
        max_crashes: settings.retry.max_crashes.unwrap_or_default(),
        crash_topic: settings
            .retry
            .crash_topic
            .as_ref()
            .map(|setting| setting.as_str().to_owned())
            .unwrap_or_default(),
    };
    Topic {
        description: settings.description.clone(),
        retry: Some(retry).filter(|retry| *retry != RetryPolicy::default()),
        lease_duration: settings.lease.map(to_proto_duration),
        retention: settings.retention.map(to_proto_duration),
        dead_retention: settings.dead_retention.map(to_proto_duration),
        priority: settings.priority.map(i32::from),
        priority_ageing: settings.priority_ageing.map(to_proto_duration),
        group_weights: settings
            .group_weights
            .iter()
            .map(|(group, weight)| (group.as_str().to_owned(), i32::from(*weight)))
            .collect(),
        max_jobs: settings.max_jobs.and_then(|max| i64::try_from(max).ok()).unwrap_or(0),
        max_stored_bytes: settings
            .max_stored_bytes
            .and_then(|max| i64::try_from(max).ok())
            .unwrap_or(0),
        on_full: match settings.on_full {
            OverflowPolicy::Reject => pb::OverflowPolicy::Unspecified.into(),
            OverflowPolicy::DropOldest => pb::OverflowPolicy::DropOldest.into(),
        },
        max_payload_bytes: settings
            .max_payload_bytes
            .and_then(|n| i32::try_from(n).ok())
            .unwrap_or(0),
        ..Topic::default()
    }
}

fn texts(topic: &Topic) -> SettingTexts {
    let duration = |duration: Option<prost_types::Duration>| {
        duration.map(|duration| super::super::times::span(Some(duration))).unwrap_or_default()
    };
    let number = |number: Option<i32>| number.map(|number| number.to_string()).unwrap_or_default();
    let maximum = |max: i64| if max > 0 { max.to_string() } else { String::new() };
    vec![
        ("description", topic.description.clone()),
        ("retry", topic.retry.as_ref().map(retry_text).unwrap_or_default()),
        ("lease", duration(topic.lease_duration)),
        ("retention", duration(topic.retention)),
        ("dead_retention", duration(topic.dead_retention)),
        ("priority", number(topic.priority)),
        ("priority_ageing", duration(topic.priority_ageing)),
        ("group_weights", group_weights(topic)),
        ("max_payload_bytes", number(Some(topic.max_payload_bytes).filter(|max| *max > 0))),
        ("max_jobs", maximum(topic.max_jobs)),
        ("max_stored_bytes", maximum(topic.max_stored_bytes)),
        ("on_full", on_full_text(topic).to_owned()),
    ]
}

fn on_full_text(topic: &Topic) -> &'static str {
    match topic.on_full() {
        pb::OverflowPolicy::Unspecified | pb::OverflowPolicy::Reject => "",
        pb::OverflowPolicy::DropOldest => "drop-oldest",
    }
}

/// Formats every field of a retry policy that is set.
fn retry_text(retry: &RetryPolicy) -> String {
    let span = |duration: prost_types::Duration| super::super::times::span(Some(duration));
    let mut parts = Vec::new();
    let mut part = |key: &str, text: Option<String>| {
        parts.extend(text.map(|text| format!("{key} {text}")));
    };
    let count = |count: i32| Some(count.to_string()).filter(|_| count != 0);
    part("max_attempts", count(retry.max_attempts));
    let delays: Vec<_> = retry.delays.iter().copied().map(span).collect();
    part("delays", Some(delays.join("/")).filter(|text| !text.is_empty()));
    part("initial_delay", retry.initial_delay.map(span));
    part("multiplier", Some(retry.multiplier.to_string()).filter(|_| retry.multiplier != 0.0));
    part("max_delay", retry.max_delay.map(span));
    part("jitter", retry.jitter.map(|jitter| jitter.to_string()));
    part("max_retry_duration", retry.max_retry_duration.map(span));
    part("ignore_expired_leases", retry.ignore_expired_leases.map(|ignore| ignore.to_string()));
    part("max_deliveries", count(retry.max_deliveries));
    part("max_crashes", count(retry.max_crashes));
    part("crash_topic", Some(retry.crash_topic.clone()).filter(|text| !text.is_empty()));
    parts.join(", ")
}
