//! What becomes of all that is under way to a Redis and back, whatever it says.

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering::Relaxed};
use tokio::net::TcpStream;
use tokio::sync::watch;

/// How a network treats a connection.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Way {
    #[default]
    Open,
    /// Nothing arrives, either way. What was sent arrives when the way is open again, as a kernel repeats it, also for
    /// those who have given up.
    Silent,
    /// What is asked arrives, what is answered does not before the way is open again.
    Unanswered,
    /// All connections are reset, and each new one.
    Reset,
}

/// Where a message goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Towards {
    Redis,
    Replica,
}

/// The way, and how often it breaks.
#[derive(Default)]
pub(super) struct Network {
    way: watch::Sender<Way>,
    /// How many connections there were.
    connections: AtomicU64,
    /// What is asked on connections up to this number by which jobs were enqueued does not arrive before it is 0 again;
    /// what is asked on others does.
    held: watch::Sender<u64>,
    /// Of a thousand requests and answers: their connection is reset instead.
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

    /// How many connections were broken at a message.
    pub(super) fn broken(&self) -> u32 {
        self.broken.load(Relaxed)
    }

    /// How often of a thousand times the connection is to break at such a message.
    pub(super) fn breaks(&self, towards: Towards) -> &AtomicU32 {
        match towards {
            Towards::Redis => &self.requests_broken,
            Towards::Replica => &self.answers_broken,
        }
    }

    /// The connection breaks at a message.
    pub(super) fn breaks_now(&self) {
        self.broken.fetch_add(1, Relaxed);
    }

    /// The number of a new connection.
    pub(super) fn connected(&self) -> u64 {
        self.connections.fetch_add(1, Relaxed) + 1
    }

    /// Holds what is asked on the connections that there are and by which jobs were enqueued.
    pub(super) fn hold(&self) {
        self.held.send_replace(self.connections.load(Relaxed));
    }

    /// Delivers what is held, also for those who have given up.
    pub(super) fn release(&self) {
        self.held.send_replace(0);
    }

    /// Waits until messages of that connection arrive there; `enqueues`: jobs were enqueued by it.
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

/// Closed, it is reset.
pub(super) fn reset_at_close(stream: &TcpStream) {
    stream.set_zero_linger().unwrap();
}
