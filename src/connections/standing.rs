//! Standing of a connection: it is anonymous until a call on it has shown an identity, where there are no identities until
//! its first call but health.
//!
//! Anonymous connections are those that any client can open. A port that is full closes the one among them that is unused
//! for the longest time and takes the new one in its place, first of the same address: a client that holds connections
//! without an identity keeps no other client out. Connections that have shown an identity are never closed for that.

use std::net::IpAddr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use futures::task::AtomicWaker;
use parking_lot::Mutex;
use tokio::task::AbortHandle;

use super::Connections;

/// Standing of one connection, shared by its port, its socket and its calls.
#[derive(Debug, Default)]
pub(crate) struct Standing {
    is_known: AtomicBool,
    /// Place among the connections of a port; `None`: it was taken away, or the connection has ended.
    place: Mutex<Option<Place>>,
    /// Task that serves the connection.
    task: OnceLock<AbortHandle>,
    /// True once the place was taken away, maybe before the task has begun.
    has_ended: AtomicBool,
    /// Reader of the socket, which waits for a call to end, or for an identity.
    pub(super) reader: AtomicWaker,
}

/// Place of a connection among those of a port.
#[derive(Debug)]
pub(super) struct Place {
    pub(super) connections: Arc<Connections>,
    pub(super) peer: IpAddr,
    /// Number of its last use among the uses of anonymous connections; `None`: it has shown an identity.
    pub(super) last_use: Option<u64>,
}

/// Place of a watch without an identity; freed on drop.
#[derive(Debug)]
pub(crate) struct WatchPlace {
    connections: Arc<Connections>,
    peer: IpAddr,
}

// === impl Standing ===

impl Standing {
    /// Returns whether a call has shown an identity.
    pub(crate) fn is_known(&self) -> bool {
        self.is_known.load(Ordering::Acquire)
    }

    /// Records that a call has shown an identity.
    pub(crate) fn identify(&self) {
        if self.is_known() {
            return;
        }
        let mut place = self.place.lock();
        if let Some(Place { connections, peer, last_use }) = &mut *place
            && let Some(number) = last_use.take()
            && !connections.forget_anonymous(*peer, number)
        {
            *place = None;
        }
        drop(place);
        self.is_known.store(true, Ordering::Release);
        self.reader.wake();
    }

    /// Records a use of the connection.
    pub(crate) fn touch(&self) {
        if self.is_known() {
            return;
        }
        let mut place = self.place.lock();
        if let Some(Place { connections, peer, last_use: Some(number) }) = &mut *place {
            match connections.renew_anonymous(*peer, *number) {
                Some(next) => *number = next,
                None => *place = None,
            }
        }
    }

    /// Counts a call without an identity and returns the time until its turn among those of its address.
    pub(super) fn take_call_turn(&self) -> Duration {
        let place = self.place.lock();
        place.as_ref().map_or(Duration::ZERO, |place| place.connections.count_call(place.peer))
    }

    /// Takes the place of a watch; `None`: its address has as many as it may have connections, or all have.
    pub(crate) fn open_watch(&self) -> Option<WatchPlace> {
        let place = self.place.lock();
        let Place { connections, peer, .. } = place.as_ref()?;
        connections.count_watch(*peer).then(|| {
            let (connections, peer) = (Arc::clone(connections), *peer);
            WatchPlace { connections, peer }
        })
    }

    /// Creates the standing of a connection that has a place.
    #[cfg(test)]
    pub(crate) fn with_place() -> Arc<Standing> {
        let standing = Arc::default();
        let connections = Connections::new("test", 64, 64, crate::metrics::Metrics::new());
        connections.take(&standing, IpAddr::from([127, 0, 0, 1])).unwrap();
        standing
    }

    /// Sets the task that serves the connection.
    pub(super) fn set_task(&self, task: AbortHandle) {
        let _ = self.task.set(task);
        if self.has_ended.load(Ordering::SeqCst) {
            self.end();
        }
    }

    /// Ends the connection, whose place was taken away.
    pub(super) fn end(&self) {
        self.has_ended.store(true, Ordering::SeqCst);
        if let Some(task) = self.task.get() {
            task.abort();
        }
    }

    /// Gives the connection a place, and frees the one that it has.
    pub(super) fn set_place(&self, place: Option<Place>) {
        let former = std::mem::replace(&mut *self.place.lock(), place);
        if let Some(Place { connections, peer, last_use }) = former {
            connections.count_closed(peer, last_use);
        }
    }
}

// === impl WatchPlace ===

impl Drop for WatchPlace {
    fn drop(&mut self) {
        self.connections.count_watch_end(self.peer);
    }
}
