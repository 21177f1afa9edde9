//! The command line. All commands but `serve`, `demo`, `config` and `completions` are clients of the
//! public API.
//!
//! Data goes to stdout, everything else to stderr; the exit codes are part of the help.

mod bench;
mod completions;
mod config;
mod connect;
mod demo;
mod enqueue;
mod exit;
mod flags;
mod info;
mod job;
mod output;
mod serve;
mod shard;
mod text;
mod times;
mod topic;
mod values;
mod work;
mod worker;

use std::ffi::OsString;
use std::io::{self, Write as _};
use std::process::ExitCode;

use clap::error::{ContextKind, ContextValue, ErrorKind};
use clap::{Parser, Subcommand};

use exit::Failure;
use flags::ServeFlags;

/// Below the help of `ringq serve`.
const SERVE_HELP: &str = "\
Every setting is also a variable (RINGQ_LISTEN) and a key of the file (listen); flags win over
variables, these over the file. `ringq config` prints what follows from them.

Examples:
  ringq serve
  ringq serve --listen 0.0.0.0:7700 --data-dir /var/lib/ringq
  ringq serve --shard s0=sqlite::memory: --log-filter debug";

/// Below the help of `ringq config`.
const CONFIG_HELP: &str = "\
Examples:
  ringq config > ringq.toml
  ringq config --config ringq.toml --listen 0.0.0.0:7700";

/// Below the help of `ringq` itself.
const AFTER_HELP: &str = "\
Examples:
  ringq serve
  ringq enqueue emails '{\"to\":\"ada@example.org\"}' --delay 5m
  ringq topic list
  ringq job list emails --state dead

All commands but serve, demo, config and completions talk to the server named by --server or
RINGQ_SERVER, with the token of --token or RINGQ_TOKEN; flags come after the command. Data goes to
stdout, everything else to stderr.

Exit codes:
  0    done
  1    the request failed
  2    wrong usage or configuration; nothing was sent
  3    no such job, topic or shard
  4    server or shard unavailable, or no answer in time
  130  interrupted";

/// Task scheduling over gRPC: a server, and the commands that talk to one.
#[derive(Debug, Parser)]
#[command(
    name = "ringq",
    version,
    about,
    after_help = AFTER_HELP
)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

/// In the order in which people meet them.
#[derive(Debug, Subcommand)]
enum Command {
    /// Run a server
    #[command(after_help = SERVE_HELP)]
    Serve(ServeFlags),
    /// See it all at work on a store that is thrown away
    Demo(demo::Demo),
    /// Enqueue a job, or one for each line of a file
    #[command(visible_alias = "enq")]
    Enqueue(Box<enqueue::Enqueue>),
    /// Run a command for each job
    Work(Box<work::Work>),
    /// Look at jobs, and move them
    #[command(subcommand, visible_alias = "jobs")]
    Job(job::Job),
    /// Look at topics and their numbers
    #[command(subcommand, visible_alias = "topics")]
    Topic(topic::Topic),
    /// Look at the open streams
    #[command(subcommand, visible_alias = "workers")]
    Worker(worker::Worker),
    /// Look at the shards, drain one or take it back
    #[command(subcommand, visible_alias = "shards")]
    Shard(shard::Shard),
    /// Print version, features and limits of a server
    Info(info::Info),
    /// Measure a running server, and check what it does
    Bench(Box<bench::Bench>),
    /// Print the settings that a server started like this would have, as TOML
    #[command(after_help = CONFIG_HELP)]
    Config(ServeFlags),
    /// Print a script that completes ringq's commands in a shell
    Completions(completions::Completions),
    /// Print the version
    #[command(hide = true)]
    Version,
}

/// Flags that people try by the names that other programs give them, and ours.
const OTHER_NAMES: [(&str, &str); 13] = [
    ("--addr", "--listen"),
    ("--address", "--listen"),
    ("--bind", "--listen"),
    ("--host", "--listen"),
    ("--port", "--listen"),
    ("-p", "--listen"),
    ("--grpc-port", "--listen"),
    ("--http-port", "--http-listen"),
    ("--http", "--http-listen"),
    ("--data", "--data-dir"),
    ("--dir", "--data-dir"),
    ("--db", "--data-dir"),
    ("-d", "--data-dir"),
];

/// The same for commands: those of other programs, and our own without their noun.
const OTHER_COMMANDS: [(&str, &str); 29] = [
    ("start", "serve"),
    ("server", "serve"),
    ("run", "work"),
    ("consume", "work"),
    ("pull", "work"),
    ("take", "work"),
    ("add", "enqueue"),
    ("push", "enqueue"),
    ("put", "enqueue"),
    ("send", "enqueue"),
    ("publish", "enqueue"),
    ("submit", "enqueue"),
    ("get", "job get"),
    ("show", "job get"),
    ("ls", "job list"),
    ("list", "job list"),
    ("rm", "job delete"),
    ("delete", "job delete"),
    ("cancel", "job delete"),
    ("reschedule", "job reschedule"),
    ("redrive", "job redrive"),
    ("retry", "job redrive"),
    ("stats", "topic stats"),
    ("stat", "topic stats"),
    ("queue", "topic"),
    ("queues", "topic"),
    ("status", "info"),
    ("drain", "shard drain"),
    ("activate", "shard activate"),
];

/// Flags that every client command has, and no group of commands.
const CLIENT_FLAGS: [&str; 5] = ["--server", "--token", "--timeout", "--output", "-o"];
/// Commands with commands of their own.
const GROUPS: [&str; 8] =
    ["job", "jobs", "topic", "topics", "worker", "workers", "shard", "shards"];

/// Runs the command that the process was started with, to its end.
#[must_use]
pub fn run() -> ExitCode {
    let cli = match Cli::try_parse() {
        Ok(cli) => cli,
        // Help and version come here as well, with code 0; a reader that went away is no failure.
        Err(error) => {
            let error = suggest(error, std::env::args_os().skip(1));
            let _ = error.print();
            return ExitCode::from(u8::try_from(error.exit_code()).unwrap_or(exit::USAGE));
        }
    };
    let result = match cli.command {
        Command::Serve(flags) => serve::run(flags),
        Command::Demo(demo) => demo.run(),
        Command::Enqueue(enqueue) => enqueue.run(),
        Command::Work(work) => work.run(),
        Command::Job(job) => job.run(),
        Command::Topic(topic) => topic.run(),
        Command::Worker(worker) => worker.run(),
        Command::Shard(shard) => shard.run(),
        Command::Info(info) => info.run(),
        Command::Bench(bench) => bench.run(),
        Command::Config(flags) => config::run(flags),
        Command::Completions(completions) => completions.run(),
        Command::Version => print(concat!("ringq ", env!("CARGO_PKG_VERSION"), "\n")),
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => failure.report(),
    }
}

/// Names our flag or command where somebody used the one of another program, and the place of a flag
/// that came too early. `args` are those of the process.
fn suggest(mut error: clap::Error, args: impl Iterator<Item = OsString>) -> clap::Error {
    let (kind, names) = match error.kind() {
        ErrorKind::UnknownArgument => (ContextKind::InvalidArg, &OTHER_NAMES[..]),
        ErrorKind::InvalidSubcommand => (ContextKind::InvalidSubcommand, &OTHER_COMMANDS[..]),
        _ => return error,
    };
    let Some(ContextValue::String(given)) = error.get(kind) else { return error };
    let given = given.split('=').next().unwrap_or(given).to_owned();
    let tip = match given.as_str() {
        "-v" => Some("`ringq --version` prints the version".to_owned()),
        flag if CLIENT_FLAGS.contains(&flag) && is_before_command(args) => {
            Some(format!("{flag} comes after the command, as in: ringq topic list {flag} …"))
        }
        _ => None,
    };
    if let Some(tip) = tip {
        error.insert(ContextKind::Suggested, ContextValue::StyledStrs(vec![tip.into()]));
        error.remove(ContextKind::SuggestedArg);
        return error;
    }
    if let Some((_, ours)) = names.iter().find(|(name, _)| *name == given) {
        let ours = (*ours).to_owned();
        if kind == ContextKind::InvalidArg {
            error.insert(ContextKind::SuggestedArg, ContextValue::String(ours));
        } else {
            error.insert(ContextKind::SuggestedSubcommand, ContextValue::String(ours));
        }
    }
    error
}

/// Whether a flag stands where a command is awaited: at once, or after the name of a group.
fn is_before_command(args: impl Iterator<Item = OsString>) -> bool {
    let mut words = args.map(|arg| arg.to_string_lossy().into_owned());
    let first = words.find(|word| !GROUPS.contains(&word.as_str()));
    first.is_some_and(|word| word.starts_with('-'))
}

/// Writes data to stdout. A reader that has seen enough and went away is no failure.
fn print(data: &str) -> Result<(), Failure> {
    let mut stdout = io::stdout().lock();
    match stdout.write_all(data.as_bytes()).and_then(|()| stdout.flush()) {
        Err(error) if error.kind() != io::ErrorKind::BrokenPipe => {
            Err(anyhow::Error::from(error).context("cannot write to standard output").into())
        }
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory as _;

    use super::*;

    #[test]
    fn verify_cli() {
        Cli::command().debug_assert();
    }
}
