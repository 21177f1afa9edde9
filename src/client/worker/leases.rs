//! The leases that a worker holds, and when each must be extended. Times are those of this machine:
//! a lease is counted from its arrival, which is later than its begin, so each Extend goes out when
//! half of it is over.

use std::collections::{BTreeSet, HashMap};
use std::time::Duration;

use tokio::time::Instant;

/// A job in hand, in the order of arrival.
pub(super) type Slot = u64;

/// A lease that could not be extended is tried again after this part of it.
const RETRY_PART: u32 = 10;

/// All leases in hand.
#[derive(Debug, Default)]
pub(super) struct Leases {
    next: Slot,
    held: HashMap<Slot, Held>,
    /// The alarm of each.
    alarms: BTreeSet<(Instant, Slot)>,
}

#[derive(Debug)]
struct Held {
    receipt: String,
    duration: Duration,
    expires: Instant,
    alarm: Instant,
    /// An Extend is under way; the alarm is then the end of the lease.
    extending: bool,
}

/// What the clock demands.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Due {
    /// To be extended.
    pub(super) extend: Vec<Slot>,
    /// Over: not in hand any more.
    pub(super) lost: Vec<Slot>,
}

// === impl Leases ===

impl Leases {
    /// Takes a lease in hand.
    pub(super) fn insert(&mut self, receipt: String, duration: Duration, now: Instant) -> Slot {
        let slot = self.next;
        self.next += 1;
        let alarm = now + duration / 2;
        let held = Held { receipt, duration, expires: now + duration, alarm, extending: false };
        self.held.insert(slot, held);
        self.alarms.insert((alarm, slot));
        slot
    }

    /// Lets one go: whether it was in hand.
    pub(super) fn remove(&mut self, slot: Slot) -> bool {
        let Some(held) = self.held.remove(&slot) else { return false };
        self.alarms.remove(&(held.alarm, slot));
        true
    }

    /// Whether it is in hand.
    pub(super) fn holds(&self, slot: Slot) -> bool {
        self.held.contains_key(&slot)
    }

    /// Whether there is none.
    pub(super) fn is_empty(&self) -> bool {
        self.held.is_empty()
    }

    /// The receipt and the end of a lease.
    pub(super) fn get(&self, slot: Slot) -> Option<(&str, Instant)> {
        self.held.get(&slot).map(|held| (held.receipt.as_str(), held.expires))
    }

    /// The lease of a receipt. Looks at all: only revocations ask, and they are rare.
    pub(super) fn find(&self, receipt: &str) -> Option<Slot> {
        self.held.iter().find(|(_, held)| held.receipt == receipt).map(|(slot, _)| *slot)
    }

    /// When something is due next.
    pub(super) fn alarm(&self) -> Option<Instant> {
        self.alarms.first().map(|(alarm, _)| *alarm)
    }

    /// All that is due at `now`. What is to be extended counts as being extended from here on.
    pub(super) fn due(&mut self, now: Instant) -> Due {
        let mut due = Due::default();
        while let Some((alarm, slot)) = self.alarms.first().copied()
            && alarm <= now
        {
            if self.held[&slot].expires <= now {
                self.remove(slot);
                due.lost.push(slot);
            } else {
                self.begin(slot);
                due.extend.push(slot);
            }
        }
        due
    }

    /// An Extend of this lease goes out.
    pub(super) fn begin(&mut self, slot: Slot) {
        self.change(slot, |held| {
            held.extending = true;
            held.alarm = held.expires;
        });
    }

    /// The Extend that was sent at `sent` has counted.
    pub(super) fn extended(&mut self, slot: Slot, sent: Instant) {
        self.change(slot, |held| {
            held.extending = false;
            held.expires = held.expires.max(sent + held.duration);
            held.alarm = sent + held.duration / 2;
        });
    }

    /// The Extend did not get through: it is tried again soon.
    pub(super) fn not_extended(&mut self, slot: Slot, now: Instant) {
        self.change(slot, |held| {
            held.extending = false;
            held.alarm = held.expires.min(now + held.duration / RETRY_PART);
        });
    }

    fn change(&mut self, slot: Slot, change: impl FnOnce(&mut Held)) {
        let Some(held) = self.held.get_mut(&slot) else { return };
        self.alarms.remove(&(held.alarm, slot));
        change(held);
        self.alarms.insert((held.alarm, slot));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LEASE: Duration = Duration::from_secs(30);

    fn one() -> (Leases, Slot, Instant) {
        let (mut leases, now) = (Leases::default(), Instant::now());
        let slot = leases.insert("r".into(), LEASE, now);
        (leases, slot, now)
    }

    fn extend(slot: Slot) -> Due {
        Due { extend: vec![slot], lost: vec![] }
    }

    fn lost(slot: Slot) -> Due {
        Due { extend: vec![], lost: vec![slot] }
    }

    #[test]
    fn a_lease_is_extended_when_half_of_it_is_over() {
        let (mut leases, slot, now) = one();
        assert_eq!(leases.alarm(), Some(now + LEASE / 2));
        assert_eq!(leases.due(now + LEASE / 2 - Duration::from_millis(1)), Due::default());
        assert_eq!(leases.due(now + LEASE / 2), extend(slot));
        assert_eq!(leases.alarm(), Some(now + LEASE), "one Extend at a time");
        leases.extended(slot, now + LEASE / 2);
        assert_eq!(leases.alarm(), Some(now + LEASE));
        assert_eq!(leases.due(now + LEASE), extend(slot));
    }

    #[test]
    fn a_failed_extend_is_repeated_until_the_lease_is_over() {
        let (mut leases, slot, now) = one();
        let mut time = now + LEASE / 2;
        let mut extends = 0;
        while leases.due(time) == extend(slot) {
            extends += 1;
            leases.not_extended(slot, time);
            time = leases.alarm().unwrap();
        }
        assert_eq!((extends, time), (5, now + LEASE));
        assert!(!leases.holds(slot) && leases.is_empty() && leases.alarm().is_none());
    }

    #[test]
    fn an_extend_without_an_answer_does_not_keep_a_lease() {
        let (mut leases, slot, now) = one();
        assert_eq!(leases.due(now + LEASE / 2), extend(slot));
        assert_eq!(leases.due(now + LEASE), lost(slot));
        leases.extended(slot, now + LEASE / 2);
        assert!(leases.is_empty(), "an answer after that changes nothing");
    }

    #[test]
    fn what_is_settled_needs_nothing() {
        let (mut leases, slot, now) = one();
        assert_eq!(leases.find("r"), Some(slot));
        assert!(leases.remove(slot) && !leases.remove(slot));
        assert_eq!(leases.due(now + LEASE), Due::default());
        assert_eq!(leases.find("r"), None);
    }
}
