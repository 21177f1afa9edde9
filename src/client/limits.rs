//! Limits of the contract that the library keeps by itself. The server has its own list, without which a client alone
//! is built.

use std::time::Duration;

/// Largest `max_in_flight` of a stream.
pub(super) const CREDIT_MAX: usize = 10_000;
/// Maximum number of receipts of one Ack, Nack or Extend.
pub(super) const SETTLE_ITEMS_MAX: usize = 1_000;
/// Maximum length of the error text of a Nack, in bytes.
pub(super) const ERROR_BYTES_MAX: usize = 4 << 10;
/// Maximum size of a message from the server: a job of a server whose limits were raised, with its headers and checkpoint.
pub(super) const MESSAGE_BYTES_MAX: usize = 16 << 20;
/// Default lease of a [`Worker`](super::Worker), for jobs that set none. It is extended while the job runs, so a
/// short one only limits how long a job waits after its worker was lost.
pub(super) const WORKER_LEASE: Duration = Duration::from_secs(30);
/// Time for which the id of a finished job without retention is kept.
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
