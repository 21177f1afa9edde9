//! What a write reaches: observed, told to the log when it changes, and confirmed by the Redis where its
//! settings promise less. What those promise is read in `facts.rs`.
//!
//! WAITAOF and WAIT wait for what their own connection has written before, so a batch and its waiting go down one
//! connection, which nobody else uses meanwhile: it is blocked.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use deadpool_redis::redis::{self, RedisError};
use tokio::sync::{Notify, watch};
use tokio::time::Instant;

use crate::domain::limit::CONFIRM_MAX;
use crate::domain::{Durability, ShardName};
use crate::store::{Condition, Reach};

use super::check::field;
use super::facts::Facts;
use super::link::Connection;

/// What was observed last.
pub(super) struct Observed {
    state: Mutex<State>,
    /// Another process has taken the place of the one that was looked at.
    changed: Notify,
    /// Somebody has asked for a replica.
    asked_for_replica: AtomicBool,
    published: watch::Sender<Condition>,
}

#[derive(Clone, Debug)]
struct State {
    reach: Reach,
    /// Which process said so.
    run: String,
    /// Its append-only file was seen to hold everything.
    complete: bool,
    /// Its WAITAOF was found to be true, or not.
    believed: Option<bool>,
    /// Which process was met last, see [`Observed::meet`].
    met: String,
    /// What the log was told last, of whichever process.
    told: Option<Promise>,
}

/// What a Redis promises, as far as whoever runs it is told.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Promise {
    reach: Reach,
    /// It writes an append-only file at all.
    keeps: bool,
}

/// What a Redis said when it was looked at, from which nothing has been concluded yet.
pub(super) struct Survey {
    facts: Facts,
    /// What was observed before.
    before: State,
    /// Its append-only file holds everything.
    complete: bool,
    /// Its WAITAOF was found to be true, or not.
    believed: Option<bool>,
}

/// What a batch waits for once it is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Wait {
    disk: bool,
    replica: bool,
}

// === impl Observed ===

impl Observed {
    /// Of a Redis that nobody has looked at: it promises nothing.
    pub(super) fn new(published: watch::Sender<Condition>) -> Observed {
        let state = State::unknown();
        let asked_for_replica = AtomicBool::new(false);
        Observed { state: Mutex::new(state), changed: Notify::new(), asked_for_replica, published }
    }

    /// A connection was made to the Redis with this INFO. One that was not looked at promises nothing until
    /// it is.
    pub(super) fn meet(&self, info: &str) {
        let (mut state, run) = (self.state(), field(info, "run_id").unwrap_or_default());
        if state.met != run {
            *state = State { met: run.to_owned(), told: state.told, ..State::unknown() };
            self.published.send_modify(|condition| condition.reach = None);
            self.changed.notify_one();
        }
    }

    /// Waits until there is something new to look at.
    pub(super) async fn changed(&self) {
        self.changed.notified().await;
    }

    /// What a write reaches.
    pub(super) fn reach(&self) -> Reach {
        self.state().reach
    }

    /// What there is to wait for when so much is asked; none where every write reaches it, or where it
    /// cannot be reached.
    pub(super) fn wait_for(&self, asked: Durability) -> Option<Wait> {
        if asked == Durability::Replicated {
            self.asked_for_replica.store(true, Ordering::Relaxed);
        }
        let reach = self.reach();
        let wait = Wait {
            disk: reach.plain < Durability::Fsynced,
            replica: asked == Durability::Replicated,
        };
        (reach.plain < asked && asked <= reach.most).then_some(wait)
    }

    /// What a Redis says of itself by INFO and the settings that could be read.
    pub(super) fn read(&self, info: &str, settings: &[(String, String)]) -> Survey {
        let facts = Facts::read(info, settings);
        let before = self.state().clone();
        let same = before.run == facts.run;
        let complete = facts.aof && (!facts.rewriting || same && before.complete);
        let believed = before.believed.filter(|_| same);
        Survey { facts, before, complete, believed }
    }

    /// Takes over what a survey has shown.
    pub(super) fn learn(&self, shard: &ShardName, survey: Survey) {
        let Survey { facts, before, complete, believed } = survey;
        if self.state().met != facts.run {
            // What was looked at is gone; its successor is next.
            self.changed.notify_one();
            return;
        }
        let reach = facts.reach(complete, believed == Some(true));
        let promise = Promise { reach, keeps: facts.keeps };
        promise.tell(shard, before.told, self.asked_for_replica.load(Ordering::Relaxed));
        let (met, told) = (facts.run.clone(), Some(promise));
        *self.state() = State { reach, run: facts.run, complete, believed, met, told };
        self.published.send_modify(|condition| {
            (condition.reach, condition.is_volatile) = (Some(reach), !facts.keeps);
        });
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

// === impl Promise ===

impl Promise {
    /// Tells the log, unless it was `told` the same. Without a file every job hangs on one process: nobody should
    /// learn that from its end.
    fn tell(self, shard: &ShardName, told: Option<Promise>, asked_for_replica: bool) {
        if told == Some(self) {
            return;
        }
        let (durability, before) = (self.reach, told.map(|told| told.reach.to_string()));
        match told {
            _ if !self.keeps && told.is_none_or(|told| told.keeps) => tracing::warn!(
                %shard, %durability, before,
                "redis writes no append-only file: jobs that it has answered are lost when it dies; set \
                 appendonly to yes, and appendfsync to always for FSYNCED"
            ),
            None => tracing::info!(%shard, %durability, "what a write reaches"),
            Some(told) if self.is_missed(told, asked_for_replica) => {
                tracing::warn!(%shard, %durability, before, "what a write reaches has become less; see its replicas, appendonly, appendfsync and the last sync");
            }
            // The file is all that is new.
            Some(told) if self.reach == told.reach => tracing::info!(
                %shard, %durability,
                "redis writes an append-only file now: once that is whole, jobs outlive its process"
            ),
            Some(_) => {
                tracing::info!(%shard, %durability, before, "what a write reaches has changed")
            }
        }
    }

    /// Whether it is less than before, and not only for want of a replica that nobody asks for: one goes whenever a
    /// machine is retired by way of it.
    fn is_missed(self, before: Promise, asked_for_replica: bool) -> bool {
        let (now, before) = (self.reach, before.reach);
        let is_safe = now.plain == before.plain && now.most >= Durability::Fsynced;
        let is_less = now.plain < before.plain || now.most < before.most;
        is_less && (asked_for_replica || !is_safe)
    }
}

// === impl Survey ===

impl Survey {
    /// Whether what a write reaches hangs on a WAITAOF that was not found to be true.
    pub(super) fn needs_trial(&self) -> bool {
        self.complete && self.facts.needs_waitaof() && self.believed != Some(true)
    }

    /// WAITAOF was tried; whether this is news, and bad ones.
    pub(super) fn tried(&mut self, is_true: bool) -> bool {
        self.believed.replace(is_true).is_none() && !is_true
    }
}

// === impl State ===

impl State {
    /// Of a Redis that nobody has looked at.
    fn unknown() -> State {
        let reach = Reach { plain: Durability::Memory, most: Durability::Memory };
        State {
            reach,
            run: String::new(),
            complete: false,
            believed: None,
            met: String::new(),
            told: None,
        }
    }
}

// === impl Wait ===

impl Wait {
    /// For the disk alone.
    pub(super) const DISK: Wait = Wait { disk: true, replica: false };

    /// Waits for what `connection` has written; what that has reached, none when it is not more than every
    /// write reaches.
    ///
    /// # Errors
    /// The connection is of no use any more.
    pub(super) async fn confirm(
        self,
        connection: &mut Connection,
    ) -> std::result::Result<Option<Durability>, RedisError> {
        self.until(connection, CONFIRM_MAX).await
    }

    /// The same, for as long as `limit`.
    ///
    /// # Errors
    /// The connection is of no use any more.
    pub(super) async fn until(
        self,
        connection: &mut Connection,
        limit: Duration,
    ) -> std::result::Result<Option<Durability>, RedisError> {
        let end = Instant::now() + limit;
        let left = || {
            let left = end.saturating_duration_since(Instant::now()).as_millis();
            // 0 is for ever.
            u64::try_from(left).unwrap_or(u64::MAX).max(1)
        };
        if self.disk {
            let mut wait = redis::cmd("WAITAOF");
            wait.arg(1).arg(0).arg(left());
            let (local, _replicas): (u64, u64) = wait.query_async(connection).await?;
            if local == 0 {
                return Ok(None);
            }
        }
        let disk = self.disk.then_some(Durability::Fsynced);
        if !self.replica {
            return Ok(disk);
        }
        let replicas: u64 = redis::cmd("WAIT").arg(1).arg(left()).query_async(connection).await?;
        Ok(if replicas == 0 { disk } else { Some(Durability::Replicated) })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_replica_that_leaves_is_missed_by_those_who_ask_for_it() {
        use Durability::{Fsynced, Memory, Replicated};
        let promise = |plain, most| Promise { reach: Reach { plain, most }, keeps: true };
        let full = promise(Fsynced, Replicated);
        for (now, unasked, asked) in [
            (full, false, false),
            (promise(Fsynced, Fsynced), false, true),
            (promise(Memory, Replicated), true, true),
            (promise(Memory, Memory), true, true),
        ] {
            assert_eq!(now.is_missed(full, false), unasked, "{now:?}");
            assert_eq!(now.is_missed(full, true), asked, "{now:?}");
        }
        let confirmed = promise(Memory, Replicated);
        assert!(!promise(Memory, Fsynced).is_missed(confirmed, false));
        assert!(
            promise(Memory, Memory).is_missed(confirmed, false),
            "no sync is confirmed any more"
        );
    }

    #[test]
    fn what_is_waited_for_is_what_settings_do_not_promise() {
        let waits = |plain, most, asked| {
            let observed = Observed::new(watch::Sender::new(Condition::default()));
            observed.state().reach = Reach { plain, most };
            observed.wait_for(asked).map(|wait| (wait.disk, wait.replica))
        };
        use Durability::{Fsynced, Memory, Replicated};
        assert_eq!(waits(Fsynced, Replicated, Fsynced), None);
        assert_eq!(waits(Fsynced, Replicated, Replicated), Some((false, true)));
        assert_eq!(waits(Memory, Replicated, Memory), None);
        assert_eq!(waits(Memory, Replicated, Fsynced), Some((true, false)));
        assert_eq!(waits(Memory, Replicated, Replicated), Some((true, true)));
        assert_eq!(waits(Memory, Fsynced, Replicated), None, "it cannot be had");
    }
}
