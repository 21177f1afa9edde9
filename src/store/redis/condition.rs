//! What is known of one Redis without asking it: whether it can be used, whether it throws jobs away, and what its writes
//! reach. Changes are published to the health of the shard, which logs them.

use std::sync::{Mutex, MutexGuard, PoisonError};

use tokio::sync::{Notify, watch};

use crate::domain::{Durability, ShardName};
use crate::store::{self, Error, Reach, Trouble};

use super::OpenError;
use super::check::field;
use super::facts::Facts;
use super::wait::Wait;

/// Collects what connections and looks find.
pub(super) struct Condition {
    state: Mutex<State>,
    published: watch::Sender<store::Condition>,
    /// Another process has taken the place of the one that was looked at.
    replaced: Notify,
}

#[derive(Default)]
struct State {
    /// Whether it was the right one and a safe one at least once.
    is_known: bool,
    /// Why it was not reached yet, or must not be used. A Redis that was in use and is lost is noticed by the calls that
    /// fail.
    trouble: Option<Trouble>,
    /// The policy by which it throws jobs away.
    evicts: Option<String>,
    /// The process to which the last connection was made.
    process: String,
    /// What was found at the last look at it.
    look: Option<Look>,
}

struct Look {
    facts: Facts,
    /// Its append-only file holds everything.
    is_complete: bool,
}

// === impl Condition ===

impl Condition {
    /// Of a Redis that was not reached yet: it promises nothing.
    pub(super) fn new() -> Condition {
        let trouble = Some(Trouble::Unreached("it was not connected to yet".to_owned()));
        let condition = Condition {
            state: Mutex::new(State { trouble, ..State::default() }),
            published: watch::Sender::default(),
            replaced: Notify::new(),
        };
        condition.change(|_| {});
        condition
    }

    pub(super) fn subscribe(&self) -> watch::Receiver<store::Condition> {
        self.published.subscribe()
    }

    /// Whether it was the right one and a safe one at least once.
    pub(super) fn is_known(&self) -> bool {
        self.state().is_known
    }

    /// A new connection leads to the right Redis, which answers INFO so. A process that was not looked at promises
    /// nothing until it is.
    pub(super) fn connected(&self, info: &str) {
        let process = field(info, "run_id").unwrap_or_default();
        let is_new = self.state().process != process;
        self.change(|state| {
            (state.is_known, state.trouble) = (true, None);
            if is_new {
                (state.process, state.look) = (process.to_owned(), None);
            }
        });
        if is_new {
            self.replaced.notify_one();
        }
    }

    /// No connection could be made, or it led to a Redis that cannot be used. What was found wrong with it stands until
    /// a connection shows otherwise.
    pub(super) fn failed(&self, error: &OpenError) {
        self.change(|state| {
            if error.is_certain() {
                state.trouble = Some(Trouble::Unusable(error.to_string()));
            } else if !state.is_known {
                state.trouble = Some(Trouble::Unreached(error.to_string()));
            }
        });
    }

    /// The policy by which it throws jobs away when it is full: it gets no new ones then.
    pub(super) fn evicts(&self, policy: Option<String>) {
        self.change(|state| state.evicts = policy);
    }

    /// Refuses new jobs while they would not be safe.
    pub(super) fn admit_jobs(&self) -> Result<(), Error> {
        let policy = self.state().evicts.clone();
        policy
            .map_or(Ok(()), |policy| Err(Error::Unavailable(OpenError::Evicts(policy).to_string())))
    }

    /// Waits until another process has taken the place of the one that was looked at.
    pub(super) async fn replaced(&self) {
        self.replaced.notified().await;
    }

    /// What a write reaches.
    pub(super) fn reach(&self) -> Reach {
        self.state().reach().unwrap_or(Reach::MEMORY)
    }

    /// What there is to wait for when so much is asked; nothing where every write reaches it, or where it cannot be
    /// reached.
    pub(super) fn wait_for(&self, asked: Durability) -> Option<Wait> {
        let reach = self.reach();
        let wait = Wait {
            disk: reach.plain < Durability::Fsynced,
            replica: asked == Durability::Replicated,
        };
        (reach.plain < asked && asked <= reach.most).then_some(wait)
    }

    /// A look found this; `shard`: for the log.
    pub(super) fn learn(&self, shard: &ShardName, facts: Facts) {
        if self.state().process != facts.process {
            // The process that was looked at is gone; its successor is next.
            self.replaced.notify_one();
            return;
        }
        self.change(|state| {
            let before = state.look.take();
            if before.is_none() && facts.confirms_too_early() {
                tracing::warn!(
                    %shard,
                    "this version of redis confirms writes before they are synced (WAITAOF), so they count as held \
                     in memory; set appendfsync to always, or use Redis 7.4.3 or newer"
                );
            }
            let was_complete = before.is_some_and(|look| look.is_complete);
            let is_complete = facts.aof && (!facts.rewriting || was_complete);
            state.look = Some(Look { facts, is_complete });
        });
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Changes what is known, and publishes that if it is new.
    fn change(&self, change: impl FnOnce(&mut State)) {
        let mut state = self.state();
        change(&mut state);
        let condition = state.condition();
        self.published.send_if_modified(|published| {
            let is_new = *published != condition;
            *published = condition;
            is_new
        });
    }
}

// === impl State ===

impl State {
    fn reach(&self) -> Option<Reach> {
        self.look.as_ref().map(|look| look.facts.reach(look.is_complete))
    }

    fn condition(&self) -> store::Condition {
        let evicts = || self.evicts.clone().map(|policy| OpenError::Evicts(policy).to_string());
        store::Condition {
            trouble: self.trouble.clone().or_else(|| evicts().map(Trouble::NoJobs)),
            reach: self.reach(),
            is_volatile: self.look.as_ref().is_some_and(|look| !look.facts.keeps),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn trouble_is_what_keeps_it_from_use_now() {
        let condition = Condition::new();
        let trouble = || condition.subscribe().borrow().trouble.clone();
        let unreachable = |text: &str| OpenError::Unreachable(text.into());
        assert!(matches!(trouble(), Some(Trouble::Unreached(_))), "not connected to");
        condition.failed(&unreachable("refused"));
        assert!(matches!(trouble(), Some(Trouble::Unreached(text)) if text.contains("refused")));
        condition.connected("run_id:a");
        assert!(trouble().is_none() && condition.is_known());
        condition.failed(&unreachable("lost"));
        assert_eq!(trouble(), None, "calls notice it");
        condition.failed(&OpenError::Replica);
        condition.failed(&unreachable("lost"));
        assert!(matches!(trouble(), Some(Trouble::Unusable(text)) if text.contains("replica")));
        condition.connected("run_id:a");
        condition.evicts(Some("allkeys-lru".into()));
        let refused = condition.admit_jobs().unwrap_err().to_string();
        assert!(refused.contains("set maxmemory-policy to noeviction"), "{refused}");
        assert!(matches!(trouble(), Some(Trouble::NoJobs(_))));
        condition.evicts(None);
        assert!(trouble().is_none() && condition.admit_jobs().is_ok());
    }

    #[test]
    fn a_process_promises_nothing_until_it_is_looked_at() {
        let info = |process: &str, rewrite: u8| {
            format!(
                "redis_version:7.4.3\r\nrun_id:{process}\r\nloading:0\r\naof_enabled:1\r\n\
                 aof_rewrite_in_progress:{rewrite}\r\naof_rewrite_scheduled:0\r\n\
                 aof_last_bgrewrite_status:ok\r\naof_last_write_status:ok\r\n"
            )
        };
        let condition = Condition::new();
        let shard = ShardName::try_new("s0").unwrap();
        let always = [("appendfsync", "always"), ("no-appendfsync-on-rewrite", "no")];
        let always = always.map(|(name, value)| (name.to_owned(), value.to_owned()));
        let look = |process, rewrite| {
            condition.learn(&shard, Facts::read(&info(process, rewrite), &always));
            condition.reach().plain
        };
        assert_eq!(condition.reach(), Reach::MEMORY);
        condition.connected(&info("a", 0));
        assert_eq!(look("b", 0), Durability::Memory, "another one");
        assert_eq!(look("a", 1), Durability::Memory, "its first file is not whole");
        assert_eq!(look("a", 0), Durability::Fsynced);
        assert_eq!(look("a", 1), Durability::Fsynced, "it was whole before");
        condition.connected(&info("b", 0));
        assert_eq!(condition.subscribe().borrow().reach, None);
        assert_eq!(look("b", 1), Durability::Memory);
    }

    #[test]
    fn what_is_waited_for_is_what_settings_do_not_promise() {
        let waits = |facts: Facts, asked| {
            let condition = Condition::new();
            condition.change(|state| state.look = Some(Look { facts, is_complete: true }));
            condition.wait_for(asked).map(|wait| (wait.disk, wait.replica))
        };
        use Durability::{Fsynced, Memory, Replicated};
        let facts = |policy, replicated| Facts::example(policy, replicated);
        assert_eq!(waits(facts("always", true), Fsynced), None);
        assert_eq!(waits(facts("always", true), Replicated), Some((false, true)));
        assert_eq!(waits(facts("everysec", true), Memory), None);
        assert_eq!(waits(facts("everysec", true), Fsynced), Some((true, false)));
        assert_eq!(waits(facts("everysec", true), Replicated), Some((true, true)));
        assert_eq!(waits(facts("everysec", false), Replicated), None, "it cannot be had");
    }
}
