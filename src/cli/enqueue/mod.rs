//! `ringq enqueue`: one job, or one for each line.

mod answer;
mod input;
mod lines;
mod printer;
mod progress;
mod resume;
mod spec;
mod wait;

use std::path::PathBuf;
use std::pin::pin;
use std::time::Duration;

use anyhow::Context as _;
use clap::{Args, ValueEnum};
use tokio::time::timeout;

use super::connect::{self, ConnectArgs, ServerConnection};
use super::exit::{self, CommandFailure, print_note};
use super::output::{OutputArgs, StdoutWriter, print_json};
use super::text::one_line;
use super::times::{self, warn_past_time};
use super::{info, job_state, output, text, trace_context, values};
use crate::client::Error;
use crate::contract::duration_text::show_duration;
use crate::pb::{
    ConflictPolicy, Durability, EnqueueOutcome, EnqueueRequest, EnqueueResponse, JobSpec, JobState,
    Payload,
};
use crate::stderr;
use resume::ResumeArgs;
use spec::SpecArgs;

/// Time without an answer after which a note is printed: while a shard does not answer, the server repeats an enqueue
/// until the deadline.
const SLOW_NOTICE_AFTER: Duration = Duration::from_secs(2);

const AFTER_HELP: &str = "\
The id is printed on stdout. Standard input is read only with -, so that `while read …` loops keep \
theirs. Without PAYLOAD the job is empty. If data is piped in without -, the command fails (exit code 2).

--lines enqueues each line as a job, in batches: ids are printed in the order of the lines, empty lines are skipped and \
a final CR is cut off. A line that the server rejects is reported with its number and the others go on; the exit code is \
then 1.

A batch that fails is retried for --timeout, unless it may be stored and the run has no ids. If it still fails, and after Ctrl-C or SIGTERM, the run stops and prints the \
first line that is not confirmed, with the flags that resume there. All lines before it are stored, or were rejected with \
their number. Up to 4000 lines from there on may be stored, too. With --request-id or --id-from-payload a run that resumes \
recognizes these for 60s from when they were sent, or for --retention; otherwise, and later, --may-repeat is needed. A run \
without ids goes on while one of several shards is down; an id belongs to one shard, and the run stops if that is down.

Examples:
  ringq enqueue emails '{\"to\":\"ada@example.org\"}'
  ringq enqueue emails --delay 5m --retry-delays 60s,180s,300s 'later'
  ringq enqueue images - --id cat.jpg --on-conflict replace < cat.jpg
  ringq enqueue reports '{\"month\":3}' --wait --retention 1h > report.json
  find . -type f | ringq enqueue hash --lines - --id-from-payload --quiet";

/// Flags of `ringq enqueue`.
#[derive(Debug, Args)]
#[command(after_help = AFTER_HELP)]
pub(super) struct EnqueueArgs {
    /// The topic; the first job creates it
    #[arg(value_parser = values::non_empty)]
    topic: String,
    /// The data for the worker, or - for standard input: UTF-8 is sent as text, anything else as bytes
    #[arg(value_name = "PAYLOAD|-")]
    payload: Option<String>,
    /// Enqueue each line of this file, or of stdin (-), as a job of its own
    #[arg(long, value_name = "FILE", conflicts_with_all = ["payload", "id", "wait"])]
    lines: Option<PathBuf>,
    /// Wait until the job has ended and print its result instead of its id; exit code 1 unless it SUCCEEDED. Polls
    /// the server, at least once a second
    #[arg(long)]
    wait: bool,
    /// With --wait: give up waiting after this long; the job stays [default: wait for ever]
    #[arg(long, value_name = "DURATION", value_parser = values::duration, allow_hyphen_values = true)]
    #[arg(requires = "wait")]
    wait_timeout: Option<Duration>,
    /// Print only errors: no ids, no notes, no progress
    #[arg(short, long)]
    quiet: bool,
    #[command(flatten)]
    output: OutputArgs,
    #[command(flatten)]
    identity: EnqueueIdentityArgs,
    #[command(flatten)]
    resume: ResumeArgs,
    #[command(flatten)]
    spec: SpecArgs,
    #[command(flatten)]
    connect: ConnectArgs,
}

/// Flags that determine which jobs are the same.
#[derive(Debug, Args)]
#[command(next_help_heading = "Identity")]
struct EnqueueIdentityArgs {
    /// The job's id inside the topic [default: the server makes one]
    #[arg(long, value_parser = values::non_empty)]
    id: Option<String>,
    /// Use the SHA-256 of the payload as id: the same content is the same job. A line end counts in the input of -,
    /// but not in a line of --lines
    #[arg(long, conflicts_with = "id")]
    id_from_payload: bool,
    /// Make the call safe to repeat: the same value is applied once while the record lives. Without
    /// an id the id is r=<REQUEST_ID>, with --lines r=<REQUEST_ID>=<LINE>
    #[arg(long, value_parser = values::non_empty)]
    request_id: Option<String>,
    /// Action if the id is taken [default: keep]
    #[arg(long, value_enum, value_name = "POLICY", ignore_case = true)]
    on_conflict: Option<OnConflictArg>,
    /// Fail unless the job gets at least this durability [default: that of the server]
    #[arg(long, value_enum, value_name = "LEVEL", ignore_case = true)]
    durability: Option<DurabilityArg>,
}

/// Values of `--on-conflict`, see `ConflictPolicy` in the API.
#[derive(Clone, Copy, Debug, ValueEnum)]
enum OnConflictArg {
    /// Leave the existing job as it is
    Keep,
    /// New payload, time and policy; the counters start again
    Replace,
    /// Change only its time and priority
    Reschedule,
    /// Fail
    Reject,
}

/// Values of `--durability`, see `Durability` in the API.
#[derive(Clone, Copy, Debug, ValueEnum)]
enum DurabilityArg {
    /// Survives a crash of ringq
    Memory,
    /// Survives a power cut
    Fsynced,
    /// Also survives the loss of the store's machine: a replica has the job
    Replicated,
}

// === impl EnqueueIdentityArgs ===

impl EnqueueIdentityArgs {
    fn policy(&self) -> ConflictPolicy {
        match self.on_conflict {
            None => ConflictPolicy::Unspecified,
            Some(OnConflictArg::Keep) => ConflictPolicy::Keep,
            Some(OnConflictArg::Replace) => ConflictPolicy::Replace,
            Some(OnConflictArg::Reschedule) => ConflictPolicy::Reschedule,
            Some(OnConflictArg::Reject) => ConflictPolicy::Reject,
        }
    }

    /// Returns whether a line that is enqueued again is recognized by its id, and changes nothing.
    fn recognizes_lines(&self) -> bool {
        let keeps = matches!(self.on_conflict, None | Some(OnConflictArg::Keep));
        self.request_id.is_some() || self.id_from_payload && keeps
    }

    fn durability(&self) -> Durability {
        match self.durability {
            None => Durability::Unspecified,
            Some(DurabilityArg::Memory) => Durability::Memory,
            Some(DurabilityArg::Fsynced) => Durability::Fsynced,
            Some(DurabilityArg::Replicated) => Durability::Replicated,
        }
    }
}

// === impl EnqueueArgs ===

impl EnqueueArgs {
    pub(super) fn run(&self) -> Result<(), CommandFailure> {
        match &self.lines {
            // Handles signals itself, to report its progress.
            Some(file) => connect::block_on(lines::run(self, file)),
            None => connect::run_until_interrupt(async {
                self.enqueue_one(self.payload().await?).await
            }),
        }
    }

    /// Builds the job without its payload and id.
    fn template(&self) -> Result<JobSpec, CommandFailure> {
        let mut job = self.spec.job(&self.topic)?;
        if self.wait && job.retention.is_none() {
            job.retention = Some(crate::client::to_proto_duration(wait::RETENTION));
        }
        Ok(job)
    }

    async fn payload(&self) -> Result<Option<Payload>, CommandFailure> {
        match self.payload.as_deref() {
            Some("-") => {
                // Not awaited to its end: a terminal or a pipe may never end.
                let read = tokio::task::spawn_blocking(input::whole_stdin).await;
                read.context("cannot read standard input")?.map(Some)
            }
            Some(text) => Ok(Some(Payload::text(text))),
            None if input::is_piped_in().await => Err(CommandFailure::usage(
                "data is piped in, but PAYLOAD is missing",
            )
            .with_hint(format!(
                "to send it use -, as in `… | ringq enqueue {0} -`; \
                     for an empty job `ringq enqueue {0} … < /dev/null`",
                self.topic
            ))),
            None => Ok(None),
        }
    }

    async fn enqueue_one(&self, payload: Option<Payload>) -> Result<(), CommandFailure> {
        let connection = self.connect.connection()?;
        let mut job = self.template()?;
        job.id = self.id(payload.as_ref());
        let broken = payload.as_ref().and_then(|payload| self.spec.broken_json(payload));
        if let Some(what) = broken.filter(|_| !self.quiet) {
            print_note(&format!("ringq: the payload {what}"));
        }
        job.payload = payload.map(|payload| self.spec.typed(payload));
        let answer = self.send(&connection, job).await?;
        if !self.quiet && answer.outcome() != EnqueueOutcome::Unchanged {
            warn_past_time(self.spec.at());
        }
        if self.wait {
            return wait::run(self, &connection, &answer).await;
        }
        self.note_existing(&answer);
        let mut out = StdoutWriter::new();
        match (self.quiet, self.output.is_json()) {
            (true, _) => Ok(()),
            (_, true) => print_json(&mut out, &answer),
            _ => {
                out.write_line(&answer.id)?;
                out.flush()
            }
        }
    }

    fn id(&self, payload: Option<&Payload>) -> String {
        if self.identity.id_from_payload {
            return input::digest(payload.map_or(&[], |payload| payload.bytes()));
        }
        self.identity.id.clone().unwrap_or_default()
    }

    async fn send(
        &self,
        connection: &ServerConnection,
        job: JobSpec,
    ) -> Result<EnqueueResponse, CommandFailure> {
        let request = connection.request(EnqueueRequest {
            job: Some(job),
            on_conflict: self.identity.policy().into(),
            request_id: self.identity.request_id.clone().unwrap_or_default(),
            durability: self.identity.durability().into(),
        });
        let what = format!("cannot enqueue to {}", self.topic);
        let mut queue = connection.client().queue();
        let mut asked = pin!(connection.try_call(queue.enqueue(request)));
        let answer = match timeout(SLOW_NOTICE_AFTER, &mut asked).await {
            Ok(answer) => answer,
            Err(_) => {
                if !self.quiet {
                    let limit = show_duration(connection.timeout());
                    print_note(&format!("ringq: no answer yet, waiting for up to {limit}"));
                }
                asked.await
            }
        };
        answer.map_err(|error| self.add_hint(&error, connection.failure(&what, &error)))
    }

    /// Adds a hint about a job that was not accepted, if the error alone is not enough.
    fn add_hint(&self, error: &Error, failure: CommandFailure) -> CommandFailure {
        if error.reason() == "JOB_EXISTS" {
            let id = error.metadata("id").or(self.identity.id.as_deref()).unwrap_or("ID");
            return failure.with_hint(format!(
                "`ringq job get {} {id}` prints the job that has it; \
                 --on-conflict replace replaces it with this one",
                self.topic
            ));
        }
        // The server makes the id, so it has tried all shards.
        if error.reason() == "SHARD_UNAVAILABLE" && error.metadata("id").is_none() {
            return failure.with_hint(format!("no shard takes new jobs: {}", exit::SHARDS_HINT));
        }
        match error.metadata("id") {
            Some(id) if error.outcome_unknown() => failure.with_hint(format!(
                "the job may be enqueued: repeat the command with --id '{id}', which cannot enqueue it twice"
            )),
            _ => failure,
        }
    }

    /// Prints a note on stderr if the job existed already.
    fn note_existing(&self, answer: &EnqueueResponse) {
        if !self.quiet && answer.outcome() != EnqueueOutcome::Created {
            let outcome =
                info::strip_enum_prefix(answer.outcome().as_str_name(), "ENQUEUE_OUTCOME_");
            let state = job_state::name(answer.state());
            print_note(&format!("{}: {} is {state}", outcome.to_lowercase(), one_line(&answer.id)));
            if answer.state() == JobState::Dead {
                let (topic, id) = (&self.topic, one_line(&answer.id));
                print_note(&format!(
                    "  no worker takes a dead letter: `ringq job redrive {topic} {id}` puts it back \
                     to work, --on-conflict replace replaces it with this job"
                ));
                return;
            }
            // A note for people; a program that repeats an enqueue expects this answer.
            let by_default = self.identity.on_conflict.is_none()
                && self.identity.request_id.is_none()
                && !self.identity.id_from_payload;
            if by_default && !self.output.is_json() && stderr::is_terminal() {
                print_note(match answer.state() {
                    JobState::Succeeded | JobState::Cancelled | JobState::Expired => {
                        "  the job has ended and does not run again; --on-conflict replace makes a new job of it"
                    }
                    _ => {
                        "  nothing was changed; --on-conflict replace changes the whole job, reschedule its \
                         time and priority"
                    }
                });
            }
        }
    }
}
