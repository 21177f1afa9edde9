//! What verbs see of a transaction: the connection, the time, the topics, and what is to be told
//! to the world once it is committed.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};

use rusqlite::{CachedStatement, Connection, OptionalExtension as _, params};

use crate::domain::{self, JobId, ShardName, ShardOutage, Time, TopicName, limit};
use crate::store::{NotWrittenReason, ShardEvent, ShardEvents};

use super::ended_ids::EndedIds;
use super::error_mapping::SqliteResult;
use super::statement::statement;

const FILE: &str = include_str!("topics.sql");
const FIND: &str = statement(FILE, "find");
const CREATE: &str = statement(FILE, "create");
const COUNT: &str = statement(FILE, "count");
const STARTED: &str = statement(include_str!("claim.sql"), "started");
const SET_STARTED: &str = statement(include_str!("claim.sql"), "set_started");

/// Every rank there is, as bits.
const ALL_RANKS: u16 = 0x3ff;

/// What the writer keeps between transactions. All of it can be read again from the file.
pub(super) struct WriterState {
    pub(super) name: ShardName,
    topics: HashMap<TopicName, CachedTopic>,
    totals: HashMap<i64, TopicTotals>,
    claimable: HashMap<TopicName, Time>,
    /// Topics that were found empty, by key. In memory: after a restart they are found anew.
    empty_topics: HashMap<i64, EmptyTopic>,
    /// Forgotten by the transaction under way.
    forgotten: Vec<TopicName>,
    state_set: bool,
    /// `None`: there was no sign of its server since it was opened.
    heartbeats: Option<ServerHeartbeats>,
    ended_ids: EndedIds,
    last_lease_start: LastLeaseStart,
    upkeep_times: UpkeepTimes,
    events: ShardEvents,
}

/// When the leases of the last claim began.
#[derive(Clone, Copy, Default)]
struct LastLeaseStart {
    /// `None`: to be read from the file.
    last: Option<Time>,
    /// The transaction under way has to write it.
    is_new: bool,
}

/// When a topic was found empty, and how many jobs had been enqueued to it by then.
#[derive(Clone, Copy)]
struct EmptyTopic {
    since: Time,
    enqueued: i64,
}

/// Signs of life of the server. In memory: while the file is closed there are none.
#[derive(Clone, Copy)]
struct ServerHeartbeats {
    last: Time,
    /// When there were none before.
    outage: ShardOutage,
}

/// The next time at which something happens by itself, by kind.
pub(super) struct UpkeepTimes {
    reap: UpkeepTime,
    prune: UpkeepTime,
    /// Until the first prune nobody knows what the file holds.
    was_pruned: bool,
    /// `prune`'s next time for readers: what is past it must be pruned before it is counted.
    prune_at: Arc<AtomicI64>,
}

#[derive(Clone, Copy)]
struct UpkeepTime {
    /// Announced to whoever sleeps until then.
    announced: Time,
    /// Set by the transaction under way.
    pending: Time,
}

#[derive(Clone, Copy)]
struct CachedTopic {
    key: i64,
    /// Ranks at which a job may wait; a cleared bit saves a search.
    ranks: u16,
}

#[derive(Clone, Copy, Default)]
struct TopicTotals {
    enqueued: i64,
    succeeded: i64,
    dead: i64,
}

/// What is counted for ever, per topic.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum TotalKind {
    Enqueued,
    Succeeded,
    Dead,
}

/// A transaction under way.
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

// === impl Reused ===

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

// === impl State ===

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
            claimable: HashMap::new(),
            empty_topics: HashMap::new(),
            forgotten: Vec::new(),
            state_set: false,
            heartbeats: None,
            ended_ids: EndedIds::new(opened),
            last_lease_start: LastLeaseStart::default(),
            upkeep_times: UpkeepTimes { reap, prune, was_pruned: false, prune_at },
            events,
        }
    }

    /// The server of this shard lives. Whoever comes first after a silence, a sign or a look, notes when nobody served
    /// it: from the last sign on, or until the first one since the file was opened. What ran out while the server before
    /// this one lived has ended then.
    pub(super) fn heartbeat(&mut self, now: Time) {
        self.heartbeats(now).last = now;
    }

    fn heartbeats(&mut self, now: Time) -> &mut ServerHeartbeats {
        let opened = || ServerHeartbeats {
            last: now,
            outage: ShardOutage { since: Time(i64::MIN), until: now },
        };
        let signs = self.heartbeats.get_or_insert_with(opened);
        if now.since(signs.last) >= limit::AWAY_MIN {
            *signs = ServerHeartbeats {
                last: now,
                outage: ShardOutage { since: signs.last, until: now },
            };
        }
        signs
    }

    /// After a rollback nothing that the transaction taught is true.
    pub(super) fn discard_uncommitted(&mut self) {
        self.topics.clear();
        self.totals.clear();
        self.claimable.clear();
        self.empty_topics.clear();
        self.forgotten.clear();
        self.state_set = false;
        self.last_lease_start = LastLeaseStart::default();
        self.upkeep_times.reap.pending = Time::MAX;
        self.upkeep_times.prune.pending = Time::MAX;
        self.upkeep_times.was_pruned = false;
        self.upkeep_times.prune_at.store(i64::MIN, Ordering::Release);
    }

    /// Tells what a committed transaction has brought about.
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

// === impl Alarm ===

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

// === impl Session ===

impl<'c> WriteTransaction<'c> {
    pub(super) fn new(
        connection: &'c Connection,
        now: Time,
        state: &'c mut WriterState,
    ) -> WriteTransaction<'c> {
        WriteTransaction { connection, now, state }
    }

    /// The shard's name.
    pub(super) fn shard(&self) -> &ShardName {
        &self.state.name
    }

    /// A statement, prepared once per connection.
    pub(super) fn prepare(&self, sql: &str) -> rusqlite::Result<CachedStatement<'c>> {
        self.connection.prepare_cached(sql)
    }

    /// The topic's key, if there is such a topic.
    pub(super) fn topic(&mut self, name: &TopicName) -> SqliteResult<Option<i64>> {
        Ok(self.cached_topic(name)?.map(|topic| topic.key))
    }

    /// The topic's key; the topic comes to be if it is new.
    pub(super) fn topic_or_create(&mut self, name: &TopicName) -> SqliteResult<i64> {
        if let Some(key) = self.topic(name)? {
            return Ok(key);
        }
        self.prepare(CREATE)?.execute(params![name.as_str(), self.now.0])?;
        let key = self.connection.last_insert_rowid();
        self.state.topics.insert(name.clone(), CachedTopic { key, ranks: 0 });
        Ok(key)
    }

    /// The ranks at which jobs of the topic may wait, as bits.
    pub(super) fn ranks(&mut self, name: &TopicName) -> u16 {
        self.state.topics.get(name).map_or(0, |topic| topic.ranks)
    }

    /// No job of the topic waits at this rank.
    pub(super) fn mark_rank_empty(&mut self, name: &TopicName, rank: u8) {
        if let Some(topic) = self.state.topics.get_mut(name) {
            topic.ranks &= !(1 << rank);
        }
    }

    /// A job of the topic waits at this rank and can be claimed from `at` on.
    pub(super) fn set_claimable(&mut self, name: &TopicName, rank: u8, at: Time) {
        if let Some(topic) = self.state.topics.get_mut(name) {
            topic.ranks |= 1 << rank;
        }
        match self.state.claimable.get_mut(name) {
            Some(earliest) => *earliest = at.min(*earliest),
            None => {
                self.state.claimable.insert(name.clone(), at);
            }
        }
    }

    /// When the leases of one claim begin: now, but later than those of all claims before, also after the clock went
    /// back.
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

    /// A lease ends at `at`.
    pub(super) fn set_reap_at(&mut self, at: Time) {
        let alarm = &mut self.state.upkeep_times.reap;
        alarm.pending = alarm.pending.min(at);
    }

    /// A job expires or is forgotten at `at`.
    pub(super) fn set_prune_at(&mut self, at: Time) {
        let alarm = &mut self.state.upkeep_times.prune;
        alarm.pending = alarm.pending.min(at);
    }

    /// The caller of reap knows the next deadline now, and sleeps until then.
    pub(super) fn set_next_reap(&mut self, next: Option<Time>) {
        self.state.upkeep_times.reap.announced = next.unwrap_or(Time::MAX);
    }

    /// The caller of prune knows the next time now. It may be a read: the timer, which sleeps until the announced time,
    /// then hears of an earlier one by an event.
    pub(super) fn set_next_prune(&mut self, next: Option<Time>) {
        let (next, prune) = (next.unwrap_or(Time::MAX), &mut self.state.upkeep_times.prune);
        if next < prune.announced {
            prune.pending = prune.pending.min(next);
        } else {
            prune.announced = next;
        }
        self.state.upkeep_times.was_pruned = true;
    }

    /// The job with that id has ended so and leaves nothing.
    pub(super) fn add_ended_id(&mut self, topic: i64, id: &str, ended: domain::State) {
        self.state.ended_ids.add(topic, id, ended, self.now);
    }

    /// How the job with that id has ended, which left nothing.
    pub(super) fn ended_state(&self, topic: i64, id: &JobId) -> Option<domain::State> {
        self.state.ended_ids.find(topic, id, self.now)
    }

    /// Why a job with that id must not be written, see [`EndedIds::refusal`].
    pub(super) fn refusal(&self, id: &JobId) -> Option<NotWrittenReason> {
        self.state.ended_ids.refusal(id, self.now)
    }

    /// When no server served the shard before now.
    pub(super) fn outage(&mut self) -> ShardOutage {
        self.state.heartbeats(self.now).outage
    }

    /// A sign of life of the server.
    pub(super) fn heartbeat(&mut self) {
        self.state.heartbeat(self.now);
    }

    /// The shard's state was set.
    pub(super) fn mark_state_set(&mut self) {
        self.state.state_set = true;
    }

    /// Counts so many events of the topic with this key.
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

    /// Since when the topic with this key has been empty, as far as was seen; `enqueued`: how many jobs were ever
    /// enqueued to it, if it is empty now.
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

    /// There is no such topic any more.
    pub(super) fn forget_topic(&mut self, topic: i64, name: &TopicName) {
        self.state.topics.remove(name);
        self.state.empty_topics.remove(&topic);
        self.state.forgotten.push(name.clone());
    }

    /// Writes what was counted, and when the last leases began.
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
        let key = find.query_row([name.as_str()], |row| row.get(0)).optional()?;
        let topic = key.map(|key| CachedTopic { key, ranks: ALL_RANKS });
        if let Some(topic) = topic {
            self.state.topics.insert(name.clone(), topic);
        }
        Ok(topic)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::EventKind;

    /// A read prunes, too, and sees the time of a job that was written in the same transaction.
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
