//! `ringq job get`.

use clap::Args;

use super::connect::Connect;
use super::exit::Failure;
use super::output::{Out, OutputArgs, print_json};
use super::times::Now;
use super::{look_around, values, view};
use crate::pb::GetRequest;

/// Which job, and how to print it.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  ringq job get emails welcome-7
  ringq job get emails welcome-7 -o json | jq -r .spec.payload.text")]
pub(in crate::cli) struct Get {
    /// The topic
    #[arg(value_parser = values::some_text)]
    topic: String,
    /// The job's id
    #[arg(value_parser = values::some_text)]
    id: String,
    #[command(flatten)]
    output: OutputArgs,
    #[command(flatten)]
    connect: Connect,
}

// === impl Get ===

impl Get {
    pub(super) async fn run(&self) -> Result<(), Failure> {
        let connection = self.connect.connection()?;
        let (topic, id) = (self.topic.clone(), self.id.clone());
        let request = connection.request(GetRequest { topic, id, ..Default::default() });
        let what = format!("cannot read job {}/{}", self.topic, self.id);
        let answer = connection.call(&what, connection.client().queue().get(request)).await;
        let job = match answer {
            Ok(answer) => answer.job.unwrap_or_default(),
            Err(failure) => return Err(look_around(&connection, failure, &self.topic).await),
        };
        let mut out = Out::new();
        if self.output.is_json() {
            return print_json(&mut out, &job);
        }
        view::block(&job, Now::read()).print(&mut out)
    }
}
