//! Exchanges policies with each shard: reads what changed there, and writes what is newer elsewhere.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::broadcast;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::backoff::Backoff;
use crate::domain::{TopicPattern, TopicPolicy, limit};
use crate::shards::{self, Shard};
use crate::store::{EventKind, GroupSetting, PolicyWrite, ShardEvent, StoredPolicy, codec};

use super::Policies;

/// Interval in which a shard that others use is read without an event: events may get lost.
const READ_INTERVAL: Duration = Duration::from_secs(1);
/// First and longest pause after a failed exchange.
const RETRY_DELAYS: (Duration, Duration) = (Duration::from_millis(50), Duration::from_secs(1));
/// Number of rounds of an exchange: a shard that another replica writes to has news after each.
const ROUNDS_MAX: usize = 4;
/// Number of policies in one write, and of the settings of groups in it unless one policy has more.
const WRITE_MAX: usize = 64;
const WRITE_SETTINGS_MAX: usize = 1_000;

/// Policies that a shard has, as far as this replica has read them.
#[derive(Default)]
pub(super) struct ShardCopy {
    last_sequence: u64,
    policies: HashMap<TopicPattern, Arc<TopicPolicy>>,
    /// Versions of policies that cannot be read: a newer one replaces them.
    damaged: HashMap<TopicPattern, u64>,
}

// === impl ShardCopy ===

impl ShardCopy {
    /// Records what the shard has.
    pub(super) fn insert(&mut self, policy: &Arc<TopicPolicy>) {
        self.damaged.remove(&policy.name);
        self.policies.insert(policy.name.clone(), Arc::clone(policy));
    }

    /// Returns the version that a write to the shard has to expect.
    pub(super) fn version(&self, name: &TopicPattern) -> u64 {
        let damaged = self.damaged.get(name).copied().unwrap_or(0);
        self.policies.get(name).map_or(0, |policy| policy.version).max(damaged)
    }
}

// === impl Policies ===

impl Policies {
    /// Reads the policies of all shards that answer, once: to be called before the server serves.
    pub async fn read_all(&self) {
        let read = |shard| async move {
            if let Err(error) = self.exchange(shard).await {
                tracing::debug!(shard = %shard.name(), %error, "policies of topics not read yet");
            }
        };
        futures::future::join_all(self.inner.shards.all().iter().map(read)).await;
    }

    /// Starts to exchange policies with all shards, until `stop`.
    pub fn follow(&self, stop: &CancellationToken) -> TaskTracker {
        let tasks = TaskTracker::new();
        for shard in self.inner.shards.all() {
            let (policies, shard, stop) = (self.clone(), shard.clone(), stop.clone());
            tasks
                .spawn(async move { stop.run_until_cancelled(policies.follow_shard(shard)).await });
        }
        tasks.close();
        tasks
    }

    async fn follow_shard(self, shard: Shard) {
        let mut events = shard.events(EventKind::Policies);
        let (mut news, mut pauses) = (self.watch(), Backoff::new(RETRY_DELAYS.0, RETRY_DELAYS.1));
        loop {
            // What was known before the exchange is written by it.
            news.mark_unchanged();
            match self.exchange(&shard).await {
                Ok(()) => {
                    pauses.reset();
                    tokio::select! {
                        are_missed = changed(&mut events) => if are_missed {
                            // Another Redis may answer now, which has lost the last changes.
                            *self.inner.copies[shard.index()].lock().await = ShardCopy::default();
                        },
                        _ = news.changed() => {}
                        () = tokio::time::sleep(READ_INTERVAL), if shard.is_shared() => {}
                    }
                }
                Err(error) => {
                    tracing::debug!(shard = %shard.name(), %error, "policies of topics not exchanged");
                    shard.pause_before_retry(pauses.next_delay()).await;
                }
            }
        }
    }

    /// Reads what has changed on the shard, and writes what is newer here, until both have the same.
    ///
    /// # Errors
    /// Errors of the store.
    pub(super) async fn exchange(&self, shard: &Shard) -> shards::Result<()> {
        let mut copy = self.inner.copies[shard.index()].lock().await;
        self.exchange_into(shard, &mut copy).await
    }

    /// Exchanges policies with a shard while the caller holds its copy.
    pub(super) async fn exchange_into(
        &self,
        shard: &Shard,
        copy: &mut ShardCopy,
    ) -> shards::Result<()> {
        for _ in 0..ROUNDS_MAX {
            self.read(shard, copy).await?;
            if !self.write(shard, copy).await? {
                break;
            }
        }
        Ok(())
    }

    async fn read(&self, shard: &Shard, copy: &mut ShardCopy) -> shards::Result<()> {
        loop {
            let page = shard.policies(copy.last_sequence, limit::CALL_JOBS_MAX).await?;
            if page.last_sequence < copy.last_sequence {
                // The shard has lost data, so its changes are counted anew.
                *copy = ShardCopy::default();
                continue;
            }
            let last = page.policies.last().map_or(page.last_sequence, |last| last.sequence);
            let mut read = Vec::with_capacity(page.policies.len());
            for stored in &page.policies {
                match decode(shard, stored) {
                    Some(policy) => read.push(policy),
                    None => drop(copy.damaged.insert(stored.name.clone(), stored.version)),
                }
            }
            read.iter().for_each(|policy| copy.insert(policy));
            self.merge(&read);
            copy.last_sequence = last;
            // Names that another version of ringq wrote are not in the page.
            if last >= page.last_sequence || page.policies.is_empty() {
                copy.last_sequence = page.last_sequence;
                return Ok(());
            }
        }
    }

    /// Writes what is newer here than on the shard; returns whether there was anything to write.
    async fn write(&self, shard: &Shard, copy: &mut ShardCopy) -> shards::Result<bool> {
        let view = self.view();
        let is_newer = |policy: &&Arc<TopicPolicy>| {
            copy.policies.get(&policy.name).is_none_or(|stored| policy.replaces(stored))
        };
        let newer: Vec<_> = view.all().filter(is_newer).cloned().collect();
        let mut rest = newer.as_slice();
        while !rest.is_empty() {
            let (mut writes, mut settings) = (Vec::new(), 0);
            for policy in rest.iter().take(WRITE_MAX) {
                let write = to_write(policy, copy.version(&policy.name));
                settings += write.groups.len();
                if settings > WRITE_SETTINGS_MAX && !writes.is_empty() {
                    break;
                }
                writes.push(write);
            }
            let (part, behind) = rest.split_at(writes.len());
            let results = shard.write_policies(writes, None).await?;
            for (policy, result) in part.iter().zip(results) {
                if result.is_written {
                    copy.insert(policy);
                }
            }
            rest = behind;
        }
        Ok(!newer.is_empty())
    }
}

/// Waits for the next event; returns whether some were missed.
async fn changed(events: &mut broadcast::Receiver<ShardEvent>) -> bool {
    match events.recv().await {
        Ok(event) => event == ShardEvent::EventsMissed,
        Err(broadcast::error::RecvError::Lagged(_)) => true,
        Err(broadcast::error::RecvError::Closed) => std::future::pending().await,
    }
}

/// Returns the write of a policy in place of a version.
pub(super) fn to_write(policy: &TopicPolicy, expected: u64) -> PolicyWrite {
    let setting = |(group, (weight, paused))| GroupSetting { group, weight, paused };
    PolicyWrite {
        name: policy.name.clone(),
        expected,
        version: policy.version,
        effect: policy.effect(),
        groups: policy.groups().into_iter().map(setting).collect(),
        body: codec::encode_topic_policy(policy).into(),
    }
}

/// Decodes a stored policy. One that cannot be read is passed over; a newer version replaces it.
fn decode(shard: &Shard, stored: &StoredPolicy) -> Option<Arc<TopicPolicy>> {
    let StoredPolicy { name, version, body, .. } = stored;
    match codec::decode_topic_policy(name.clone(), *version, body) {
        Ok(policy) => Some(Arc::new(policy)),
        Err(error) => {
            tracing::error!(shard = %shard.name(), topic = %name, %error, "policy of a topic is damaged; ignored");
            None
        }
    }
}
