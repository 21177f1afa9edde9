//! Result of the audit of a round: sums, and a sentence for each fault.

/// Most job numbers that are listed per fault.
const EXAMPLES_MAX: usize = 5;

// Marks of a job.
pub(super) const ENQUEUED: u8 = 1;
pub(super) const DELIVERED: u8 = 2;
pub(super) const ACKED: u8 = 4;
pub(super) const DOUBLED: u8 = 8;
pub(super) const EARLY: u8 = 16;
pub(super) const REFUSED: u8 = 32;

/// Result of the audit of a round.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct AuditReport {
    /// Number of jobs whose enqueue was confirmed.
    pub(super) enqueued: u64,
    /// Number of jobs that were delivered.
    pub(super) delivered: u64,
    /// Number of jobs whose ack was confirmed.
    pub(super) acked: u64,
    /// Number of jobs that were delivered more than once.
    pub(super) doubled: u64,
    /// Number of jobs that were delivered before their due time.
    pub(super) early: u64,
    /// Number of deliveries that are not of this run.
    pub(super) foreign: u64,
    /// Number of deliveries of this run whose body differs from the one that was sent.
    pub(super) damaged: u64,
    /// Sentences about the faults. Empty: there are none.
    pub(super) faults: Vec<String>,
}

/// State that every job must have reached.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum RequiredState {
    /// None: a missing mark may belong to a call in flight.
    Nothing,
    /// Enqueued, and waiting on the server.
    Enqueued,
    /// Enqueued, delivered and acked.
    Acked,
}

/// Jobs that share a fault.
#[derive(Default)]
pub(super) struct FaultyJobs {
    pub(super) count: u64,
    first: Vec<u32>,
}

/// Faults of the jobs that were checked so far.
#[derive(Default)]
pub(super) struct Faults {
    not_enqueued: FaultyJobs,
    lost: FaultyJobs,
    unacked: FaultyJobs,
    pub(super) doubled: FaultyJobs,
    pub(super) early: FaultyJobs,
    rejected_acks: FaultyJobs,
}

// === impl Faults ===

impl Faults {
    /// Checks the marks of a job.
    pub(super) fn check(&mut self, number: u32, marks: u8, demand: RequiredState) {
        let has = |mark| marks & mark != 0;
        match demand {
            RequiredState::Nothing if has(REFUSED) => self.rejected_acks.add(number),
            RequiredState::Nothing => {}
            _ if !has(ENQUEUED) => self.not_enqueued.add(number),
            RequiredState::Enqueued => {}
            RequiredState::Acked if !has(DELIVERED) => self.lost.add(number),
            RequiredState::Acked if has(REFUSED) => self.rejected_acks.add(number),
            RequiredState::Acked if !has(ACKED) => self.unacked.add(number),
            RequiredState::Acked => {}
        }
        if has(DOUBLED) {
            self.doubled.add(number);
        }
        if has(EARLY) {
            self.early.add(number);
        }
    }

    /// Returns a sentence for each fault.
    pub(super) fn sentences(self) -> Vec<String> {
        [
            (self.not_enqueued, "was not confirmed as enqueued", "were not confirmed as enqueued"),
            (self.lost, "was never delivered", "were never delivered"),
            (self.unacked, "was delivered, not acked", "were delivered, not acked"),
            (
                self.rejected_acks,
                "was delivered, its ack refused",
                "were delivered, their acks refused",
            ),
            (self.doubled, "was delivered twice", "were delivered twice"),
            (self.early, "was delivered early", "were delivered early"),
        ]
        .into_iter()
        .filter(|(numbers, ..)| numbers.count > 0)
        .map(|(numbers, one, many)| numbers.sentence(one, many))
        .collect()
    }
}

// === impl FaultyJobs ===

impl FaultyJobs {
    fn add(&mut self, number: u32) {
        self.count += 1;
        if self.first.len() < EXAMPLES_MAX {
            self.first.push(number);
        }
    }

    fn sentence(&self, one: &str, many: &str) -> String {
        let listed: Vec<String> = self.first.iter().map(u32::to_string).collect();
        let listed = listed.join(", ");
        match self.count - self.first.len() as u64 {
            0 if self.count == 1 => format!("job {listed} {one}"),
            0 => format!("{} jobs {many}: {listed}", self.count),
            more => format!("{} jobs {many}: {listed} and {more} more", self.count),
        }
    }
}
