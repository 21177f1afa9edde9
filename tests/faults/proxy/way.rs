//! The state of the network to a Redis and back, independent of the content of messages.

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering::Relaxed};
use tokio::net::TcpStream;
use tokio::sync::watch;

/// The treatment of a connection by the network.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Way {
    #[default]
    Open,
    /// Nothing arrives, in either direction. Sent messages arrive when the way is open again, as a kernel repeats
    /// them, also for clients that have given up.
    Silent,
    /// Requests arrive, answers do not before the way is open again.
    Unanswered,
    /// All connections are reset, and each new one.
    Reset,
}

/// The direction of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Towards {
    Redis,
    Replica,
}

/// State of the network, and number of its resets.
#[derive(Default)]
pub(super) struct Network {
    way: watch::Sender<Way>,
    /// Number of connections so far.
    connections: AtomicU64,
    /// Connections up to this number by which jobs were enqueued hold their requests until it is 0 again; others do
    /// not.
    held: watch::Sender<u64>,
    /// Resets in a thousand requests, and in a thousand answers.
    requests_broken: AtomicU32,
    answers_broken: AtomicU32,
    broken: AtomicU32,
}

// === impl Network ===

impl Network {
    pub(super) fn set(&self, way: Way) {
        self.way.send_replace(way);
    }

    pub(super) fn break_at(&self, requests: u32, answers: u32) {
        self.requests_broken.store(requests, Relaxed);
        self.answers_broken.store(answers, Relaxed);
    }

    /// Returns the number of connections that were reset at a message.
    pub(super) fn broken(&self) -> u32 {
        self.broken.load(Relaxed)
    }

    /// Returns how many of a thousand messages in this direction reset their connection.
    pub(super) fn breaks(&self, towards: Towards) -> &AtomicU32 {
        match towards {
            Towards::Redis => &self.requests_broken,
            Towards::Replica => &self.answers_broken,
        }
    }

    /// Counts a reset at a message.
    pub(super) fn breaks_now(&self) {
        self.broken.fetch_add(1, Relaxed);
    }

    /// Returns the number of a new connection.
    pub(super) fn connected(&self) -> u64 {
        self.connections.fetch_add(1, Relaxed) + 1
    }

    /// Holds requests of the existing connections by which jobs were enqueued.
    pub(super) fn hold(&self) {
        self.held.send_replace(self.connections.load(Relaxed));
    }

    /// Delivers held requests, also for clients that have given up.
    pub(super) fn release(&self) {
        self.held.send_replace(0);
    }

    /// Waits until messages of that connection pass in this direction; `enqueues`: jobs were enqueued by it.
    pub(super) async fn lets_through(&self, connection: u64, enqueues: bool, towards: Towards) {
        if enqueues && towards == Towards::Redis {
            // The sender lives as long as this.
            let _ = self.held.subscribe().wait_for(|held| *held < connection).await;
        }
        self.until(|way| match way {
            Way::Open | Way::Reset => true,
            Way::Unanswered => towards == Towards::Redis,
            Way::Silent => false,
        })
        .await;
    }

    /// Waits until connections are reset.
    pub(super) async fn resets(&self) {
        self.until(|way| way == Way::Reset).await;
    }

    async fn until(&self, is: impl Fn(Way) -> bool) {
        // The sender lives as long as this.
        let _ = self.way.subscribe().wait_for(|way| is(*way)).await;
    }
}

/// Makes a close of this socket a reset.
pub(super) fn reset_at_close(stream: &TcpStream) {
    stream.set_zero_linger().unwrap();
}
