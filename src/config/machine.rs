//! What follows from the machine where a setting is not given.

use std::fs;

use super::{environment, parse};

/// Most worker threads by default: an embedded shard has one writer, more threads only steal work.
const THREADS_DEFAULT_MAX: usize = 4;
/// On so few cpus one thread does more than two: what two lose by waking each other they do not win where
/// Redis, or the thread of an embedded shard, needs the other cpu.
const CPUS_OF_ONE_THREAD: usize = 2;
/// The replica's name where the host's name cannot be one.
const REPLICA_DEFAULT: &str = "ringq";

/// What the machine says of itself; defaults follow from it.
#[derive(Debug)]
pub(super) struct Machine {
    pub(super) cpus: usize,
    pub(super) hostname: Option<String>,
}

// === impl Machine ===

impl Machine {
    /// The one that this process runs on.
    pub(super) fn detect() -> Machine {
        Machine {
            // Counts what a container's cpu limit leaves, too.
            cpus: std::thread::available_parallelism().map_or(1, Into::into),
            hostname: hostname(),
        }
    }

    /// The default of `replica`.
    pub(super) fn replica(&self) -> String {
        let name = self.hostname.as_deref().and_then(|name| parse::replica(name).ok());
        name.unwrap_or_else(|| REPLICA_DEFAULT.to_owned())
    }

    /// The default of `threads`.
    pub(super) fn threads(&self) -> usize {
        match self.cpus {
            ..=CPUS_OF_ONE_THREAD => 1,
            cpus => cpus.min(THREADS_DEFAULT_MAX),
        }
    }
}

/// The host's name as Linux knows it, elsewhere as the shell may have told.
fn hostname() -> Option<String> {
    let kernel = fs::read_to_string("/proc/sys/kernel/hostname").ok();
    let name = kernel.map(|name| name.trim().to_owned());
    name.or_else(|| environment().find(|(name, _)| name == "HOSTNAME").map(|(_, value)| value))
}
