//! The command line. All commands but `serve`, `config`, `auth`, `context`, `token` and `completions` are clients of the
//! public API.
//!
//! Data goes to stdout, everything else to stderr; the exit codes are part of the help.

mod auth;
mod bench;
mod completions;
mod config;
mod connect;
mod context;
mod contexts;
mod credentials;
mod enqueue;
mod exit;
mod group;
mod help;
mod info;
mod job;
mod job_state;
mod output;
mod purge;
mod serve;
mod serve_args;
mod shard;
mod text;
mod times;
mod token;
mod topic;
mod trace_context;
mod values;
mod work;
mod worker;

use std::process::ExitCode;

use clap::{CommandFactory as _, FromArgMatches as _, Parser, Subcommand};

use crate::config::unknown_variables;
use crate::stderr;
use exit::{CommandFailure, print_note};
use output::StdoutWriter;
use serve_args::ServeArgs;

/// Text below the help of `ringq serve`.
const SERVE_HELP: &str = "\
Every setting is also a variable (RINGQ_LISTEN) and a key of the file (listen); flags win over \
variables, these over the file. `ringq config` prints the settings in force.

Examples:
  ringq serve
  ringq serve --listen 0.0.0.0:7700 --data-dir /var/lib/ringq
  ringq serve --shard s0=sqlite::memory: --log-filter debug";

/// Text below the help of `ringq config`.
const CONFIG_HELP: &str = "\
Examples:
  ringq config > ringq.toml
  ringq config --config ringq.toml --listen 0.0.0.0:7700";

/// Text below the help of `ringq` itself.
const AFTER_HELP: &str = "\
Examples:
  ringq serve
  ringq enqueue emails '{\"to\":\"ada@example.org\"}' --delay 5m
  ringq topic list
  ringq job list emails --state dead

All commands but serve, config, auth, context, token and completions talk to a server: that of --server, \
of RINGQ_SERVER, of the context in use (`ringq context --help`), or of this machine. Its token comes from \
--token-file, RINGQ_TOKEN_FILE, RINGQ_TOKEN or the context; https:// is TLS. Flags come after the command. Data \
goes to stdout, everything else to stderr.

Exit codes:
  0    done
  1    the request failed
  2    wrong usage or configuration; nothing was sent
  3    no such job, topic or shard
  4    server or shard unavailable, or no answer in time
  130  interrupted
  143  ended by SIGTERM (serve and work: 0)";

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
    command: CliCommand,
}

/// Subcommands, in the order in which people need them.
#[derive(Debug, Subcommand)]
enum CliCommand {
    /// Run a server
    #[command(after_help = SERVE_HELP)]
    Serve(ServeArgs),
    /// Enqueue a job, or one for each line of a file
    #[command(visible_alias = "enq")]
    Enqueue(Box<enqueue::EnqueueArgs>),
    /// Run a command for each job
    Work(Box<work::WorkArgs>),
    /// Show, move and delete jobs
    #[command(subcommand, visible_alias = "jobs")]
    Job(job::JobCommand),
    /// Show topics and their numbers, and empty them
    #[command(subcommand, visible_alias = "topics")]
    Topic(topic::TopicCommand),
    /// Show the groups of a topic and their numbers
    #[command(subcommand, visible_alias = "groups")]
    Group(group::GroupCommand),
    /// Show the open streams
    #[command(subcommand, visible_alias = "workers")]
    Worker(worker::WorkerCommand),
    /// Show the shards, drain one or let it take jobs again
    #[command(subcommand, visible_alias = "shards")]
    Shard(shard::ShardCommand),
    /// Print version, features and limits of a server
    Info(info::InfoArgs),
    /// Measure a running server, and check its deliveries
    Bench(Box<bench::BenchArgs>),
    /// Keep servers and their credentials under names
    #[command(subcommand, visible_alias = "contexts", after_help = context::AFTER_HELP)]
    Context(context::ContextCommand),
    /// Make bearer tokens, and the hashes that servers keep of them
    #[command(subcommand)]
    Token(token::TokenCommand),
    /// Print the settings that a server started like this would have, as TOML
    #[command(after_help = CONFIG_HELP)]
    Config(ServeArgs),
    /// Show what identities may do
    #[command(subcommand)]
    Auth(auth::AuthCommand),
    /// Print a script that completes ringq's commands in a shell
    Completions(completions::CompletionsArgs),
    /// Print the version
    #[command(hide = true)]
    Version,
}

// === impl CliCommand ===

impl CliCommand {
    /// Returns whether the command reads the variables of clients, such as RINGQ_SERVER.
    fn is_client(&self) -> bool {
        !matches!(
            self,
            CliCommand::Serve(_)
                | CliCommand::Config(_)
                | CliCommand::Auth(_)
                | CliCommand::Token(_)
                | CliCommand::Completions(_)
                | CliCommand::Version
        )
    }
}

/// Runs the command of this process to its end.
#[must_use]
pub fn run() -> ExitCode {
    let mut command = help::fit_to_terminal(Cli::command());
    let parsed = command
        .try_get_matches_from_mut(std::env::args_os())
        .and_then(|matches| Cli::from_arg_matches(&matches));
    let cli = match parsed.map_err(|error| error.format(&mut command)) {
        Ok(cli) => cli,
        // Help and version also arrive here, with code 0; a closed stdout is not a failure.
        Err(error) => {
            let _ = error.print();
            return ExitCode::from(u8::try_from(error.exit_code()).unwrap_or(exit::USAGE));
        }
    };
    if cli.command.is_client() {
        unknown_variables().iter().for_each(|unknown| print_note(&format!("ringq: {unknown}")));
    }
    let result = match cli.command {
        CliCommand::Serve(flags) => serve::run(flags),
        CliCommand::Enqueue(enqueue) => enqueue.run(),
        CliCommand::Work(work) => work.run(),
        CliCommand::Job(job) => job.run(),
        CliCommand::Topic(topic) => topic.run(),
        CliCommand::Group(group) => group.run(),
        CliCommand::Worker(worker) => worker.run(),
        CliCommand::Shard(shard) => shard.run(),
        CliCommand::Info(info) => info.run(),
        CliCommand::Bench(bench) => bench.run(),
        CliCommand::Context(context) => context.run(),
        CliCommand::Token(token) => token.run(),
        CliCommand::Config(flags) => config::run(flags),
        CliCommand::Auth(auth) => auth::run(auth),
        CliCommand::Completions(completions) => completions.run(),
        CliCommand::Version => write_stdout(concat!("ringq ", env!("CARGO_PKG_VERSION"), "\n")),
    };
    let code = match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => failure.report(),
    };
    stderr::flush();
    code
}

/// Writes data to stdout. A reader that closed it early is not a failure.
fn write_stdout(data: &str) -> Result<(), CommandFailure> {
    let mut out = StdoutWriter::new();
    out.write_bytes(data.as_bytes())?;
    out.flush()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn verify_cli() {
        Cli::command().debug_assert();
    }
}
