//! The findings of the checker, for programs and for readers.

use std::fmt;

/// The findings of the checker. All of it must be empty except for the counts.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Verdict {
    pub(crate) enqueued: usize,
    /// Number of jobs that were written: their enqueue was answered, or they were delivered.
    pub(crate) exist: usize,
    pub(crate) acked: usize,
    pub(crate) buried: usize,
    /// Number of jobs whose attempts were used up.
    pub(crate) given_up: usize,
    /// Number of jobs that were deleted before they ended.
    pub(crate) cancelled: usize,
    /// Number of jobs that ended by an ack or by a delete, and no answer shows by which.
    pub(crate) either: usize,
    pub(crate) deliveries: usize,
    pub(crate) duplicates: usize,
    /// Number of repeats after a nack that was not answered.
    pub(crate) unanswered: usize,
    /// Number of repeats after a broken stream.
    pub(crate) broken: usize,
    /// Number of leases that were open when their streams broke: no more can repeat.
    pub(crate) open_at_breaks: usize,
    /// Number of repeats after a lease that expired.
    pub(crate) ran_out: usize,
    pub(crate) cuts: usize,
    /// Jobs that are gone and that their shard may have held back when it died.
    pub(crate) held_back: Vec<u32>,
    /// Number of jobs that came after an ack which their shard may have held back.
    pub(crate) undone: usize,
    /// Jobs that exist only by answers which a shard may have held back: its statistics may lack them.
    pub(crate) doubtful: Vec<u32>,
    /// Uncertainty of the start of leases, in nanoseconds.
    pub(crate) doubt: u64,
    pub(crate) lost: Vec<u32>,
    pub(crate) after_ack: Vec<u32>,
    pub(crate) early: Vec<u32>,
    pub(crate) overlap: Vec<u32>,
    pub(crate) miscounted: Vec<u32>,
    pub(crate) renumbered: Vec<u32>,
    pub(crate) outdated: Vec<u32>,
    pub(crate) beyond: Vec<u32>,
    pub(crate) hurried: Vec<u32>,
    pub(crate) overtried: Vec<u32>,
    pub(crate) forsaken: Vec<u32>,
    pub(crate) misfiled: Vec<u32>,
    pub(crate) after_delete: Vec<u32>,
    pub(crate) doubled: Vec<u32>,
    pub(crate) damaged: Vec<u32>,
    pub(crate) unexpected: usize,
    pub(crate) reused: usize,
}

/// Limit of the jobs that are named per kind.
const NAMED_MAX: usize = 20;

impl Verdict {
    /// Returns whether every promise was kept.
    pub(crate) fn sound(&self) -> bool {
        self.lists().iter().all(|(_, list)| list.is_empty())
            && self.unexpected == 0
            && self.reused == 0
    }

    fn lists(&self) -> [(&'static str, &[u32]); 15] {
        [
            ("lost", &self.lost),
            ("after their ack", &self.after_ack),
            ("early", &self.early),
            ("leased twice at once", &self.overlap),
            ("with miscounted failures", &self.miscounted),
            ("handed over twice under one number", &self.renumbered),
            ("settled by a lease that was over", &self.outdated),
            ("repeated though not open when their stream broke", &self.beyond),
            ("retried before their backoff", &self.hurried),
            ("tried too often", &self.overtried),
            ("given up too early", &self.forsaken),
            ("not once among the dead letters, or wrongly", &self.misfiled),
            ("after their deletion", &self.after_delete),
            ("under two ids", &self.doubled),
            ("damaged", &self.damaged),
        ]
    }
}

impl fmt::Display for Verdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{} enqueued, {} acked, {} dead letters ({} by their policy), {} deleted, {} delivered, {} cuts: \
             {} unexpected, {} receipts reused, {} duplicates ({} after a nack without answer, {} after a broken \
             stream, of {} leases open then, {} after the lease), {} held back and gone, {} acks held back and undone",
            self.enqueued,
            self.acked,
            self.buried,
            self.given_up,
            self.cancelled,
            self.deliveries,
            self.cuts,
            self.unexpected,
            self.reused,
            self.duplicates,
            self.unanswered,
            self.broken,
            self.open_at_breaks,
            self.ran_out,
            self.held_back.len(),
            self.undone,
        )?;
        for (name, jobs) in self.lists() {
            write!(f, ", {} {name}", jobs.len())?;
        }
        write!(f, " (leases within {} ms)", self.doubt / 1_000_000)?;
        for (name, jobs) in self.lists().into_iter().filter(|(_, jobs)| !jobs.is_empty()) {
            write!(f, "\n{name}: {:?}", &jobs[..jobs.len().min(NAMED_MAX)])?;
        }
        Ok(())
    }
}
