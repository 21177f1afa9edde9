//! Transport side of a stream: a message that is polled here counts as handed over. A transport polls only when it
//! can send, so a job that waits has reached no client and can be taken back.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use rand::Rng as _;
use tokio::sync::OwnedSemaphorePermit;
use tokio::time::{Instant, Sleep};
use tokio_util::sync::CancellationToken;
use tokio_util::task::AbortOnDropHandle;

use crate::dispatch::dispatch_core::DispatchCore;
use crate::dispatch::streams::stream::Stream;
use crate::dispatch::{StreamBatch, StreamOptions};

use super::lifetime::Lifetime;

/// Messages of one stream, in sending order; ends when the server ends the stream. If it is dropped before that, the
/// stream is broken: its sent leases are released after the grace unless they are extended or settled.
#[must_use = "a stream that is dropped is broken"]
pub struct Outbox {
    core: Arc<DispatchCore>,
    stream: Arc<Stream>,
    heartbeat: HeartbeatTimer,
    lifetime: Arc<Lifetime>,
    _lifetime: AbortOnDropHandle<()>,
    ended: bool,
    _slot: OwnedSemaphorePermit,
}

/// Timer that fires after a time without [`HeartbeatTimer::restart`].
struct HeartbeatTimer {
    after: Duration,
    since: Instant,
    sleep: Pin<Box<Sleep>>,
}

// === impl Outbox ===

impl Outbox {
    pub(in crate::dispatch) fn new(
        core: Arc<DispatchCore>,
        stream: Arc<Stream>,
        slot: OwnedSemaphorePermit,
        ends: impl Future<Output = ()> + Send + 'static,
    ) -> Outbox {
        let max_age = core.config.stream_max_age.mul_f64(rand::rng().random_range(0.9..=1.1));
        let ends = async move {
            let aged = async {
                match max_age.is_zero() {
                    true => std::future::pending().await,
                    false => tokio::time::sleep(max_age).await,
                }
            };
            tokio::select! {
                () = aged => {}
                () = ends => {}
            }
        };
        let (lifetime, task) = Lifetime::begin(&core, &stream, ends);
        Outbox {
            heartbeat: HeartbeatTimer::new(stream.options().heartbeat),
            lifetime,
            _lifetime: task,
            ended: false,
            _slot: slot,
            core,
            stream,
        }
    }

    /// Returns the stream's id, as shown to users.
    #[must_use]
    pub fn stream_id(&self) -> String {
        self.stream.name()
    }

    /// Returns the options in force for the stream.
    #[must_use]
    pub fn options(&self) -> &StreamOptions {
        self.stream.options()
    }

    /// Returns a token that is cancelled when the stream has ended but its client has not read the end in time: the
    /// transport is then to be dropped.
    #[must_use]
    pub fn reset_token(&self) -> CancellationToken {
        self.lifetime.reset_token().clone()
    }

    /// Takes the next message, with all effects of sending it, including the end of the stream.
    fn next_batch(&mut self) -> Option<StreamBatch> {
        let now = self.core.now();
        let mut taken = self.stream.take_message(now);
        self.core.streams.queue_returns(std::mem::take(&mut taken.late));
        if taken.wake_feeds {
            self.core.streams.wake_feeds(&self.stream);
        }
        if taken.jobs.is_empty() && taken.revocations.is_empty() && !taken.draining {
            return None;
        }
        self.heartbeat.restart();
        if !taken.jobs.is_empty() && self.options().idle_timeout.is_some() {
            self.lifetime.reset_idle();
        }
        if taken.complete || taken.draining {
            self.finish();
        }
        let batch = self.stream.batch(taken, now);
        self.core.count_deliveries(&batch.deliveries, "stream");
        Some(batch)
    }

    /// Ends the stream on the server's side: sent leases are kept.
    fn finish(&mut self) {
        if !std::mem::replace(&mut self.ended, true) {
            self.core.end_stream(&self.stream);
        }
    }
}

impl futures::Stream for Outbox {
    type Item = StreamBatch;

    fn poll_next(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<StreamBatch>> {
        let this = self.get_mut();
        if this.ended {
            return Poll::Ready(None);
        }
        this.stream.register(cx.waker());
        if let Some(batch) = this.next_batch() {
            return Poll::Ready(Some(batch));
        }
        if this.lifetime.is_idle() || this.lifetime.reset_token().is_cancelled() {
            this.finish();
            return Poll::Ready(None);
        }
        if this.heartbeat.poll(cx).is_ready() {
            this.heartbeat.restart();
            let in_flight = this.stream.ledger().in_flight_count();
            return Poll::Ready(Some(StreamBatch { in_flight, ..StreamBatch::default() }));
        }
        Poll::Pending
    }
}

impl Drop for Outbox {
    fn drop(&mut self) {
        if !self.ended && !self.lifetime.reset_token().is_cancelled() {
            self.core.break_stream(&self.stream);
        }
    }
}

// === impl HeartbeatTimer ===

impl HeartbeatTimer {
    fn new(after: Duration) -> HeartbeatTimer {
        HeartbeatTimer { after, since: Instant::now(), sleep: Box::pin(tokio::time::sleep(after)) }
    }

    /// Restarts the wait. The timer itself is moved only when it fires, not for each message.
    fn restart(&mut self) {
        self.since = Instant::now();
    }

    fn poll(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        while self.sleep.as_mut().poll(cx).is_ready() {
            match self.since.checked_add(self.after) {
                Some(end) if end <= Instant::now() => return Poll::Ready(()),
                Some(end) => self.sleep.as_mut().reset(end),
                None => return Poll::Pending,
            }
        }
        Poll::Pending
    }
}
