//! Defaults that follow from the machine where a setting is not given.

use std::fs;

use super::{environment, parse};

/// Maximum default of worker threads: an embedded shard has one writer, more threads only steal work.
const THREADS_DEFAULT_MAX: usize = 4;
/// Number of cpus up to which one thread does more work than two: two threads lose time by waking each other, and
/// Redis, or the thread of an embedded shard, needs the other cpu.
const CPUS_OF_ONE_THREAD: usize = 2;
/// Name of the replica where the host's name cannot be one.
const REPLICA_DEFAULT: &str = "ringq";

/// Facts about the machine; defaults follow from them.
#[derive(Debug)]
pub(super) struct Machine {
    pub(super) cpus: usize,
    pub(super) hostname: Option<String>,
}

// === impl Machine ===

impl Machine {
    /// Detects the machine that this process runs on.
    pub(super) fn detect() -> Machine {
        Machine {
            // Respects the cpu limit of a container, too.
            cpus: std::thread::available_parallelism().map_or(1, Into::into),
            hostname: hostname(),
        }
    }

    /// Returns the default of `replica`.
    pub(super) fn replica(&self) -> String {
        let name = self.hostname.as_deref().and_then(|name| parse::replica(name).ok());
        name.unwrap_or_else(|| REPLICA_DEFAULT.to_owned())
    }

    /// Returns the default of `threads`.
    pub(super) fn threads(&self) -> usize {
        match self.cpus {
            ..=CPUS_OF_ONE_THREAD => 1,
            cpus => cpus.min(THREADS_DEFAULT_MAX),
        }
    }
}

/// Returns the host's name: on Linux from the kernel, elsewhere from the variable `HOSTNAME`, if it is exported.
fn hostname() -> Option<String> {
    let kernel = fs::read_to_string("/proc/sys/kernel/hostname").ok();
    let name = kernel.map(|name| name.trim().to_owned());
    name.or_else(|| environment().find(|(name, _)| name == "HOSTNAME").map(|(_, value)| value))
}
