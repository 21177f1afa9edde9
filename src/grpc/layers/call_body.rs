//! The answer of one call, frame by frame, until the last one tells how it ended.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use bytes::Bytes;
use http::HeaderMap;
use http_body::{Body as _, Frame, SizeHint};
use tokio::time::{Sleep, sleep_until};
use tokio_util::sync::CancellationToken;
use tonic::body::Body;
use tonic::{Code, Status};

use crate::dispatch::PullHandover;

use super::super::status::RpcError;
use super::call::RpcCall;
use super::method::MethodKind;
use super::write_backlog::{BacklogRoom, WriteBacklog};
use super::{call_abort, panic};

/// How long after its client's deadline a stream is cut off whose client does not read that it has passed.
const UNREAD_MAX: Duration = Duration::from_secs(5);
/// An answer of a read or a Pull beyond it is withheld where there are no bytes for it; a smaller one always goes out.
const SMALL_MAX: usize = 16 << 10;

/// When the server ends a stream whose client does not read: an extension of the answer that opens it.
#[derive(Clone)]
pub(in crate::grpc) struct StreamCut(pub(in crate::grpc) CancellationToken);

/// See the module. Dropped before its last frame, the call was cancelled.
#[derive(Default)]
pub(in crate::grpc) struct CallBody {
    inner: Body,
    call: Option<RpcCall>,
    state: BodyState,
    /// Rings at the caller's deadline, which no timer but ours keeps once headers are sent. Boxed,
    /// because only streams have one.
    late: Option<Pin<Box<Sleep>>>,
    /// Until what was sent is written; not for streams.
    room: Option<BacklogRoom>,
    /// Of a large answer.
    own: Option<Arc<WriteBacklog>>,
    /// The jobs in the answer of a Pull: they have reached its caller when the last frame is taken, which waits until the
    /// others are written, and not before.
    pulled: Option<Arc<PullHandover>>,
}

#[derive(Default)]
enum BodyState {
    /// The task of the call has not been asked to end it yet.
    New(Option<StreamCut>),
    #[default]
    Polled,
}

// === impl CallBody ===

impl CallBody {
    /// The rest of an answer whose headers are out.
    pub(super) fn new(
        inner: Body,
        call: RpcCall,
        ends: Option<StreamCut>,
        pulled: Option<Arc<PullHandover>>,
    ) -> CallBody {
        let deadline = call.deadline().filter(|_| !is_unary(&call));
        let late = deadline.map(|deadline| Box::pin(sleep_until(deadline)));
        let (state, call) = (BodyState::New(ends), Some(call));
        CallBody { inner, call, state, late, room: None, own: None, pulled }
    }

    /// Asks the task of the call to end it at its deadline, or when the server ends it: a body that is not read is
    /// not polled either.
    fn request_abort(&mut self) {
        let BodyState::New(ends) = std::mem::take(&mut self.state) else { return };
        let Some(call) = &self.call else { return };
        if let Some(deadline) = call.deadline() {
            call_abort::abort_at(if is_unary(call) { deadline } else { deadline + UNREAD_MAX });
        }
        if let Some(StreamCut(token)) = ends {
            call_abort::abort_when(token);
        }
    }

    /// Waits until what was sent before is written, if this is no stream.
    fn poll_room(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        let call = self.call.as_ref().filter(|call| is_bounded(call));
        let Some(admission) = call.and_then(RpcCall::admission) else { return Poll::Ready(()) };
        let backlog = self.own.as_ref().unwrap_or_else(|| admission.backlog());
        if self.room.is_none() && !backlog.is_full() {
            return Poll::Ready(());
        }
        let room = self.room.get_or_insert_with(|| backlog.wait_room());
        ready!(room.as_mut().poll(cx));
        self.room = None;
        Poll::Ready(())
    }

    /// Counts a frame until it is written, if this is no stream.
    fn count(&mut self, frame: Frame<Bytes>) -> Frame<Bytes> {
        let call = self.call.as_ref().filter(|call| is_bounded(call));
        let Some(call) = call.filter(|_| frame.is_data()) else { return frame };
        let Some(admission) = call.admission() else { return frame };
        let Ok(bytes) = frame.into_data() else { return Frame::data(Bytes::new()) };
        // The answer to a write always goes out; a read can be repeated, and the jobs of a Pull go back.
        let is_withheld = call.method().reads() || call.method().kind == MethodKind::Pull;
        if bytes.len() <= SMALL_MAX || !is_withheld {
            admission.force_bytes(bytes.len());
        } else if let Err(failure) = admission.take_bytes(bytes.len()) {
            return self.fail(failure);
        }
        // Jobs of a Pull have reached its caller when they are written, not before.
        let alone = call.method().kind == MethodKind::Pull;
        let (bytes, own) = admission.backlog().add(bytes, alone);
        self.own = own;
        Frame::data(bytes)
    }

    fn poll_inner(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, Status>>> {
        self.request_abort();
        ready!(self.poll_room(cx));
        if let Some(late) = &mut self.late
            && late.as_mut().poll(cx).is_ready()
        {
            return Poll::Ready(Some(Ok(self.fail(RpcError::deadline_exceeded()))));
        }
        let inner = &mut self.inner;
        match panic::caught(|| Pin::new(inner).poll_frame(cx)) {
            Some(Poll::Ready(Some(Ok(frame)))) => Poll::Ready(Some(Ok(self.count(frame)))),
            Some(polled) => polled,
            None => Poll::Ready(Some(Ok(self.fail(RpcError::internal())))),
        }
    }

    /// Ends the answer with `failure`: lets go of what made it and returns the last frame.
    fn fail(&mut self, failure: RpcError) -> Frame<Bytes> {
        (self.inner, self.late) = (Body::empty(), None);
        let mut trailers = HeaderMap::new();
        // What fails to become a header is left out; the code comes first and cannot fail.
        let _ = Status::from(failure).add_header(&mut trailers);
        Frame::trailers(trailers)
    }

    fn end(&mut self, code: Code, failure: Option<&Status>) {
        if let Some(pulled) = self.pulled.take()
            && code == Code::Ok
        {
            pulled.confirm();
        }
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
        let in_span = this.call.as_ref().map(RpcCall::enter);
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

/// Whether it has one message as its answer.
fn is_unary(call: &RpcCall) -> bool {
    matches!(call.method().kind, MethodKind::Unary | MethodKind::Pull)
}

/// Whether what is not written of its answer counts; a stream has bounds of its own.
fn is_bounded(call: &RpcCall) -> bool {
    is_unary(call) || call.method().kind == MethodKind::Other
}
