//! The flags of `ringq bench`.

use std::time::Duration;

use clap::{Args, value_parser};

use super::books::JOBS_MAX;
use super::plan::BODY_BYTES_MIN;
use super::preset::{Durability, Phases, Preset};
use crate::cli::connect::Connect;
use crate::cli::output::OutputArgs;
use crate::cli::values;

/// Below the help of the command.
const AFTER_HELP: &str = "\
Examples:
  ringq bench                                   whole lives, with the values of its preset
  ringq bench unary --in-flight 2 --rounds 5    the median of 5 rounds, and their range
  ringq bench both --duration 1m --batch 1      one job per call, for a minute
  ringq bench idle --rate 1000/s                latency under a steady load
  ringq bench delayed --spread 30s -o json

Dispatch is the time from the start of the enqueue call to the delivery. With a rate, dispatch and
the enqueue call count from the slot that the call has in the schedule. The schedule does not wait
for answers: a call that is held up by slow ones is late, and no slot is left out.

Every job carries its number and a checksum. At the end the jobs that were enqueued, delivered and
acked are compared one by one, and with the server's own numbers. A job that was lost, doubled,
damaged or early makes the exit code 1.";

/// `ringq bench`.
#[derive(Debug, Args)]
#[command(after_help = AFTER_HELP)]
pub(in crate::cli) struct Bench {
    /// What to measure; each flag below overrides one of its values
    #[arg(value_enum, default_value_t = Preset::Lifecycle)]
    pub(super) preset: Preset,
    #[command(flatten)]
    pub(super) load: LoadFlags,
    #[command(flatten)]
    pub(super) output: OutputArgs,
    #[command(flatten)]
    pub(super) connect: Connect,
}

/// What a preset sets, and what is the same for all.
#[derive(Debug, Args)]
#[command(next_help_heading = "Load")]
pub(super) struct LoadFlags {
    /// Enqueue this many jobs per round
    #[arg(long, value_name = "NUMBER", value_parser = value_parser!(u32).range(1..=i64::from(JOBS_MAX)))]
    pub(super) jobs: Option<u32>,
    /// Enqueue for this long per round instead
    #[arg(long, value_name = "DURATION", value_parser = values::duration, conflicts_with = "jobs")]
    pub(super) duration: Option<Duration>,
    /// When workers work, and what is timed
    #[arg(long, value_enum)]
    pub(super) phases: Option<Phases>,
    /// Producers
    #[arg(long, value_name = "NUMBER", value_parser = value_parser!(u32).range(1..=10_000))]
    pub(super) producers: Option<u32>,
    /// Calls that each producer has under way
    #[arg(long, value_name = "NUMBER", value_parser = value_parser!(u32).range(1..=10_000))]
    pub(super) in_flight: Option<u32>,
    /// Jobs per call
    #[arg(long, value_name = "JOBS", value_parser = value_parser!(u32).range(1..=1000))]
    pub(super) batch: Option<u32>,
    /// Enqueue this many jobs per second, all producers together, as in 200/s; latencies then
    /// count from the slot that a call has in this schedule, however late it begins
    #[arg(long, value_name = "RATE", value_parser = values::rate)]
    pub(super) rate: Option<f64>,
    /// Bytes of each body
    #[arg(long, value_name = "BYTES", value_parser = value_parser!(u32).range(BODY_BYTES_MIN..=1 << 20))]
    pub(super) body: Option<u32>,
    /// Ask for this durability
    #[arg(long, value_enum, value_name = "LEVEL")]
    pub(super) durability: Option<Durability>,
    /// Delay jobs: the first is due this long after the start
    #[arg(long, value_name = "DURATION", value_parser = values::duration)]
    pub(super) lead: Option<Duration>,
    /// Delay jobs: the last is due this long after the first
    #[arg(long, value_name = "DURATION", value_parser = values::duration)]
    pub(super) spread: Option<Duration>,
    /// Workers, a stream each
    #[arg(long, value_name = "NUMBER", value_parser = value_parser!(u32).range(1..=1000))]
    pub(super) workers: Option<u32>,
    /// Credit of each stream
    #[arg(long, value_name = "JOBS", value_parser = value_parser!(u32).range(1..=10_000))]
    pub(super) credit: Option<u32>,
    /// Jobs per ack call; what waited 5 ms for others goes anyway
    #[arg(long, value_name = "JOBS", value_parser = value_parser!(u32).range(1..=1000))]
    pub(super) ack_batch: Option<u32>,
    /// Jobs before the first round, not measured but checked [default: a twentieth of the jobs]
    #[arg(long, value_name = "JOBS", value_parser = value_parser!(u32).range(0..=i64::from(JOBS_MAX)))]
    pub(super) warm_up: Option<u32>,
    /// Rounds; the median counts
    #[arg(long, value_name = "NUMBER", default_value_t = 1, value_parser = value_parser!(u32).range(1..=1000))]
    pub(super) rounds: u32,
    /// Connections, which producers and workers share in turns
    #[arg(long, value_name = "NUMBER", value_parser = value_parser!(u32).range(1..=1000))]
    pub(super) connections: Option<u32>,
    /// Threads of this program
    #[arg(long, value_name = "NUMBER", value_parser = value_parser!(u32).range(1..=256))]
    pub(super) threads: Option<u32>,
    /// The topic [default: one of its own, bench-<random>]
    #[arg(long, value_name = "TOPIC")]
    pub(super) topic: Option<String>,
}
