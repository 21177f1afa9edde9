//! Checks the scenarios themselves: each must fail with a program that is broken for it.

use std::collections::{BTreeMap, HashSet};
use std::fs;
use std::path::Path;

use futures::StreamExt as _;

use super::handle::Commands;
use super::languages::examples;
use super::mutations::{MUTATIONS, Mutation};
use super::scenario::Scenario;
use super::scenarios;

/// Checks that each scenario has a mutation, and that each mutation still fits the programs.
pub(crate) fn check() -> Result<(), String> {
    let covered: HashSet<_> = MUTATIONS.iter().map(|it| it.scenario).collect();
    if let Some(scenario) = scenarios::all().iter().find(|it| !covered.contains(it.name)) {
        return Err(format!("no mutation breaks {}", scenario.name));
    }
    MUTATIONS.iter().try_for_each(|mutation| broken_files(mutation).map(drop))
}

/// Plays each scenario with programs that are broken for it, and returns whether all were noticed.
pub(crate) async fn run(only: &[String], at_once: usize) -> Result<bool, String> {
    check()?;
    let all = scenarios::all();
    let is_chosen = |it: &&Mutation| only.is_empty() || only.iter().any(|name| name == it.scenario);
    let trials = MUTATIONS.iter().filter(is_chosen).map(|mutation| {
        let scenario = all.iter().find(|it| it.name == mutation.scenario).copied();
        async move {
            let scenario = scenario.ok_or_else(|| format!("no scenario {}", mutation.scenario))?;
            trial(mutation, scenario).await
        }
    });
    let mut running = futures::stream::iter(trials).buffer_unordered(at_once.max(1));
    let (mut noticed, mut count) = (0, 0);
    while let Some(trial) = running.next().await {
        count += 1;
        noticed += usize::from(trial?);
    }
    println!("{noticed} of {count} broken programs were noticed");
    Ok(noticed == count)
}

/// Plays a scenario with a broken program, and returns whether it failed. A moment in which this machine did nothing may
/// hide a fault: what was not noticed is played once more.
async fn trial(mutation: &Mutation, scenario: Scenario) -> Result<bool, String> {
    let Mutation { scenario: name, fault, .. } = mutation;
    let folder = tempfile::tempdir().map_err(|error| error.to_string())?;
    copy(folder.path())?;
    for (file, text) in broken_files(mutation)? {
        fs::write(folder.path().join(file), text).map_err(|error| error.to_string())?;
    }
    let command = |name: &str| format!("'{}'", folder.path().join(name).display());
    let (worker, producer) = (command("run-worker"), command("run-producer"));
    let commands = Commands { worker, producer, json: false };
    let mut outcome = scenario.run(commands.clone()).await;
    if outcome.failure.is_none() {
        println!("not noticed {name}, {fault}: played again");
        outcome = scenario.run(commands).await;
    }
    let took = outcome.took.as_secs_f64();
    match &outcome.failure {
        Some(sentence) => println!("ok {name}, {fault}: {sentence} ({took:.1} s)"),
        None => println!("NOT NOTICED {name}, {fault} ({took:.1} s)"),
    }
    Ok(outcome.failure.is_some())
}

/// Returns the files of the programs that a mutation changes, each with its broken text.
fn broken_files(mutation: &Mutation) -> Result<BTreeMap<&'static str, String>, String> {
    let Mutation { scenario, fault, edits } = mutation;
    let mut files = BTreeMap::new();
    for (file, found, replacement) in *edits {
        if !files.contains_key(file) {
            let text = fs::read_to_string(examples().join("python").join(file));
            files.insert(*file, text.map_err(|error| format!("{file}: {error}"))?);
        }
        let text = &files[file];
        let count = text.matches(found).count();
        if count != 1 {
            return Err(format!(
                "{scenario}, {fault}: {file} has {count} times, not once: {found}"
            ));
        }
        files.insert(file, text.replacen(found, replacement, 1));
    }
    Ok(files)
}

/// Copies the programs in Python; what `build` has made stays where it is. Compiled programs do not: one of the same
/// second and size would be taken for another.
fn copy(to: &Path) -> Result<(), String> {
    let from = examples().join("python");
    let failed = |error: std::io::Error| format!("{}: {error}", from.display());
    for entry in fs::read_dir(&from).map_err(failed)? {
        let entry = entry.map_err(failed)?;
        let target = to.join(entry.file_name());
        if entry.file_name() == "__pycache__" {
            continue;
        }
        if entry.path().is_file() {
            fs::copy(entry.path(), target).map_err(failed)?;
        } else {
            std::os::unix::fs::symlink(entry.path(), target).map_err(failed)?;
        }
    }
    Ok(())
}
