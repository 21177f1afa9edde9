//! Answer of one call, frame by frame; the last frame has its status.

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

use super::super::pulled_jobs::PulledJobs;
use super::super::status::RpcError;
use super::call::RpcCall;
use super::method::MethodKind;
use super::write_backlog::{BacklogRoom, WriteBacklog};
use super::{call_abort, panic};

/// Delay after its client's deadline until a stream is aborted whose client does not read the status.
const UNREAD_MAX: Duration = Duration::from_secs(5);
/// Maximum size of an answer of a read or a Pull that is sent when no bytes are left; a larger one is withheld.
const SMALL_MAX: usize = 16 << 10;

/// Token with which the server ends a stream whose client does not read: an extension of the answer that opens it.
#[derive(Clone)]
pub(in crate::grpc) struct StreamCut(pub(in crate::grpc) CancellationToken);

/// Answer body of one call. If it is dropped before its last frame, the call was cancelled.
#[derive(Default)]
pub(in crate::grpc) struct CallBody {
    inner: Body,
    call: Option<RpcCall>,
    state: BodyState,
    /// Timer of the caller's deadline, which nothing else enforces once headers are sent. Boxed, because only streams
    /// have one.
    late: Option<Pin<Box<Sleep>>>,
    /// Wait until earlier frames are written; not for streams.
    room: Option<BacklogRoom>,
    /// Backlog of a large answer.
    own: Option<Arc<WriteBacklog>>,
    /// Jobs in the answer of a Pull. They count as delivered when the last frame is taken, which waits until the
    /// other frames are written.
    pulled: Option<Arc<PulledJobs>>,
}

#[derive(Default)]
enum BodyState {
    /// State before the first poll: the task of the call has not been asked to abort it yet.
    New(Option<StreamCut>),
    #[default]
    Polled,
}

// === impl CallBody ===

impl CallBody {
    /// Creates the body of an answer whose headers are sent.
    pub(super) fn new(
        inner: Body,
        call: RpcCall,
        ends: Option<StreamCut>,
        pulled: Option<Arc<PulledJobs>>,
    ) -> CallBody {
        let deadline = call.deadline().filter(|_| !is_unary(&call));
        let late = deadline.map(|deadline| Box::pin(sleep_until(deadline)));
        let (state, call) = (BodyState::New(ends), Some(call));
        CallBody { inner, call, state, late, room: None, own: None, pulled }
    }

    /// Counts bytes that are held for the answer in addition to its frames, until the call ends.
    ///
    /// # Errors
    /// The answer is withheld, because no bytes are left.
    pub(in crate::grpc) fn hold_bytes(&self, count: usize) -> Result<(), Status> {
        let Some(call) = &self.call else { return Ok(()) };
        Ok(take_answer(call, count)?)
    }

    /// Asks the task of the call to abort it at its deadline, or when the server ends it: a body that is not read is
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

    /// Waits until earlier frames are written. Does nothing for streams.
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

    /// Counts a frame until it is written. Does nothing for streams.
    fn count(&mut self, frame: Frame<Bytes>) -> Frame<Bytes> {
        let call = self.call.as_ref().filter(|call| is_bounded(call));
        let Some(call) = call.filter(|_| frame.is_data()) else { return frame };
        let Some(admission) = call.admission() else { return frame };
        let Ok(bytes) = frame.into_data() else { return Frame::data(Bytes::new()) };
        if let Err(failure) = take_answer(call, bytes.len()) {
            return self.fail(failure);
        }
        // Jobs of a Pull have reached the caller when they are written, not before.
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

    /// Ends the answer with `failure`: drops the inner body and returns the last frame.
    fn fail(&mut self, failure: RpcError) -> Frame<Bytes> {
        (self.inner, self.late) = (Body::empty(), None);
        let mut trailers = HeaderMap::new();
        // Details that cannot become a header are omitted; the code comes first and cannot fail.
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

/// Counts bytes of an answer. The answer to a write is always sent; a read can be retried, and the jobs of a Pull are
/// returned.
fn take_answer(call: &RpcCall, count: usize) -> Result<(), RpcError> {
    let Some(admission) = call.admission() else { return Ok(()) };
    let is_withheld = call.method().reads() || call.method().kind == MethodKind::Pull;
    if count > SMALL_MAX && is_withheld {
        return admission.take_answer_bytes(count);
    }
    admission.force_bytes(count);
    Ok(())
}

/// Returns whether the answer of the call is one message.
fn is_unary(call: &RpcCall) -> bool {
    matches!(call.method().kind, MethodKind::Unary | MethodKind::Pull)
}

/// Returns whether unwritten bytes of the answer are counted; a stream has limits of its own.
fn is_bounded(call: &RpcCall) -> bool {
    is_unary(call) || call.method().kind == MethodKind::Other
}
