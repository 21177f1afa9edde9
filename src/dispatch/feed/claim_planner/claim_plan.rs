//! Claims: selects the topics and streams of each claim, and applies its result.
//!
//! A stream's free credit is split over its awake topics and the shards; each claim reserves its share until the
//! result arrives: [`crate::domain::credit`].

use std::collections::HashSet;
use std::sync::Arc;

use crate::dispatch::streams::ledger::{ClaimOrigin, StreamLease};
use crate::dispatch::streams::stream::Stream;
use crate::dispatch::streams::weighted_turns::TakenTurns;
use crate::domain::credit::{CreditShare, equal_share};
use crate::domain::{Time, TopicName, limit};
use crate::store::{LeasedJob, TopicLeases, TopicRemainder};

use super::glob_tasks::PIECE;
use super::served_counts::JOB_COST;
use super::{CLAIM_TOPICS_MAX, ClaimPlanner, StreamEntry, TopicEntry, TopicPosition, TopicStatus};

/// Number of topics that one plan examines, at most: more than it unparks, so that it reaches the topics behind them.
const PASSED_MAX: usize = 3 * PIECE;
/// Number of streams for which one plan passes over a topic because others have their turn there, at most.
const PASSED_OVER_MAX: usize = 64;
/// Number of jobs of one claim, at most.
pub(super) const JOBS_MAX: u32 = limit::CALL_JOBS_MAX as u32;

/// Content of one claim.
pub(in crate::dispatch) struct ClaimPlan {
    /// Topics in the order of the store's [`crate::store::ClaimResult::topics`].
    pub(in crate::dispatch) topics: Vec<TopicClaim>,
}

/// Claim of one topic.
pub(in crate::dispatch) struct TopicClaim {
    pub(in crate::dispatch) topic: TopicName,
    pub(in crate::dispatch) takers: Vec<ClaimTaker>,
    /// Number of the topic's last wake-up and count of missed events, at the time of the claim.
    wakes_seen: (u64, u64),
    /// Cost of the jobs that the topic had been served, at the time of the claim.
    served: u64,
}

/// Stream that a claim is for, and its share.
pub(in crate::dispatch) struct ClaimTaker {
    pub(in crate::dispatch) stream: Arc<Stream>,
    /// Group in whose queue the stream was.
    pub(super) group: u32,
    pub(in crate::dispatch) share: CreditShare,
    /// True if the share is all that the stream could take.
    pub(super) full: bool,
    /// Turns that the share takes, if the topics of the stream have weights.
    pub(super) turn: Option<Box<TakenTurns>>,
}

/// Actions to take after the result of a claim.
#[derive(Default)]
pub(in crate::dispatch) struct ClaimOutcome {
    /// Leases for streams that are gone.
    pub(in crate::dispatch) refused: Vec<StreamLease>,
    /// Streams with credit that other feeds wait for, and these feeds.
    pub(in crate::dispatch) wake_feeds: Vec<(Arc<Stream>, Vec<usize>)>,
    /// Time of the first check of jobs that wait for their transport.
    pub(in crate::dispatch) look_at: Option<Time>,
}

pub(super) enum TakerPick {
    Taker(ClaimTaker),
    /// Hungry, but no job of this topic fits until there is more credit.
    Blocked,
    /// Hungry, but by its weights it is the turn of other topics.
    NotItsTurn,
    /// Hungry, but must first claim from this other topic alone.
    Deferred(TopicName),
    /// Not hungry, or gone.
    NoCredit,
}

/// Topics whose takers must first claim from another topic alone.
#[derive(Default)]
struct DeferredTopics {
    topics: Vec<TopicName>,
    /// Topic to claim from alone next: it may stand behind a million topics that wait for it.
    next: Option<TopicName>,
    claimed_alone: HashSet<TopicName>,
}

// === impl DeferredTopics ===

impl DeferredTopics {
    fn defer(&mut self, name: TopicName, alone: TopicName) {
        self.topics.push(name);
        if self.claimed_alone.insert(alone.clone()) {
            self.next = Some(alone);
        }
    }
}

// === impl ClaimPlanner ===

impl ClaimPlanner {
    /// Plans the next claim; `None` when there is no topic to claim from, no stream that could take jobs, or
    /// [`ClaimPlanner::has_glob_tasks`].
    pub(in crate::dispatch) fn plan(&mut self) -> Option<ClaimPlan> {
        self.run_glob_task();
        self.unpark_next();
        self.round += 1;
        self.passed_over = false;
        let left = self.unpark_weighted();
        let (mut asks, mut later, mut budget) = (Vec::new(), DeferredTopics::default(), JOBS_MAX);
        let mut passed = 0;
        while budget > 0 && asks.len() < CLAIM_TOPICS_MAX && self.hungry > 0 && passed < PASSED_MAX
        {
            let topics = self.order.len().min(CLAIM_TOPICS_MAX - asks.len());
            let alone = later.next.take().filter(|name| self.remove_ready(name));
            let Some(name) = alone.or_else(|| self.order.pop()) else { break };
            passed += 1;
            if self.topics.get(&name).is_some_and(|topic| topic.turn.is_served()) {
                self.make_ready(name);
                continue;
            }
            let (takers, alone) = self.select_takers(&name, equal_share(budget, topics));
            if takers.is_empty() {
                match alone {
                    Some(alone) => later.defer(name, alone),
                    None => self.park_topic(name),
                }
                continue;
            }
            budget -= takers.iter().map(|taker| taker.share.jobs).sum::<u32>().min(budget);
            let Some(topic) = self.topics.get_mut(&name) else { continue };
            topic.position = TopicPosition::Claimed;
            let (wakes, served) = ((topic.wakes, self.missed_events), topic.turn.place().served());
            asks.push(TopicClaim { wakes_seen: wakes, served, topic: name, takers });
        }
        self.plan_was_limited =
            passed == PASSED_MAX || asks.is_empty() && (left || self.passed_over);
        // These topics have a taker as soon as that stream has claimed alone, and no mailbox entry follows then.
        for name in later.topics {
            if self.topics.get(&name).is_some_and(|topic| topic.position == TopicPosition::Ready) {
                self.make_ready(name);
            }
        }
        (!asks.is_empty()).then_some(ClaimPlan { topics: asks })
    }

    /// Removes the topic from the queue before its turn, if it is there. Returns whether it was.
    fn remove_ready(&mut self, name: &TopicName) -> bool {
        if self.topics.get(name).is_some_and(|topic| topic.position == TopicPosition::Parked) {
            self.unpark(name);
        }
        let ready = |topic: &&mut TopicEntry| topic.position == TopicPosition::Ready;
        let Some(topic) = self.topics.get_mut(name).filter(ready) else { return false };
        self.order.remove(&topic.turn);
        true
    }

    /// Applies the result of `plan`. Events that came before the result must have been processed.
    pub(in crate::dispatch) fn apply(
        &mut self,
        plan: ClaimPlan,
        found: Vec<TopicLeases>,
        at: ClaimOrigin,
    ) -> ClaimOutcome {
        let progress =
            found.iter().any(|found| found.by_stream.iter().any(|jobs| !jobs.is_empty()));
        let mut outcome = ClaimOutcome::default();
        // The last one first, so that streams that received nothing keep their order.
        for (asked, found) in plan.topics.iter().zip(&found).rev() {
            self.rotate_served(asked, found);
        }
        // All of these topics were ready, so other topics may catch up with the least-served of them, not further.
        let floor = plan.topics.iter().map(|asked| asked.served).min().unwrap_or(0);
        for (asked, found) in plan.topics.into_iter().zip(found) {
            let more = found.remainder == TopicRemainder::Ready;
            let has_more = more || found.remainder == TopicRemainder::Unknown;
            let mut cost = 0;
            let mut leased = found.by_stream.into_iter();
            for asker in &asked.takers {
                let jobs = leased.next().unwrap_or_default();
                let got = !jobs.is_empty();
                cost += self.finish_turns(asker, &asked.topic, jobs.len(), has_more);
                self.grant(asker, jobs, at, &mut outcome);
                let look_at =
                    self.note_unserved(&asked.topic, asker, more && !got, progress, at.claimed_at);
                outcome.look_at = outcome.look_at.into_iter().chain(look_at).min();
            }
            self.update_after_claim(&asked, found.remainder, cost, floor);
        }
        outcome
    }

    /// Applies a failed claim: no jobs were found, and no topic is marked empty.
    pub(in crate::dispatch) fn apply_failure(
        &mut self,
        plan: ClaimPlan,
        at: ClaimOrigin,
    ) -> ClaimOutcome {
        let mut outcome = ClaimOutcome::default();
        for asked in plan.topics {
            for asker in &asked.takers {
                self.finish_turns(asker, &asked.topic, 0, false);
                self.grant(asker, Vec::new(), at, &mut outcome);
                self.mark_claimed(asker.stream.id(), &asked.topic);
            }
            self.requeue(&asked.topic);
        }
        outcome
    }

    /// Selects hungry streams of the topic's groups, for `slice` jobs together. Also returns the topic that a stream
    /// must claim from alone first, if there is such a stream.
    fn select_takers(
        &mut self,
        name: &TopicName,
        slice: u32,
    ) -> (Vec<ClaimTaker>, Option<TopicName>) {
        let Some(topic) =
            self.topics.get(name).filter(|topic| topic.position == TopicPosition::Ready)
        else {
            return (Vec::new(), None);
        };
        let (groups, width) = (topic.groups.clone(), topic.takers_max.min(slice as usize));
        let waiting: usize = groups.iter().map(|group| self.queue_len(*group)).sum();
        let (mut takers, mut slice, mut later) = (Vec::new(), slice, None);
        let mut passed_over = 0;
        for group in groups {
            let before = takers.len();
            for _ in 0..self.queue_len(group) {
                if takers.len() == width || slice == 0 {
                    break;
                }
                if passed_over == PASSED_OVER_MAX {
                    self.passed_over = true;
                    break;
                }
                let Some(id) = self.pop(group) else { break };
                let others = width.min(waiting).saturating_sub(takers.len());
                match self.pick_taker(id, group, name, equal_share(slice, others)) {
                    TakerPick::Taker(taker) => {
                        slice -= taker.share.jobs.min(slice);
                        takers.push(taker);
                    }
                    TakerPick::Blocked => self.push(group, id),
                    TakerPick::NotItsTurn => {
                        passed_over += 1;
                        self.push(group, id);
                    }
                    TakerPick::Deferred(alone) => {
                        later = Some(alone);
                        self.push(group, id);
                    }
                    TakerPick::NoCredit => {}
                }
            }
            self.queue_takers(group, &takers[before..]);
        }
        (takers, later)
    }

    /// Picks the share that the stream claims from the topic, at most `jobs_max` jobs.
    fn pick_taker(&mut self, id: u32, group: u32, name: &TopicName, jobs_max: u32) -> TakerPick {
        let ways = match self.streams.get(&id) {
            Some(sub) if sub.hungry && sub.weighted.is_some() => 1,
            Some(sub) if sub.hungry => self.credit_parts(sub),
            _ => return TakerPick::NoCredit,
        };
        let Some(sub) = self.streams.get_mut(&id) else { return TakerPick::NoCredit };
        if let Some(solo) = &sub.claim_alone
            && !self.topics.get(solo).is_some_and(|topic| topic.status == TopicStatus::Awake)
        {
            sub.claim_alone = None;
        }
        if sub.blocked.contains(name) {
            return TakerPick::Blocked;
        }
        if let Some(solo) = sub.claim_alone.as_ref().filter(|solo| *solo != name) {
            return TakerPick::Deferred(solo.clone());
        }
        if sub.weighted.is_some() {
            return self.pick_weighted(id, group, name, jobs_max);
        }
        let ways = if sub.claim_alone.is_some() { 1 } else { ways };
        let (round, stream) = (self.round, Arc::clone(&sub.stream));
        let reserved = stream.ledger().reserve(self.feed, |free| {
            if sub.round != round {
                sub.topic_share = free.divide(ways);
                sub.round = round;
            }
            let share = if ways == 1 { free } else { sub.topic_share };
            CreditShare { jobs: sub.topic_share.jobs.min(jobs_max), ..share }
        });
        match reserved {
            Some(share) => {
                TakerPick::Taker(ClaimTaker { stream, group, share, full: ways == 1, turn: None })
            }
            None => {
                sub.hungry = false;
                self.hungry -= 1;
                TakerPick::NoCredit
            }
        }
    }

    /// Number of parts into which the stream's credit is split: its awake topics here, times the shards that may have
    /// jobs.
    fn credit_parts(&self, sub: &StreamEntry) -> usize {
        let awake = sub.groups.iter().filter_map(|id| self.groups.get(id)).map(|g| g.awake);
        // A claim contains no more topics than this, so a larger number would only make shares too small.
        awake.sum::<usize>().clamp(1, CLAIM_TOPICS_MAX) * self.awake_feeds.count()
    }

    fn grant(
        &mut self,
        asker: &ClaimTaker,
        jobs: Vec<LeasedJob>,
        at: ClaimOrigin,
        outcome: &mut ClaimOutcome,
    ) {
        let some = !jobs.is_empty();
        let granted = asker.stream.grant(asker.share, jobs, at);
        if some {
            let look_at = outcome.look_at.unwrap_or(Time::MAX).min(granted.next_check);
            outcome.look_at = Some(look_at);
        }
        outcome.refused.extend(granted.refused);
        if !granted.wake_feeds.is_empty() {
            outcome.wake_feeds.push((Arc::clone(&asker.stream), granted.wake_feeds));
        }
        if granted.hungry && self.streams.get(&asker.stream.id()).is_some_and(|sub| !sub.hungry) {
            self.mark_hungry(asker.stream.id());
        }
    }

    /// Records why a stream received nothing although the topic has more: its bytes were split, or the next job is
    /// too large for all of them, or others took the jobs. Returns the time of the next check of a stream that waits
    /// for credit from now on.
    fn note_unserved(
        &mut self,
        name: &TopicName,
        asker: &ClaimTaker,
        nothing: bool,
        progress: bool,
        now: Time,
    ) -> Option<Time> {
        let sub = self.streams.get_mut(&asker.stream.id())?;
        if sub.claim_alone.as_ref() == Some(name) {
            sub.claim_alone = None;
        }
        if nothing && !asker.full {
            sub.claim_alone = Some(name.clone());
        } else if nothing && !progress {
            let look_at = asker.stream.ledger().wait_for_credit(self.feed, asker.share, now)?;
            sub.blocked.insert(name.clone());
            self.mark_claimed(asker.stream.id(), name);
            return Some(look_at);
        }
        None
    }

    /// Updates the state of a topic after a claim that found jobs of this cost.
    fn update_after_claim(
        &mut self,
        asked: &TopicClaim,
        rest: TopicRemainder,
        cost: u64,
        floor: u64,
    ) {
        let Some(topic) = self.topics.get_mut(&asked.topic) else { return };
        let status = match rest {
            TopicRemainder::Ready | TopicRemainder::Unknown => TopicStatus::Awake,
            _ if (topic.wakes, self.missed_events) != asked.wakes_seen => TopicStatus::Awake,
            TopicRemainder::ReadyAt(at) => TopicStatus::Asleep(Some(at)),
            TopicRemainder::Empty => TopicStatus::Asleep(None),
        };
        if rest == TopicRemainder::Ready {
            topic.takers_max = (topic.takers_max * 4).min(limit::CALL_JOBS_MAX);
        }
        // A topic that stays awake and gave nothing has had its turn too: others may have jobs.
        let is_unserved = cost == 0 && status == TopicStatus::Awake;
        self.order.add_served(&mut topic.turn, if is_unserved { JOB_COST } else { cost }, floor);
        if status == TopicStatus::Awake {
            return self.requeue(&asked.topic);
        }
        self.set_status(&asked.topic, status);
        for id in self.unclaimed_streams.clone() {
            self.mark_claimed(id, &asked.topic);
        }
        self.drop_if_unused(&asked.topic);
    }

    /// Records that the topic was claimed from for a new stream and had no jobs for it.
    fn mark_claimed(&mut self, id: u32, name: &TopicName) {
        if !self.unclaimed_streams.contains(&id) {
            return;
        }
        let Some(sub) = self.streams.get_mut(&id) else { return };
        if sub.unclaimed.remove(name) {
            self.finish_if_claimed(id);
        }
    }

    /// Counts the feed as claimed for a new stream once all its topics were claimed from.
    pub(super) fn finish_if_claimed(&mut self, id: u32) {
        let Some(sub) = self.streams.get(&id) else { return };
        if sub.globs_pending == 0 && sub.unclaimed.is_empty() && self.unclaimed_streams.remove(&id)
        {
            sub.stream.count_claimed_feed();
        }
    }

    fn requeue(&mut self, name: &TopicName) {
        if self.topics.get(name).is_some_and(|topic| topic.position == TopicPosition::Claimed) {
            self.make_ready(name.clone());
        }
    }

    /// Puts the takers back into the queue. The first taker of a claim gets its first job, so the next topic begins
    /// with another stream.
    fn queue_takers(&mut self, group: u32, takers: &[ClaimTaker]) {
        let Some(line) = self.groups.get_mut(&group).map(|group| &mut group.queue) else { return };
        let Some((first, others)) = takers.split_first() else { return };
        others.iter().rev().for_each(|taker| line.push_front(taker.stream.id()));
        line.push(first.stream.id());
    }

    /// Rotates only streams that received jobs; rotating on empty claims could give a trickle of jobs to one stream
    /// for ever. Likewise for groups.
    fn rotate_served(&mut self, asked: &TopicClaim, found: &TopicLeases) {
        let got = |index: usize| found.by_stream.get(index).is_some_and(|jobs| !jobs.is_empty());
        let takers: Vec<_> = asked.takers.iter().enumerate().collect();
        for takers in takers.chunk_by(|(_, a), (_, b)| a.group == b.group) {
            let Some(group) = self.groups.get_mut(&takers[0].1.group) else { continue };
            for (place, (index, taker)) in takers.iter().enumerate() {
                match (place, got(*index)) {
                    (0, false) => group.queue.move_to_front(taker.stream.id()),
                    (0, true) | (_, false) => {}
                    (_, true) => group.queue.move_to_back(taker.stream.id()),
                }
            }
        }
        let progress = (0..asked.takers.len()).any(got);
        if let Some(topic) = self.topics.get_mut(&asked.topic)
            && progress
            && topic.groups.len() > 1
        {
            topic.groups.rotate_left(1);
        }
    }

    fn queue_len(&self, group: u32) -> usize {
        self.groups.get(&group).map_or(0, |group| group.queue.len())
    }

    fn pop(&mut self, group: u32) -> Option<u32> {
        self.groups.get_mut(&group)?.queue.pop()
    }

    fn push(&mut self, group: u32, id: u32) {
        if let Some(group) = self.groups.get_mut(&group) {
            group.queue.push(id);
        }
    }
}
