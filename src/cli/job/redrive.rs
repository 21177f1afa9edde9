//! `ringq job redrive`.

use clap::Args;
use futures::{StreamExt as _, stream};

use super::connect::{Connect, Connection};
use super::exit::{self, Failure, complain};
use super::look_around;
use super::output::{Out, OutputArgs, print_json};
use super::topic;
use super::{values, view};
use crate::pb::{GetRequest, JobState, JobView, RedriveJobsRequest, RedriveJobsResponse};

/// Jobs that are read at the same time.
const READS: usize = 16;

/// Which dead letters, and where to.
#[derive(Debug, Args)]
#[command(after_help = "\
A call that ran out of time has moved a part: the same command again goes on with the rest. So it does
with what lies on a shard that did not answer; the exit code is then 4. Of jobs that were named and could
not be put back is told why; the exit code is then 1, or 3 if there are no such jobs.

Examples:
  ringq job redrive emails --all --dry-run
  ringq job redrive emails --all --rate 10/s
  ringq job redrive emails welcome-7 welcome-8
  ringq job redrive emails --all --to emails.slow")]
#[command(group(clap::ArgGroup::new("which").required(true)))]
#[command(
    override_usage = "ringq job redrive [OPTIONS] <TOPIC> <ID>...\n       ringq job redrive [OPTIONS] <TOPIC> --all"
)]
pub(in crate::cli) struct Redrive {
    /// The topic
    #[arg(value_parser = values::some_text)]
    topic: String,
    /// The ids of dead letters
    #[arg(value_name = "ID", group = "which", value_parser = values::some_text)]
    ids: Vec<String>,
    /// All dead letters of the topic
    #[arg(long, group = "which")]
    all: bool,
    /// Spread them: as many as this per second (10/s), minute (600/m) or hour [default: all at once]
    #[arg(long, value_name = "N/s", value_parser = values::rate)]
    rate: Option<f64>,
    /// Move them to this topic
    #[arg(long, value_name = "TOPIC", value_parser = values::some_text)]
    to: Option<String>,
    /// Only count them
    #[arg(long)]
    dry_run: bool,
    #[command(flatten)]
    output: OutputArgs,
    #[command(flatten)]
    connect: Connect,
}

// === impl Redrive ===

impl Redrive {
    pub(super) async fn run(&self) -> Result<(), Failure> {
        let connection = self.connect.connection()?;
        // Before the call: after it a job that was put back looks like one that was never dead.
        let unfit = self.unfit(&connection).await;
        let request = connection.request(RedriveJobsRequest {
            topic: self.topic.clone(),
            ids: self.ids.clone(),
            target_topic: self.to.clone().unwrap_or_default(),
            max_rate: self.rate.unwrap_or_default(),
            validate_only: self.dry_run,
            ..Default::default()
        });
        let what = format!("cannot redrive the dead letters of {}", self.topic);
        let mut admin = connection.client().admin();
        let answer = connection.call(&what, admin.redrive_jobs(request)).await?;
        let mut out = Out::new();
        if self.output.is_json() {
            print_json(&mut out, &answer)?;
        } else {
            out.line(&self.sentence(&answer))?;
            out.flush()?;
        }
        if !self.ids.is_empty() && answer.skipped_count > 0 {
            let left = self.left(&unfit, answer.skipped_count);
            if answer.unreachable_shards.is_empty() {
                return Err(left);
            }
            left.tell();
        }
        topic::partial(answer.unreachable_shards.iter())
    }

    /// The named jobs that are not dead letters, with their state; none: there is no such job. What
    /// cannot be read is left out.
    async fn unfit(&self, connection: &Connection) -> Vec<(&str, Option<JobState>)> {
        let states = stream::iter(&self.ids).map(async |id| {
            let (topic, id_text) = (self.topic.clone(), id.clone());
            let view = JobView::Basic.into();
            let request = connection.request(GetRequest { topic, id: id_text, view });
            match connection.ask(connection.client().queue().get(request)).await {
                Ok(answer) => Some((id.as_str(), answer.job.map(|job| job.state()))),
                Err(error) if error.is_not_found() => Some((id.as_str(), None)),
                Err(_) => None,
            }
        });
        let states: Vec<_> = states.buffered(READS).collect().await;
        let is_unfit = |state: &(_, Option<JobState>)| state.1 != Some(JobState::Dead);
        states.into_iter().flatten().filter(is_unfit).collect()
    }

    /// Tells why jobs that were named were left, as far as that is known.
    fn left(&self, unfit: &[(&str, Option<JobState>)], skipped: i64) -> Failure {
        let topic = &self.topic;
        for (id, state) in unfit {
            complain(&match state {
                Some(state) => format!("{topic}/{id} is {}, not DEAD", view::state(*state)),
                None => format!("no job {topic}/{id}"),
            });
        }
        let others = usize::try_from(skipped).unwrap_or(0).saturating_sub(unfit.len());
        if others == 0 {
            let all_missing = unfit.iter().all(|(_, state)| state.is_none());
            let failure = Failure::told(if all_missing { exit::NOT_FOUND } else { exit::FAILED });
            return look_around(failure, topic);
        }
        let problem = format!("{others} of the jobs named were left");
        let hint = match &self.to {
            Some(target) => {
                format!("their ids are taken in {target}, or they are not dead any more")
            }
            None => format!("they are not dead any more; `ringq job get {topic} ID` prints one"),
        };
        Failure::new(exit::FAILED, problem).hint(hint)
    }

    fn sentence(&self, answer: &RedriveJobsResponse) -> String {
        let done = if self.dry_run { "would be put back to work" } else { "put back to work" };
        let mut text = format!("{} {done}", answer.redriven_count);
        if answer.skipped_count > 0 {
            text.push_str(&format!(", {} not", answer.skipped_count));
        }
        text
    }
}
