//! `ringq completions`: completion scripts.

use clap::{Args, CommandFactory as _};
use clap_complete::{Shell, generate};

use super::exit::CommandFailure;
use super::{Cli, write_stdout};

const AFTER_HELP: &str = "\
Examples:
  source <(ringq completions bash)                              this bash session
  ringq completions zsh > \"${fpath[1]}/_ringq\"                  zsh, for good
  ringq completions fish > ~/.config/fish/completions/ringq.fish";

/// Arguments of `ringq completions`.
#[derive(Debug, Args)]
#[command(after_help = AFTER_HELP)]
pub(super) struct CompletionsArgs {
    /// The shell to write the script for
    shell: Shell,
}

// === impl CompletionsArgs ===

impl CompletionsArgs {
    pub(super) fn run(&self) -> Result<(), CommandFailure> {
        let mut script = Vec::new();
        generate(self.shell, &mut Cli::command(), "ringq", &mut script);
        write_stdout(&String::from_utf8_lossy(&script))
    }
}
