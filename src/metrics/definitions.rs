//! Definitions of all metrics: name, labels, unit, meaning, buckets. Base units; every label is bounded.

use prometheus::{HistogramOpts, Opts};

/// Definition of a metric.
#[derive(Debug)]
pub(super) struct Metric {
    pub(super) name: &'static str,
    pub(super) kind: MetricKind,
    pub(super) labels: &'static [&'static str],
    pub(super) unit: Unit,
    pub(super) help: &'static str,
}

/// Unit of the values of a metric, the end of its name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Unit {
    /// A number of things; not part of the name.
    Count,
    Seconds,
    Bytes,
}

/// Type of a metric; a histogram has the upper bounds of its buckets.
#[derive(Debug)]
pub(super) enum MetricKind {
    Counter,
    Gauge,
    Histogram(&'static [f64]),
}

/// Buckets for times from a wake-up (milliseconds) to a backlog (hours), in seconds. Each topic has them twice, so they
/// are few: a factor of 4 to 6 between two of them.
const LONG: &[f64] =
    &[0.001, 0.005, 0.025, 0.1, 0.25, 1.0, 5.0, 30.0, 120.0, 600.0, 3_600.0, 21_600.0];
/// Buckets for calls: from a read of a cached page to the longest default deadline, in seconds.
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
                kind: MetricKind::$kind $(($buckets))?,
                labels: &[$($label),*],
                unit: Unit::$unit,
                help: $help,
            };
        )*

        /// All metrics.
        pub(super) const ALL: &[&Metric] = &[$(&$id),*];
    };
}

metrics! {
    ENQUEUED: Counter "ringq_jobs_enqueued_total" ["topic", "outcome"] in Count,
        "Enqueue requests answered, in jobs. outcome: created, replaced, unchanged, deferred, rescheduled, refused (not stored, or not surely stored)";
    EVICTED: Counter "ringq_jobs_evicted_total" ["topic"] in Count,
        "Waiting jobs that a full topic dropped to make room for newer ones (on_full = DROP_OLDEST)";
    DELIVERED: Counter "ringq_jobs_delivered_total" ["topic", "mode"] in Count,
        "Deliveries of jobs to workers. mode: stream, pull";
    SETTLED: Counter "ringq_jobs_settled_total" ["topic", "outcome"] in Count,
        "Leases that ended. outcome: succeeded, retried, released, lease_expired, orphaned, dead (by any cause), moved (to a crash topic); refused counts Acks that were rejected";
    LAG: Histogram(LONG) "ringq_job_lag_seconds" ["topic"] in Seconds,
        "Seconds from the due time of a job to its delivery";
    RUN: Histogram(LONG) "ringq_job_run_seconds" ["topic"] in Seconds,
        "Seconds from a delivery to its Ack or Nack";
    JOBS: Gauge "ringq_jobs" ["topic", "state"] in Count,
        "Jobs on all shards with ringq_shard_counted 1; all servers export the same value. state: the state of the job";
    OLDEST_READY: Gauge "ringq_oldest_ready_age_seconds" ["topic"] in Seconds,
        "Seconds that the oldest READY job has been due, 0 without one; of the same shards as ringq_jobs";
    STREAMS: Gauge "ringq_streams" [] in Count,
        "Open streams of this server";
    CREDIT_WAITING: Gauge "ringq_stream_credit_waiting" [] in Count,
        "Free credit of the open streams of this server, in jobs";
    RINGS_OPEN: Gauge "ringq_rings_open" [] in Count,
        "Rings that may still hold jobs: 1; more while jobs of former lists of shards remain";
    RING_DISAGREEMENT: Gauge "ringq_ring_disagreement" [] in Count,
        "1 while another server uses another list of shards, so that one id may be created twice, else 0";
    STORE_OP: Histogram(SHORT) "ringq_store_op_seconds" ["shard", "op"] in Seconds,
        "Seconds of one call to a shard; a batch is one call. op: the kind of call";
    STORE_ERRORS: Counter "ringq_store_errors_total" ["shard", "op", "reason"] in Count,
        "Calls to a shard that failed. op: the kind of call; reason: the reason of the error";
    SHARD_UP: Gauge "ringq_shard_up" ["shard"] in Count,
        "1 while the shard is in use, else 0";
    COUNTED: Gauge "ringq_shard_counted" ["shard"] in Count,
        "1 if ringq_jobs and ringq_oldest_ready_age_seconds include the shard, 0 if it did not answer";
    BREAKER_OPEN: Gauge "ringq_shard_breaker_open" ["shard"] in Count,
        "1 while the circuit breaker of the shard is open and calls fail at once, else 0";
    BREAKER_OPENED: Counter "ringq_shard_breaker_opened_total" ["shard"] in Count,
        "Times that the circuit breaker of the shard opened";
    DATA_LOST: Counter "ringq_shard_data_lost_total" ["shard"] in Count,
        "Times that the shard was found without its data, or with an older copy of it, by this server";
    REFUSES_JOBS: Gauge "ringq_shard_refuses_jobs" ["shard"] in Count,
        "1 while the shard accepts no new jobs because it could lose them (maxmemory-policy evicts), else 0";
    REFUSES_READS: Gauge "ringq_shard_refuses_reads" ["shard"] in Count,
        "1 while Get and lists are rejected because the shard does not answer reads, else 0";
    CLOCK_SKEW: Gauge "ringq_shard_clock_skew_seconds" ["shard"] in Seconds,
        "Seconds that the clock of the shard is ahead of the clock of this server; negative: behind";
    STORE_BYTES: Gauge "ringq_store_bytes" ["shard"] in Bytes,
        "Bytes that the store uses: of a SQLite file, its pages in use and its log; of a Redis, used_memory. Absent while the shard does not answer";
    STORE_MAX_BYTES: Gauge "ringq_store_max_bytes" ["shard"] in Bytes,
        "Value of ringq_store_bytes at which the store is full: of a SQLite file, what it uses and what its file system has free; of a Redis, maxmemory. Absent without a limit, and while the shard does not answer";
    IDENTITY_CALLS: Counter "ringq_identity_calls_total" ["identity"] in Count,
        "Calls of an identity, without health checks and those that calls_per_second refused";
    IDENTITY_JOBS: Counter "ringq_identity_jobs_total" ["identity"] in Count,
        "Jobs that an identity enqueued, follow-ups of its Acks included, without repeats that changed nothing";
    IDENTITY_BYTES: Counter "ringq_identity_bytes_total" ["identity"] in Bytes,
        "Bytes that producers filled in the jobs of ringq_identity_jobs_total: payload, headers, media type, id, group and waits of the retry policy";
    IDENTITY_FORGED: Counter "ringq_identity_forged_receipts_total" ["identity"] in Count,
        "Receipts in Acks, Nacks and Extends of an identity that no server of their shard has made: guessed or damaged. They are answered STALE";
    IDENTITY_REFUSED: Counter "ringq_identity_refused_total" ["identity", "quota"] in Count,
        "Calls of an identity that a quota refused. quota: calls_per_second, jobs_per_second, bytes_per_second, streams, or waiting_jobs, stored_bytes or topic_settings of a namespace";
    NAMESPACE_WAITING: Gauge "ringq_namespace_waiting_jobs" ["namespace"] in Count,
        "Waiting jobs (SCHEDULED, READY, BACKOFF) of a namespace with a quota of waiting_jobs on all shards; all servers export about the same value";
    NAMESPACE_STORED: Gauge "ringq_namespace_stored_bytes" ["namespace"] in Bytes,
        "Bytes that the topics of a namespace with a quota of stored_bytes take on all shards, about; all servers export about the same value";
    BUILD: Gauge "ringq_build_info" ["version", "replica"] in Count,
        "Always 1. version: the version of the server; replica: its name";
    RPC: Histogram(SHORT) "ringq_rpc_seconds" ["method", "code"] in Seconds,
        "Seconds of one call; for a stream, from its start to its end. method: the RPC; code: the gRPC code";
    IDENTITIES_FAILED: Gauge "ringq_identities_reload_failures" [] in Count,
        "Attempts to read changed identities that failed since they were last read; above 0 the former ones are in force";
    TOPICS_NOT_IN_FORCE: Gauge "ringq_topics_file_not_in_force" [] in Count,
        "1 while the file of topics has a mistake, is refused, or is not applied yet, so that the former settings are in force, else 0";
    CONNECTIONS_REFUSED: Counter "ringq_connections_refused_total" ["port", "reason"] in Count,
        "Connections that a limit closed. port: grpc, http; reason: rejected, a new one for which there was no place; displaced, one without an identity whose place a new one took";
    TLS_FAILURES: Counter "ringq_tls_handshake_failures_total" ["port", "reason"] in Count,
        "Connections that were closed before their first request because of TLS. port: grpc, http; reason: closed, timeout, plain_text, tls_is_off, no_certificate, unknown_authority, expired_certificate, unusable_certificate, refused_by_client, nothing_in_common, invalid";
    TLS_EXPIRY: Gauge "ringq_tls_certificate_expiry_seconds" ["file"] in Seconds,
        "Seconds until the first certificate in use expires, 86400 a day; negative: since it expired. file: server, client_ca. Absent without TLS";
    TLS_RELOAD_FAILED: Gauge "ringq_tls_reload_failed" [] in Count,
        "1 while the TLS files have changed and cannot be used, so that those of before are in use, else 0";
    LOG_LINES_LOST: Counter "ringq_log_lines_lost_total" [] in Count,
        "Lines of the log that were lost because the reader of standard error did not take them";
    PROCESS_CPU: Counter "process_cpu_seconds_total" [] in Seconds,
        "Seconds of processor time that the server has used; on Linux, like the next four";
    PROCESS_MEMORY: Gauge "process_resident_memory_bytes" [] in Bytes,
        "Bytes of memory that the server has resident";
    PROCESS_FDS: Gauge "process_open_fds" [] in Count,
        "Open files and connections of the server";
    PROCESS_FDS_MAX: Gauge "process_max_fds" [] in Count,
        "Limit of open files and connections of the server";
    PROCESS_START: Gauge "process_start_time_seconds" [] in Seconds,
        "Start of the server, in seconds since the Unix epoch";
}

// === impl Metric ===

impl Metric {
    pub(super) fn opts(&self) -> Opts {
        Opts::new(self.name, self.help)
    }

    /// The options of a histogram.
    pub(super) fn histogram_opts(&self) -> HistogramOpts {
        let MetricKind::Histogram(buckets) = self.kind else {
            unreachable!("{} is no histogram", self.name)
        };
        HistogramOpts::new(self.name, self.help).buckets(buckets.to_vec())
    }
}
