//! The flags of `ringq bench`.

use std::time::Duration;

use clap::Args;

use super::audit::JOBS_MAX;
use super::plan::{BODY_BYTES_MIN, BenchDurability, JobAmount, Phases, Plan};
use super::preset::Preset;
use crate::cli::connect::ConnectArgs;
use crate::cli::exit::CommandFailure;
use crate::cli::output::OutputArgs;
use crate::cli::values;
use crate::domain::limit::{
    BATCH_JOBS_MAX, PAYLOAD_BYTES_MAX, SETTLE_ITEMS_MAX, STREAM_CREDIT_MAX,
};

/// Text below the help of `ringq bench`.
const AFTER_HELP: &str = "\
Examples:
  ringq bench                                   whole life of jobs, with the values of the preset
  ringq bench unary --in-flight 2 --rounds 5    the median of 5 rounds, and their range
  ringq bench both --duration 1m --batch 1      one job per call, for a minute
  ringq bench idle --rate 1000/s                latency under a steady load
  ringq bench delayed --spread 30s -o json

Dispatch is the time from the start of the enqueue call to the delivery. With a rate, dispatch and \
the enqueue call count from the slot of the call in the schedule. The schedule does not wait \
for answers: a call that is delayed by slow ones is late, and no slot is left out.

Every job carries its number and a checksum. At the end the jobs that were enqueued, delivered and \
acked are compared one by one, and with the server's own numbers. A job that was lost, doubled, \
damaged or early makes the exit code 1.";

/// Arguments of `ringq bench`.
#[derive(Debug, Args)]
#[command(after_help = AFTER_HELP)]
pub(in crate::cli) struct BenchArgs {
    /// Kind of measurement; each flag below overrides one of its values
    #[arg(value_enum, default_value_t = Preset::Lifecycle)]
    pub(super) preset: Preset,
    #[command(flatten)]
    pub(super) load: BenchLoadArgs,
    #[command(flatten)]
    pub(super) output: OutputArgs,
    #[command(flatten)]
    pub(super) connect: ConnectArgs,
}

/// Flags that override values of the preset, or hold for all presets.
#[derive(Debug, Args)]
#[command(next_help_heading = "Load")]
pub(super) struct BenchLoadArgs {
    /// Jobs to enqueue per round
    #[arg(long, value_name = "NUMBER", allow_negative_numbers = true, value_parser = values::integer_in_range::<u32>(1..=i64::from(JOBS_MAX)))]
    pub(super) jobs: Option<u32>,
    /// Enqueue for this long per round, instead of a number of jobs
    #[arg(long, value_name = "DURATION", value_parser = values::duration, conflicts_with = "jobs")]
    pub(super) duration: Option<Duration>,
    /// Order of enqueuing and taking, and which of them is timed
    #[arg(long, value_enum)]
    pub(super) phases: Option<Phases>,
    /// Number of producers
    #[arg(long, value_name = "NUMBER", allow_negative_numbers = true, value_parser = values::integer_in_range::<u32>(1..=10_000))]
    pub(super) producers: Option<u32>,
    /// Enqueue calls in flight per producer
    #[arg(long, value_name = "NUMBER", allow_negative_numbers = true, value_parser = values::integer_in_range::<u32>(1..=10_000))]
    pub(super) in_flight: Option<u32>,
    /// Jobs per call
    #[arg(long, value_name = "JOBS", allow_negative_numbers = true, value_parser = values::integer_in_range::<u32>(1..=BATCH_JOBS_MAX as i64))]
    pub(super) batch: Option<u32>,
    /// Enqueue this many jobs per second, all producers together, as in 200/s; latencies then count from the slot of
    /// a call in this schedule, even if the call begins late
    #[arg(long, value_name = "RATE", value_parser = values::rate)]
    pub(super) rate: Option<f64>,
    /// Bytes of each body
    #[arg(long, value_name = "BYTES", allow_negative_numbers = true, value_parser = values::integer_in_range::<u32>(BODY_BYTES_MIN..=PAYLOAD_BYTES_MAX as i64))]
    pub(super) body: Option<u32>,
    /// Durability to request
    #[arg(long, value_enum, value_name = "LEVEL")]
    pub(super) durability: Option<BenchDurability>,
    /// Delay jobs: the first is due this long after the start
    #[arg(long, value_name = "DURATION", value_parser = values::duration)]
    pub(super) lead: Option<Duration>,
    /// Delay jobs: the last is due this long after the first
    #[arg(long, value_name = "DURATION", value_parser = values::duration)]
    pub(super) spread: Option<Duration>,
    /// Number of workers, with a stream each
    #[arg(long, value_name = "NUMBER", allow_negative_numbers = true, value_parser = values::integer_in_range::<u32>(1..=1000))]
    pub(super) workers: Option<u32>,
    /// Credit of each stream
    #[arg(long, value_name = "JOBS", allow_negative_numbers = true, value_parser = values::integer_in_range::<u32>(1..=i64::from(STREAM_CREDIT_MAX)))]
    pub(super) credit: Option<u32>,
    /// Jobs per ack call; a delivery waits at most 5 ms for others
    #[arg(long, value_name = "JOBS", allow_negative_numbers = true, value_parser = values::integer_in_range::<u32>(1..=SETTLE_ITEMS_MAX as i64))]
    pub(super) ack_batch: Option<u32>,
    /// Jobs before the first round, checked but not measured [default: a twentieth of the jobs]
    #[arg(long, value_name = "JOBS", allow_negative_numbers = true, value_parser = values::integer_in_range::<u32>(0..=i64::from(JOBS_MAX)))]
    pub(super) warm_up: Option<u32>,
    /// Number of rounds; the median is reported
    #[arg(long, value_name = "NUMBER", default_value_t = 1, allow_negative_numbers = true, value_parser = values::integer_in_range::<u32>(1..=1000))]
    pub(super) rounds: u32,
    /// Connections, assigned to producers and workers in turn
    #[arg(long, value_name = "NUMBER", allow_negative_numbers = true, value_parser = values::integer_in_range::<u32>(1..=1000))]
    pub(super) connections: Option<u32>,
    /// Threads of this program
    #[arg(long, value_name = "NUMBER", allow_negative_numbers = true, value_parser = values::integer_in_range::<u32>(1..=256))]
    pub(super) threads: Option<u32>,
    /// The topic [default: a new one, bench-<random>]
    #[arg(long, value_name = "TOPIC")]
    pub(super) topic: Option<String>,
}

// === impl BenchLoadArgs ===

impl BenchLoadArgs {
    /// Returns the plan: the preset, overridden by the flags.
    pub(super) fn plan(&self, preset: Preset) -> Result<Plan, CommandFailure> {
        let base = preset.plan();
        let counted = self.jobs.map(JobAmount::Jobs);
        let plan = Plan {
            phases: self.phases.unwrap_or(base.phases),
            amount: self.duration.map(JobAmount::Time).or(counted).unwrap_or(base.amount),
            producers: self.producers.unwrap_or(base.producers),
            in_flight: self.in_flight.unwrap_or(base.in_flight),
            batch: self.batch.unwrap_or(base.batch),
            rate: self.rate.or(base.rate),
            workers: self.workers.unwrap_or(base.workers),
            credit: self.credit.unwrap_or(base.credit),
            ack_batch: self.ack_batch.unwrap_or(base.ack_batch),
            body_bytes: self.body.unwrap_or(base.body_bytes),
            lead: self.lead.or(base.lead),
            spread: self.spread.or(base.spread),
            connections: self.connections.unwrap_or(base.connections),
            threads: self.threads.unwrap_or(base.threads),
            warm_up: self.warm_up,
            rounds: self.rounds,
            durability: self.durability,
        };
        plan.validated()
    }
}

#[cfg(test)]
mod tests {
    use clap::{Args as _, Command, FromArgMatches as _, ValueEnum as _};

    use super::*;

    fn plan(preset: Preset, args: &[&str]) -> Result<Plan, CommandFailure> {
        let command = BenchLoadArgs::augment_args(Command::new("bench").no_binary_name(true));
        let matches = command.try_get_matches_from(args).unwrap();
        BenchLoadArgs::from_arg_matches(&matches).unwrap().plan(preset)
    }

    #[test]
    fn a_preset_without_flags_keeps_its_values() {
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
            phases: Phases::Fill,
            amount: JobAmount::Jobs(7),
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
            durability: Some(BenchDurability::Memory),
        };
        assert_eq!(plan(Preset::Unary, &args).unwrap(), expected);
        let timed = plan(Preset::Both, &["--duration", "3s"]).unwrap();
        assert_eq!(timed.amount, JobAmount::Time(Duration::from_secs(3)));
    }

    #[test]
    fn warm_up_is_small_and_at_once() {
        let warm_up = Preset::Burst.plan().warm_up().unwrap();
        assert_eq!((warm_up.amount, warm_up.is_delayed()), (JobAmount::Jobs(1000), false));
        assert_eq!(plan(Preset::Bulk, &["--warm-up", "0"]).unwrap().warm_up(), None);
        assert_eq!(plan(Preset::Bulk, &["--phases", "fill"]).unwrap().warm_up(), None);
        let timed = plan(Preset::Bulk, &["--duration", "1s"]).unwrap();
        assert_eq!(timed.warm_up().unwrap().amount, JobAmount::Jobs(2000));
        let slow = plan(Preset::Idle, &["--duration", "1s"]).unwrap();
        assert_eq!(slow.warm_up().unwrap().amount, JobAmount::Jobs(100));
    }

    #[test]
    fn an_impossible_plan_is_rejected() {
        let code = |args: &[&str]| plan(Preset::Both, args).unwrap_err().code();
        assert_eq!(code(&["--credit", "10"]), 2);
        assert_eq!(code(&["--duration", "0s"]), 2);
        assert_eq!(code(&["--producers", "1001", "--in-flight", "10"]), 2);
    }
}
