//! The items of one settle by the shards that their receipts name, and the answers back in order.

use futures::future::join_all;

use crate::domain::Receipt;
use crate::shards::Shard;

use super::Scheduler;
use super::settle::{SettleError, SettleResult};

/// A call's items by shard, and what is known of each.
pub(super) struct ItemsByShard<'a, I> {
    shares: Vec<ShardItems<'a, I>>,
    results: Vec<SettleResult>,
}

/// The items that go to one shard, by their index in the call.
struct ShardItems<'a, I> {
    shard: &'a Shard,
    indexes: Vec<usize>,
    items: Vec<I>,
}

// === impl Scheduler ===

impl Scheduler {
    /// Sorts items by shard; those whose shard is not here are answered already.
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

// === impl Split ===

impl<'a, I> ItemsByShard<'a, I> {
    /// The share of a shard, which the item of that index goes to: as a rule all behind it do.
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

    /// Has every shard do its items, all at once: one that does not answer costs its own items.
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

// === impl Share ===

impl<I> ShardItems<'_, I> {
    fn push(&mut self, index: usize, item: I) {
        self.indexes.push(index);
        self.items.push(item);
    }
}
