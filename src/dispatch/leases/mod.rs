//! Leases after their delivery: those that move, end or are returned without a settle of their worker.
//!
//! - `adopter`: moves leases to the worker's next stream
//! - `detach`: keeps leases that outlive their stream, because the server has ended it
//! - `orphan_release`: releases the leases of broken streams
//! - `silence_detector`, `replica_watcher`: replicas that are silent, so that all their streams are broken
//! - `events`, `watch`: changes of leases by other replicas; leases that expired, or whose events may be lost
//! - `pause_watch`: jobs that were paused while they waited for their transports

pub(super) mod adopter;
pub(super) mod detach;
pub(super) mod events;
pub(super) mod orphan_release;
pub(super) mod pause_watch;
pub(super) mod replica_watcher;
pub(super) mod silence_detector;
pub(super) mod watch;
