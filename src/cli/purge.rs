//! Purges of a topic or of a group: remove the jobs that are in given states.

use std::io::{self, IsTerminal as _};

use clap::Args;

use super::connect::{ConnectArgs, ServerConnection};
use super::exit::{self, CommandFailure, print_error};
use super::job_state::{self, JobStateArg};
use super::output::{OutputArgs, StdoutWriter, print_json};
use crate::pb::{GetServerInfoRequest, JobState, PurgeTopicRequest, PurgeTopicResponse};
use crate::stderr;

/// Feature of servers that purge single groups.
const FEATURE: &str = "group_purge";

/// Flags of a purge.
#[derive(Debug, Args)]
pub(super) struct PurgeArgs {
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

/// Jobs that a purge removes.
pub(super) struct PurgedPart<'a> {
    /// Topic of the jobs.
    pub(super) topic: &'a str,
    /// Group of the jobs, as it is sent; `None`: all jobs of the topic.
    pub(super) group: Option<&'a str>,
}

// === impl PurgedPart ===

impl PurgedPart<'_> {
    /// Returns the name for people.
    fn name(&self) -> String {
        match self.group {
            None => self.topic.to_owned(),
            Some("") => format!("{}, without a group", self.topic),
            Some(group) => format!("{}, group {group}", self.topic),
        }
    }
}

/// Checks that the server knows groups: another one would remove the jobs of all.
async fn check_feature(connection: &ServerConnection) -> Result<(), CommandFailure> {
    let request = connection.request(GetServerInfoRequest {});
    let mut admin = connection.client().admin();
    let info = connection.call("cannot read the server", admin.get_server_info(request)).await?;
    if info.features.iter().any(|feature| feature == FEATURE) {
        return Ok(());
    }
    let problem = format!("the server lacks the feature {FEATURE}: it would purge all groups");
    Err(CommandFailure::new(exit::FAILED, problem))
}

// === impl PurgeArgs ===

impl PurgeArgs {
    pub(super) async fn run(&self, part: &PurgedPart<'_>) -> Result<(), CommandFailure> {
        let asks = !self.dry_run && !self.yes;
        if asks && !(io::stdin().is_terminal() && stderr::is_terminal()) {
            let problem = "this removes jobs for good, and there is no terminal to ask at";
            let hint = "confirm it with --yes, or count the jobs with --dry-run";
            return Err(CommandFailure::usage(problem).with_hint(hint));
        }
        let connection = self.connect.connection()?;
        if part.group.is_some() {
            check_feature(&connection).await?;
        }
        if asks {
            let counted = self.call(&connection, part, true).await?;
            // Shards that do not answer now may do so in a moment.
            let is_empty = counted.purged_count == 0 && counted.unreachable_shards.is_empty();
            if !is_empty && !self.confirm(part, counted.purged_count).await? {
                let problem = "not confirmed, nothing was removed";
                return Err(CommandFailure::new(exit::FAILED, problem));
            }
        }
        let answer = self.call(&connection, part, self.dry_run).await?;
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
        part: &PurgedPart<'_>,
        validate_only: bool,
    ) -> Result<PurgeTopicResponse, CommandFailure> {
        let request = connection.request(PurgeTopicRequest {
            name: part.topic.to_owned(),
            states: self.states().into_iter().map(Into::into).collect(),
            validate_only,
            group: part.group.map(str::to_owned),
        });
        let mut topics = connection.client().topics();
        let what = format!("cannot purge topic {}", part.topic);
        connection.call(&what, topics.purge_topic(request)).await
    }

    /// Asks for a confirmation; only a yes is one.
    async fn confirm(&self, part: &PurgedPart<'_>, count: i64) -> Result<bool, CommandFailure> {
        let states: Vec<_> = self.states().into_iter().map(job_state::name).collect();
        let jobs = if count == 1 { "job" } else { "jobs" };
        let question = format!(
            "Remove {count} {jobs} of {} ({}) for good? [y/N] ",
            part.name(),
            states.join(", ")
        );
        stderr::write(question.as_bytes());
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
            return exit::fail_if_partial(answer.unreachable_shards.iter());
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
