//! Disagreement of replicas about the ring: since when it lasts, and which events of it were logged. A rolling change
//! of the list of shards causes one for a moment, and it ends by itself.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use tokio::time::Instant;

use crate::domain::{ShardName, limit};

/// Age from which the answer of a shard is stale. A replica that was killed seems to serve its ring for as long.
const STALE_AFTER: Duration = limit::REPLICA_SILENCE_MAX;
/// Duration of a disagreement from which it is logged as an error. A rolling change of all replicas takes less,
/// unless one was left out.
const PERSISTS_AFTER: Duration = Duration::from_secs(10 * 60);

/// Rings that other replicas serve by the answers of each shard, and the last event that was logged.
#[derive(Debug, Default)]
pub(super) struct RingDisagreement {
    /// Time of the last answer of each shard, with the rings that live replicas serve by it.
    by_shard: BTreeMap<ShardName, (Instant, BTreeSet<u64>)>,
    /// Time when another replica was last seen to serve each ring.
    last_served: BTreeMap<u64, Instant>,
    since: Option<Instant>,
    logged: Option<DisagreementEvent>,
}

/// Event of a disagreement, logged once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum DisagreementEvent {
    /// Replicas serve different rings.
    Started,
    /// Replicas have served different rings for 10 min.
    Persists,
    /// All replicas serve the same ring again.
    Resolved,
}

// === impl RingDisagreement ===

impl RingDisagreement {
    /// Records the rings that live replicas serve by the answer of a shard. Returns whether the shard had been
    /// silent: replicas may have served any ring meanwhile.
    pub(super) fn record(&mut self, shard: &ShardName, rings: BTreeSet<u64>, now: Instant) -> bool {
        self.last_served.retain(|_, at| now.duration_since(*at) <= PERSISTS_AFTER);
        self.last_served.extend(rings.iter().map(|&ring| (ring, now)));
        let was_silent = !self.is_recent(shard, now);
        self.by_shard.insert(shard.clone(), (now, rings));
        was_silent
    }

    /// Returns whether the last answer of the shard is fresh.
    pub(super) fn is_recent(&self, shard: &ShardName, now: Instant) -> bool {
        self.by_shard.get(shard).is_some_and(|(at, _)| now.duration_since(*at) <= STALE_AFTER)
    }

    /// Returns the rings that others serve, or have served within the time that a rolling change takes.
    pub(super) fn recent_rings(&self, now: Instant) -> BTreeSet<u64> {
        let late =
            self.last_served.iter().filter(|(_, at)| now.duration_since(**at) <= PERSISTS_AFTER);
        late.map(|(&ring, _)| ring).collect()
    }

    /// Returns the rings that others serve, except `served`.
    pub(super) fn other_rings(&self, served: u64, now: Instant) -> BTreeSet<u64> {
        let fresh = self.by_shard.values().filter(|(at, _)| now.duration_since(*at) <= STALE_AFTER);
        let mut rings: BTreeSet<_> = fresh.flat_map(|(_, rings)| rings).copied().collect();
        rings.remove(&served);
        rings
    }

    /// Returns the event to log, if any. `dissents`: others serve another ring.
    pub(super) fn next_event(&mut self, dissents: bool, now: Instant) -> Option<DisagreementEvent> {
        if !dissents {
            self.since = None;
            return self.logged.take().map(|_| DisagreementEvent::Resolved);
        }
        let lasted = now.duration_since(*self.since.get_or_insert(now));
        let news = match self.logged {
            None if lasted > STALE_AFTER => DisagreementEvent::Started,
            Some(DisagreementEvent::Started) if lasted >= PERSISTS_AFTER => {
                DisagreementEvent::Persists
            }
            _ => return None,
        };
        self.logged = Some(news);
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
    fn disagreement_is_logged_when_it_starts_persists_and_ends() {
        let (begin, mut disagreement) = (Instant::now(), RingDisagreement::default());
        let mut events = Vec::new();
        for second in 0..1_500 {
            let others = (100..1_000).contains(&second) || second >= 1_400;
            let news = disagreement.next_event(others, begin + seconds(second));
            events.extend(news.map(|news| (second, news)));
        }
        let first = [
            (111, DisagreementEvent::Started),
            (700, DisagreementEvent::Persists),
            (1_000, DisagreementEvent::Resolved),
        ];
        assert_eq!(events, [&first[..], &[(1_411, DisagreementEvent::Started)]].concat());
    }

    #[test]
    fn short_disagreement_is_not_logged() {
        let (begin, mut disagreement) = (Instant::now(), RingDisagreement::default());
        for second in 0..100 {
            let others = second % 12 < 11;
            assert_eq!(disagreement.next_event(others, begin + seconds(second)), None, "{second}");
        }
    }

    #[test]
    fn stale_answers_of_a_silent_shard_are_ignored() {
        let (begin, mut disagreement) = (Instant::now(), RingDisagreement::default());
        let shard = |name| ShardName::try_new(name).unwrap();
        assert!(disagreement.record(&shard("a"), BTreeSet::from([1, 2]), begin), "the first time");
        disagreement.record(&shard("b"), BTreeSet::from([1, 3]), begin + seconds(5));
        assert_eq!(disagreement.other_rings(1, begin + seconds(6)), BTreeSet::from([2, 3]));
        assert_eq!(disagreement.other_rings(2, begin + seconds(11)), BTreeSet::from([1, 3]));
        assert!(!disagreement.record(&shard("b"), BTreeSet::from([1]), begin + seconds(12)));
        assert!(disagreement.other_rings(1, begin + seconds(12)).is_empty());
        assert!(disagreement.is_recent(&shard("b"), begin + seconds(22)));
        assert!(!disagreement.is_recent(&shard("a"), begin + seconds(12)));
        assert!(disagreement.record(&shard("a"), BTreeSet::from([1]), begin + seconds(12)));
        assert_eq!(disagreement.recent_rings(begin + seconds(601)), BTreeSet::from([1, 3]));
    }
}
