//! Queues of adoption requests, one per shard. Code that opens, ends or extends streams adds requests;
//! [`crate::dispatch::leases::adopter`] serves them.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use parking_lot::Mutex;
use tokio::sync::Notify;

use crate::domain::StreamId;

use super::stream::Stream;

/// Longest wait of a new stream for the leases that it adopts, before it gets new jobs: adopted leases count against
/// its credit. Limited, because a shard may not answer.
pub(in crate::dispatch) const ADOPTION_WAIT_MAX: Duration = Duration::from_secs(1);

/// Adoption requests that wait on one shard. Each stream that opens adds one or a few.
#[derive(Default)]
pub(in crate::dispatch) struct AdoptionQueue {
    waiting: Mutex<Vec<AdoptionRequest>>,
    added: Notify,
}

/// Request to move leases to the successor stream.
pub(in crate::dispatch) struct AdoptionRequest {
    pub(in crate::dispatch) successor: Arc<Stream>,
    pub(in crate::dispatch) from: AdoptionSource,
    pub(in crate::dispatch) first_lookup: Option<Arc<AdoptionGate>>,
}

/// Source of the leases.
pub(in crate::dispatch) enum AdoptionSource {
    /// Remaining leases of this stream, which belongs to this replica.
    Local(Arc<Stream>),
    /// Leases that the store has for this stream, of another replica or of a previous run.
    Store(StreamId),
}

/// Announces a stream to the feeds after all of its requests have made one lookup.
pub(in crate::dispatch) struct AdoptionGate {
    announce: Box<dyn Fn() + Send + Sync>,
    is_announced: AtomicBool,
}

// === impl AdoptionQueue ===

impl AdoptionQueue {
    pub(in crate::dispatch) fn add(&self, search: AdoptionRequest) {
        self.waiting.lock().push(search);
        self.added.notify_one();
    }

    /// Waits until a request is added.
    pub(in crate::dispatch) async fn wait_added(&self) {
        self.added.notified().await;
    }

    pub(in crate::dispatch) fn take(&self) -> Vec<AdoptionRequest> {
        std::mem::take(&mut *self.waiting.lock())
    }
}

// === impl AdoptionRequest ===

impl AdoptionRequest {
    /// Requests the remaining leases of `from`, a stream of this replica.
    pub(in crate::dispatch) fn from_stream(
        successor: Arc<Stream>,
        from: Arc<Stream>,
        first_look: Option<Arc<AdoptionGate>>,
    ) -> AdoptionRequest {
        AdoptionRequest { successor, from: AdoptionSource::Local(from), first_lookup: first_look }
    }

    /// Requests the leases that the store has for `from`, a stream of another replica or of a previous run of this
    /// one.
    pub(in crate::dispatch) fn from_store(
        successor: Arc<Stream>,
        from: StreamId,
        first_look: Option<Arc<AdoptionGate>>,
    ) -> AdoptionRequest {
        AdoptionRequest { successor, from: AdoptionSource::Store(from), first_lookup: first_look }
    }
}

// === impl FirstLookup ===

impl AdoptionGate {
    pub(in crate::dispatch) fn new(
        announce: impl Fn() + Send + Sync + 'static,
    ) -> Arc<AdoptionGate> {
        Arc::new(AdoptionGate {
            announce: Box::new(announce),
            is_announced: AtomicBool::new(false),
        })
    }

    /// Announces the stream. Further calls do nothing.
    pub(in crate::dispatch) fn announce_once(&self) {
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
