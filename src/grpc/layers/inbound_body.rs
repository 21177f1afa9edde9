//! The message of a request as it arrives: bounded in bytes and in time, whatever its handler does with it.

use std::fmt;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use bytes::Bytes;
use http_body::{Body, Frame, SizeHint};
use tokio::time::{Instant, Sleep, sleep_until};
use tonic::Status;

use super::super::status::RpcError;
use super::admission::CallAdmission;

/// How long a message may take to arrive.
#[derive(Clone, Copy, Debug)]
pub(super) struct ArrivalTimeouts {
    /// Longest time in which nothing of it comes.
    pub(super) stall: Duration,
    /// When all of it must be there; none for a call whose deadline covers its message.
    pub(super) until: Option<Instant>,
}

/// See the module.
pub(super) struct InboundBody<B> {
    inner: B,
    admission: Arc<CallAdmission>,
    arrival: ArrivalTimeouts,
    /// The client sends nothing: when it has done so for too long.
    stall: Option<Pin<Box<Sleep>>>,
    ended: bool,
}

// === impl Inbound ===

impl<B> InboundBody<B> {
    /// The message of an admitted call.
    pub(super) fn new(
        inner: B,
        admission: Arc<CallAdmission>,
        arrival: ArrivalTimeouts,
    ) -> InboundBody<B> {
        InboundBody { inner, admission, arrival, stall: None, ended: false }
    }

    /// Whether the client has sent nothing for too long.
    fn has_stalled(&mut self, cx: &mut Context<'_>) -> bool {
        let ArrivalTimeouts { stall, until } = self.arrival;
        let stall = self.stall.get_or_insert_with(|| {
            let at = Instant::now() + stall;
            Box::pin(sleep_until(until.map_or(at, |until| until.min(at))))
        });
        stall.as_mut().poll(cx).is_ready()
    }

    /// Ends the message with an error, which the call answers.
    fn refuse(&mut self, status: Status) -> Status {
        self.ended = true;
        self.admission.refuse(status.clone());
        status
    }

    fn end(&mut self) -> Option<Result<Frame<Bytes>, Status>> {
        self.ended = true;
        let refused = self.admission.request_received().err()?;
        Some(Err(self.refuse(refused.into())))
    }
}

impl<B> Body for InboundBody<B>
where
    B: Body<Data = Bytes, Error: fmt::Display> + Unpin,
{
    type Data = Bytes;
    type Error = Status;

    fn poll_frame(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Status>>> {
        let this = self.get_mut();
        if this.ended {
            return Poll::Ready(None);
        }
        let polled = Pin::new(&mut this.inner).poll_frame(cx);
        if polled.is_pending() && this.has_stalled(cx) {
            return Poll::Ready(Some(Err(this.refuse(RpcError::request_stalled().into()))));
        }
        let frame = match ready!(polled) {
            None => return Poll::Ready(this.end()),
            Some(Ok(frame)) => frame,
            Some(Err(error)) => {
                // The client has reset the call, or its connection is gone.
                let gone =
                    format!("the client ended the call before its message was there: {error}");
                return Poll::Ready(Some(Err(this.refuse(Status::cancelled(gone)))));
            }
        };
        this.stall = None;
        let bytes = frame.data_ref().map_or(0, Bytes::len);
        Poll::Ready(Some(match this.admission.take_bytes(bytes) {
            Ok(()) => Ok(frame),
            Err(failure) => Err(this.refuse(failure.into())),
        }))
    }

    fn is_end_stream(&self) -> bool {
        self.ended
    }

    fn size_hint(&self) -> SizeHint {
        self.inner.size_hint()
    }
}
