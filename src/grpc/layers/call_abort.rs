//! Ends a call whose client does not read its answer. hyper does not poll the body of such an answer, so no timer in
//! the body can end the call. The task around the call can: when it is dropped, it resets the HTTP/2 stream of the
//! call, and the connection and its other calls go on.

use std::cell::Cell;
use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll};

use pin_project_lite::pin_project;
use tokio::time::{Instant, Sleep, sleep_until};
use tokio_util::sync::{CancellationToken, WaitForCancellationFutureOwned};

thread_local! {
    /// Abort request of the call that is being polled on this thread; the task around the call takes it after each
    /// poll.
    static ABORT_REQUEST: Cell<AbortRequest> = const { Cell::new(AbortRequest { at: None, when: None, is_withdrawn: false }) };
}

#[derive(Default)]
struct AbortRequest {
    at: Option<Instant>,
    when: Option<CancellationToken>,
    /// Earlier requests of this task are void.
    is_withdrawn: bool,
}

pin_project! {
    /// Task of one call, or of a connection whose calls follow one another.
    pub(crate) struct AbortableCall<F> {
        #[pin]
        call: F,
        at: Option<Pin<Box<Sleep>>>,
        when: Option<Pin<Box<WaitForCancellationFutureOwned>>>,
    }
}

/// Aborts the call that is being polled at `instant`.
pub(super) fn abort_at(instant: Instant) {
    ABORT_REQUEST.set(AbortRequest { at: Some(instant), ..ABORT_REQUEST.take() });
}

/// Aborts the call that is being polled when the token is cancelled.
pub(super) fn abort_when(token: CancellationToken) {
    ABORT_REQUEST.set(AbortRequest { when: Some(token), ..ABORT_REQUEST.take() });
}

/// Withdraws the requests of the task that is being polled: its call has ended, and the task goes on.
pub(in crate::grpc) fn withdraw() {
    ABORT_REQUEST.set(AbortRequest { is_withdrawn: true, ..AbortRequest::default() });
}

// === impl AbortableCall ===

impl<F> AbortableCall<F> {
    /// Runs `call` until it ends or is aborted.
    pub(crate) fn new(call: F) -> AbortableCall<F> {
        AbortableCall { call, at: None, when: None }
    }
}

impl<F: Future<Output = ()>> Future for AbortableCall<F> {
    type Output = ();

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        let this = self.project();
        ABORT_REQUEST.take();
        let polled = this.call.poll(cx);
        let asked = ABORT_REQUEST.take();
        if polled.is_ready() {
            return Poll::Ready(());
        }
        if asked.is_withdrawn {
            (*this.at, *this.when) = (None, None);
        }
        if let Some(at) = asked.at {
            *this.at = Some(Box::pin(sleep_until(at)));
        }
        if let Some(token) = asked.when {
            *this.when = Some(Box::pin(token.cancelled_owned()));
        }
        let late = this.at.as_mut().is_some_and(|at| at.as_mut().poll(cx).is_ready());
        let cut = this.when.as_mut().is_some_and(|when| when.as_mut().poll(cx).is_ready());
        if late || cut { Poll::Ready(()) } else { Poll::Pending }
    }
}

#[cfg(test)]
mod tests {
    use std::future::{pending, poll_fn};
    use std::time::Duration;

    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    #[tokio::test(start_paused = true)]
    async fn stalled_call_ends_at_its_time_and_no_other_does() {
        let begun = Instant::now();
        let stuck = |asks: fn(Instant)| async move {
            let first = poll_fn(move |_| {
                asks(begun);
                Poll::Ready(())
            });
            first.await;
            pending::<()>().await;
        };
        tokio::join!(
            async {
                AbortableCall::new(stuck(|begun| abort_at(begun + SECOND))).await;
                assert_eq!(begun.elapsed(), SECOND);
            },
            async {
                let for_ever = AbortableCall::new(stuck(drop));
                assert!(tokio::time::timeout(5 * SECOND, for_ever).await.is_err());
            }
        );
    }

    #[tokio::test(start_paused = true)]
    async fn a_withdrawn_request_aborts_nothing_and_the_next_one_does() {
        let begun = Instant::now();
        let calls = async move {
            for seconds in [1, 3] {
                abort_at(begun + seconds * SECOND);
                tokio::task::yield_now().await;
                withdraw();
                tokio::time::sleep(2 * SECOND).await;
            }
            abort_at(begun + 5 * SECOND);
            pending::<()>().await;
        };
        AbortableCall::new(calls).await;
        assert_eq!(begun.elapsed(), 5 * SECOND);
    }

    #[tokio::test(start_paused = true)]
    async fn stalled_call_ends_when_its_token_is_cancelled() {
        let token = CancellationToken::new();
        let asked = token.clone();
        let call = async move {
            abort_when(asked);
            pending::<()>().await;
        };
        let mut call = pin_cut(call);
        assert!(tokio::time::timeout(SECOND, &mut call).await.is_err());
        token.cancel();
        assert!(tokio::time::timeout(SECOND, &mut call).await.is_ok());
    }

    fn pin_cut<F: Future<Output = ()>>(call: F) -> Pin<Box<AbortableCall<F>>> {
        Box::pin(AbortableCall::new(call))
    }
}
