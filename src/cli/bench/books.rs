//! The books of a round: each number must be enqueued, delivered and acknowledged exactly once,
//! with its body intact and never early.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicU8, AtomicU64, Ordering::Relaxed};

use super::balance::{
    ACKED, Balance, DELIVERED, DOUBLED, Demand, EARLY, ENQUEUED, Faults, REFUSED,
};

/// Jobs of a round at most; their marks take a byte each.
pub(super) const JOBS_MAX: u32 = 200_000_000;

/// Marks are made room for in pieces of this size, because a timed run does not know its length.
const PIECE: u32 = 1 << 16;

/// The books.
pub(super) struct Books {
    pieces: Box<[OnceLock<Box<[AtomicU8]>>]>,
    enqueued: AtomicU64,
    delivered: AtomicU64,
    acked: AtomicU64,
    foreign: AtomicU64,
    damaged: AtomicU64,
}

// === impl Books ===

impl Books {
    /// Empty ones.
    pub(super) fn new() -> Books {
        let pieces = JOBS_MAX.div_ceil(PIECE);
        Books {
            pieces: (0..pieces).map(|_| OnceLock::new()).collect(),
            enqueued: AtomicU64::new(0),
            delivered: AtomicU64::new(0),
            acked: AtomicU64::new(0),
            foreign: AtomicU64::new(0),
            damaged: AtomicU64::new(0),
        }
    }

    /// Enters an enqueue that was confirmed.
    pub(super) fn enqueued(&self, number: u32) {
        self.enter(number, ENQUEUED, &self.enqueued);
    }

    /// Enters a delivery.
    pub(super) fn delivered(&self, number: u32, early: bool) {
        if !self.enter(number, DELIVERED, &self.delivered) {
            self.mark(number, DOUBLED);
        }
        if early {
            self.mark(number, EARLY);
        }
    }

    /// Enters an ack that was confirmed.
    pub(super) fn acked(&self, number: u32) {
        self.enter(number, ACKED, &self.acked);
    }

    /// Enters an ack that was refused.
    pub(super) fn refused(&self, number: u32) {
        self.mark(number, REFUSED);
    }

    /// Enters a delivery that is none of this run.
    pub(super) fn foreign(&self) {
        self.foreign.fetch_add(1, Relaxed);
    }

    /// Enters a delivery whose body is not what was sent.
    pub(super) fn damaged(&self) {
        self.damaged.fetch_add(1, Relaxed);
    }

    /// How many numbers have been enqueued.
    pub(super) fn enqueues(&self) -> u64 {
        self.enqueued.load(Relaxed)
    }

    /// How many numbers have been acknowledged.
    pub(super) fn acks(&self) -> u64 {
        self.acked.load(Relaxed)
    }

    /// Compares the three sets, number by number, for the numbers below `jobs`.
    pub(super) fn balance(&self, jobs: u32, demand: Demand) -> Balance {
        let mut faults = Faults::default();
        for number in 0..jobs {
            faults.look(number, self.piece(number)[at(number)].load(Relaxed), demand);
        }
        let [enqueued, delivered, acked, foreign, damaged] =
            [&self.enqueued, &self.delivered, &self.acked, &self.foreign, &self.damaged]
                .map(|count| count.load(Relaxed));
        let (doubled, early) = (faults.doubled.count, faults.early.count);
        let mut faults = faults.sentences();
        if foreign > 0 {
            faults.push(format!("jobs that are not this run's came {}", times(foreign)));
        }
        if damaged > 0 {
            faults.push(format!("a job with a damaged body came {}", times(damaged)));
        }
        Balance { enqueued, delivered, acked, doubled, early, foreign, damaged, faults }
    }

    /// Sets a mark and counts it; false if it was there.
    fn enter(&self, number: u32, mark: u8, count: &AtomicU64) -> bool {
        let new = self.mark(number, mark);
        if new {
            count.fetch_add(1, Relaxed);
        }
        new
    }

    fn mark(&self, number: u32, mark: u8) -> bool {
        self.piece(number)[at(number)].fetch_or(mark, Relaxed) & mark == 0
    }

    fn piece(&self, number: u32) -> &[AtomicU8] {
        self.pieces[(number / PIECE) as usize]
            .get_or_init(|| (0..PIECE).map(|_| AtomicU8::new(0)).collect())
    }
}

fn times(count: u64) -> String {
    if count == 1 { "once".to_owned() } else { format!("{count} times") }
}

fn at(number: u32) -> usize {
    (number % PIECE) as usize
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Books of 10 jobs, all of which went all the way.
    fn balanced() -> Books {
        let books = Books::new();
        for number in 0..10 {
            books.enqueued(number);
            books.delivered(number, false);
            books.acked(number);
        }
        books
    }

    fn faults(books: &Books, jobs: u32) -> Vec<String> {
        books.balance(jobs, Demand::Acked).faults
    }

    #[test]
    fn good_books_balance() {
        let expected = Balance { enqueued: 10, delivered: 10, acked: 10, ..Balance::default() };
        assert_eq!(balanced().balance(10, Demand::Acked), expected);
    }

    #[test]
    fn a_double_is_found() {
        let books = balanced();
        books.delivered(3, false);
        books.acked(3);
        let balance = books.balance(10, Demand::Acked);
        assert_eq!(balance.faults, ["job 3 was delivered twice"]);
        assert_eq!((balance.doubled, balance.delivered, balance.acked), (1, 10, 10));
    }

    #[test]
    fn an_early_one_is_found() {
        let books = balanced();
        books.enqueued(10);
        books.delivered(10, true);
        books.acked(10);
        assert_eq!(faults(&books, 11), ["job 10 was delivered early"]);
        assert_eq!(books.balance(11, Demand::Acked).early, 1);
    }

    #[test]
    fn foreign_and_damaged_ones_are_found() {
        let books = balanced();
        books.foreign();
        books.damaged();
        books.damaged();
        let expected =
            ["jobs that are not this run's came once", "a job with a damaged body came 2 times"];
        assert_eq!(faults(&books, 10), expected);
    }

    #[test]
    fn lost_ones_are_found_and_named() {
        let books = balanced();
        for number in 10..17 {
            books.enqueued(number);
        }
        let expected = ["7 jobs were never delivered: 10, 11, 12, 13, 14 and 2 more"];
        assert_eq!(faults(&books, 17), expected);
        assert_eq!(books.balance(17, Demand::Enqueued).faults, [""; 0]);
    }

    #[test]
    fn what_stopped_half_way_is_found() {
        let books = balanced();
        books.delivered(10, false);
        books.enqueued(11);
        books.delivered(11, false);
        books.enqueued(12);
        books.delivered(12, false);
        books.refused(12);
        let expected = [
            "job 10 was not confirmed as enqueued",
            "job 11 was delivered, not acked",
            "job 12 was delivered, its ack refused",
        ];
        assert_eq!(faults(&books, 13), expected);
    }

    #[test]
    fn numbers_far_apart_have_their_marks() {
        let books = Books::new();
        for number in [0, PIECE - 1, PIECE, JOBS_MAX - 1] {
            books.enqueued(number);
        }
        assert_eq!(books.enqueues(), 4);
        let found = faults(&books, PIECE + 1);
        assert!(
            found[0].starts_with("65534 jobs were not confirmed as enqueued: 1, 2,"),
            "{found:?}"
        );
    }
}
