//! What is measured: a preset's values, each of which a flag may override.

use std::time::Duration;

use super::body;
use super::flags::LoadFlags;
use super::preset::{Durability, Phases, Preset};
use crate::cli::exit::Failure;
use crate::pb;

/// Ahead of the first due time, unless told: enough to enqueue the jobs of the presets.
pub(super) const LEAD: Duration = Duration::from_secs(2);
/// Calls under way at most; a server takes no more by default.
const LANES_MAX: u32 = 10_000;
/// Jobs before a timed run at full speed, unless told; before a counted one it is a twentieth.
const WARM_UP_JOBS: u32 = 2000;

/// How much is enqueued.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Amount {
    /// This many jobs.
    Jobs(u32),
    /// As many as go into this time.
    Time(Duration),
}

/// All that a run depends on.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Plan {
    pub(super) preset: Preset,
    pub(super) phases: Phases,
    pub(super) amount: Amount,
    pub(super) producers: u32,
    pub(super) in_flight: u32,
    /// Jobs per call; 1 is the call for one job.
    pub(super) batch: u32,
    /// Jobs per second; none: as fast as it goes.
    pub(super) rate: Option<f64>,
    pub(super) workers: u32,
    pub(super) credit: u32,
    pub(super) ack_batch: u32,
    pub(super) body_bytes: u32,
    /// The first due time from the start. With neither this nor a spread, jobs are ready at once.
    pub(super) lead: Option<Duration>,
    /// From the first due time to the last.
    pub(super) spread: Option<Duration>,
    pub(super) connections: u32,
    pub(super) threads: u32,
    pub(super) warm_up: Option<u32>,
    pub(super) rounds: u32,
    pub(super) durability: Option<Durability>,
}

// === impl Plan ===

impl Plan {
    /// The preset with the flags over it.
    pub(super) fn new(preset: Preset, flags: &LoadFlags) -> Result<Plan, Failure> {
        let base = preset.plan();
        let counted = flags.jobs.map(Amount::Jobs);
        let plan = Plan {
            preset,
            phases: flags.phases.unwrap_or(base.phases),
            amount: flags.duration.map(Amount::Time).or(counted).unwrap_or(base.amount),
            producers: flags.producers.unwrap_or(base.producers),
            in_flight: flags.in_flight.unwrap_or(base.in_flight),
            batch: flags.batch.unwrap_or(base.batch),
            rate: flags.rate.or(base.rate),
            workers: flags.workers.unwrap_or(base.workers),
            credit: flags.credit.unwrap_or(base.credit),
            ack_batch: flags.ack_batch.unwrap_or(base.ack_batch),
            body_bytes: flags.body.unwrap_or(base.body_bytes),
            lead: flags.lead.or(base.lead),
            spread: flags.spread.or(base.spread),
            connections: flags.connections.unwrap_or(base.connections),
            threads: flags.threads.unwrap_or(base.threads),
            warm_up: flags.warm_up,
            rounds: flags.rounds,
            durability: flags.durability,
        };
        plan.checked()
    }

    fn checked(self) -> Result<Plan, Failure> {
        if self.amount == Amount::Time(Duration::ZERO) {
            return Err(Failure::usage("--duration 0s is no time to measure in"));
        }
        if self.lanes() > LANES_MAX {
            let problem = format!("{} calls under way are too many", self.lanes());
            let hint = format!("--producers times --in-flight is at most {LANES_MAX}");
            return Err(Failure::usage(problem).hint(hint));
        }
        if self.ack_batch > self.credit {
            let (ack, credit) = (self.ack_batch, self.credit);
            let problem = format!("a worker of credit {credit} never holds {ack} jobs to ack");
            return Err(Failure::usage(problem).hint("--ack-batch is at most --credit"));
        }
        Ok(self)
    }

    /// The same shape, small and at once: what runs before anything is timed. None: nothing does.
    pub(super) fn warm_up(&self) -> Option<Plan> {
        let default = match (self.phases, self.amount) {
            // It would take away what the run is to leave there.
            (Phases::Fill, _) => 0,
            (_, Amount::Jobs(jobs)) => jobs / 20,
            (_, Amount::Time(_)) => self.rate.map_or(WARM_UP_JOBS, half_a_second),
        };
        let jobs = self.warm_up.unwrap_or(default);
        let amount = Amount::Jobs(jobs);
        (jobs > 0).then_some(Plan { amount, lead: None, spread: None, ..*self })
    }

    /// Whether jobs have a due time.
    pub(super) fn is_delayed(&self) -> bool {
        self.lead.is_some() || self.spread.is_some()
    }

    /// The first due time from the start.
    pub(super) fn lead(&self) -> Duration {
        self.lead.unwrap_or(LEAD)
    }

    /// Calls under way at most.
    pub(super) fn lanes(&self) -> u32 {
        self.producers * self.in_flight
    }

    /// What is asked for in requests.
    pub(super) fn durability(&self) -> pb::Durability {
        match self.durability {
            None => pb::Durability::Unspecified,
            Some(Durability::Memory) => pb::Durability::Memory,
            Some(Durability::Fsynced) => pb::Durability::Fsynced,
            Some(Durability::Replicated) => pb::Durability::Replicated,
        }
    }

    /// Bytes of a body.
    pub(super) fn body_bytes(&self) -> usize {
        self.body_bytes as usize
    }
}

/// The jobs of half a second.
fn half_a_second(rate: f64) -> u32 {
    (rate / 2.0).clamp(1.0, f64::from(WARM_UP_JOBS)) as u32
}

/// The smallest `--body`.
pub(super) const BODY_BYTES_MIN: i64 = body::BYTES_MIN as i64;

#[cfg(test)]
mod tests {
    use clap::{Args as _, Command, FromArgMatches as _, ValueEnum as _};

    use super::*;

    fn plan(preset: Preset, args: &[&str]) -> Result<Plan, Failure> {
        let command = LoadFlags::augment_args(Command::new("bench").no_binary_name(true));
        let matches = command.try_get_matches_from(args).unwrap();
        Plan::new(preset, &LoadFlags::from_arg_matches(&matches).unwrap())
    }

    #[test]
    fn without_flags_a_preset_is_what_it_says() {
        for preset in Preset::value_variants() {
            assert_eq!(plan(*preset, &[]).unwrap(), preset.plan(), "{preset:?}");
        }
        let unary = Preset::Unary.plan();
        assert_eq!((unary.lanes(), unary.batch, unary.phases), (50, 1, Phases::Enqueue));
        assert!(Preset::Burst.plan().is_delayed() && !Preset::Idle.plan().is_delayed());
    }

    #[test]
    fn every_flag_overrides_its_value() {
        let args = "--phases fill --jobs 7 --producers 2 --in-flight 3 --batch 4 --rate 5/s \
                    --workers 6 --credit 70 --ack-batch 8 --body 90 --lead 1s --spread 2s \
                    --connections 1 --threads 2 --warm-up 3 --rounds 4 --durability memory";
        let args: Vec<_> = args.split_whitespace().collect();
        let expected = Plan {
            preset: Preset::Unary,
            phases: Phases::Fill,
            amount: Amount::Jobs(7),
            producers: 2,
            in_flight: 3,
            batch: 4,
            rate: Some(5.0),
            workers: 6,
            credit: 70,
            ack_batch: 8,
            body_bytes: 90,
            lead: Some(Duration::from_secs(1)),
            spread: Some(Duration::from_secs(2)),
            connections: 1,
            threads: 2,
            warm_up: Some(3),
            rounds: 4,
            durability: Some(Durability::Memory),
        };
        assert_eq!(plan(Preset::Unary, &args).unwrap(), expected);
        let timed = plan(Preset::Both, &["--duration", "3s"]).unwrap();
        assert_eq!(timed.amount, Amount::Time(Duration::from_secs(3)));
    }

    #[test]
    fn warm_up_is_small_and_at_once() {
        let warm_up = Preset::Burst.plan().warm_up().unwrap();
        assert_eq!((warm_up.amount, warm_up.is_delayed()), (Amount::Jobs(1000), false));
        assert_eq!(plan(Preset::Bulk, &["--warm-up", "0"]).unwrap().warm_up(), None);
        assert_eq!(plan(Preset::Bulk, &["--phases", "fill"]).unwrap().warm_up(), None);
        let timed = plan(Preset::Bulk, &["--duration", "1s"]).unwrap();
        assert_eq!(timed.warm_up().unwrap().amount, Amount::Jobs(WARM_UP_JOBS));
        let slow = plan(Preset::Idle, &["--duration", "1s"]).unwrap();
        assert_eq!(slow.warm_up().unwrap().amount, Amount::Jobs(100));
    }

    #[test]
    fn what_cannot_work_is_refused() {
        let code = |args: &[&str]| plan(Preset::Both, args).unwrap_err().code();
        assert_eq!(code(&["--credit", "10"]), 2);
        assert_eq!(code(&["--duration", "0s"]), 2);
        assert_eq!(code(&["--producers", "1001", "--in-flight", "10"]), 2);
    }
}
