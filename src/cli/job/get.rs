//! `ringq job get`: prints one job.

use clap::Args;

use super::connect::ConnectArgs;
use super::exit::CommandFailure;
use super::output::{OutputArgs, StdoutWriter, print_json};
use super::times::Now;
use super::{add_not_found_hint, values, view};
use crate::pb::GetRequest;

/// Arguments of `ringq job get`.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  ringq job get emails welcome-7
  ringq job get emails welcome-7 -o json | jq -r .spec.payload.text")]
pub(in crate::cli) struct JobGetArgs {
    /// The topic
    #[arg(value_parser = values::non_empty)]
    topic: String,
    /// The job's id
    #[arg(value_parser = values::non_empty)]
    id: String,
    #[command(flatten)]
    output: OutputArgs,
    #[command(flatten)]
    connect: ConnectArgs,
}

// === impl JobGetArgs ===

impl JobGetArgs {
    pub(super) async fn run(&self) -> Result<(), CommandFailure> {
        let connection = self.connect.connection()?;
        let (topic, id) = (self.topic.clone(), self.id.clone());
        let request = connection.request(GetRequest { topic, id, ..Default::default() });
        let what = format!("cannot read job {}/{}", self.topic, self.id);
        let answer = connection.call(&what, connection.client().queue().get(request)).await;
        let job = match answer {
            Ok(answer) => answer.job.unwrap_or_default(),
            Err(failure) => return Err(add_not_found_hint(&connection, failure, &self.topic).await),
        };
        let mut out = StdoutWriter::new();
        if self.output.is_json() {
            return print_json(&mut out, &job);
        }
        view::block(&job, Now::read()).print(&mut out)
    }
}
