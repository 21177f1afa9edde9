//! Worker over `ringq::client`: settings from the environment (README.md lists them), one handler, a clean stop at SIGTERM.
//!
//! The library extends leases, batches and repeats acks, reconnects, and stops handlers whose jobs were revoked.
#![expect(clippy::print_stderr, reason = "the log of a command line is stderr")]

#[path = "settings.rs"]
mod settings;

use std::error::Error;
use std::fs::{File, OpenOptions};
use std::io::Write as _;
use std::sync::Arc;
use std::time::Duration;

use ringq::client::{Delivery, Outcome, Worker};
use ringq::pb::Payload;
use serde::Deserialize;
use settings::{seconds, setting};
use tokio::signal::unix::{SignalKind, signal};
use tokio::time::sleep;

/// Payload of a job of this example.
#[derive(Deserialize, Default)]
#[serde(default)]
struct Task {
    steps: u32,
    step_ms: u64,
    fail_until: i32,
    dead: bool,
}

/// Checkpoint: the number of steps that are done.
#[derive(Deserialize, Default)]
struct Checkpoint {
    step: u32,
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    tracing_subscriber::fmt().with_writer(std::io::stderr).with_ansi(false).init();
    let (mut terminate, mut interrupt) =
        (signal(SignalKind::terminate())?, signal(SignalKind::interrupt())?);
    let stop = async move {
        tokio::select! {
            _ = terminate.recv() => {}
            _ = interrupt.recv() => {}
        }
    };
    let path = setting("RINGQ_LEDGER", String::new())?;
    let is_named = !path.is_empty();
    let open = || OpenOptions::new().create(true).append(true).open(path);
    let ledger = Arc::new(is_named.then(open).transpose()?);
    let handler = move |job| {
        let ledger = Arc::clone(&ledger);
        async move { handle(job, ledger.as_ref().as_ref()).await }
    };

    let counts = worker()?.run(handler, stop).await?;
    eprintln!(
        "stopped: acked={} nacked={} released={} lost={}",
        counts.acked,
        counts.failed + counts.dead_lettered,
        counts.released,
        counts.unsettled
    );
    Ok(())
}

/// Builds the worker from its settings.
fn worker() -> Result<Worker, Box<dyn Error>> {
    let topics = setting("RINGQ_TOPICS", "examples".to_owned())?;
    let host = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
    let id = setting("RINGQ_WORKER_ID", format!("{}-{}", host.trim(), std::process::id()))?;
    let credit: usize = setting("RINGQ_CREDIT", 16)?;
    let concurrency = setting("RINGQ_CONCURRENCY", 4)?.min(credit);
    let topics = topics.split(',').map(|topic| topic.trim().to_owned());
    Ok(Worker::new(settings::client()?, topics)
        .id(id)
        .concurrency(concurrency)
        .prefetch(credit - concurrency)
        .lease(seconds("RINGQ_LEASE", 30.0)?)
        // Unlike a command, a worker stays: rights can come back.
        .call_timeout(seconds("RINGQ_CALL_TIMEOUT", 10.0)?)
        .grace(seconds("RINGQ_GRACE", 25.0)?)
        .wait_for_rights(true))
}

/// Handles one job. It may come again, after a crash or a broken connection, and is dropped at any `await` when its
/// lease is gone.
async fn handle(job: Delivery, ledger: Option<&File>) -> Outcome {
    let task: Task = match job.bytes() {
        b"" => Task::default(),
        bytes => match serde_json::from_slice(bytes) {
            Ok(task) => task,
            // It can never succeed: no retries.
            Err(error) => return failed(&job, Outcome::dead_letter(format!("payload: {error}"))),
        },
    };
    if task.dead {
        return failed(&job, Outcome::dead_letter("the payload asks for it"));
    }
    let saved: Checkpoint = serde_json::from_slice(job.saved()).unwrap_or_default();
    for step in saved.step + 1..=task.steps {
        sleep(Duration::from_millis(task.step_ms)).await;
        if job.attempt <= task.fail_until {
            return failed(&job, Outcome::retry(format!("attempt {} fails", job.attempt)));
        }
        // A lease that is gone ends this handler here; after any other failure the job only begins further back.
        let checkpoint = Payload::text(format!(r#"{{"step":{step}}}"#));
        if step < task.steps
            && let Err(error) = job.save(checkpoint).await
        {
            eprintln!("{}: step {step} was not saved: {error}", job.id);
        }
    }
    // A handler that writes to a database passes the fence along, so that it refuses a worker whose lease has ended:
    // UPDATE results SET text = $1, fence = $2 WHERE id = $3 AND fence < $2
    let line = serde_json::json!({
        "id": job.id, "topic": job.topic, "fence": job.fence, "attempt": job.attempt,
        "steps": task.steps, "from": saved.step, "by": "rust",
    });
    if let Some(mut ledger) = ledger
        && let Err(error) = ledger.write_all(format!("{line}\n").as_bytes())
    {
        return failed(&job, Outcome::retry(format!("ledger: {error}")));
    }
    let result = Payload::text(format!(r#"{{"steps":{},"by":"rust"}}"#, task.steps));
    Outcome::Ack { result: Some(result), enqueue: Vec::new() }
}

/// Logs an outcome that is a failure, with the trace of the producer. Calls that a handler makes pass this header on.
fn failed(job: &Delivery, outcome: Outcome) -> Outcome {
    let traceparent = job.headers.get("traceparent").map_or("none", String::as_str);
    eprintln!("{}: {outcome:?}, trace {}", job.id, traceparent.split('-').nth(1).unwrap_or("none"));
    outcome
}
