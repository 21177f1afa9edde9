//! `ringq job reschedule`: changes time or priority of a job.

use std::time::{Duration, SystemTime};

use clap::Args;

use super::add_not_found_hint;
use super::connect::ConnectArgs;
use super::exit::CommandFailure;
use super::output::{OutputArgs, StdoutWriter, print_json};
use super::text::one_line;
use super::times::{Now, warn_past_time};
use super::{job_state, values};
use crate::client::{Error, to_proto_duration};
use crate::pb::RescheduleRequest;
use crate::pb::reschedule_request::Schedule;

/// Arguments of `ringq job reschedule`.
#[derive(Debug, Args)]
#[command(after_help = "\
Jobs that wait are moved and dead letters are revived; a job that runs or is done is rejected.

Examples:
  ringq job reschedule emails welcome-7 --now
  ringq job reschedule emails welcome-7 --delay 1h30m --priority 9
  ringq job reschedule emails welcome-7 --at 2027-01-31T09:00:00+01:00")]
#[command(
    override_usage = "ringq job reschedule [OPTIONS] --now|--delay|--at|--priority <TOPIC> <ID>"
)]
#[command(group(clap::ArgGroup::new("change").required(true).multiple(true)))]
#[command(group(clap::ArgGroup::new("when").required(false)))]
pub(in crate::cli) struct JobRescheduleArgs {
    /// The topic
    #[arg(value_parser = values::non_empty)]
    topic: String,
    /// The job's id
    #[arg(value_parser = values::non_empty)]
    id: String,
    /// Run it now
    #[arg(long, groups = ["change", "when"])]
    now: bool,
    /// Run it this long from now, by the clock of the server
    #[arg(long, value_name = "DURATION", value_parser = values::duration, allow_hyphen_values = true, groups = ["change", "when"])]
    delay: Option<Duration>,
    /// Run it at this time, RFC 3339
    #[arg(long, value_name = "TIME", value_parser = values::time, groups = ["change", "when"])]
    at: Option<SystemTime>,
    /// The new priority, 0 to 9; 9 goes first
    #[arg(long, value_name = "0-9", value_parser = values::priority, allow_hyphen_values = true, groups = ["change"])]
    priority: Option<i32>,
    #[command(flatten)]
    output: OutputArgs,
    #[command(flatten)]
    connect: ConnectArgs,
}

// === impl JobRescheduleArgs ===

impl JobRescheduleArgs {
    pub(super) async fn run(&self) -> Result<(), CommandFailure> {
        let connection = self.connect.connection()?;
        let (topic, id) = (self.topic.clone(), self.id.clone());
        let what = format!("cannot reschedule job {topic}/{id}");
        let (schedule, priority) = (self.schedule(), self.priority);
        let request = connection.request(RescheduleRequest { topic, id, schedule, priority });
        let mut queue = connection.client().queue();
        let answer = connection.try_call(queue.reschedule(request)).await;
        let job = match answer {
            Ok(answer) => answer.job.unwrap_or_default(),
            Err(error) => {
                let failure = self.add_hint(&error, connection.failure(&what, &error));
                return Err(add_not_found_hint(&connection, failure, &self.topic).await);
            }
        };
        warn_past_time(self.at);
        let mut out = StdoutWriter::new();
        if self.output.is_json() {
            return print_json(&mut out, &job);
        }
        let due = Now::read().relative(job.due_time);
        let line = format!("{} {}, due {due}", self.id, job_state::name(job.state()));
        out.write_line(&one_line(&line))?;
        out.flush()
    }

    fn add_hint(&self, error: &Error, failure: CommandFailure) -> CommandFailure {
        if error.reason() == "WRONG_JOB_STATE" {
            return failure
                .with_hint(format!("`ringq job get {} {}` prints it", self.topic, self.id));
        }
        failure
    }

    fn schedule(&self) -> Option<Schedule> {
        if self.now {
            return Some(Schedule::Delay(to_proto_duration(Duration::ZERO)));
        }
        let delay = self.delay.map(|delay| Schedule::Delay(to_proto_duration(delay)));
        delay.or_else(|| self.at.map(|time| Schedule::DueTime(time.into())))
    }
}
