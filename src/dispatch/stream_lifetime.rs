//! The ends that a stream comes to by itself: its age, and too long a time without a job. A task looks after them,
//! because the transport of a stream that is not read is not polled.

use std::future::pending;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::time::{Instant, sleep, sleep_until};
use tokio_util::sync::CancellationToken;
use tokio_util::task::AbortOnDropHandle;

use crate::domain::limit;

use super::dispatch_core::DispatchCore;
use super::stream::Stream;

/// What the task of a stream and its transport share.
pub(super) struct Lifetime {
    /// It has been without a job for too long.
    idle: AtomicBool,
    last_job: Mutex<Instant>,
    /// Its transport did not take its end in time, and is to be dropped.
    reset: CancellationToken,
}

// === impl Lifetime ===

impl Lifetime {
    /// The lifetime of a stream that begins now. Its task ends with the handle.
    pub(super) fn begin(
        hub: &Arc<DispatchCore>,
        stream: &Arc<Stream>,
        age: Option<Duration>,
    ) -> (Arc<Lifetime>, Option<AbortOnDropHandle<()>>) {
        let lifetime = Arc::new(Lifetime {
            idle: AtomicBool::new(false),
            last_job: Mutex::new(Instant::now()),
            reset: CancellationToken::new(),
        });
        let idle = stream.options().idle_timeout;
        let bounded = age.is_some() || idle.is_some();
        let task = bounded.then(|| {
            let (hub, stream) = (Arc::clone(hub), Arc::clone(stream));
            let runtime = hub.runtime().clone();
            let task = run(hub, stream, Arc::clone(&lifetime), age, idle);
            AbortOnDropHandle::new(runtime.spawn(task))
        });
        (lifetime, task)
    }

    /// The transport has taken a job.
    pub(super) fn reset_idle(&self) {
        *self.last_job() = Instant::now();
        self.idle.store(false, Ordering::Relaxed);
    }

    /// Whether it has been without a job for too long.
    pub(super) fn is_idle(&self) -> bool {
        self.idle.load(Ordering::Relaxed)
    }

    /// Cancelled when the transport is to be dropped.
    pub(super) fn reset_token(&self) -> &CancellationToken {
        &self.reset
    }

    fn last_job(&self) -> MutexGuard<'_, Instant> {
        self.last_job.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Ends when the stream has been without a job for so long.
    async fn wait_idle(&self, longest: Duration) {
        loop {
            let last = *self.last_job();
            let Some(end) = last.checked_add(longest) else { return pending().await };
            sleep_until(end).await;
            if *self.last_job() == last {
                return;
            }
        }
    }

    /// Asks the transport to end the stream for want of jobs, again whenever a job came in between. Ends when the
    /// transport does not take that.
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
    hub: Arc<DispatchCore>,
    stream: Arc<Stream>,
    lifetime: Arc<Lifetime>,
    age: Option<Duration>,
    idle: Option<Duration>,
) {
    let end_old = async {
        let Some(age) = age else { return pending().await };
        sleep(age).await;
        hub.streams.drain_stream(&stream);
        sleep(limit::STREAM_END_UNREAD_MAX).await;
    };
    tokio::select! {
        () = end_old => {}
        () = lifetime.end_when_idle(&stream, idle) => {}
    }
    tracing::info!(
        stream = stream.name(),
        "stream reset: its client did not read that it has ended"
    );
    hub.break_stream(&stream);
    lifetime.reset.cancel();
}
