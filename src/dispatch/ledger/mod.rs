//! The books of one stream, pure: what it may hold, what was claimed for it, what it has been sent.

mod adopted;
mod debts;
mod early;
mod harvest;
mod starved;
#[cfg(test)]
mod tests;
mod transport;

use std::collections::VecDeque;
use std::time::Duration;

use crate::clock::Skew;
use crate::domain::credit::Credit;
use crate::domain::{JobKey, StreamId, Time, Token, limit};
use crate::store::{LeaseRef, Leased, Revoked};

use super::StreamOptions;

pub(super) use adopted::{Adopted, Over};
use debts::Debts;
use early::Early;
pub(super) use harvest::Harvest;
use starved::Starved;
pub(super) use transport::{Look, Remains, Taken};
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
    /// Takes no more jobs and is about to be told so.
    Draining,
    /// Its transport is gone.
    Closed,
}

/// See the module.
pub(super) struct Ledger {
    pub(super) phase: Phase,
    /// When its transport was lost, or its worker has shown that it lost it, if that was earlier.
    pub(super) broke: Option<Time>,
    /// The worker's next stream, which adopts what is left of this one.
    pub(super) heir: Option<u32>,
    credit: Credit<Held>,
    debts: Debts,
    outbox: VecDeque<Unsent>,
    outbox_bytes: u64,
    /// Asked for by claims under way.
    asked_jobs: u32,
    asked_bytes: u64,
    /// What was revoked before it was granted.
    early: Early,
    /// Claimed and not given back; bounds what is claimed for a stream of `max_jobs`.
    granted: u64,
    delivered: u64,
    revocations: Vec<Revocation>,
    /// By feed: when it waits to be told that there is credit again, what was not enough for it.
    dozing: Box<[Option<Share>]>,
    /// Feeds that have not asked for everything yet.
    unanswered: usize,
    /// The transport did not take what waits for it; until it does, nothing more is claimed.
    stuck: bool,
    /// Since when it waits for credit that other replicas may have freed.
    starved: Option<Starved>,
    /// Whether other replicas settle its leases too.
    shared: bool,
    /// Nothing needs a look before.
    look_at: Time,
    once: bool,
    max_jobs: u64,
}

/// A lease that takes up credit.
pub(super) struct Held {
    pub(super) key: JobKey,
    pub(super) shard: usize,
    /// When it was claimed, on the clock of this replica; unknown if another one claimed it.
    pub(super) since: Option<Time>,
    /// On the clock of this replica.
    pub(super) deadline: Time,
    pub(super) sent: bool,
    /// The stream that its receipt names, if that is another one, from which it was adopted.
    pub(super) origin: Option<StreamId>,
}

/// A claimed job that waits for the transport.
pub(super) struct Unsent {
    pub(super) job: Leased,
    pub(super) shard: usize,
    bytes: u64,
    /// On the clock of this replica, as the others.
    due: Time,
    deadline: Time,
    stale_at: Time,
}

/// A sent job that was taken back.
pub(super) struct Revocation {
    pub(super) token: Token,
    pub(super) held: Held,
    pub(super) reason: Revoked,
}

/// A lease that its stream lets go of, and where it lies.
#[derive(Debug)]
pub(super) struct Loose {
    pub(super) shard: usize,
    pub(super) lease: LeaseRef,
    /// After it there is nothing left to do.
    pub(super) deadline: Time,
}

/// What a stream could take now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Want {
    pub(super) jobs: u32,
    pub(super) bytes: u64,
    /// Nothing is held or asked for, so one job may exceed `bytes`.
    pub(super) idle: bool,
}

/// What is asked for in one topic on behalf of a stream.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Share {
    pub(super) jobs: u32,
    pub(super) bytes: u64,
    pub(super) oversize: bool,
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
    /// Other feeds, for which what was set aside and not used may be enough.
    pub(super) rouse: Vec<usize>,
    /// See [`Ledger::look`].
    pub(super) look_at: Time,
    /// Not taken: the stream is gone or leaves.
    pub(super) refused: Vec<Loose>,
}

// === impl Ledger ===

impl Ledger {
    /// The books of a stream that `feeds` feeds serve.
    pub(super) fn new(options: &StreamOptions, mode: Mode, feeds: usize) -> Ledger {
        Ledger {
            phase: Phase::Open,
            broke: None,
            heir: None,
            credit: Credit::new(options.max_in_flight, options.max_in_flight_bytes),
            debts: Debts::new(options.max_in_flight),
            outbox: VecDeque::new(),
            outbox_bytes: 0,
            asked_jobs: 0,
            asked_bytes: 0,
            early: Early::new(feeds),
            granted: 0,
            delivered: 0,
            revocations: Vec::new(),
            dozing: vec![None; feeds].into(),
            unanswered: feeds,
            stuck: false,
            starved: None,
            shared: false,
            look_at: Time::MAX,
            once: mode == Mode::Pull,
            max_jobs: options.max_jobs.unwrap_or(u64::MAX),
        }
    }

    /// What the stream could take now, or `None`.
    pub(super) fn want(&self) -> Option<Want> {
        if self.phase != Phase::Open || self.stuck || self.once && self.delivered > 0 {
            return None;
        }
        let wanted = self.max_jobs.saturating_sub(self.granted + u64::from(self.asked_jobs));
        let free = self.credit.jobs_free().saturating_sub(self.asked_jobs);
        let room = limit::PREFETCH_BYTES_MAX.saturating_sub(self.outbox_bytes);
        let want = Want {
            jobs: u32::try_from(wanted).unwrap_or(u32::MAX).min(free),
            bytes: self.credit.bytes_free().min(room).saturating_sub(self.asked_bytes),
            idle: self.credit.is_idle() && self.asked_jobs == 0,
        };
        (want.jobs > 0 && (want.bytes > 0 || want.idle)).then_some(want)
    }

    /// Sets aside the share that `choose` makes of what could be taken, until it is granted. When
    /// nothing could, `feed` is told as soon as there is credit again.
    pub(super) fn reserve(
        &mut self,
        feed: usize,
        choose: impl FnOnce(Want) -> Share,
    ) -> Option<Share> {
        let Some(want) = self.want() else {
            self.dozing[feed] = Some(Share::default());
            return None;
        };
        let mut share = choose(want);
        share.jobs = share.jobs.min(want.jobs);
        share.bytes = share.bytes.min(want.bytes);
        self.asked_jobs += share.jobs;
        self.asked_bytes += share.bytes;
        self.early.asked(feed);
        Some(share)
    }

    /// Takes in what a claim found for `share`, which is no longer set aside.
    pub(super) fn grant(&mut self, share: Share, mut jobs: Vec<Leased>, at: Origin) -> Granted {
        self.asked_jobs = self.asked_jobs.saturating_sub(share.jobs);
        self.asked_bytes = self.asked_bytes.saturating_sub(share.bytes);
        self.early.granted(at.shard, &mut jobs);
        let jobs = jobs.into_iter().map(|job| Unsent::new(job, at));
        if self.phase != Phase::Open {
            let refused = jobs.map(Unsent::into_loose).collect();
            return Granted { hungry: false, rouse: Vec::new(), look_at: Time::MAX, refused };
        }
        for unsent in jobs {
            let held = Held {
                key: unsent.job.key.clone(),
                shard: unsent.shard,
                since: Some(at.now),
                deadline: unsent.deadline,
                sent: false,
                origin: None,
            };
            self.credit.grant(unsent.job.token, unsent.bytes, held);
            self.granted += 1;
            self.outbox_bytes += unsent.bytes;
            self.look_at = self.look_at.min(unsent.stale_at);
            self.outbox.push_back(unsent);
        }
        let hungry = self.want().is_some();
        if !hungry {
            self.dozing[at.shard] = Some(Share::default());
        }
        let rouse = self.rouse_others(at.shard);
        self.starve(at.now);
        let look_at = self.look_at;
        Granted { hungry, rouse, look_at, refused: Vec::new() }
    }

    /// The next job did not fit `share`: `feed` waits for more, and the stream is to be looked at by the time
    /// that is answered. Refused when there is more already.
    pub(super) fn doze(&mut self, feed: usize, share: Share, now: Time) -> Option<Time> {
        if self.want().is_some_and(|want| want.exceeds(share)) {
            return None;
        }
        let least = self.dozing[feed].map_or(share, |other| share.least(other));
        self.dozing[feed] = Some(least);
        self.starve(now);
        Some(self.look_at)
    }

    /// Whether feeds must be told that there is credit; they are told once. Also those for which it
    /// may be too little: what they waited with may have made way for something smaller.
    pub(super) fn rouse(&mut self) -> bool {
        let rouse = self.dozing.iter().any(Option::is_some) && self.want().is_some();
        if rouse {
            self.dozing.fill(None);
            self.starved = None;
        }
        rouse
    }

    /// The feeds beside `feed` that could do with what there is; they are told once. No others: two
    /// whose next jobs are too large would tell each other for ever of what they could not use. And
    /// not `feed`, which knows what it has just asked for.
    fn rouse_others(&mut self, feed: usize) -> Vec<usize> {
        let Some(want) = self.want() else { return Vec::new() };
        let others = self.dozing.iter_mut().enumerate().filter(|(other, _)| *other != feed);
        let roused = others.filter_map(|(other, dozing)| {
            dozing.take_if(|share| want.exceeds(*share)).map(|_| other)
        });
        roused.collect()
    }

    /// Whether it gets something once.
    pub(super) fn is_pull(&self) -> bool {
        self.once
    }

    /// One more feed has asked for everything that the stream wants.
    pub(super) fn answered(&mut self) {
        self.unanswered = self.unanswered.saturating_sub(1);
    }

    /// The lease on that shard was taken away: its credit is free, and a worker that has the job is told, on its next stream
    /// if this one is over. One that the stream does not hold may be part of an answer that is still on its way.
    pub(super) fn revoke(&mut self, shard: usize, token: Token, reason: Revoked) {
        match self.release(token) {
            Some(held) if held.sent && (self.phase != Phase::Closed || self.heir.is_some()) => {
                self.revocations.push(Revocation { token, held, reason });
            }
            Some(_) => {}
            None => self.early.revoked(shard, token),
        }
    }

    /// The lease is over: its credit is free, and a job that still waits for the transport does not go out. What
    /// was held, if it was.
    pub(super) fn release(&mut self, token: Token) -> Option<Held> {
        let Some(held) = self.credit.release(token) else { return self.debts.remove(token) };
        if !held.sent
            && let Some(place) = self.outbox.iter().position(|unsent| unsent.job.token == token)
            && let Some(unsent) = self.outbox.remove(place)
        {
            self.outbox_bytes -= unsent.bytes;
            self.granted -= 1;
        }
        Some(held)
    }

    /// The store says that the lease lasts until then.
    pub(super) fn extended(&mut self, token: Token, deadline: Time) {
        if let Some(held) = self.credit.get_mut(token).or_else(|| self.debts.get_mut(token)) {
            held.deadline = deadline;
            self.look_at = self.look_at.min(deadline.plus(OVERDUE));
        }
    }

    /// When something needs a look.
    pub(super) fn look_at(&self) -> Time {
        self.look_at
    }

    /// Leases held, sent or not.
    pub(super) fn in_flight(&self) -> u32 {
        self.credit.in_flight()
    }

    /// Whether the transport is gone and nothing is left of the stream: no lease, and none that it owes.
    pub(super) fn is_over(&self) -> bool {
        self.phase == Phase::Closed && self.credit.is_idle() && self.debts.is_empty()
    }

    /// Leases that a worker has.
    pub(super) fn sent_in_flight(&self) -> usize {
        (self.credit.in_flight() as usize).saturating_sub(self.outbox.len())
    }
}

// === impl Want, Share ===

impl Want {
    /// Whether a job that did not fit `share` could come now.
    fn exceeds(&self, share: Share) -> bool {
        self.bytes > share.bytes || self.idle && !share.oversize
    }
}

impl Share {
    /// What is more than one of the two is more than this.
    fn least(self, other: Share) -> Share {
        Share {
            jobs: self.jobs.min(other.jobs),
            bytes: self.bytes.min(other.bytes),
            oversize: self.oversize && other.oversize,
        }
    }
}

// === impl Unsent ===

impl Unsent {
    fn new(job: Leased, at: Origin) -> Unsent {
        let (due, deadline) = (at.skew.here(job.due), at.skew.here(job.deadline));
        let stale_at = at.now.plus((deadline.since(at.now) / 3).min(UNREAD_MAX));
        let bytes = job.bytes();
        Unsent { job, shard: at.shard, bytes, due, deadline, stale_at }
    }

    /// How long ago it was due.
    pub(super) fn lag(&self, now: Time) -> Duration {
        now.since(self.due)
    }

    /// What is left of the lease.
    pub(super) fn left(&self, now: Time) -> Duration {
        self.deadline.since(now)
    }

    pub(super) fn to_loose(&self) -> Loose {
        let lease = LeaseRef { key: self.job.key.clone(), token: self.job.token };
        Loose { shard: self.shard, lease, deadline: self.deadline }
    }

    fn into_loose(self) -> Loose {
        let lease = LeaseRef { key: self.job.key, token: self.job.token };
        Loose { shard: self.shard, lease, deadline: self.deadline }
    }
}

// === impl Held ===

impl Held {
    fn to_loose(&self, token: Token) -> Loose {
        let lease = LeaseRef { key: self.key.clone(), token };
        Loose { shard: self.shard, lease, deadline: self.deadline }
    }
}
