//! Transaction as verbs use it: the connection, the time, the topics, and the events to publish after the commit.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};

use rusqlite::{CachedStatement, Connection, OptionalExtension as _, params};

use crate::domain::{self, JobId, ShardName, ShardOutage, Time, TopicName, limit};
use crate::store::{NotWrittenReason, ShardEvent, ShardEvents};

use super::ended_ids::EndedIds;
use super::error_mapping::SqliteResult;
use super::lane_setting::{FIND as FIND_SETTING, LaneSetting};
use super::statement::statement;
use super::topic_counts::TopicCounts;

const FILE: &str = include_str!("topics.sql");
const FIND: &str = statement(FILE, "find");
const CREATE: &str = statement(FILE, "create");
const COUNT: &str = statement(FILE, "count");
const STARTED: &str = statement(include_str!("claim.sql"), "started");
const SET_STARTED: &str = statement(include_str!("claim.sql"), "set_started");

/// Bits of all ranks.
const ALL_RANKS: u16 = 0x3ff;

/// State that the writer keeps between transactions. All of it can be read again from the file.
pub(super) struct WriterState {
    pub(super) name: ShardName,
    topics: HashMap<TopicName, CachedTopic>,
    totals: HashMap<i64, TopicTotals>,
    topic_counts: TopicCounts,
    claimable: HashMap<TopicName, Time>,
    /// Topics that were found empty, by key. In memory: after a restart they are found again.
    empty_topics: HashMap<i64, EmptyTopic>,
    /// Topics deleted by the running transaction.
    forgotten: Vec<TopicName>,
    state_set: bool,
    documents_changed: bool,
    /// Heartbeats of the server; `None`: none since the file was opened.
    heartbeats: Option<ServerHeartbeats>,
    ended_ids: EndedIds,
    last_lease_start: LastLeaseStart,
    upkeep_times: UpkeepTimes,
    events: ShardEvents,
}

/// Start of the leases of the last claim.
#[derive(Clone, Copy, Default)]
struct LastLeaseStart {
    /// Last start; `None`: to be read from the file.
    last: Option<Time>,
    /// Set when the running transaction has to write it.
    is_new: bool,
}

/// Time at which a topic was found empty, and the number of jobs enqueued to it by then.
#[derive(Clone, Copy)]
struct EmptyTopic {
    since: Time,
    enqueued: i64,
}

/// Heartbeats of the server. In memory: while the file is closed there are none.
#[derive(Clone, Copy)]
struct ServerHeartbeats {
    last: Time,
    /// Last time without heartbeats.
    outage: ShardOutage,
}

/// Times of the next reap and the next prune.
pub(super) struct UpkeepTimes {
    reap: UpkeepTime,
    prune: UpkeepTime,
    /// Set after the first prune: before it the content of the file is unknown.
    was_pruned: bool,
    /// Time of the next prune for readers: what is past it must be pruned before it is counted.
    prune_at: Arc<AtomicI64>,
}

#[derive(Clone, Copy)]
struct UpkeepTime {
    /// Time announced to the timers, which sleep until then.
    announced: Time,
    /// Time set by the running transaction.
    pending: Time,
}

#[derive(Clone, Copy)]
struct CachedTopic {
    key: i64,
    /// Ranks at which a job without a group may wait; a cleared bit saves a search.
    ranks: u16,
    lanes: TopicLanes,
    /// Time until which its jobs are not delivered.
    paused: Option<Time>,
}

/// State of the lanes of a topic that a claim needs before it reads any.
#[derive(Clone, Copy)]
pub(super) struct TopicLanes {
    /// True if the topic has a lane of a group.
    pub(super) any: bool,
    /// Setting of the jobs without a group.
    pub(super) ungrouped: LaneSetting,
}

#[derive(Clone, Copy, Default)]
struct TopicTotals {
    enqueued: i64,
    succeeded: i64,
    dead: i64,
}

/// Kind of the totals of a topic.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum TotalKind {
    Enqueued,
    Succeeded,
    Dead,
}

/// A running transaction.
pub(super) struct WriteTransaction<'c> {
    pub(super) connection: &'c Connection,
    /// The store's time: one reading for the whole transaction.
    pub(super) now: Time,
    state: &'c mut WriterState,
}

/// A statement that is prepared at its first use in a call.
pub(super) struct ReusedStatement<'c> {
    sql: &'static str,
    statement: Option<CachedStatement<'c>>,
}

// === impl TopicLanes ===

impl TopicLanes {
    /// Returns whether a claim must choose among lanes, or may not take the jobs without a group.
    pub(super) fn matter(self) -> bool {
        self.any || self.ungrouped.paused
    }
}

// === impl ReusedStatement ===

impl<'c> ReusedStatement<'c> {
    pub(super) fn new(sql: &'static str) -> ReusedStatement<'c> {
        ReusedStatement { sql, statement: None }
    }

    pub(super) fn get(
        &mut self,
        session: &WriteTransaction<'c>,
    ) -> rusqlite::Result<&mut CachedStatement<'c>> {
        match &mut self.statement {
            Some(statement) => Ok(statement),
            none => Ok(none.insert(session.prepare(self.sql)?)),
        }
    }
}

// === impl WriterState ===

impl WriterState {
    pub(super) fn new(
        name: ShardName,
        events: ShardEvents,
        prune_at: Arc<AtomicI64>,
        opened: Time,
    ) -> WriterState {
        let (reap, prune) = (UpkeepTime::NEVER, UpkeepTime::NEVER);
        WriterState {
            name,
            topics: HashMap::new(),
            totals: HashMap::new(),
            topic_counts: TopicCounts::default(),
            claimable: HashMap::new(),
            empty_topics: HashMap::new(),
            forgotten: Vec::new(),
            state_set: false,
            documents_changed: false,
            heartbeats: None,
            ended_ids: EndedIds::new(opened),
            last_lease_start: LastLeaseStart::default(),
            upkeep_times: UpkeepTimes { reap, prune, was_pruned: false, prune_at },
            events,
        }
    }

    /// Records that the server of this shard is alive. The first heartbeat or lease query after a silence records the
    /// outage: from the last heartbeat on, or until the first one since the file was opened. Leases that expired
    /// under the previous server were ended then.
    pub(super) fn heartbeat(&mut self, now: Time) {
        self.heartbeats(now).last = now;
    }

    fn heartbeats(&mut self, now: Time) -> &mut ServerHeartbeats {
        let opened = || ServerHeartbeats {
            last: now,
            outage: ShardOutage { since: Time(i64::MIN), until: now },
        };
        let signs = self.heartbeats.get_or_insert_with(opened);
        if now.since(signs.last) >= limit::OUTAGE_MIN {
            *signs = ServerHeartbeats {
                last: now,
                outage: ShardOutage { since: signs.last, until: now },
            };
        }
        signs
    }

    /// Discards the state of a transaction that was rolled back.
    pub(super) fn discard_uncommitted(&mut self) {
        self.topics.clear();
        self.totals.clear();
        self.topic_counts.clear();
        self.claimable.clear();
        self.empty_topics.clear();
        self.forgotten.clear();
        self.state_set = false;
        self.documents_changed = false;
        self.last_lease_start = LastLeaseStart::default();
        self.upkeep_times.reap.pending = Time::MAX;
        self.upkeep_times.prune.pending = Time::MAX;
        self.upkeep_times.was_pruned = false;
        self.upkeep_times.prune_at.store(i64::MIN, Ordering::Release);
    }

    /// Publishes the events of a committed transaction.
    pub(super) fn publish(&mut self, committed: bool) {
        if !committed {
            return;
        }
        for topic in self.forgotten.drain(..) {
            self.events.send(ShardEvent::TopicForgotten(topic));
        }
        for (topic, at) in self.claimable.drain() {
            self.events.send(ShardEvent::Claimable { topic, at });
        }
        if std::mem::take(&mut self.state_set) {
            self.events.send(ShardEvent::StateSet);
        }
        if std::mem::take(&mut self.documents_changed) {
            self.events.send(ShardEvent::DocumentsChanged);
        }
        let reap = self.upkeep_times.reap.publish();
        let prune = self.upkeep_times.prune.publish();
        if self.upkeep_times.was_pruned {
            self.upkeep_times
                .prune_at
                .store(self.upkeep_times.prune.announced.0, Ordering::Release);
        }
        if let Some(at) = reap.into_iter().chain(prune).min() {
            self.events.send(ShardEvent::UpkeepDue { at });
        }
    }
}

// === impl UpkeepTime ===

impl UpkeepTime {
    const NEVER: UpkeepTime = UpkeepTime { announced: Time::MAX, pending: Time::MAX };

    fn publish(&mut self) -> Option<Time> {
        let earlier = self.pending < self.announced;
        if earlier {
            self.announced = self.pending;
        }
        self.pending = Time::MAX;
        earlier.then_some(self.announced)
    }
}

// === impl WriteTransaction ===

impl<'c> WriteTransaction<'c> {
    pub(super) fn new(
        connection: &'c Connection,
        now: Time,
        state: &'c mut WriterState,
    ) -> WriteTransaction<'c> {
        WriteTransaction { connection, now, state }
    }

    /// Returns the name of the shard.
    pub(super) fn shard(&self) -> &ShardName {
        &self.state.name
    }

    /// Returns a statement, prepared once per connection.
    pub(super) fn prepare(&self, sql: &str) -> rusqlite::Result<CachedStatement<'c>> {
        self.connection.prepare_cached(sql)
    }

    /// Returns the key of the topic, if it exists.
    pub(super) fn topic(&mut self, name: &TopicName) -> SqliteResult<Option<i64>> {
        Ok(self.cached_topic(name)?.map(|topic| topic.key))
    }

    /// Returns the key of the topic; creates the topic if it is new.
    pub(super) fn topic_or_create(&mut self, name: &TopicName) -> SqliteResult<i64> {
        if let Some(key) = self.topic(name)? {
            return Ok(key);
        }
        self.prepare(CREATE)?.execute(params![name.as_str(), self.now.0])?;
        let key = self.connection.last_insert_rowid();
        let lanes = TopicLanes { any: false, ungrouped: self.group_setting(name, "")? };
        let topic = CachedTopic { key, ranks: 0, lanes, paused: None };
        self.state.topics.insert(name.clone(), topic);
        Ok(key)
    }

    /// Returns the time until which jobs of the topic are not delivered, if that is ahead.
    pub(super) fn closed_until(&mut self, name: &TopicName) -> Option<Time> {
        let paused = self.state.topics.get(name)?.paused;
        paused.filter(|&until| until > self.now)
    }

    /// Records the time until which jobs of the topic are not delivered. `None`: they are; its subscribers are notified.
    pub(super) fn set_paused(&mut self, name: &TopicName, paused: Option<Time>) {
        let Some(topic) = self.state.topics.get_mut(name) else { return };
        let was_paused = std::mem::replace(&mut topic.paused, paused).is_some();
        // A claim sleeps until the end that it has found.
        let at = paused.map_or(self.now, |until| until.max(self.now));
        if was_paused && at != Time::MAX {
            self.state.claimable.insert(name.clone(), at);
        }
    }

    /// Returns the ranks at which jobs of the topic may wait, as bits.
    pub(super) fn ranks(&mut self, name: &TopicName) -> u16 {
        self.state.topics.get(name).map_or(0, |topic| topic.ranks)
    }

    /// Records that no job of the topic waits at this rank.
    pub(super) fn mark_rank_empty(&mut self, name: &TopicName, rank: u8) {
        if let Some(topic) = self.state.topics.get_mut(name) {
            topic.ranks &= !(1 << rank);
        }
    }

    /// Records that a job of the topic waits at this rank and can be claimed from `at` on.
    pub(super) fn set_claimable(&mut self, name: &TopicName, rank: u8, at: Time) {
        if let Some(topic) = self.state.topics.get_mut(name) {
            topic.ranks |= 1 << rank;
        }
        self.set_lane_claimable(name, at);
    }

    /// Records that a job of a lane of the topic can be claimed from `at` on.
    pub(super) fn set_lane_claimable(&mut self, name: &TopicName, at: Time) {
        match self.state.claimable.get_mut(name) {
            Some(earliest) => *earliest = at.min(*earliest),
            None => {
                self.state.claimable.insert(name.clone(), at);
            }
        }
    }

    /// Returns the setting of a group; `group` is empty for the jobs without one.
    pub(super) fn group_setting(&self, name: &TopicName, group: &str) -> SqliteResult<LaneSetting> {
        let mut find = self.prepare(FIND_SETTING)?;
        let found = find.query_row(params![name.as_str(), group], LaneSetting::read).optional()?;
        Ok(found.unwrap_or_default())
    }

    /// Returns the state of the lanes of a topic that exists.
    pub(super) fn lanes(&self, name: &TopicName) -> Option<TopicLanes> {
        self.state.topics.get(name).map(|topic| topic.lanes)
    }

    /// Records whether the topic has a lane of a group; returns whether it had one before.
    pub(super) fn set_lanes(&mut self, name: &TopicName, any: bool) -> bool {
        let Some(topic) = self.state.topics.get_mut(name) else { return false };
        std::mem::replace(&mut topic.lanes.any, any)
    }

    /// Records the setting of the jobs without a group.
    pub(super) fn set_ungrouped_setting(&mut self, name: &TopicName, setting: LaneSetting) {
        let now = self.now;
        let Some(topic) = self.state.topics.get_mut(name) else { return };
        let before = std::mem::replace(&mut topic.lanes.ungrouped, setting);
        if before.paused && !setting.paused {
            self.set_lane_claimable(name, now);
        }
    }

    /// Returns the start of the leases of one claim: now, but later than those of all earlier claims, also after the
    /// clock went back.
    pub(super) fn begin_leases(&mut self) -> SqliteResult<Time> {
        let last = match self.state.last_lease_start.last {
            Some(last) => last,
            None => {
                let last: Option<i64> = self.prepare(STARTED)?.query_one([], |row| row.get(0))?;
                Time(last.unwrap_or(i64::MIN))
            }
        };
        let start = self.now.max(Time(last.0.saturating_add(1)));
        self.state.last_lease_start = LastLeaseStart { last: Some(start), is_new: true };
        Ok(start)
    }

    /// Records that a lease ends at `at`.
    pub(super) fn set_reap_at(&mut self, at: Time) {
        let alarm = &mut self.state.upkeep_times.reap;
        alarm.pending = alarm.pending.min(at);
    }

    /// Records that a job expires or is deleted at `at`.
    pub(super) fn set_prune_at(&mut self, at: Time) {
        let alarm = &mut self.state.upkeep_times.prune;
        alarm.pending = alarm.pending.min(at);
    }

    /// Records the next deadline that the caller of reap receives, and sleeps until.
    pub(super) fn set_next_reap(&mut self, next: Option<Time>) {
        self.state.upkeep_times.reap.announced = next.unwrap_or(Time::MAX);
    }

    /// Records the next time that the caller of prune receives. The caller may be a read: an event then notifies the
    /// timer, which sleeps until the announced time, of an earlier one.
    pub(super) fn set_next_prune(&mut self, next: Option<Time>) {
        let (next, prune) = (next.unwrap_or(Time::MAX), &mut self.state.upkeep_times.prune);
        if next < prune.announced {
            prune.pending = prune.pending.min(next);
        } else {
            prune.announced = next;
        }
        self.state.upkeep_times.was_pruned = true;
    }

    /// Adds the id of a job that has ended without a record.
    pub(super) fn add_ended_id(&mut self, topic: i64, id: &str, ended: domain::State) {
        self.state.ended_ids.add(topic, id, ended, self.now);
    }

    /// Returns the final state of the job with that id, which left no record.
    pub(super) fn ended_state(&self, topic: i64, id: &JobId) -> Option<domain::State> {
        self.state.ended_ids.find(topic, id, self.now)
    }

    /// Returns why a job with that id must not be written, see [`EndedIds::refusal`].
    pub(super) fn refusal(&self, id: &JobId) -> Option<NotWrittenReason> {
        self.state.ended_ids.refusal(id, self.now)
    }

    /// Returns the last time in which no server served the shard.
    pub(super) fn outage(&mut self) -> ShardOutage {
        self.state.heartbeats(self.now).outage
    }

    /// Records a heartbeat of the server.
    pub(super) fn heartbeat(&mut self) {
        self.state.heartbeat(self.now);
    }

    /// Records that the shard's state was set.
    pub(super) fn mark_state_set(&mut self) {
        self.state.state_set = true;
    }

    /// Records that documents were stored.
    pub(super) fn mark_documents_changed(&mut self) {
        self.state.documents_changed = true;
    }

    /// Adds to a total of the topic with this key.
    pub(super) fn count(&mut self, topic: i64, total: TotalKind, count: u32) {
        if count == 0 {
            return;
        }
        let totals = self.state.totals.entry(topic).or_default();
        match total {
            TotalKind::Enqueued => totals.enqueued += i64::from(count),
            TotalKind::Succeeded => totals.succeeded += i64::from(count),
            TotalKind::Dead => totals.dead += i64::from(count),
        }
    }

    /// Returns the numbers of topics with limits, to read or to adjust.
    pub(super) fn topic_counts(&mut self) -> &mut TopicCounts {
        &mut self.state.topic_counts
    }

    /// Returns the time since which the topic with this key has been seen empty. `enqueued` is the number of jobs
    /// ever enqueued to it, if it is empty now.
    pub(super) fn empty_since(&mut self, topic: i64, enqueued: Option<i64>) -> Option<Time> {
        let WriterState { empty_topics: empty, totals, .. } = &mut *self.state;
        let Some(enqueued) = enqueued.filter(|_| !totals.contains_key(&topic)) else {
            empty.remove(&topic);
            return None;
        };
        let found = EmptyTopic { since: self.now, enqueued };
        let known = empty.entry(topic).or_insert(found);
        if known.enqueued != enqueued {
            *known = found;
        }
        Some(known.since)
    }

    /// Removes a deleted topic from the caches.
    pub(super) fn forget_topic(&mut self, topic: i64, name: &TopicName) {
        self.state.topics.remove(name);
        self.state.empty_topics.remove(&topic);
        self.state.topic_counts.forget(name);
        self.state.forgotten.push(name.clone());
    }

    /// Writes the totals, and the start of the last leases.
    pub(super) fn flush(&mut self) -> SqliteResult<()> {
        if let LastLeaseStart { last: Some(last), is_new: true } = self.state.last_lease_start {
            self.prepare(SET_STARTED)?.execute([last.0])?;
            self.state.last_lease_start.is_new = false;
        }
        if self.state.totals.is_empty() {
            return Ok(());
        }
        let mut count = self.prepare(COUNT)?;
        for (topic, totals) in self.state.totals.drain() {
            count.execute(params![topic, totals.enqueued, totals.succeeded, totals.dead])?;
        }
        Ok(())
    }

    fn cached_topic(&mut self, name: &TopicName) -> SqliteResult<Option<CachedTopic>> {
        if let Some(topic) = self.state.topics.get(name) {
            return Ok(Some(*topic));
        }
        let mut find = self.prepare(FIND)?;
        let read = |row: &rusqlite::Row<'_>| {
            let paused: Option<i64> = row.get(1)?;
            Ok((row.get(0)?, paused.map(Time), row.get(2)?))
        };
        let found = find.query_row([name.as_str()], read).optional()?;
        let Some((key, paused, any)) = found else { return Ok(None) };
        let lanes = TopicLanes { any, ungrouped: self.group_setting(name, "")? };
        let topic = CachedTopic { key, ranks: ALL_RANKS, lanes, paused };
        self.state.topics.insert(name.clone(), topic);
        Ok(Some(topic))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::EventKind;

    /// A read prunes too, and may return the time of a job that was written in the same transaction.
    #[test]
    fn earlier_prune_found_by_read_reaches_timer() {
        let (connection, events) = (Connection::open_in_memory().unwrap(), ShardEvents::new());
        let mut upkeep = events.subscribe(EventKind::Upkeep);
        let name = ShardName::try_new("s0").unwrap();
        let mut state = WriterState::new(name, events, Arc::default(), Time(0));
        let mut commit = |verbs: &[fn(&mut WriteTransaction<'_>)]| {
            let mut session = WriteTransaction::new(&connection, Time(1), &mut state);
            verbs.iter().for_each(|verb| verb(&mut session));
            state.publish(true);
        };
        commit(&[|session| session.set_next_prune(Some(Time(100)))]);
        while upkeep.try_recv().is_ok() {}
        commit(&[
            |session| session.set_prune_at(Time(50)),
            |session| session.set_next_prune(Some(Time(50))),
        ]);
        assert!(matches!(upkeep.try_recv(), Ok(ShardEvent::UpkeepDue { at: Time(50) })));
        commit(&[|session| session.set_next_prune(Some(Time(200)))]);
        assert!(upkeep.try_recv().is_err(), "nothing is earlier");
        commit(&[|session| session.set_prune_at(Time(150))]);
        assert!(matches!(upkeep.try_recv(), Ok(ShardEvent::UpkeepDue { at: Time(150) })));
    }
}
