//! `--wait`: until a job has ended.

use std::time::Duration;

use tokio::time::Instant;

use super::connect::Connection;
use super::exit::{self, Failure, note};
use super::output::{Out, one_line, print_json, printable};
use super::{Enqueue, state};
use crate::backoff::Backoff;
use crate::client::Error;
use crate::pb::{EnqueueResponse, GetRequest, Job, JobState};

/// How long the job is kept for this command to find it, unless --retention says otherwise: without
/// it a job with a server-made id is forgotten the moment it succeeds.
pub(super) const RETENTION: Duration = Duration::from_secs(600);
/// The pauses between questions.
const PAUSE: (Duration, Duration) = (Duration::from_millis(20), Duration::from_secs(1));
/// How long a server that cannot be reached is waited for.
const PATIENCE: Duration = Duration::from_secs(30);

/// Waits for the end of a job that was enqueued, and prints what came of it.
pub(super) async fn run(
    enqueue: &Enqueue,
    connection: &Connection,
    answer: &EnqueueResponse,
) -> Result<(), Failure> {
    if !enqueue.quiet {
        note(&format!("{} is {}", one_line(&answer.id), state(answer.state())));
    }
    let job = ended(&enqueue.topic, &answer.id, connection).await?;
    if enqueue.output.is_json() {
        print_json(&mut Out::new(), &job)?;
    } else if job.state() == JobState::Succeeded {
        print_result(&job)?;
    }
    if job.state() == JobState::Succeeded {
        return Ok(());
    }
    let mut problem = format!("job {}/{} ended {}", enqueue.topic, answer.id, state(job.state()));
    if !job.last_error.is_empty() {
        problem.push_str(": ");
        problem.push_str(&job.last_error);
    }
    let hint = format!("`ringq job get {} '{}'` prints its attempts", enqueue.topic, answer.id);
    Err(Failure::new(exit::FAILED, problem).hint(hint))
}

/// The job once it has ended.
async fn ended(topic: &str, id: &str, connection: &Connection) -> Result<Job, Failure> {
    let mut backoff = Backoff::new(PAUSE.0, PAUSE.1);
    let mut unreachable_since = None;
    loop {
        let (topic, id) = (topic.to_owned(), id.to_owned());
        let what = format!("cannot read job {topic}/{id}");
        let request = connection.request(GetRequest { topic, id, ..Default::default() });
        match connection.ask(connection.client().queue().get(request)).await {
            Ok(answer) => {
                unreachable_since = None;
                let job = answer.job.unwrap_or_default();
                if is_terminal(job.state()) {
                    return Ok(job);
                }
            }
            Err(error) if error.is_unavailable() => {
                let since = *unreachable_since.get_or_insert_with(Instant::now);
                if since.elapsed() > PATIENCE {
                    return Err(connection.failure(&what, &error));
                }
            }
            Err(error) => return Err(gone(&error, connection.failure(&what, &error))),
        }
        tokio::time::sleep(backoff.pause()).await;
    }
}

fn gone(error: &Error, failure: Failure) -> Failure {
    if !error.is_not_found() {
        return failure;
    }
    failure.hint("it was deleted, or it ended and was forgotten at once: see --retention")
}

fn is_terminal(state: JobState) -> bool {
    matches!(state, JobState::Succeeded | JobState::Dead | JobState::Cancelled | JobState::Expired)
}

/// The result byte for byte, for a program; on a terminal so that it cannot disturb it.
fn print_result(job: &Job) -> Result<(), Failure> {
    let mut out = Out::new();
    let bytes = job.result.as_ref().map_or(&[][..], |result| result.bytes());
    if !out.is_terminal() {
        out.bytes(bytes)?;
    } else if !bytes.is_empty() {
        out.line(&printable(&String::from_utf8_lossy(bytes)))?;
    }
    out.flush()
}
