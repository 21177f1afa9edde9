//! `ringq job explain`: prints why a job does not run.

use clap::Args;

use super::connect::ConnectArgs;
use super::exit::CommandFailure;
use super::output::{OutputArgs, StdoutWriter, print_json};
use super::text::one_line;
use super::times::Now;
use super::{add_not_found_hint, job_state, values};
use crate::pb::{ExplainJobRequest, ExplainJobResponse, JobState, Reason};

/// Arguments of `ringq job explain`.
#[derive(Debug, Args)]
#[command(after_help = "\
Prints every reason that holds now, each with what to do about it. Also answers while the shard of the job is \
down. Streams and credit are those of the server that answers: ask each of several.

Examples:
  ringq job explain emails welcome-7
  ringq job explain emails welcome-7 -o json | jq -r '.reasons[].code'")]
pub(in crate::cli) struct JobExplainArgs {
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

// === impl JobExplainArgs ===

impl JobExplainArgs {
    pub(super) async fn run(&self) -> Result<(), CommandFailure> {
        let connection = self.connect.connection()?;
        let (topic, id) = (self.topic.clone(), self.id.clone());
        let request = connection.request(ExplainJobRequest { topic, id });
        let what = format!("cannot explain job {}/{}", self.topic, self.id);
        let mut admin = connection.client().admin();
        let explanation = match connection.call(&what, admin.explain_job(request)).await {
            Ok(explanation) => explanation,
            Err(failure) => return Err(add_not_found_hint(&connection, failure, &self.topic).await),
        };
        connection.note_server();
        let mut out = StdoutWriter::new();
        if self.output.is_json() {
            return print_json(&mut out, &explanation);
        }
        self.print(&explanation, &mut out)
    }

    /// Prints the state of the job, and a paragraph for each reason.
    fn print(
        &self,
        explanation: &ExplainJobResponse,
        out: &mut StdoutWriter,
    ) -> Result<(), CommandFailure> {
        let state = explanation.job.as_ref().map(|job| job.state());
        let state = match state.unwrap_or_default() {
            JobState::Unspecified => "of unknown state",
            state => job_state::name(state),
        };
        out.write_line(&format!("{}/{} is {state}", self.topic, self.id))?;
        let now = Now::read();
        for reason in &explanation.reasons {
            print_reason(reason, now, out)?;
        }
        out.flush()
    }
}

fn print_reason(reason: &Reason, now: Now, out: &mut StdoutWriter) -> Result<(), CommandFailure> {
    out.write_line("")?;
    let code = out.heading(&one_line(&reason.code));
    out.write_line(&format!("{code}: {}", one_line(&reason.message)))?;
    if reason.until_time.is_some() {
        out.write_line(&format!("  until: {}", now.full(reason.until_time)))?;
    }
    match reason.remedy.as_str() {
        "" => Ok(()),
        remedy => out.write_line(&format!("  next: {}", one_line(remedy))),
    }
}
