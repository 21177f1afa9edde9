//! Log lines about the health of a shard: one when something changes, and repeated failures within a limit.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use crate::clock::Skew;
use crate::domain::Durability;
use crate::log_limiter::LogLimiter;
use crate::store::{Error, ShardIdentity, ShardProblem, ShardStatus, WriteDurability};

use super::super::op::Op;
use super::state::FailedCalls;

/// How often the same failure of the same operation is logged at most; metrics count all of them.
pub(super) const REPEAT_EVERY: Duration = Duration::from_secs(30);
/// Clocks of a shard and a server that differ by more are logged: fences are compared over a failover, and a second is
/// about what an operator can keep all clocks within.
const SKEW_LOGGED_S: f64 = 1.0;
/// From here on they agree again: a difference that varies around the bound is logged once.
const SKEW_AGREED_S: f64 = 0.5;

/// Logs what changes.
pub(super) struct HealthLog {
    shard: ShardIdentity,
    limiter: LogLimiter,
    /// What was logged last of the condition.
    logged: Mutex<LastLogged>,
    /// Whether some call has asked for a replica, so that the loss of one matters.
    replica_requested: AtomicBool,
    /// Whether the clocks differ, as logged last.
    is_skewed: AtomicBool,
}

#[derive(Default)]
struct LastLogged {
    problem: Option<ShardProblem>,
    /// Whether the shard was logged as down, and not yet as back.
    is_down: bool,
    /// Durability, and whether there is no file.
    write_durability: Option<(WriteDurability, bool)>,
}

// === impl Log ===

impl HealthLog {
    pub(super) fn new(shard: ShardIdentity) -> HealthLog {
        HealthLog {
            shard,
            limiter: LogLimiter::new(REPEAT_EVERY),
            logged: Mutex::default(),
            replica_requested: AtomicBool::new(false),
            is_skewed: AtomicBool::new(false),
        }
    }

    /// The shard was taken out of use after failures. What its store knows to be wrong is logged by
    /// [`HealthLog::condition`].
    pub(super) fn down(&self, error: &str) {
        self.last_logged().is_down = true;
        let ShardIdentity { name: shard, address, .. } = &self.shard;
        tracing::warn!(
            %shard, address, error,
            "the shard does not answer; its calls fail at once until it does; see whether it runs and can be reached"
        );
    }

    /// The shard is back in use: the end of [`HealthLog::down`], if that was logged.
    pub(super) fn recovered(&self) {
        if std::mem::take(&mut self.last_logged().is_down) {
            tracing::info!(shard = %self.shard.name, "the shard answers again");
        }
    }

    /// Reads of users are refused.
    pub(super) fn reads_refused(&self, error: &str) {
        let Some(passed) = self.limiter.allow(&["reads"]) else { return };
        let suppressed = passed.suppressed();
        tracing::warn!(
            shard = %self.shard.name, error, suppressed,
            "reads of the shard fail and are refused until it answers one; writes go on"
        );
    }

    /// The shard was suspected and answers.
    pub(super) fn suspicion_cleared(&self, failed: &FailedCalls) {
        let shard = &self.shard.name;
        if let Some((op, error)) = &failed.first {
            let (first_op, failed) = (op.name(), failed.count);
            let Some(passed) = self.limiter.allow_many(&["failed", first_op], failed) else {
                return;
            };
            let suppressed = passed.suppressed();
            tracing::warn!(
                %shard, failed, suppressed, first_op, error,
                "store calls failed; the shard answers now"
            );
        } else if failed.probe_failed {
            tracing::info!(%shard, "the shard did not answer for a moment");
        }
    }

    /// A call was refused by a shard that answers. A full one refuses thousands of calls a second.
    pub(super) fn refused(&self, op: Op, error: &Error) {
        let Some(passed) = self.limiter.allow(&[op.name(), error.reason()]) else { return };
        let (shard, op, suppressed) = (&self.shard.name, op.name(), passed.suppressed());
        if let Error::Corrupt(_) = error {
            tracing::error!(
                %shard, op, suppressed, %error,
                "a store call failed, and a part of it may be written"
            );
        } else {
            tracing::warn!(%shard, op, suppressed, %error, "a store call was refused");
        }
    }

    /// A call asks for this durability.
    pub(super) fn note_durability(&self, durability: Durability) {
        if durability == Durability::Replicated {
            self.replica_requested.store(true, Ordering::Relaxed);
        }
    }

    /// What the store knows of its shard.
    pub(super) fn shard_status(&self, now: &ShardStatus) {
        let mut logged = self.last_logged();
        if logged.problem != now.problem {
            self.shard_problem(logged.problem.as_ref(), now.problem.as_ref());
            logged.problem.clone_from(&now.problem);
        }
        let reach = now.write_durability.map(|reach| (reach, now.is_volatile));
        if reach.is_some() && logged.write_durability != reach {
            self.write_durability(logged.write_durability, now);
            logged.write_durability = reach;
        }
    }

    fn last_logged(&self) -> MutexGuard<'_, LastLogged> {
        self.logged.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn shard_problem(&self, before: Option<&ShardProblem>, now: Option<&ShardProblem>) {
        let ShardIdentity { name: shard, address, .. } = &self.shard;
        match now {
            Some(ShardProblem::NeverConnected(error)) => tracing::warn!(
                %shard, address, error,
                "the shard is not reached yet and tried again until it is; its calls fail meanwhile"
            ),
            Some(ShardProblem::Misconfigured(error)) => tracing::error!(
                %shard, address, error,
                "the shard is misconfigured and out of use until that is fixed"
            ),
            Some(ShardProblem::RejectsEnqueues(error)) => tracing::error!(
                %shard, address, error,
                "the shard takes no new jobs until that is fixed; those on it are delivered and settled"
            ),
            None => match before {
                Some(ShardProblem::RejectsEnqueues(_)) => {
                    tracing::info!(%shard, "the shard takes jobs again")
                }
                _ => tracing::info!(%shard, address, "the shard is reached and can be used"),
            },
        }
    }

    /// Durability of writes. Without a file every job depends on one process: nobody should learn that from its end.
    fn write_durability(&self, before: Option<(WriteDurability, bool)>, now: &ShardStatus) {
        let (shard, durability) = (&self.shard.name, now.write_durability());
        let (before, was_volatile) = before.unzip();
        let was = before.map(|before| before.to_string());
        if now.is_volatile && was_volatile != Some(true) {
            tracing::warn!(
                %shard, %durability, before = was,
                "redis writes no append-only file: jobs that it has answered are lost when it dies; set appendonly to \
                 yes, and appendfsync to always for FSYNCED"
            );
            return;
        }
        let Some(before) = before else {
            tracing::info!(%shard, %durability, "durability of writes");
            return;
        };
        if self.is_relevant_loss(before, durability) {
            tracing::warn!(
                %shard, %durability, before = was,
                "durability of writes has become less; see its replicas, appendonly, appendfsync and the last sync"
            );
        } else if durability == before {
            tracing::info!(
                %shard, %durability,
                "redis writes an append-only file now: once that is whole, jobs outlive its process"
            );
        } else {
            tracing::info!(%shard, %durability, before = was, "durability of writes has changed");
        }
    }

    /// Whether durability is less than before, and not only for want of a replica that no call asks for: one goes whenever
    /// a machine is replaced.
    fn is_relevant_loss(&self, before: WriteDurability, now: WriteDurability) -> bool {
        let is_safe = now.by_default == before.by_default && now.max >= Durability::Fsynced;
        let is_less = now.by_default < before.by_default || now.max < before.max;
        is_less && (self.replica_requested.load(Ordering::Relaxed) || !is_safe)
    }

    /// The clock of the shard was compared with this server's.
    pub(super) fn skew(&self, skew: Skew) {
        let (shard, ahead_s) = (&self.shard.name, skew.seconds());
        let was_skewed = self.is_skewed.load(Ordering::Relaxed);
        let bound = if was_skewed { SKEW_AGREED_S } else { SKEW_LOGGED_S };
        let is_skewed = ahead_s.abs() > bound;
        self.is_skewed.store(is_skewed, Ordering::Relaxed);
        if is_skewed && !was_skewed {
            tracing::warn!(
                %shard, ahead_s,
                "the clock of the shard and this server's differ by more than a second; synchronize both: over a \
                 failover fences keep their order only while clocks differ by less than the time between deliveries"
            );
        } else if was_skewed && !is_skewed {
            tracing::info!(%shard, ahead_s, "the clock of the shard and this server's agree again");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::domain::ShardName;

    #[test]
    fn lost_replica_is_logged_if_calls_ask_for_it() {
        use Durability::{Fsynced, Memory, Replicated};
        let name = ShardName::try_new("s0").unwrap();
        let log = HealthLog::new(ShardIdentity { name, address: String::new(), is_shared: true });
        let reach = |plain, most| WriteDurability { by_default: plain, max: most };
        let (full, confirmed) = (reach(Fsynced, Replicated), reach(Memory, Replicated));
        let rows = [
            (full, full, false, false),
            (full, reach(Fsynced, Fsynced), false, true),
            (full, reach(Memory, Replicated), true, true),
            (full, WriteDurability::MEMORY, true, true),
            (confirmed, reach(Memory, Fsynced), false, true),
            (confirmed, WriteDurability::MEMORY, true, true),
        ];
        for asked in [false, true] {
            if asked {
                log.note_durability(Replicated);
            }
            for (before, now, unasked, if_asked) in rows {
                let expected = if asked { if_asked } else { unasked };
                assert_eq!(
                    log.is_relevant_loss(before, now),
                    expected,
                    "{before:?} {now:?} {asked}"
                );
            }
        }
    }
}
