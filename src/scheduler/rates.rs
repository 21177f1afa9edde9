//! Events per second over the last minute, per topic, as this replica saw them.

use std::collections::HashMap;

use parking_lot::Mutex;

use crate::domain::{Time, TopicName};

/// Number of seconds that a rate covers.
const WINDOW: usize = 60;
/// Number of topics that are counted at most, which takes 15 MB. Topics without an event in the window make room for
/// others.
const TOPICS_MAX: usize = 10_000;

/// Kind of event that is counted.
#[derive(Clone, Copy)]
enum RateKind {
    Enqueued,
    Finished,
    Failed,
}

/// Counters of the last minute.
#[derive(Default)]
pub struct Rates {
    counted: Mutex<RateCounters>,
}

#[derive(Default)]
struct RateCounters {
    topics: HashMap<TopicName, [RateWindow; 3]>,
    /// Second of the last sweep for topics without an event in the window.
    swept: i64,
    /// Second of the last event that was not counted for lack of room.
    uncounted: Option<i64>,
}

/// Circular buffer of one counter per second.
#[derive(Clone)]
struct RateWindow {
    counts: [u64; WINDOW],
    second: i64,
}

// === impl Rates ===

impl Rates {
    pub(super) fn new() -> Rates {
        Rates::default()
    }

    pub(super) fn enqueued(&self, topic: &TopicName, jobs: u64, now: Time) {
        self.count(topic, RateKind::Enqueued, jobs, now);
    }

    pub(super) fn finished(&self, topic: &TopicName, jobs: u64, now: Time) {
        self.count(topic, RateKind::Finished, jobs, now);
    }

    pub(super) fn failed(&self, topic: &TopicName, jobs: u64, now: Time) {
        self.count(topic, RateKind::Failed, jobs, now);
    }

    /// Returns the jobs enqueued, finished and failed per second over the last minute; `None` for a topic that may
    /// have had events for which there was no room.
    #[must_use]
    pub fn of(&self, topic: &TopicName, now: Time) -> Option<[f64; 3]> {
        let mut counted = self.counted.lock();
        let known = counted.uncounted.is_none_or(|at| !is_within(at, second(now)));
        match counted.topics.get_mut(topic) {
            Some(windows) => Some(windows.each_mut().map(|window| window.rate(now))),
            None => known.then_some([0.0; 3]),
        }
    }

    fn count(&self, topic: &TopicName, kind: RateKind, jobs: u64, now: Time) {
        let mut counted = self.counted.lock();
        if let Some(windows) = counted.windows(topic, now) {
            windows[kind as usize].add(jobs, now);
        }
    }
}

// === impl RateCounters ===

impl RateCounters {
    /// Returns the counters of a topic; `None`: there is no room for them.
    fn windows(&mut self, topic: &TopicName, now: Time) -> Option<&mut [RateWindow; 3]> {
        if !self.topics.contains_key(topic) {
            if self.topics.len() >= TOPICS_MAX {
                self.sweep(second(now));
            }
            if self.topics.len() >= TOPICS_MAX {
                self.uncounted = Some(second(now));
                return None;
            }
            self.topics.insert(topic.clone(), [RateWindow::NEW; 3]);
        }
        self.topics.get_mut(topic)
    }

    /// Drops topics whose rates are 0; once a second at most, as it looks at all of them.
    fn sweep(&mut self, now: i64) {
        if now > self.swept {
            self.swept = now;
            let is_counting = |window: &RateWindow| is_within(window.second, now);
            self.topics.retain(|_, windows| windows.iter().any(is_counting));
        }
    }
}

/// Returns the second of a time.
fn second(now: Time) -> i64 {
    now.0.div_euclid(1_000_000)
}

/// Returns whether a second is in the window that ends now.
fn is_within(at: i64, now: i64) -> bool {
    now - at < WINDOW as i64
}

// === impl RateWindow ===

impl RateWindow {
    const NEW: RateWindow = RateWindow { counts: [0; WINDOW], second: 0 };

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

    /// Clears the counters of the seconds between the last event and `now`.
    fn advance(&mut self, now: Time) {
        let second = second(now).max(self.second);
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
        assert_eq!(rates.of(&topic, at(1_119)), Some([1.0, 0.0, 0.0]));
        assert_eq!(rates.of(&topic, at(1_149)), Some([0.5, 0.0, 0.0]));
        assert_eq!(rates.of(&topic, at(9_999)), Some([0.0, 0.0, 0.0]));
    }

    #[test]
    fn idle_topics_make_room_and_one_that_found_none_has_no_rates() {
        let (rates, late) = (Rates::new(), TopicName::stored("late"));
        let at = |seconds: i64| Time(seconds * 1_000_000);
        let name = |n: usize| TopicName::stored(&format!("t{n}"));
        (0..TOPICS_MAX).for_each(|n| rates.enqueued(&name(n), 60, at(1_000)));
        rates.enqueued(&name(0), 60, at(1_030));
        rates.enqueued(&late, 60, at(1_059));
        assert_eq!(rates.of(&late, at(1_059)), None);
        assert_eq!(rates.of(&name(1), at(1_059)), Some([1.0, 0.0, 0.0]));
        rates.enqueued(&late, 60, at(1_060));
        assert_eq!(rates.of(&late, at(1_060)), Some([1.0, 0.0, 0.0]));
        assert_eq!(rates.of(&name(0), at(1_060)), Some([1.0, 0.0, 0.0]), "it is in use");
        assert_eq!(rates.of(&name(2), at(1_119)), Some([0.0; 3]), "nothing was lost for a minute");
    }
}
