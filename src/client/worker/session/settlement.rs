//! Ends of jobs in a session: settled, lost or released; and the end of the session itself.

use std::time::Duration;

use tokio::time::Instant;
use tracing::{debug, warn};

use super::WorkerSession;
use super::logging::{error_cause, settle_failure_text};
use crate::client::worker::leases::JobSlot;
use crate::client::worker::settler::{ExtendOutcome, SettleKind, SettledJob, SettlerEvent};
use crate::client::worker::{Outcome, asked_pause};
use crate::pb::{Revocation, RevocationReason};

/// Part of a lease after which an Extend without an answer is repeated.
const EXTEND_PARTS: u32 = 4;
/// Shortest timeout of an Extend.
const EXTEND_TIMEOUT_MIN: Duration = Duration::from_millis(100);
/// Time for which a stopped worker reads on, from its last settle, for jobs that are on their way. One that never arrives
/// waits for the server's `orphan_grace`, and counts as a crash.
const ARRIVAL_MAX: Duration = Duration::from_millis(200);

// === impl WorkerSession ===

impl WorkerSession {
    // --- jobs end ---

    pub(super) fn on_settler_event(&mut self, answer: SettlerEvent) {
        match answer {
            SettlerEvent::Settled(settled, delayed) => {
                settled.into_iter().for_each(|one| self.on_settled(one));
                for (slot, error) in delayed {
                    self.log_call_failure(slot, &error);
                }
            }
            SettlerEvent::Extended(sent, answers) => {
                for (slot, extended) in answers {
                    match extended {
                        ExtendOutcome::Extended => {
                            self.leases.extended(slot, sent);
                            if self.broken_since.is_some_and(|since| since <= sent) {
                                self.broken_since = None;
                            }
                            // The cause of a settle that is repeated lasts until that succeeds.
                            if !self.leases.is_settling(slot) {
                                self.log_call_recovered(slot);
                            }
                        }
                        ExtendOutcome::Unavailable(error) => {
                            let delay = asked_pause(&error);
                            self.leases.extend_failed(slot, Instant::now(), delay);
                            self.log_call_failure(slot, &error);
                        }
                        ExtendOutcome::LeaseLost => {
                            self.drop_lost_job(slot, "the server did not extend its lease")
                        }
                    }
                }
            }
        }
    }

    pub(super) fn on_settled(&mut self, settled: SettledJob) {
        // It made room for another job.
        self.read_until = self.read_until.map(|_| Instant::now() + ARRIVAL_MAX);
        let SettledJob { slot, kind, result, result_refused } = settled;
        let Some(job) = self.leases.remove(slot) else { return };
        if let Err(error) = result {
            warn!("{job} {}", settle_failure_text(&error));
            self.count_unsettled(slot);
            return;
        }
        self.log_call_recovered(slot);
        if let Some(error) = result_refused {
            warn!("{job} was acked without its result: {}", error_cause(&error));
        }
        match kind {
            SettleKind::Ack => self.summary.acked += 1,
            SettleKind::Retry => self.summary.failed += 1,
            SettleKind::Release => self.summary.released += 1,
            SettleKind::DeadLetter => self.summary.dead_lettered += 1,
        }
    }

    pub(super) fn on_revoked(&mut self, revocation: &Revocation) {
        let why = match revocation.reason() {
            RevocationReason::Deleted => "the job was deleted",
            RevocationReason::LeaseExpired => "its lease expired",
            RevocationReason::Unspecified => "the server gave no reason",
        };
        if let Some(slot) = self.leases.find_by_receipt(&revocation.receipt) {
            self.drop_lost_job(slot, why);
        }
    }

    /// Drops a job whose lease has ended: its handler stops.
    pub(super) fn drop_lost_job(&mut self, slot: JobSlot, why: &str) {
        // If its settle is in flight, the answer to that decides.
        if !self.leases.is_settling(slot)
            && let Some(job) = self.leases.remove(slot)
        {
            self.on_lease_lost(slot, &job, why);
        }
    }

    fn on_lease_lost(&mut self, slot: JobSlot, job: &str, why: &str) {
        let trouble = match self.failure_causes.cause_of(slot) {
            Some(cause) => format!("; extending it failed: {cause}"),
            None => String::new(),
        };
        warn!("{job} was revoked: {why}{trouble}");
        self.count_unsettled(slot);
    }

    /// Counts a job whose outcome was not stored. If its handler runs, it stops.
    fn count_unsettled(&mut self, slot: JobSlot) {
        self.failure_causes.remove(slot);
        self.summary.unsettled += 1;
        self.pending.remove(slot);
        let Some(id) = self.handler_of.remove(&slot) else { return };
        let Some(run) = self.running.get_mut(&id) else { return };
        run.remaining -= 1;
        // The other jobs of its batch are still leased.
        if run.remaining == 0 {
            run.abort.abort();
        }
    }

    // --- time and end ---

    pub(super) fn on_deadline(&mut self, now: Instant) {
        let due = self.leases.due(now);
        for (slot, job) in due.expired {
            self.on_lease_lost(slot, &job, "its lease expired");
        }
        self.extend(due.extend, self.call_timeout);
        if self.read_until.is_some_and(|until| until <= now) {
            self.give_back();
        }
        if self.grace_until.is_some_and(|until| until <= now) {
            self.grace_until = None;
            // Their jobs are released as they end.
            self.running.values().for_each(|run| run.abort.abort());
        }
        if self.settle_until.is_some_and(|until| until <= now) {
            for (slot, job) in self.leases.remove_all() {
                warn!("{job} is not settled in time; the worker ends");
                self.count_unsettled(slot);
            }
        }
        let idle = self.idle_since.zip(self.idle_exit);
        if idle.is_some_and(|(since, idle)| since + idle <= now) && !self.closing {
            debug!("the worker was idle for idle_exit; stopping");
            self.stop_taking_jobs();
        }
    }

    /// Extends leases. A call that hangs, as on a connection that has just broken, ends in time for a repeat, which goes to
    /// another of several servers: the one before may lack a shard.
    pub(super) fn extend(&mut self, slots: Vec<JobSlot>, limit: Duration) {
        let shortest = slots.iter().filter_map(|slot| self.leases.duration(*slot)).min();
        let limit = limit.min(shortest.unwrap_or(limit) / EXTEND_PARTS).max(EXTEND_TIMEOUT_MIN);
        let repeat = slots.iter().map(|slot| self.leases.extend_failures(*slot)).max();
        let lease = |slot| Some((slot, self.leases.receipt(slot)?.clone()));
        let leases: Vec<_> = slots.into_iter().filter_map(lease).collect();
        if !leases.is_empty() {
            self.settler.extend(&leases, limit, repeat.unwrap_or_default());
        }
    }

    /// Extends all leases at once, to keep them over the end of their stream.
    pub(super) fn extend_all(&mut self) {
        let slots = self.leases.extend_all();
        let limit = self.call_timeout.min(self.stream.orphan_grace() / 2);
        self.extend(slots, limit);
    }

    /// Limits the time that a stopped worker waits for settles, from the end of its last handler on.
    pub(super) fn limit_settles(&mut self) {
        if self.stopped && self.closing && self.handlers.is_empty() && self.settle_until.is_none() {
            self.settle_until = Instant::now().checked_add(self.call_timeout.saturating_mul(2));
        }
    }

    /// Takes no more jobs; held jobs go on, over the end of their stream.
    pub(super) fn stop_taking_jobs(&mut self) {
        self.close();
        self.extend_all();
    }

    /// Begins no more jobs, and takes no more once those have come that may be on their way.
    pub(super) fn stop(&mut self) {
        let now = Instant::now();
        self.stopped = true;
        self.grace_until = self.grace.and_then(|grace| now.checked_add(grace));
        if self.stream.is_open() {
            self.read_until = Some(now + ARRIVAL_MAX);
        } else {
            self.give_back();
        }
    }

    /// Takes no more jobs, and releases those that have not begun.
    pub(super) fn give_back(&mut self) {
        self.read_until = None;
        self.close();
        let held_back = std::mem::take(&mut self.held_back).into_iter();
        let pending = self.pending.take_all().into_iter().map(|slot| (slot, Outcome::release()));
        held_back.chain(pending).for_each(|(slot, outcome)| self.settle(slot, outcome));
        self.extend_all();
    }

    pub(super) fn close(&mut self) {
        self.closing = true;
        for message in self.stream.close() {
            self.on_message(message);
        }
    }
}
