//! Time limits of calls of shards.

use std::time::Duration;

/// How patient this server is with its shards.
#[derive(Clone, Debug)]
pub struct ShardTimeouts {
    /// A call that is not answered within this has failed, with an unknown outcome. Far longer than a
    /// busy shard takes, because giving up does not make it less busy.
    pub call: Duration,
    /// The same for a claim, which holds the credit of streams that other shards could use.
    pub claim: Duration,
    /// How long a question to all shards waits for the others, once one has answered.
    pub fan_out: Duration,
    /// How long a write of unknown outcome is repeated on its shard at most, however late the caller's deadline is.
    pub retry_max: Duration,
    /// How long all servers must have served one ring before former ones are closed. Longer than any call that began
    /// under those takes, see `answer` and `repeats`.
    pub ring_agreement: Duration,
    /// First and longest pause between two probes of a shard that is down.
    pub probe_pauses: (Duration, Duration),
}

// === impl Patience ===

impl ShardTimeouts {
    /// The longest that a call goes on under a ring.
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
            probe_pauses: (Duration::from_millis(100), Duration::from_secs(5)),
        }
    }
}
