//! A stream that gets nothing more because of what it holds: other replicas may have settled that, and the
//! message been lost. So the store is asked, seldomer the longer nothing comes of it.

use std::time::Duration;

use crate::domain::Time;

use super::Ledger;

/// First and longest pause before the store is asked.
const PAUSES: (Duration, Duration) = (Duration::from_secs(1), Duration::from_secs(30));

/// Since a feed was told to wait for credit.
pub(super) struct Starved {
    /// When the store is to be asked.
    at: Time,
    pause: Duration,
}

// === impl Ledger ===

impl Ledger {
    /// Tells whether other replicas settle leases of this stream, too.
    pub(in crate::dispatch) fn shared(self, shared: bool) -> Ledger {
        Ledger { shared, ..self }
    }

    /// Notes whether some feed waits for credit. A pull is over before it could matter.
    pub(super) fn starve(&mut self, now: Time) {
        if self.dozing.iter().all(Option::is_none) {
            self.starved = None;
        } else if self.shared && !self.once && self.starved.is_none() {
            let at = now.plus(PAUSES.0);
            self.starved = Some(Starved { at, pause: PAUSES.0 });
            self.look_at = self.look_at.min(at);
        }
    }

    /// Whether the store is to be asked now about everything that was sent.
    pub(super) fn is_starved(&self, now: Time) -> bool {
        self.starved.as_ref().is_some_and(|starved| starved.at <= now)
    }

    /// When it is to be asked next. `asked`: there is something to be asked about, and that is done now.
    pub(super) fn next_if_starved(&mut self, now: Time, asked: bool) -> Time {
        let Some(starved) = &mut self.starved else { return Time::MAX };
        if starved.at <= now {
            if asked {
                starved.pause = (starved.pause * 2).min(PAUSES.1);
            }
            starved.at = now.plus(starved.pause);
        }
        starved.at
    }
}
