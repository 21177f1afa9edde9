//! Changes of policies. A change is decided on the home shard of its name, the owner of the name on the ring, where two
//! changes at once meet; then it is written to all other shards that answer. The others get it when they answer again.

use std::sync::Arc;

use bytes::Bytes;
use futures::future::join_all;
use tokio::time::Instant;

use crate::domain::{
    JobId, JobKey, PolicyEffect, Time, TopicName, TopicPattern, TopicPolicy, limit,
};
use crate::shards::{Op, Shard, ShardError};
use crate::store::{self, PolicyWrite};

use super::copies::WRITE_MAX;
use super::{Policies, PolicyView};

/// Part of the key by which the home shard of a name is found on the ring. It never changes: two versions of the server
/// must find the same shard.
const HOME_ID: &str = "policy";
/// Number of times that a change is decided: other changes of the same policy may come first each time.
const DECISIONS_MAX: usize = 8;

/// Reason why a policy was not changed.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum PolicyChangeError<E> {
    /// The change is not allowed now.
    #[error("{0}")]
    Refused(E),
    /// No more topics can have settings: of the namespace, or of any where that is `None`.
    #[error("no more topics can have settings")]
    NoRoom(Option<String>),
    /// No shard takes new jobs, so no shard is the home of the name.
    #[error("no shard is active")]
    NoActiveShard,
    /// Error of the home shard.
    #[error(transparent)]
    Shard(#[from] ShardError),
}

/// Number of topics and patterns that can have settings.
#[derive(Clone, Debug)]
pub struct SettingsRoom {
    /// In all.
    pub max: usize,
    /// Number of topics with each of these prefixes to which calls may give settings.
    pub namespaces: Vec<(String, u64)>,
}

/// A policy after its change.
#[derive(Clone, Debug)]
pub struct ChangedPolicy {
    /// The policy.
    pub policy: Arc<TopicPolicy>,
    /// Shards that have not taken the change yet.
    pub missing: Vec<String>,
}

/// Place of a policy that gets settings, until it is known.
struct SettingsPlace<'p> {
    policies: &'p Policies,
    name: &'p TopicPattern,
}

// === impl SettingsRoom ===

impl Default for SettingsRoom {
    fn default() -> SettingsRoom {
        SettingsRoom { max: limit::POLICIES_MAX, namespaces: Vec::new() }
    }
}

// === impl SettingsPlace ===

impl Drop for SettingsPlace<'_> {
    fn drop(&mut self) {
        let reserved = &mut self.policies.ledger().reserved;
        let place = reserved.iter().position(|name| name == self.name);
        place.map(|place| reserved.swap_remove(place));
    }
}

// === impl Policies ===

impl Policies {
    /// Changes the policy of a name: `decide` returns the new one from what is known, or why there is none. It may be called
    /// several times. The version and the times are set here. `room`: for how many policies with settings there is room;
    /// `None`: for any number. Nothing is written after `until`.
    ///
    /// # Errors
    /// [`PolicyChangeError`]; then nothing was changed, unless the outcome is unknown.
    pub async fn change<E>(
        &self,
        name: &TopicPattern,
        room: Option<&SettingsRoom>,
        until: Option<Instant>,
        decide: impl Fn(&PolicyView, Time) -> Result<TopicPolicy, E>,
    ) -> Result<ChangedPolicy, PolicyChangeError<E>> {
        let home = self.home(name).ok_or(PolicyChangeError::NoActiveShard)?;
        for _ in 0..DECISIONS_MAX {
            // Held until the write: what is read meanwhile would raise the expected version, but not what was decided.
            let gate = self.inner.gates[home.index()].lock().await;
            // Reads the last version from the home, and writes it there if another shard has it.
            self.exchange_alone(home).await?;
            let (now, view) = (self.inner.clock.now(), self.view());
            let policy = decide(&view, now).map_err(PolicyChangeError::Refused)?;
            let has_settings = |policy: &TopicPolicy| policy.has_settings();
            let is_new =
                has_settings(&policy) && !view.policy(name).is_some_and(|p| has_settings(p));
            let place = match room.filter(|_| is_new) {
                Some(room) => Some(self.take_place(name, room)?),
                None => None,
            };
            let written = self.write_home(home, vec![policy], until).await?;
            drop(place);
            if let Some(policy) = written.into_iter().next() {
                drop(gate);
                let missing = self.write_others(home).await;
                return Ok(ChangedPolicy { policy, missing });
            }
        }
        Err(ShardError::new(home.name(), contention()).into())
    }

    /// Changes the policies of names by batches, of the shards side by side. `decide` returns the new policy of a name, if
    /// it changes. Returns the number of those that changed.
    ///
    /// # Errors
    /// [`PolicyChangeError`]; then some may be changed.
    pub(super) async fn change_all<E>(
        &self,
        names: Vec<TopicPattern>,
        decide: impl Fn(&TopicPattern, &PolicyView, Time) -> Result<Option<TopicPolicy>, E>,
    ) -> Result<usize, PolicyChangeError<E>> {
        let mut by_home: Vec<Vec<TopicPattern>> = vec![Vec::new(); self.inner.shards.all().len()];
        for name in names {
            let home = self.home(&name).ok_or(PolicyChangeError::NoActiveShard)?;
            by_home[home.index()].push(name);
        }
        let homes = self.inner.shards.all().iter().zip(by_home);
        let changed = homes.map(|(home, names)| self.change_at(home, names, &decide));
        let changed: Vec<_> = join_all(changed).await;
        let changed: usize = changed.into_iter().sum::<Result<usize, _>>()?;
        join_all(self.inner.shards.all().iter().map(|shard| self.exchange(shard))).await;
        Ok(changed)
    }

    async fn change_at<E>(
        &self,
        home: &Shard,
        names: Vec<TopicPattern>,
        decide: &impl Fn(&TopicPattern, &PolicyView, Time) -> Result<Option<TopicPolicy>, E>,
    ) -> Result<usize, PolicyChangeError<E>> {
        let (mut changed, mut refused, mut names) = (0, 0, names.into_iter().peekable());
        while names.peek().is_some() {
            let _gate = self.inner.gates[home.index()].lock().await;
            self.exchange_alone(home).await?;
            let (now, view) = (self.inner.clock.now(), self.view());
            let (mut policies, mut tried) = (Vec::new(), Vec::new());
            while policies.len() < WRITE_MAX {
                let Some(name) = names.next() else { break };
                policies.extend(decide(&name, &view, now).map_err(PolicyChangeError::Refused)?);
                tried.push(name);
            }
            let count = policies.len();
            let written = self.write_home(home, policies, None).await?.len();
            changed += written;
            if written < count {
                // Another server was faster, most likely with the same.
                refused += 1;
                if refused > DECISIONS_MAX {
                    return Err(ShardError::new(home.name(), contention()).into());
                }
                names = tried.into_iter().chain(names).collect::<Vec<_>>().into_iter().peekable();
            }
        }
        Ok(changed)
    }

    /// Forgets a topic without a policy: what a deletion does to it on each shard. If it gets a policy meanwhile, it is there
    /// anew.
    ///
    /// # Errors
    /// Error of the first shard that has not forgotten it.
    pub async fn forget_topic(
        &self,
        topic: &TopicName,
        until: Option<Instant>,
    ) -> Result<(), ShardError> {
        let name = &TopicPattern::Exact(topic.clone());
        let forget = |shard: &Shard| {
            let shard = shard.clone();
            async move {
                let _gate = self.inner.gates[shard.index()].lock().await;
                let forget = PolicyWrite {
                    name: name.clone(),
                    expected: self.ledger().copies[shard.index()].version(name),
                    version: 0,
                    effect: PolicyEffect::Forget,
                    groups: Vec::new(),
                    body: Bytes::new(),
                };
                shard
                    .call(Op::WritePolicies, |store| store.write_policies(vec![forget], until))
                    .await
            }
        };
        let forgotten = join_all(self.inner.shards.all().iter().map(forget)).await;
        forgotten.into_iter().try_for_each(|done| done.map(drop))
    }

    /// Reads the last version of a policy from the shard where changes of it are decided.
    ///
    /// # Errors
    /// [`PolicyChangeError`]; the version that is known here may then be an older one.
    pub async fn refresh<E>(&self, name: &TopicPattern) -> Result<(), PolicyChangeError<E>> {
        let home = self.home(name).ok_or(PolicyChangeError::NoActiveShard)?;
        Ok(self.exchange(home).await?)
    }

    /// Returns the shard where changes of a name are decided.
    pub(super) fn home(&self, name: &TopicPattern) -> Option<&Shard> {
        let key =
            JobKey { topic: TopicName::stored(&name.to_string()), id: JobId::stored(HOME_ID) };
        self.inner.shards.owner(&key)
    }

    /// Takes a place of those for policies with settings.
    fn take_place<'p, E>(
        &'p self,
        name: &'p TopicPattern,
        room: &SettingsRoom,
    ) -> Result<SettingsPlace<'p>, PolicyChangeError<E>> {
        // With the places that are taken: calls at once do not pass the number together.
        let (mut ledger, view) = (self.ledger(), self.view());
        let is_full = view.settings_count() + ledger.reserved.len() >= room.max;
        if is_full || ledger.empty_count() >= limit::POLICIES_FORGOTTEN_MAX {
            return Err(PolicyChangeError::NoRoom(None));
        }
        let topic = name.to_string();
        for (prefix, max) in room.namespaces.iter().filter(|(prefix, _)| topic.starts_with(prefix))
        {
            let reserved =
                ledger.reserved.iter().filter(|name| name.to_string().starts_with(prefix));
            if (view.settings_by_calls(prefix) + reserved.count()) as u64 >= *max {
                return Err(PolicyChangeError::NoRoom(Some(prefix.clone())));
            }
        }
        ledger.reserved.push(name.clone());
        Ok(SettingsPlace { policies: self, name })
    }

    /// Writes decided policies to their home; returns those in whose place no other one was decided before. The caller
    /// holds the gate of the home.
    async fn write_home(
        &self,
        home: &Shard,
        policies: Vec<TopicPolicy>,
        until: Option<Instant>,
    ) -> Result<Vec<Arc<TopicPolicy>>, ShardError> {
        let now = self.inner.clock.now();
        let writes = {
            let ledger = self.ledger();
            let version = ledger.next_version(now);
            let expected = |policy: &TopicPolicy| ledger.copies[home.index()].version(&policy.name);
            let policies = policies.into_iter().zip(version..);
            let write = policies.map(|(policy, version)| {
                let expected = expected(&policy);
                (Arc::new(TopicPolicy { version, update_time: now, ..policy }), expected)
            });
            write.collect::<Vec<_>>()
        };
        if writes.is_empty() {
            return Ok(Vec::new());
        }
        let written = self.write_batch(home, writes, until).await?;
        self.merge(&mut self.ledger(), &written);
        Ok(written)
    }

    /// Writes to the other shards; returns those that failed.
    async fn write_others(&self, home: &Shard) -> Vec<String> {
        let others = self.inner.shards.all().iter().filter(|shard| shard.index() != home.index());
        let failed = join_all(others.map(|shard| async move {
            self.exchange(shard).await.err().map(|_| shard.name().to_string())
        }));
        failed.await.into_iter().flatten().collect()
    }
}

fn contention() -> store::Error {
    store::Error::Contention("the policy changed during each attempt".into())
}

#[cfg(test)]
mod tests {
    use std::convert::Infallible;

    use tokio_util::sync::CancellationToken;

    use super::*;
    use crate::clock::Clock;
    use crate::domain::TopicSettings;
    use crate::scheduler::tests::test_ring::TestRing;

    /// Changes by each replica.
    const CHANGES: usize = 60;

    /// Decides the last policy with one more letter in its description.
    fn one_letter_more(
        name: &TopicPattern,
        view: &PolicyView,
        now: Time,
    ) -> Result<TopicPolicy, Infallible> {
        let last = view.policy(name).map(|last| (**last).clone());
        let mut policy = last.unwrap_or_else(|| TopicPolicy::new(name.clone(), now));
        policy.settings.get_or_insert_with(TopicSettings::default).description.push('x');
        Ok(policy)
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 4)]
    async fn of_changes_at_once_none_is_lost() {
        let ring = TestRing::new(2);
        let (stop, name) = (CancellationToken::new(), TopicPattern::parse("orders").unwrap());
        let replicas: Vec<Policies> = (0..3)
            .map(|_| Policies::new(ring.scheduler.shards().clone(), Clock::system()))
            .collect();
        replicas.iter().for_each(|replica| drop(replica.follow(&stop)));
        let changes = replicas.iter().map(|replica| {
            let (replica, name) = (replica.clone(), name.clone());
            tokio::spawn(async move {
                for _ in 0..CHANGES {
                    let decide = |view: &PolicyView, now| one_letter_more(&name, view, now);
                    while let Err(error) = replica.change(&name, None, None, decide).await {
                        assert!(
                            matches!(&error, PolicyChangeError::Shard(error)
                                if matches!(error.error, store::Error::Contention(_))),
                            "{error}"
                        );
                    }
                }
            })
        });
        join_all(changes).await.into_iter().for_each(|done| done.unwrap());
        replicas[0].refresh::<Infallible>(&name).await.unwrap();
        let view = replicas[0].view();
        let policy = view.policy(&name).unwrap();
        let letters = policy.settings.as_ref().unwrap().description.len();
        assert_eq!(letters, replicas.len() * CHANGES, "version {}", policy.version);
        stop.cancel();
    }
}
