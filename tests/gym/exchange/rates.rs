//! Rates: jobs without steps per second, for each language and credit, on a real server.

use std::path::Path;
use std::time::{Duration, Instant};

use ringq::pb::JobSpec;
use tokio::time::{sleep, timeout};

use super::super::languages::Language;
use super::ledgers::Ledgers;
use super::server::{LOOK, RealServer};
use super::start;

const TOPIC: &str = "rates";
/// Credits, and the number of jobs for each.
const CREDITS: [(usize, usize); 3] = [(1, 2_000), (16, 5_000), (1_000, 10_000)];
/// Largest number of handlers at once.
const CONCURRENCY_MAX: usize = 64;
/// Time for one measurement.
const RATE_MAX: Duration = Duration::from_secs(180);

/// Prints the table; returns true.
pub(crate) async fn run(languages: &[Language]) -> Result<bool, String> {
    let credits = CREDITS.map(|(credit, _)| format!("credit {credit:>4}"));
    println!("jobs/s       {}", credits.join("  "));
    for language in languages {
        let mut rates = Vec::new();
        for (credit, jobs) in CREDITS {
            rates.push(format!("{:>11.0}", rate(*language, credit, jobs).await?));
        }
        println!("{:<12} {}", language.name, rates.join("  "));
    }
    Ok(true)
}

/// Returns the jobs per second of a worker that finds all jobs there.
async fn rate(language: Language, credit: usize, jobs: usize) -> Result<f64, String> {
    let folder = tempfile::tempdir().map_err(|error| error.to_string())?;
    let server = RealServer::start().await?;
    let specs = (0..jobs).map(|number| JobSpec::new(TOPIC).with_id(format!("j{number}"))).collect();
    for answer in server.client().producer().enqueue_batch(specs).await {
        answer.map_err(|error| format!("enqueue: {error}"))?;
    }
    let mut ledgers = Ledgers::new(folder.path(), [language.name]);
    let worker = start(
        &language.commands().worker,
        &[],
        &settings(&server, language, credit, folder.path()),
        folder.path(),
    )?;
    let measured = async {
        while ledgers.entries.is_empty() {
            sleep(LOOK).await;
            ledgers.read()?;
        }
        let (begun, before) = (Instant::now(), ledgers.entries.len());
        while ledgers.entries.len() < jobs {
            sleep(LOOK).await;
            ledgers.read()?;
        }
        server.empty(TOPIC, RATE_MAX).await?;
        Ok((jobs - before) as f64 / begun.elapsed().as_secs_f64())
    };
    let late = |_| format!("{} with credit {credit}: not within {RATE_MAX:?}", language.name);
    let measured = timeout(RATE_MAX, measured).await.map_err(late)?;
    worker.program.terminate();
    worker.program.ended(Duration::from_secs(40)).await.map_err(|failure| failure.0)?;
    measured
}

fn settings(
    server: &RealServer,
    language: Language,
    credit: usize,
    folder: &Path,
) -> Vec<(String, String)> {
    let own = [
        ("RINGQ_TOPICS", TOPIC.to_owned()),
        ("RINGQ_CREDIT", credit.to_string()),
        ("RINGQ_CONCURRENCY", credit.min(CONCURRENCY_MAX).to_string()),
        ("RINGQ_LEDGER", folder.join(language.name).display().to_string()),
    ];
    let own = own.into_iter().map(|(name, value)| (name.to_owned(), value));
    server.variables().into_iter().chain(own).collect()
}
