//! `ringq topic pause`, `resume` and `delete`.

use std::time::{Duration, SystemTime};

use clap::Args;

use super::super::connect::ConnectArgs;
use super::super::exit::CommandFailure;
use super::super::output::{OutputArgs, StdoutWriter, print_json};
use super::super::text::one_line;
use super::super::times::Now;
use super::super::values;
use super::warn_missing;
use crate::pb::{DeleteTopicRequest, PauseTopicRequest, ResumeTopicRequest};

/// Arguments of `ringq topic pause`.
#[derive(Debug, Args)]
#[command(after_help = "\
No job of the topic is delivered any more, by any server. Jobs are still enqueued, and those that run go on: \
`ringq topic stats` shows how many.

Examples:
  ringq topic pause emails --note 'provider is down'
  ringq topic pause emails --for 30m
  ringq topic pause emails --until 2027-01-31T09:00:00+01:00")]
pub(in crate::cli) struct TopicPauseArgs {
    /// The topic
    #[arg(value_parser = values::non_empty)]
    topic: String,
    /// Why, for people
    #[arg(long, value_name = "TEXT")]
    note: Option<String>,
    /// Resume by itself after this time
    #[arg(long = "for", value_name = "DURATION", value_parser = values::duration, conflicts_with = "until")]
    duration: Option<Duration>,
    /// Resume by itself at this time, RFC 3339
    #[arg(long, value_name = "TIME", value_parser = values::time)]
    until: Option<SystemTime>,
    #[command(flatten)]
    output: OutputArgs,
    #[command(flatten)]
    connect: ConnectArgs,
}

/// Arguments of `ringq topic resume`.
#[derive(Debug, Args)]
#[command(after_help = "\
Example:
  ringq topic resume emails")]
pub(in crate::cli) struct TopicResumeArgs {
    /// The topic
    #[arg(value_parser = values::non_empty)]
    topic: String,
    #[command(flatten)]
    output: OutputArgs,
    #[command(flatten)]
    connect: ConnectArgs,
}

/// Arguments of `ringq topic delete`.
#[derive(Debug, Args)]
#[command(after_help = "\
Removes the settings, the pause and the totals of a topic without jobs; with --force its jobs go first, also those that \
run. A later job creates it anew, with the defaults.

Examples:
  ringq topic delete emails
  ringq topic delete emails --etag 3.18c0a7f1   only if nothing has changed since")]
pub(in crate::cli) struct TopicDeleteArgs {
    /// The topic
    #[arg(value_parser = values::non_empty)]
    topic: String,
    /// Delete its jobs, too
    #[arg(long)]
    force: bool,
    /// Delete it only if it still has this etag, which `ringq topic get` prints
    #[arg(long, value_name = "ETAG")]
    etag: Option<String>,
    #[command(flatten)]
    connect: ConnectArgs,
}

// === impl TopicPauseArgs ===

impl TopicPauseArgs {
    pub(super) async fn run(&self) -> Result<(), CommandFailure> {
        let connection = self.connect.connection()?;
        let after =
            self.duration.map(|duration| SystemTime::from(Now::read().timestamp()) + duration);
        let request = PauseTopicRequest {
            name: self.topic.clone(),
            note: self.note.clone().unwrap_or_default(),
            until_time: self.until.or(after).map(prost_types::Timestamp::from),
        };
        let mut topics = connection.client().topics();
        let answer = topics.pause_topic(connection.request(request));
        let what = format!("cannot pause topic {}", self.topic);
        let answer = connection.call(&what, answer).await?;
        let (topic, mut out) = (answer.topic.unwrap_or_default(), StdoutWriter::new());
        if self.output.is_json() {
            print_json(&mut out, &topic)?;
        } else {
            let until = match topic.pause_until {
                Some(_) => format!("until {}", Now::read().full(topic.pause_until)),
                None => format!("until `ringq topic resume {}`", self.topic),
            };
            out.write_line(&one_line(&format!("{} PAUSED {until}", self.topic)))?;
            out.flush()?;
        }
        warn_missing(&answer.unreachable_shards);
        Ok(())
    }
}

// === impl TopicResumeArgs ===

impl TopicResumeArgs {
    pub(super) async fn run(&self) -> Result<(), CommandFailure> {
        let connection = self.connect.connection()?;
        let request = connection.request(ResumeTopicRequest { name: self.topic.clone() });
        let mut topics = connection.client().topics();
        let what = format!("cannot resume topic {}", self.topic);
        let answer = connection.call(&what, topics.resume_topic(request)).await?;
        let mut out = StdoutWriter::new();
        if self.output.is_json() {
            print_json(&mut out, &answer.topic.unwrap_or_default())?;
        } else {
            out.write_line(&one_line(&format!("{} ACTIVE", self.topic)))?;
            out.flush()?;
        }
        warn_missing(&answer.unreachable_shards);
        Ok(())
    }
}

// === impl TopicDeleteArgs ===

impl TopicDeleteArgs {
    pub(super) async fn run(&self) -> Result<(), CommandFailure> {
        let connection = self.connect.connection()?;
        let (name, etag) = (self.topic.clone(), self.etag.clone().unwrap_or_default());
        let request = DeleteTopicRequest { name, etag, force: self.force };
        let mut topics = connection.client().topics();
        let answer = topics.delete_topic(connection.request(request));
        let what = format!("cannot delete topic {}", self.topic);
        let answer = connection.call(&what, answer).await?;
        let mut out = StdoutWriter::new();
        out.write_line(&one_line(&format!("{} deleted", self.topic)))?;
        out.flush()?;
        warn_missing(&answer.unreachable_shards);
        Ok(())
    }
}
