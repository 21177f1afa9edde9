//! Plan of a run: what to measure, and how.

use std::time::Duration;

use clap::ValueEnum;

use super::body;
use crate::cli::exit::CommandFailure;
use crate::pb;

/// Default time from the start to the first due time: enough to enqueue the jobs of the presets.
pub(super) const LEAD: Duration = Duration::from_secs(2);
/// Most calls in flight; a server accepts no more by default.
const LANES_MAX: u32 = 10_000;
/// Default number of warm-up jobs before a timed run at full speed; before a counted one it is a twentieth.
const WARM_UP_JOBS: u32 = 2000;

/// Number of jobs to enqueue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum JobAmount {
    /// This many jobs.
    Jobs(u32),
    /// Jobs that can be enqueued in this time.
    Time(Duration),
}

/// Values that determine a run.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Plan {
    pub(super) phases: Phases,
    pub(super) amount: JobAmount,
    pub(super) producers: u32,
    pub(super) in_flight: u32,
    /// Jobs per call; 1 uses the call for one job.
    pub(super) batch: u32,
    /// Jobs per second; None: as fast as possible.
    pub(super) rate: Option<f64>,
    pub(super) workers: u32,
    pub(super) credit: u32,
    pub(super) ack_batch: u32,
    pub(super) body_bytes: u32,
    /// Time from the start to the first due time. With neither this nor a spread, jobs are ready at once.
    pub(super) lead: Option<Duration>,
    /// Time from the first due time to the last.
    pub(super) spread: Option<Duration>,
    pub(super) connections: u32,
    pub(super) threads: u32,
    pub(super) warm_up: Option<u32>,
    pub(super) rounds: u32,
    pub(super) durability: Option<BenchDurability>,
}

/// Order of enqueuing and taking, and which of them is timed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(super) enum Phases {
    /// Enqueue, timed; then take and ack, not timed
    Enqueue,
    /// Enqueue, not timed; then take and ack, timed
    Consume,
    /// Enqueue, then take and ack, both timed
    Sequence,
    /// Enqueue while taking and acking, timed
    Together,
    /// Enqueue, timed, and leave the jobs there
    Fill,
}

/// Durability to request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(super) enum BenchDurability {
    /// Stored in the memory of the store's process
    Memory,
    /// Stored on the store's disk
    Fsynced,
    /// Stored on disk, and received by a replica of the store
    Replicated,
}

// === impl Plan ===

impl Plan {
    /// Returns the plan, or an error if it cannot be carried out.
    pub(super) fn validated(self) -> Result<Plan, CommandFailure> {
        if self.amount == JobAmount::Time(Duration::ZERO) {
            return Err(CommandFailure::usage("--duration 0s is too short to measure"));
        }
        if self.lanes() > LANES_MAX {
            let problem = format!("{} calls in flight are too many", self.lanes());
            let hint = format!("--producers times --in-flight is at most {LANES_MAX}");
            return Err(CommandFailure::usage(problem).with_hint(hint));
        }
        if self.ack_batch > self.credit {
            let (ack, credit) = (self.ack_batch, self.credit);
            let problem =
                format!("a worker with a credit of {credit} never holds {ack} jobs to ack");
            return Err(CommandFailure::usage(problem).with_hint("--ack-batch is at most --credit"));
        }
        Ok(self)
    }

    /// Returns the plan of the warm-up: the same shape, small and without delay. None: there is no warm-up.
    pub(super) fn warm_up(&self) -> Option<Plan> {
        let default = match (self.phases, self.amount) {
            // Workers would take the jobs that the run must leave on the server.
            (Phases::Fill, _) => 0,
            (_, JobAmount::Jobs(jobs)) => jobs / 20,
            (_, JobAmount::Time(_)) => self.rate.map_or(WARM_UP_JOBS, half_a_second),
        };
        let jobs = self.warm_up.unwrap_or(default);
        let amount = JobAmount::Jobs(jobs);
        (jobs > 0).then_some(Plan { amount, lead: None, spread: None, ..*self })
    }

    /// Returns whether jobs have a due time.
    pub(super) fn is_delayed(&self) -> bool {
        self.lead.is_some() || self.spread.is_some()
    }

    /// Returns the time from the start to the first due time.
    pub(super) fn lead(&self) -> Duration {
        self.lead.unwrap_or(LEAD)
    }

    /// Returns the most calls in flight.
    pub(super) fn lanes(&self) -> u32 {
        self.producers * self.in_flight
    }

    /// Returns the durability for requests.
    pub(super) fn durability(&self) -> pb::Durability {
        match self.durability {
            None => pb::Durability::Unspecified,
            Some(BenchDurability::Memory) => pb::Durability::Memory,
            Some(BenchDurability::Fsynced) => pb::Durability::Fsynced,
            Some(BenchDurability::Replicated) => pb::Durability::Replicated,
        }
    }

    /// Returns the bytes of a body.
    pub(super) fn body_bytes(&self) -> usize {
        self.body_bytes as usize
    }
}

/// Returns the number of jobs in half a second.
fn half_a_second(rate: f64) -> u32 {
    (rate / 2.0).clamp(1.0, f64::from(WARM_UP_JOBS)) as u32
}

/// Least value of `--body`.
pub(super) const BODY_BYTES_MIN: i64 = body::BYTES_MIN as i64;
