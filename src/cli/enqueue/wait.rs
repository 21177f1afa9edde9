//! `--wait`: waits until a job has ended.

use std::cell::Cell;
use std::time::Duration;

use tokio::time::Instant;

use super::connect::ServerConnection;
use super::exit::{self, CommandFailure, print_note, retry_notice};
use super::output::{StdoutWriter, print_json};
use super::text::{one_line, printable};
use super::{EnqueueArgs, job_state};
use crate::backoff::{Backoff, BackoffRange};
use crate::client::Error;
use crate::contract::duration_text::show_duration;
use crate::pb::{EnqueueResponse, GetRequest, GetTopicStatsRequest, Job, JobState};

/// Retention of the job without --retention, so that this command finds it: otherwise a job with a server-made id is
/// deleted the moment it succeeds.
pub(super) const RETENTION: Duration = Duration::from_secs(600);
/// Pauses between polls.
const POLL_BACKOFF: BackoffRange =
    BackoffRange { min: Duration::from_millis(20), max: Duration::from_secs(1) };
/// Time for which an unreachable server is retried.
const UNREACHABLE_TIMEOUT: Duration = Duration::from_secs(30);

/// Time after which a ready job is checked for workers, and an unreachable server is reported.
const NO_WORKERS_NOTICE_AFTER: Duration = Duration::from_secs(1);

/// Waits for the end of a job that was enqueued, and prints its result.
pub(super) async fn run(
    enqueue: &EnqueueArgs,
    connection: &ServerConnection,
    answer: &EnqueueResponse,
) -> Result<(), CommandFailure> {
    if !enqueue.quiet {
        print_note(&format!("{} is {}", one_line(&answer.id), job_state::name(answer.state())));
    }
    let state_seen = Cell::new(answer.state());
    let ended = wait_for_end(enqueue, &answer.id, connection, &state_seen);
    let job = match enqueue.wait_timeout {
        None => ended.await?,
        Some(limit) => match tokio::time::timeout(limit, ended).await {
            Ok(job) => job?,
            Err(_) => return Err(too_late(enqueue, &answer.id, state_seen.get(), limit)),
        },
    };
    if enqueue.output.is_json() {
        print_json(&mut StdoutWriter::new(), &job)?;
    } else if job.state() == JobState::Succeeded {
        print_result(&job)?;
    }
    if job.state() == JobState::Succeeded {
        return Ok(());
    }
    let mut problem =
        format!("job {}/{} ended {}", enqueue.topic, answer.id, job_state::name(job.state()));
    if !job.last_error.is_empty() {
        problem.push_str(": ");
        problem.push_str(&job.last_error);
    }
    let hint = format!("`ringq job get {} '{}'` prints its attempts", enqueue.topic, answer.id);
    Err(CommandFailure::new(exit::FAILED, problem).with_hint(hint))
}

fn too_late(enqueue: &EnqueueArgs, id: &str, last: JobState, limit: Duration) -> CommandFailure {
    let (topic, limit) = (&enqueue.topic, show_duration(limit));
    let problem = format!("job {topic}/{id} is still {} after {limit}", job_state::name(last));
    CommandFailure::new(exit::FAILED, problem)
        .with_hint(format!("the job stays: `ringq job get {topic} '{id}'` prints it"))
}

/// Polls the job until it has ended; `seen` is its last state before that.
async fn wait_for_end(
    enqueue: &EnqueueArgs,
    id: &str,
    connection: &ServerConnection,
    seen: &Cell<JobState>,
) -> Result<Job, CommandFailure> {
    let mut pauses = Backoff::new(POLL_BACKOFF);
    let mut unreachable_since = None;
    let mut ready_since = None;
    // Missing workers are reported at most once, and early.
    let mut mute = enqueue.quiet;
    let mut mute_outage = enqueue.quiet;
    loop {
        let (topic, id) = (enqueue.topic.clone(), id.to_owned());
        let what = format!("cannot read job {topic}/{id}");
        let request = connection.request(GetRequest { topic, id, ..Default::default() });
        match connection.try_call(connection.client().queue().get(request)).await {
            Ok(answer) => {
                (unreachable_since, mute_outage) = (None, enqueue.quiet);
                let job = answer.job.unwrap_or_default();
                if job_state::is_terminal(job.state()) {
                    return Ok(job);
                }
                seen.set(job.state());
                ready_since = (job.state() == JobState::Ready)
                    .then(|| ready_since.unwrap_or_else(Instant::now));
                if !mute
                    && ready_since.is_some_and(|since| since.elapsed() >= NO_WORKERS_NOTICE_AFTER)
                {
                    mute = true;
                    note_no_workers(&enqueue.topic, connection).await;
                }
            }
            Err(error) if error.is_unavailable() => {
                let since = *unreachable_since.get_or_insert_with(Instant::now);
                if since.elapsed() > UNREACHABLE_TIMEOUT {
                    return Err(connection.failure(&what, &error));
                }
                if !mute_outage && since.elapsed() >= NO_WORKERS_NOTICE_AFTER {
                    mute_outage = true;
                    let problem = connection.failure(&what, &error).problem();
                    print_note(&format!("ringq: {problem}; {}", retry_notice(UNREACHABLE_TIMEOUT)));
                }
            }
            Err(error) => {
                return Err(record_gone_failure(&error, connection.failure(&what, &error)));
            }
        }
        let pause = pauses.next_delay();
        tokio::time::sleep(if mute { pause } else { pause.min(NO_WORKERS_NOTICE_AFTER / 4) }).await;
    }
}

/// Prints a note if no worker takes jobs of the topic. A failed call prints nothing.
async fn note_no_workers(topic: &str, connection: &ServerConnection) {
    let request = connection.request(GetTopicStatsRequest { name: topic.to_owned() });
    let mut topics = connection.client().topics();
    let Ok(answer) = connection.try_call(topics.get_topic_stats(request)).await else { return };
    let stats = answer.stats.unwrap_or_default();
    if stats.streams == 0 && stats.unreachable_shards.is_empty() {
        print_note(&format!(
            "no worker at this server takes jobs of {} at the moment",
            one_line(topic)
        ));
        connection.note_server();
    }
}

fn record_gone_failure(error: &Error, failure: CommandFailure) -> CommandFailure {
    if !error.is_not_found() {
        return failure;
    }
    failure.with_hint("the job was deleted, or it ended and was not kept: see --retention")
}

/// Prints the result: unchanged for a program, escaped on a terminal.
fn print_result(job: &Job) -> Result<(), CommandFailure> {
    let mut out = StdoutWriter::new();
    let bytes = job.result.as_ref().map_or(&[][..], |result| result.bytes());
    if !out.is_terminal() {
        out.write_bytes(bytes)?;
    } else if !bytes.is_empty() {
        out.write_line(&printable(&String::from_utf8_lossy(bytes)))?;
    }
    out.flush()
}
