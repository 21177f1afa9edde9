//! Limit of open files: each connection is one.

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// Number of files other than connections: those of stores and the log.
const RESERVED_FILES: u64 = 256;

/// Raises the soft limit of open files to the hard one. Service managers keep it at 1,024 for programs that watch
/// files with a call that supports no more; this server does not use that call.
pub(super) fn raise_limit() {
    let Rlimit { current, maximum } = getrlimit(Resource::Nofile);
    if current == maximum {
        return;
    }
    match setrlimit(Resource::Nofile, Rlimit { current: maximum, maximum }) {
        Ok(()) => tracing::debug!(from = current, to = maximum, "limit of open files raised"),
        Err(error) => {
            tracing::warn!(limit = current, %error, "cannot raise the limit of open files")
        }
    }
}

/// Returns the number of connections that carry calls which the limit of open files allows, at most `wanted`, beside `http`
/// other ones.
pub(super) fn connections_max(wanted: usize, http: usize) -> usize {
    let Some(files) = getrlimit(Resource::Nofile).current else { return wanted };
    let room = connections_for(files, http);
    if room < wanted {
        tracing::warn!(
            max_connections = wanted,
            files,
            connections = room,
            "the limit of open files allows fewer connections than max_connections; raise the limit, or lower \
             max_connections"
        );
    }
    room.min(wanted)
}

/// Returns the number of connections for a number of open files: half of them where there are few.
fn connections_for(files: u64, http: usize) -> usize {
    let others = RESERVED_FILES.saturating_add(u64::try_from(http).unwrap_or(u64::MAX));
    let room = files.saturating_sub(others).max(files / 2);
    usize::try_from(room).unwrap_or(usize::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn connections_leave_files_to_others() {
        let beside = |http| move |files| connections_for(files, http);
        assert_eq!([128, 1_536, 2_048, 524_288].map(beside(512)), [64, 768, 1_280, 523_520]);
        assert_eq!([128, 1_536, 2_048].map(beside(1_000_000)), [64, 768, 1_024]);
    }

    #[test]
    fn the_limit_is_raised_as_far_as_it_may_be() {
        raise_limit();
        let Rlimit { current, maximum } = getrlimit(Resource::Nofile);
        assert_eq!(current, maximum);
    }
}
