//! Enqueues one job for each text:
//! `cargo run --example enqueue -- http://127.0.0.1:7700 greetings Ada Grace`
//!
//! Sends the token in `RINGQ_TOKEN`, if there is one.
#![expect(clippy::print_stdout, reason = "what a command line prints is its result")]
#![expect(clippy::disallowed_methods, reason = "a program of its own reads its own environment")]

use futures::future::join_all;
use ringq::client::{Client, Error, Options};
use ringq::pb::JobSpec;

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut arguments = std::env::args().skip(1);
    let (Some(server), Some(topic)) = (arguments.next(), arguments.next()) else {
        return Err("usage: enqueue SERVER TOPIC TEXT...".into());
    };
    let mut options = Options::default();
    if let Some(token) = std::env::var("RINGQ_TOKEN").ok().filter(|token| !token.is_empty()) {
        options = options.token(token);
    }
    let producer = Client::with_options(server, options)?.producer();

    // The text is the id, too: run it twice, and each job is still there only once.
    let jobs = arguments.map(|text| JobSpec::new(&topic).with_id(&text).with_text(text));

    // Callers that enqueue at the same time share calls; no caller has to collect batches.
    let enqueued = join_all(jobs.map(|job| producer.enqueue(job))).await;
    for job in enqueued.into_iter().collect::<Result<Vec<_>, Error>>()? {
        println!("{} {}", job.id, job.outcome.as_str_name());
    }
    Ok(())
}
