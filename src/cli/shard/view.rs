//! Shard as text for people.

use super::info::strip_enum_prefix;
use super::text::jobs;
use super::times::Now;
use crate::pb::{Shard, ShardState};

/// Returns whether the server has data of the shard.
pub(in crate::cli) fn is_reachable(shard: &Shard) -> bool {
    shard.state() != ShardState::Unreachable
}

/// Returns the state; a shard that does not answer can be draining, too.
pub(super) fn state(shard: &Shard) -> String {
    let state = strip_enum_prefix(shard.state().as_str_name(), "SHARD_STATE_");
    if !is_reachable(shard) && shard.role() == ShardState::Draining {
        return format!("{state} (DRAINING)");
    }
    if shard.state() == ShardState::Active && last_error(shard).is_some() {
        return format!("{state}, refusing");
    }
    state.to_owned()
}

/// Returns the last error in full: its end contains the advice. A reachable shard has one as long as it rejects new
/// jobs or reads.
pub(super) fn last_error(shard: &Shard) -> Option<&str> {
    Some(&*shard.last_error).filter(|why| !why.is_empty())
}

/// Returns the number of jobs: `3 jobs: 2 ready, 1 dead`.
pub(super) fn job_counts(shard: &Shard) -> String {
    let counts = [
        (shard.ready, "ready"),
        (shard.running, "running"),
        (shard.scheduled, "scheduled"),
        (shard.backoff, "in backoff"),
        (shard.dead, "dead"),
        (shard.finished, "finished"),
    ];
    let counts = counts.iter().filter(|(count, _)| *count > 0);
    let counts: Vec<String> = counts.map(|(count, name)| format!("{count} {name}")).collect();
    match shard.jobs {
        0 => "no jobs".to_owned(),
        count => format!("{}: {}", jobs(count), counts.join(", ")),
    }
}

/// Returns the times until which jobs stay that no worker can finish earlier.
pub(super) fn until(shard: &Shard) -> Vec<String> {
    let now = Now::read();
    let due = shard.latest_due_time.map(|_| {
        format!("the last delayed or retried one is due {}", now.full(shard.latest_due_time))
    });
    let forgotten = shard.latest_forget_time.map(|_| {
        format!("the last dead or finished one is removed {}", now.full(shard.latest_forget_time))
    });
    due.into_iter().chain(forgotten).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn empty_job_counts_are_not_shown() {
        let empty = Shard::default();
        assert_eq!((job_counts(&empty), until(&empty)), ("no jobs".to_owned(), vec![]));
        let shard = Shard { jobs: 3, ready: 2, backoff: 1, ..Shard::default() };
        assert_eq!(job_counts(&shard), "3 jobs: 2 ready, 1 in backoff");
        let shard = Shard { jobs: 1, finished: 1, ..Shard::default() };
        assert_eq!(job_counts(&shard), "1 job: 1 finished");
    }

    #[test]
    fn an_unreachable_draining_shard_shows_both_states() {
        let of = |health: ShardState, role: ShardState| {
            state(&Shard { state: health.into(), role: role.into(), ..Shard::default() })
        };
        use ShardState::{Active, Draining, Unreachable};
        assert_eq!(of(Active, Active), "ACTIVE");
        assert_eq!(of(Draining, Draining), "DRAINING");
        assert_eq!(of(Unreachable, Active), "UNREACHABLE");
        assert_eq!(of(Unreachable, Draining), "UNREACHABLE (DRAINING)");
    }

    #[test]
    fn an_active_shard_that_rejects_jobs_shows_its_error() {
        let with = |health: ShardState, last_error: &str| {
            let last_error = last_error.to_owned();
            state(&Shard { state: health.into(), last_error, ..Shard::default() })
        };
        assert_eq!(with(ShardState::Active, ""), "ACTIVE");
        assert_eq!(with(ShardState::Active, "it evicts"), "ACTIVE, refusing");
        assert_eq!(with(ShardState::Draining, "it evicts"), "DRAINING");
        assert_eq!(with(ShardState::Unreachable, "gone"), "UNREACHABLE");
    }
}
