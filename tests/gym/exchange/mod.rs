//! Producers and workers of several languages on one topic of a real server, which is killed in between. At the end
//! the books balance: each job that was enqueued is done, and the queue is empty.

mod ledgers;
mod rates;
mod server;

use std::collections::BTreeSet;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use tokio::time::{sleep, timeout};

use super::languages::Language;
use super::program::{Program, Stopped};
use super::record::{Failure, Record};
use ledgers::Ledgers;
pub(crate) use rates::run as run_rates;
use server::{LOOK, RealServer};

const TOPIC: &str = "exchange";
/// Number of jobs, of all producers together.
const JOBS: usize = 10_000;
/// Parts of the jobs after which the server is killed.
const KILLS: [f64; 2] = [0.1, 0.5];
/// Time that the server is down.
const DOWN: Duration = Duration::from_secs(1);
/// Time for all of it.
const EXCHANGE_MAX: Duration = Duration::from_secs(300);
/// Time around a kill in which a job may be done twice: leases that nothing extends are released 5 s after a restart.
const KILL_WINDOW: Duration = Duration::from_secs(12);

/// Programs of one language.
struct Partner {
    language: Language,
    count: usize,
    worker: Started,
    producer: Started,
}

struct Started {
    program: Program,
    record: Arc<Record>,
}

impl Started {
    fn runs(&self) -> bool {
        self.record.read(|log| log.exit.is_none())
    }
}

/// Runs the exchange, and returns whether the books balance.
pub(crate) async fn run(languages: &[Language]) -> Result<bool, String> {
    let folder = tempfile::tempdir().map_err(|error| error.to_string())?;
    let mut server = RealServer::start().await?;
    let mut ledgers = Ledgers::new(folder.path(), languages.iter().map(|it| it.name));
    let mut partners = Vec::new();
    for (index, language) in languages.iter().enumerate() {
        let count = JOBS / languages.len() + usize::from(index < JOBS % languages.len());
        partners.push(partner(*language, count, &server, folder.path())?);
    }
    let begun = Instant::now();
    let mut kills = Vec::new();
    let whole = async {
        for part in KILLS {
            until_done(&mut ledgers, (JOBS as f64 * part) as usize).await?;
            server.kill().await;
            kills.push(Instant::now());
            let producing = partners.iter().filter(|it| it.producer.runs()).count();
            println!("killed after {part} of the jobs, while {producing} producers enqueued");
            sleep(DOWN).await;
            server.restart().await?;
        }
        let end = async {
            // `Partner::end` reports those that have not ended.
            for partner in &partners {
                let _ = partner.producer.program.ended(EXCHANGE_MAX).await;
            }
            server.empty(TOPIC, EXCHANGE_MAX).await
        };
        tokio::select! {
            ended = end => ended,
            // A line has the time at which it is read.
            problem = read_on(&mut ledgers) => Err(problem),
        }
    };
    let ended = timeout(EXCHANGE_MAX, whole).await;
    let mut problems = match ended.unwrap_or_else(|_| Err(format!("not over in {EXCHANGE_MAX:?}")))
    {
        Ok(()) => Vec::new(),
        Err(problem) => vec![problem],
    };
    let took = begun.elapsed();
    println!(
        "{JOBS} jobs in {:.1} s, the server was killed {} times",
        took.as_secs_f64(),
        kills.len()
    );
    for partner in &partners {
        problems.extend(partner.end().await.err());
    }
    ledgers.read()?;
    problems.extend(books(&ledgers, &partners, &server, &kills).await?);
    for partner in &partners {
        let (done, span) = ledgers.rate(partner.language.name);
        let rate = done as f64 / span.max(0.001);
        println!(
            "{:<12} {:>6} enqueued {done:>6} done {rate:>7.0}/s",
            partner.language.name, partner.count
        );
    }
    for problem in &problems {
        println!("FAILED exchange: {problem}");
    }
    if !problems.is_empty() {
        partners.iter().for_each(Partner::print_records);
    }
    Ok(problems.is_empty())
}

fn partner(
    language: Language,
    count: usize,
    server: &RealServer,
    folder: &Path,
) -> Result<Partner, String> {
    let commands = language.commands();
    let name = language.name;
    let common = |pairs: &[(&str, &str)]| -> Vec<(String, String)> {
        let own = pairs.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned()));
        server.variables().into_iter().chain(own).collect()
    };
    let ledger = folder.join(name).display().to_string();
    let for_worker = common(&[
        ("RINGQ_TOPICS", TOPIC),
        ("RINGQ_WORKER_ID", name),
        ("RINGQ_CREDIT", "64"),
        ("RINGQ_CONCURRENCY", "16"),
        ("RINGQ_LEDGER", &ledger),
    ]);
    let for_producer = common(&[
        ("RINGQ_TOPICS", TOPIC),
        ("RINGQ_PREFIX", name),
        // Many calls: the first kill shall meet producers.
        ("RINGQ_BATCH", "10"),
        ("RINGQ_PAYLOAD", r#"{"steps":2,"step_ms":5}"#),
    ]);
    let worker = start(&commands.worker, &[], &for_worker, folder)?;
    let producer = start(&commands.producer, &[count.to_string()], &for_producer, folder)?;
    Ok(Partner { language, count, worker, producer })
}

fn start(
    command: &str,
    arguments: &[String],
    variables: &[(String, String)],
    folder: &Path,
) -> Result<Started, String> {
    let record = Arc::new(Record::new());
    let program = Program::start(command, arguments, variables, folder, &record)
        .map_err(|Failure(text)| text)?;
    Ok(Started { program, record })
}

/// Waits until so many jobs have been done.
async fn until_done(ledgers: &mut Ledgers, count: usize) -> Result<(), String> {
    let mut done = BTreeSet::new();
    let mut seen = 0;
    loop {
        ledgers.read()?;
        done.extend(ledgers.entries[seen..].iter().map(|it| it.line.id.clone()));
        seen = ledgers.entries.len();
        if done.len() >= count {
            return Ok(());
        }
        sleep(LOOK).await;
    }
}

/// Reads the ledgers until that fails.
async fn read_on(ledgers: &mut Ledgers) -> String {
    loop {
        if let Err(problem) = ledgers.read() {
            return problem;
        }
        sleep(LOOK).await;
    }
}

/// Compares the sets of jobs, and returns what does not fit.
async fn books(
    ledgers: &Ledgers,
    partners: &[Partner],
    server: &RealServer,
    kills: &[Instant],
) -> Result<Vec<String>, String> {
    let mut problems = Vec::new();
    let ids = |partner: &Partner| -> Vec<String> {
        (0..partner.count).map(|number| format!("{}-{number}", partner.language.name)).collect()
    };
    let enqueued: BTreeSet<String> = partners.iter().flat_map(ids).collect();
    let by_id = ledgers.by_id();
    let missing: Vec<_> = enqueued.iter().filter(|id| !by_id.contains_key(id.as_str())).collect();
    if !missing.is_empty() {
        problems.push(format!("{} jobs were never done: {:?}", missing.len(), first(&missing)));
    }
    let foreign: Vec<_> = by_id.keys().filter(|id| !enqueued.contains(**id)).collect();
    if !foreign.is_empty() {
        problems.push(format!("jobs were done that no producer enqueued: {:?}", first(&foreign)));
    }
    let unfinished = server.unfinished(TOPIC, &enqueued.into_iter().collect::<Vec<_>>()).await?;
    if !unfinished.is_empty() {
        let (count, some) = (unfinished.len(), first(&unfinished));
        problems.push(format!("{count} jobs have neither succeeded nor been forgotten: {some:?}"));
    }
    let doubled: Vec<_> = by_id.iter().filter(|(_, entries)| entries.len() > 1).collect();
    println!("{} jobs were done twice", doubled.len());
    for (id, entries) in doubled {
        let fences: BTreeSet<_> = entries.iter().map(|it| it.line.fence).collect();
        if fences.len() < entries.len() {
            problems.push(format!("{id} was done twice under one lease"));
        }
        let is_near = |kill: &Instant| {
            let at = entries[0].at;
            at + KILL_WINDOW >= *kill && at <= *kill + KILL_WINDOW
        };
        if !kills.iter().any(is_near) {
            problems.push(format!("{id} was done twice, and no kill explains it"));
        }
    }
    Ok(problems)
}

fn first<T>(all: &[T]) -> &[T] {
    &all[..all.len().min(5)]
}

// === impl Partner ===

impl Partner {
    /// Ends both programs, and checks what they report.
    async fn end(&self) -> Result<(), String> {
        let name = self.language.name;
        let within = Duration::from_secs(40);
        let failed = |what: &str, Failure(text): Failure| format!("{what} of {name}: {text}");
        let exit =
            self.producer.program.ended(within).await.map_err(|it| failed("producer", it))?;
        let line = self.producer.record.read(|log| log.stdout.last().cloned()).unwrap_or_default();
        if !exit.success() || !line.ends_with("failed=0") {
            return Err(format!("producer of {name}: {exit}, {line:?}"));
        }
        self.worker.program.terminate();
        let exit = self.worker.program.ended(within).await.map_err(|it| failed("worker", it))?;
        let stopped = self.worker.record.read(|log| Stopped::from_lines(&log.stderr));
        match stopped {
            Some(stopped) if exit.success() => {
                println!("{name:<12} {line}; {stopped:?}");
                Ok(())
            }
            _ => Err(format!("worker of {name}: {exit}, its last line is {stopped:?}")),
        }
    }

    fn print_records(&self) {
        for (what, started) in [("worker", &self.worker), ("producer", &self.producer)] {
            let text = started.record.text();
            let lines: Vec<_> = text.lines().collect();
            let last = &lines[lines.len().saturating_sub(30)..];
            println!("last lines of the {what} of {}:\n{}", self.language.name, last.join("\n"));
        }
    }
}
