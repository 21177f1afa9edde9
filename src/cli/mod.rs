//! The command line. Data goes to stdout, everything else to stderr. Exit codes: 0 done, 1 failed,
//! 2 wrong usage or configuration.

mod config;
mod flags;
mod serve;

use std::fmt::Display;
use std::io::{self, Write as _};
use std::process::ExitCode;

use clap::{Parser, Subcommand};

use crate::config::Mistakes;
use flags::ServeFlags;

/// Exit code of a request or a server that failed.
const FAILED: u8 = 1;
/// Exit code of wrong usage or configuration; clap's own, too.
const USAGE: u8 = 2;

/// Task scheduling over gRPC.
#[derive(Debug, Parser)]
#[command(name = "ringq", version, about, disable_help_subcommand = true)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Run a server
    Serve(ServeFlags),
    /// Print the settings that a server started like this would have, as TOML
    Config(ServeFlags),
}

/// Why a command ended badly.
#[derive(Debug, thiserror::Error)]
enum Failure {
    #[error(transparent)]
    Mistakes(#[from] Mistakes),
    #[error("{0:#}")]
    Failed(#[from] anyhow::Error),
}

/// Runs the command that the process was started with, to its end.
#[must_use]
pub fn run() -> ExitCode {
    let cli = match Cli::try_parse() {
        Ok(cli) => cli,
        // Help and version come here as well, with code 0; a reader that went away is no failure.
        Err(error) => {
            let _ = error.print();
            return ExitCode::from(u8::try_from(error.exit_code()).unwrap_or(USAGE));
        }
    };
    let result = match cli.command {
        Command::Serve(flags) => serve::run(flags),
        Command::Config(flags) => config::run(flags),
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => failure.report(),
    }
}

// === impl Failure ===

impl Failure {
    fn report(&self) -> ExitCode {
        match self {
            Failure::Mistakes(mistakes) => {
                mistakes.iter().for_each(complain);
                ExitCode::from(USAGE)
            }
            Failure::Failed(_) => {
                complain(self);
                ExitCode::from(FAILED)
            }
        }
    }
}

/// One line on stderr. If that is closed there is nobody left to tell.
fn complain(problem: impl Display) {
    let _ = writeln!(io::stderr(), "ringq: {problem}");
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
