//! The items of one settle by the shards that their receipts name, and the answers back in order.

use futures::future::join_all;

use crate::domain::Receipt;
use crate::shards::Shard;

use super::Scheduler;
use super::settle::{SettleError, SettleResult};

/// A call's items by shard, and what is known of each.
pub(super) struct Split<'a, I> {
    shares: Vec<Share<'a, I>>,
    results: Vec<SettleResult>,
}

/// The items that go to one shard, by their index in the call.
struct Share<'a, I> {
    shard: &'a Shard,
    indexes: Vec<usize>,
    items: Vec<I>,
}

// === impl Scheduler ===

impl Scheduler {
    /// Sorts items by shard; those whose shard is not here are answered already.
    pub(super) fn split<I>(&self, items: Vec<I>, receipt: impl Fn(&I) -> &Receipt) -> Split<'_, I> {
        let results = vec![Err(SettleError::NotFound); items.len()];
        let mut split = Split { shares: Vec::new(), results };
        for (index, item) in items.into_iter().enumerate() {
            match self.shard(&receipt(&item).shard) {
                Ok(shard) => split.share(shard, index).push(index, item),
                Err(error) => split.results[index] = Err(error.into()),
            }
        }
        split
    }
}

// === impl Split ===

impl<'a, I> Split<'a, I> {
    /// The share of a shard, which the item of that index goes to: as a rule all behind it do.
    fn share(&mut self, shard: &'a Shard, index: usize) -> &mut Share<'a, I> {
        let known = self.shares.iter().position(|share| share.shard.name() == shard.name());
        let at = known.unwrap_or_else(|| {
            let room = self.results.len() - index;
            let (indexes, items) = (Vec::with_capacity(room), Vec::with_capacity(room));
            self.shares.push(Share { shard, indexes, items });
            self.shares.len() - 1
        });
        &mut self.shares[at]
    }

    /// Has every shard do its items, all at once: one that does not answer costs its own items.
    pub(super) async fn run<F>(self, call: impl Fn(&'a Shard, Vec<I>) -> F) -> Vec<SettleResult>
    where
        F: Future<Output = Vec<SettleResult>>,
    {
        let Split { shares, mut results } = self;
        let (indexes, calls): (Vec<_>, Vec<_>) =
            shares.into_iter().map(|share| (share.indexes, call(share.shard, share.items))).unzip();
        for (indexes, answers) in indexes.into_iter().zip(join_all(calls).await) {
            indexes.into_iter().zip(answers).for_each(|(index, answer)| results[index] = answer);
        }
        results
    }
}

// === impl Share ===

impl<I> Share<'_, I> {
    fn push(&mut self, index: usize, item: I) {
        self.indexes.push(index);
        self.items.push(item);
    }
}
