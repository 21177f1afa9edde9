//! Presets: named plans.

use std::time::Duration;

use clap::ValueEnum;

use super::plan::{JobAmount, LEAD, Phases, Plan};

/// Preset of a plan.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(super) enum Preset {
    /// Enqueue, one job per call, 50 calls in flight
    Unary,
    /// Enqueue in batches of 128, 8 calls in flight
    Bulk,
    /// Take and ack a backlog: 4 streams of credit 1000, acks of 100
    Consume,
    /// Enqueue in batches, then take and ack: the whole life of jobs
    Lifecycle,
    /// Enqueue in batches while taking and acking
    Both,
    /// Enqueue one job every 5 ms, to a worker that waits: latency without load, counted from the slot
    Idle,
    /// Delayed jobs that are all due in one instant
    Burst,
    /// Delayed jobs whose due times spread over 5 s
    Delayed,
}

// === impl Preset ===

impl Preset {
    /// Returns the name on the command line.
    pub(super) fn name(self) -> String {
        name(self)
    }

    /// Returns the plan.
    pub(super) fn plan(self) -> Plan {
        let bulk = Plan {
            phases: Phases::Sequence,
            amount: JobAmount::Jobs(300_000),
            producers: 8,
            in_flight: 1,
            batch: 128,
            rate: None,
            workers: 4,
            credit: 1000,
            ack_batch: 100,
            body_bytes: 100,
            lead: None,
            spread: None,
            connections: 4,
            threads: 1,
            warm_up: None,
            rounds: 1,
            durability: None,
        };
        let amount = JobAmount::Jobs;
        let together = Plan { phases: Phases::Together, ..bulk };
        let delayed = Plan { amount: amount(20_000), lead: Some(LEAD), ..together };
        let single = Plan { batch: 1, ..bulk };
        match self {
            Preset::Unary => {
                Plan { phases: Phases::Enqueue, amount: amount(60_000), producers: 50, ..single }
            }
            Preset::Bulk => Plan { phases: Phases::Enqueue, ..bulk },
            Preset::Consume => Plan { phases: Phases::Consume, ..bulk },
            Preset::Lifecycle => bulk,
            Preset::Both => together,
            Preset::Idle => Plan {
                phases: Phases::Together,
                amount: amount(1000),
                producers: 1,
                rate: Some(200.0),
                workers: 1,
                credit: 16,
                ack_batch: 1,
                ..single
            },
            Preset::Burst => delayed,
            Preset::Delayed => Plan { spread: Some(Duration::from_secs(5)), ..delayed },
        }
    }
}

/// Returns the name of a value on the command line.
pub(super) fn name(value: impl ValueEnum) -> String {
    value.to_possible_value().map(|value| value.get_name().to_owned()).unwrap_or_default()
}
