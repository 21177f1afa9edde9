//! The handler of one call until it answers.

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

use crate::dispatch::Handover;

use super::super::status::Failure;
use super::body::{CallBody, Ends};
use super::call::Call;
use super::{foreign, panic, request_id};

pin_project! {
    /// The answer of a call under way.
    pub(in crate::grpc) struct CallFuture<F> {
        #[pin]
        state: State<F>,
        call: Option<Call>,
    }
}

pin_project! {
    #[project = StateProjection]
    enum State<F> {
        Run { #[pin] handler: F, #[pin] late: Option<Sleep> },
        Refused { failure: Option<Failure> },
    }
}

// === impl CallFuture ===

impl<F> CallFuture<F> {
    /// A call that is handled.
    pub(super) fn run(call: Call, handler: F) -> CallFuture<F> {
        let late = call.deadline().map(sleep_until);
        CallFuture { state: State::Run { handler, late }, call: Some(call) }
    }

    /// A call that is not.
    pub(super) fn refused(call: Call, failure: Failure) -> CallFuture<F> {
        let state = State::Refused { failure: Some(failure) };
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
        let in_span = this.call.as_ref().map(Call::enter);
        let answer = match this.state.project() {
            StateProjection::Refused { failure } => {
                Err(failure.take().unwrap_or_else(Failure::internal).into())
            }
            StateProjection::Run { handler, late } => ready!(handle(handler, late, cx)),
        };
        drop(in_span);
        let Some(call) = this.call.take() else { return Poll::Pending };
        Poll::Ready(Ok(answered(call, answer)))
    }
}

/// What the handler answers, unless it panics or the deadline comes first.
fn handle<F>(
    handler: Pin<&mut F>,
    late: Pin<&mut Option<Sleep>>,
    cx: &mut Context<'_>,
) -> Poll<Result<Response<Body>, Status>>
where
    F: Future<Output = Result<Response<Body>, Infallible>>,
{
    match panic::caught(|| handler.poll(cx)) {
        None => return Poll::Ready(Err(Failure::internal().into())),
        Some(Poll::Ready(Ok(answer))) => return Poll::Ready(Ok(answer)),
        Some(Poll::Pending) => {}
    }
    match late.as_pin_mut() {
        Some(late) => late.poll(cx).map(|()| Err(Failure::deadline_exceeded().into())),
        None => Poll::Pending,
    }
}

/// Gives an answer its id and its body the call, which lives until the last frame.
fn answered(mut call: Call, answer: Result<Response<Body>, Status>) -> Response<CallBody> {
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
            let ends = answer.extensions_mut().remove::<Ends>();
            let pulled = answer.extensions_mut().remove::<Arc<Handover>>();
            answer.map(|body| CallBody::new(body, call, ends, pulled))
        }
    };
    response.headers_mut().insert(request_id::HEADER, id);
    response
}

/// Replaces an error that tonic made.
fn check(call: &Call, answer: Response<Body>) -> Result<Response<Body>, Status> {
    if !answer.headers().contains_key(Status::GRPC_STATUS) {
        return Ok(answer);
    }
    if let Some(refused) = call.admission().and_then(|admission| admission.refused()) {
        return Err(refused.clone());
    }
    foreign::translate(call.method(), answer.headers()).map_or(Ok(answer), Err)
}
