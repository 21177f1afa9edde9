//! Retirement of old connections: the client is asked by GOAWAY to make a new one, which a load balancer may send to
//! another replica. A stream that ends by its age would else be followed by one on the same connection, and replicas
//! that were added would get no streams.
//!
//! Only connections of workers that name their last stream are retired. Other workers are recognized by their connection.
//! And calls that a client opens while GOAWAY is on its way fail in some libraries, tonic for one: a worker repeats its
//! settles, but a producer may not be able to repeat an enqueue.

use std::sync::Arc;
use std::time::Duration;

use rand::Rng as _;
use tokio::sync::watch;

use crate::dispatch::StreamOptions;

/// Age of one connection, shared with the calls on it.
#[derive(Clone)]
pub(super) struct ConnectionAge {
    /// Age at which it is retired; `None`: never.
    max: Option<Duration>,
    /// True while the last stream on it is of a worker that names the stream before.
    may_change: Arc<watch::Sender<bool>>,
}

// === impl ConnectionAge ===

impl ConnectionAge {
    /// Starts the age of a connection; zero: it is never retired. A little before streams of that age end, so that the
    /// next ones are opened elsewhere. Random, so that not all clients connect at once.
    pub(super) fn new(max: Duration) -> ConnectionAge {
        let max = max.mul_f64(rand::rng().random_range(0.8..=0.9));
        ConnectionAge { max: Some(max).filter(|max| !max.is_zero()), may_change: Arc::default() }
    }

    /// Records that a stream was opened on the connection.
    pub(super) fn stream_opened(&self, options: &StreamOptions) {
        self.may_change.send_replace(options.continues.is_some());
    }

    /// Waits until the connection is old enough and may be retired.
    pub(super) async fn retirement(&self) {
        let Some(max) = self.max else { return std::future::pending().await };
        tokio::time::sleep(max).await;
        // Fails only without a sender, and this is one.
        let _ = self.may_change.subscribe().wait_for(|may_change| *may_change).await;
    }
}
