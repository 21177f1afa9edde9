//! `ringq job redrive`: puts ended jobs back to READY.

use std::time::Duration;

use clap::{Args, ValueEnum};
use futures::{StreamExt as _, stream};

use super::connect::{ConnectArgs, ServerConnection};
use super::exit::{self, CommandFailure, print_error};
use super::output::{OutputArgs, StdoutWriter, print_json};
use super::{SHARD_REASONS, add_not_found_hint, dedup_ids};
use super::{job_state, values};
use crate::client::{Error, to_proto_duration};
use crate::pb::{GetRequest, JobState, JobView, RedriveJobsRequest, RedriveJobsResponse};

/// Jobs that are read concurrently.
const READS: usize = 16;

/// Named job and its state; None: there is no such job.
type NamedJob<'a> = (&'a str, Result<Option<JobState>, Error>);
/// Named job whose state does not allow to put it back; None: there is no such job.
type SkippedJob<'a> = (&'a str, Option<JobState>);

/// Arguments of `ringq job redrive`.
#[derive(Debug, Args)]
#[command(after_help = "\
A call that ran out of time has moved a part: the same command again goes on with the rest. The same holds \
for jobs on a shard that did not answer; the exit code is then 4. It prints why a named job could not be \
put back; the exit code is then 1, or 3 if there are no such jobs.

Examples:
  ringq job redrive emails --all --dry-run
  ringq job redrive emails --all --rate 10/s
  ringq job redrive emails welcome-7 welcome-8
  ringq job redrive emails welcome-9 --state succeeded
  ringq job redrive emails --all --state expired --ttl 1h
  ringq job redrive emails --all --to emails.slow")]
#[command(group(clap::ArgGroup::new("which").required(true)))]
#[command(
    override_usage = "ringq job redrive [OPTIONS] <TOPIC> <ID>...\n       ringq job redrive [OPTIONS] <TOPIC> --all"
)]
pub(in crate::cli) struct RedriveArgs {
    /// The topic
    #[arg(value_parser = values::non_empty)]
    topic: String,
    /// The ids of dead letters, or of jobs in the states of --state
    #[arg(value_name = "ID", group = "which", value_parser = values::non_empty)]
    ids: Vec<String>,
    /// All dead letters of the topic, or all jobs in the states of --state
    #[arg(long, group = "which")]
    all: bool,
    /// Put back jobs that ended in these states, instead of dead letters; other than dead: only those still kept by
    /// their retention
    #[arg(long, value_enum, value_name = "STATE", value_delimiter = ',', ignore_case = true)]
    state: Vec<EndedStateArg>,
    /// Also jobs whose expire time has passed: they get this long from their new due time on [default: they stay as
    /// they are]
    #[arg(long, value_name = "DURATION", value_parser = values::duration)]
    ttl: Option<Duration>,
    /// Spread them: at most this many per second (10/s), minute (600/m) or hour [default: all at once]
    #[arg(long, value_name = "N/s", value_parser = values::rate)]
    rate: Option<f64>,
    /// Move them to this topic
    #[arg(long, value_name = "TOPIC", value_parser = values::non_empty)]
    to: Option<String>,
    /// Only count them
    #[arg(long)]
    dry_run: bool,
    #[command(flatten)]
    output: OutputArgs,
    #[command(flatten)]
    connect: ConnectArgs,
}

/// States of an ended job.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum EndedStateArg {
    /// Dead letter
    Dead,
    /// Done
    Succeeded,
    /// Deleted before it had ended
    Cancelled,
    /// Did not run in time
    Expired,
}

// === impl EndedStateArg ===

impl From<EndedStateArg> for JobState {
    fn from(ended: EndedStateArg) -> JobState {
        match ended {
            EndedStateArg::Dead => JobState::Dead,
            EndedStateArg::Succeeded => JobState::Succeeded,
            EndedStateArg::Cancelled => JobState::Cancelled,
            EndedStateArg::Expired => JobState::Expired,
        }
    }
}

// === impl RedriveArgs ===

impl RedriveArgs {
    pub(super) async fn run(mut self) -> Result<(), CommandFailure> {
        self.ids = dedup_ids(&self.ids);
        let connection = self.connect.connection()?;
        // Read before the call: after it a job that was put back looks like one that was never dead.
        let before = self.read(&connection, &self.ids).await;
        let unfit: Vec<_> = before.iter().filter_map(|job| self.skipped(job)).collect();
        let request = connection.request(RedriveJobsRequest {
            topic: self.topic.clone(),
            ids: self.ids.clone(),
            all: self.all,
            target_topic: self.to.clone().unwrap_or_default(),
            max_rate: self.rate.unwrap_or_default(),
            validate_only: self.dry_run,
            states: self.states().into_iter().map(Into::into).collect(),
            ttl: self.ttl.map(to_proto_duration),
            ..Default::default()
        });
        let mut admin = connection.client().admin();
        let answer = match connection.try_call(admin.redrive_jobs(request)).await {
            Ok(answer) => answer,
            Err(error) => {
                let what = match &self.ids[..] {
                    [id] => format!("cannot redrive job {}/{id}", self.topic),
                    _ => format!("cannot redrive the jobs of {}", self.topic),
                };
                if SHARD_REASONS.contains(&error.reason()) && self.ids.len() > 1 {
                    self.warn_skipped(&unfit);
                    self.warn_unreachable(&connection, &unfit).await;
                }
                return Err(connection.failure(&what, &error));
            }
        };
        let mut out = StdoutWriter::new();
        if self.output.is_json() {
            print_json(&mut out, &answer)?;
        } else {
            out.write_line(&self.summary_text(&answer))?;
            out.flush()?;
        }
        let left = match answer.skipped_count {
            count if count > 0 && !self.ids.is_empty() => Some(
                add_not_found_hint(&connection, self.skipped_failure(&unfit, count), &self.topic)
                    .await,
            ),
            _ => None,
        };
        if answer.unreachable_shards.is_empty() {
            return left.map_or(Ok(()), Err);
        }
        if let Some(left) = left {
            left.print();
        }
        self.warn_unreachable(&connection, &unfit).await;
        exit::fail_if_partial(answer.unreachable_shards.iter())
    }

    /// Returns the states of the jobs to put back.
    fn states(&self) -> Vec<JobState> {
        match &self.state[..] {
            [] => vec![JobState::Dead],
            states => states.iter().map(|&state| state.into()).collect(),
        }
    }

    /// Returns the job if it is in none of these states.
    fn skipped<'a>(&self, (id, state): &NamedJob<'a>) -> Option<SkippedJob<'a>> {
        let state = *state.as_ref().ok()?;
        let fits = state.is_some_and(|state| self.states().contains(&state));
        (!fits).then_some((id, state))
    }

    /// Reads the states of named jobs; None: there is no such job.
    async fn read<'a>(
        &self,
        connection: &ServerConnection,
        ids: impl IntoIterator<Item = &'a String>,
    ) -> Vec<NamedJob<'a>> {
        let states = stream::iter(ids).map(async |id| {
            let (topic, id_text) = (self.topic.clone(), id.clone());
            let view = JobView::Basic.into();
            let request = connection.request(GetRequest { topic, id: id_text, view });
            let state = match connection.try_call(connection.client().queue().get(request)).await {
                Ok(answer) => Ok(answer.job.map(|job| job.state())),
                Err(error) if error.is_not_found() => Ok(None),
                Err(error) => Err(error),
            };
            (id.as_str(), state)
        });
        states.buffered(READS).collect().await
    }

    fn warn_skipped(&self, unfit: &[SkippedJob]) {
        let (topic, states) = (&self.topic, self.states());
        let meant: Vec<_> = states.iter().map(|&state| job_state::name(state)).collect();
        for (id, state) in unfit {
            print_error(&match state {
                Some(state) => {
                    format!(
                        "{topic}/{id} is {}, not {}",
                        job_state::name(*state),
                        meant.join(" or ")
                    )
                }
                None => format!("no job {topic}/{id}"),
            });
        }
    }

    /// Prints the jobs that were not put back, or perhaps not, because their shard does not answer. Reads after the
    /// call, as a shard may have come back before it.
    async fn warn_unreachable(&self, connection: &ServerConnection, unfit: &[SkippedJob<'_>]) {
        let others = |id: &&String| unfit.iter().all(|(known, _)| known != id);
        let topic = &self.topic;
        for (id, state) in self.read(connection, self.ids.iter().filter(others)).await {
            match state {
                Err(error) => {
                    let what = format!("cannot redrive job {topic}/{id}");
                    print_error(&connection.failure(&what, &error).problem());
                }
                Ok(Some(state)) if !self.dry_run && self.states().contains(&state) => {
                    print_error(&format!("{topic}/{id} is still {}", job_state::name(state)));
                }
                Ok(_) => (),
            }
        }
    }

    /// Builds the failure for named jobs that were not put back, with the known reasons.
    fn skipped_failure(&self, unfit: &[SkippedJob], skipped: i64) -> CommandFailure {
        let topic = &self.topic;
        self.warn_skipped(unfit);
        let others = usize::try_from(skipped).unwrap_or(0).saturating_sub(unfit.len());
        if others == 0 {
            let all_missing = unfit.iter().all(|(_, state)| state.is_none());
            let failure = CommandFailure::already_reported(if all_missing {
                exit::NOT_FOUND
            } else {
                exit::FAILED
            });
            let waits = |(_, state): &&SkippedJob| {
                matches!(state, Some(JobState::Scheduled | JobState::Backoff))
            };
            return match unfit.iter().find(waits) {
                Some((id, _)) => failure.with_hint(format!(
                    "`ringq job reschedule {topic} {id} --now` runs one that waits for its time"
                )),
                None => failure,
            };
        }
        let problem = format!("{others} of the named jobs were not put back");
        let hint = match &self.to {
            Some(target) => {
                format!("their ids are taken in {target}, or they have expired and need --ttl")
            }
            None => {
                format!(
                    "they have expired and need --ttl, or have no payload any more; `ringq job get {topic} ID` prints one"
                )
            }
        };
        CommandFailure::new(exit::FAILED, problem).with_hint(hint)
    }

    /// Returns the summary. All named jobs are counted, also those on a shard that did not answer.
    fn summary_text(&self, answer: &RedriveJobsResponse) -> String {
        let done = if self.dry_run { "would be put back to work" } else { "put back to work" };
        let redriven = answer.redriven_count;
        let left = match i64::try_from(self.ids.len()) {
            Ok(named) if named > 0 => named - redriven,
            _ => answer.skipped_count,
        };
        let left = if left > 0 { format!(", {left} not") } else { String::new() };
        format!("{redriven} {done}{left}")
    }
}
