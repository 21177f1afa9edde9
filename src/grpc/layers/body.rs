//! The answer of one call, frame by frame, until the last one tells how it ended.

use std::pin::Pin;
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use http::HeaderMap;
use http_body::{Body as _, Frame, SizeHint};
use tokio::time::{Instant, Sleep, sleep_until};
use tonic::body::Body;
use tonic::{Code, Status};

use super::super::status::Failure;
use super::call::Call;
use super::panic;

/// See the module. Dropped before its last frame, the call was cancelled.
#[derive(Default)]
pub(in crate::grpc) struct CallBody {
    inner: Body,
    call: Option<Call>,
    /// Rings at the caller's deadline, which no timer but ours keeps once headers are sent. Boxed,
    /// because only streams have one.
    late: Option<Pin<Box<Sleep>>>,
}

// === impl CallBody ===

impl CallBody {
    /// The rest of an answer whose headers are out.
    pub(super) fn new(inner: Body, call: Call, deadline: Option<Instant>) -> CallBody {
        let late = deadline.map(|deadline| Box::pin(sleep_until(deadline)));
        CallBody { inner, call: Some(call), late }
    }

    fn poll_inner(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, Status>>> {
        if let Some(late) = &mut self.late
            && late.as_mut().poll(cx).is_ready()
        {
            return Poll::Ready(Some(Ok(self.cut_short(Failure::deadline_exceeded()))));
        }
        let inner = &mut self.inner;
        match panic::caught(|| Pin::new(inner).poll_frame(cx)) {
            Some(polled) => polled,
            None => Poll::Ready(Some(Ok(self.cut_short(Failure::internal())))),
        }
    }

    /// Ends the answer with `failure`: lets go of what made it and returns the last frame.
    fn cut_short(&mut self, failure: Failure) -> Frame<Bytes> {
        (self.inner, self.late) = (Body::empty(), None);
        let mut trailers = HeaderMap::new();
        // What fails to become a header is left out; the code comes first and cannot fail.
        let _ = Status::from(failure).add_header(&mut trailers);
        Frame::trailers(trailers)
    }

    fn end(&mut self, code: Code, failure: Option<&Status>) {
        if let Some(mut call) = self.call.take() {
            call.end(code, failure);
        }
    }
}

impl http_body::Body for CallBody {
    type Data = Bytes;
    type Error = Status;

    fn poll_frame(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Status>>> {
        let this = self.get_mut();
        let in_span = this.call.as_ref().map(Call::enter);
        let polled = ready!(this.poll_inner(cx));
        drop(in_span);
        match &polled {
            Some(Ok(frame)) => {
                if let Some(status) = frame.trailers_ref().and_then(Status::from_header_map) {
                    this.end(status.code(), Some(&status));
                }
            }
            Some(Err(status)) => this.end(status.code(), Some(status)),
            None => this.end(Code::Ok, None),
        }
        Poll::Ready(polled)
    }

    fn is_end_stream(&self) -> bool {
        self.inner.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.inner.size_hint()
    }
}
