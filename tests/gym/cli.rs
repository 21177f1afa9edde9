//! Command line of the gym.

use std::io::Write as _;
use std::process::ExitCode;
use std::time::Instant;

use clap::Parser;

use super::broken;
use super::exchange;
use super::handle::Commands;
use super::languages::{LANGUAGES, Language};
use super::scenario::{Outcome, Scenario, run_all};
use super::scenarios;

/// Most failed scenarios that are played again: more than these are no accident.
const RETRIES_MAX: usize = 5;

/// Plays scenarios with workers and producers against a scripted server.
#[derive(Parser)]
#[command(name = "gym")]
struct Arguments {
    /// Command line of a worker, run by `sh -c`
    #[arg(long, value_name = "COMMAND", conflicts_with = "language")]
    worker: Option<String>,
    /// Command line of a producer, run by `sh -c` with the number of jobs added
    #[arg(long, value_name = "COMMAND", conflicts_with = "language")]
    producer: Option<String>,
    /// Language whose programs in examples/ are tested, several allowed: go, python, …
    #[arg(long, value_name = "NAME")]
    language: Vec<String>,
    /// Play only the essential scenarios
    #[arg(long)]
    essential: bool,
    /// The worker uses Pull over JSON, and gets its jobs by that; implies --essential
    #[arg(long)]
    json: bool,
    /// Play only the scenarios of this name, several allowed
    #[arg(long, value_name = "NAME")]
    only: Vec<String>,
    /// Scenarios that run at the same time
    #[arg(long, default_value_t = 4)]
    jobs: usize,
    /// Play a scenario that failed once more, alone; if it passes then, only print `FLAKY NAME`
    #[arg(long)]
    retry: bool,
    /// Print the record of scenarios that pass, too
    #[arg(long)]
    log: bool,
    /// Play each scenario with a Python program that is broken for it, which must be noticed
    #[arg(long, conflicts_with_all = ["worker", "producer", "json", "exchange", "rates"])]
    broken: bool,
    /// Let the producers and workers of all named languages work on one topic of a real server that is killed twice
    #[arg(long, requires = "language")]
    exchange: bool,
    /// Measure the jobs per second of each named language on a real server
    #[arg(long, requires = "language", conflicts_with = "exchange")]
    rates: bool,
    /// Print the scenarios and what each expects
    #[arg(long)]
    list: bool,
}

/// Runs the program.
pub(crate) async fn run() -> ExitCode {
    let arguments = Arguments::parse();
    if arguments.list {
        list();
        return ExitCode::SUCCESS;
    }
    let is_other = |name: &String| name != "python";
    let passed = if arguments.broken && arguments.language.iter().any(is_other) {
        Err("--broken is for --language python".to_owned())
    } else if arguments.broken {
        broken::run(&arguments.only, arguments.jobs).await
    } else if arguments.exchange || arguments.rates {
        on_a_real_server(&arguments).await
    } else {
        play(&arguments).await
    };
    match passed {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(usage) => {
            let _ = writeln!(std::io::stderr(), "gym: {usage}");
            ExitCode::from(2)
        }
    }
}

fn list() {
    for Scenario { name, is_essential, text, .. } in scenarios::all() {
        let mark = if is_essential { " (essential)" } else { "" };
        println!("{name}{mark}\n    {}\n    {}", text[0], text[1]);
    }
}

/// Checks that the page for authors of workers lists each scenario as it is.
fn check_page() -> Result<(), String> {
    let page = concat!(env!("CARGO_MANIFEST_DIR"), "/docs/workers.md");
    let Ok(text) = std::fs::read_to_string(page) else { return Ok(()) };
    for Scenario { name, is_essential, text: [server, worker], .. } in scenarios::all() {
        let mark = if is_essential { "**" } else { "" };
        let row = format!("| {mark}`{name}`{mark} | {server} | {worker} |");
        if !text.lines().any(|line| line == row) {
            return Err(format!("docs/workers.md lacks the row\n{row}"));
        }
    }
    Ok(())
}

/// Plays the chosen scenarios, and returns whether all were passed.
async fn play(arguments: &Arguments) -> Result<bool, String> {
    if !arguments.language.is_empty() {
        check_page()?;
        broken::check()?;
    }
    let mut all_passed = true;
    for (name, commands, is_essential) in programs(arguments)? {
        let chosen = chosen(arguments, &commands, is_essential)?;
        if !name.is_empty() {
            println!("{name}:");
        }
        let start = Instant::now();
        let report = |outcome: &Outcome| println!("{}", outcome.text(arguments.log));
        let outcomes = run_all(chosen.clone(), commands.clone(), arguments.jobs, report).await;
        let names_of_failed = |outcomes: &[Outcome]| -> Vec<&str> {
            outcomes.iter().filter(|it| it.failure.is_some()).map(|it| it.name).collect()
        };
        let mut failed = names_of_failed(&outcomes);
        if arguments.retry && (1..=RETRIES_MAX).contains(&failed.len()) {
            let again = chosen.into_iter().filter(|it| failed.contains(&it.name)).collect();
            let failed_twice = names_of_failed(&run_all(again, commands, 1, report).await);
            for flaky in failed.iter().filter(|name| !failed_twice.contains(name)) {
                println!("FLAKY {name} {flaky}");
            }
            failed = failed_twice;
        }
        let (count, took) = (outcomes.len(), start.elapsed().as_secs_f64());
        println!("{} of {count} scenarios passed in {took:.0} s", count - failed.len());
        if !failed.is_empty() {
            println!("failed: {}", failed.join(", "));
        }
        all_passed &= failed.is_empty();
    }
    Ok(all_passed)
}

async fn on_a_real_server(arguments: &Arguments) -> Result<bool, String> {
    let languages = named(arguments)?;
    if arguments.rates {
        exchange::run_rates(&languages).await
    } else {
        exchange::run(&languages).await
    }
}

fn named(arguments: &Arguments) -> Result<Vec<Language>, String> {
    arguments.language.iter().map(|name| Language::named(name)).collect()
}

/// Returns the programs to test: the name of the language, the commands, and whether only essential scenarios apply.
fn programs(arguments: &Arguments) -> Result<Vec<(&'static str, Commands, bool)>, String> {
    if !arguments.language.is_empty() {
        let found = named(arguments)?.into_iter();
        return Ok(found.map(|it| (it.name, it.commands(), it.is_essential)).collect());
    }
    let (worker, producer) = (arguments.worker.clone(), arguments.producer.clone());
    if worker.is_none() && producer.is_none() {
        let names: Vec<_> = LANGUAGES.iter().map(|it| it.name).collect();
        return Err(format!("name --worker and --producer, or --language: {}", names.join(", ")));
    }
    let missing = || "false".to_owned();
    let commands = Commands {
        worker: worker.unwrap_or_else(missing),
        producer: producer.unwrap_or_else(missing),
        json: arguments.json,
    };
    Ok(vec![("", commands, arguments.json)])
}

fn chosen(
    arguments: &Arguments,
    commands: &Commands,
    is_essential: bool,
) -> Result<Vec<Scenario>, String> {
    let all = scenarios::all();
    let unknown = arguments.only.iter().find(|name| all.iter().all(|it| it.name != name.as_str()));
    if let Some(name) = unknown {
        return Err(format!("no scenario is called {name:?}; --list prints them"));
    }
    let only_essential = arguments.essential || is_essential || commands.json;
    let is_chosen = |it: &Scenario| {
        if arguments.only.is_empty() {
            it.is_essential || !only_essential
        } else {
            arguments.only.iter().any(|name| name == it.name)
        }
    };
    Ok(all.into_iter().filter(is_chosen).collect())
}
