//! Mailbox of a feed: streams that opened, closed, or have credit again. Each stream is in it at most once, and a
//! stream that opened and closed between two reads is not, so its size is limited by the number of streams.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use parking_lot::Mutex;
use tokio::sync::Notify;

use super::stream::Stream;

/// Mailbox of one feed.
#[derive(Default)]
pub(in crate::dispatch) struct StreamMailbox {
    state: Mutex<MailboxState>,
    arrived: Notify,
}

#[derive(Default)]
struct MailboxState {
    waiting: HashMap<u32, Arc<Stream>>,
    /// Streams that the feed serves.
    known: HashSet<u32>,
}

// === impl StreamMailbox ===

impl StreamMailbox {
    /// Posts a stream that opened or has credit again.
    pub(in crate::dispatch) fn post(&self, stream: &Arc<Stream>) {
        if self.state.lock().waiting.insert(stream.id(), Arc::clone(stream)).is_none() {
            self.arrived.notify_one();
        }
    }

    /// Posts a stream that closed.
    pub(in crate::dispatch) fn post_closed(&self, stream: &Arc<Stream>) {
        let mut letters = self.state.lock();
        if letters.known.remove(&stream.id()) {
            letters.waiting.insert(stream.id(), Arc::clone(stream));
            self.arrived.notify_one();
        } else {
            letters.waiting.remove(&stream.id());
        }
    }

    /// Takes all posted streams.
    pub(in crate::dispatch) fn take(&self) -> Vec<Arc<Stream>> {
        let mut letters = self.state.lock();
        let waiting = std::mem::take(&mut letters.waiting);
        for stream in waiting.values().filter(|stream| !stream.is_closed()) {
            letters.known.insert(stream.id());
        }
        waiting.into_values().collect()
    }

    /// Waits until a stream is posted.
    pub(in crate::dispatch) async fn wait_posted(&self) {
        self.arrived.notified().await;
    }
}
