//! Claims: which topics are asked for which streams, and what follows from the answer.
//!
//! A stream's free credit is split over its awake topics and the shards; each claim reserves its share until the answer
//! is there: [`crate::domain::credit`].

use std::collections::HashSet;
use std::sync::Arc;

use crate::domain::credit::{Share, part};
use crate::domain::{Time, TopicName, limit};
use crate::store::{Claimed, Leased, Rest};

use super::super::ledger::{Origin, StreamLease};
use super::super::stream::Stream;
use super::chores::PIECE;
use super::{ASKS_MAX, Board, Position, Status, Sub, Topic};

/// Topics that a plan looks at: more than get another chance in it, so that it comes to those behind them.
const PASSED_MAX: usize = 3 * PIECE;
const JOBS_MAX: u32 = limit::CALL_JOBS_MAX as u32;

/// One claim.
pub(in crate::dispatch) struct Plan {
    /// In the order of the store's [`crate::store::Claims::topics`].
    pub(in crate::dispatch) asks: Vec<Asked>,
}

/// What is asked of one topic.
pub(in crate::dispatch) struct Asked {
    pub(in crate::dispatch) topic: TopicName,
    pub(in crate::dispatch) takers: Vec<Asker>,
    /// Of the topic, and how often wake-ups were missed, when it was asked.
    wakes: (u64, u64),
    /// What it had got by then.
    served: u64,
}

/// On whose behalf, and how much.
pub(in crate::dispatch) struct Asker {
    pub(in crate::dispatch) stream: Arc<Stream>,
    /// In whose line it stood.
    group: u32,
    pub(in crate::dispatch) share: Share,
    /// It is all that the stream could take.
    full: bool,
}

/// What is to be done after an answer.
#[derive(Default)]
pub(in crate::dispatch) struct Outcome {
    /// Leases for streams that are gone.
    pub(in crate::dispatch) refused: Vec<StreamLease>,
    /// Streams with credit that other feeds wait for, and these feeds.
    pub(in crate::dispatch) wake_feeds: Vec<(Arc<Stream>, Vec<usize>)>,
    /// When the first of them needs a look at what waits for its transport.
    pub(in crate::dispatch) look_at: Option<Time>,
}

enum Pick {
    Taker(Asker),
    /// Hungry, but this topic has nothing that fits until there is more credit.
    Blocked,
    /// Hungry, but this other topic has its turn alone.
    Later(TopicName),
    /// Not hungry, or gone.
    Out,
}

/// Topics whose takers have to ask another one alone first.
#[derive(Default)]
struct Later {
    topics: Vec<TopicName>,
    /// Such another one, which comes next: it may stand behind a million that wait for it.
    next: Option<TopicName>,
    asked_alone: HashSet<TopicName>,
}

// === impl Later ===

impl Later {
    fn wait(&mut self, name: TopicName, alone: TopicName) {
        self.topics.push(name);
        if self.asked_alone.insert(alone.clone()) {
            self.next = Some(alone);
        }
    }
}

// === impl Board ===

impl Board {
    /// The next claim; `None` when there is nothing to ask for, no stream that could take it, or [`Board::has_chores`].
    pub(in crate::dispatch) fn plan(&mut self) -> Option<Plan> {
        self.work();
        self.unpark_next();
        self.round += 1;
        let (mut asks, mut later, mut budget) = (Vec::new(), Later::default(), JOBS_MAX);
        let mut passed = 0;
        while budget > 0 && asks.len() < ASKS_MAX && self.hungry > 0 && passed < PASSED_MAX {
            let topics = self.turns.len().min(ASKS_MAX - asks.len());
            let alone = later.next.take().filter(|name| self.take_out(name));
            let Some(name) = alone.or_else(|| self.turns.pop()) else { break };
            passed += 1;
            if self.topics.get(&name).is_some_and(|topic| topic.turn.is_past()) {
                self.enter(name);
                continue;
            }
            let (takers, alone) = self.takers(&name, part(budget, topics));
            if takers.is_empty() {
                match alone {
                    Some(alone) => later.wait(name, alone),
                    None => self.park(name),
                }
                continue;
            }
            budget -= takers.iter().map(|taker| taker.share.jobs).sum::<u32>().min(budget);
            let Some(topic) = self.topics.get_mut(&name) else { continue };
            topic.position = Position::Asked;
            let (wakes, served) = ((topic.wakes, self.missed), topic.turn.place().served());
            asks.push(Asked { wakes, served, topic: name, takers });
        }
        self.is_cut = passed == PASSED_MAX;
        // They have a taker as soon as that stream's turn alone is over, of which no letter comes.
        for name in later.topics {
            if self.topics.get(&name).is_some_and(|topic| topic.position == Position::Ready) {
                self.enter(name);
            }
        }
        (!asks.is_empty()).then_some(Plan { asks })
    }

    /// Takes the topic out of the queue before its turn, if it is there.
    fn take_out(&mut self, name: &TopicName) -> bool {
        if self.topics.get(name).is_some_and(|topic| topic.position == Position::Parked) {
            self.unpark(name);
        }
        let ready = |topic: &&mut Topic| topic.position == Position::Ready;
        let Some(topic) = self.topics.get_mut(name).filter(ready) else { return false };
        self.turns.leave(&topic.turn);
        true
    }

    /// Takes in the answer to `plan`; events that came before it must have been heard.
    pub(in crate::dispatch) fn apply(
        &mut self,
        plan: Plan,
        found: Vec<Claimed>,
        at: Origin,
    ) -> Outcome {
        let progress = found.iter().any(|found| found.leased.iter().any(|jobs| !jobs.is_empty()));
        let mut outcome = Outcome::default();
        // The last one first, so that those who got nothing stand as they stood.
        for (asked, found) in plan.asks.iter().zip(&found).rev() {
            self.take_turns(asked, found);
        }
        // All of them were ready, so other topics may catch up with the one that had got the least, not with more.
        let floor = plan.asks.iter().map(|asked| asked.served).min().unwrap_or(0);
        for (asked, found) in plan.asks.into_iter().zip(found) {
            let more = found.rest == Rest::More;
            let jobs: usize = found.leased.iter().map(Vec::len).sum();
            let mut leased = found.leased.into_iter();
            for asker in &asked.takers {
                let jobs = leased.next().unwrap_or_default();
                let got = !jobs.is_empty();
                self.grant(asker, jobs, at, &mut outcome);
                let look_at = self.learn(&asked.topic, asker, more && !got, progress, at.now);
                outcome.look_at = outcome.look_at.into_iter().chain(look_at).min();
            }
            self.conclude(&asked, found.rest, jobs as u64, floor);
        }
        outcome
    }

    /// The claim failed: nothing was found, and nothing learnt but that the shard does not answer.
    pub(in crate::dispatch) fn fail(&mut self, plan: Plan, at: Origin) -> Outcome {
        let mut outcome = Outcome::default();
        for asked in plan.asks {
            for asker in &asked.takers {
                self.grant(asker, Vec::new(), at, &mut outcome);
                self.answered(asker.stream.id(), &asked.topic);
            }
            self.ready_again(&asked.topic);
        }
        outcome
    }

    /// Hungry streams of the topic's groups, for `slice` jobs together; and the topic that another one, which only has to
    /// ask elsewhere first, asks alone.
    fn takers(&mut self, name: &TopicName, slice: u32) -> (Vec<Asker>, Option<TopicName>) {
        let Some(topic) = self.topics.get(name).filter(|topic| topic.position == Position::Ready)
        else {
            return (Vec::new(), None);
        };
        let (groups, width) = (topic.groups.clone(), topic.width.min(slice as usize));
        let waiting: usize = groups.iter().map(|group| self.line_len(*group)).sum();
        let (mut takers, mut slice, mut later) = (Vec::new(), slice, None);
        for group in groups {
            let before = takers.len();
            for _ in 0..self.line_len(group) {
                if takers.len() == width || slice == 0 {
                    break;
                }
                let Some(id) = self.pop(group) else { break };
                let others = width.min(waiting).saturating_sub(takers.len());
                match self.pick(id, group, name, part(slice, others)) {
                    Pick::Taker(taker) => {
                        slice -= taker.share.jobs.min(slice);
                        takers.push(taker);
                    }
                    Pick::Blocked => self.push(group, id),
                    Pick::Later(alone) => {
                        later = Some(alone);
                        self.push(group, id);
                    }
                    Pick::Out => {}
                }
            }
            self.stand_in_line(group, &takers[before..]);
        }
        (takers, later)
    }

    /// What the stream asks of the topic: its share, at most `jobs_max`.
    fn pick(&mut self, id: u32, group: u32, name: &TopicName, jobs_max: u32) -> Pick {
        let ways = match self.subs.get(&id) {
            Some(sub) if sub.hungry => self.ways(sub),
            _ => return Pick::Out,
        };
        let Some(sub) = self.subs.get_mut(&id) else { return Pick::Out };
        if let Some(solo) = &sub.solo
            && !self.topics.get(solo).is_some_and(|topic| topic.status == Status::Awake)
        {
            sub.solo = None;
        }
        if sub.blocked.contains(name) {
            return Pick::Blocked;
        }
        if let Some(solo) = sub.solo.as_ref().filter(|solo| *solo != name) {
            return Pick::Later(solo.clone());
        }
        let ways = if sub.solo.is_some() { 1 } else { ways };
        let (round, stream) = (self.round, Arc::clone(&sub.stream));
        let reserved = stream.ledger().reserve(self.feed, |free| {
            if sub.round != round {
                sub.split = free.split(ways);
                sub.round = round;
            }
            let share = if ways == 1 { free } else { sub.split };
            Share { jobs: sub.split.jobs.min(jobs_max), ..share }
        });
        match reserved {
            Some(share) => Pick::Taker(Asker { stream, group, share, full: ways == 1 }),
            None => {
                sub.hungry = false;
                self.hungry -= 1;
                Pick::Out
            }
        }
    }

    /// Number of parts into which the stream's credit is split: its awake topics here, times the shards that may have jobs.
    fn ways(&self, sub: &Sub) -> usize {
        let awake = sub.groups.iter().filter_map(|id| self.groups.get(id)).map(|g| g.awake);
        // No claim asks for more topics, so a share is as large as those can use.
        awake.sum::<usize>().clamp(1, ASKS_MAX) * self.awakeness.count()
    }

    fn grant(&mut self, asker: &Asker, jobs: Vec<Leased>, at: Origin, outcome: &mut Outcome) {
        let some = !jobs.is_empty();
        let granted = asker.stream.grant(asker.share, jobs, at);
        if some {
            let look_at = outcome.look_at.unwrap_or(Time::MAX).min(granted.look_at);
            outcome.look_at = Some(look_at);
        }
        outcome.refused.extend(granted.refused);
        if !granted.wake_feeds.is_empty() {
            outcome.wake_feeds.push((Arc::clone(&asker.stream), granted.wake_feeds));
        }
        if granted.hungry && self.subs.get(&asker.stream.id()).is_some_and(|sub| !sub.hungry) {
            self.feed_again(asker.stream.id());
        }
    }

    /// Why a stream that got nothing, though there is more, got nothing: its bytes were split, or
    /// the next job is too large for all of them, or others had what there was.
    /// Answers when to look at a stream that waits for credit from now on.
    fn learn(
        &mut self,
        name: &TopicName,
        asker: &Asker,
        nothing: bool,
        progress: bool,
        now: Time,
    ) -> Option<Time> {
        let sub = self.subs.get_mut(&asker.stream.id())?;
        if sub.solo.as_ref() == Some(name) {
            sub.solo = None;
        }
        if nothing && !asker.full {
            sub.solo = Some(name.clone());
        } else if nothing && !progress {
            let look_at = asker.stream.ledger().wait_for_credit(self.feed, asker.share, now)?;
            sub.blocked.insert(name.clone());
            self.answered(asker.stream.id(), name);
            return Some(look_at);
        }
        None
    }

    /// What becomes of a topic that was asked and gave so many jobs.
    fn conclude(&mut self, asked: &Asked, rest: Rest, jobs: u64, floor: u64) {
        let Some(topic) = self.topics.get_mut(&asked.topic) else { return };
        let status = match rest {
            Rest::More | Rest::Again => Status::Awake,
            _ if (topic.wakes, self.missed) != asked.wakes => Status::Awake,
            Rest::Until(at) => Status::Asleep(Some(at)),
            Rest::Nothing => Status::Asleep(None),
        };
        if rest == Rest::More {
            topic.width = (topic.width * 4).min(limit::CALL_JOBS_MAX);
        }
        // Also one that stays awake and gave nothing has had its turn: others may have something.
        self.turns.served(&mut topic.turn, jobs.max(u64::from(status == Status::Awake)), floor);
        if status == Status::Awake {
            return self.ready_again(&asked.topic);
        }
        self.set(&asked.topic, status);
        for id in self.fresh.clone() {
            self.answered(id, &asked.topic);
        }
        self.forget_if_unneeded(&asked.topic);
    }

    /// The topic was asked for a stream that is new, and had nothing for it.
    fn answered(&mut self, id: u32, name: &TopicName) {
        if !self.fresh.contains(&id) {
            return;
        }
        let Some(sub) = self.subs.get_mut(&id) else { return };
        if sub.unasked.remove(name) {
            self.answered_if_asked(id);
        }
    }

    /// Tells a stream that is new when everything was asked for it.
    pub(super) fn answered_if_asked(&mut self, id: u32) {
        let Some(sub) = self.subs.get(&id) else { return };
        if sub.gathering == 0 && sub.unasked.is_empty() && self.fresh.remove(&id) {
            sub.stream.answered();
        }
    }

    fn ready_again(&mut self, name: &TopicName) {
        if self.topics.get(name).is_some_and(|topic| topic.position == Position::Asked) {
            self.enter(name.clone());
        }
    }

    /// Whoever is asked for first gets the first job, if there is any, so the next topic begins with another one.
    fn stand_in_line(&mut self, group: u32, takers: &[Asker]) {
        let Some(line) = self.groups.get_mut(&group).map(|group| &mut group.line) else { return };
        let Some((first, others)) = takers.split_first() else { return };
        others.iter().rev().for_each(|taker| line.push_front(taker.stream.id()));
        line.push(first.stream.id());
    }

    /// Whoever got something has had its turn, and nobody else: where claims in vain moved somebody, a trickle of
    /// jobs could go to one stream for ever. So it could to one group.
    fn take_turns(&mut self, asked: &Asked, found: &Claimed) {
        let got = |index: usize| found.leased.get(index).is_some_and(|jobs| !jobs.is_empty());
        let takers: Vec<_> = asked.takers.iter().enumerate().collect();
        for takers in takers.chunk_by(|(_, a), (_, b)| a.group == b.group) {
            let Some(group) = self.groups.get_mut(&takers[0].1.group) else { continue };
            for (place, (index, taker)) in takers.iter().enumerate() {
                match (place, got(*index)) {
                    (0, false) => group.line.move_to_front(taker.stream.id()),
                    (0, true) | (_, false) => {}
                    (_, true) => group.line.move_to_back(taker.stream.id()),
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

    fn line_len(&self, group: u32) -> usize {
        self.groups.get(&group).map_or(0, |group| group.line.len())
    }

    fn pop(&mut self, group: u32) -> Option<u32> {
        self.groups.get_mut(&group)?.line.pop()
    }

    fn push(&mut self, group: u32, id: u32) {
        if let Some(group) = self.groups.get_mut(&group) {
            group.line.push(id);
        }
    }
}
