//! Jobs that wait for a handler, in the order of their arrival.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use super::leases::JobSlot;
use crate::pb::Delivery;

/// Waiting jobs by arrival, and by topic.
#[derive(Debug, Default)]
pub(super) struct PendingJobs {
    jobs: BTreeMap<JobSlot, Delivery>,
    topics: HashMap<String, BTreeSet<JobSlot>>,
}

// === impl PendingJobs ===

impl PendingJobs {
    pub(super) fn len(&self) -> usize {
        self.jobs.len()
    }

    pub(super) fn is_empty(&self) -> bool {
        self.jobs.is_empty()
    }

    pub(super) fn push(&mut self, slot: JobSlot, delivery: Delivery) {
        match self.topics.get_mut(&delivery.topic) {
            Some(slots) => drop(slots.insert(slot)),
            None => drop(self.topics.insert(delivery.topic.clone(), BTreeSet::from([slot]))),
        }
        self.jobs.insert(slot, delivery);
    }

    /// Takes up to `size` jobs of the topic whose turn it is, of `most` weight together; at least one, of any weight.
    pub(super) fn take_batch(
        &mut self,
        size: usize,
        most: usize,
        weigh: impl Fn(&Delivery) -> usize,
    ) -> Vec<(JobSlot, Delivery)> {
        let (mut slots, mut room) = (Vec::new(), most);
        let Some(first) = self.jobs.values().next() else { return Vec::new() };
        for slot in self.topics.get(&first.topic).into_iter().flatten().take(size) {
            // A job of weight 0 would join a batch that is already full.
            let weight = self.jobs.get(slot).map_or(1, &weigh).max(1);
            if weight > room && !slots.is_empty() {
                break;
            }
            slots.push(*slot);
            room = room.saturating_sub(weight);
        }
        slots.into_iter().filter_map(|slot| Some((slot, self.remove(slot)?))).collect()
    }

    pub(super) fn remove(&mut self, slot: JobSlot) -> Option<Delivery> {
        let delivery = self.jobs.remove(&slot)?;
        if let Some(slots) = self.topics.get_mut(&delivery.topic) {
            slots.remove(&slot);
            if slots.is_empty() {
                self.topics.remove(&delivery.topic);
            }
        }
        Some(delivery)
    }

    /// Removes and returns all slots.
    pub(super) fn take_all(&mut self) -> Vec<JobSlot> {
        self.topics.clear();
        std::mem::take(&mut self.jobs).into_keys().collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn batches_are_of_one_topic_and_topics_take_turns_by_arrival() {
        let mut pending = PendingJobs::default();
        for (slot, topic) in ["a", "b", "a", "b", "a", "c"].into_iter().enumerate() {
            pending.push(slot as JobSlot, Delivery { topic: topic.into(), ..Default::default() });
        }
        assert!(pending.remove(3).is_some() && pending.remove(3).is_none());
        let mut batch = || {
            pending
                .take_batch(2, usize::MAX, |_| 1)
                .into_iter()
                .map(|(slot, _)| slot)
                .collect::<Vec<_>>()
        };
        assert_eq!((batch(), batch(), batch()), (vec![0, 2], vec![1], vec![4]));
        assert_eq!((pending.len(), pending.topics.len()), (1, 1));
        assert_eq!((pending.take_all(), pending.take_batch(2, 9, |_| 1)), (vec![5], vec![]));
    }

    #[test]
    fn an_unbatched_job_is_taken_alone() {
        let mut pending = PendingJobs::default();
        for (slot, id) in ["", "", "x", "x", ""].into_iter().enumerate() {
            pending.push(slot as JobSlot, Delivery { id: id.into(), ..Default::default() });
        }
        let weigh = |job: &Delivery| if job.id == "x" { usize::MAX } else { 1 };
        let mut batch = || pending.take_batch(3, usize::MAX, weigh).len();
        assert_eq!([batch(), batch(), batch(), batch(), batch()], [2, 1, 1, 1, 0]);
    }

    #[test]
    fn a_batch_is_bounded_by_weight_but_has_a_job() {
        let mut pending = PendingJobs::default();
        for (slot, weight) in [4, 4, 4, 30, 0, 10, 1].into_iter().enumerate() {
            let delivery = Delivery { id: "x".repeat(weight), ..Default::default() };
            pending.push(slot as JobSlot, delivery);
        }
        let mut batch = || pending.take_batch(9, 10, |job| job.id.len()).len();
        assert_eq!([batch(), batch(), batch(), batch(), batch(), batch()], [2, 1, 1, 1, 1, 1]);
    }
}
