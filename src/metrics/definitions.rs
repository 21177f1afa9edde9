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

/// Declares metrics, each with its kind, name, labels, unit and meaning, and all of them in one list.
macro_rules! metrics {
    ($($id:ident: $kind:ident $(($buckets:ident))? $name:literal [$($label:literal),*] in $unit:ident, $help:literal;)*) => {
        $(
            #[doc = $help]
            pub(super) const $id: Metric = Metric {
                name: $name,
                kind: Kind::$kind $(($buckets))?,
                labels: &[$($label),*],
                unit: Unit::$unit,
                help: $help,
            };
        )*

        /// All of them.
        pub(super) const ALL: &[&Metric] = &[$(&$id),*];
    };
}

metrics! {
    ENQUEUED: Counter "ringq_jobs_enqueued_total" ["topic", "outcome"] in Count,
        "Jobs enqueued, by what became of them (created, replaced, unchanged, deferred, rescheduled)";
    DELIVERED: Counter "ringq_jobs_delivered_total" ["topic", "mode"] in Count,
        "Deliveries handed to workers, by the way they went (stream, pull)";
    SETTLED: Counter "ringq_jobs_settled_total" ["topic", "outcome"] in Count,
        "Leases ended, by what ended them (succeeded, retried, released, lease_expired, orphaned; dead, whatever it died of), and acks that were refused";
    LAG: Histogram(LONG) "ringq_job_lag_seconds" [] in Seconds,
        "Time from when a job was due to its delivery";
    RUN: Histogram(LONG) "ringq_job_run_seconds" [] in Seconds,
        "Time from a delivery to its settle";
    JOBS: Gauge "ringq_jobs" ["topic", "state"] in Count,
        "Jobs on all shards that ringq_shard_counted names with 1; every replica shows the same jobs";
    OLDEST_READY: Gauge "ringq_oldest_ready_age_seconds" ["topic"] in Seconds,
        "Time that the oldest ready job has been waiting, 0 if there is none; of the same shards as ringq_jobs";
    STREAMS: Gauge "ringq_streams" [] in Count,
        "Open streams of this replica";
    CREDIT_WAITING: Gauge "ringq_stream_credit_waiting" [] in Count,
        "Jobs that the open streams of this replica could take at once";
    RINGS_OPEN: Gauge "ringq_rings_open" [] in Count,
        "Rings under which jobs may lie: 1, and more while jobs of former rings are left";
    RING_DISAGREEMENT: Gauge "ringq_ring_disagreement" [] in Count,
        "1 while another replica serves another ring: one id may then be created twice, else 0";
    STORE_OP: Histogram(SHORT) "ringq_store_op_seconds" ["shard", "op"] in Seconds,
        "Time of one call of a shard, a batch being one call";
    STORE_ERRORS: Counter "ringq_store_errors_total" ["shard", "op", "reason"] in Count,
        "Calls of a shard that failed";
    SHARD_UP: Gauge "ringq_shard_up" ["shard"] in Count,
        "1 while the shard can be used, else 0";
    COUNTED: Gauge "ringq_shard_counted" ["shard"] in Count,
        "1 if ringq_jobs and ringq_oldest_ready_age_seconds include the jobs of the shard, 0 if it did not answer";
    BREAKER_OPEN: Gauge "ringq_shard_breaker_open" ["shard"] in Count,
        "1 while calls of the shard fail at once because it does not answer, else 0";
    BREAKER_OPENED: Counter "ringq_shard_breaker_opened_total" ["shard"] in Count,
        "How often calls of the shard began to fail at once because it did not answer";
    REFUSES_JOBS: Gauge "ringq_shard_refuses_jobs" ["shard"] in Count,
        "1 while the shard takes no new jobs because they would not be safe on it, else 0";
    REFUSES_READS: Gauge "ringq_shard_refuses_reads" ["shard"] in Count,
        "1 while reads by users are refused because the shard does not answer them, else 0";
    CLOCK_SKEW: Gauge "ringq_shard_clock_skew_seconds" ["shard"] in Seconds,
        "Seconds that the clock of the shard is ahead of this server's, below 0 behind; fences of a job stay in order over a failover while clocks differ by less than the time between its deliveries";
    BUILD: Gauge "ringq_build_info" ["version"] in Count,
        "Always 1";
    RPC: Histogram(SHORT) "ringq_rpc_seconds" ["method", "code"] in Seconds,
        "Time of one call; of a stream, its life";
}

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
