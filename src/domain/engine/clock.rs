//! Time as a decision sees it: what is counted from the moment at which it is committed, and for how long it holds.

use std::time::Duration;

use crate::domain::{Time, When};

/// A time of a record. One that a decision counted from its own time is counted again from the time at which the
/// decision is committed, which may be a little later: no delay is cut short. A store that keeps records as they are calls
/// [`Record::committed`](super::Record::committed) first: what is still counted from then narrows no window.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Moment {
    /// The time, as of the decision.
    pub at: Time,
    /// Whether it is counted from the time of the decision.
    pub from_now: bool,
}

/// The span of store time in which a decision holds: from `from` on, and before `until`. Committed outside of it, it
/// would be another decision.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Window {
    /// The first moment.
    pub from: Time,
    /// The first moment after it.
    pub until: Time,
}

/// The store's time of a decision. Each comparison with it that decides anything narrows the window.
#[derive(Clone, Copy, Debug)]
pub(super) struct Clock {
    now: Time,
    window: Window,
}

// === impl Moment ===

impl Moment {
    /// A time that does not depend on when it is committed.
    #[must_use]
    pub fn fixed(at: Time) -> Moment {
        Moment { at, from_now: false }
    }

    /// The moment so much later.
    #[must_use]
    pub fn plus(self, duration: Duration) -> Moment {
        Moment { at: self.at.plus(duration), ..self }
    }

    /// The time that it is if the decision, made at `decided`, is committed at `committed`.
    #[must_use]
    pub fn committed(self, decided: Time, committed: Time) -> Time {
        if self.from_now {
            Time(self.at.0.saturating_add(committed.0.saturating_sub(decided.0)))
        } else {
            self.at
        }
    }
}

impl From<Time> for Moment {
    fn from(at: Time) -> Moment {
        Moment::fixed(at)
    }
}

// === impl Window ===

impl Window {
    /// Any time.
    pub const ALWAYS: Window = Window { from: Time(i64::MIN), until: Time::MAX };

    /// Whether a decision with this window holds at `now`.
    #[must_use]
    pub fn holds(self, now: Time) -> bool {
        self.from <= now && now < self.until
    }

    /// The time in which both hold.
    #[must_use]
    pub fn and(self, other: Window) -> Window {
        Window { from: self.from.max(other.from), until: self.until.min(other.until) }
    }
}

// === impl Clock ===

impl Clock {
    pub(super) fn new(now: Time) -> Clock {
        Clock { now, window: Window::ALWAYS }
    }

    pub(super) fn time(&self) -> Time {
        self.now
    }

    pub(super) fn window(&self) -> Window {
        self.window
    }

    /// The moment of the commit.
    pub(super) fn now(&self) -> Moment {
        Moment { at: self.now, from_now: true }
    }

    /// The moment at which a job can run that is wanted at `when`; what has passed is now.
    pub(super) fn due(&self, when: When) -> Moment {
        match when {
            When::At(time) if time > self.now => Moment::fixed(time),
            When::At(_) | When::Now => self.now(),
            When::After(delay) => self.now().plus(delay),
        }
    }

    /// The moment that is meant, even if it has passed.
    pub(super) fn at(&self, when: When) -> Moment {
        match when {
            When::At(time) => Moment::fixed(time),
            When::Now => self.now(),
            When::After(delay) => self.now().plus(delay),
        }
    }

    /// Whether the moment has come.
    pub(super) fn has_come(&mut self, moment: Moment) -> bool {
        let has_come = moment.at <= self.now;
        if !moment.from_now {
            let Window { from, until } = &mut self.window;
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
        let mut clock = Clock::new(Time(10));
        assert!(clock.has_come(Time(10).into()) && clock.has_come(Time(7).into()));
        assert!(!clock.has_come(Time(12).into()) && !clock.has_come(Time(11).into()));
        assert!(
            clock.has_come(clock.now())
                && !clock.has_come(clock.now().plus(Duration::from_secs(1)))
        );
        assert_eq!(clock.window(), Window { from: Time(10), until: Time(11) });
        assert_eq!([9, 10, 11].map(|now| clock.window().holds(Time(now))), [false, true, false]);
    }

    #[test]
    fn what_is_counted_from_now_moves_with_the_commit() {
        let clock = Clock::new(Time(100));
        let due = |when| clock.due(when).committed(Time(100), Time(130));
        assert_eq!(due(When::After(Duration::from_micros(5))), Time(135));
        assert_eq!(due(When::Now), Time(130));
        assert_eq!(due(When::At(Time(50))), Time(130), "what has passed is now");
        assert_eq!(due(When::At(Time(500))), Time(500));
    }
}
