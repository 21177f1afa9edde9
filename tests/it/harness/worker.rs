//! A worker on one stream that records what it received.

use std::collections::VecDeque;
use std::time::Duration;

use ringq::pb::{Delivery, Revocation, StreamInfo, StreamRequest, StreamResponse};
use tonic::{Status, Streaming};

use super::{Client, for_a_while, proto, within};

/// A stream and what it received. Dropping it cancels the stream.
pub(crate) struct Worker {
    inner: Streaming<StreamResponse>,
    /// The settings in effect.
    pub(crate) info: StreamInfo,
    /// Every message so far, without its payloads.
    pub(crate) messages: Vec<Message>,
    deliveries: VecDeque<Delivery>,
    revocations: VecDeque<Revocation>,
}

/// The recorded part of a message.
#[derive(Clone, Debug)]
pub(crate) struct Message {
    /// Number of deliveries in it.
    pub(crate) deliveries: usize,
    /// Number of revocations in it.
    pub(crate) revocations: usize,
    /// Credit in use after it.
    pub(crate) in_flight: i32,
    /// True if the server drains.
    pub(crate) draining: bool,
}

/// Builds a request for the jobs of this topic with an explicit credit and lease, so that no default affects a test.
pub(crate) fn take(topic: &str) -> StreamRequest {
    StreamRequest {
        topics: vec![topic.to_owned()],
        max_in_flight: 16,
        lease_duration: Some(proto(Duration::from_secs(30))),
        ..Default::default()
    }
}

// === impl Worker ===

impl Worker {
    /// Opens a stream and waits for its first message.
    pub(crate) async fn open(client: &Client, request: StreamRequest) -> Worker {
        Worker::try_open(client, request).await.expect("a stream")
    }

    /// Opens a stream and waits for its first message or the refusal.
    pub(crate) async fn try_open(
        client: &Client,
        request: StreamRequest,
    ) -> Result<Worker, Status> {
        let opened = within("the stream's headers", client.queue.clone().stream(request)).await?;
        let mut inner = opened.into_inner();
        let first = within("the stream's first message", inner.message()).await?;
        let mut first = first.expect("a first message");
        let info = first.info.take().expect("the first message carries the settings");
        let mut worker = Worker {
            inner,
            info,
            messages: Vec::new(),
            deliveries: VecDeque::new(),
            revocations: VecDeque::new(),
        };
        worker.remember(first);
        Ok(worker)
    }

    /// Waits for the next job.
    pub(crate) async fn next(&mut self) -> Delivery {
        loop {
            if let Some(delivery) = self.deliveries.pop_front() {
                return delivery;
            }
            self.message().await.expect("a delivery, not the end of the stream");
        }
    }

    /// Waits for the next `count` jobs.
    pub(crate) async fn next_many(&mut self, count: usize) -> Vec<Delivery> {
        let mut deliveries = Vec::with_capacity(count);
        while deliveries.len() < count {
            deliveries.push(self.next().await);
        }
        deliveries
    }

    /// Waits for the next revocation.
    pub(crate) async fn revocation(&mut self) -> Revocation {
        loop {
            if let Some(revocation) = self.revocations.pop_front() {
                return revocation;
            }
            self.message().await.expect("a revocation, not the end of the stream");
        }
    }

    /// Waits for the next message of any kind; `None` when the server ended the stream with OK.
    pub(crate) async fn message(&mut self) -> Option<Message> {
        let message = within("a message of the stream", self.inner.message()).await;
        let message = message.unwrap_or_else(|status| panic!("the stream broke: {status:?}"))?;
        assert!(message.info.is_none(), "settings come in the first message only");
        Some(self.remember(message))
    }

    /// Waits that long and checks that no job arrives; deliveries that were read before do not count.
    pub(crate) async fn quiet(&mut self, time: Duration) {
        if let Some(delivery) = for_a_while(time, self.next()).await {
            panic!("{}/{} came, but no job should", delivery.topic, delivery.id);
        }
    }

    /// Reads until the server ends the stream with OK.
    pub(crate) async fn end(&mut self) {
        while self.message().await.is_some() {}
    }

    /// Reads until the stream ends, with OK or an error.
    pub(crate) async fn any_end(&mut self) -> Result<(), Status> {
        while let Some(message) = within("the stream's end", self.inner.message()).await? {
            self.remember(message);
        }
        Ok(())
    }

    /// Returns the next job if one arrives within `time`.
    pub(crate) async fn next_within(&mut self, time: Duration) -> Option<Delivery> {
        for_a_while(time, self.next()).await
    }

    /// Returns the number of jobs that arrived but were not taken by [`Worker::next`] yet.
    pub(crate) fn unread(&self) -> usize {
        self.deliveries.len()
    }

    fn remember(&mut self, message: StreamResponse) -> Message {
        let remembered = Message {
            deliveries: message.deliveries.len(),
            revocations: message.revocations.len(),
            in_flight: message.in_flight,
            draining: message.draining,
        };
        self.deliveries.extend(message.deliveries);
        self.revocations.extend(message.revocations);
        self.messages.push(remembered.clone());
        remembered
    }
}
