//! Log lines about the health of a shard: one for each change, and limited ones for repeated failures.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, UNIX_EPOCH};

use parking_lot::Mutex;

use crate::clock::Skew;
use crate::domain::{Durability, Time};
use crate::log_limiter::LogLimiter;
use crate::store::{DataLoss, Error, ShardIdentity, ShardProblem, ShardStatus, WriteDurability};

use super::super::op::Op;
use super::state::FailedCalls;

/// Shortest time between two log lines about the same failure of the same operation; metrics count all failures.
pub(super) const REPEAT_EVERY: Duration = Duration::from_secs(30);
/// Clock skew of a shard, in seconds, above which it is logged. Fences are compared over a failover, and a second is
/// about what an operator can keep all clocks within.
const SKEW_LOGGED_S: f64 = 1.0;
/// Clock skew, in seconds, below which the clocks agree again: a skew that varies around the upper bound is logged
/// once.
const SKEW_AGREED_S: f64 = 0.5;

/// Logs changes of the health of one shard.
pub(super) struct HealthLog {
    shard: ShardIdentity,
    limiter: LogLimiter,
    /// Status that was logged last.
    logged: Mutex<LastLogged>,
    /// True once a call has requested a replica, so that the loss of one matters.
    replica_requested: AtomicBool,
    /// True if the clocks differ, as logged last.
    is_skewed: AtomicBool,
}

#[derive(Default)]
struct LastLogged {
    problem: Option<ShardProblem>,
    /// True if the shard was logged as down, and not yet as recovered.
    is_down: bool,
    /// Durability, and whether there is no append-only file.
    write_durability: Option<(WriteDurability, bool)>,
}

// === impl HealthLog ===

impl HealthLog {
    pub(super) fn new(shard: ShardIdentity) -> HealthLog {
        HealthLog {
            shard,
            limiter: LogLimiter::new("calls of a shard", REPEAT_EVERY),
            logged: Mutex::default(),
            replica_requested: AtomicBool::new(false),
            is_skewed: AtomicBool::new(false),
        }
    }

    /// Logs that the shard was taken out of use after failures. Problems that its store finds are logged by
    /// [`HealthLog::shard_status`].
    pub(super) fn down(&self, error: &str) {
        self.logged.lock().is_down = true;
        let ShardIdentity { name: shard, address, .. } = &self.shard;
        tracing::warn!(
            %shard, address, error,
            "the shard does not answer; its calls fail at once until a probe succeeds; check that it runs and can be \
             reached"
        );
    }

    /// Logs that the shard is back in use, if [`HealthLog::down`] was logged.
    pub(super) fn recovered(&self) {
        if std::mem::take(&mut self.logged.lock().is_down) {
            tracing::info!(shard = %self.shard.name, "the shard answers again");
        }
    }

    /// Logs that the shard has lost data.
    pub(super) fn data_lost(&self, loss: DataLoss) {
        let ShardIdentity { name: shard, address, .. } = &self.shard;
        match loss {
            DataLoss::All => tracing::warn!(
                %shard, address,
                "the shard came back without its data: the jobs that were on it are lost; settings and pauses are written \
                 again; find out why it was emptied, or why it started without its files"
            ),
            DataLoss::Since(Time(micros)) => {
                let since = humantime::format_rfc3339_millis(
                    UNIX_EPOCH + Duration::from_micros(u64::try_from(micros).unwrap_or(0)),
                );
                tracing::warn!(
                    %shard, address, %since,
                    "the shard came back with an older copy of its data: what was written after that time is lost, \
                     and jobs that have ended since may run again"
                );
            }
        }
    }

    /// Logs that reads by users are refused.
    pub(super) fn reads_refused(&self, error: &str) {
        let Some(passed) = self.limiter.allow(&["reads"]) else { return };
        let suppressed = passed.suppressed();
        tracing::warn!(
            shard = %self.shard.name, error, suppressed,
            "reads of the shard fail and are refused until a probe by a read succeeds; writes go on"
        );
    }

    /// Logs that a suspected shard answers.
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
            tracing::info!(%shard, "a probe of the shard failed; the shard answers now");
        }
    }

    /// Logs a call that was refused by a shard that answers. Limited, because a full shard refuses thousands of calls
    /// a second.
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

    /// Logs that a shard that was full has stored a job.
    pub(super) fn has_room(&self) {
        let Some(passed) = self.limiter.allow(&["room"]) else { return };
        let suppressed = passed.suppressed();
        tracing::info!(shard = %self.shard.name, suppressed, "the shard was full and stores new jobs again");
    }

    /// Records the durability that a call requests.
    pub(super) fn note_durability(&self, durability: Durability) {
        if durability == Durability::Replicated {
            self.replica_requested.store(true, Ordering::Relaxed);
        }
    }

    /// Logs changes of the status that the store reports.
    pub(super) fn shard_status(&self, now: &ShardStatus) {
        let mut logged = self.logged.lock();
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

    fn shard_problem(&self, before: Option<&ShardProblem>, now: Option<&ShardProblem>) {
        let ShardIdentity { name: shard, address, .. } = &self.shard;
        match now {
            Some(ShardProblem::NeverConnected(error)) => tracing::warn!(
                %shard, address, error,
                "the shard is not reached yet; the server retries until it is, and calls of the shard fail meanwhile"
            ),
            Some(ShardProblem::Misconfigured(error)) => tracing::error!(
                %shard, address, error,
                "the shard is misconfigured and not used; fix what the error names, the server then uses it by itself"
            ),
            Some(ShardProblem::RejectsEnqueues(error)) => tracing::error!(
                %shard, address, error,
                "the shard takes no new jobs until the cause in the error is fixed; jobs on it are delivered and settled"
            ),
            None => match before {
                Some(ShardProblem::RejectsEnqueues(_)) => {
                    tracing::info!(%shard, "the shard takes jobs again")
                }
                _ => tracing::info!(%shard, address, "the shard is reached and can be used"),
            },
        }
    }

    /// Logs the durability of writes. Without a file every job depends on one process, and that is logged before the
    /// process ends.
    fn write_durability(&self, before: Option<(WriteDurability, bool)>, now: &ShardStatus) {
        let (shard, durability) = (&self.shard.name, now.write_durability());
        let (before, was_volatile) = before.unzip();
        let was = before.map(|before| before.to_string());
        if now.is_volatile && was_volatile != Some(true) {
            tracing::warn!(
                %shard, %durability, before = was,
                "redis writes no append-only file: accepted jobs are lost when its process ends; set appendonly to \
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
                "durability of writes has decreased; check the replicas, appendonly, appendfsync and the last sync"
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

    /// Returns whether durability has decreased, and not only by the loss of a replica that no call requests: one
    /// goes whenever a machine is replaced.
    fn is_relevant_loss(&self, before: WriteDurability, now: WriteDurability) -> bool {
        let is_safe = now.by_default == before.by_default && now.max >= Durability::Fsynced;
        let is_less = now.by_default < before.by_default || now.max < before.max;
        is_less && (self.replica_requested.load(Ordering::Relaxed) || !is_safe)
    }

    /// Logs when the clocks of the shard and this server begin to differ, and when they agree again.
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
