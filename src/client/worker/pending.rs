//! Jobs that wait for a handler, in the order of their arrival.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use super::leases::Slot;
use crate::pb::Delivery;

/// See the module.
#[derive(Debug, Default)]
pub(super) struct Pending {
    jobs: BTreeMap<Slot, Delivery>,
    topics: HashMap<String, BTreeSet<Slot>>,
}

// === impl Pending ===

impl Pending {
    pub(super) fn len(&self) -> usize {
        self.jobs.len()
    }

    pub(super) fn is_empty(&self) -> bool {
        self.jobs.is_empty()
    }

    pub(super) fn push(&mut self, slot: Slot, delivery: Delivery) {
        match self.topics.get_mut(&delivery.topic) {
            Some(slots) => drop(slots.insert(slot)),
            None => drop(self.topics.insert(delivery.topic.clone(), BTreeSet::from([slot]))),
        }
        self.jobs.insert(slot, delivery);
    }

    /// Up to `size` jobs of the topic whose turn it is; those that share with nobody one by one.
    pub(super) fn batch(
        &mut self,
        size: usize,
        alone: impl Fn(&Delivery) -> bool,
    ) -> Vec<(Slot, Delivery)> {
        let mut slots: Vec<Slot> = Vec::new();
        let Some(first) = self.jobs.values().next() else { return Vec::new() };
        for slot in self.topics.get(&first.topic).into_iter().flatten().take(size) {
            let alone = self.jobs.get(slot).is_some_and(&alone);
            if !alone || slots.is_empty() {
                slots.push(*slot);
            }
            if alone {
                break;
            }
        }
        slots.into_iter().filter_map(|slot| Some((slot, self.remove(slot)?))).collect()
    }

    pub(super) fn remove(&mut self, slot: Slot) -> Option<Delivery> {
        let delivery = self.jobs.remove(&slot)?;
        if let Some(slots) = self.topics.get_mut(&delivery.topic) {
            slots.remove(&slot);
            if slots.is_empty() {
                self.topics.remove(&delivery.topic);
            }
        }
        Some(delivery)
    }

    pub(super) fn slots(&self) -> impl Iterator<Item = Slot> {
        self.jobs.keys().copied()
    }

    /// All of them; none are left.
    pub(super) fn take(&mut self) -> Vec<Slot> {
        self.topics.clear();
        std::mem::take(&mut self.jobs).into_keys().collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn batches_are_of_one_topic_and_topics_take_turns_by_arrival() {
        let mut pending = Pending::default();
        for (slot, topic) in ["a", "b", "a", "b", "a", "c"].into_iter().enumerate() {
            pending.push(slot as Slot, Delivery { topic: topic.into(), ..Default::default() });
        }
        assert!(pending.remove(3).is_some() && pending.remove(3).is_none());
        let mut batch =
            || pending.batch(2, |_| false).into_iter().map(|(slot, _)| slot).collect::<Vec<_>>();
        assert_eq!((batch(), batch(), batch()), (vec![0, 2], vec![1], vec![4]));
        assert_eq!((pending.len(), pending.topics.len()), (1, 1));
        assert_eq!((pending.take(), pending.batch(2, |_| false)), (vec![5], vec![]));
    }

    #[test]
    fn who_shares_with_nobody_comes_alone() {
        let mut pending = Pending::default();
        for (slot, id) in ["", "", "x", "x", ""].into_iter().enumerate() {
            pending.push(slot as Slot, Delivery { id: id.into(), ..Default::default() });
        }
        let mut batch = || pending.batch(3, |job| job.id == "x").len();
        assert_eq!([batch(), batch(), batch(), batch(), batch()], [2, 1, 1, 1, 0]);
    }
}
