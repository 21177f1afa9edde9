//! Queues of adoption requests, one per shard. Code that opens, ends or extends streams adds requests;
//! [`super::lease_adopter`] serves them.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::sync::Notify;

use crate::domain::StreamId;

use super::stream::Stream;

/// Longest wait of a new stream for the leases that it adopts, before it gets new jobs: adopted leases count against
/// its credit. Limited, because a shard may not answer.
pub(super) const ADOPTION_WAIT_MAX: Duration = Duration::from_secs(1);

/// Adoption requests that wait on one shard. Each stream that opens adds one or a few.
#[derive(Default)]
pub(super) struct AdoptionQueue {
    waiting: Mutex<Vec<AdoptionRequest>>,
    added: Notify,
}

/// Request to move leases to the successor stream.
pub(super) struct AdoptionRequest {
    pub(super) successor: Arc<Stream>,
    pub(super) from: AdoptionSource,
    pub(super) first_lookup: Option<Arc<AdoptionGate>>,
}

/// Source of the leases.
pub(super) enum AdoptionSource {
    /// Remaining leases of this stream, which belongs to this replica.
    Local(Arc<Stream>),
    /// Leases that the store has for this stream, of another replica or of a previous run.
    Store(StreamId),
}

/// Announces a stream to the feeds after all of its requests have made one lookup.
pub(super) struct AdoptionGate {
    announce: Box<dyn Fn() + Send + Sync>,
    is_announced: AtomicBool,
}

// === impl AdoptionQueue ===

impl AdoptionQueue {
    pub(super) fn add(&self, search: AdoptionRequest) {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner).push(search);
        self.added.notify_one();
    }

    /// Waits until a request is added.
    pub(super) async fn wait_added(&self) {
        self.added.notified().await;
    }

    pub(super) fn take(&self) -> Vec<AdoptionRequest> {
        std::mem::take(&mut *self.waiting.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

// === impl AdoptionRequest ===

impl AdoptionRequest {
    /// Requests the remaining leases of `from`, a stream of this replica.
    pub(super) fn from_stream(
        successor: Arc<Stream>,
        from: Arc<Stream>,
        first_look: Option<Arc<AdoptionGate>>,
    ) -> AdoptionRequest {
        AdoptionRequest { successor, from: AdoptionSource::Local(from), first_lookup: first_look }
    }

    /// Requests the leases that the store has for `from`, a stream of another replica or of a previous run of this
    /// one.
    pub(super) fn from_store(
        successor: Arc<Stream>,
        from: StreamId,
        first_look: Option<Arc<AdoptionGate>>,
    ) -> AdoptionRequest {
        AdoptionRequest { successor, from: AdoptionSource::Store(from), first_lookup: first_look }
    }
}

// === impl FirstLookup ===

impl AdoptionGate {
    pub(super) fn new(announce: impl Fn() + Send + Sync + 'static) -> Arc<AdoptionGate> {
        Arc::new(AdoptionGate {
            announce: Box::new(announce),
            is_announced: AtomicBool::new(false),
        })
    }

    /// Announces the stream. Further calls do nothing.
    pub(super) fn announce_once(&self) {
        if !self.is_announced.swap(true, Ordering::AcqRel) {
            (self.announce)();
        }
    }
}

impl Drop for AdoptionGate {
    fn drop(&mut self) {
        self.announce_once();
    }
}
