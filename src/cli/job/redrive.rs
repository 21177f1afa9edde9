//! `ringq job redrive`.

use clap::Args;

use super::connect::Connect;
use super::exit::{self, Failure};
use super::output::{Out, OutputArgs, print_json};
use super::values;
use crate::pb::{RedriveJobsRequest, RedriveJobsResponse};

/// Which dead letters, and where to.
#[derive(Debug, Args)]
#[command(after_help = "\
A call that ran out of time has moved a part: the same command again goes on with the rest. Exit
code 1 if a job that was named could not be put back.

Examples:
  ringq job redrive emails --all --dry-run
  ringq job redrive emails --all --rate 10/s
  ringq job redrive emails welcome-7 welcome-8
  ringq job redrive emails --all --to emails.slow")]
#[command(group(clap::ArgGroup::new("which").required(true)))]
pub(in crate::cli) struct Redrive {
    /// The topic
    topic: String,
    /// The ids of dead letters
    #[arg(value_name = "ID", group = "which")]
    ids: Vec<String>,
    /// All dead letters of the topic
    #[arg(long, group = "which")]
    all: bool,
    /// Spread them: as many as this per second (10/s), minute (600/m) or hour [default: all at once]
    #[arg(long, value_name = "N/s", value_parser = values::rate)]
    rate: Option<f64>,
    /// Move them to this topic
    #[arg(long, value_name = "TOPIC")]
    to: Option<String>,
    /// Only count them
    #[arg(long)]
    dry_run: bool,
    #[command(flatten)]
    output: OutputArgs,
    #[command(flatten)]
    connect: Connect,
}

// === impl Redrive ===

impl Redrive {
    pub(super) async fn run(&self) -> Result<(), Failure> {
        let connection = self.connect.connection()?;
        let request = connection.request(RedriveJobsRequest {
            topic: self.topic.clone(),
            ids: self.ids.clone(),
            target_topic: self.to.clone().unwrap_or_default(),
            max_rate: self.rate.unwrap_or_default(),
            validate_only: self.dry_run,
            ..Default::default()
        });
        let what = format!("cannot redrive the dead letters of {}", self.topic);
        let mut admin = connection.client().admin();
        let answer = connection.call(&what, admin.redrive_jobs(request)).await?;
        let mut out = Out::new();
        if self.output.is_json() {
            print_json(&mut out, &answer)?;
        } else {
            out.line(&self.sentence(&answer))?;
            out.flush()?;
        }
        if self.ids.is_empty() || answer.skipped_count == 0 {
            return Ok(());
        }
        let left = format!("{} of the jobs named were left", answer.skipped_count);
        let hint = format!(
            "they are missing, not dead, or taken in the target; see `ringq job get {} ID`",
            self.topic
        );
        Err(Failure::new(exit::FAILED, left).hint(hint))
    }

    fn sentence(&self, answer: &RedriveJobsResponse) -> String {
        let done = if self.dry_run { "would be put back to work" } else { "put back to work" };
        let mut text = format!("{} {done}", answer.redriven_count);
        if answer.skipped_count > 0 {
            text.push_str(&format!(", {} left", answer.skipped_count));
        }
        text
    }
}
