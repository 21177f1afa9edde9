//! `ringq topic get`, `create` and `set`: the settings of a topic.

use clap::builder::{PossibleValue, PossibleValuesParser};
use clap::{Arg, ArgAction, ArgMatches, Args, Command, FromArgMatches};

use super::super::connect::{ConnectArgs, ServerConnection};
use super::super::exit::CommandFailure;
use super::super::info::strip_enum_prefix;
use super::super::output::{Block, OutputArgs, StdoutWriter, print_json};
use super::super::times::Now;
use super::super::values;
use super::warn_missing;
use crate::contract::topic_settings::{self, SettingFlag, TOPIC_SETTINGS};
use crate::pb::{CreateTopicRequest, GetTopicRequest, Topic, TopicState, UpdateTopicRequest};

/// Form of the value of a text for people.
const TEXT: &str = "TEXT";

/// Settings that flags give, each with its text.
#[derive(Clone, Debug)]
struct SettingsArgs(Vec<(&'static SettingFlag, String)>);

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
    #[arg(long, value_name = "SETTING", value_parser = TOPIC_SETTINGS.each_ref().map(|setting| setting.name))]
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

impl Args for SettingsArgs {
    fn augment_args(command: Command) -> Command {
        command.args(topic_settings::flags().map(arg))
    }

    fn augment_args_for_update(command: Command) -> Command {
        SettingsArgs::augment_args(command)
    }
}

impl FromArgMatches for SettingsArgs {
    fn from_arg_matches(matches: &ArgMatches) -> Result<SettingsArgs, clap::Error> {
        let given = topic_settings::flags().filter_map(|flag| {
            let texts = matches.get_many::<String>(flag.name)?;
            Some((flag, texts.map(String::as_str).collect::<Vec<_>>().join(",")))
        });
        Ok(SettingsArgs(given.collect()))
    }

    fn update_from_arg_matches(&mut self, matches: &ArgMatches) -> Result<(), clap::Error> {
        *self = SettingsArgs::from_arg_matches(matches)?;
        Ok(())
    }
}

impl SettingsArgs {
    /// Returns the topic with these settings.
    fn change(&self, topic: &Topic) -> Result<Topic, CommandFailure> {
        let given = self.0.iter().map(|(flag, text)| (*flag, text.as_str()));
        topic_settings::with_flags(topic, given).map_err(CommandFailure::usage)
    }

    /// Returns the fields of the settings that are given.
    fn fields(&self) -> Vec<&'static str> {
        let mut fields: Vec<_> = self.0.iter().map(|(flag, _)| flag.path[0]).collect();
        fields.dedup();
        fields
    }
}

/// Parses the value of a flag. Only a text for people may be empty.
fn value(flag: &SettingFlag, text: &str) -> Result<String, String> {
    if flag.value != TEXT {
        values::non_empty(text)?;
    }
    topic_settings::with_flags(&Topic::default(), [(flag, text)]).map(|_| text.to_owned())
}

/// Returns the argument of a flag.
fn arg(flag: &'static SettingFlag) -> Arg {
    let is_list = flag.value.ends_with(",…");
    let arg = Arg::new(flag.name)
        .long(flag.name)
        .value_name(flag.value)
        .help(flag.help)
        .help_heading("Settings")
        .action(if is_list { ArgAction::Append } else { ArgAction::Set })
        // A text that looks like a flag is one.
        .allow_hyphen_values(flag.value != TEXT);
    if flag.choices.is_empty() {
        return arg.value_parser(move |text: &str| value(flag, text));
    }
    let choices = flag.choices.iter().map(|(name, help)| PossibleValue::new(*name).help(*help));
    arg.value_parser(PossibleValuesParser::new(choices))
}

// === impl TopicCreateArgs ===

impl TopicCreateArgs {
    pub(super) async fn run(&self) -> Result<(), CommandFailure> {
        let connection = self.connect.connection()?;
        let topic = Topic { name: self.topic.clone(), ..Topic::default() };
        let topic = Some(self.settings.change(&topic)?);
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
            let setting = TOPIC_SETTINGS.iter().find(|setting| setting.name == unset);
            match setting.map(|setting| setting.field) {
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
        let topic = self.settings.change(&self.with_own_retry(&connection).await?)?;
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

    /// Returns the topic to change. A retry policy is sent whole: flags change only their part of the one that is set.
    async fn with_own_retry(&self, connection: &ServerConnection) -> Result<Topic, CommandFailure> {
        let (name, etag) = (self.topic.clone(), self.etag.clone().unwrap_or_default());
        let mut topic = Topic { name, etag, ..Topic::default() };
        if !self.settings.fields().contains(&"retry") {
            return Ok(topic);
        }
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
        topic.retry = found.retry.filter(|_| found.settings_from == self.topic);
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
        block(&topic)?.print(&mut out)?;
        out.flush()?;
    }
    warn_missing(missing);
    Ok(())
}

fn block(topic: &Topic) -> Result<Block, CommandFailure> {
    let (mut block, now) = (Block::default(), Now::read());
    block.line("topic", &topic.name);
    let state = strip_enum_prefix(topic.state().as_str_name(), "TOPIC_STATE_");
    block.line("state", state);
    if topic.state() == TopicState::Paused {
        block.line("paused until", now.full(topic.pause_until));
        block.line("reason", &topic.pause_note);
    }
    let from = match (topic.settings_from.as_str(), topic.file_revision) {
        ("", _) => "the server's defaults".to_owned(),
        (name, None) => name.to_owned(),
        (name, Some(revision)) => format!("{name}, a file of revision {revision}"),
    };
    block.line("settings from", from);
    for (setting, text) in topic_settings::texts(topic).map_err(anyhow::Error::msg)? {
        block.line(setting.name.replace('-', " "), text);
    }
    block.line("created", now.full(topic.create_time));
    block.line("changed", now.full(topic.update_time));
    block.line("etag", &topic.etag);
    Ok(block)
}
