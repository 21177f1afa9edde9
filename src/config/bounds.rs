//! What the settings may be, each bound with its reason. docs/configuration.md lists the same bounds; a test compares both.

use std::ops::RangeInclusive;
use std::time::Duration;

use crate::domain::ring::WEIGHT_MAX;

use super::duration::{days, hours, millis, minutes, secs};

/// Characters of `replica`: as many as Linux allows a host name, which it is by default.
pub(super) const REPLICA_CHARS: RangeInclusive<usize> = 1..=64;

/// `threads`: one has nobody to wake and nothing to lock for; more than so many, no machine has use for.
pub(super) const THREADS: RangeInclusive<usize> = 1..=256;

/// `max_streams`: without one no worker is served; each holds a socket and its buffers, and more than so many
/// belong on several replicas.
pub(super) const STREAMS: RangeInclusive<usize> = 1..=100_000;

/// `max_concurrent_requests`: without one nothing is served; it is there to bound memory, which a larger number
/// would not.
pub(super) const CONCURRENT_REQUESTS: RangeInclusive<usize> = 1..=1_000_000;

/// `max_message_mib`: an eighth of it, which one connection may have, must hold the largest message; it is there to
/// bound memory, and no machine has more.
pub(super) const MESSAGE_MIB: RangeInclusive<usize> = 32..=1_000_000;

/// `max_connections` and `max_connections_per_peer`: few must do in a trial; more than so many have no files.
pub(super) const CONNECTIONS: RangeInclusive<usize> = 1..=1_000_000;

/// `request_timeout`: in less a shard that is well may not have synced its disk; nobody waits longer for an answer.
pub(super) const REQUEST_TIMEOUT: RangeInclusive<Duration> = millis(100)..=hours(1);

/// `stream_max_age` unless it is zero: workers whose streams end sooner do little but connect; replicas that
/// even out in more than a week do not.
pub(super) const STREAM_AGE: RangeInclusive<Duration> = secs(1)..=days(7);

/// `drain_delay`: zero where nothing stands in front of the server; the slowest load balancer notices in less.
pub(super) const DRAIN_DELAY: RangeInclusive<Duration> = secs(0)..=minutes(10);

/// `shutdown_grace`: zero leaves every lease to the replicas that go on; who waits for the end of a server
/// does not wait longer.
pub(super) const SHUTDOWN_GRACE: RangeInclusive<Duration> = secs(0)..=hours(1);

/// The weight of a shard: with 0 it would own nothing, which is what `draining` is for; for the most see [`WEIGHT_MAX`].
pub(super) const WEIGHT: RangeInclusive<usize> = 1..=WEIGHT_MAX as usize;
