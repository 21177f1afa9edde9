//! `ringq job delete`: cancels or removes jobs.

use clap::Args;
use serde_json::json;

use super::connect::{ConnectArgs, ServerConnection};
use super::exit::{self, CommandFailure};
use super::output::{JsonList, OutputArgs, StdoutWriter};
use super::{SHARD_REASONS, add_not_found_hint, dedup_ids};
use super::{job_state, values};
use crate::pb::{DeleteRequest, JobState};

/// Arguments of `ringq job delete`.
#[derive(Debug, Args)]
#[command(after_help = "\
A job that waits or runs turns CANCELLED; one that has ended, a dead letter too, is removed at \
once. Jobs that cannot be removed are reported; the others are removed.

Examples:
  ringq job delete emails welcome-7
  ringq job list emails --state dead --limit 0 -o json | jq -r '.[].spec.id' |
      xargs -r ringq job delete emails --allow-missing --")]
pub(in crate::cli) struct JobDeleteArgs {
    /// The topic
    #[arg(value_parser = values::non_empty)]
    topic: String,
    /// The ids of the jobs
    #[arg(required = true, value_name = "ID", value_parser = values::non_empty)]
    ids: Vec<String>,
    /// A missing job is not a failure
    #[arg(long)]
    allow_missing: bool,
    #[command(flatten)]
    output: OutputArgs,
    #[command(flatten)]
    connect: ConnectArgs,
}

/// Error of a job that was not deleted.
struct DeleteFailure {
    failure: CommandFailure,
    /// Set if the other jobs would fail for the same reason.
    applies_to_all: bool,
}

// === impl JobDeleteArgs ===

impl JobDeleteArgs {
    pub(super) async fn run(&self) -> Result<(), CommandFailure> {
        let connection = self.connect.connection()?;
        let mut out = StdoutWriter::new();
        let mut list = self.output.is_json().then(JsonList::new);
        let mut last = None;
        for id in &dedup_ids(&self.ids) {
            match self.delete(&connection, id).await {
                Ok(state) => self.report(&mut out, &mut list, id, state)?,
                Err(DeleteFailure { failure, applies_to_all: for_all }) => {
                    // The caller reports the last one, with a hint.
                    if let Some(failure) = last.replace(failure) {
                        failure.print();
                    }
                    if for_all {
                        break;
                    }
                }
            }
        }
        if let Some(list) = list {
            list.end(&mut out)?;
        }
        out.flush()?;
        last.map_or(Ok(()), Err)
    }

    async fn delete(
        &self,
        connection: &ServerConnection,
        id: &str,
    ) -> Result<JobState, DeleteFailure> {
        let (topic, id) = (self.topic.clone(), id.to_owned());
        let what = format!("cannot delete job {topic}/{id}");
        let request = DeleteRequest { topic, id, allow_missing: self.allow_missing };
        let mut queue = connection.client().queue();
        let answer = connection.try_call(queue.delete(connection.request(request))).await;
        let error = match answer {
            Ok(answer) => return Ok(answer.previous_state()),
            Err(error) => error,
        };
        let of_shard = SHARD_REASONS.contains(&error.reason());
        let failure = connection.failure(&what, &error);
        let for_all = failure.code() == exit::UNAVAILABLE && !of_shard;
        Err(DeleteFailure {
            failure: add_not_found_hint(connection, failure, &self.topic).await,
            applies_to_all: for_all,
        })
    }

    fn report(
        &self,
        out: &mut StdoutWriter,
        list: &mut Option<JsonList>,
        id: &str,
        state: JobState,
    ) -> Result<(), CommandFailure> {
        if let Some(list) = list {
            let row = json!({ "id": id, "previousState": state.as_str_name() });
            return list.raw_row(out, row.to_string());
        }
        match state {
            JobState::Unspecified => out.write_line(&format!("{id} was not there")),
            JobState::Scheduled | JobState::Ready | JobState::Backoff | JobState::Running => {
                out.write_line(&format!("{id} cancelled, was {}", job_state::name(state)))
            }
            state => out.write_line(&format!("{id} removed, was {}", job_state::name(state))),
        }
    }
}
