//! Bytes of answers that were passed to a connection and are not written yet.
//!
//! HTTP/2 accepts a whole answer once the client's window has room for its first byte, and buffers the rest. An
//! answer has therefore been read only when its bytes are written: until then its last frame waits, and with it the
//! end of the call.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use bytes::Bytes;
use tokio::sync::Notify;

/// Maximum bytes of small answers of one connection that may wait to be written while others go on: as much as a busy
/// client has in flight between two writes.
const SMALL_WAITING_MAX: usize = 1 << 20;
/// Maximum size of a small answer; a larger one has a backlog of its own.
const SMALL_MAX: usize = 16 << 10;

/// Counter of the bytes that wait to be written.
#[derive(Debug)]
pub(super) struct WriteBacklog {
    max: usize,
    waiting: AtomicUsize,
    written: Notify,
}

/// Bytes that are counted in a backlog until they are dropped.
struct UnwrittenBytes {
    bytes: Bytes,
    backlog: Arc<WriteBacklog>,
}

/// Future that ends when a backlog has room.
pub(super) type BacklogRoom = Pin<Box<dyn Future<Output = ()> + Send>>;

// === impl WriteBacklog ===

impl WriteBacklog {
    /// Creates the backlog for the small answers of a connection.
    pub(super) fn of_connection() -> Arc<WriteBacklog> {
        WriteBacklog::new(SMALL_WAITING_MAX)
    }

    fn new(max: usize) -> Arc<WriteBacklog> {
        Arc::new(WriteBacklog { max, waiting: AtomicUsize::new(0), written: Notify::new() })
    }

    /// Counts `bytes` until they are written or dropped: here, or in a separate backlog, which is returned. They have
    /// a separate one if they are large, or `alone`.
    pub(super) fn add(
        self: &Arc<Self>,
        bytes: Bytes,
        alone: bool,
    ) -> (Bytes, Option<Arc<WriteBacklog>>) {
        let own = (alone || bytes.len() > SMALL_MAX).then(|| WriteBacklog::new(0));
        let backlog = Arc::clone(own.as_ref().unwrap_or(self));
        backlog.waiting.fetch_add(bytes.len(), Ordering::Relaxed);
        (Bytes::from_owner(UnwrittenBytes { bytes, backlog }), own)
    }

    /// Returns whether more bytes wait than allowed.
    pub(super) fn is_full(&self) -> bool {
        self.waiting.load(Ordering::Acquire) > self.max
    }

    /// Returns a future that ends when the backlog is not full.
    pub(super) fn wait_room(self: &Arc<Self>) -> BacklogRoom {
        let backlog = Arc::clone(self);
        Box::pin(async move {
            loop {
                let mut written = std::pin::pin!(backlog.written.notified());
                written.as_mut().enable();
                if !backlog.is_full() {
                    return;
                }
                written.await;
            }
        })
    }
}

// === impl UnwrittenBytes ===

impl AsRef<[u8]> for UnwrittenBytes {
    fn as_ref(&self) -> &[u8] {
        &self.bytes
    }
}

impl Drop for UnwrittenBytes {
    fn drop(&mut self) {
        let UnwrittenBytes { bytes, backlog } = self;
        let before = backlog.waiting.fetch_sub(bytes.len(), Ordering::AcqRel);
        if before > backlog.max && before - bytes.len() <= backlog.max {
            backlog.written.notify_waiters();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn small_answers_wait_together_and_a_large_one_alone() {
        let connection = WriteBacklog::of_connection();
        let (large, own) = connection.add(vec![7; SMALL_MAX + 1].into(), false);
        let own = own.unwrap();
        assert!(own.is_full() && !connection.is_full());
        let small = || connection.add(vec![7; SMALL_MAX].into(), false);
        let held: Vec<_> = (0..=SMALL_WAITING_MAX / SMALL_MAX).map(|_| small()).collect();
        assert!(held.iter().all(|(bytes, own)| bytes.len() == SMALL_MAX && own.is_none()));
        assert!(connection.is_full());
        let (rooms, written) = (
            tokio::spawn(connection.wait_room()),
            tokio::spawn(async move { own.wait_room().await }),
        );
        tokio::task::yield_now().await;
        drop(large);
        written.await.unwrap();
        assert!(!rooms.is_finished());
        drop(held);
        rooms.await.unwrap();
        let (_small, own) = connection.add(vec![7].into(), true);
        assert!(own.unwrap().is_full());
    }
}
