//! What streams are to adopt, by shard: the way from those who open, end and extend to [`super::adoption`].

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::sync::Notify;

use crate::domain::StreamId;

use super::stream::Stream;

/// How long a stream waits for the leases that it adopts before it gets new jobs: they count against its credit. No
/// longer, because a shard may not answer.
pub(super) const FIRST_LOOK_MAX: Duration = Duration::from_secs(1);

/// What waits to be adopted on one shard. Streams that open bring it, one or a few each.
#[derive(Default)]
pub(super) struct Adoptions {
    waiting: Mutex<Vec<Search>>,
    added: Notify,
}

/// Leases that a stream is to adopt.
pub(super) struct Search {
    pub(super) heir: Arc<Stream>,
    pub(super) from: From,
    pub(super) first_look: Option<Arc<FirstLook>>,
}

/// Where they come from.
pub(super) enum From {
    /// What is left of this stream.
    Here(Arc<Stream>),
    /// What the store knows of this one.
    Elsewhere(StreamId),
}

/// Announces a stream to the feeds when all its searches have looked once.
pub(super) struct FirstLook {
    announce: Box<dyn Fn() + Send + Sync>,
    is_over: AtomicBool,
}

// === impl Adoptions ===

impl Adoptions {
    pub(super) fn add(&self, search: Search) {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner).push(search);
        self.added.notify_one();
    }

    /// Something was added.
    pub(super) async fn added(&self) {
        self.added.notified().await;
    }

    pub(super) fn take(&self) -> Vec<Search> {
        std::mem::take(&mut *self.waiting.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

// === impl Search ===

impl Search {
    /// For what is left of `from`, a stream of this replica.
    pub(super) fn here(
        heir: Arc<Stream>,
        from: Arc<Stream>,
        first_look: Option<Arc<FirstLook>>,
    ) -> Search {
        Search { heir, from: From::Here(from), first_look }
    }

    /// For what the store knows of `from`, a stream of another replica or of a former life of this one.
    pub(super) fn elsewhere(
        heir: Arc<Stream>,
        from: StreamId,
        first_look: Option<Arc<FirstLook>>,
    ) -> Search {
        Search { heir, from: From::Elsewhere(from), first_look }
    }
}

// === impl FirstLook ===

impl FirstLook {
    pub(super) fn new(announce: impl Fn() + Send + Sync + 'static) -> Arc<FirstLook> {
        Arc::new(FirstLook { announce: Box::new(announce), is_over: AtomicBool::new(false) })
    }

    /// Announces the stream, once.
    pub(super) fn end(&self) {
        if !self.is_over.swap(true, Ordering::AcqRel) {
            (self.announce)();
        }
    }
}

impl Drop for FirstLook {
    fn drop(&mut self) {
        self.end();
    }
}
