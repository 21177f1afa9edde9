//! Enqueues a number of jobs in batches, and repeats what may be repeated: `producer COUNT`. README.md lists the settings.
//!
//! Programs that give each job an id call `client.producer().enqueue_batch(jobs)`, which follows the same rules by itself. This one
//! shows them, and what repeats are safe for jobs without ids.
#![expect(clippy::print_stdout, clippy::print_stderr, reason = "output of a command line")]

#[path = "settings.rs"]
mod settings;

use std::error::Error;
use std::time::Duration;

use ringq::client::Client;
use ringq::pb::{BatchEnqueueRequest, EnqueueOutcome, ItemError, JobSpec};
use settings::{seconds, setting};
use tokio::time::{sleep, timeout};
use tonic::{Code, Status};
use tonic_types::StatusExt as _;

/// Pause before a repeat to which the server gave no RetryInfo; a random part of up to half of it is left out.
const PAUSE: Duration = Duration::from_millis(500);

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let count: usize = std::env::args().nth(1).ok_or("usage: producer COUNT")?.parse()?;
    let (client, limit) = (settings::client()?, seconds("RINGQ_CALL_TIMEOUT", 10.0)?);
    let topics = setting("RINGQ_TOPICS", "examples".to_owned())?;
    let topic = topics.split(',').next().unwrap_or_default().trim();
    let payload = setting("RINGQ_PAYLOAD", r#"{"steps":2,"step_ms":10}"#.to_owned())?;
    let prefix = setting("RINGQ_PREFIX", hex(8))?;
    let batch = setting("RINGQ_BATCH", 100)?.clamp(1, 1_000);
    let job = |number| {
        let id = if prefix == "-" { String::new() } else { format!("{prefix}-{number}") };
        let traceparent = format!("00-{}-{}-01", hex(16), hex(8));
        let headers = [("traceparent".to_owned(), traceparent)].into();
        JobSpec { headers, ..JobSpec::new(topic).with_id(id).with_text(&payload) }
    };
    let (mut enqueued, mut unchanged, mut failed) = (0, 0, 0);
    let jobs: Vec<_> = (0..count).map(job).collect();
    for jobs in jobs.chunks(batch) {
        // Without ids the request id makes the repeat of a call safe; the same for all repeats of one call.
        let request_id = if prefix == "-" { hex(16) } else { String::new() };
        let request = BatchEnqueueRequest { jobs: jobs.to_vec(), request_id, ..Default::default() };
        for result in enqueue(&client, limit, request).await? {
            match result {
                Ok(EnqueueOutcome::Unchanged) => unchanged += 1,
                Ok(_) => enqueued += 1,
                Err(error) => {
                    eprintln!("a job was refused: {}: {}", error.reason, error.message);
                    failed += 1;
                }
            }
        }
    }
    println!("enqueued={enqueued} unchanged={unchanged} failed={failed}");
    if failed > 0 {
        std::process::exit(1);
    }
    Ok(())
}

/// Enqueues the jobs of one call until each has a final result.
async fn enqueue(
    client: &Client,
    limit: Duration,
    mut request: BatchEnqueueRequest,
) -> Result<Vec<Result<EnqueueOutcome, ItemError>>, Status> {
    let mut done = Vec::new();
    while !request.jobs.is_empty() {
        let mut queue = client.queue();
        let call = queue.batch_enqueue(request.clone());
        let late = || Status::deadline_exceeded("no answer in time");
        let answer = timeout(limit, call).await.unwrap_or_else(|_| Err(late()));
        let results = match answer {
            Ok(answer) => answer.into_inner().results,
            Err(status) if is_repeated(&status) => {
                eprintln!("repeated: {status}");
                let delay = status.get_details_retry_info().and_then(|info| info.retry_delay);
                sleep(pause().max(delay.unwrap_or_default())).await;
                continue;
            }
            Err(status) => return Err(status),
        };
        let mut again = Vec::new();
        for (job, result) in std::mem::take(&mut request.jobs).into_iter().zip(results) {
            let outcome = result.outcome();
            match result.error {
                None => done.push(Ok(outcome)),
                // The job may be stored: under the id of its result the repeat finds it. Without an id none is safe.
                Some(error)
                    if is_passing(&error) && (!result.id.is_empty() || !job.id.is_empty()) =>
                {
                    let id = if result.id.is_empty() { job.id.clone() } else { result.id };
                    again.push(job.with_id(id));
                }
                Some(error) => done.push(Err(error)),
            }
        }
        request.jobs = again;
        if !request.jobs.is_empty() {
            sleep(pause()).await;
        }
    }
    Ok(done)
}

/// Returns whether a call is repeated: with ids or a request id that is safe whatever has become of it.
fn is_repeated(status: &Status) -> bool {
    let from_server = status.get_details_error_info().is_some();
    match status.code() {
        Code::Unavailable | Code::ResourceExhausted | Code::DeadlineExceeded => true,
        // An error without a reason comes from a library or a proxy.
        code => !from_server && code != Code::Unimplemented,
    }
}

fn is_passing(error: &ItemError) -> bool {
    [Code::Unavailable, Code::ResourceExhausted].contains(&Code::from_i32(error.code))
}

fn pause() -> Duration {
    PAUSE.mul_f64(rand::random_range(0.5..=1.0))
}

/// Returns random bytes as hexadecimal digits.
fn hex(bytes: usize) -> String {
    (0..bytes).map(|_| format!("{:02x}", rand::random::<u8>())).collect()
}
