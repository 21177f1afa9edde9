//! The bounds of the contract that the library keeps by itself. The server has its own list, which a client alone is
//! built without.

use std::time::Duration;

/// Largest `max_in_flight` of a stream.
pub(super) const CREDIT_MAX: usize = 10_000;
/// Most receipts of one Ack, Nack or Extend.
pub(super) const SETTLE_ITEMS_MAX: usize = 1_000;
/// Longest error text of a Nack in bytes.
pub(super) const ERROR_BYTES_MAX: usize = 4 << 10;
/// Lease of jobs that set none where a [`Worker`](super::Worker) names none. It is extended while the job runs, so
/// a short one only bounds how long a job waits whose worker was lost in whatever way.
pub(super) const WORKER_LEASE: Duration = Duration::from_secs(30);
/// How long the id of a job is kept that ended and asked for no retention.
pub(super) const TOMBSTONE: Duration = Duration::from_secs(60);

#[cfg(test)]
mod tests {
    #[cfg(feature = "server")]
    #[test]
    fn limits_match_the_server() {
        use crate::domain::limit;

        assert_eq!(super::CREDIT_MAX, limit::STREAM_CREDIT_MAX as usize);
        assert_eq!(super::SETTLE_ITEMS_MAX, limit::SETTLE_ITEMS_MAX);
        assert_eq!(super::ERROR_BYTES_MAX, limit::ERROR_BYTES_MAX);
        assert_eq!(super::TOMBSTONE, limit::TOMBSTONE);
    }
}
