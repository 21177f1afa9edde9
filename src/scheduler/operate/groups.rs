//! Groups of a topic over all shards.

use std::collections::BTreeMap;

use super::Operator;
use crate::domain::{GroupName, TopicName};
use crate::shards::{self, Op, Shard};
use crate::store::{GroupsQuery, ShardGroupStats};

use super::admin::shard_names;

/// Groups of a topic with their numbers, and the shards that are missing in these.
#[derive(Clone, Debug)]
pub struct GroupRows {
    /// The groups, in the order of their names; the jobs without a group come first.
    pub groups: Vec<ShardGroupStats>,
    /// Shards that did not answer, or that only other replicas have.
    pub unreachable: Vec<String>,
}

// === impl Operator ===

impl Operator {
    /// Returns the groups of a topic that have waiting or running jobs, summed over the shards that answer. `after`:
    /// text of the last group of the page before.
    ///
    /// # Errors
    /// Errors of the store, when no shard answers.
    pub async fn groups(
        &self,
        topic: TopicName,
        after: Option<String>,
        limit: usize,
    ) -> shards::Result<GroupRows> {
        let query = GroupsQuery { topic, after, limit };
        let read = |shard: Shard| {
            let query = query.clone();
            async move { shard.call(Op::Groups, |store| store.groups(query)).await }
        };
        let (pages, mut unreachable) = self.inner.shards.call_all(read).await.into_partial()?;
        unreachable.extend(self.inner.shards.absent_shards());
        let mut sums: BTreeMap<Option<GroupName>, ShardGroupStats> = BTreeMap::new();
        // Each page has the first groups of its shard, so the first groups of all are complete in their sum.
        for stats in pages.into_iter().flat_map(|(_, page)| page) {
            match sums.get_mut(&stats.group) {
                Some(sum) => add(sum, &stats),
                None => drop(sums.insert(stats.group.clone(), stats)),
            }
        }
        let groups = sums.into_values().take(limit).collect();
        Ok(GroupRows { groups, unreachable: shard_names(&unreachable) })
    }
}

/// Adds the statistics of one group on another shard. Settings differ only while they are copied to the shards.
fn add(sum: &mut ShardGroupStats, more: &ShardGroupStats) {
    sum.ready += more.ready;
    sum.scheduled += more.scheduled;
    sum.running += more.running;
    sum.oldest_ready = sum.oldest_ready.max(more.oldest_ready);
    sum.weight = sum.weight.max(more.weight);
    sum.paused |= more.paused;
}
