//! Bodies of requests that are answered before they are read whole.
//!
//! On HTTP/1.1 a socket that is closed while it has unread bytes resets its connection, and the client's system then
//! discards the answer that it has not passed on yet: the client sees an error in place of the refusal. On HTTP/2 the
//! stream of an unread body is reset, and h2 closes a connection with 1,024 streams whose client went on to send after
//! that: a client whose calls are refused would lose it one day, with all other calls on it. So the rest is read for a
//! while, and thrown away. nginx does the same (`lingering_close`).

use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use http_body::{Body, Frame, SizeHint};
use http_body_util::BodyExt as _;
use tokio::runtime::Handle;
use tokio::time::timeout;

/// Maximum number of bytes that are read after the answer: twice the largest request.
const BYTES_MAX: usize = 16 << 20;
/// Maximum time for which they are read.
const TIME_MAX: Duration = Duration::from_secs(5);

/// Body that is read on, for a while, after it is dropped.
pub(crate) struct UnreadBody<B>(Option<B>)
where
    B: Body<Data: Send> + Send + Unpin + 'static;

// === impl UnreadBody ===

impl<B: Body<Data: Send> + Send + Unpin + 'static> UnreadBody<B> {
    /// Wraps the body of a request.
    pub(crate) fn new(body: B) -> UnreadBody<B> {
        UnreadBody(Some(body))
    }
}

impl<B: Body<Data: Send> + Send + Unpin + 'static> Body for UnreadBody<B> {
    type Data = B::Data;
    type Error = B::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<B::Data>, B::Error>>> {
        match &mut self.0 {
            Some(body) => Pin::new(body).poll_frame(cx),
            None => Poll::Ready(None),
        }
    }

    fn is_end_stream(&self) -> bool {
        self.0.as_ref().is_none_or(Body::is_end_stream)
    }

    fn size_hint(&self) -> SizeHint {
        self.0.as_ref().map(Body::size_hint).unwrap_or_default()
    }
}

impl<B: Body<Data: Send> + Send + Unpin + 'static> Drop for UnreadBody<B> {
    fn drop(&mut self) {
        if let Some(body) = self.0.take_if(|body| !body.is_end_stream())
            && let Ok(runtime) = Handle::try_current()
        {
            runtime.spawn(async move { timeout(TIME_MAX, discard(body)).await });
        }
    }
}

/// Reads the body until its end, an error, or [`BYTES_MAX`].
async fn discard<B: Body + Unpin>(mut body: B) {
    let mut read = 0;
    while let Some(Ok(frame)) = body.frame().await {
        read += frame.data_ref().map_or(0, bytes::Buf::remaining);
        if read > BYTES_MAX {
            return;
        }
    }
}
