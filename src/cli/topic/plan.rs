//! `ringq topic plan`: what a file with policies would change.

use std::collections::BTreeSet;
use std::path::PathBuf;

use clap::Args;

use super::super::connect::{ConnectArgs, ServerConnection};
use super::super::exit::CommandFailure;
use super::super::output::StdoutWriter;
use super::super::text::one_line;
use super::all_topics;
use crate::contract::topic_file::TopicFile;
use crate::contract::topic_settings::{self, SettingText};
use crate::domain::{TopicName, TopicSettings};
use crate::pb::Topic;

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

// === impl TopicPlanArgs ===

impl TopicPlanArgs {
    pub(super) async fn run(&self) -> Result<(), CommandFailure> {
        let file = TopicFile::read(&self.file)
            .map_err(|problems| CommandFailure::usage(problems.join("\n")))?;
        let topics = self.topics(&self.connect.connection()?).await?;
        let mut out = StdoutWriter::new();
        let changes = topics.iter().map(|topic| Ok((topic, differences(&file, topic)?)));
        let changes = changes.collect::<Result<Vec<_>, CommandFailure>>()?;
        check_revision(&file, &changes)?;
        let mut changed = 0;
        for (topic, lines) in &changes {
            changed += usize::from(!lines.is_empty());
            if !lines.is_empty() {
                out.write_line(&one_line(&topic.name))?;
            }
            lines.iter().try_for_each(|line| out.write_line(&one_line(line)))?;
        }
        for line in hidden(&file)? {
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

/// Fails if the servers would refuse the file, which changes these topics.
fn check_revision(
    file: &TopicFile,
    changes: &[(&Topic, Vec<String>)],
) -> Result<(), CommandFailure> {
    let revision = i64::try_from(file.revision).unwrap_or(i64::MAX);
    let refused = |text: String| {
        Err(CommandFailure::new(super::super::exit::FAILED, text)
            .with_hint("raise the revision of the file".to_owned()))
    };
    let highest = changes.iter().filter_map(|(topic, _)| topic.file_revision).max().unwrap_or(0);
    if highest > revision {
        return refused(format!(
            "the servers would refuse the file: revision {highest} is in force, and this is {revision}"
        ));
    }
    let differs = changes
        .iter()
        .find(|(topic, lines)| topic.file_revision == Some(revision) && !lines.is_empty());
    match differs {
        Some((topic, _)) => refused(format!(
            "the servers would refuse the file: another one of revision {revision} is in force, which differs in topic {}",
            topic.name
        )),
        None => Ok(()),
    }
}

/// Returns a line for each setting of a topic that the file changes.
fn differences(file: &TopicFile, topic: &Topic) -> Result<Vec<String>, CommandFailure> {
    let by_file = file.settings(&TopicName::stored(&topic.name));
    let is_own = topic.file_revision.is_none() && topic.settings_from == topic.name;
    // What calls have set stays, unless the file names the topic itself.
    if is_own && by_file.is_none_or(|(name, _)| name != topic.name) {
        return Ok(Vec::new());
    }
    let default = TopicSettings::default();
    let wanted = by_file.map_or(&default, |(_, settings)| settings);
    let pairs = texts(topic)?.into_iter().zip(file_texts(wanted)?);
    let changed = pairs.filter(|((_, now), (_, then))| now != then);
    let shown = |text: String| if text.is_empty() { "default".to_owned() } else { text };
    let line = |((setting, now), (_, then)): (SettingText, SettingText)| {
        format!("  {}: {} -> {}", setting.key(), shown(now), shown(then))
    };
    Ok(changed.map(line).collect())
}

/// Returns a line for each table that takes settings of a pattern away, because it does not repeat them.
fn hidden(file: &TopicFile) -> Result<Vec<String>, CommandFailure> {
    let mut lines = Vec::new();
    for (name, (_, settings)) in &file.topics {
        let Some((pattern, below)) = file.pattern_below(name) else { continue };
        let pairs = file_texts(below)?.into_iter().zip(file_texts(settings)?);
        let lost = pairs.filter(|((_, below), (_, own))| !below.is_empty() && own.is_empty());
        let lost: Vec<_> = lost.map(|((setting, _), _)| setting.key()).collect();
        if !lost.is_empty() {
            let lost = lost.join(", ");
            lines.push(format!(
                "{name}: its table has no {lost}, which {pattern} sets; tables are not merged"
            ));
        }
    }
    Ok(lines)
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

/// Returns each setting of a topic with its text, which is empty where the default holds.
fn texts(topic: &Topic) -> Result<Vec<SettingText>, CommandFailure> {
    Ok(topic_settings::texts(topic).map_err(anyhow::Error::msg)?)
}

/// Returns each setting of a table with its text.
fn file_texts(settings: &TopicSettings) -> Result<Vec<SettingText>, CommandFailure> {
    texts(&topic_settings::to_settings(settings, Topic::default()))
}
