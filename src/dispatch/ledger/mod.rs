//! The ledger of one stream, pure: its credit, the jobs that wait for its transport, the deadlines of its leases, and the
//! feeds that wait for credit. [`crate::domain::credit`] counts the credit.

mod adopted;
mod feeds;
#[cfg(test)]
mod tests;
mod transport;

use std::collections::VecDeque;
use std::time::Duration;

use crate::clock::Skew;
use crate::domain::credit::{Amount, Counted, Credit, Share};
use crate::domain::{StreamId, Time, Token};
use crate::store::{LeaseRef, Leased, Revoked};

use super::StreamOptions;

pub(super) use adopted::Over;
use feeds::{CreditCheck, Feed};
pub(super) use transport::Taken;
use transport::{OVERDUE, UNREAD_MAX};

/// How a stream gets its jobs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Mode {
    /// Again and again, within its credit.
    Stream,
    /// Once: what is there, as soon as there is something, is all it gets.
    Pull,
}

/// How far a stream has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Phase {
    /// Takes jobs.
    Open,
    /// Takes no more jobs; its last message is not sent yet.
    Draining,
    /// Its transport is gone.
    Closed,
}

/// What a pull has got so far: shards are asked at once and answer one by one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum PullProgress {
    /// No job yet.
    Nothing,
    /// No job, and every feed was asked.
    Exhausted,
    /// Jobs, and more may come at once.
    Some,
    /// All that it can take, or all that there was.
    All,
}

/// The state of one stream.
pub(super) struct Ledger {
    pub(super) phase: Phase,
    /// When its transport was lost, or its worker has shown that it lost it, if that was earlier.
    pub(super) broke: Option<Time>,
    /// The worker's next stream, which adopts what is left of this one.
    pub(super) heir: Option<u32>,
    /// The leases, and what is reserved for claims under way.
    credit: Credit<StreamLease>,
    /// Those that are not sent.
    outbox: VecDeque<Unsent>,
    revocations: Vec<Revocation>,
    /// Those that serve it, by shard.
    feeds: Box<[Feed]>,
    /// Feeds that have not asked for everything yet.
    unanswered: usize,
    /// The transport did not take what waits for it; until it does, nothing more is claimed.
    stuck: bool,
    credit_check: Option<CreditCheck>,
    /// Whether other replicas settle its leases too.
    shared: bool,
    /// Nothing needs a look before.
    look_at: Time,
    once: bool,
}

/// A lease of a stream.
#[derive(Clone, Debug)]
pub(super) struct StreamLease {
    pub(super) lease: LeaseRef,
    pub(super) shard: usize,
    /// When it was claimed, on the clock of this replica; unknown if another one claimed it.
    pub(super) since: Option<Time>,
    /// On the clock of this replica.
    pub(super) deadline: Time,
    /// The stream that its receipt names, if that is another one, from which it was adopted.
    pub(super) origin: Option<StreamId>,
}

/// A claimed job that waits for the transport.
pub(super) struct Unsent {
    pub(super) job: Leased,
    pub(super) shard: usize,
    cost: Amount,
    /// On the clock of this replica, as the others.
    due: Time,
    deadline: Time,
    stale_at: Time,
}

/// A sent job that was taken back.
pub(super) struct Revocation {
    pub(super) lease: StreamLease,
    pub(super) reason: Revoked,
}

/// Where and when jobs were claimed.
#[derive(Clone, Copy, Debug)]
pub(super) struct Origin {
    pub(super) shard: usize,
    /// On the clock of this replica.
    pub(super) now: Time,
    /// How the clock of the shard stands to it.
    pub(super) skew: Skew,
}

/// What a grant led to.
#[derive(Debug, Default)]
pub(super) struct Granted {
    /// The stream could take more.
    pub(super) hungry: bool,
    /// Other feeds, for which the unused part of the share may be enough.
    pub(super) wake_feeds: Vec<usize>,
    /// When the stream is to be looked at: [`Ledger::look`].
    pub(super) look_at: Time,
    /// Not taken: the stream is gone or leaves.
    pub(super) refused: Vec<StreamLease>,
}

// === impl Ledger ===

impl Ledger {
    /// The ledger of a stream that `feeds` feeds serve. `shared`: other replicas may settle its leases.
    pub(super) fn new(options: &StreamOptions, mode: Mode, feeds: usize, shared: bool) -> Ledger {
        let max = Amount { jobs: options.max_in_flight, bytes: options.max_in_flight_bytes };
        Ledger {
            phase: Phase::Open,
            broke: None,
            heir: None,
            credit: Credit::new(max, options.max_jobs.unwrap_or(u64::MAX)),
            outbox: VecDeque::new(),
            revocations: Vec::new(),
            feeds: vec![Feed::default(); feeds].into(),
            unanswered: feeds,
            stuck: false,
            credit_check: None,
            shared,
            look_at: Time::MAX,
            once: mode == Mode::Pull,
        }
    }

    /// What the stream could take now, or `None`.
    pub(super) fn free(&self) -> Option<Share> {
        let is_served = self.once && self.credit.delivered() > 0;
        if self.phase != Phase::Open || self.stuck || is_served {
            return None;
        }
        self.credit.free()
    }

    /// Reserves the share that `choose` makes of the free credit, until it is granted. When nothing is free, `feed`
    /// is woken as soon as there is credit again.
    pub(super) fn reserve(
        &mut self,
        feed: usize,
        choose: impl FnOnce(Share) -> Share,
    ) -> Option<Share> {
        let Some(free) = self.free() else {
            self.feeds[feed].waiting = Some(Share::default());
            return None;
        };
        self.feeds[feed].shares += 1;
        Some(self.credit.reserve(choose(free)))
    }

    /// Takes in what a claim found for `share`, which is no longer reserved.
    pub(super) fn grant(&mut self, share: Share, mut jobs: Vec<Leased>, at: Origin) -> Granted {
        self.credit.unreserve(share);
        self.feeds[at.shard].answered(&mut jobs);
        if self.phase != Phase::Open {
            let refused = jobs.iter().map(|job| StreamLease::claimed(job, at)).collect();
            return Granted { look_at: Time::MAX, refused, ..Granted::default() };
        }
        for job in jobs {
            let lease = StreamLease::claimed(&job, at);
            let unsent = Unsent::new(job, at);
            self.credit.hold(unsent.job.token, Counted::unsent(unsent.cost, lease));
            self.look_at = self.look_at.min(unsent.stale_at);
            self.outbox.push_back(unsent);
        }
        let hungry = self.free().is_some();
        if !hungry {
            self.feeds[at.shard].waiting = Some(Share::default());
        }
        let wake_feeds = self.wake_others(at.shard);
        self.schedule_credit_check(at.now);
        Granted { hungry, wake_feeds, look_at: self.look_at, refused: Vec::new() }
    }

    /// What a pull has got so far.
    pub(super) fn progress(&self) -> PullProgress {
        let is_last = self.unanswered == 0 && !self.credit.is_reserved();
        let is_full = || !self.credit.is_reserved() && self.free().is_none();
        if self.phase != Phase::Open {
            PullProgress::All
        } else if self.outbox.is_empty() {
            if is_last { PullProgress::Exhausted } else { PullProgress::Nothing }
        } else if is_last || is_full() {
            PullProgress::All
        } else {
            PullProgress::Some
        }
    }

    /// One more feed has asked for everything that the stream wants.
    pub(super) fn answered(&mut self) {
        self.unanswered = self.unanswered.saturating_sub(1);
    }

    /// The lease on that shard was taken away: its credit is free, and a worker that has the job gets a revocation, on
    /// its next stream if this one is over. A lease that the stream does not hold may be part of an answer under way.
    pub(super) fn revoke(&mut self, shard: usize, token: Token, reason: Revoked) {
        match self.remove(token) {
            Some(counted) if counted.is_sent() => {
                if self.phase != Phase::Closed || self.heir.is_some() {
                    self.revocations.push(Revocation { lease: counted.value, reason });
                }
            }
            Some(_) => {}
            None => self.feeds[shard].revoke(token),
        }
    }

    /// The lease is over: its credit is free, and a job that still waits for the transport is not sent. Returns the
    /// lease if it was held.
    pub(super) fn release(&mut self, token: Token) -> Option<StreamLease> {
        self.remove(token).map(|counted| counted.value)
    }

    fn remove(&mut self, token: Token) -> Option<Counted<StreamLease>> {
        let counted = self.credit.release(token)?;
        if !counted.is_sent()
            && let Some(place) = self.outbox.iter().position(|unsent| unsent.job.token == token)
        {
            self.outbox.remove(place);
        }
        Some(counted)
    }

    /// The worker has settled this lease, and its shard, which is down, does not know: [`Credit::owe`].
    pub(super) fn owe(&mut self, token: Token) {
        self.credit.owe(token);
    }

    /// The lease lasts until then, as the store has it.
    pub(super) fn extended(&mut self, token: Token, deadline: Time) {
        if let Some(lease) = self.credit.get_mut(token) {
            lease.deadline = deadline;
            self.look_at = self.look_at.min(deadline.plus(OVERDUE));
        }
    }

    /// When something needs a look.
    pub(super) fn look_at(&self) -> Time {
        self.look_at
    }

    /// Jobs that take credit, sent or not.
    pub(super) fn in_flight(&self) -> u32 {
        self.credit.in_flight()
    }

    /// Whether the transport is gone and no lease is left, not even an owed one.
    pub(super) fn is_over(&self) -> bool {
        self.phase == Phase::Closed && self.credit.is_empty()
    }

    /// Jobs that take credit and that a worker has.
    pub(super) fn sent_in_flight(&self) -> usize {
        self.credit.sent_in_flight() as usize
    }
}

// === impl Unsent ===

impl Unsent {
    fn new(job: Leased, at: Origin) -> Unsent {
        let due = at.skew.here(job.due);
        let deadline = at.skew.here(job.deadline);
        let stale_at = at.now.plus((deadline.since(at.now) / 3).min(UNREAD_MAX));
        let cost = Amount::of_job(job.bytes());
        Unsent { job, shard: at.shard, cost, due, deadline, stale_at }
    }

    /// How long ago it was due.
    pub(super) fn lag(&self, now: Time) -> Duration {
        now.since(self.due)
    }

    /// What is left of the lease.
    pub(super) fn left(&self, now: Time) -> Duration {
        self.deadline.since(now)
    }
}

// === impl StreamLease ===

impl StreamLease {
    fn claimed(job: &Leased, at: Origin) -> StreamLease {
        StreamLease {
            lease: LeaseRef { key: job.key.clone(), token: job.token },
            shard: at.shard,
            since: Some(at.now),
            deadline: at.skew.here(job.deadline),
            origin: None,
        }
    }
}
