//! Changes of policies. A change is decided on the home shard of its name, the owner of the name on the ring, where two
//! changes at once meet; then it is written to all other shards that answer. The others get it when they answer again.

use std::sync::Arc;

use futures::future::join_all;
use tokio::time::Instant;

use crate::domain::{JobId, JobKey, Time, TopicName, TopicPattern, TopicPolicy};
use crate::shards::{Shard, ShardError};
use crate::store;

use super::Policies;
use super::copies::{ShardCopy, to_write};

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
    /// No shard takes new jobs, so no shard is the home of the name.
    #[error("no shard is active")]
    NoActiveShard,
    /// Error of the home shard.
    #[error(transparent)]
    Shard(#[from] ShardError),
}

/// A policy after its change.
#[derive(Clone, Debug)]
pub struct ChangedPolicy {
    /// The policy.
    pub policy: Arc<TopicPolicy>,
    /// Shards that have not taken the change yet.
    pub missing: Vec<String>,
}

// === impl Policies ===

impl Policies {
    /// Changes the policy of a name: `decide` returns the new one from the last one, or why there is none. It may be called
    /// several times. The version and the times are set here. Nothing is written after `until`.
    ///
    /// # Errors
    /// [`PolicyChangeError`]; then nothing was changed, unless the outcome is unknown.
    pub async fn change<E>(
        &self,
        name: &TopicPattern,
        until: Option<Instant>,
        decide: impl Fn(Option<&TopicPolicy>, Time) -> Result<TopicPolicy, E>,
    ) -> Result<ChangedPolicy, PolicyChangeError<E>> {
        let home = self.home(name).ok_or(PolicyChangeError::NoActiveShard)?;
        for _ in 0..DECISIONS_MAX {
            // Held until the write: what is read meanwhile would raise the expected version, but not what was decided.
            let mut copy = self.inner.copies[home.index()].lock().await;
            // Reads the last version from the home, and writes it there if another shard has it.
            self.exchange_into(home, &mut copy).await?;
            let (now, view) = (self.inner.clock.now(), self.view());
            let last = view.policy(name);
            let mut policy =
                decide(last.map(|last| &**last), now).map_err(PolicyChangeError::Refused)?;
            policy.version = last.map_or(0, |last| last.version).max(copy.version(name)) + 1;
            policy.update_time = now;
            let policy = Arc::new(policy);
            if self.write_home(home, &mut copy, &policy, until).await? {
                drop(copy);
                let missing = self.write_others(home).await;
                return Ok(ChangedPolicy { policy, missing });
            }
        }
        let error = store::Error::Contention("the policy changed during each attempt".into());
        Err(ShardError::new(home.name(), error).into())
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
    fn home(&self, name: &TopicPattern) -> Option<&Shard> {
        let key =
            JobKey { topic: TopicName::stored(&name.to_string()), id: JobId::stored(HOME_ID) };
        self.inner.shards.owner(&key)
    }

    /// Writes a decided policy; returns false if another one was decided before.
    async fn write_home(
        &self,
        home: &Shard,
        copy: &mut ShardCopy,
        policy: &Arc<TopicPolicy>,
        until: Option<Instant>,
    ) -> Result<bool, ShardError> {
        let expected = copy.version(&policy.name);
        let written = home.write_policies(vec![to_write(policy, expected)], until).await?;
        let is_written = written.first().is_some_and(|result| result.is_written);
        if is_written {
            copy.insert(policy);
            self.merge(std::slice::from_ref(policy));
        }
        Ok(is_written)
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
        last: Option<&TopicPolicy>,
        now: Time,
    ) -> Result<TopicPolicy, Infallible> {
        let mut policy = last.cloned().unwrap_or_else(|| TopicPolicy::new(name.clone(), now));
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
                    let decide =
                        |last: Option<&TopicPolicy>, now| one_letter_more(&name, last, now);
                    while let Err(error) = replica.change(&name, None, decide).await {
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
