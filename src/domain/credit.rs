//! The credit of a stream: the number of jobs, and of their bytes, that it may hold.
//!
//! A claimed job takes credit until its lease ends: 1 of the jobs, and the bytes of its payload, headers and
//! checkpoint. A claim reserves a [`CreditShare`] before it calls its shard. The response ends the reservation, and
//! the jobs in it are held instead, so held and reserved credit together stay within both limits. Every end of a
//! lease (a settle, a revocation, a job that is returned unsent) frees its credit once.
//!
//! There are two exceptions. A job larger than the free bytes is claimed alone, by an oversize share, while nothing is
//! held or reserved. Leases adopted from another stream are held even beyond the limits; then nothing is claimed until
//! enough of them have ended.
//!
//! Two more limits apply to claims: jobs that wait for the transport take at most [`limit::PREFETCH_BYTES_MAX`], and a
//! stream that ends after a number of jobs claims no more than that, not counting jobs that are returned unsent. A
//! lease that its worker has settled while its shard was unreachable is unconfirmed: it takes no credit, and is kept
//! until the shard confirms the settle.
//!
//! [`CreditShare::divide`] divides free credit among the stream's awake topics and the shards that may have jobs:
//! jobs are rounded up, so that a small credit is used, bytes are rounded down. [`Credit::reserve`] reduces each
//! share to the free credit at that time, so the shares of all shards together never exceed it.
//!
//! Every job costs 1 of the jobs. Another cost would be counted here, in [`CreditAmount::of_job`], and in the claim:
//! `LeasedJob` would contain it, and the store would subtract it from the jobs of the claim.

use std::collections::hash_map::Entry;

use foldhash::{HashMap, HashMapExt as _};

use super::limit;
use super::receipt::Token;

/// An amount of jobs and bytes: a limit, or the part of it that leases or reservations take.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CreditAmount {
    /// Number of jobs.
    pub jobs: u32,
    /// Bytes of payload, headers and checkpoint.
    pub bytes: u64,
}

/// Credit that is free or that a claim reserves.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CreditShare {
    /// Most jobs.
    pub jobs: u32,
    /// Most bytes of these jobs.
    pub bytes: u64,
    /// True if the first job may exceed `bytes`, because nothing is held or reserved.
    pub oversize: bool,
}

/// The credit of one stream, with the leases that take it.
#[derive(Debug)]
pub struct Credit<T> {
    max: CreditAmount,
    /// Most jobs in the life of the stream.
    total_max: u64,
    leases: HashMap<Token, CreditedLease<T>>,
    reserved: CreditAmount,
    unsent: CreditAmount,
    sent: CreditAmount,
    unconfirmed: CreditAmount,
    /// Number of jobs sent so far, adopted ones not included.
    delivered: u64,
}

/// A lease and the credit that it takes.
#[derive(Debug)]
pub struct CreditedLease<T> {
    cost: CreditAmount,
    stage: CreditStage,
    /// Data of the stream about the lease.
    pub value: T,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum CreditStage {
    /// Claimed; the job waits for the transport.
    Unsent,
    /// A worker has the job.
    Sent,
    /// The worker has settled the lease, but the shard has not confirmed it. Takes no credit.
    Unconfirmed,
}

/// Returns one of `ways` equal parts of `jobs`, rounded up.
#[must_use]
pub fn equal_share(jobs: u32, ways: usize) -> u32 {
    jobs.div_ceil(u32::try_from(ways.max(1)).unwrap_or(u32::MAX))
}

// === impl CreditAmount ===

impl CreditAmount {
    /// Returns the cost of a job of this size.
    #[must_use]
    pub const fn of_job(bytes: u64) -> CreditAmount {
        CreditAmount { jobs: 1, bytes }
    }

    fn plus(self, other: CreditAmount) -> CreditAmount {
        CreditAmount {
            jobs: self.jobs.saturating_add(other.jobs),
            bytes: self.bytes.saturating_add(other.bytes),
        }
    }

    fn minus(self, other: CreditAmount) -> CreditAmount {
        CreditAmount {
            jobs: self.jobs.saturating_sub(other.jobs),
            bytes: self.bytes.saturating_sub(other.bytes),
        }
    }
}

// === impl CreditShare ===

impl CreditShare {
    /// Returns one of `ways` equal parts. Only the whole share can be oversize.
    #[must_use]
    pub fn divide(self, ways: usize) -> CreditShare {
        let ways = ways.max(1);
        CreditShare {
            jobs: equal_share(self.jobs, ways),
            bytes: (self.bytes / ways as u64).max(1),
            oversize: self.oversize && ways == 1,
        }
    }

    /// Returns whether a job that did not fit `other` may fit this share.
    #[must_use]
    pub fn exceeds(self, other: CreditShare) -> bool {
        self.bytes > other.bytes || self.oversize && !other.oversize
    }

    /// Returns the smaller limits of both shares: a job that exceeds one of them exceeds the result.
    #[must_use]
    pub fn min(self, other: CreditShare) -> CreditShare {
        CreditShare {
            jobs: self.jobs.min(other.jobs),
            bytes: self.bytes.min(other.bytes),
            oversize: self.oversize && other.oversize,
        }
    }

    fn amount(self) -> CreditAmount {
        CreditAmount { jobs: self.jobs, bytes: self.bytes }
    }
}

// === impl Credit ===

impl<T> Credit<T> {
    /// Creates a credit of `max`, with nothing held, for a stream of `total_max` jobs.
    #[must_use]
    pub fn new(max: CreditAmount, total_max: u64) -> Credit<T> {
        let none = CreditAmount::default();
        let (reserved, unsent, sent, unconfirmed) = (none, none, none, none);
        let leases = HashMap::new();
        Credit { max, total_max, leases, reserved, unsent, sent, unconfirmed, delivered: 0 }
    }

    /// Returns the credit that can be reserved now; `None`: no job can be claimed.
    #[must_use]
    pub fn free(&self) -> Option<CreditShare> {
        let free = self.max.minus(self.held());
        let room = limit::PREFETCH_BYTES_MAX.saturating_sub(self.unsent.bytes);
        let free = CreditAmount { bytes: free.bytes.min(room), ..free }.minus(self.reserved);
        let claimed = self.delivered + u64::from(self.unsent.jobs) + u64::from(self.reserved.jobs);
        let left = u32::try_from(self.total_max.saturating_sub(claimed)).unwrap_or(u32::MAX);
        let oversize = self.held().jobs == 0 && self.reserved.jobs == 0;
        let share = CreditShare { jobs: free.jobs.min(left), bytes: free.bytes, oversize };
        (share.jobs > 0 && (share.bytes > 0 || oversize)).then_some(share)
    }

    /// Returns whether a job of this size can be claimed, if the claims in flight find nothing.
    #[must_use]
    pub fn fits(&self, bytes: u64) -> bool {
        let (held, room) =
            (self.held(), limit::PREFETCH_BYTES_MAX.saturating_sub(self.unsent.bytes));
        let free = self.max.minus(held);
        let is_left = self.delivered + u64::from(self.unsent.jobs) < self.total_max;
        let free_bytes = free.bytes.min(room);
        is_left && free.jobs > 0 && (held.jobs == 0 || free_bytes > 0 && bytes <= free_bytes)
    }

    /// Reserves as much of `share` as is free, until [`Credit::unreserve`].
    pub fn reserve(&mut self, share: CreditShare) -> CreditShare {
        let share = share.min(self.free().unwrap_or_default());
        self.reserved = self.reserved.plus(share.amount());
        share
    }

    /// Ends the reservation of a share whose claim was answered.
    pub fn unreserve(&mut self, share: CreditShare) {
        self.reserved = self.reserved.minus(share.amount());
    }

    /// Returns whether a claim is in flight.
    #[must_use]
    pub fn is_reserved(&self) -> bool {
        self.reserved.jobs > 0
    }

    /// Holds a lease, even beyond the limits. A token that is held already changes nothing.
    pub fn hold(&mut self, token: Token, lease: CreditedLease<T>) {
        let (cost, stage) = (lease.cost, lease.stage);
        if let Entry::Vacant(slot) = self.leases.entry(token) {
            slot.insert(lease);
            let sum = self.stage_total(stage);
            *sum = sum.plus(cost);
        }
    }

    /// Marks a job as sent: the transport has it.
    pub fn mark_sent(&mut self, token: Token) {
        if self.move_stage(token, CreditStage::Unsent, CreditStage::Sent) {
            self.delivered += 1;
        }
    }

    /// Marks a lease as unconfirmed: its worker has settled it, but its shard is unreachable. Frees its credit and
    /// keeps the lease. At most as many leases are unconfirmed as may be held, enough for each time that a shard
    /// becomes unreachable. A lease beyond that, of a shard that came back and became unreachable again before it
    /// confirmed the first ones, keeps its credit.
    pub fn mark_unconfirmed(&mut self, token: Token) {
        if self.unconfirmed.jobs < self.max.jobs {
            self.move_stage(token, CreditStage::Sent, CreditStage::Unconfirmed);
        }
    }

    /// Frees the credit of a lease and removes it; `None` when it is not held.
    pub fn release(&mut self, token: Token) -> Option<CreditedLease<T>> {
        let lease = self.leases.remove(&token)?;
        let sum = self.stage_total(lease.stage);
        *sum = sum.minus(lease.cost);
        Some(lease)
    }

    /// Releases a lease like [`Credit::release`], but only if its job was sent.
    pub fn release_sent(&mut self, token: Token) -> Option<CreditedLease<T>> {
        self.leases.get(&token).filter(|lease| lease.is_sent())?;
        self.release(token)
    }

    /// Returns the lease with this token.
    #[must_use]
    pub fn get(&self, token: Token) -> Option<&T> {
        self.leases.get(&token).map(|counted| &counted.value)
    }

    /// Returns the lease with this token, for changes.
    pub fn get_mut(&mut self, token: Token) -> Option<&mut T> {
        self.leases.get_mut(&token).map(|counted| &mut counted.value)
    }

    /// Returns the leases whose jobs a worker has or had.
    pub fn sent(&self) -> impl Iterator<Item = &T> {
        self.leases.values().filter(|counted| counted.is_sent()).map(|counted| &counted.value)
    }

    /// Returns the leases that take credit, sent or not.
    pub fn counted(&self) -> impl Iterator<Item = &T> {
        let counts = |lease: &&CreditedLease<T>| lease.stage != CreditStage::Unconfirmed;
        self.leases.values().filter(counts).map(|counted| &counted.value)
    }

    /// Returns the number of jobs that take credit, sent or not.
    #[must_use]
    pub fn in_flight(&self) -> u32 {
        self.held().jobs
    }

    /// Returns the number of jobs that take credit and that a worker has.
    #[must_use]
    pub fn sent_in_flight(&self) -> u32 {
        self.sent.jobs
    }

    /// Returns the number of jobs sent so far, adopted ones not included.
    #[must_use]
    pub fn delivered(&self) -> u64 {
        self.delivered
    }

    /// Returns whether the stream has received all jobs of its life.
    #[must_use]
    pub fn is_complete(&self) -> bool {
        self.delivered >= self.total_max
    }

    /// Returns whether there is no lease, not even an unconfirmed one.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.leases.is_empty()
    }

    fn held(&self) -> CreditAmount {
        self.unsent.plus(self.sent)
    }

    /// Moves a lease from one stage to another. Returns whether it was in the first.
    fn move_stage(&mut self, token: Token, from: CreditStage, to: CreditStage) -> bool {
        let is_there = |lease: &&mut CreditedLease<T>| lease.stage == from;
        let Some(lease) = self.leases.get_mut(&token).filter(is_there) else { return false };
        lease.stage = to;
        let cost = lease.cost;
        *self.stage_total(from) = self.stage_total(from).minus(cost);
        *self.stage_total(to) = self.stage_total(to).plus(cost);
        true
    }

    /// Returns the credit that all leases of a stage take.
    fn stage_total(&mut self, stage: CreditStage) -> &mut CreditAmount {
        match stage {
            CreditStage::Unsent => &mut self.unsent,
            CreditStage::Sent => &mut self.sent,
            CreditStage::Unconfirmed => &mut self.unconfirmed,
        }
    }
}

// === impl CreditedLease ===

impl<T> CreditedLease<T> {
    /// Creates a claimed lease whose job waits for the transport.
    #[must_use]
    pub fn unsent(cost: CreditAmount, value: T) -> CreditedLease<T> {
        CreditedLease { cost, stage: CreditStage::Unsent, value }
    }

    /// Creates a lease whose job a worker has.
    #[must_use]
    pub fn sent(cost: CreditAmount, value: T) -> CreditedLease<T> {
        CreditedLease { cost, stage: CreditStage::Sent, value }
    }

    /// Returns whether a worker has, or had, the job.
    #[must_use]
    pub fn is_sent(&self) -> bool {
        self.stage != CreditStage::Unsent
    }
}

#[cfg(test)]
mod tests {
    use rand::rngs::StdRng;
    use rand::seq::{IndexedMutRandom as _, IndexedRandom as _};
    use rand::{Rng as _, SeedableRng as _};

    use super::*;

    const STEPS: usize = 400;

    /// Naive model: adds up everything reserved and held for each query.
    struct Model {
        max: CreditAmount,
        total_max: u64,
        shares: Vec<CreditShare>,
        leases: Vec<TestLease>,
        delivered: u64,
    }

    #[derive(Clone, Copy)]
    struct TestLease {
        token: Token,
        bytes: u64,
        stage: CreditStage,
        adopted: bool,
    }

    /// A credit, its model, and the random source that drives both.
    struct Pair {
        credit: Credit<u64>,
        model: Model,
        rng: StdRng,
        tokens: u64,
    }

    // === impl Model ===

    impl Model {
        fn sum(&self, of: impl Fn(&TestLease) -> bool) -> CreditAmount {
            let leases = self.leases.iter().filter(|lease| of(lease));
            leases.fold(CreditAmount::default(), |sum, lease| {
                sum.plus(CreditAmount::of_job(lease.bytes))
            })
        }

        fn reserved(&self) -> CreditAmount {
            self.shares.iter().fold(CreditAmount::default(), |sum, share| sum.plus(share.amount()))
        }

        fn free(&self) -> Option<CreditShare> {
            let held = self.sum(|lease| lease.stage != CreditStage::Unconfirmed);
            let unsent = self.sum(|lease| lease.stage == CreditStage::Unsent);
            let used = held.plus(self.reserved());
            let claimed = self.delivered + u64::from(unsent.jobs + self.reserved().jobs);
            let left = self.total_max.saturating_sub(claimed);
            let jobs = u64::from(self.max.jobs.saturating_sub(used.jobs)).min(left);
            let bytes = self.max.bytes.saturating_sub(used.bytes);
            let room = limit::PREFETCH_BYTES_MAX.saturating_sub(unsent.plus(self.reserved()).bytes);
            let share = CreditShare {
                jobs: u32::try_from(jobs).unwrap(),
                bytes: bytes.min(room),
                oversize: used.jobs == 0,
            };
            (share.jobs > 0 && (share.bytes > 0 || share.oversize)).then_some(share)
        }

        /// Checks that claimed and reserved credit stay within the limits, except for one oversized job alone.
        fn check_limits(&self, context: &str) {
            let claimed =
                self.sum(|lease| lease.stage != CreditStage::Unconfirmed && !lease.adopted);
            let unsent = self.sum(|lease| lease.stage == CreditStage::Unsent);
            let used = claimed.plus(self.reserved());
            let prefetched = unsent.bytes + self.reserved().bytes;
            assert!(used.jobs <= self.max.jobs, "{context}: {used:?}");
            assert!(
                self.delivered + u64::from(unsent.jobs + self.reserved().jobs) <= self.total_max,
                "{context}"
            );
            if used.bytes > self.max.bytes || prefetched > limit::PREFETCH_BYTES_MAX {
                let with_bytes = |lease: &&TestLease| {
                    lease.stage != CreditStage::Unconfirmed && !lease.adopted && lease.bytes > 0
                };
                let large = self.leases.iter().filter(with_bytes).count();
                assert_eq!((large, self.reserved().bytes), (1, 0), "{context}: {used:?}");
            }
        }
    }

    // === impl Pair ===

    impl Pair {
        fn new(max: CreditAmount, total_max: u64, seed: u64) -> Pair {
            let model =
                Model { max, total_max, shares: Vec::new(), leases: Vec::new(), delivered: 0 };
            let (credit, rng) = (Credit::new(max, total_max), StdRng::seed_from_u64(seed));
            Pair { credit, model, rng, tokens: 0 }
        }

        fn step(&mut self) {
            match self.rng.random_range(0..10) {
                0..3 => self.reserve(),
                3..5 => self.grant(),
                5 => self.adopt(),
                6 => self.advance(CreditStage::Unsent),
                7 => self.advance(CreditStage::Sent),
                _ => {
                    let held = self.model.leases.choose(&mut self.rng).map(|lease| lease.token);
                    self.release(held.unwrap_or(Token(u64::MAX)));
                }
            }
        }

        /// Reserves a part for a claim of one shard.
        fn reserve(&mut self) {
            let Some(free) = self.credit.free() else { return };
            let share = self.credit.reserve(free.divide(self.rng.random_range(1..=4)));
            assert!(share.jobs > 0 && share.jobs <= free.jobs && share.bytes <= free.bytes);
            self.model.shares.push(share);
        }

        /// Ends a claim with as many jobs as it reserved, fewer, or none, as a store counts them.
        fn grant(&mut self) {
            if self.model.shares.is_empty() {
                return;
            }
            let at = self.rng.random_range(0..self.model.shares.len());
            let mut left = self.model.shares.swap_remove(at);
            self.credit.unreserve(left);
            for _ in 0..self.rng.random_range(0..=left.jobs.min(20)) {
                let bytes = self.size();
                let cost = CreditAmount::of_job(bytes);
                if cost.jobs > left.jobs || bytes > left.bytes && !left.oversize {
                    break;
                }
                let rest = left.amount().minus(cost);
                left = CreditShare { jobs: rest.jobs, bytes: rest.bytes, oversize: false };
                let lease = self.lease(bytes, CreditStage::Unsent, false);
                let counted = CreditedLease::unsent(cost, lease.token.0);
                self.credit.hold(lease.token, counted);
                // Holding it a second time changes nothing.
                self.credit.hold(lease.token, CreditedLease::sent(CreditAmount::of_job(7), 0));
            }
        }

        fn adopt(&mut self) {
            if self.rng.random_ratio(1, 4) {
                let bytes = self.size();
                let lease = self.lease(bytes, CreditStage::Sent, true);
                let counted = CreditedLease::sent(CreditAmount::of_job(bytes), lease.token.0);
                self.credit.hold(lease.token, counted);
            }
        }

        fn size(&mut self) -> u64 {
            let max = self.model.max.bytes;
            *[0, 1, max / 3, max, max + 1, 3 * max].choose(&mut self.rng).unwrap()
        }

        fn lease(&mut self, bytes: u64, stage: CreditStage, adopted: bool) -> TestLease {
            self.tokens += 1;
            let lease = TestLease { token: Token(self.tokens), bytes, stage, adopted };
            self.model.leases.push(lease);
            lease
        }

        /// Marks a lease as sent or unconfirmed, if its stage allows it.
        fn advance(&mut self, from: CreditStage) {
            let owed = self.model.sum(|lease| lease.stage == CreditStage::Unconfirmed).jobs;
            let max = self.model.max.jobs;
            let Some(lease) = self.model.leases.choose_mut(&mut self.rng) else { return };
            if from == CreditStage::Unsent {
                self.credit.mark_sent(lease.token);
            } else {
                self.credit.mark_unconfirmed(lease.token);
            }
            if lease.stage != from {
                return;
            }
            if from == CreditStage::Unsent {
                lease.stage = CreditStage::Sent;
                self.model.delivered += 1;
            } else if owed < max {
                lease.stage = CreditStage::Unconfirmed;
            }
        }

        /// Releases a token, and checks that it frees its credit once.
        fn release(&mut self, token: Token) {
            let place = self.model.leases.iter().position(|lease| lease.token == token);
            let lease = place.map(|place| self.model.leases.swap_remove(place));
            let is_sent = lease.is_some_and(|lease| lease.stage != CreditStage::Unsent);
            assert_eq!(self.credit.release_sent(token).is_some(), is_sent);
            let released = self.credit.release(token).map(|counted| counted.value);
            assert_eq!(released, lease.filter(|_| !is_sent).map(|lease| lease.token.0));
            assert!(self.credit.release(token).is_none());
        }

        fn check(&self, context: &str) {
            let Pair { credit, model, .. } = self;
            assert_eq!(credit.free(), model.free(), "{context}");
            let held = model.sum(|lease| lease.stage != CreditStage::Unconfirmed);
            let sent = model.sum(|lease| lease.stage == CreditStage::Sent);
            assert_eq!(
                (credit.in_flight(), credit.sent_in_flight()),
                (held.jobs, sent.jobs),
                "{context}"
            );
            assert_eq!(credit.is_reserved(), !model.shares.is_empty(), "{context}");
            assert_eq!(credit.counted().count(), held.jobs as usize, "{context}");
            for bytes in [0, 1, model.max.bytes, model.max.bytes + 1] {
                let takes = |share: CreditShare| share.oversize || bytes <= share.bytes;
                let fits = model.free().is_some_and(takes);
                // A reservation hides credit which comes back if its claim finds nothing.
                assert!(credit.fits(bytes) == fits || credit.is_reserved(), "{context}: {bytes}");
            }
            assert_eq!(credit.is_empty(), model.leases.is_empty(), "{context}");
            assert_eq!(credit.is_complete(), model.delivered >= model.total_max, "{context}");
            let owed = model.sum(|lease| lease.stage == CreditStage::Unconfirmed).jobs;
            assert!(owed <= model.max.jobs, "{context}");
            model.check_limits(context);
        }

        /// Ends all reservations and leases, and checks that the credit is whole again.
        fn end(mut self, context: &str) {
            for share in std::mem::take(&mut self.model.shares) {
                self.credit.unreserve(share);
            }
            let tokens: Vec<Token> = self.model.leases.iter().map(|lease| lease.token).collect();
            tokens.into_iter().for_each(|token| self.release(token));
            self.check(context);
            let left = self.model.total_max - self.model.delivered;
            let whole = CreditShare {
                jobs: u32::try_from(left).unwrap_or(u32::MAX).min(self.model.max.jobs),
                bytes: self.model.max.bytes.min(limit::PREFETCH_BYTES_MAX),
                oversize: true,
            };
            assert_eq!(self.credit.free(), (left > 0).then_some(whole), "{context}");
            assert!(self.credit.is_empty() && !self.credit.is_reserved(), "{context}");
        }
    }

    #[test]
    fn credit_counts_as_the_naive_model_does() {
        let seed: u64 = rand::random();
        eprintln!("seed {seed}");
        let mut run = 0;
        for jobs in [1, 2, 3, 13, 1_000] {
            for bytes in [1, 100, 3 * limit::PREFETCH_BYTES_MAX] {
                for total in [u64::MAX, 1, 50] {
                    run += 1;
                    let mut pair =
                        Pair::new(CreditAmount { jobs, bytes }, total, seed.wrapping_add(run));
                    let context = |step| {
                        format!("seed {seed}, {jobs} jobs, {bytes} bytes, total {total}: {step}")
                    };
                    for step in 0..STEPS {
                        pair.step();
                        pair.check(&context(step));
                    }
                    pair.end(&context(STEPS));
                }
            }
        }
    }

    #[test]
    fn the_shares_of_all_shards_and_topics_are_no_more_than_is_free_and_use_all_jobs() {
        for jobs in [1, 2, 3, 13, 1_000] {
            for ways in [1, 2, 3, 7, 64, 1_024, usize::MAX] {
                let max = CreditAmount { jobs, bytes: 100_000 };
                let mut credit = Credit::<()>::new(max, u64::MAX);
                let free = credit.free().unwrap();
                let mut sum = CreditAmount::default();
                for _ in 0..ways.min(2 * 1_024) {
                    sum = sum.plus(credit.reserve(free.divide(ways)).amount());
                }
                assert_eq!(sum.jobs, jobs, "{ways} ways");
                assert!(sum.bytes <= max.bytes, "{ways} ways");
                assert_eq!(credit.free(), None, "{ways} ways");
            }
        }
    }

    #[test]
    fn only_a_whole_share_is_oversize() {
        let free = CreditShare { jobs: 8, bytes: 100, oversize: true };
        assert_eq!(free.divide(1), free);
        assert_eq!(free.divide(3), CreditShare { jobs: 3, bytes: 33, oversize: false });
        assert_eq!(free.divide(1_000), CreditShare { jobs: 1, bytes: 1, oversize: false });
    }

    #[test]
    fn what_exceeds_a_share_is_more_bytes_or_a_first_oversize() {
        let share = CreditShare { jobs: 2, bytes: 100, oversize: false };
        let table = [
            (share, false),
            (CreditShare { jobs: 9, ..share }, false),
            (CreditShare { bytes: 101, ..share }, true),
            (CreditShare { bytes: 1, oversize: true, ..share }, true),
        ];
        for (free, exceeds) in table {
            assert_eq!(free.exceeds(share), exceeds, "{free:?}");
        }
        let whole = CreditShare { oversize: true, ..share };
        assert!(!whole.exceeds(whole));
        assert_eq!(
            whole.min(CreditShare { jobs: 1, bytes: 200, oversize: false }),
            CreditShare { jobs: 1, ..share }
        );
    }

    #[test]
    fn held_jobs_and_bytes_come_back_exactly_once() {
        let mut credit = Credit::new(CreditAmount { jobs: 2, bytes: 100 }, u64::MAX);
        credit.hold(Token(1), CreditedLease::unsent(CreditAmount::of_job(60), ()));
        credit.hold(Token(1), CreditedLease::unsent(CreditAmount::of_job(60), ()));
        assert_eq!(credit.free(), Some(CreditShare { jobs: 1, bytes: 40, oversize: false }));
        assert!(credit.release(Token(1)).is_some());
        assert!(credit.release(Token(1)).is_none());
        assert_eq!(credit.free(), Some(CreditShare { jobs: 2, bytes: 100, oversize: true }));
    }

    #[test]
    fn one_oversized_job_is_held_alone() {
        let mut credit = Credit::new(CreditAmount { jobs: 8, bytes: 100 }, u64::MAX);
        assert!(credit.free().unwrap().oversize);
        credit.hold(Token(1), CreditedLease::unsent(CreditAmount::of_job(500), ()));
        assert_eq!(credit.free(), None);
        credit.release(Token(1));
        assert!(credit.free().unwrap().oversize);
    }
}
