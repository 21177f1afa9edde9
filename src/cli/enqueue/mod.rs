//! `ringq enqueue`: one job, or one for each line.

mod answer;
mod input;
mod lines;
mod printer;
mod progress;
mod resume;
mod spec;
mod wait;

use std::io::{self, IsTerminal as _};
use std::path::PathBuf;
use std::pin::pin;
use std::time::Duration;

use anyhow::Context as _;
use clap::{Args, ValueEnum};
use tokio::time::timeout;

use super::connect::{self, Connect, Connection};
use super::exit::{self, Failure, note};
use super::output::{Out, OutputArgs, print_json};
use super::text::one_line;
use super::times::{self, remark_past};
use super::{info, output, text, values};
use crate::client::Error;
use crate::config::show_duration;
use crate::pb::{
    ConflictPolicy, Durability, EnqueueOutcome, EnqueueRequest, EnqueueResponse, JobSpec, JobState,
    Payload,
};
use resume::ResumeArgs;
use spec::SpecArgs;

/// After so long without an answer people are told that it is waited for: while a shard is silent the server repeats
/// an enqueue until the deadline.
const SLOW: Duration = Duration::from_secs(2);

const AFTER_HELP: &str = "\
The id is printed on stdout. Only with - standard input is read, so that `while read …` loops keep \
theirs. Without PAYLOAD the job has none; if something is piped in all the same, the command fails \
(exit code 2) rather than lose it.

--lines enqueues each line as a job, in batches: ids are printed in the order of the lines, empty lines are skipped and \
a final CR is cut off. A line that the server rejects is reported with its number and the others go on; the exit code is \
then 1.

A batch that fails is retried for --timeout. If it still fails, and after Ctrl-C or SIGTERM, the run stops and prints the \
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
    /// The topic; the first job makes it
    #[arg(value_parser = values::some_text)]
    topic: String,
    /// The data for the worker, or - for what comes on standard input: UTF-8 is sent as text, anything
    /// else as bytes
    #[arg(value_name = "PAYLOAD|-")]
    payload: Option<String>,
    /// Enqueue each line of this file, or of stdin (-), as a job of its own
    #[arg(long, value_name = "FILE", conflicts_with_all = ["payload", "id", "wait"])]
    lines: Option<PathBuf>,
    /// Wait until the job has ended and print its result instead of its id; exit code 1 unless it
    /// SUCCEEDED. Asks the server again and again, up to once a second
    #[arg(long)]
    wait: bool,
    /// With --wait: give up waiting after this long; the job stays [default: wait for ever]
    #[arg(long, value_name = "DURATION", value_parser = values::duration, allow_hyphen_values = true)]
    #[arg(requires = "wait")]
    wait_timeout: Option<Duration>,
    /// Print nothing but what went wrong: no ids, no notes, no progress
    #[arg(short, long)]
    quiet: bool,
    #[command(flatten)]
    output: OutputArgs,
    #[command(flatten)]
    identity: Identity,
    #[command(flatten)]
    resume: ResumeArgs,
    #[command(flatten)]
    spec: SpecArgs,
    #[command(flatten)]
    connect: Connect,
}

/// What makes two jobs the same.
#[derive(Debug, Args)]
#[command(next_help_heading = "Identity")]
struct Identity {
    /// The job's id inside the topic [default: the server makes one]
    #[arg(long, value_parser = values::some_text)]
    id: Option<String>,
    /// Take the SHA-256 of the payload as id: the same content is the same job. A line end counts in
    /// what - reads, and not in a line of --lines
    #[arg(long, conflicts_with = "id")]
    id_from_payload: bool,
    /// Make the call safe to repeat: the same value is applied once while the record lives. Without
    /// an id the id is r=<REQUEST_ID>, with --lines r=<REQUEST_ID>=<LINE>
    #[arg(long, value_parser = values::some_text)]
    request_id: Option<String>,
    /// What to do if the id is taken [default: keep]
    #[arg(long, value_enum, value_name = "POLICY", ignore_case = true)]
    on_conflict: Option<OnConflict>,
    /// Refuse unless the job gets at least this safe [default: what the server reaches]
    #[arg(long, value_enum, value_name = "LEVEL", ignore_case = true)]
    durability: Option<Level>,
}

/// See `ConflictPolicy` in the contract.
#[derive(Clone, Copy, Debug, ValueEnum)]
enum OnConflict {
    /// Leave the job that is there as it is
    Keep,
    /// New payload, time and policy; the counters start again
    Replace,
    /// Move only its time and priority
    Reschedule,
    /// Fail
    Reject,
}

/// See `Durability` in the contract.
#[derive(Clone, Copy, Debug, ValueEnum)]
enum Level {
    /// Survives a crash of ringq
    Memory,
    /// Survives a power cut
    Fsynced,
    /// And the loss of the store's machine, as a replica of it has it, too
    Replicated,
}

// === impl Identity ===

impl Identity {
    fn policy(&self) -> ConflictPolicy {
        match self.on_conflict {
            None => ConflictPolicy::Unspecified,
            Some(OnConflict::Keep) => ConflictPolicy::Keep,
            Some(OnConflict::Replace) => ConflictPolicy::Replace,
            Some(OnConflict::Reschedule) => ConflictPolicy::Reschedule,
            Some(OnConflict::Reject) => ConflictPolicy::Reject,
        }
    }

    /// Whether a line that is enqueued again is found by its id, and changes nothing.
    fn recognizes_lines(&self) -> bool {
        let keeps = matches!(self.on_conflict, None | Some(OnConflict::Keep));
        self.request_id.is_some() || self.id_from_payload && keeps
    }

    fn durability(&self) -> Durability {
        match self.durability {
            None => Durability::Unspecified,
            Some(Level::Memory) => Durability::Memory,
            Some(Level::Fsynced) => Durability::Fsynced,
            Some(Level::Replicated) => Durability::Replicated,
        }
    }
}

// === impl EnqueueArgs ===

impl EnqueueArgs {
    pub(super) fn run(&self) -> Result<(), Failure> {
        match &self.lines {
            // Handles signals itself, to report how far it came.
            Some(file) => connect::block_on(lines::run(self, file)),
            None => connect::run(async { self.one(self.payload().await?).await }),
        }
    }

    /// The job without its payload and id.
    fn template(&self) -> Result<JobSpec, Failure> {
        let mut job = self.spec.job(&self.topic)?;
        if self.wait && job.retention.is_none() {
            job.retention = Some(crate::client::proto(wait::RETENTION));
        }
        Ok(job)
    }

    async fn payload(&self) -> Result<Option<Payload>, Failure> {
        match self.payload.as_deref() {
            Some("-") => {
                // Not awaited by its end: a terminal or a pipe may never come to one.
                let read = tokio::task::spawn_blocking(input::whole_stdin).await;
                read.context("cannot read standard input")?.map(Some)
            }
            Some(text) => Ok(Some(Payload::text(text))),
            None if input::is_piped_in().await => {
                Err(Failure::usage("something is piped in, and PAYLOAD is missing").hint(format!(
                    "to send it say -, as in `… | ringq enqueue {0} -`; \
                     for a job without a payload `ringq enqueue {0} … < /dev/null`",
                    self.topic
                )))
            }
            None => Ok(None),
        }
    }

    async fn one(&self, payload: Option<Payload>) -> Result<(), Failure> {
        let connection = self.connect.connection()?;
        let mut job = self.template()?;
        job.id = self.id(payload.as_ref());
        let broken = payload.as_ref().and_then(|payload| self.spec.broken_json(payload));
        if let Some(what) = broken.filter(|_| !self.quiet) {
            note(&format!("ringq: the payload {what}"));
        }
        job.payload = payload.map(|payload| self.spec.typed(payload));
        let answer = self.send(&connection, job).await?;
        if !self.quiet && answer.outcome() != EnqueueOutcome::Unchanged {
            remark_past(self.spec.at());
        }
        if self.wait {
            return wait::run(self, &connection, &answer).await;
        }
        self.remark(&answer);
        let mut out = Out::new();
        match (self.quiet, self.output.is_json()) {
            (true, _) => Ok(()),
            (_, true) => print_json(&mut out, &answer),
            _ => {
                out.line(&answer.id)?;
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
        connection: &Connection,
        job: JobSpec,
    ) -> Result<EnqueueResponse, Failure> {
        let request = connection.request(EnqueueRequest {
            job: Some(job),
            on_conflict: self.identity.policy().into(),
            request_id: self.identity.request_id.clone().unwrap_or_default(),
            durability: self.identity.durability().into(),
        });
        let what = format!("cannot enqueue to {}", self.topic);
        let mut queue = connection.client().queue();
        let mut asked = pin!(connection.ask(queue.enqueue(request)));
        let answer = match timeout(SLOW, &mut asked).await {
            Ok(answer) => answer,
            Err(_) => {
                if !self.quiet {
                    let limit = show_duration(connection.timeout());
                    note(&format!("ringq: no answer yet, waiting for up to {limit}"));
                }
                asked.await
            }
        };
        answer.map_err(|error| self.refused(&error, connection.failure(&what, &error)))
    }

    /// What to do about a job that was not accepted, where the error alone does not say it.
    fn refused(&self, error: &Error, failure: Failure) -> Failure {
        if error.reason() == "JOB_EXISTS" {
            let id = error.metadata("id").or(self.identity.id.as_deref()).unwrap_or("ID");
            return failure.hint(format!(
                "`ringq job get {} {id}` prints the job that has it; \
                 --on-conflict replace would put this one in its place",
                self.topic
            ));
        }
        // Where the server makes the id, it has tried them all.
        if error.reason() == "SHARD_UNAVAILABLE" && error.metadata("id").is_none() {
            return failure.hint(format!("no shard takes it: {}", exit::SHARDS));
        }
        match error.metadata("id") {
            Some(id) if error.outcome_unknown() => failure.hint(format!(
                "it may be in all the same: repeat it with --id '{id}', which cannot double it"
            )),
            _ => failure,
        }
    }

    /// Says on stderr that something was there already.
    fn remark(&self, answer: &EnqueueResponse) {
        if !self.quiet && answer.outcome() != EnqueueOutcome::Created {
            let outcome = info::word(answer.outcome().as_str_name(), "ENQUEUE_OUTCOME_");
            let state = state(answer.state());
            note(&format!("{}: {} is {state}", outcome.to_lowercase(), one_line(&answer.id)));
            if answer.state() == JobState::Dead {
                let (topic, id) = (&self.topic, one_line(&answer.id));
                note(&format!(
                    "  nobody works on a dead letter: `ringq job redrive {topic} {id}` puts it back \
                     to work, --on-conflict replace puts this job in its place"
                ));
                return;
            }
            // For people; a program that repeats itself expects just this.
            let by_default = self.identity.on_conflict.is_none()
                && self.identity.request_id.is_none()
                && !self.identity.id_from_payload;
            if by_default && !self.output.is_json() && io::stderr().is_terminal() {
                note(match answer.state() {
                    JobState::Succeeded | JobState::Cancelled | JobState::Expired => {
                        "  it has ended and nothing runs again; --on-conflict replace makes a new job of it"
                    }
                    _ => {
                        "  nothing of it was changed; --on-conflict replace changes all of it, reschedule its \
                         time and priority"
                    }
                });
            }
        }
    }
}

fn state(state: JobState) -> &'static str {
    info::word(state.as_str_name(), "JOB_STATE_")
}
