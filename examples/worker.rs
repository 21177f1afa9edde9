//! Greets the names in each job (several with commas between), until Ctrl-C or a number of jobs:
//! `cargo run --example worker -- http://127.0.0.1:7700 greetings [JOBS]`
//!
//! Sends the token in `RINGQ_TOKEN`, if there is one.
#![expect(clippy::print_stdout, reason = "what a command line prints is its result")]
#![expect(clippy::disallowed_methods, reason = "a program of its own reads its own environment")]

use std::time::Duration;

use ringq::client::{Client, Delivery, Options, Outcome, Worker};
use ringq::pb::Payload;

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut arguments = std::env::args().skip(1);
    let (Some(server), Some(topic)) = (arguments.next(), arguments.next()) else {
        return Err("usage: worker SERVER TOPIC [JOBS]".into());
    };
    let mut options = Options::default();
    if let Some(token) = std::env::var("RINGQ_TOKEN").ok().filter(|token| !token.is_empty()) {
        options = options.token(token);
    }
    let client = Client::with_options(server, options)?;
    let mut worker = Worker::new(client, [topic]).id("greeter").concurrency(4);
    if let Some(jobs) = arguments.next() {
        worker = worker.max_jobs(jobs.parse()?);
    }

    // At Ctrl-C running jobs are finished, and jobs that wait here are released at once.
    let stop = async { tokio::signal::ctrl_c().await.unwrap_or_default() };
    println!("{}", worker.run(greet, stop).await?);
    Ok(())
}

/// A job may come again, after a crash or a broken connection. Its checkpoint comes with it, so that no name is
/// greeted twice. A program that greets by a row in a database would pass `job.fence` along and make the database
/// refuse a smaller one: `UPDATE greetings SET text = $1, fence = $2 WHERE id = $3 AND fence < $2`.
async fn greet(job: Delivery) -> Outcome {
    match job.text() {
        // It can never succeed: no retries.
        None | Some("") => Outcome::dead_letter("no name to greet"),
        // It may succeed later: counted as an attempt, tried again in a second.
        Some("Echo") if job.attempt == 1 => {
            Outcome::Retry { error: "no answer".into(), delay: Some(Duration::from_secs(1)) }
        }
        Some(names) => {
            let names: Vec<&str> = names.split(',').collect();
            let greeted = String::from_utf8_lossy(job.saved()).parse().unwrap_or(0);
            for (before, name) in names.iter().enumerate().skip(greeted) {
                println!("Hello, {name}!");
                let is_last = before + 1 == names.len();
                // An error may mean that another worker has the job by now: stop.
                if !is_last
                    && let Err(error) = job.save(Payload::text((before + 1).to_string())).await
                {
                    return Outcome::retry(error);
                }
            }
            Outcome::Ack { result: Some(Payload::text("greeted")), enqueue: Vec::new() }
        }
    }
}
