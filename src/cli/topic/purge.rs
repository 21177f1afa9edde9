//! `ringq topic purge`: removes the jobs of a topic that are in given states.

use std::io::{self, IsTerminal as _, Write as _};

use clap::Args;

use super::connect::{ConnectArgs, ServerConnection};
use super::exit::{self, CommandFailure, print_error};
use super::job_state::{self, JobStateArg};
use super::output::{OutputArgs, StdoutWriter, print_json};
use super::values;
use crate::pb::{JobState, PurgeTopicRequest, PurgeTopicResponse};

/// Arguments of `ringq topic purge`.
#[derive(Debug, Args)]
#[command(after_help = "\
Jobs that wait or run turn CANCELLED, and workers receive a revocation; ended ones, dead letters too, are removed at \
once. Jobs enqueued after the command began stay. On a terminal the command counts the jobs and asks; elsewhere it \
needs --yes. A call that ran out of time has removed a part: the same command again goes on with the rest. The same \
holds for jobs on a shard that did not answer; the exit code is then 4.

Examples:
  ringq topic purge emails --state dead --dry-run
  ringq topic purge emails --state dead
  ringq topic purge emails --state ready,scheduled,backoff --yes --timeout 5m
  ringq topic purge emails --state dead --yes -o json | jq -r .purgedCount")]
pub(in crate::cli) struct TopicPurgeArgs {
    /// The topic
    #[arg(value_parser = values::non_empty)]
    topic: String,
    /// Remove the jobs in these states; there is no default
    #[arg(
        long,
        value_enum,
        value_name = "STATE",
        value_delimiter = ',',
        ignore_case = true,
        required = true
    )]
    state: Vec<JobStateArg>,
    /// Only count them
    #[arg(long)]
    dry_run: bool,
    /// Do not ask
    #[arg(short, long)]
    yes: bool,
    #[command(flatten)]
    output: OutputArgs,
    #[command(flatten)]
    connect: ConnectArgs,
}

// === impl TopicPurgeArgs ===

impl TopicPurgeArgs {
    pub(super) async fn run(&self) -> Result<(), CommandFailure> {
        let asks = !self.dry_run && !self.yes;
        if asks && !(io::stdin().is_terminal() && io::stderr().is_terminal()) {
            let problem = "this removes jobs for good, and there is no terminal to ask at";
            let hint = "confirm it with --yes, or count the jobs with --dry-run";
            return Err(CommandFailure::usage(problem).with_hint(hint));
        }
        let connection = self.connect.connection()?;
        if asks {
            let counted = self.call(&connection, true).await?;
            // Shards that do not answer now may do so in a moment.
            let is_empty = counted.purged_count == 0 && counted.unreachable_shards.is_empty();
            if !is_empty && !self.confirm(counted.purged_count).await? {
                let problem = "not confirmed, nothing was removed";
                return Err(CommandFailure::new(exit::FAILED, problem));
            }
        }
        let answer = self.call(&connection, self.dry_run).await?;
        let mut out = StdoutWriter::new();
        if self.output.is_json() {
            print_json(&mut out, &answer)?;
        } else {
            let done = if self.dry_run { "would be removed" } else { "removed" };
            out.write_line(&format!("{} {done}", answer.purged_count))?;
            out.flush()?;
        }
        self.fail_if_partial(&answer)
    }

    /// Returns the states, each once.
    fn states(&self) -> Vec<JobState> {
        let mut states: Vec<JobState> = Vec::new();
        for state in self.state.iter().map(|&state| state.into()) {
            if !states.contains(&state) {
                states.push(state);
            }
        }
        states
    }

    async fn call(
        &self,
        connection: &ServerConnection,
        validate_only: bool,
    ) -> Result<PurgeTopicResponse, CommandFailure> {
        let request = connection.request(PurgeTopicRequest {
            name: self.topic.clone(),
            states: self.states().into_iter().map(Into::into).collect(),
            validate_only,
        });
        let mut topics = connection.client().topics();
        let what = format!("cannot purge topic {}", self.topic);
        connection.call(&what, topics.purge_topic(request)).await
    }

    /// Asks for a confirmation; only a yes is one.
    async fn confirm(&self, count: i64) -> Result<bool, CommandFailure> {
        let states: Vec<_> = self.states().into_iter().map(job_state::name).collect();
        let jobs = if count == 1 { "job" } else { "jobs" };
        let question = format!(
            "Remove {count} {jobs} of {} ({}) for good? [y/N] ",
            self.topic,
            states.join(", ")
        );
        let mut stderr = io::stderr();
        // A closed stderr is no terminal.
        let _ = stderr.write_all(question.as_bytes()).and_then(|()| stderr.flush());
        // On a thread of its own, so that Ctrl-C ends the command while it waits.
        let read = tokio::task::spawn_blocking(|| {
            let mut answer = String::new();
            io::stdin().read_line(&mut answer).map(|_| answer)
        });
        let answer = read.await.map_err(anyhow::Error::from)?;
        let answer = answer.map_err(|error| {
            CommandFailure::new(exit::FAILED, format!("cannot read the answer: {error}"))
        })?;
        Ok(matches!(answer.trim().to_lowercase().as_str(), "y" | "yes"))
    }

    /// Fails if jobs were left, or not counted.
    fn fail_if_partial(&self, answer: &PurgeTopicResponse) -> Result<(), CommandFailure> {
        if self.dry_run {
            return super::fail_if_partial(answer.unreachable_shards.iter());
        }
        if answer.unreachable_shards.is_empty() {
            return Ok(());
        }
        print_error(&format!(
            "jobs may be left on shards that ran out of time, do not answer, or are not configured at this server: {}",
            answer.unreachable_shards.join(", ")
        ));
        let hint = "the same command again goes on with them, with --timeout for longer; `ringq shard list` prints why \
                    a shard does not answer";
        Err(CommandFailure::already_reported(exit::UNAVAILABLE).with_hint(hint))
    }
}
