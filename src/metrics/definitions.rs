//! Every metric: name, labels, unit, meaning, buckets. Base units; every label is bounded.

use metrics::{Key, Label, Unit};

/// One metric.
#[derive(Debug)]
pub(super) struct Metric {
    pub(super) name: &'static str,
    pub(super) kind: Kind,
    pub(super) labels: &'static [&'static str],
    pub(super) unit: Unit,
    pub(super) help: &'static str,
}

/// Its kind; a histogram with the upper bounds of its buckets.
#[derive(Debug)]
pub(super) enum Kind {
    Counter,
    Gauge,
    Histogram(&'static [f64]),
}

/// For times between milliseconds, which is what a wake-up takes, and the hours of a backlog.
const LONG: &[f64] = &[
    0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0,
    300.0, 1_800.0, 3_600.0, 21_600.0,
];
/// For calls: from a read of a cached page to the longest deadline by default.
const SHORT: &[f64] = &[
    0.000_1, 0.000_25, 0.000_5, 0.001, 0.002_5, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5,
    5.0, 10.0, 30.0,
];

pub(super) const ENQUEUED: Metric = Metric {
    name: "ringq_jobs_enqueued_total",
    kind: Kind::Counter,
    labels: &["topic", "outcome"],
    unit: Unit::Count,
    help: "Jobs enqueued, by what became of them",
};
pub(super) const DELIVERED: Metric = Metric {
    name: "ringq_jobs_delivered_total",
    kind: Kind::Counter,
    labels: &["topic", "mode"],
    unit: Unit::Count,
    help: "Deliveries handed to workers, by the way they went",
};
pub(super) const SETTLED: Metric = Metric {
    name: "ringq_jobs_settled_total",
    kind: Kind::Counter,
    labels: &["topic", "outcome"],
    unit: Unit::Count,
    help: "Leases ended, by what ended them, and acks that were refused",
};
pub(super) const LAG: Metric = Metric {
    name: "ringq_job_lag_seconds",
    kind: Kind::Histogram(LONG),
    labels: &[],
    unit: Unit::Seconds,
    help: "Time from when a job was due to its delivery",
};
pub(super) const RUN: Metric = Metric {
    name: "ringq_job_run_seconds",
    kind: Kind::Histogram(LONG),
    labels: &[],
    unit: Unit::Seconds,
    help: "Time from a delivery to its settle",
};
pub(super) const JOBS: Metric = Metric {
    name: "ringq_jobs",
    kind: Kind::Gauge,
    labels: &["topic", "state"],
    unit: Unit::Count,
    help: "Jobs in the store",
};
pub(super) const OLDEST_READY: Metric = Metric {
    name: "ringq_oldest_ready_age_seconds",
    kind: Kind::Gauge,
    labels: &["topic"],
    unit: Unit::Seconds,
    help: "Time that the oldest ready job has been waiting, 0 if there is none",
};
pub(super) const STREAMS: Metric = Metric {
    name: "ringq_streams",
    kind: Kind::Gauge,
    labels: &[],
    unit: Unit::Count,
    help: "Open streams of this replica",
};
pub(super) const CREDIT_WAITING: Metric = Metric {
    name: "ringq_stream_credit_waiting",
    kind: Kind::Gauge,
    labels: &[],
    unit: Unit::Count,
    help: "Jobs that the open streams of this replica could take at once",
};
pub(super) const RINGS_OPEN: Metric = Metric {
    name: "ringq_rings_open",
    kind: Kind::Gauge,
    labels: &[],
    unit: Unit::Count,
    help: "Rings under which jobs may lie: 1, and more while jobs of former rings are left",
};
pub(super) const RING_DISAGREEMENT: Metric = Metric {
    name: "ringq_ring_disagreement",
    kind: Kind::Gauge,
    labels: &[],
    unit: Unit::Count,
    help: "1 while another replica serves another ring: one id may then be created twice, else 0",
};
pub(super) const STORE_OP: Metric = Metric {
    name: "ringq_store_op_seconds",
    kind: Kind::Histogram(SHORT),
    labels: &["shard", "op"],
    unit: Unit::Seconds,
    help: "Time of one call of a shard, a batch being one call",
};
pub(super) const STORE_ERRORS: Metric = Metric {
    name: "ringq_store_errors_total",
    kind: Kind::Counter,
    labels: &["shard", "op", "reason"],
    unit: Unit::Count,
    help: "Calls of a shard that failed",
};
pub(super) const SHARD_UP: Metric = Metric {
    name: "ringq_shard_up",
    kind: Kind::Gauge,
    labels: &["shard"],
    unit: Unit::Count,
    help: "1 while the shard can be used, else 0",
};
pub(super) const BREAKER_OPEN: Metric = Metric {
    name: "ringq_shard_breaker_open",
    kind: Kind::Gauge,
    labels: &["shard"],
    unit: Unit::Count,
    help: "1 while calls of the shard fail at once because it does not answer, else 0",
};
pub(super) const BREAKER_OPENED: Metric = Metric {
    name: "ringq_shard_breaker_opened_total",
    kind: Kind::Counter,
    labels: &["shard"],
    unit: Unit::Count,
    help: "How often the shard was left alone because it did not answer",
};
pub(super) const REFUSES_JOBS: Metric = Metric {
    name: "ringq_shard_refuses_jobs",
    kind: Kind::Gauge,
    labels: &["shard"],
    unit: Unit::Count,
    help: "1 while the shard takes no new jobs because they would not be safe on it, else 0",
};
pub(super) const BUILD: Metric = Metric {
    name: "ringq_build_info",
    kind: Kind::Gauge,
    labels: &["version"],
    unit: Unit::Count,
    help: "Always 1",
};
pub(super) const RPC: Metric = Metric {
    name: "ringq_rpc_seconds",
    kind: Kind::Histogram(SHORT),
    labels: &["method", "code"],
    unit: Unit::Seconds,
    help: "Time of one call; of a stream, its life",
};

/// All of them.
pub(super) const ALL: [&Metric; 19] = [
    &ENQUEUED,
    &DELIVERED,
    &SETTLED,
    &LAG,
    &RUN,
    &JOBS,
    &OLDEST_READY,
    &STREAMS,
    &RINGS_OPEN,
    &RING_DISAGREEMENT,
    &CREDIT_WAITING,
    &STORE_OP,
    &STORE_ERRORS,
    &SHARD_UP,
    &BREAKER_OPEN,
    &BREAKER_OPENED,
    &REFUSES_JOBS,
    &BUILD,
    &RPC,
];

// === impl Metric ===

impl Metric {
    /// The key of one series: a value for each label, in order.
    pub(super) fn key(&self, values: &[&str]) -> Key {
        debug_assert_eq!(self.labels.len(), values.len(), "labels of {}", self.name);
        let labels = self.labels.iter().zip(values);
        let labels: Vec<_> =
            labels.map(|(label, value)| Label::new(*label, (*value).to_owned())).collect();
        Key::from_parts(self.name, labels)
    }
}
