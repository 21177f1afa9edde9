//! Message of a request as it arrives: limited in bytes, in decoded size and in time, whatever its handler does with it.

use std::fmt;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use bytes::Bytes;
use http_body::{Body, Frame, SizeHint};
use tokio::time::{Instant, Sleep, sleep_until};
use tonic::Status;

use crate::domain::limit;

use super::super::decoded_size::DecodedSize;
use super::super::status::RpcError;
use super::admission::CallAdmission;

/// Limits on the time in which a message arrives.
#[derive(Clone, Copy, Debug)]
pub(super) struct ArrivalTimeouts {
    /// Maximum time without a received byte.
    pub(super) stall: Duration,
    /// Time at which the whole message must have arrived; `None` for a call whose deadline covers its message.
    pub(super) until: Option<Instant>,
}

/// Encoding of the messages of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in super::super) enum MessageEncoding {
    /// Messages of gRPC: their decoded size is estimated as they arrive.
    Protobuf,
    /// JSON text, which is limited where it is parsed.
    Json,
}

/// Request body with limits on its size and time.
pub(super) struct InboundBody<B> {
    inner: B,
    admission: Arc<CallAdmission>,
    arrival: ArrivalTimeouts,
    encoding: MessageEncoding,
    /// Estimate for messages that are not small.
    decoded: Option<Box<DecodedSize>>,
    /// Timer that runs while the client sends nothing.
    stall: Option<Pin<Box<Sleep>>>,
    ended: bool,
}

// === impl MessageEncoding ===

impl MessageEncoding {
    /// Returns the size in bytes of the largest message.
    pub(super) fn bytes_max(self) -> usize {
        match self {
            MessageEncoding::Protobuf => limit::REQUEST_BYTES_MAX,
            MessageEncoding::Json => limit::JSON_BYTES_MAX,
        }
    }
}

// === impl InboundBody ===

impl<B> InboundBody<B> {
    /// Creates the body of an admitted call.
    pub(super) fn new(
        inner: B,
        admission: Arc<CallAdmission>,
        arrival: ArrivalTimeouts,
        encoding: MessageEncoding,
    ) -> InboundBody<B> {
        let decoded = None;
        InboundBody { inner, admission, arrival, encoding, decoded, stall: None, ended: false }
    }

    /// Returns whether the client has sent nothing for too long.
    fn has_stalled(&mut self, cx: &mut Context<'_>) -> bool {
        let ArrivalTimeouts { stall, until } = self.arrival;
        let stall = self.stall.get_or_insert_with(|| {
            let at = Instant::now() + stall;
            Box::pin(sleep_until(until.map_or(at, |until| until.min(at))))
        });
        stall.as_mut().poll(cx).is_ready()
    }

    /// Ends the message with an error, which the call returns.
    fn refuse(&mut self, status: Status) -> Status {
        self.ended = true;
        self.admission.refuse(status.clone());
        status
    }

    /// Counts received bytes and the memory that they take once they are decoded.
    fn count(&mut self, bytes: &[u8]) -> Result<(), RpcError> {
        self.admission.take_bytes(bytes.len())?;
        if self.encoding == MessageEncoding::Json
            || self.decoded.is_none() && DecodedSize::is_small(bytes)
        {
            return Ok(());
        }
        if self.decoded.is_none() {
            self.decoded = DecodedSize::of_rpc(self.admission.method().path).map(Box::new);
        }
        let Some(decoded) = &mut self.decoded else { return Ok(()) };
        self.admission.take_decoded_bytes(decoded.read(bytes)?)
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
                // The client has reset the call, or its connection is closed.
                let gone = format!("the client ended the call before its message arrived: {error}");
                return Poll::Ready(Some(Err(this.refuse(Status::cancelled(gone)))));
            }
        };
        this.stall = None;
        let counted = frame.data_ref().map_or(Ok(()), |bytes| this.count(bytes));
        Poll::Ready(Some(match counted {
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
