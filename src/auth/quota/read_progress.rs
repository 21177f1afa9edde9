//! Reads of a figure of namespaces: which have begun and ended, and requests for the next one before its time.

use tokio::sync::{Notify, watch};
use tokio::time::{Instant, timeout_at};

/// Progress of the reads of one figure.
#[derive(Debug, Default)]
pub(super) struct ReadProgress {
    wanted: Notify,
    counts: watch::Sender<ReadCounts>,
}

/// Numbers of reads; one at most is under way.
#[derive(Clone, Copy, Debug, Default)]
struct ReadCounts {
    begun: u64,
    ended: u64,
}

// === impl ReadProgress ===

impl ReadProgress {
    /// Counts a read that begins.
    pub(super) fn begin(&self) {
        self.counts.send_modify(|counts| counts.begun += 1);
    }

    /// Counts the read under way as ended.
    pub(super) fn end(&self) {
        self.counts.send_modify(|counts| counts.ended = counts.begun);
    }

    /// Waits until a job needs a read.
    pub(super) async fn wanted(&self) {
        self.wanted.notified().await;
    }

    /// Requests a read and waits until one that has begun after this has ended; returns whether it has by then.
    pub(super) async fn next(&self, until: Instant) -> bool {
        let mut counts = self.counts.subscribe();
        let next = counts.borrow().begun + 1;
        self.wanted.notify_one();
        let ended = counts.wait_for(|counts| counts.ended >= next);
        timeout_at(until, ended).await.is_ok()
    }
}
