//! Leases that a worker holds, and the time at which each must be extended. Times are those of this machine: a lease
//! is counted from its arrival, which is later than its start, so each Extend goes out when half of it is over.

use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::time::Instant;

use crate::backoff::{Backoff, BackoffRange};

/// Number of a held job, in the order of arrival.
pub(super) type JobSlot = u64;

/// Shortest and longest pause before a failed Extend is repeated, for leases of any length. The first repeats come soon:
/// a server whose stream broke releases leases that are not extended within its grace.
const RETRY_BACKOFF: BackoffRange =
    BackoffRange { min: Duration::from_millis(100), max: Duration::from_secs(1) };
/// Part of a lease: the longest pause of short leases.
const RETRY_PART: u32 = 10;
/// Part of a lease: leases due within it are extended along with those due now.
const COALESCE_PART: u32 = 10;

/// All held leases.
#[derive(Debug, Default)]
pub(super) struct Leases {
    next: JobSlot,
    held: HashMap<JobSlot, HeldLease>,
    slots: HashMap<Arc<str>, JobSlot>,
    /// Time of the next action for each lease.
    deadlines: BTreeSet<(Instant, JobSlot)>,
}

#[derive(Debug)]
struct HeldLease {
    job: Arc<str>,
    receipt: Arc<str>,
    duration: Duration,
    expires: LeaseEnd,
    phase: LeasePhase,
    /// Pauses before repeats of a failed Extend.
    pauses: Backoff,
    /// Number of Extends that have failed since one succeeded.
    failures: usize,
    /// Set while a settle is in flight: only its answer decides the outcome. Until then the lease is extended, so that
    /// a settle that has to be repeated still counts.
    is_settling: bool,
}

/// End of a lease of this length. Clones see it move.
#[derive(Clone, Debug)]
pub(super) struct LeaseEnd {
    end: Arc<Mutex<Instant>>,
    duration: Duration,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum LeasePhase {
    /// The next Extend is due at this time.
    Idle(Instant),
    /// An Extend is in flight.
    Extending,
    /// The lease is over, and the answer to its settle is still to come.
    Over,
}

/// Actions due at a time.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct DueLeases {
    /// Leases to extend.
    pub(super) extend: Vec<JobSlot>,
    /// Leases that have expired, each with its job. They are not held any more.
    pub(super) expired: Vec<(JobSlot, Arc<str>)>,
}

// === impl Leases ===

impl Leases {
    /// Adds the lease of a held job; `job` is its name in logs.
    pub(super) fn insert(
        &mut self,
        job: String,
        receipt: &str,
        duration: Duration,
        now: Instant,
    ) -> JobSlot {
        let slot = self.next;
        self.next += 1;
        let receipt: Arc<str> = receipt.into();
        let phase = LeasePhase::Idle(now + duration / 2);
        let (job, expires) = (job.into(), LeaseEnd::new(now, duration));
        let longest = longest_pause(duration);
        let pauses =
            Backoff::new(BackoffRange { min: RETRY_BACKOFF.min.min(longest), max: longest });
        let (receipt_of, is_settling) = (receipt.clone(), false);
        let held = HeldLease {
            job,
            receipt: receipt_of,
            duration,
            expires,
            phase,
            pauses,
            failures: 0,
            is_settling,
        };
        self.deadlines.extend(held.deadline().map(|alarm| (alarm, slot)));
        self.held.insert(slot, held);
        self.slots.insert(receipt, slot);
        slot
    }

    /// Removes a lease; returns its job, if it was held.
    pub(super) fn remove(&mut self, slot: JobSlot) -> Option<Arc<str>> {
        let held = self.held.remove(&slot)?;
        if let Some(alarm) = held.deadline() {
            self.deadlines.remove(&(alarm, slot));
        }
        // If a receipt came twice, it belongs to the later slot.
        if self.slots.get(&held.receipt) == Some(&slot) {
            self.slots.remove(&held.receipt);
        }
        Some(held.job)
    }

    /// Removes all leases, also those that are being settled; returns their jobs.
    pub(super) fn remove_all(&mut self) -> Vec<(JobSlot, Arc<str>)> {
        let slots: Vec<_> = self.held.keys().copied().collect();
        slots.into_iter().filter_map(|slot| Some((slot, self.remove(slot)?))).collect()
    }

    /// Returns the job of a held lease.
    pub(super) fn job(&self, slot: JobSlot) -> Option<&Arc<str>> {
        self.held.get(&slot).map(|held| &held.job)
    }

    /// Returns the number of held leases.
    pub(super) fn len(&self) -> usize {
        self.held.len()
    }

    /// Returns whether a settle of the lease is in flight.
    pub(super) fn is_settling(&self, slot: JobSlot) -> bool {
        self.held.get(&slot).is_some_and(|held| held.is_settling)
    }

    /// Returns the receipt of a lease.
    pub(super) fn receipt(&self, slot: JobSlot) -> Option<&Arc<str>> {
        self.held.get(&slot).map(|held| &held.receipt)
    }

    /// Returns the length of a lease.
    pub(super) fn duration(&self, slot: JobSlot) -> Option<Duration> {
        self.held.get(&slot).map(|held| held.duration)
    }

    /// Returns the lease of a receipt.
    pub(super) fn find_by_receipt(&self, receipt: &str) -> Option<JobSlot> {
        self.slots.get(receipt).copied()
    }

    /// Returns the time of the next action.
    pub(super) fn next_deadline(&self) -> Option<Instant> {
        self.deadlines.first().map(|(alarm, _)| *alarm)
    }

    /// Returns the actions due at `now`. The leases to extend are marked as being extended.
    pub(super) fn due(&mut self, now: Instant) -> DueLeases {
        let mut due = DueLeases::default();
        while let Some((alarm, slot)) = self.deadlines.first().copied() {
            let held = &self.held[&slot];
            if held.expires.time() <= now && held.is_settling {
                self.change(slot, |held| held.phase = LeasePhase::Over);
                continue;
            }
            if held.expires.time() <= now {
                due.expired.extend(self.remove(slot).map(|job| (slot, job)));
                continue;
            }
            let early = if due.extend.is_empty() { 0 } else { 1 };
            let together = held.duration / COALESCE_PART * early;
            if alarm > now + together || !self.extend(slot) {
                break;
            }
            due.extend.push(slot);
        }
        due
    }

    /// Marks the lease as being extended; returns false if an Extend is in flight.
    pub(super) fn extend(&mut self, slot: JobSlot) -> bool {
        let is_kept = |held: &HeldLease| matches!(held.phase, LeasePhase::Idle(_));
        if !self.held.get(&slot).is_some_and(is_kept) {
            return false;
        }
        self.change(slot, |held| held.phase = LeasePhase::Extending);
        true
    }

    /// Marks all leases as being extended, also those with an Extend in flight, and returns them. If these Extends fail,
    /// they are repeated as soon as after a first failure.
    pub(super) fn extend_all(&mut self) -> Vec<JobSlot> {
        let slots: Vec<_> = self.held.keys().copied().collect();
        for slot in &slots {
            self.change(*slot, |held| {
                held.phase = LeasePhase::Extending;
                held.pauses.reset();
            });
        }
        slots
    }

    /// Records a successful Extend that was sent at `sent`.
    pub(super) fn extended(&mut self, slot: JobSlot, sent: Instant) {
        self.change(slot, |held| {
            held.expires.move_to(sent + held.duration);
            held.phase = LeasePhase::Idle(sent + held.duration / 2);
            held.pauses.reset();
            held.failures = 0;
        });
    }

    /// Records a failed Extend: it is retried soon, not before the server's delay as far as the lease allows that.
    pub(super) fn extend_failed(&mut self, slot: JobSlot, now: Instant, delay: Duration) {
        self.change(slot, |held| {
            let delay = delay.min(longest_pause(held.duration));
            held.phase = LeasePhase::Idle(now + held.pauses.next_delay().max(delay));
            held.failures += 1;
        });
    }

    /// Returns the number of Extends of a lease that have failed since one succeeded.
    pub(super) fn extend_failures(&self, slot: JobSlot) -> usize {
        self.held.get(&slot).map_or(0, |held| held.failures)
    }

    /// Marks the lease as being settled; returns its receipt and its end, if it is held.
    pub(super) fn settle(&mut self, slot: JobSlot) -> Option<(Arc<str>, LeaseEnd)> {
        let held = self.held.get_mut(&slot)?;
        held.is_settling = true;
        Some((held.receipt.clone(), held.expires.clone()))
    }

    fn change(&mut self, slot: JobSlot, change: impl FnOnce(&mut HeldLease)) {
        let Some(held) = self.held.get_mut(&slot) else { return };
        if let Some(alarm) = held.deadline() {
            self.deadlines.remove(&(alarm, slot));
        }
        change(held);
        self.deadlines.extend(held.deadline().map(|alarm| (alarm, slot)));
    }
}

// === impl HeldLease ===

impl HeldLease {
    fn deadline(&self) -> Option<Instant> {
        match self.phase {
            LeasePhase::Idle(time) => Some(time.min(self.expires.time())),
            LeasePhase::Extending => Some(self.expires.time()),
            LeasePhase::Over => None,
        }
    }
}

/// Returns the longest pause before a failed Extend of a lease of this length is repeated.
fn longest_pause(duration: Duration) -> Duration {
    RETRY_BACKOFF.max.min(duration / RETRY_PART)
}

// === impl LeaseEnd ===

impl LeaseEnd {
    pub(super) fn new(start: Instant, duration: Duration) -> LeaseEnd {
        LeaseEnd { end: Arc::new(Mutex::new(start + duration)), duration }
    }

    /// Returns the length of the lease.
    pub(super) fn duration(&self) -> Duration {
        self.duration
    }

    pub(super) fn time(&self) -> Instant {
        *self.end.lock()
    }

    /// Moves the end to a later time.
    fn move_to(&self, end: Instant) {
        let mut time = self.end.lock();
        *time = (*time).max(end);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LEASE: Duration = Duration::from_secs(30);

    fn one_lease() -> (Leases, JobSlot, Instant) {
        let (mut leases, now) = (Leases::default(), Instant::now());
        let slot = leases.insert("t/a".into(), "r", LEASE, now);
        (leases, slot, now)
    }

    fn extend(slot: JobSlot) -> DueLeases {
        DueLeases { extend: vec![slot], expired: vec![] }
    }

    fn lost(slot: JobSlot) -> DueLeases {
        DueLeases { extend: vec![], expired: vec![(slot, "t/a".into())] }
    }

    #[test]
    fn a_lease_is_extended_when_half_of_it_is_over() {
        let (mut leases, slot, now) = one_lease();
        assert_eq!(leases.next_deadline(), Some(now + LEASE / 2));
        assert_eq!(leases.due(now + LEASE / 2 - Duration::from_millis(1)), DueLeases::default());
        assert_eq!(leases.due(now + LEASE / 2), extend(slot));
        assert_eq!(leases.next_deadline(), Some(now + LEASE), "one Extend at a time");
        leases.extended(slot, now + LEASE / 2);
        assert_eq!(leases.next_deadline(), Some(now + LEASE));
        assert_eq!(leases.due(now + LEASE), extend(slot));
    }

    #[test]
    fn a_failed_extend_is_repeated_with_growing_pauses_until_the_lease_is_over() {
        let (mut leases, slot, now) = one_lease();
        let mut times = vec![now + LEASE / 2];
        while leases.due(times[times.len() - 1]) == extend(slot) {
            leases.extend_failed(slot, times[times.len() - 1], Duration::ZERO);
            times.push(leases.next_deadline().unwrap());
        }
        assert!(times[3] - times[0] <= Duration::from_millis(700), "soon at first: {times:?}");
        // A pause of 0.1, 0.2, 0.4, 0.8 s and then 1 s, half of it random.
        assert!((18..=34).contains(&times.len()), "{} attempts", times.len());
        assert_eq!(times[times.len() - 1], now + LEASE);
        assert!(leases.len() == 0 && leases.next_deadline().is_none());
    }

    #[test]
    fn a_failed_extend_of_a_short_lease_is_repeated_within_a_tenth_of_it() {
        let (mut leases, now) = (Leases::default(), Instant::now());
        let second = Duration::from_secs(1);
        let slot = leases.insert(String::new(), "r", second / 2, now);
        for _ in 0..3 {
            assert_eq!(leases.due(now + second / 4), extend(slot));
            // The server asks for more than such a lease has.
            leases.extend_failed(slot, now, second);
            assert!(leases.next_deadline().unwrap() <= now + second / 20);
        }
    }

    #[test]
    fn the_first_repeat_comes_soon_again_after_a_success_and_after_a_break() {
        let (mut leases, slot, now) = one_lease();
        let fail = |leases: &mut Leases| leases.extend_failed(slot, now, Duration::ZERO);
        for is_break in [false, true] {
            (0..5).for_each(|_| fail(&mut leases));
            assert_eq!(leases.extend_failures(slot), 5);
            if is_break {
                leases.extend_all();
            } else {
                leases.extended(slot, now);
                assert_eq!(leases.extend_failures(slot), 0);
            }
            fail(&mut leases);
            assert!(leases.next_deadline().unwrap() <= now + RETRY_BACKOFF.min);
            leases.extended(slot, now);
        }
    }

    #[test]
    fn a_failed_extend_waits_for_the_delay_of_the_server() {
        let (mut leases, slot, now) = one_lease();
        leases.extend_failed(slot, now, RETRY_BACKOFF.max / 2);
        assert_eq!(leases.next_deadline(), Some(now + RETRY_BACKOFF.max / 2));
    }

    #[test]
    fn an_extend_without_an_answer_does_not_keep_a_lease() {
        let (mut leases, slot, now) = one_lease();
        assert_eq!(leases.due(now + LEASE / 2), extend(slot));
        assert_eq!(leases.due(now + LEASE), lost(slot));
        leases.extended(slot, now + LEASE / 2);
        assert!(leases.len() == 0, "an answer after that changes nothing");
    }

    #[test]
    fn a_settled_lease_has_no_deadline() {
        let (mut leases, slot, now) = one_lease();
        assert_eq!(leases.find_by_receipt("r"), Some(slot));
        assert_eq!((leases.remove(slot), leases.remove(slot)), (Some("t/a".into()), None));
        assert_eq!(leases.due(now + LEASE), DueLeases::default());
        assert_eq!(leases.find_by_receipt("r"), None);
    }

    #[test]
    fn a_lease_is_extended_while_its_settle_is_in_flight() {
        let (mut leases, slot, now) = one_lease();
        let (receipt, end) = leases.settle(slot).unwrap();
        assert_eq!((receipt.as_ref(), end.time()), ("r", now + LEASE));
        assert_eq!(leases.due(now + LEASE / 2), extend(slot));
        assert!(leases.is_settling(slot) && !leases.extend(slot), "one Extend at a time");
        leases.extended(slot, now + LEASE / 2);
        assert_eq!(end.time(), now + LEASE + LEASE / 2, "the settle counts until then");
        assert!(leases.remove(slot).is_some());
        assert!(leases.settle(slot).is_none() && leases.next_deadline().is_none());
    }

    #[test]
    fn a_settle_in_flight_decides_after_the_end_of_the_lease() {
        let (mut leases, slot, now) = one_lease();
        leases.settle(slot);
        assert_eq!(leases.due(now + LEASE / 2), extend(slot));
        assert_eq!(leases.due(now + LEASE), DueLeases::default());
        assert_eq!((leases.len(), leases.next_deadline()), (1, None));
    }

    #[test]
    fn all_leases_are_extended_also_those_with_an_extend_in_flight() {
        let (mut leases, slot, now) = one_lease();
        assert_eq!(leases.due(now + LEASE / 2), extend(slot));
        assert_eq!(leases.extend_all(), [slot]);
        leases.extended(slot, now + LEASE / 2);
        assert_eq!(leases.next_deadline(), Some(now + LEASE));
    }

    #[test]
    fn leases_that_are_due_soon_are_extended_together() {
        let (mut leases, now) = (Leases::default(), Instant::now());
        let second = Duration::from_secs(1);
        let insert = |i| leases.insert(String::new(), "r", LEASE, now + second * i);
        let slots: Vec<_> = (0..6).map(insert).collect();
        assert_eq!(leases.due(now + LEASE / 2 - second), DueLeases::default());
        assert_eq!(leases.due(now + LEASE / 2).extend, slots[..4]);
        assert_eq!(leases.next_deadline(), Some(now + LEASE / 2 + second * 4));
    }
}
