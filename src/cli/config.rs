//! `ringq config`: the effective settings.

use super::exit::Failure;
use super::flags::ServeFlags;
use super::print;
use crate::config::Config;

pub(super) fn run(flags: ServeFlags) -> Result<(), Failure> {
    print(&Config::load(&flags.into())?.to_toml())
}
