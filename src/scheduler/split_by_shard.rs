//! Splits the items of one settle by the shards that their receipts name, and returns the answers in order.

use futures::future::join_all;

use crate::domain::Receipt;
use crate::shards::Shard;

use super::Scheduler;
use super::settle::{SettleError, SettleResult};

/// Items of a call by shard, and the results that are known.
pub(super) struct ItemsByShard<'a, I> {
    shares: Vec<ShardItems<'a, I>>,
    results: Vec<SettleResult>,
}

/// Items that go to one shard, with their indexes in the call.
struct ShardItems<'a, I> {
    shard: &'a Shard,
    indexes: Vec<usize>,
    items: Vec<I>,
}

// === impl Scheduler ===

impl Scheduler {
    /// Splits items by shard; those whose shard is not configured here get their result at once.
    pub(super) fn split_by_shard<I>(
        &self,
        items: Vec<I>,
        receipt: impl Fn(&I) -> &Receipt,
    ) -> ItemsByShard<'_, I> {
        let results = vec![Err(SettleError::NotFound); items.len()];
        let mut split = ItemsByShard { shares: Vec::new(), results };
        for (index, item) in items.into_iter().enumerate() {
            match self.shard(&receipt(&item).shard) {
                Ok(shard) => split.items_of(shard, index).push(index, item),
                Err(error) => split.results[index] = Err(error.into()),
            }
        }
        split
    }
}

// === impl ItemsByShard ===

impl<'a, I> ItemsByShard<'a, I> {
    /// Returns the share of a shard, with room for all items from `index` on: as a rule all of them go there.
    fn items_of(&mut self, shard: &'a Shard, index: usize) -> &mut ShardItems<'a, I> {
        let known = self.shares.iter().position(|share| share.shard.name() == shard.name());
        let at = known.unwrap_or_else(|| {
            let room = self.results.len() - index;
            let (indexes, items) = (Vec::with_capacity(room), Vec::with_capacity(room));
            self.shares.push(ShardItems { shard, indexes, items });
            self.shares.len() - 1
        });
        &mut self.shares[at]
    }

    /// Calls every shard with its items, all at once: a shard that does not answer affects its own items only.
    pub(super) async fn call_shards<F>(
        self,
        call: impl Fn(&'a Shard, Vec<I>) -> F,
    ) -> Vec<SettleResult>
    where
        F: Future<Output = Vec<SettleResult>>,
    {
        let ItemsByShard { shares, mut results } = self;
        let (indexes, calls): (Vec<_>, Vec<_>) =
            shares.into_iter().map(|share| (share.indexes, call(share.shard, share.items))).unzip();
        for (indexes, answers) in indexes.into_iter().zip(join_all(calls).await) {
            indexes.into_iter().zip(answers).for_each(|(index, answer)| results[index] = answer);
        }
        results
    }
}

// === impl ShardItems ===

impl<I> ShardItems<'_, I> {
    fn push(&mut self, index: usize, item: I) {
        self.indexes.push(index);
        self.items.push(item);
    }
}
