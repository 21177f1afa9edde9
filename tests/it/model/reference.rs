//! The reference: the behaviour of a shard, in plain maps, written from the rules of the contract, `proto/`, and the
//! pure functions of [`ringq::domain`]. It has no index, no laziness and no file: at every step it first applies the
//! passage of time, then the command.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use crate::store_calls::{
    JobReschedule, LeaseExtension, LeaseSettlement, PurgeBatch, RedriveBatch, RedriveResult,
    RescheduleResult, TestJob, Unclaim, WriteResult,
};
use ringq::domain::conflict::{self, ConflictAction, ExistingJob, RequestMatch};
use ringq::domain::{
    AttemptOutcome, Durability, EnqueueOutcome, Job, JobKey, ShardName, State, Time, Token,
    TopicName,
};
use ringq::store::{
    Claim, ClaimResult, Deleted, GroupSetting, LeaseRef, LeaseRefusal, LeasedJob, NotWrittenReason,
    RunningLease, SettleAction, SettleCommandReply, ShardTopicStats, StreamDemand, TopicDemand,
    TopicInfo, TopicLeases, TopicRemainder,
};

use super::coverage::Seen;
use super::held::{Ending, Held};
use super::table::{Transition, next};

/// A shard.
#[derive(Clone)]
pub(crate) struct Reference {
    shard: ShardName,
    durability: Durability,
    now: Time,
    arrivals: u64,
    /// Start of the leases of the last claim.
    last_start: Time,
    pub(super) jobs: BTreeMap<JobKey, Held>,
    topics: BTreeMap<TopicName, ShardTopicStats>,
    /// Due times of expired jobs that no claim may have reached yet.
    lapsed: BTreeMap<TopicName, BTreeSet<Time>>,
    /// Jobs that have expired, and may still wait in the store: nothing has pruned them since.
    unpruned: BTreeSet<JobKey>,
    /// Jobs leased so far, by topic: at least as many as turns of its groups.
    pub(super) turns: BTreeMap<TopicName, i64>,
    /// Settings of groups, by topic.
    pub(super) settings: BTreeMap<TopicName, Vec<GroupSetting>>,
    /// Versions of the policies of topics, in the order of their changes.
    pub(super) policies: Vec<(TopicName, u64)>,
    /// Ends of the pauses of topics.
    pub(super) paused: BTreeMap<TopicName, Time>,
    /// Cases so far, to find the ones that a run never tried.
    pub(crate) seen: BTreeSet<Seen>,
}

// === impl Reference: time and reading ===

impl Reference {
    pub(crate) fn new(shard: ShardName, durability: Durability, now: Time) -> Reference {
        let (jobs, topics, lapsed, unpruned, seen) = Default::default();
        let (settings, policies, paused, turns) = Default::default();
        let (arrivals, last_start) = (0, Time(0));
        Reference {
            shard,
            durability,
            now,
            arrivals,
            last_start,
            jobs,
            topics,
            lapsed,
            unpruned,
            turns,
            settings,
            policies,
            paused,
            seen,
        }
    }

    /// Applies the passage of time up to `now`.
    pub(crate) fn tick(&mut self, now: Time) {
        let before = std::mem::replace(&mut self.now, now);
        for held in self.jobs.values_mut() {
            let expire = held.job.expire_time.filter(|&expire| expire <= now);
            if let Some(expire) = expire.filter(|_| held.state(now).is_waiting()) {
                self.seen.insert(Seen::Transition(held.state(before), "Expire".into()));
                held.finish(State::Expired, expire.max(before));
                let lapsed = self.lapsed.entry(held.job.key.topic.clone()).or_default();
                lapsed.insert(held.job.due_time);
                self.unpruned.insert(held.job.key.clone());
            }
        }
        self.jobs.retain(|_, held| held.forget.is_none_or(|forget| forget > now));
    }

    /// Returns the instants at which something changes by itself.
    pub(crate) fn edges(&self) -> Vec<Time> {
        let edges = self.jobs.values().flat_map(|held| {
            let deadline = held.lease.as_ref().map(|lease| lease.deadline);
            let next = held.next.as_ref().and_then(|next| next.job.expire_time);
            [Some(held.job.due_time), held.job.expire_time, held.forget, deadline, next]
        });
        let pauses = self.paused.values().filter(|until| **until < Time::MAX);
        edges.flatten().chain(pauses.copied()).collect()
    }

    /// Returns the remainder that a claim may report for `wanted`, given that it reported `found`: as defined at
    /// [`TopicRemainder`], expired jobs may count until a claim has reached them.
    pub(crate) fn rest(
        &mut self,
        topic: &TopicName,
        wanted: TopicRemainder,
        found: TopicRemainder,
    ) -> TopicRemainder {
        let now = self.now;
        if self.pause_of(topic).is_some() {
            return wanted;
        }
        let Some(lapsed) = self.lapsed.get_mut(topic) else { return wanted };
        let had_lapsed = lapsed.iter().any(|&due| due <= now);
        if found != TopicRemainder::Ready {
            lapsed.retain(|&due| due > now);
        }
        let counts = match (found, wanted) {
            (TopicRemainder::Ready, _) => lapsed.iter().any(|&due| due <= now),
            // Expired jobs were removed, and the jobs behind them were not read.
            (TopicRemainder::Unknown, _) => had_lapsed,
            (TopicRemainder::ReadyAt(found), TopicRemainder::ReadyAt(wanted)) => {
                found < wanted && lapsed.contains(&found)
            }
            (TopicRemainder::ReadyAt(found), TopicRemainder::Empty) => lapsed.contains(&found),
            _ => false,
        };
        if counts { found } else { wanted }
    }

    /// Returns the last request that was applied to a job.
    pub(crate) fn request(&self, key: &JobKey) -> Option<u64> {
        self.jobs.get(key).and_then(|held| held.request)
    }

    /// Returns the jobs that ended.
    pub(crate) fn terminal(&self) -> Vec<JobKey> {
        let ended = self.jobs.iter().filter(|(_, held)| held.state(self.now).is_terminal());
        ended.map(|(key, _)| key.clone()).collect()
    }

    /// Returns the time of the next prune.
    pub(crate) fn next_prune(&self) -> Option<Time> {
        let expire = |held: &Held| held.job.expire_time.filter(|_| held.waits());
        self.jobs.values().filter_map(|held| expire(held).or(held.forget)).min()
    }

    /// Returns the number of expired jobs of a topic that may still wait in the store.
    pub(super) fn unpruned(&self, topic: &TopicName) -> u64 {
        self.unpruned.iter().filter(|key| key.topic == *topic).count() as u64
    }

    /// Takes note that nothing is left to prune.
    pub(super) fn pruned(&mut self) {
        self.unpruned.clear();
    }

    /// Takes over the expired jobs of another state whose prune may have been lost.
    pub(super) fn unprune(&mut self, other: &Reference) {
        self.unpruned.extend(other.unpruned.iter().cloned());
    }

    pub(crate) fn records(&self) -> u64 {
        self.jobs.len() as u64
    }

    pub(crate) fn get(&self, key: &JobKey, full: bool) -> Option<Job> {
        self.jobs.get(key).map(|held| held.read(self.now, full))
    }

    /// Returns the jobs of a topic in one state, by due time and arrival.
    pub(crate) fn list(&self, topic: &TopicName, state: State) -> Vec<JobKey> {
        let mut found = self.of(topic);
        found.retain(|held| held.state(self.now) == state);
        found.sort_by_key(|held| (held.job.due_time, held.arrival));
        found.into_iter().map(|held| held.job.key.clone()).collect()
    }

    /// Returns the topics with a prefix, after one of them.
    pub(crate) fn topics_after(
        &self,
        prefix: &str,
        after: Option<&TopicName>,
        limit: usize,
    ) -> Vec<TopicInfo> {
        let topic = |(name, stats): (&TopicName, &ShardTopicStats)| TopicInfo {
            name: name.clone(),
            create_time: stats.create_time,
        };
        let named = self.topics.iter().filter(|(name, _)| {
            name.as_str().starts_with(prefix) && after.is_none_or(|after| *name > after)
        });
        named.map(topic).take(limit).collect()
    }

    /// Returns the numbers of a topic; jobs are due soon within `due_within`.
    pub(crate) fn stats(&self, topic: &TopicName, due_within: Duration) -> Option<ShardTopicStats> {
        let mut stats = *self.topics.get(topic)?;
        for held in self.of(topic) {
            let state = held.state(self.now);
            let waits = matches!(state, State::Scheduled | State::Backoff);
            if waits && held.job.due_time <= self.now.plus(due_within) {
                stats.due_soon += 1;
            }
            match state {
                State::Scheduled => stats.scheduled += 1,
                State::Running => stats.running += 1,
                State::Backoff => stats.backoff += 1,
                State::Dead => stats.dead += 1,
                State::Ready => {
                    stats.ready += 1;
                    let age = self.now.since(held.job.due_time);
                    stats.oldest_ready = Some(stats.oldest_ready.unwrap_or_default().max(age));
                }
                State::Succeeded | State::Cancelled | State::Expired => {}
            }
        }
        Some(stats)
    }

    /// Returns every running lease, by deadline.
    pub(crate) fn running(&self) -> Vec<RunningLease> {
        let mut leases: Vec<_> =
            self.jobs.values().filter_map(|held| held.read_lease(self.now)).collect();
        leases.sort_by_key(|lease| lease.deadline);
        leases
    }

    pub(crate) fn lease(&self, lease: &LeaseRef) -> Result<RunningLease, LeaseRefusal> {
        let held = self.jobs.get(&lease.key).ok_or(LeaseRefusal::NotFound)?;
        match held.read_lease(self.now) {
            Some(found) if found.token == lease.token => Ok(found),
            _ => Err(held.refuse()),
        }
    }

    pub(super) fn of(&self, topic: &TopicName) -> Vec<&Held> {
        self.jobs.values().filter(|held| held.job.key.topic == *topic).collect()
    }

    pub(super) fn total(&mut self, topic: &TopicName, count: impl FnOnce(&mut ShardTopicStats)) {
        let create_time = self.now;
        let fresh = || ShardTopicStats { create_time, ..ShardTopicStats::default() };
        count(self.topics.entry(topic.clone()).or_insert_with(fresh));
    }

    /// Deletes a topic that has no record.
    pub(super) fn forget_topic(&mut self, topic: &TopicName) {
        self.topics.remove(topic);
        self.lapsed.remove(topic);
    }

    pub(super) fn now(&self) -> Time {
        self.now
    }

    pub(super) fn saw(&mut self, state: State, transition: Transition) {
        self.seen.insert(Seen::Transition(state, format!("{transition:?}")));
    }
}

// === impl Reference: verbs ===

impl Reference {
    /// Writes a job. `is_full`: whether the store found no room for it.
    pub(crate) fn enqueue(&mut self, new: &TestJob, is_full: bool) -> WriteResult {
        let now = self.now;
        self.arrivals += 1;
        let mut fresh = Held::new(new, now, self.arrivals, &self.shard);
        let held = self.jobs.get(&new.key).cloned();
        let held = held.as_ref();
        let found = held.map_or(ExistingJob::Absent, |held| held.found(now));
        let repeat = RequestMatch::compare(held.and_then(|held| held.request), new.request_code);
        let action = conflict::resolve(new.on_conflict, found, repeat);
        self.seen.insert(match repeat {
            RequestMatch::Changed => Seen::OtherJob(format!("{:?}", new.on_conflict)),
            _ => {
                Seen::Cell(format!("{:?} {found:?}", new.on_conflict), repeat == RequestMatch::Same)
            }
        });
        let (outcome, durability) = (action.outcome(), self.durability);
        let answer =
            |state, due| WriteResult { outcome, state, due, durability, not_written: None };
        if let (Some(held), ConflictAction::Keep | ConflictAction::Refuse) = (held, action) {
            return answer(held.state(now), held.answer_due());
        }
        if self.lacks_room(new, (held, &fresh), action, is_full) {
            let not_written = Some(NotWrittenReason::TopicFull);
            return WriteResult { outcome: None, not_written, ..answer(State::Ready, now) };
        }
        if !matches!(action, ConflictAction::Reschedule | ConflictAction::Revive) {
            self.total(&new.key.topic, |stats| stats.enqueued_total += 1);
        }
        let due = fresh.job.due_time;
        let Some(held) = self.jobs.get_mut(&new.key) else {
            self.jobs.insert(new.key.clone(), fresh);
            self.tick(now);
            self.unpruned.remove(&new.key);
            return answer(self.state_of(&new.key), due);
        };
        held.request = new.request_code.or(held.request);
        match action {
            ConflictAction::Write(_) => held.replace(fresh, 1),
            ConflictAction::Reschedule => held.shift(due, new.priority),
            ConflictAction::Revive => held.revive(due, new.priority, now),
            ConflictAction::RescheduleNext => {
                held.job.generation += 1;
                held.next.as_mut().unwrap().shift(due, new.priority);
            }
            _ => {
                if action == ConflictAction::DeferSame {
                    fresh.job.spec = held.job.spec.clone();
                    fresh.job.priority = new.priority.unwrap_or(held.job.priority);
                    (fresh.keep, fresh.job.expire_time) = (held.keep, None);
                }
                held.job.generation += 1;
                fresh.job.last_error.clear();
                held.next = Some(Box::new(fresh));
            }
        }
        self.tick(now);
        self.unpruned.remove(&new.key);
        let deferred = outcome == Some(EnqueueOutcome::Deferred);
        answer(if deferred { State::Running } else { self.state_of(&new.key) }, due)
    }

    /// Returns the state of a job that was just written: if it is already gone, it expired without retention.
    fn state_of(&self, key: &JobKey) -> State {
        self.jobs.get(key).map_or(State::Expired, |held| held.state(self.now))
    }

    /// Claims jobs. `token`: returns the token that the store made for a job. `found`: the answer of the store, which
    /// decides where groups are equal.
    pub(crate) fn claim(
        &mut self,
        claim: &Claim,
        found: &ClaimResult,
        token: impl Fn(&JobKey) -> Token,
    ) -> ClaimResult {
        let started = self.now.max(Time(self.last_start.0 + 1));
        let asks = claim.topics.iter().zip(&found.topics);
        let topics = asks.map(|(ask, found)| {
            if let Some(remainder) = self.pause_of(&ask.topic) {
                return self.claim_paused(ask, remainder);
            }
            let turns = self.turns(claim, ask, found, started);
            self.claim_topic(claim, ask, found, started, &token, turns)
        });
        let topics: Vec<_> = topics.collect();
        if topics.iter().any(|claimed| claimed.by_stream.iter().any(|leased| !leased.is_empty())) {
            self.last_start = started;
        }
        ClaimResult { now: self.now, topics }
    }

    /// Claims from a paused topic.
    fn claim_paused(&mut self, ask: &TopicDemand, remainder: TopicRemainder) -> TopicLeases {
        if !self.next_jobs(&ask.topic, ask.ageing).is_empty() {
            self.seen.insert(Seen::Paused { ends: remainder != TopicRemainder::Empty });
        }
        TopicLeases { by_stream: ask.streams.iter().map(|_| Vec::new()).collect(), remainder }
    }

    /// Claims from one topic. `turns` decides between groups whose turn it may be and whose jobs the store gave to the
    /// streams that would get them.
    pub(super) fn claim_topic(
        &mut self,
        claim: &Claim,
        ask: &TopicDemand,
        found: &TopicLeases,
        started: Time,
        token: &impl Fn(&JobKey) -> Token,
        mut turns: impl FnMut(usize) -> usize,
    ) -> TopicLeases {
        let mut leased: Vec<Vec<LeasedJob>> = ask.streams.iter().map(|_| Vec::new()).collect();
        let mut takers: Vec<StreamDemand> = ask.streams.clone();
        let mut turn: Vec<usize> = (0..takers.len()).collect();
        let rest = loop {
            let heads = self.next_jobs(&ask.topic, ask.ageing);
            if heads.is_empty() {
                break self.next_due(&ask.topic);
            }
            let place_of = |held: &Held| {
                let bytes = held.bytes();
                let fits = |t: &StreamDemand| t.jobs > 0 && (t.bytes >= bytes || t.oversize);
                turn.iter().position(|&index| fits(&takers[index]))
            };
            let matching = heads.iter().filter(|key| {
                let index = place_of(&self.jobs[*key]).map(|place| turn[place]);
                let next = |index: usize| found.by_stream[index].get(leased[index].len());
                index.and_then(next).is_some_and(|leased| leased.key == **key)
            });
            let matching: Vec<_> = matching.collect();
            let chosen = matching.get(turns(matching.len())).copied();
            let stops = || heads.iter().find(|key| place_of(&self.jobs[*key]).is_none());
            let key = chosen.or_else(stops).unwrap_or(&heads[0]).clone();
            let Some(place) = place_of(&self.jobs[&key]) else { break TopicRemainder::Ready };
            let held = self.jobs.get_mut(&key).unwrap();
            let bytes = held.bytes();
            let index = turn.remove(place);
            turn.push(index);
            let taker = &mut takers[index];
            taker.jobs -= 1;
            taker.bytes = taker.bytes.saturating_sub(bytes);
            taker.oversize = false;
            leased[index].push(held.lease(self.now, started, claim.owner, taker, token(&key)));
            self.saw(State::Ready, Transition::Claim);
            *self.turns.entry(ask.topic.clone()).or_default() += 1;
        };
        TopicLeases { by_stream: leased, remainder: rest }
    }

    pub(crate) fn unclaim(&mut self, what: &Unclaim) -> u64 {
        let undone: BTreeSet<JobKey> = match what {
            Unclaim::Claim(lost) => {
                let running = self.running().into_iter();
                running.filter(|l| l.token.nonce() == lost.nonce).map(|l| l.key).collect()
            }
            Unclaim::Leases(refs) => {
                let holds = refs.iter().filter(|lease| self.lease(lease).is_ok());
                holds.map(|lease| lease.key.clone()).collect()
            }
        };
        for key in &undone {
            self.saw(State::Running, Transition::Unclaim);
            self.jobs.get_mut(key).unwrap().unclaim();
        }
        self.tick(self.now);
        undone.len() as u64
    }

    pub(crate) fn settle(
        &mut self,
        settle: &LeaseSettlement,
    ) -> Result<SettleCommandReply, LeaseRefusal> {
        let past = self.jobs.get(&settle.lease.key).is_some_and(|h| h.is_past(settle.lease.token));
        let answer = self.settle_one(settle);
        if past {
            self.seen.insert(Seen::Past(answer.is_ok()));
        }
        let name = answer.map_or_else(|e| format!("{e:?}"), |s| format!("repeated {}", s.repeated));
        self.seen.insert(Seen::Answer(name));
        answer
    }

    fn settle_one(&mut self, settle: &LeaseSettlement) -> Result<SettleCommandReply, LeaseRefusal> {
        let now = self.now;
        let key = &settle.lease.key;
        let lease = match self.lease(&settle.lease) {
            Ok(lease) => lease,
            Err(refused) => {
                return self.jobs.get(key).map_or(Err(refused), |h| h.repeat(settle, now));
            }
        };
        if settle.deadline.is_some_and(|deadline| deadline != lease.deadline) {
            return Err(LeaseRefusal::Stale);
        }
        let held = self.jobs.get_mut(key).unwrap();
        let waits = held.next.is_some();
        let (transition, outcome) = held.settle(&settle.action, now);
        // To its crash topic.
        let moved = held.forget == Some(now);
        let end = format!("{transition:?} {outcome:?}");
        self.seen.insert(Seen::End(end, waits));
        self.saw(State::Running, transition);
        match transition {
            Transition::Ack => self.total(&key.topic, |stats| stats.succeeded_total += 1),
            Transition::DeadLetter if !waits && !moved => {
                self.total(&key.topic, |stats| stats.dead_total += 1)
            }
            _ => {}
        }
        self.tick(now);
        let gone = match transition {
            Transition::Ack => State::Succeeded,
            Transition::DeadLetter if moved => State::Dead,
            _ => State::Expired,
        };
        let state = self.jobs.get(key).map_or(gone, |held| held.state(now));
        if let SettleAction::Ack { follow_ups, .. } = &settle.action {
            for job in follow_ups {
                self.enqueue(&job.clone().into(), false);
            }
        }
        Ok(SettleCommandReply { repeated: false, state })
    }

    pub(crate) fn extend(&mut self, extend: &LeaseExtension) -> Result<Time, LeaseRefusal> {
        self.lease(&extend.lease)?;
        let held = self.jobs.get_mut(&extend.lease.key).unwrap();
        if let Some(progress) = &extend.progress {
            held.job.progress.clone_from(progress);
        }
        if let Some(checkpoint) = &extend.checkpoint {
            let kept = Some(checkpoint).filter(|checkpoint| !checkpoint.body.is_empty());
            held.job.checkpoint = kept.cloned();
        }
        let lease = held.lease.as_mut().unwrap();
        lease.deadline = self.now.plus(extend.duration.unwrap_or(lease.duration));
        lease.extended = Some(self.now);
        Ok(lease.deadline)
    }

    pub(crate) fn delete(&mut self, key: &JobKey) -> Option<Deleted> {
        let now = self.now;
        let held = self.jobs.get_mut(key)?;
        let previous = held.state(now);
        let revoked = held.lease.as_ref().map(|l| (l.owner, l.stream, l.token));
        held.next = None;
        if previous == State::Running {
            held.end_attempt(now, &Ending::plain(AttemptOutcome::Revoked));
        }
        if previous.is_terminal() {
            self.jobs.remove(key);
        } else {
            held.finish(State::Cancelled, now);
        }
        self.unpruned.remove(key);
        self.saw(previous, Transition::Delete);
        self.tick(now);
        Some(Deleted { previous, revoked })
    }

    /// Deletes a job; a generation that was enqueued behind it since `begin` takes its place.
    fn purge_job(&mut self, key: &JobKey, begin: Time) -> Option<Deleted> {
        let held = self.jobs.get_mut(key)?;
        let next = held.next.take_if(|next| next.job.create_time > begin);
        let Some(next) = next else { return self.delete(key) };
        let now = self.now;
        let revoked = held.lease.as_ref().map(|l| (l.owner, l.stream, l.token));
        held.end_attempt(now, &Ending::plain(AttemptOutcome::Revoked));
        held.replace(*next, 0);
        self.saw(State::Running, Transition::Delete);
        self.tick(now);
        Some(Deleted { previous: State::Running, revoked })
    }

    pub(crate) fn purge(&mut self, batch: &PurgeBatch) -> Vec<Option<Deleted>> {
        let mut purged = Vec::new();
        for id in &batch.ids {
            let key = JobKey { topic: batch.topic.clone(), id: id.clone() };
            let meant = self.jobs.get(&key).is_some_and(|held| {
                let (state, begin) = (held.state(self.now), batch.purge.begin);
                let is_later =
                    state == State::Cancelled && held.job.finish_time.is_some_and(|at| at > begin);
                batch.purge.states.contains(&state) && held.job.create_time <= begin && !is_later
            });
            purged.push(if meant { self.purge_job(&key, batch.purge.begin) } else { None });
            self.seen.insert(Seen::Purge(meant));
        }
        purged
    }

    pub(crate) fn reschedule(&mut self, item: &JobReschedule) -> RescheduleResult {
        let now = self.now;
        let Some(held) = self.jobs.get_mut(&item.key) else { return Ok(None) };
        let state = held.state(now);
        next(state, Transition::Reschedule).map_err(|rejection| rejection.0)?;
        let due = item.due.map(|due| due.due(now));
        if state == State::Dead {
            held.revive(due.unwrap_or(now), item.priority, now);
        } else {
            held.shift(due.unwrap_or(held.job.due_time), item.priority);
        }
        self.saw(state, Transition::Reschedule);
        Ok(self.get(&item.key, false))
    }

    pub(crate) fn redrive(&mut self, redrive: &RedriveBatch) -> RedriveResult {
        let mut done = RedriveResult::default();
        let mut visited = BTreeSet::new();
        for id in &redrive.ids {
            let key = JobKey { topic: redrive.topic.clone(), id: id.clone() };
            let first = visited.insert(id);
            if first && self.redrive_one(redrive, &key, done.redriven) {
                done.redriven += 1;
            } else {
                done.skipped += 1;
            }
        }
        done
    }

    fn redrive_one(&mut self, redrive: &RedriveBatch, key: &JobKey, nth: u64) -> bool {
        let Some(held) = self.jobs.get(key) else { return false };
        let state = held.state(self.now);
        let target = redrive.target.as_ref().unwrap_or(&redrive.topic);
        let to = JobKey { topic: target.clone(), id: key.id.clone() };
        let (moves, taken) = (to != *key, self.jobs.contains_key(&to));
        if next(state, Transition::Redrive).is_err() || held.is_tombstone() {
            return false;
        }
        if !redrive.states.contains(&state) {
            return false;
        }
        self.seen.insert(Seen::Redrive { moves, taken: moves && taken });
        if moves && taken {
            return false;
        }
        let due = self.now.plus(redrive.delay + redrive.spacing * u32::try_from(nth).unwrap());
        let mut expire = held.job.expire_time;
        if expire.is_some_and(|expire| expire <= due) {
            let Some(ttl) = redrive.ttl else { return false };
            expire = Some(due.plus(ttl));
        }
        if redrive.dry_run {
            return true;
        }
        self.saw(state, Transition::Redrive);
        self.total(target, |_| ());
        let mut held = self.jobs.remove(key).unwrap();
        held.revive(due, None, self.now);
        (held.job.expire_time, held.job.result) = (expire, None);
        if moves {
            self.arrivals += 1;
            held.arrival = self.arrivals;
        }
        held.job.key = to.clone();
        self.unpruned.remove(key);
        self.unpruned.remove(&to);
        self.jobs.insert(to, held);
        true
    }
}
