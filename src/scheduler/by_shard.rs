//! Splits the items of a call by the shards that have them, calls these at the same time, and merges the results.

use futures::future::join_all;

use crate::shards::Shard;

/// Items of a call by shard.
pub(super) struct ByShard<'s, I> {
    shares: Vec<ShardItems<'s, I>>,
}

/// Items that go to one shard, with their indexes in the call.
struct ShardItems<'s, I> {
    shard: &'s Shard,
    indexes: Vec<usize>,
    items: Vec<I>,
}

// === impl ByShard ===

impl<'s, I> ByShard<'s, I> {
    pub(super) fn new() -> ByShard<'s, I> {
        ByShard { shares: Vec::new() }
    }

    /// Adds an item; `room`: about how many items of the call follow, as a rule all for the same shard.
    pub(super) fn add(&mut self, shard: &'s Shard, (index, item): (usize, I), room: usize) {
        let known = self.shares.iter().position(|share| share.shard.name() == shard.name());
        let place = known.unwrap_or_else(|| {
            let indexes = Vec::with_capacity(room + 1);
            self.shares.push(ShardItems { shard, indexes, items: Vec::with_capacity(room + 1) });
            self.shares.len() - 1
        });
        self.shares[place].indexes.push(index);
        self.shares[place].items.push(item);
    }

    /// Calls every shard with its items, all at the same time: a shard that does not answer affects its own items only.
    /// Returns the results with the indexes of their items.
    pub(super) async fn call<R, F>(
        self,
        call: impl Fn(&'s Shard, Vec<I>) -> F,
    ) -> impl Iterator<Item = (usize, R)>
    where
        F: Future<Output = Vec<R>>,
    {
        let call = |share: ShardItems<'s, I>| (share.indexes, call(share.shard, share.items));
        let (indexes, calls): (Vec<_>, Vec<_>) = self.shares.into_iter().map(call).unzip();
        let results = join_all(calls).await;
        indexes
            .into_iter()
            .zip(results)
            .flat_map(|(indexes, results)| indexes.into_iter().zip(results))
    }
}

impl<'s, I> IntoIterator for ByShard<'s, I> {
    type Item = (&'s Shard, Vec<I>);
    type IntoIter = std::vec::IntoIter<Self::Item>;

    /// Returns the items of each shard.
    fn into_iter(self) -> Self::IntoIter {
        let shares = self.shares.into_iter().map(|share| (share.shard, share.items));
        shares.collect::<Vec<_>>().into_iter()
    }
}
