//! Time in a decision: times that are counted from its commit, and the span of time in which it is valid.

use std::time::Duration;

use crate::domain::{Time, When};

/// A time of a record. A time that a decision counted from its own time is counted again from the time of its commit,
/// which may be a little later: no delay is cut short. A store that keeps records as they are calls
/// [`Record::committed`](super::Record::committed) first: a time still counted from the decision narrows no window.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RecordTime {
    /// Time, as of the decision.
    pub at: Time,
    /// True if the time is counted from the time of the decision.
    pub from_now: bool,
}

/// Span of store time in which a decision is valid: from `from` on, and before `until`. Outside of it the engine would
/// decide otherwise.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ValidityWindow {
    /// First valid time.
    pub from: Time,
    /// First time after the span.
    pub until: Time,
}

/// Store time of a decision. Each comparison with it that affects the decision narrows the window.
#[derive(Clone, Copy, Debug)]
pub(super) struct DecisionClock {
    now: Time,
    window: ValidityWindow,
}

// === impl RecordTime ===

impl RecordTime {
    /// Returns a time that does not depend on the time of the commit.
    #[must_use]
    pub fn fixed(at: Time) -> RecordTime {
        RecordTime { at, from_now: false }
    }

    /// Returns this time plus `duration`.
    #[must_use]
    pub fn plus(self, duration: Duration) -> RecordTime {
        RecordTime { at: self.at.plus(duration), ..self }
    }

    /// Returns the time that results if the decision, made at `decided`, is committed at `committed`.
    #[must_use]
    pub fn at_commit(self, decided: Time, committed: Time) -> Time {
        if self.from_now {
            Time(self.at.0.saturating_add(committed.0.saturating_sub(decided.0)))
        } else {
            self.at
        }
    }
}

impl From<Time> for RecordTime {
    fn from(at: Time) -> RecordTime {
        RecordTime::fixed(at)
    }
}

// === impl ValidityWindow ===

impl ValidityWindow {
    /// Window of a decision that is valid at any time.
    pub const ALWAYS: ValidityWindow = ValidityWindow { from: Time(i64::MIN), until: Time::MAX };

    /// Returns whether a decision with this window is valid at `now`.
    #[must_use]
    pub fn contains(self, now: Time) -> bool {
        self.from <= now && now < self.until
    }

    /// Returns the span in which both are valid.
    #[must_use]
    pub fn intersect(self, other: ValidityWindow) -> ValidityWindow {
        ValidityWindow { from: self.from.max(other.from), until: self.until.min(other.until) }
    }
}

// === impl DecisionClock ===

impl DecisionClock {
    pub(super) fn new(now: Time) -> DecisionClock {
        DecisionClock { now, window: ValidityWindow::ALWAYS }
    }

    pub(super) fn time(&self) -> Time {
        self.now
    }

    pub(super) fn window(&self) -> ValidityWindow {
        self.window
    }

    /// Returns the time of the commit.
    pub(super) fn now(&self) -> RecordTime {
        RecordTime { at: self.now, from_now: true }
    }

    /// Returns the due time of a job requested for `when`; a time that has passed becomes now.
    pub(super) fn due(&self, when: When) -> RecordTime {
        match when {
            When::At(time) if time > self.now => RecordTime::fixed(time),
            When::At(_) | When::Now => self.now(),
            When::After(delay) => self.now().plus(delay),
        }
    }

    /// Returns the time that `when` means, even if it has passed.
    pub(super) fn at(&self, when: When) -> RecordTime {
        match when {
            When::At(time) => RecordTime::fixed(time),
            When::Now => self.now(),
            When::After(delay) => self.now().plus(delay),
        }
    }

    /// Returns whether the time has come, and narrows the window accordingly.
    pub(super) fn is_reached(&mut self, moment: RecordTime) -> bool {
        let has_come = moment.at <= self.now;
        if !moment.from_now {
            let ValidityWindow { from, until } = &mut self.window;
            if has_come {
                *from = moment.at.max(*from);
            } else {
                *until = moment.at.min(*until);
            }
        }
        has_come
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_comparison_narrows_the_window() {
        let mut clock = DecisionClock::new(Time(10));
        assert!(clock.is_reached(Time(10).into()) && clock.is_reached(Time(7).into()));
        assert!(!clock.is_reached(Time(12).into()) && !clock.is_reached(Time(11).into()));
        assert!(
            clock.is_reached(clock.now())
                && !clock.is_reached(clock.now().plus(Duration::from_secs(1)))
        );
        assert_eq!(clock.window(), ValidityWindow { from: Time(10), until: Time(11) });
        assert_eq!([9, 10, 11].map(|now| clock.window().contains(Time(now))), [false, true, false]);
    }

    #[test]
    fn what_is_counted_from_now_moves_with_the_commit() {
        let clock = DecisionClock::new(Time(100));
        let due = |when| clock.due(when).at_commit(Time(100), Time(130));
        assert_eq!(due(When::After(Duration::from_micros(5))), Time(135));
        assert_eq!(due(When::Now), Time(130));
        assert_eq!(due(When::At(Time(50))), Time(130), "what has passed is now");
        assert_eq!(due(When::At(Time(500))), Time(500));
    }
}
