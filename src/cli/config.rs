//! `ringq config`: the effective settings.

use super::exit::CommandFailure;
use super::serve_args::ServeArgs;
use super::write_stdout;
use crate::config::Config;

pub(super) fn run(flags: ServeArgs) -> Result<(), CommandFailure> {
    write_stdout(&Config::load(&flags.into())?.to_toml())
}
