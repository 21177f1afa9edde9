//! Known state of one Redis without a request to it: whether it can be used, whether it evicts jobs, and the
//! durability of its writes. Changes are published to the health of the shard, which logs them.

use parking_lot::Mutex;
use tokio::sync::{Notify, watch};

use crate::domain::{Durability, ShardName};
use crate::store::{self, Error, ShardProblem, WriteDurability};

use super::RedisOpenError;
use super::check::field;
use super::durability_info::RedisDurabilityInfo;
use super::durability_wait::DurabilityWait;

/// Collects the results of connections and checks.
pub(super) struct RedisStatus {
    state: Mutex<RedisStatusState>,
    published: watch::Sender<store::ShardStatus>,
    /// Notified when another process has replaced the one that was checked.
    process_replaced: Notify,
}

#[derive(Default)]
struct RedisStatusState {
    /// The shard was checked successfully at least once.
    is_known: bool,
    /// Reason why it was not reached yet, or must not be used. A Redis that was in use and is lost is noticed by
    /// failing calls.
    problem: Option<ShardProblem>,
    /// Eviction policy, if it evicts jobs.
    eviction_policy: Option<String>,
    /// Process to which the last connection was made.
    process: String,
    /// Result of the last check of it.
    observation: Option<StatusObservation>,
}

struct StatusObservation {
    facts: RedisDurabilityInfo,
    /// Its append-only file is complete.
    is_complete: bool,
}

// === impl RedisStatus ===

impl RedisStatus {
    /// Returns the status of a Redis that was not reached yet: it has no durability.
    pub(super) fn new() -> RedisStatus {
        let trouble = Some(ShardProblem::NeverConnected("no connection was made yet".to_owned()));
        let condition = RedisStatus {
            state: Mutex::new(RedisStatusState { problem: trouble, ..RedisStatusState::default() }),
            published: watch::Sender::default(),
            process_replaced: Notify::new(),
        };
        condition.update(|_| {});
        condition
    }

    pub(super) fn subscribe(&self) -> watch::Receiver<store::ShardStatus> {
        self.published.subscribe()
    }

    /// Returns whether the shard was checked successfully at least once.
    pub(super) fn is_known(&self) -> bool {
        self.state.lock().is_known
    }

    /// Records that a new connection leads to the right Redis, and its INFO. A process that was not checked has no
    /// durability until it is.
    pub(super) fn connected(&self, info: &str) {
        let process = field(info, "run_id").unwrap_or_default();
        let is_new = self.state.lock().process != process;
        self.update(|state| {
            (state.is_known, state.problem) = (true, None);
            if is_new {
                (state.process, state.observation) = (process.to_owned(), None);
            }
        });
        if is_new {
            self.process_replaced.notify_one();
        }
    }

    /// Records that no connection could be made, or that it led to a Redis that cannot be used. A problem that was
    /// found stands until a connection succeeds.
    pub(super) fn failed(&self, error: &RedisOpenError) {
        self.update(|state| {
            if error.is_permanent() {
                state.problem = Some(ShardProblem::Misconfigured(error.to_string()));
            } else if !state.is_known {
                state.problem = Some(ShardProblem::NeverConnected(error.to_string()));
            }
        });
    }

    /// Sets the eviction policy with which a full Redis evicts jobs: the shard takes no new jobs then.
    pub(super) fn set_eviction_policy(&self, policy: Option<String>) {
        self.update(|state| state.eviction_policy = policy);
    }

    /// Rejects new jobs while they would not be safe.
    pub(super) fn admit_jobs(&self) -> Result<(), Error> {
        let policy = self.state.lock().eviction_policy.clone();
        policy.map_or(Ok(()), |policy| {
            Err(Error::Unavailable(RedisOpenError::EvictionPolicy(policy).to_string()))
        })
    }

    /// Waits until another process has replaced the one that was checked.
    pub(super) async fn wait_for_replacement(&self) {
        self.process_replaced.notified().await;
    }

    /// Returns the durability of a write.
    pub(super) fn write_durability(&self) -> WriteDurability {
        self.state.lock().reach().unwrap_or(WriteDurability::MEMORY)
    }

    /// Returns the wait for the requested durability; `None` if every write has it, or if it cannot be reached.
    pub(super) fn wait_for(&self, asked: Durability) -> Option<DurabilityWait> {
        let reach = self.write_durability();
        let wait = DurabilityWait {
            disk: reach.by_default < Durability::Fsynced,
            replica: asked == Durability::Replicated,
        };
        (reach.by_default < asked && asked <= reach.max).then_some(wait)
    }

    /// Records the result of a check; `shard`: for the log.
    pub(super) fn set_observation(&self, shard: &ShardName, facts: RedisDurabilityInfo) {
        self.update(|state| {
            if state.process != facts.process {
                // The process that was checked is gone; its successor is checked next.
                self.process_replaced.notify_one();
                return;
            }
            let before = state.observation.take();
            if before.is_none() && facts.confirms_too_early() {
                tracing::warn!(
                    %shard,
                    "this version of redis confirms writes before they are synced (WAITAOF), so they count as held \
                     in memory; set appendfsync to always, or use Redis 7.4.3 or newer"
                );
            }
            let was_complete = before.is_some_and(|look| look.is_complete);
            let is_complete = facts.aof_writable && (!facts.aof_rewriting || was_complete);
            state.observation = Some(StatusObservation { facts, is_complete });
        });
    }

    /// Changes the state, and publishes it if it is new.
    fn update(&self, change: impl FnOnce(&mut RedisStatusState)) {
        let mut state = self.state.lock();
        change(&mut state);
        let condition = state.condition();
        self.published.send_if_modified(|published| {
            let is_new = *published != condition;
            *published = condition;
            is_new
        });
    }
}

// === impl RedisStatusState ===

impl RedisStatusState {
    fn reach(&self) -> Option<WriteDurability> {
        self.observation.as_ref().map(|look| look.facts.write_durability(look.is_complete))
    }

    fn condition(&self) -> store::ShardStatus {
        let evicts = || {
            self.eviction_policy
                .clone()
                .map(|policy| RedisOpenError::EvictionPolicy(policy).to_string())
        };
        store::ShardStatus {
            problem: self.problem.clone().or_else(|| evicts().map(ShardProblem::RejectsEnqueues)),
            write_durability: self.reach(),
            is_volatile: self.observation.as_ref().is_some_and(|look| !look.facts.aof_configured),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn problem_is_the_current_one() {
        let condition = RedisStatus::new();
        let trouble = || condition.subscribe().borrow().problem.clone();
        let unreachable = |text: &str| RedisOpenError::Unreachable(text.into());
        assert!(matches!(trouble(), Some(ShardProblem::NeverConnected(_))), "not connected to");
        condition.failed(&unreachable("refused"));
        assert!(
            matches!(trouble(), Some(ShardProblem::NeverConnected(text)) if text.contains("refused"))
        );
        condition.connected("run_id:a");
        assert!(trouble().is_none() && condition.is_known());
        condition.failed(&unreachable("lost"));
        assert_eq!(trouble(), None, "calls notice it");
        condition.failed(&RedisOpenError::Replica);
        condition.failed(&unreachable("lost"));
        assert!(
            matches!(trouble(), Some(ShardProblem::Misconfigured(text)) if text.contains("replica"))
        );
        condition.connected("run_id:a");
        condition.set_eviction_policy(Some("allkeys-lru".into()));
        let refused = condition.admit_jobs().unwrap_err().to_string();
        assert!(refused.contains("set maxmemory-policy to noeviction"), "{refused}");
        assert!(matches!(trouble(), Some(ShardProblem::RejectsEnqueues(_))));
        condition.set_eviction_policy(None);
        assert!(trouble().is_none() && condition.admit_jobs().is_ok());
    }

    #[test]
    fn process_has_no_durability_before_observation() {
        let info = |process: &str, rewrite: u8| {
            format!(
                "redis_version:7.4.3\r\nrun_id:{process}\r\nloading:0\r\naof_enabled:1\r\n\
                 aof_rewrite_in_progress:{rewrite}\r\naof_rewrite_scheduled:0\r\n\
                 aof_last_bgrewrite_status:ok\r\naof_last_write_status:ok\r\n"
            )
        };
        let condition = RedisStatus::new();
        let shard = ShardName::try_new("s0").unwrap();
        let always = [("appendfsync", "always"), ("no-appendfsync-on-rewrite", "no")];
        let always = always.map(|(name, value)| (name.to_owned(), value.to_owned()));
        let look = |process, rewrite| {
            condition.set_observation(
                &shard,
                RedisDurabilityInfo::read(&info(process, rewrite), &always),
            );
            condition.write_durability().by_default
        };
        assert_eq!(condition.write_durability(), WriteDurability::MEMORY);
        condition.connected(&info("a", 0));
        assert_eq!(look("b", 0), Durability::Memory, "another one");
        assert_eq!(look("a", 1), Durability::Memory, "its first file is not whole");
        assert_eq!(look("a", 0), Durability::Fsynced);
        assert_eq!(look("a", 1), Durability::Fsynced, "it was whole before");
        condition.connected(&info("b", 0));
        assert_eq!(condition.subscribe().borrow().write_durability, None);
        assert_eq!(look("b", 1), Durability::Memory);
    }

    #[test]
    fn waits_only_for_what_settings_lack() {
        let waits = |facts: RedisDurabilityInfo, asked| {
            let condition = RedisStatus::new();
            condition.update(|state| {
                state.observation = Some(StatusObservation { facts, is_complete: true })
            });
            condition.wait_for(asked).map(|wait| (wait.disk, wait.replica))
        };
        use Durability::{Fsynced, Memory, Replicated};
        let facts = |policy, replicated| RedisDurabilityInfo::example(policy, replicated);
        assert_eq!(waits(facts("always", true), Fsynced), None);
        assert_eq!(waits(facts("always", true), Replicated), Some((false, true)));
        assert_eq!(waits(facts("everysec", true), Memory), None);
        assert_eq!(waits(facts("everysec", true), Fsynced), Some((true, false)));
        assert_eq!(waits(facts("everysec", true), Replicated), Some((true, true)));
        assert_eq!(waits(facts("everysec", false), Replicated), None, "it cannot be reached");
    }
}
