//! Time as a decision sees it: what is counted from the moment at which it is committed, and for how long it holds.

use std::time::Duration;

use crate::domain::{Time, When};

/// A time of a record. One that a decision counted from its own time is counted again from the time at which the
/// decision is committed, which may be a little later: no delay is cut short. A store that keeps records as they are calls
/// [`Record::committed`](super::Record::committed) first: what is still counted from then narrows no window.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RecordTime {
    /// The time, as of the decision.
    pub at: Time,
    /// Whether it is counted from the time of the decision.
    pub from_now: bool,
}

/// The span of store time in which a decision holds: from `from` on, and before `until`. Committed outside of it, it
/// would be another decision.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ValidityWindow {
    /// The first moment.
    pub from: Time,
    /// The first moment after it.
    pub until: Time,
}

/// The store's time of a decision. Each comparison with it that decides anything narrows the window.
#[derive(Clone, Copy, Debug)]
pub(super) struct DecisionClock {
    now: Time,
    window: ValidityWindow,
}

// === impl Moment ===

impl RecordTime {
    /// A time that does not depend on when it is committed.
    #[must_use]
    pub fn fixed(at: Time) -> RecordTime {
        RecordTime { at, from_now: false }
    }

    /// The moment so much later.
    #[must_use]
    pub fn plus(self, duration: Duration) -> RecordTime {
        RecordTime { at: self.at.plus(duration), ..self }
    }

    /// The time that it is if the decision, made at `decided`, is committed at `committed`.
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

// === impl Window ===

impl ValidityWindow {
    /// Any time.
    pub const ALWAYS: ValidityWindow = ValidityWindow { from: Time(i64::MIN), until: Time::MAX };

    /// Whether a decision with this window holds at `now`.
    #[must_use]
    pub fn contains(self, now: Time) -> bool {
        self.from <= now && now < self.until
    }

    /// The time in which both hold.
    #[must_use]
    pub fn intersect(self, other: ValidityWindow) -> ValidityWindow {
        ValidityWindow { from: self.from.max(other.from), until: self.until.min(other.until) }
    }
}

// === impl Clock ===

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

    /// The moment of the commit.
    pub(super) fn now(&self) -> RecordTime {
        RecordTime { at: self.now, from_now: true }
    }

    /// The moment at which a job can run that is wanted at `when`; what has passed is now.
    pub(super) fn due(&self, when: When) -> RecordTime {
        match when {
            When::At(time) if time > self.now => RecordTime::fixed(time),
            When::At(_) | When::Now => self.now(),
            When::After(delay) => self.now().plus(delay),
        }
    }

    /// The moment that is meant, even if it has passed.
    pub(super) fn at(&self, when: When) -> RecordTime {
        match when {
            When::At(time) => RecordTime::fixed(time),
            When::Now => self.now(),
            When::After(delay) => self.now().plus(delay),
        }
    }

    /// Whether the moment has come.
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
