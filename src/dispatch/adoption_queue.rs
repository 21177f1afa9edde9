//! What streams are to adopt, by shard: the way from those who open, end and extend to [`super::adoption`].

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::sync::Notify;

use crate::domain::StreamId;

use super::stream::Stream;

/// How long a stream waits for the leases that it adopts before it gets new jobs: they count against its credit. No
/// longer, because a shard may not answer.
pub(super) const FIRST_LOOKUP_MAX: Duration = Duration::from_secs(1);

/// What waits to be adopted on one shard. Streams that open bring it, one or a few each.
#[derive(Default)]
pub(super) struct AdoptionQueue {
    waiting: Mutex<Vec<AdoptionRequest>>,
    added: Notify,
}

/// Leases that a stream is to adopt.
pub(super) struct AdoptionRequest {
    pub(super) successor: Arc<Stream>,
    pub(super) from: AdoptionSource,
    pub(super) first_lookup: Option<Arc<FirstLookup>>,
}

/// Where they come from.
pub(super) enum AdoptionSource {
    /// What is left of this stream.
    Local(Arc<Stream>),
    /// What the store knows of this one.
    Store(StreamId),
}

/// Announces a stream to the feeds when all its searches have looked once.
pub(super) struct FirstLookup {
    announce: Box<dyn Fn() + Send + Sync>,
    is_announced: AtomicBool,
}

// === impl Adoptions ===

impl AdoptionQueue {
    pub(super) fn add(&self, search: AdoptionRequest) {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner).push(search);
        self.added.notify_one();
    }

    /// Something was added.
    pub(super) async fn wait_added(&self) {
        self.added.notified().await;
    }

    pub(super) fn take(&self) -> Vec<AdoptionRequest> {
        std::mem::take(&mut *self.waiting.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

// === impl Search ===

impl AdoptionRequest {
    /// For what is left of `from`, a stream of this replica.
    pub(super) fn from_stream(
        heir: Arc<Stream>,
        from: Arc<Stream>,
        first_look: Option<Arc<FirstLookup>>,
    ) -> AdoptionRequest {
        AdoptionRequest {
            successor: heir,
            from: AdoptionSource::Local(from),
            first_lookup: first_look,
        }
    }

    /// For what the store knows of `from`, a stream of another replica or of a former life of this one.
    pub(super) fn from_store(
        heir: Arc<Stream>,
        from: StreamId,
        first_look: Option<Arc<FirstLookup>>,
    ) -> AdoptionRequest {
        AdoptionRequest {
            successor: heir,
            from: AdoptionSource::Store(from),
            first_lookup: first_look,
        }
    }
}

// === impl FirstLook ===

impl FirstLookup {
    pub(super) fn new(announce: impl Fn() + Send + Sync + 'static) -> Arc<FirstLookup> {
        Arc::new(FirstLookup { announce: Box::new(announce), is_announced: AtomicBool::new(false) })
    }

    /// Announces the stream, once.
    pub(super) fn announce_once(&self) {
        if !self.is_announced.swap(true, Ordering::AcqRel) {
            (self.announce)();
        }
    }
}

impl Drop for FirstLookup {
    fn drop(&mut self) {
        self.announce_once();
    }
}
