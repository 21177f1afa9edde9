//! Use of a connection: whether a request is open on it, and since when there is none.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use http_body::{Body, Frame, SizeHint};
use pin_project_lite::pin_project;
use tokio::sync::watch;
use tokio::time::timeout;

/// Requests of one connection. Cloning shares them.
#[derive(Clone, Debug)]
pub(super) struct ConnectionUse(Arc<watch::Sender<UseState>>);

#[derive(Clone, Copy, Debug, Default)]
struct UseState {
    open: usize,
    /// Number of requests that have begun.
    begun: u64,
}

/// Request that is open: until its answer is written, or dropped.
#[derive(Debug)]
pub(super) struct OpenRequest(ConnectionUse);

pin_project! {
    /// Body of an answer whose request is open as long as it exists.
    pub(super) struct HeldBody<B> {
        #[pin]
        body: B,
        open: OpenRequest,
    }
}

// === impl ConnectionUse ===

impl Default for ConnectionUse {
    fn default() -> ConnectionUse {
        ConnectionUse(Arc::new(watch::Sender::default()))
    }
}

impl ConnectionUse {
    /// Begins a request.
    pub(super) fn begin(&self) -> OpenRequest {
        self.0.send_modify(|state| (state.open, state.begun) = (state.open + 1, state.begun + 1));
        OpenRequest(self.clone())
    }

    /// Waits until the connection was without a request for `idle`, or for `first` before its first one.
    pub(super) async fn idle(&self, first: Duration, idle: Duration) {
        let mut state = self.0.subscribe();
        loop {
            // The sender lives as long as `self`, so neither wait fails.
            let Ok(begun) = state.wait_for(|now| now.open == 0).await.map(|now| now.begun) else {
                return;
            };
            let wait = if begun > 0 { idle } else { first };
            // A request may begin and end before this task runs.
            if timeout(wait, state.wait_for(|now| now.begun > begun)).await.is_err() {
                return;
            }
        }
    }
}

// === impl OpenRequest ===

impl Drop for OpenRequest {
    fn drop(&mut self) {
        self.0.0.send_modify(|state| state.open -= 1);
    }
}

// === impl HeldBody ===

impl<B> HeldBody<B> {
    /// Keeps the request open until the body is dropped.
    pub(super) fn new(body: B, open: OpenRequest) -> HeldBody<B> {
        HeldBody { body, open }
    }
}

impl<B: Body<Data = Bytes>> Body for HeldBody<B> {
    type Data = Bytes;
    type Error = B::Error;

    fn poll_frame(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, B::Error>>> {
        self.project().body.poll_frame(cx)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

#[cfg(test)]
mod tests {
    use tokio::time::Instant;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_connection_is_idle_after_its_last_request() {
        let (first, idle) = (Duration::from_secs(10), Duration::from_secs(75));
        let requests = ConnectionUse::default();
        let begun = Instant::now();
        requests.idle(first, idle).await;
        assert_eq!(begun.elapsed(), first);
        let (one, other) = (requests.begin(), requests.begin());
        let long = Duration::from_secs(1_000);
        let wait = async |requests: &ConnectionUse| timeout(long, requests.idle(first, idle)).await;
        assert!(wait(&requests).await.is_err(), "requests are open");
        drop(one);
        assert!(wait(&requests).await.is_err(), "one is still open");
        drop(other);
        let begun = Instant::now();
        assert!(wait(&requests).await.is_ok());
        assert_eq!(begun.elapsed(), idle);
    }
}
