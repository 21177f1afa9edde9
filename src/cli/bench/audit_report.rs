//! What the books say when a round is over: sums, and what is wrong, in words.

/// Numbers of each fault that are told.
const EXAMPLES_MAX: usize = 5;

// What is known of a number.
pub(super) const ENQUEUED: u8 = 1;
pub(super) const DELIVERED: u8 = 2;
pub(super) const ACKED: u8 = 4;
pub(super) const DOUBLED: u8 = 8;
pub(super) const EARLY: u8 = 16;
pub(super) const REFUSED: u8 = 32;

/// What the books say when the run is over.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct AuditReport {
    /// Numbers whose enqueue was confirmed.
    pub(super) enqueued: u64,
    /// Numbers that were delivered.
    pub(super) delivered: u64,
    /// Numbers whose ack was confirmed.
    pub(super) acked: u64,
    /// Numbers that were delivered more than once.
    pub(super) doubled: u64,
    /// Numbers that were delivered before their time.
    pub(super) early: u64,
    /// Deliveries that are none of this run.
    pub(super) foreign: u64,
    /// Deliveries of this run whose body is not what was sent.
    pub(super) damaged: u64,
    /// What is wrong, in words. Empty: all is well.
    pub(super) faults: Vec<String>,
}

/// What has to be true of every number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum RequiredState {
    /// Nothing: what is missing may be under way.
    Nothing,
    /// It was enqueued, and waits on the server.
    Enqueued,
    /// It went all the way.
    Acked,
}

/// Numbers that share a fault.
#[derive(Default)]
pub(super) struct FaultyJobs {
    pub(super) count: u64,
    first: Vec<u32>,
}

/// What is wrong with the numbers, as far as they were looked at.
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
    /// Looks at the marks of a number.
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

    /// A sentence for each fault.
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

// === impl Numbers ===

impl FaultyJobs {
    fn add(&mut self, number: u32) {
        self.count += 1;
        if self.first.len() < EXAMPLES_MAX {
            self.first.push(number);
        }
    }

    fn sentence(&self, one: &str, many: &str) -> String {
        let told: Vec<String> = self.first.iter().map(u32::to_string).collect();
        let told = told.join(", ");
        match self.count - self.first.len() as u64 {
            0 if self.count == 1 => format!("job {told} {one}"),
            0 => format!("{} jobs {many}: {told}", self.count),
            more => format!("{} jobs {many}: {told} and {more} more", self.count),
        }
    }
}
