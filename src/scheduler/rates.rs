//! Events per second over the last minute, per topic, as this replica saw them.

use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};

use crate::domain::{Time, TopicName};

/// Seconds that a rate looks back.
const WINDOW: usize = 60;
/// Topics that are counted; a server with more of them shows rates for the first ones only.
const TOPICS_MAX: usize = 10_000;

/// What is counted.
#[derive(Clone, Copy)]
enum Kind {
    Enqueued,
    Finished,
    Failed,
}

/// Counters of the last minute.
#[derive(Default)]
pub struct Rates {
    topics: Mutex<HashMap<TopicName, [Window; 3]>>,
}

/// One counter per second, overwritten in a circle.
#[derive(Clone)]
struct Window {
    counts: [u64; WINDOW],
    second: i64,
}

// === impl Rates ===

impl Rates {
    pub(super) fn new() -> Rates {
        Rates::default()
    }

    pub(super) fn enqueued(&self, topic: &TopicName, jobs: u64, now: Time) {
        self.count(topic, Kind::Enqueued, jobs, now);
    }

    pub(super) fn finished(&self, topic: &TopicName, jobs: u64, now: Time) {
        self.count(topic, Kind::Finished, jobs, now);
    }

    pub(super) fn failed(&self, topic: &TopicName, jobs: u64, now: Time) {
        self.count(topic, Kind::Failed, jobs, now);
    }

    /// Enqueued, finished and failed per second over the last minute.
    #[must_use]
    pub fn of(&self, topic: &TopicName, now: Time) -> [f64; 3] {
        let mut topics = self.topics.lock().unwrap_or_else(PoisonError::into_inner);
        topics.get_mut(topic).map_or([0.0; 3], |windows| windows.each_mut().map(|w| w.rate(now)))
    }

    fn count(&self, topic: &TopicName, kind: Kind, jobs: u64, now: Time) {
        let mut topics = self.topics.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(windows) = topics.get_mut(topic) {
            windows[kind as usize].add(jobs, now);
        } else if topics.len() < TOPICS_MAX {
            let windows = topics.entry(topic.clone()).or_insert_with(|| [Window::NEW; 3]);
            windows[kind as usize].add(jobs, now);
        }
    }
}

// === impl Window ===

impl Window {
    const NEW: Window = Window { counts: [0; WINDOW], second: 0 };

    fn add(&mut self, jobs: u64, now: Time) {
        self.advance(now);
        let slot = self.slot(self.second);
        self.counts[slot] += jobs;
    }

    fn rate(&mut self, now: Time) -> f64 {
        self.advance(now);
        let sum: u64 = self.counts.iter().sum();
        sum as f64 / WINDOW as f64
    }

    /// Forgets the seconds between the last event and `now`.
    fn advance(&mut self, now: Time) {
        let second = now.0.div_euclid(1_000_000).max(self.second);
        let first_stale = (self.second + 1).max(second - WINDOW as i64 + 1);
        for stale in first_stale..=second {
            let slot = self.slot(stale);
            self.counts[slot] = 0;
        }
        self.second = second;
    }

    fn slot(&self, second: i64) -> usize {
        usize::try_from(second.rem_euclid(WINDOW as i64)).unwrap_or(0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_rate_covers_the_last_minute_only() {
        let (rates, topic) = (Rates::new(), TopicName::stored("t"));
        let at = |seconds: i64| Time(seconds * 1_000_000);
        for second in 0..120 {
            rates.enqueued(&topic, 1, at(1_000 + second));
        }
        assert_eq!(rates.of(&topic, at(1_119)), [1.0, 0.0, 0.0]);
        assert_eq!(rates.of(&topic, at(1_149)), [0.5, 0.0, 0.0]);
        assert_eq!(rates.of(&topic, at(9_999)), [0.0, 0.0, 0.0]);
    }
}
