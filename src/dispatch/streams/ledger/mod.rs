//! Ledger of one stream, without I/O: its credit, the jobs that wait for its transport, the deadlines of its leases,
//! and the feeds that wait for credit. [`crate::domain::credit`] counts the credit.

mod adopted_leases;
mod feed_credit;
#[cfg(test)]
mod tests;
mod transport;

use std::collections::VecDeque;
use std::time::Duration;

use crate::clock::Skew;
use crate::domain::credit::{Credit, CreditAmount, CreditShare, CreditedLease};
use crate::domain::{StreamId, Time, Token, TopicName};
use crate::store::{LeaseRef, LeasedJob, RevokeReason};

use crate::dispatch::{StreamOptions, TopicCredit};

pub(in crate::dispatch) use adopted_leases::StreamEnd;
use feed_credit::{CreditCheck, FeedCredit};
pub(in crate::dispatch) use transport::MessageContent;
use transport::{OVERDUE_AFTER, UNREAD_MAX};

/// Mode in which a stream receives jobs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::dispatch) enum StreamMode {
    /// Repeatedly, within its credit.
    Stream,
    /// Once: the jobs that are there, as soon as there are any.
    Pull,
}

/// Phase of a stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::dispatch) enum StreamPhase {
    /// Takes jobs.
    Open,
    /// Takes no more jobs; its last message is not sent yet.
    Draining,
    /// Transport is gone.
    Closed,
}

/// Progress of a pull: shards are claimed from at the same time and respond one by one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::dispatch) enum PullProgress {
    /// No job yet.
    Nothing,
    /// No job, and every feed has claimed.
    Exhausted,
    /// Jobs, and more may follow at once.
    Some,
    /// All that the pull can take, or all that there was.
    All,
}

/// State of one stream.
pub(in crate::dispatch) struct StreamLedger {
    pub(in crate::dispatch) phase: StreamPhase,
    /// Time at which its transport was lost, or at which its worker had lost it, if that is known to be earlier.
    pub(in crate::dispatch) broke_at: Option<Time>,
    /// True if its transport was lost while it was open: the worker broke it. The leases of a stream that drained are the
    /// server's to keep, whatever its transport does then.
    pub(in crate::dispatch) broken_by_worker: bool,
    /// Id of the worker's next stream, which adopts the remaining leases.
    pub(in crate::dispatch) successor: Option<u32>,
    /// Leases, and reservations of claims in flight.
    credit: Credit<StreamLease>,
    /// Jobs that are not sent.
    outbox: VecDeque<UnsentJob>,
    revocations: Vec<LeaseRevocation>,
    /// Feeds that serve the stream, by shard.
    feeds: Box<[FeedCredit]>,
    /// Number of feeds that have not claimed from all topics yet.
    feeds_unclaimed: usize,
    /// True if the transport did not take waiting jobs in time; until it does, nothing more is claimed.
    is_unread: bool,
    credit_check: Option<CreditCheck>,
    /// True if other replicas may settle its leases too.
    shared: bool,
    /// Time of the next check; no deadline is due before.
    next_check: Time,
    is_pull: bool,
}

/// Lease of a stream.
#[derive(Clone, Debug)]
pub(in crate::dispatch) struct StreamLease {
    pub(in crate::dispatch) lease: LeaseRef,
    pub(in crate::dispatch) shard: usize,
    /// Time of the claim, on the clock of this replica; `None` if another replica claimed it.
    pub(in crate::dispatch) claimed_at: Option<Time>,
    /// Deadline, on the clock of this replica.
    pub(in crate::dispatch) deadline: Time,
    /// Stream that its receipt names, if it was adopted from another stream.
    pub(in crate::dispatch) origin: Option<StreamId>,
}

/// Claimed job that waits for the transport.
pub(in crate::dispatch) struct UnsentJob {
    pub(in crate::dispatch) job: LeasedJob,
    pub(in crate::dispatch) shard: usize,
    cost: CreditAmount,
    /// Due time, on the clock of this replica, like the next two.
    due: Time,
    deadline: Time,
    stale_at: Time,
}

/// Revocation of a sent job.
pub(in crate::dispatch) struct LeaseRevocation {
    pub(in crate::dispatch) lease: StreamLease,
    pub(in crate::dispatch) reason: RevokeReason,
}

/// Shard and time of a claim.
#[derive(Clone, Copy, Debug)]
pub(in crate::dispatch) struct ClaimOrigin {
    pub(in crate::dispatch) shard: usize,
    /// Time of the claim, on the clock of this replica.
    pub(in crate::dispatch) claimed_at: Time,
    /// Difference between the shard's clock and this replica's.
    pub(in crate::dispatch) skew: Skew,
}

/// Result of a grant.
#[derive(Debug, Default)]
pub(in crate::dispatch) struct GrantOutcome {
    /// True if the stream could take more.
    pub(in crate::dispatch) hungry: bool,
    /// Other feeds for which the unused part of the share may be enough.
    pub(in crate::dispatch) wake_feeds: Vec<usize>,
    /// Time of the next check: [`StreamLedger::check_deadlines`].
    pub(in crate::dispatch) next_check: Time,
    /// Leases that were not taken: the stream is closed or draining.
    pub(in crate::dispatch) refused: Vec<StreamLease>,
}

// === impl StreamLedger ===

impl StreamLedger {
    /// Creates the ledger of a stream that `feeds` feeds serve. `shared`: other replicas may settle its leases.
    pub(in crate::dispatch) fn new(
        options: &StreamOptions,
        mode: StreamMode,
        feeds: usize,
        shared: bool,
    ) -> StreamLedger {
        let max = CreditAmount { jobs: options.max_in_flight, bytes: options.max_in_flight_bytes };
        StreamLedger {
            phase: StreamPhase::Open,
            broke_at: None,
            broken_by_worker: false,
            successor: None,
            credit: Credit::new(max, options.max_jobs.unwrap_or(u64::MAX)),
            outbox: VecDeque::new(),
            revocations: Vec::new(),
            feeds: vec![FeedCredit::default(); feeds].into(),
            feeds_unclaimed: feeds,
            is_unread: false,
            credit_check: None,
            shared,
            next_check: Time::MAX,
            is_pull: mode == StreamMode::Pull,
        }
    }

    /// Returns the credit that the stream could use now, or `None`.
    pub(in crate::dispatch) fn free_share(&self) -> Option<CreditShare> {
        let is_served = self.is_pull && self.credit.delivered() > 0;
        if self.phase != StreamPhase::Open || self.is_unread || is_served {
            return None;
        }
        self.credit.free()
    }

    /// Returns the credit as a job of this topic and size sees it; `None`: the stream takes no more jobs.
    pub(in crate::dispatch) fn credit_for(
        &self,
        topic: &TopicName,
        bytes: u64,
    ) -> Option<TopicCredit> {
        let is_served = self.is_pull && self.credit.delivered() > 0;
        if self.phase != StreamPhase::Open || is_served {
            return None;
        }
        let others = self.credit.counted().filter(|held| held.lease.key.topic != *topic).count();
        Some(TopicCredit {
            in_flight: self.credit.in_flight(),
            other_topics: u32::try_from(others).unwrap_or(u32::MAX),
            fits: !self.is_unread && self.credit.fits(bytes),
            is_unread: self.is_unread,
        })
    }

    /// Reserves the share that `choose` makes of the free credit, until it is granted. When nothing is free, `feed`
    /// is woken as soon as there is credit again.
    pub(in crate::dispatch) fn reserve(
        &mut self,
        feed: usize,
        choose: impl FnOnce(CreditShare) -> CreditShare,
    ) -> Option<CreditShare> {
        let free = self.free_or_wait(feed)?;
        self.feeds[feed].shares += 1;
        Some(self.credit.reserve(choose(free)))
    }

    /// Returns the free credit. When nothing is free, `feed` is woken as soon as there is credit again.
    pub(in crate::dispatch) fn free_or_wait(&mut self, feed: usize) -> Option<CreditShare> {
        let free = self.free_share();
        if free.is_none() {
            self.feeds[feed].waiting = Some(CreditShare::default());
        }
        free
    }

    /// Adds the jobs that a claim found for `share`, which is no longer reserved.
    pub(in crate::dispatch) fn grant(
        &mut self,
        share: CreditShare,
        mut jobs: Vec<LeasedJob>,
        at: ClaimOrigin,
    ) -> GrantOutcome {
        self.credit.unreserve(share);
        self.feeds[at.shard].finish_claim(&mut jobs);
        if self.phase != StreamPhase::Open {
            let refused = jobs.iter().map(|job| StreamLease::claimed(job, at)).collect();
            return GrantOutcome { next_check: Time::MAX, refused, ..GrantOutcome::default() };
        }
        for job in jobs {
            let lease = StreamLease::claimed(&job, at);
            let unsent = UnsentJob::new(job, at);
            self.credit.hold(unsent.job.token, CreditedLease::unsent(unsent.cost, lease));
            self.next_check = self.next_check.min(unsent.stale_at);
            self.outbox.push_back(unsent);
        }
        let hungry = self.free_share().is_some();
        if !hungry {
            self.feeds[at.shard].waiting = Some(CreditShare::default());
        }
        let wake_feeds = self.wake_other_feeds(at.shard);
        self.schedule_credit_check(at.claimed_at);
        GrantOutcome { hungry, wake_feeds, next_check: self.next_check, refused: Vec::new() }
    }

    /// Returns the progress of a pull.
    pub(in crate::dispatch) fn pull_progress(&self) -> PullProgress {
        let is_last = self.feeds_unclaimed == 0 && !self.credit.is_reserved();
        let is_full = || !self.credit.is_reserved() && self.free_share().is_none();
        if self.phase != StreamPhase::Open {
            PullProgress::All
        } else if self.outbox.is_empty() {
            if is_last { PullProgress::Exhausted } else { PullProgress::Nothing }
        } else if is_last || is_full() {
            PullProgress::All
        } else {
            PullProgress::Some
        }
    }

    /// Records that one more feed has claimed everything that the stream subscribes to.
    pub(in crate::dispatch) fn count_claimed_feed(&mut self) {
        self.feeds_unclaimed = self.feeds_unclaimed.saturating_sub(1);
    }

    /// Revokes a lease on that shard: its credit is free, and a worker that has the job receives a revocation, on its
    /// next stream if this one is over. A lease that the stream does not hold may belong to a claim in flight.
    pub(in crate::dispatch) fn revoke(&mut self, shard: usize, token: Token, reason: RevokeReason) {
        match self.remove(token) {
            Some(counted) if counted.is_sent() => {
                if self.phase != StreamPhase::Closed || self.successor.is_some() {
                    self.revocations.push(LeaseRevocation { lease: counted.value, reason });
                }
            }
            Some(_) => {}
            None => self.feeds[shard].revoke(token),
        }
    }

    /// Releases a lease that is over: its credit is free, and a job that still waits for the transport is not sent.
    /// Returns the lease if it was held.
    pub(in crate::dispatch) fn release(&mut self, token: Token) -> Option<StreamLease> {
        self.remove(token).map(|counted| counted.value)
    }

    fn remove(&mut self, token: Token) -> Option<CreditedLease<StreamLease>> {
        let counted = self.credit.release(token)?;
        if !counted.is_sent()
            && let Some(place) = self.outbox.iter().position(|unsent| unsent.job.token == token)
        {
            self.outbox.remove(place);
        }
        Some(counted)
    }

    /// Marks a lease that the worker has settled while its shard was unreachable: [`Credit::mark_unconfirmed`].
    pub(in crate::dispatch) fn mark_settle_unknown(&mut self, token: Token) {
        self.credit.mark_unconfirmed(token);
    }

    /// Sets the deadline of a lease, as stored.
    pub(in crate::dispatch) fn set_deadline(&mut self, token: Token, deadline: Time) {
        if let Some(lease) = self.credit.get_mut(token) {
            lease.deadline = deadline;
            self.next_check = self.next_check.min(deadline.plus(OVERDUE_AFTER));
        }
    }

    /// Returns whether the job of a lease was sent; `None`: it is not held.
    pub(in crate::dispatch) fn is_sent(&self, token: Token) -> Option<bool> {
        self.credit.get(token)?;
        Some(self.outbox.iter().all(|unsent| unsent.job.token != token))
    }

    /// Returns the time of the next check.
    pub(in crate::dispatch) fn next_check(&self) -> Time {
        self.next_check
    }

    /// Number of jobs that use credit, sent or not.
    pub(in crate::dispatch) fn in_flight_count(&self) -> u32 {
        self.credit.in_flight()
    }

    /// Returns whether the transport is gone and no lease is left, not even one whose settle is unconfirmed.
    pub(in crate::dispatch) fn is_finished(&self) -> bool {
        self.phase == StreamPhase::Closed && self.credit.is_empty()
    }

    /// Number of sent jobs that use credit.
    pub(in crate::dispatch) fn sent_count(&self) -> usize {
        self.credit.sent_in_flight() as usize
    }
}

// === impl UnsentJob ===

impl UnsentJob {
    fn new(job: LeasedJob, at: ClaimOrigin) -> UnsentJob {
        let due = at.skew.to_local(job.due);
        let deadline = at.skew.to_local(job.deadline);
        let stale_at = at.claimed_at.plus((deadline.since(at.claimed_at) / 3).min(UNREAD_MAX));
        let cost = CreditAmount::of_job(job.bytes());
        UnsentJob { job, shard: at.shard, cost, due, deadline, stale_at }
    }

    /// Time since the job was due.
    pub(in crate::dispatch) fn lag(&self, now: Time) -> Duration {
        now.since(self.due)
    }

    /// Remaining time of the lease.
    pub(in crate::dispatch) fn lease_left(&self, now: Time) -> Duration {
        self.deadline.since(now)
    }
}

// === impl StreamLease ===

impl StreamLease {
    fn claimed(job: &LeasedJob, at: ClaimOrigin) -> StreamLease {
        StreamLease {
            lease: LeaseRef { key: job.key.clone(), token: job.token },
            shard: at.shard,
            claimed_at: Some(at.claimed_at),
            deadline: at.skew.to_local(job.deadline),
            origin: None,
        }
    }
}
