//! What a write reaches: read from what the Redis says of itself, and confirmed by it where its settings
//! promise less.
//!
//! - `appendfsync always` syncs before it answers: FSYNCED, and nothing has to be asked.
//! - `everysec` answers first. WAITAOF (since Redis 7.2) waits for the sync, if it is to be believed: Redis
//!   before 7.4.3, and Valkey 9.1 still, confirm what is not synced yet. So it is tried before it is used.
//! - A replica confirms what it has received to WAIT, which all versions know.
//!
//! Both wait for what their own connection has written before, so a batch and its waiting go down one
//! connection, which nobody else uses meanwhile: it is blocked.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use deadpool_redis::redis::{self, RedisError};
use tokio::sync::Notify;
use tokio::time::Instant;

use crate::domain::limit::CONFIRM_MAX;
use crate::domain::{Durability, ShardName};
use crate::store::Reach;

use super::check::{field, version};
use super::link::Connection;

/// The first version with WAITAOF.
const WAITAOF_SINCE: (u32, u32) = (7, 2);
/// A replica that was not heard of for longer does not count.
const LAG_MAX: u64 = 10;

/// What was observed last.
pub(super) struct Observed {
    state: Mutex<State>,
    /// Another process has taken the place of the one that was looked at.
    changed: Notify,
    /// Somebody has asked for a replica.
    asked_for_replica: AtomicBool,
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

/// How a Redis syncs its append-only file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Policy {
    Always,
    /// Every second; or it is not known.
    Sometimes,
    Never,
}

/// What a Redis says of itself.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Facts {
    run: String,
    /// There is to be an append-only file.
    keeps: bool,
    /// There is one, and it can be written.
    aof: bool,
    /// It is being written anew, or that has failed: the first time it is not whole before.
    rewriting: bool,
    policy: Policy,
    has_waitaof: bool,
    /// A replica is connected and up to date.
    replicated: bool,
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
    pub(super) fn new() -> Observed {
        let state = State::unknown();
        let asked_for_replica = AtomicBool::new(false);
        Observed { state: Mutex::new(state), changed: Notify::new(), asked_for_replica }
    }

    /// A connection was made to the Redis with this INFO. One that was not looked at promises nothing until
    /// it is.
    pub(super) fn meet(&self, info: &str) {
        let (mut state, run) = (self.state(), field(info, "run_id").unwrap_or_default());
        if state.met != run {
            *state = State { met: run.to_owned(), told: state.told, ..State::unknown() };
            self.changed.notify_one();
        }
    }

    /// Waits until there is something new to look at.
    pub(super) async fn changed(&self) {
        self.changed.notified().await;
    }

    /// Whether the Redis was looked at.
    pub(super) fn is_known(&self) -> bool {
        !self.state().run.is_empty()
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

// === impl Facts ===

impl Facts {
    /// From INFO and the settings, as far as they can be read.
    fn read(info: &str, settings: &[(String, String)]) -> Facts {
        let is = |name: &str, value: &str| field(info, name) == Some(value);
        let setting =
            |name: &str| settings.iter().find(|(n, _)| n == name).map(|(_, v)| v.as_str());
        let policy = match (setting("appendfsync"), setting("no-appendfsync-on-rewrite")) {
            (Some("always"), Some("no")) => Policy::Always,
            (Some("no"), _) => Policy::Never,
            _ => Policy::Sometimes,
        };
        Facts {
            run: field(info, "run_id").unwrap_or_default().to_owned(),
            keeps: is("aof_enabled", "1"),
            aof: is("aof_enabled", "1") && is("aof_last_write_status", "ok") && is("loading", "0"),
            rewriting: !is("aof_rewrite_in_progress", "0")
                || !is("aof_rewrite_scheduled", "0")
                || !is("aof_last_bgrewrite_status", "ok"),
            policy,
            has_waitaof: version(info) >= WAITAOF_SINCE,
            replicated: (0..).map_while(|n| field(info, &format!("slave{n}"))).any(is_up_to_date),
        }
    }

    /// Whether a write is only known to be on disk when WAITAOF says so.
    fn needs_waitaof(&self) -> bool {
        self.policy == Policy::Sometimes && self.has_waitaof
    }

    fn reach(&self, complete: bool, believed: bool) -> Reach {
        let always = complete && self.policy == Policy::Always;
        let confirmed = complete && self.needs_waitaof() && believed;
        let plain = if always { Durability::Fsynced } else { Durability::Memory };
        let most = match always || confirmed {
            true if self.replicated => Durability::Replicated,
            true => Durability::Fsynced,
            false => Durability::Memory,
        };
        Reach { plain, most }
    }
}

/// Whether a replica follows: `ip=…,port=…,state=online,offset=…,lag=…`.
fn is_up_to_date(replica: &str) -> bool {
    let part =
        |name: &str| replica.split(',').find_map(|part| part.strip_prefix(name)?.strip_prefix('='));
    let lag = part("lag").and_then(|lag| lag.parse::<u64>().ok());
    part("state") == Some("online") && lag.is_some_and(|lag| lag <= LAG_MAX)
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

    const INFO: &str = "redis_version:7.4.3\r\nrun_id:a\r\nloading:0\r\naof_enabled:1\r\n\
        aof_rewrite_in_progress:0\r\naof_rewrite_scheduled:0\r\naof_last_bgrewrite_status:ok\r\n\
        aof_last_write_status:ok\r\n\
        slave0:ip=127.0.0.1,port=1,state=online,offset=14,lag=0\r\n";

    /// What a write reaches where WAITAOF is true: `plain` and `most`, by their first letters.
    fn reach(info: &str, settings: &[(&str, &str)]) -> String {
        let settings: Vec<_> =
            settings.iter().map(|&(n, v)| (n.to_owned(), v.to_owned())).collect();
        let facts = Facts::read(info, &settings);
        let Reach { plain, most } = facts.reach(facts.aof && !facts.rewriting, true);
        format!("{:.1}{:.1}", format!("{plain:?}"), format!("{most:?}"))
    }

    fn synced<'a>(policy: &'a str, on_rewrite: &'a str) -> [(&'a str, &'a str); 2] {
        [("appendfsync", policy), ("no-appendfsync-on-rewrite", on_rewrite)]
    }

    #[test]
    fn what_settings_promise_and_what_can_be_asked_for() {
        assert_eq!(reach(INFO, &synced("always", "no")), "FR");
        assert_eq!(reach(INFO, &synced("everysec", "no")), "MR");
        assert_eq!(reach(INFO, &synced("always", "yes")), "MR", "not while it is rewritten");
        assert_eq!(reach(INFO, &synced("no", "no")), "MM", "nobody syncs");
        assert_eq!(reach(INFO, &[]), "MR", "what cannot be read has to be confirmed");
        let old = INFO.replace("7.4.3", "7.0.15");
        assert_eq!(reach(&old, &synced("always", "no")), "FR");
        assert_eq!(reach(&old, &synced("everysec", "no")), "MM");
        assert_eq!(reach(&old, &[]), "MM");
    }

    #[test]
    fn a_file_that_is_not_whole_or_not_written_is_none() {
        for (good, bad) in [
            ("aof_enabled:1", "aof_enabled:0"),
            ("loading:0", "loading:1"),
            ("aof_rewrite_in_progress:0", "aof_rewrite_in_progress:1"),
            ("aof_rewrite_scheduled:0", "aof_rewrite_scheduled:1"),
            ("aof_last_bgrewrite_status:ok", "aof_last_bgrewrite_status:err"),
            ("aof_last_write_status:ok", "aof_last_write_status:err"),
            ("aof_enabled:1\r\n", ""),
        ] {
            let info = INFO.replace(good, bad);
            assert_eq!(reach(&info, &synced("always", "no")), "MM", "{bad}");
        }
    }

    #[test]
    fn only_replicas_that_follow_count() {
        for gone in ["state=wait_bgsave", "state=online,offset=14,lag=11", "state=online"] {
            let info = INFO.replace("state=online,offset=14,lag=0", gone);
            assert_eq!(reach(&info, &synced("always", "no")), "FF", "{gone}");
        }
        let two = INFO.replace("slave0:", "slave0:ip=127.0.0.1,port=2,state=send_bulk\r\nslave1:");
        assert_eq!(reach(&two, &synced("always", "no")), "FR");
    }

    #[test]
    fn a_confirmation_that_is_not_true_is_worth_nothing() {
        let settings = synced("everysec", "no").map(|(n, v)| (n.to_owned(), v.to_owned()));
        let facts = Facts::read(INFO, &settings);
        assert_eq!(facts.reach(true, false).most, Durability::Memory);
        let settings = synced("always", "no").map(|(n, v)| (n.to_owned(), v.to_owned()));
        let facts = Facts::read(INFO, &settings);
        assert_eq!(facts.reach(true, false).most, Durability::Replicated, "it is not needed");
    }

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
            let observed = Observed::new();
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
