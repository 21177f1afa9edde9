//! Whether replicas serve different rings, since when, and what has been said of it. While they are given another
//! list of shards, one after the other, they do so for a moment, and that ends by itself.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use tokio::time::Instant;

use crate::domain::{ShardName, limit};

/// A replica that was killed seems to serve its ring for so long, and what a shard said before that is stale.
const SEEMS: Duration = limit::REPLICA_SILENCE_MAX;
/// A change of all replicas, one after the other, takes less than that, or somebody has forgotten one.
const LASTS: Duration = Duration::from_secs(10 * 60);

/// See the module.
#[derive(Debug, Default)]
pub(super) struct Dissent {
    /// By shard, when it was heard, and the rings that living replicas serve by what it said.
    heard: BTreeMap<ShardName, (Instant, BTreeSet<u64>)>,
    /// By ring, when another replica was last heard to serve it.
    served: BTreeMap<u64, Instant>,
    since: Option<Instant>,
    said: Option<News>,
}

/// What is to be said once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum News {
    /// Others serve another ring.
    Begins,
    /// They still do.
    Lasts,
    /// They do no more.
    Ends,
}

// === impl Dissent ===

impl Dissent {
    /// Takes in which rings living replicas serve, as a shard says. Whether it had been silent, so that they may have
    /// served whatever ring meanwhile.
    pub(super) fn hear(&mut self, shard: &ShardName, rings: BTreeSet<u64>, now: Instant) -> bool {
        self.served.retain(|_, at| now.duration_since(*at) <= LASTS);
        self.served.extend(rings.iter().map(|&ring| (ring, now)));
        let was_silent = !self.hears(shard, now);
        self.heard.insert(shard.clone(), (now, rings));
        was_silent
    }

    /// Whether the shard has said a moment ago what living replicas serve.
    pub(super) fn hears(&self, shard: &ShardName, now: Instant) -> bool {
        self.heard.get(shard).is_some_and(|(at, _)| now.duration_since(*at) <= SEEMS)
    }

    /// The rings that others serve, or have served for as long as a change of all replicas takes.
    pub(super) fn lately(&self, now: Instant) -> BTreeSet<u64> {
        let late = self.served.iter().filter(|(_, at)| now.duration_since(**at) <= LASTS);
        late.map(|(&ring, _)| ring).collect()
    }

    /// The rings that others serve, but this one.
    pub(super) fn others(&self, served: u64, now: Instant) -> BTreeSet<u64> {
        let fresh = self.heard.values().filter(|(at, _)| now.duration_since(*at) <= SEEMS);
        let mut rings: BTreeSet<_> = fresh.flat_map(|(_, rings)| rings).copied().collect();
        rings.remove(&served);
        rings
    }

    /// What is to be said now that others serve another ring, or do not.
    pub(super) fn news(&mut self, dissents: bool, now: Instant) -> Option<News> {
        if !dissents {
            self.since = None;
            return self.said.take().map(|_| News::Ends);
        }
        let lasted = now.duration_since(*self.since.get_or_insert(now));
        let news = match self.said {
            None if lasted > SEEMS => News::Begins,
            Some(News::Begins) if lasted >= LASTS => News::Lasts,
            _ => return None,
        };
        self.said = Some(news);
        Some(news)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn seconds(seconds: u64) -> Duration {
        Duration::from_secs(seconds)
    }

    #[test]
    fn it_is_said_once_when_it_is_no_moment_once_when_it_lasts_and_once_when_it_ends() {
        let (begin, mut dissent) = (Instant::now(), Dissent::default());
        let mut said = Vec::new();
        for second in 0..1_500 {
            let others = (100..1_000).contains(&second) || second >= 1_400;
            let news = dissent.news(others, begin + seconds(second));
            said.extend(news.map(|news| (second, news)));
        }
        let first = [(111, News::Begins), (700, News::Lasts), (1_000, News::Ends)];
        assert_eq!(said, [&first[..], &[(1_411, News::Begins)]].concat());
    }

    #[test]
    fn a_moment_is_not_told() {
        let (begin, mut dissent) = (Instant::now(), Dissent::default());
        for second in 0..100 {
            let others = second % 12 < 11;
            assert_eq!(dissent.news(others, begin + seconds(second)), None, "{second}");
        }
    }

    #[test]
    fn a_shard_that_does_not_answer_any_more_says_nothing() {
        let (begin, mut dissent) = (Instant::now(), Dissent::default());
        let shard = |name| ShardName::try_new(name).unwrap();
        assert!(dissent.hear(&shard("a"), BTreeSet::from([1, 2]), begin), "the first time");
        dissent.hear(&shard("b"), BTreeSet::from([1, 3]), begin + seconds(5));
        assert_eq!(dissent.others(1, begin + seconds(6)), BTreeSet::from([2, 3]));
        assert_eq!(dissent.others(2, begin + seconds(11)), BTreeSet::from([1, 3]));
        assert!(!dissent.hear(&shard("b"), BTreeSet::from([1]), begin + seconds(12)));
        assert!(dissent.others(1, begin + seconds(12)).is_empty());
        assert!(dissent.hears(&shard("b"), begin + seconds(22)));
        assert!(!dissent.hears(&shard("a"), begin + seconds(12)));
        assert!(dissent.hear(&shard("a"), BTreeSet::from([1]), begin + seconds(12)));
        assert_eq!(dissent.lately(begin + seconds(601)), BTreeSet::from([1, 3]));
    }
}
