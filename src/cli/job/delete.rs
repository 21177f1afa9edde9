//! `ringq job delete`.

use clap::Args;
use serde_json::json;

use super::connect::{Connect, Connection};
use super::exit::{self, Failure};
use super::output::{JsonList, Out, OutputArgs};
use super::{OF_A_SHARD, look_around, once};
use super::{values, view};
use crate::pb::{DeleteRequest, JobState};

/// Which jobs.
#[derive(Debug, Args)]
#[command(after_help = "\
A job that waits or runs turns CANCELLED; one that has ended, a dead letter too, is forgotten at \
once. What cannot be removed is told, the others are removed all the same.

Examples:
  ringq job delete emails welcome-7
  ringq job list emails --state dead --limit 0 -o json | jq -r '.[].spec.id' |
      xargs -r ringq job delete emails --allow-missing --")]
pub(in crate::cli) struct Delete {
    /// The topic
    #[arg(value_parser = values::some_text)]
    topic: String,
    /// The ids of the jobs
    #[arg(required = true, value_name = "ID", value_parser = values::some_text)]
    ids: Vec<String>,
    /// A job that is not there is no failure
    #[arg(long)]
    allow_missing: bool,
    #[command(flatten)]
    output: OutputArgs,
    #[command(flatten)]
    connect: Connect,
}

/// Why one was not deleted.
struct Refused {
    failure: Failure,
    /// The next one would fare no better.
    for_all: bool,
}

// === impl Delete ===

impl Delete {
    pub(super) async fn run(&self) -> Result<(), Failure> {
        let connection = self.connect.connection()?;
        let mut out = Out::new();
        let mut list = self.output.is_json().then(JsonList::new);
        let mut last = None;
        for id in &once(&self.ids) {
            match self.delete(&connection, id).await {
                Ok(state) => self.say(&mut out, &mut list, id, state)?,
                Err(Refused { failure, for_all }) => {
                    // The last one is told by the caller, with what to do.
                    if let Some(failure) = last.replace(failure) {
                        failure.tell();
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

    async fn delete(&self, connection: &Connection, id: &str) -> Result<JobState, Refused> {
        let (topic, id) = (self.topic.clone(), id.to_owned());
        let what = format!("cannot delete job {topic}/{id}");
        let request = DeleteRequest { topic, id, allow_missing: self.allow_missing };
        let mut queue = connection.client().queue();
        let answer = connection.ask(queue.delete(connection.request(request))).await;
        let error = match answer {
            Ok(answer) => return Ok(answer.previous_state()),
            Err(error) => error,
        };
        let of_shard = OF_A_SHARD.contains(&error.reason());
        let failure = connection.failure(&what, &error);
        let for_all = failure.code() == exit::UNAVAILABLE && !of_shard;
        Err(Refused { failure: look_around(connection, failure, &self.topic).await, for_all })
    }

    fn say(
        &self,
        out: &mut Out,
        list: &mut Option<JsonList>,
        id: &str,
        state: JobState,
    ) -> Result<(), Failure> {
        if let Some(list) = list {
            let row = json!({ "id": id, "previousState": state.as_str_name() });
            return list.text(out, &row.to_string());
        }
        match state {
            JobState::Unspecified => out.line(&format!("{id} was not there")),
            state => out.line(&format!("{id} deleted, was {}", view::state(state))),
        }
    }
}
