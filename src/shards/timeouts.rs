//! Time limits of calls of shards.

use std::time::Duration;

use crate::backoff::BackoffRange;

/// Time limits and pauses for calls of shards.
#[derive(Clone, Debug)]
pub struct ShardTimeouts {
    /// Time limit of a call, after which it has failed with an unknown outcome; default 5 s. Far longer than a busy
    /// shard takes, because giving up does not make it less busy.
    pub call: Duration,
    /// Time limit of a claim, which holds the credit of streams that other shards could use; default 2 s.
    pub claim: Duration,
    /// Time from the begin of a fan-out until shards without an answer are left out, once one has answered; default
    /// 750 ms.
    pub fan_out: Duration,
    /// Longest time for which a write of unknown outcome is retried on its shard, however late the caller's deadline
    /// is; default 30 s.
    pub retry_max: Duration,
    /// Time for which all servers must have served one ring before former ones are closed; default 60 s. Longer than
    /// any call that began under those takes, see `call` and `retry_max`.
    pub ring_agreement: Duration,
    /// First and longest pause between two probes of a shard that is down; default 100 ms and 5 s.
    pub(crate) probe_pauses: BackoffRange,
}

// === impl ShardTimeouts ===

impl ShardTimeouts {
    /// Longest time that a call runs under one ring.
    pub(super) fn call_max(&self) -> Duration {
        self.call + self.retry_max
    }
}

impl Default for ShardTimeouts {
    fn default() -> ShardTimeouts {
        ShardTimeouts {
            call: Duration::from_secs(5),
            claim: Duration::from_secs(2),
            fan_out: Duration::from_millis(750),
            retry_max: Duration::from_secs(30),
            ring_agreement: Duration::from_secs(60),
            probe_pauses: BackoffRange {
                min: Duration::from_millis(100),
                max: Duration::from_secs(5),
            },
        }
    }
}
