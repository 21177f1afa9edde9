//! Output of the ledger: messages for the transport, unsent jobs that go back to their shards, and leases to look up.

use std::collections::VecDeque;
use std::time::Duration;

use crate::domain::{JobKey, Time, Token, limit};
use crate::store::{LeaseRef, LeasedJob};

use super::{LeaseRevocation, StreamLease, StreamLedger, StreamPhase, UnsentJob};

/// Time after its deadline at which a lease that no event has ended is looked up in the store: usually the timer has
/// ended it by then.
pub(super) const OVERDUE_AFTER: Duration = Duration::from_secs(1);

/// Longest wait of a job for its transport, or a third of its lease if that is less; then it goes back to its shard.
/// A worker that does not read for longer is stuck, however long its leases are.
pub(super) const UNREAD_MAX: Duration = Duration::from_secs(10);
/// Bytes of a delivery or a revocation beside its names, its error and its job's payload and headers, at most:
/// numbers, times and tags, and the parts of a receipt that are not names.
const FIXED_BYTES: u64 = 228;
/// Bytes of a header beside its name and value: tags and lengths.
const HEADER_BYTES: u64 = 8;

/// Content of one message.
#[derive(Default)]
pub(in crate::dispatch) struct MessageContent {
    pub(in crate::dispatch) jobs: Vec<UnsentJob>,
    pub(in crate::dispatch) revocations: Vec<LeaseRevocation>,
    /// Leases that expired while their jobs waited.
    pub(in crate::dispatch) late: Vec<StreamLease>,
    pub(in crate::dispatch) in_flight: u32,
    /// True if all jobs of the stream's `max_jobs` have been delivered.
    pub(in crate::dispatch) complete: bool,
    pub(in crate::dispatch) draining: bool,
    /// True if feeds that wait for credit are to be woken.
    pub(in crate::dispatch) wake_feeds: bool,
}

/// Leases of a stream that takes no more jobs.
#[derive(Default)]
pub(in crate::dispatch) struct RemainingLeases {
    pub(in crate::dispatch) unsent: Vec<StreamLease>,
    /// Sent leases that are not settled; they stay held. When the server ends the stream they are returned only once.
    pub(in crate::dispatch) sent: Vec<StreamLease>,
}

/// Result of a check of deadlines.
#[derive(Default)]
pub(in crate::dispatch) struct DeadlineCheck {
    /// Leases of jobs that waited too long for the transport; no longer held.
    pub(in crate::dispatch) stale: Vec<StreamLease>,
    /// Leases past their deadline and still held: they are to be looked up in the store.
    pub(in crate::dispatch) overdue: Vec<StreamLease>,
    /// True if all sent leases are to be looked up instead: another replica may have settled them, and the stream
    /// waits for their credit.
    pub(in crate::dispatch) check_credit: bool,
    /// Time of the next check.
    pub(in crate::dispatch) next_check: Time,
}

// === impl StreamLedger ===

impl StreamLedger {
    /// Takes one message of at most `jobs_max` jobs: as many waiting jobs as fit, and at least one.
    pub(in crate::dispatch) fn take_message(
        &mut self,
        now: Time,
        jobs_max: usize,
    ) -> MessageContent {
        self.is_unread = false;
        let mut room = limit::MESSAGE_BYTES_MAX as u64;
        let mut taken = MessageContent {
            revocations: self.take_revocations(&mut room),
            ..MessageContent::default()
        };
        let first_may_exceed = taken.revocations.is_empty();
        taken.jobs.reserve_exact(self.outbox.len().min(jobs_max));
        while let Some(next) = self.outbox.front()
            && taken.jobs.len() < jobs_max
            && (next.message_bytes() <= room || first_may_exceed && taken.jobs.is_empty())
            && let Some(unsent) = self.outbox.pop_front()
        {
            if unsent.deadline <= now {
                taken.late.extend(self.release_unsent(unsent.job.token));
                continue;
            }
            room = room.saturating_sub(unsent.message_bytes());
            self.credit.mark_sent(unsent.job.token);
            taken.jobs.push(unsent);
        }
        taken.in_flight = self.credit.in_flight();
        taken.complete = self.credit.is_complete();
        taken.draining = self.phase == StreamPhase::Draining && self.revocations.is_empty();
        taken.wake_feeds = self.wake_feeds();
        taken
    }

    /// Takes the revocations that fit into a message.
    fn take_revocations(&mut self, room: &mut u64) -> Vec<LeaseRevocation> {
        let mut fits = |revocation: &LeaseRevocation| {
            let bytes = FIXED_BYTES + names_bytes(&revocation.lease.lease.key);
            *room = room.checked_sub(bytes)?;
            Some(())
        };
        let count = self.revocations.iter().map_while(&mut fits).count();
        self.revocations.drain(..count).collect()
    }

    /// Ends claims for the stream. Returns the unsent jobs, which go back.
    pub(in crate::dispatch) fn drain(&mut self) -> Vec<StreamLease> {
        if self.phase == StreamPhase::Open {
            self.phase = StreamPhase::Draining;
        }
        let unsent = std::mem::take(&mut self.outbox);
        unsent.iter().filter_map(|unsent| self.release_unsent(unsent.job.token)).collect()
    }

    /// Ends the stream. `broke`: its transport was lost, at that time as far as the worker has shown; `None`: the
    /// server has ended it, and its transport has taken the end. Sent leases stay held until they end or another
    /// stream adopts them. A closed stream is not changed.
    pub(in crate::dispatch) fn close(&mut self, broke: Option<Time>) -> RemainingLeases {
        if self.phase == StreamPhase::Closed {
            return RemainingLeases::default();
        }
        self.broken_by_worker = broke.is_some() && self.phase == StreamPhase::Open;
        let unsent = self.drain();
        // Leases of a pull that has ended belong to no stream.
        let is_answered_for = broke.is_some() || !self.is_pull;
        let sent = self.credit.sent().filter(|_| is_answered_for).cloned().collect();
        self.broke_at = broke;
        self.phase = StreamPhase::Closed;
        if self.successor.is_none() {
            self.revocations = Vec::new();
        }
        RemainingLeases { unsent, sent }
    }

    /// Returns the sent leases on that shard.
    pub(in crate::dispatch) fn sent_leases(&self, shard: usize) -> Vec<StreamLease> {
        self.credit.sent().filter(|lease| lease.shard == shard).cloned().collect()
    }

    /// Returns the tokens of the sent leases on that shard; [`StreamLedger::held_leases`] finds the jobs of some of
    /// them.
    pub(in crate::dispatch) fn sent_tokens(&self, shard: usize) -> Vec<Token> {
        let sent = self.credit.sent().filter(|lease| lease.shard == shard);
        sent.map(|lease| lease.lease.token).collect()
    }

    /// Returns those of these leases that are still held.
    pub(in crate::dispatch) fn held_leases(&self, tokens: &[Token]) -> Vec<LeaseRef> {
        let held = tokens.iter().filter_map(|&token| self.credit.get(token));
        held.map(|lease| lease.lease.clone()).collect()
    }

    /// Checks the deadlines that are due.
    pub(in crate::dispatch) fn check_deadlines(&mut self, now: Time) -> DeadlineCheck {
        let mut check = DeadlineCheck { next_check: self.next_check, ..DeadlineCheck::default() };
        if now < self.next_check {
            return check;
        }
        check.stale = self.release_unsent_if(|unsent| unsent.stale_at <= now);
        self.is_unread |= !check.stale.is_empty();
        let stale_at = self.outbox.iter().map(|unsent| unsent.stale_at);
        check.next_check = stale_at.min().unwrap_or(Time::MAX);
        let mut holds_some = false;
        for lease in self.credit.sent() {
            holds_some = true;
            let at = lease.deadline.plus(OVERDUE_AFTER);
            if at <= now {
                check.overdue.push(lease.clone());
            }
            check.next_check = check.next_check.min(at.max(now.plus(OVERDUE_AFTER)));
        }
        let (check_credit, next) = self.check_credit(now, holds_some);
        check.check_credit = check_credit;
        check.next_check = check.next_check.min(next);
        self.next_check = check.next_check;
        check
    }

    /// Releases the leases of unsent jobs, which go back.
    pub(in crate::dispatch) fn release_unsent_if(
        &mut self,
        which: impl Fn(&UnsentJob) -> bool,
    ) -> Vec<StreamLease> {
        let (taken, kept): (VecDeque<_>, VecDeque<_>) =
            std::mem::take(&mut self.outbox).into_iter().partition(which);
        self.outbox = kept;
        taken.iter().filter_map(|unsent| self.release_unsent(unsent.job.token)).collect()
    }

    /// Releases the lease of a job that was in the outbox.
    fn release_unsent(&mut self, token: Token) -> Option<StreamLease> {
        self.credit.release(token).map(|counted| counted.value)
    }
}

// === impl UnsentJob ===

impl UnsentJob {
    /// Bytes of the job in a message, at most.
    fn message_bytes(&self) -> u64 {
        let LeasedJob { key, spec, last_error, checkpoint, .. } = &self.job;
        let payloads = spec.payload.iter().chain(checkpoint);
        let content_types: usize = payloads.map(|payload| payload.content_type.len()).sum();
        let tags = spec.headers.len() as u64 * HEADER_BYTES;
        self.cost.bytes
            + tags
            + FIXED_BYTES
            + names_bytes(key)
            + (content_types + last_error.len()) as u64
    }
}

/// Bytes of the names of a job in a message: once by themselves and once in its receipt, which is longer by a third.
fn names_bytes(key: &JobKey) -> u64 {
    (key.topic.as_str().len() + key.id.as_str().len()) as u64 * 7 / 3
}
