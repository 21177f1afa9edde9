//! Streams with weights: which of their topics they take from in a claim.
//!
//! The order of the topics is that of all streams together. A stream with weights takes from a topic only what its own
//! turns allow ([`crate::dispatch::streams::weighted_turns`]): for each plan its free credit is split over its awake patterns, and a
//! topic whose part is used up is parked like one without takers. No event would report that its turn has come, so
//! each plan begins with the parked topics whose turn it is.

use std::sync::Arc;

use crate::dispatch::streams::stream::Stream;
use crate::domain::TopicName;
use crate::domain::credit::{CreditShare, equal_share};

use super::claim_plan::{ClaimTaker, JOBS_MAX, TakerPick};
use super::served_counts::JOB_COST;
use super::{CLAIM_TOPICS_MAX, ClaimPlanner};

/// Number of streams whose parked topics a plan looks for, at most, while there are ready topics.
const STREAMS_MAX: usize = 64;

/// State of a stream with weights at this feed.
pub(super) struct WeightedShares {
    /// Patterns that had jobs at the last split.
    active: Box<[bool]>,
    /// Awake topics of each pattern, at the last split.
    awake: Vec<usize>,
    /// Jobs of each pattern that are left of the last split.
    left: Vec<u32>,
    /// Jobs of one topic of each pattern, at most.
    topic_part: Vec<u32>,
    /// Jobs of all patterns together, at the last split.
    jobs: u32,
    /// Free credit at the last split.
    free: CreditShare,
    /// Number of feeds that it is for.
    feeds: usize,
}

// === impl WeightedShares ===

impl WeightedShares {
    /// Creates the state of a stream; `None` if it has no weights.
    pub(super) fn of(stream: &Stream) -> Option<Box<WeightedShares>> {
        let patterns = stream.turns()?.len();
        Some(Box::new(WeightedShares {
            active: vec![false; patterns].into(),
            awake: Vec::new(),
            left: Vec::new(),
            topic_part: Vec::new(),
            jobs: 0,
            free: CreditShare::default(),
            feeds: 1,
        }))
    }

    /// Returns the share of a topic, and whether it is all that the stream could take; `None` when others have their
    /// turn. A topic that is claimed from alone gets all bytes.
    fn share(&self, pattern: usize, alone: bool) -> Option<(CreditShare, bool)> {
        let part = self.left[pattern].min(self.topic_part[pattern]);
        let jobs = if alone { part.max(1) } else { part };
        if jobs == 0 {
            return None;
        }
        let whole = alone || jobs == self.jobs;
        let full = alone || whole && self.feeds == 1;
        let bytes = if alone { self.free.bytes } else { self.free.divide(self.feeds).bytes };
        let bytes = if whole {
            bytes
        } else {
            let part = u128::from(bytes) * u128::from(jobs) / u128::from(self.jobs.max(1));
            u64::try_from(part).unwrap_or(bytes).max(1)
        };
        Some((CreditShare { jobs, bytes, oversize: full && self.free.oversize }, full))
    }
}

// === impl ClaimPlanner ===

impl ClaimPlanner {
    /// Unparks the topics whose turn it is at a stream with weights. Returns whether streams are left to look at.
    pub(super) fn unpark_weighted(&mut self) -> bool {
        if self.awake_topics == 0 {
            return false;
        }
        let (mut left, mut looked) = (self.weighted.len(), 0);
        while left > 0 && (looked < STREAMS_MAX || self.order.len() == 0) {
            let Some(id) = self.weighted.pop() else { break };
            left -= 1;
            looked += 1;
            if self.split_credit(id) {
                self.weighted.push(id);
                self.unpark_for(id);
            }
        }
        left > 0
    }

    /// Splits the free credit of a hungry stream over its patterns, once in a plan. Returns false if it has none: then
    /// it is no longer hungry.
    fn split_credit(&mut self, id: u32) -> bool {
        let Some(sub) = self.streams.get(&id).filter(|sub| sub.hungry) else { return false };
        let stream = Arc::clone(&sub.stream);
        let Some(turns) = stream.turns() else { return false };
        if sub.round == self.round {
            return true;
        }
        let Some(free) = stream.ledger().free_or_wait(self.feed) else {
            self.mark_full(id);
            return false;
        };
        let mut awake: Vec<usize> = sub
            .groups
            .iter()
            .map(|id| self.groups.get(id).map_or(0, |group| group.awake))
            .collect();
        turns.subtract_narrower(&mut awake);
        for pattern in sub.blocked.iter().filter_map(|name| turns.pattern_of(name)) {
            awake[pattern] = awake[pattern].saturating_sub(1);
        }
        let (round, feeds) = (self.round, self.awake_feeds.count());
        let Some(sub) = self.streams.get_mut(&id) else { return false };
        sub.round = round;
        let Some(shares) = &mut sub.weighted else { return false };
        let jobs = free.divide(feeds).jobs.min(JOBS_MAX);
        shares.left = turns.split(jobs, &awake, &mut shares.active);
        let part =
            |(left, awake): (&u32, &usize)| equal_share(*left, (*awake).min(CLAIM_TOPICS_MAX));
        shares.topic_part = shares.left.iter().zip(&awake).map(part).collect();
        (shares.jobs, shares.free, shares.feeds, shares.awake) =
            (shares.left.iter().sum(), free, feeds, awake);
        true
    }

    /// Unparks the topics of the stream that have a part of its credit.
    fn unpark_for(&mut self, id: u32) {
        let Some(sub) = self.streams.get(&id) else { return };
        if let Some(alone) = sub.claim_alone.clone() {
            return self.unpark(&alone);
        }
        let (Some(turns), Some(shares)) = (sub.stream.turns(), &sub.weighted) else { return };
        let mut names: Vec<TopicName> = Vec::new();
        for (pattern, group) in sub.groups.iter().enumerate() {
            let topics = (shares.left[pattern] as usize).min(CLAIM_TOPICS_MAX);
            let Some(group) = self.groups.get(group).filter(|_| topics > 0) else { continue };
            // With narrower patterns it may pass over others; these have turns, too, so they are few.
            let own = group
                .parked
                .values()
                .filter(|name| turns.counts_for(pattern, name) && !sub.blocked.contains(*name));
            names.extend(own.take(topics).cloned());
        }
        names.iter().for_each(|name| self.unpark(name));
    }

    /// Picks the share that a stream with weights claims from the topic, at most `jobs_max` jobs.
    pub(super) fn pick_weighted(
        &mut self,
        id: u32,
        group: u32,
        name: &TopicName,
        jobs_max: u32,
    ) -> TakerPick {
        if !self.split_credit(id) {
            return TakerPick::NoCredit;
        }
        let Some(sub) = self.streams.get_mut(&id) else { return TakerPick::NoCredit };
        let stream = Arc::clone(&sub.stream);
        let (Some(turns), Some(shares)) = (stream.turns(), &mut sub.weighted) else {
            return TakerPick::NoCredit;
        };
        let its = |pattern: &usize| turns.counts_for(*pattern, name);
        let Some(pattern) = sub.groups.iter().position(|of| *of == group).filter(its) else {
            return TakerPick::NotItsTurn;
        };
        let Some((share, full)) = shares.share(pattern, sub.claim_alone.is_some()) else {
            return TakerPick::NotItsTurn;
        };
        let share = CreditShare { jobs: share.jobs.min(jobs_max), ..share };
        let Some(share) = stream.ledger().reserve(self.feed, |_| share) else {
            self.mark_full(id);
            return TakerPick::NoCredit;
        };
        shares.left[pattern] = shares.left[pattern].saturating_sub(share.jobs);
        let taken = turns.take(pattern, shares.awake[pattern], share.jobs);
        let stream = Arc::clone(&stream);
        TakerPick::Taker(ClaimTaker { stream, group, share, full, turn: Some(Box::new(taken)) })
    }

    /// Gives back the turns for which the claim found no job. A topic that stays awake and gave nothing has had a turn.
    /// Returns the cost of the jobs in the order of the topics.
    pub(super) fn finish_turns(
        &mut self,
        asker: &ClaimTaker,
        name: &TopicName,
        jobs: usize,
        more: bool,
    ) -> u64 {
        let cost = jobs as u64 * JOB_COST;
        let (Some(turn), Some(turns)) = (&asker.turn, asker.stream.turns()) else { return cost };
        turns.finish(**turn, u32::try_from(jobs).unwrap_or(u32::MAX).max(u32::from(more)));
        // A topic that ran dry does not keep the turns that it could not use, even if it has jobs again at once.
        let shares = self.streams.get_mut(&asker.stream.id()).and_then(|sub| sub.weighted.as_mut());
        if let Some(shares) = shares
            && !more
            && turns.names(turn.pattern, name)
        {
            shares.active[turn.pattern] = false;
        }
        // A topic of a large weight is served more often without falling behind.
        cost / u64::from(turn.weight)
    }

    /// Records that the stream has no free credit.
    fn mark_full(&mut self, id: u32) {
        if let Some(sub) = self.streams.get_mut(&id)
            && std::mem::replace(&mut sub.hungry, false)
        {
            self.hungry -= 1;
        }
    }
}
