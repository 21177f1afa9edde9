//! Ends a stream at a given event, such as its age, or after too long a time without a job. A task does this, because the transport of a
//! stream that is not read is not polled.

use std::future::pending;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use parking_lot::Mutex;
use tokio::time::{Instant, sleep, sleep_until};
use tokio_util::sync::CancellationToken;
use tokio_util::task::AbortOnDropHandle;

use crate::domain::limit;

use crate::dispatch::dispatch_core::DispatchCore;
use crate::dispatch::streams::stream::Stream;

/// State shared by the task of a stream and its transport.
pub(in crate::dispatch) struct Lifetime {
    /// True when the stream has been without a job for too long.
    idle: AtomicBool,
    last_job: Mutex<Instant>,
    /// Cancelled when the transport did not take the end in time and is to be dropped.
    reset: CancellationToken,
}

// === impl Lifetime ===

impl Lifetime {
    /// Starts the lifetime of a stream, which drains when `ends` does. Its task ends with the handle.
    pub(in crate::dispatch) fn begin(
        core: &Arc<DispatchCore>,
        stream: &Arc<Stream>,
        ends: impl Future<Output = ()> + Send + 'static,
    ) -> (Arc<Lifetime>, AbortOnDropHandle<()>) {
        let lifetime = Arc::new(Lifetime {
            idle: AtomicBool::new(false),
            last_job: Mutex::new(Instant::now()),
            reset: CancellationToken::new(),
        });
        let idle = stream.options().idle_timeout;
        let (core, stream) = (Arc::clone(core), Arc::clone(stream));
        let runtime = core.runtime().clone();
        let task = run(core, stream, Arc::clone(&lifetime), ends, idle);
        (lifetime, AbortOnDropHandle::new(runtime.spawn(task)))
    }

    /// Restarts the idle time: the transport has taken a job.
    pub(in crate::dispatch) fn reset_idle(&self) {
        *self.last_job.lock() = Instant::now();
        self.idle.store(false, Ordering::Relaxed);
    }

    /// Returns whether the stream has been without a job for too long.
    pub(in crate::dispatch) fn is_idle(&self) -> bool {
        self.idle.load(Ordering::Relaxed)
    }

    /// Returns the token that is cancelled when the transport is to be dropped.
    pub(in crate::dispatch) fn reset_token(&self) -> &CancellationToken {
        &self.reset
    }

    /// Waits until the stream has been without a job for `longest`.
    async fn wait_idle(&self, longest: Duration) {
        loop {
            let last = *self.last_job.lock();
            let Some(end) = last.checked_add(longest) else { return pending().await };
            sleep_until(end).await;
            if *self.last_job.lock() == last {
                return;
            }
        }
    }

    /// Requests the transport to end the stream when it is idle, again whenever a job came in between. Returns when
    /// the transport does not take the end in time.
    async fn end_when_idle(&self, stream: &Stream, longest: Option<Duration>) {
        let Some(longest) = longest else { return pending().await };
        loop {
            self.wait_idle(longest).await;
            self.idle.store(true, Ordering::Relaxed);
            stream.wake();
            sleep(limit::STREAM_END_UNREAD_MAX).await;
            if self.is_idle() {
                return;
            }
        }
    }
}

async fn run(
    core: Arc<DispatchCore>,
    stream: Arc<Stream>,
    lifetime: Arc<Lifetime>,
    ends: impl Future<Output = ()>,
    idle: Option<Duration>,
) {
    let end = async {
        ends.await;
        core.streams.drain_stream(&stream);
        sleep(limit::STREAM_END_UNREAD_MAX).await;
    };
    tokio::select! {
        () = end => {}
        () = lifetime.end_when_idle(&stream, idle) => {}
    }
    tracing::info!(
        stream = stream.name(),
        "stream reset: its client did not read the end of the stream in time"
    );
    // The server ends the stream: its worker has not broken it.
    core.streams.drain_stream(&stream);
    core.break_stream(&stream);
    lifetime.reset.cancel();
}
