//! Handler of one call until it returns its answer.

use std::convert::Infallible;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use http::Response;
use pin_project_lite::pin_project;
use tokio::time::{Sleep, sleep_until};
use tonic::body::Body;
use tonic::{Code, Status};

use super::super::pulled_jobs::PulledJobs;
use super::super::status::RpcError;
use super::call::RpcCall;
use super::call_body::{CallBody, StreamCut};
use super::{panic, request_id, transport_errors};

pin_project! {
    /// Future of the answer of a call in flight.
    pub(in crate::grpc) struct CallFuture<F> {
        #[pin]
        state: CallState<F>,
        call: Option<RpcCall>,
    }
}

pin_project! {
    #[project = StateProjection]
    enum CallState<F> {
        Run { #[pin] handler: F, #[pin] late: Option<Sleep> },
        Refused { failure: Option<RpcError> },
    }
}

// === impl CallFuture ===

impl<F> CallFuture<F> {
    /// Creates the future of a call that is handled.
    pub(super) fn run(call: RpcCall, handler: F) -> CallFuture<F> {
        let late = call.deadline().map(sleep_until);
        CallFuture { state: CallState::Run { handler, late }, call: Some(call) }
    }

    /// Creates the future of a call that is refused without a handler.
    pub(super) fn refused(call: RpcCall, failure: RpcError) -> CallFuture<F> {
        let state = CallState::Refused { failure: Some(failure) };
        CallFuture { state, call: Some(call) }
    }
}

impl<F> Future for CallFuture<F>
where
    F: Future<Output = Result<Response<Body>, Infallible>>,
{
    type Output = Result<Response<CallBody>, Infallible>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let this = self.project();
        let in_span = this.call.as_ref().map(RpcCall::enter);
        let answer = match this.state.project() {
            StateProjection::Refused { failure } => {
                Err(failure.take().unwrap_or_else(RpcError::internal).into())
            }
            StateProjection::Run { handler, late } => ready!(handle(handler, late, cx)),
        };
        drop(in_span);
        let Some(call) = this.call.take() else { return Poll::Pending };
        Poll::Ready(Ok(answered(call, answer)))
    }
}

/// Returns the answer of the handler, unless the handler panics or the deadline passes first.
fn handle<F>(
    handler: Pin<&mut F>,
    late: Pin<&mut Option<Sleep>>,
    cx: &mut Context<'_>,
) -> Poll<Result<Response<Body>, Status>>
where
    F: Future<Output = Result<Response<Body>, Infallible>>,
{
    match panic::caught(|| handler.poll(cx)) {
        None => return Poll::Ready(Err(RpcError::internal().into())),
        Some(Poll::Ready(Ok(answer))) => return Poll::Ready(Ok(answer)),
        Some(Poll::Pending) => {}
    }
    match late.as_pin_mut() {
        Some(late) => late.poll(cx).map(|()| Err(RpcError::deadline_exceeded().into())),
        None => Poll::Pending,
    }
}

/// Adds the request id to the answer and the call to its body; the call lives until the last frame.
fn answered(mut call: RpcCall, answer: Result<Response<Body>, Status>) -> Response<CallBody> {
    let id = call.id().clone();
    let mut response = match answer.and_then(|answer| check(&call, answer)) {
        Err(status) => {
            call.end(status.code(), Some(&status));
            status.into_http()
        }
        Ok(answer) if answer.headers().contains_key(Status::GRPC_STATUS) => {
            let status = Status::from_header_map(answer.headers());
            let code = status.as_ref().map_or(Code::Unknown, Status::code);
            call.end(code, status.as_ref());
            answer.map(|_| CallBody::default())
        }
        Ok(mut answer) => {
            let ends = answer.extensions_mut().remove::<StreamCut>();
            let pulled = answer.extensions_mut().remove::<Arc<PulledJobs>>();
            answer.map(|body| CallBody::new(body, call, ends, pulled))
        }
    };
    response.headers_mut().insert(request_id::HEADER, id);
    response
}

/// Replaces an error that tonic made.
fn check(call: &RpcCall, answer: Response<Body>) -> Result<Response<Body>, Status> {
    if !answer.headers().contains_key(Status::GRPC_STATUS) {
        return Ok(answer);
    }
    if let Some(refused) = call.admission().and_then(|admission| admission.refusal()) {
        return Err(refused.clone());
    }
    transport_errors::translate_tonic_error(call.method(), answer.headers()).map_or(Ok(answer), Err)
}
