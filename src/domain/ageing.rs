//! Ageing of priorities: an order of the due jobs of a topic in which waiting counts as much as priority.

use std::time::Duration;

use super::time::Time;

/// Waiting time that one level of priority is worth, more than zero. Due jobs are then delivered by their due time
/// minus this time for each level of their priority; of equals the one with the highest priority comes first, then the
/// one that arrived first. A job of priority 0 so waits for jobs that came up to nine times this later, and for no
/// others. Jobs that are not due have no part in it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PriorityAgeing {
    /// Microseconds, at most those of [`limit::PRIORITY_AGEING_MAX`](super::limit::PRIORITY_AGEING_MAX): sums with
    /// times are exact also in the scripts of Redis, which count in doubles.
    micros: i64,
}

// === impl PriorityAgeing ===

impl PriorityAgeing {
    /// Returns the ageing of a setting, rounded up to a microsecond; `None`: priorities are strict levels.
    #[must_use]
    pub fn of_setting(setting: Option<Duration>) -> Option<PriorityAgeing> {
        let micros = Time(0).plus(setting?).0;
        (micros > 0).then_some(PriorityAgeing { micros })
    }

    /// Returns the worth of one level.
    #[must_use]
    pub fn duration(self) -> Duration {
        Duration::from_micros(self.micros.unsigned_abs())
    }

    /// Returns the worth of one level in microseconds.
    #[must_use]
    pub fn micros(self) -> i64 {
        self.micros
    }

    /// Returns the time by which a due job is ordered, the earliest first.
    #[must_use]
    pub fn aged(self, due: Time, priority: u8) -> Time {
        Time(due.0.saturating_sub(self.micros.saturating_mul(i64::from(priority))))
    }

    /// Returns the due time before which the due jobs of priority `other` come before a job of priority `priority` that
    /// was due at `due`. Within one priority, those of the same due time are ordered by arrival.
    #[must_use]
    pub fn bound(self, due: Time, priority: u8, other: u8) -> Time {
        let levels = i64::from(other) - i64::from(priority);
        let equal = Time(due.0.saturating_add(self.micros.saturating_mul(levels)));
        // Of equals the one with the higher priority comes first.
        if levels > 0 { Time(equal.0.saturating_add(1)) } else { equal }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::domain::limit::{PRIORITY_AGEING_MAX, PRIORITY_MAX};

    fn ageing(micros: u64) -> PriorityAgeing {
        PriorityAgeing::of_setting(Some(Duration::from_micros(micros))).unwrap()
    }

    #[test]
    fn without_a_worth_priorities_are_strict_levels() {
        assert_eq!(PriorityAgeing::of_setting(None), None);
        assert_eq!(PriorityAgeing::of_setting(Some(Duration::ZERO)), None);
        let shortest = PriorityAgeing::of_setting(Some(Duration::from_nanos(1))).unwrap();
        assert_eq!((shortest.micros(), shortest), (1, ageing(1)));
    }

    #[test]
    fn the_bound_separates_the_jobs_before_one_from_those_after_it() {
        let ageing = ageing(10);
        for (priority, other) in (0..=3).flat_map(|one| (0..=3).map(move |two| (one, two))) {
            if priority == other {
                continue;
            }
            let own = (ageing.aged(Time(100), priority), PRIORITY_MAX - priority);
            let bound = ageing.bound(Time(100), priority, other);
            for due in 50..150 {
                let its = (ageing.aged(Time(due), other), PRIORITY_MAX - other);
                assert_eq!(its < own, Time(due) < bound, "{due} of {other}, {priority}");
            }
        }
    }

    #[test]
    fn the_longest_ageing_is_exact_in_doubles() {
        let longest = PriorityAgeing::of_setting(Some(PRIORITY_AGEING_MAX)).unwrap();
        let latest = Time((1 << 53) - 1);
        let most = longest.aged(Time(0), PRIORITY_MAX).0.abs();
        assert!(latest.0 - most > 0 && longest.aged(latest, 0) == latest);
        assert_eq!(longest.duration(), PRIORITY_AGEING_MAX);
    }
}
