//! Audit of a round: each job must be enqueued, delivered and acknowledged exactly once, with its body intact and
//! never early.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicU8, AtomicU64, Ordering::Relaxed};

use super::audit_report::{
    ACKED, AuditReport, DELIVERED, DOUBLED, EARLY, ENQUEUED, Faults, REFUSED, RequiredState,
};

/// Most jobs of a round; their marks take one byte each.
pub(super) const JOBS_MAX: u32 = 200_000_000;

/// Jobs per chunk of marks. Chunks are allocated as needed, because a timed run has no known length.
const CHUNK_MARKS: u32 = 1 << 16;

/// Marks of all jobs of a round, and their sums.
pub(super) struct JobAudit {
    chunks: Box<[OnceLock<Box<[AtomicU8]>>]>,
    enqueued: AtomicU64,
    delivered: AtomicU64,
    acked: AtomicU64,
    foreign: AtomicU64,
    damaged: AtomicU64,
}

// === impl JobAudit ===

impl JobAudit {
    /// Creates an audit without marks.
    pub(super) fn new() -> JobAudit {
        let pieces = JOBS_MAX.div_ceil(CHUNK_MARKS);
        JobAudit {
            chunks: (0..pieces).map(|_| OnceLock::new()).collect(),
            enqueued: AtomicU64::new(0),
            delivered: AtomicU64::new(0),
            acked: AtomicU64::new(0),
            foreign: AtomicU64::new(0),
            damaged: AtomicU64::new(0),
        }
    }

    /// Records a confirmed enqueue.
    pub(super) fn record_enqueued(&self, number: u32) {
        self.mark_and_count(number, ENQUEUED, &self.enqueued);
    }

    /// Records a delivery.
    pub(super) fn record_delivered(&self, number: u32, early: bool) {
        if !self.mark_and_count(number, DELIVERED, &self.delivered) {
            self.mark(number, DOUBLED);
        }
        if early {
            self.mark(number, EARLY);
        }
    }

    /// Records a confirmed ack.
    pub(super) fn record_acked(&self, number: u32) {
        self.mark_and_count(number, ACKED, &self.acked);
    }

    /// Records a rejected ack.
    pub(super) fn record_rejected_ack(&self, number: u32) {
        self.mark(number, REFUSED);
    }

    /// Records a delivery of a job that is not of this run.
    pub(super) fn record_foreign(&self) {
        self.foreign.fetch_add(1, Relaxed);
    }

    /// Records a delivery whose body differs from the one that was sent.
    pub(super) fn record_damaged(&self) {
        self.damaged.fetch_add(1, Relaxed);
    }

    /// Returns the number of enqueued jobs.
    pub(super) fn enqueued_count(&self) -> u64 {
        self.enqueued.load(Relaxed)
    }

    /// Returns the number of acknowledged jobs.
    pub(super) fn acked_count(&self) -> u64 {
        self.acked.load(Relaxed)
    }

    /// Compares the three sets, job by job, for the numbers below `jobs`.
    pub(super) fn report(&self, jobs: u32, demand: RequiredState) -> AuditReport {
        let mut faults = Faults::default();
        for number in 0..jobs {
            faults.check(number, self.chunk(number)[mark_index(number)].load(Relaxed), demand);
        }
        let [enqueued, delivered, acked, foreign, damaged] =
            [&self.enqueued, &self.delivered, &self.acked, &self.foreign, &self.damaged]
                .map(|count| count.load(Relaxed));
        let (doubled, early) = (faults.doubled.count, faults.early.count);
        let mut faults = faults.sentences();
        if foreign > 0 {
            faults.push(format!("jobs that are not of this run were received {}", times(foreign)));
        }
        if damaged > 0 {
            faults.push(format!("a job with a damaged body was received {}", times(damaged)));
        }
        AuditReport { enqueued, delivered, acked, doubled, early, foreign, damaged, faults }
    }

    /// Sets a mark and counts it; returns false if it was set already.
    fn mark_and_count(&self, number: u32, mark: u8, count: &AtomicU64) -> bool {
        let new = self.mark(number, mark);
        if new {
            count.fetch_add(1, Relaxed);
        }
        new
    }

    fn mark(&self, number: u32, mark: u8) -> bool {
        self.chunk(number)[mark_index(number)].fetch_or(mark, Relaxed) & mark == 0
    }

    fn chunk(&self, number: u32) -> &[AtomicU8] {
        self.chunks[(number / CHUNK_MARKS) as usize]
            .get_or_init(|| (0..CHUNK_MARKS).map(|_| AtomicU8::new(0)).collect())
    }
}

fn times(count: u64) -> String {
    if count == 1 { "once".to_owned() } else { format!("{count} times") }
}

fn mark_index(number: u32) -> usize {
    (number % CHUNK_MARKS) as usize
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Audit of 10 jobs that were enqueued, delivered and acked.
    fn complete_audit() -> JobAudit {
        let books = JobAudit::new();
        for number in 0..10 {
            books.record_enqueued(number);
            books.record_delivered(number, false);
            books.record_acked(number);
        }
        books
    }

    fn faults(books: &JobAudit, jobs: u32) -> Vec<String> {
        books.report(jobs, RequiredState::Acked).faults
    }

    #[test]
    fn a_complete_audit_has_no_faults() {
        let expected =
            AuditReport { enqueued: 10, delivered: 10, acked: 10, ..AuditReport::default() };
        assert_eq!(complete_audit().report(10, RequiredState::Acked), expected);
    }

    #[test]
    fn a_double_is_found() {
        let books = complete_audit();
        books.record_delivered(3, false);
        books.record_acked(3);
        let balance = books.report(10, RequiredState::Acked);
        assert_eq!(balance.faults, ["job 3 was delivered twice"]);
        assert_eq!((balance.doubled, balance.delivered, balance.acked), (1, 10, 10));
    }

    #[test]
    fn an_early_one_is_found() {
        let books = complete_audit();
        books.record_enqueued(10);
        books.record_delivered(10, true);
        books.record_acked(10);
        assert_eq!(faults(&books, 11), ["job 10 was delivered early"]);
        assert_eq!(books.report(11, RequiredState::Acked).early, 1);
    }

    #[test]
    fn foreign_and_damaged_jobs_are_found() {
        let books = complete_audit();
        books.record_foreign();
        books.record_damaged();
        books.record_damaged();
        let expected = [
            "jobs that are not of this run were received once",
            "a job with a damaged body was received 2 times",
        ];
        assert_eq!(faults(&books, 10), expected);
    }

    #[test]
    fn lost_jobs_are_found_and_named() {
        let books = complete_audit();
        for number in 10..17 {
            books.record_enqueued(number);
        }
        let expected = ["7 jobs were never delivered: 10, 11, 12, 13, 14 and 2 more"];
        assert_eq!(faults(&books, 17), expected);
        assert_eq!(books.report(17, RequiredState::Enqueued).faults, [""; 0]);
    }

    #[test]
    fn unacked_jobs_are_found() {
        let books = complete_audit();
        books.record_delivered(10, false);
        books.record_enqueued(11);
        books.record_delivered(11, false);
        books.record_enqueued(12);
        books.record_delivered(12, false);
        books.record_rejected_ack(12);
        let expected = [
            "job 10 was not confirmed as enqueued",
            "job 11 was delivered, not acked",
            "job 12 was delivered, its ack refused",
        ];
        assert_eq!(faults(&books, 13), expected);
    }

    #[test]
    fn numbers_far_apart_have_their_marks() {
        let books = JobAudit::new();
        for number in [0, CHUNK_MARKS - 1, CHUNK_MARKS, JOBS_MAX - 1] {
            books.record_enqueued(number);
        }
        assert_eq!(books.enqueued_count(), 4);
        let found = faults(&books, CHUNK_MARKS + 1);
        assert!(
            found[0].starts_with("65534 jobs were not confirmed as enqueued: 1, 2,"),
            "{found:?}"
        );
    }
}
