//! Bounds of the settings, each with its reason. docs/configuration.md lists the same bounds; a test compares both.

use std::ops::RangeInclusive;
use std::time::Duration;

use crate::domain::ring::WEIGHT_MAX;

use super::duration::{days, hours, millis, minutes, secs};

/// Number of characters of `replica`: as many as Linux allows in a host name, which is its default.
pub(super) const REPLICA_CHARS: RangeInclusive<usize> = 1..=64;

/// `threads`: a single thread has no other thread to wake and none to lock against; no machine has use for more.
pub(super) const THREADS: RangeInclusive<usize> = 1..=256;

/// `max_streams`: without one no worker is served; each holds a socket and its buffers, and a larger number belongs
/// on several replicas.
pub(super) const STREAMS: RangeInclusive<usize> = 1..=100_000;

/// `max_concurrent_requests`: without one nothing is served; the limit exists to bound memory, which a larger number
/// would not.
pub(super) const CONCURRENT_REQUESTS: RangeInclusive<usize> = 1..=1_000_000;

/// `max_message_mib`: an eighth of it, the share of one connection, must hold the largest message; the limit exists
/// to bound memory, and no machine has more.
pub(super) const MESSAGE_MIB: RangeInclusive<usize> = 32..=1_000_000;

/// `max_connections`, `max_http_connections` and those `_per_peer`: few are enough for a trial; for more there are no open files.
pub(super) const CONNECTIONS: RangeInclusive<usize> = 1..=1_000_000;

/// `request_timeout`: in less time a healthy shard may not have synced its disk; no client waits longer for an
/// answer.
pub(super) const REQUEST_TIMEOUT: RangeInclusive<Duration> = millis(100)..=hours(1);

/// `stream_max_age` unless it is zero: workers whose streams end sooner do little but connect; in more than a week
/// streams are not balanced between replicas.
pub(super) const STREAM_AGE: RangeInclusive<Duration> = secs(1)..=days(7);

/// `drain_delay`: zero where nothing stands in front of the server; the slowest load balancer reacts in less.
pub(super) const DRAIN_DELAY: RangeInclusive<Duration> = secs(0)..=minutes(10);

/// `shutdown_grace`: zero leaves every lease to the replicas that go on; operators do not wait longer for the end of
/// a server.
pub(super) const SHUTDOWN_GRACE: RangeInclusive<Duration> = secs(0)..=hours(1);

/// Bounds of the weight of a shard: with 0 it would own nothing, which `draining` is for; for the maximum see
/// [`WEIGHT_MAX`].
pub(super) const WEIGHT: RangeInclusive<usize> = 1..=WEIGHT_MAX as usize;
