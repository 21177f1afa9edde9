//! Consumers: streams that acknowledge in batches.

use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, Result, bail, ensure};
use futures::StreamExt as _;
use futures::stream::FuturesUnordered;
use ringq::pb;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use crate::client::{Client, Queue, TOPIC, body};
use crate::ledger::{Ledger, wall_us};

/// Streams of one consumer.
const STREAMS: usize = 4;
/// Unsettled deliveries per stream.
const CREDIT: i32 = 1000;
/// Deliveries per message.
const MESSAGE_JOBS: i32 = 128;
/// Receipts per ack.
const ACK_JOBS: usize = 100;
/// Ack calls in flight per stream.
const ACKS_IN_FLIGHT: usize = 8;
/// A part of an ack waits no longer than this.
const ACK_WAIT: Duration = Duration::from_millis(5);
/// No scenario takes longer.
const LIMIT: Duration = Duration::from_secs(300);

/// Takes and acknowledges jobs until all of the books are done; the lateness of each, in
/// microseconds.
pub(crate) async fn drain(client: &Client, ledger: &Arc<Ledger>) -> Result<Vec<i64>> {
    let finished = CancellationToken::new();
    let mut streams = JoinSet::new();
    for index in 0..STREAMS {
        let (ledger, finished) = (Arc::clone(ledger), finished.clone());
        streams.spawn(Consumer::new(client.queue(index), ledger, finished).run());
    }
    match tokio::time::timeout(LIMIT, gather(streams)).await {
        Ok(lateness) => lateness,
        Err(_) => bail!("stalled with {} of {} jobs acknowledged", ledger.acks(), ledger.jobs()),
    }
}

async fn gather(mut streams: JoinSet<Result<Vec<i64>>>) -> Result<Vec<i64>> {
    let mut lateness = Vec::new();
    while let Some(stream) = streams.join_next().await {
        lateness.append(&mut stream??);
    }
    Ok(lateness)
}

/// One stream.
struct Consumer {
    queue: Queue,
    ledger: Arc<Ledger>,
    finished: CancellationToken,
    /// Delivered, not in an ack yet.
    held: Vec<(u32, String)>,
    lateness: Vec<i64>,
}

impl Consumer {
    fn new(queue: Queue, ledger: Arc<Ledger>, finished: CancellationToken) -> Self {
        Self { queue, ledger, finished, held: Vec::new(), lateness: Vec::new() }
    }

    async fn run(mut self) -> Result<Vec<i64>> {
        let mut stream = self.queue.stream(request(CREDIT)).await?.into_inner();
        let mut acks = FuturesUnordered::new();
        loop {
            tokio::select! {
                biased;
                () = self.finished.cancelled() => return Ok(self.lateness),
                Some(done) = acks.next() => self.settled(done)?,
                message = stream.message(), if acks.len() < ACKS_IN_FLIGHT => {
                    self.receive(&message?.context("the server ended the stream")?);
                    while self.held.len() >= ACK_JOBS {
                        acks.push(ack(self.queue.clone(), self.held.split_off(self.held.len() - ACK_JOBS)));
                    }
                }
                () = tokio::time::sleep(ACK_WAIT), if !self.held.is_empty() => {
                    acks.push(ack(self.queue.clone(), std::mem::take(&mut self.held)));
                }
            }
        }
    }

    fn receive(&mut self, message: &pb::StreamResponse) {
        let now_us = wall_us();
        for delivery in &message.deliveries {
            if let Some(entry) = self.ledger.delivered(body(delivery), now_us) {
                self.lateness.push(entry.late_us);
                self.held.push((entry.number, delivery.receipt.clone()));
            }
        }
    }

    fn settled(&self, done: Result<Vec<u32>>) -> Result<()> {
        for number in done? {
            self.ledger.acked(number);
        }
        if self.ledger.complete() {
            self.finished.cancel();
        }
        Ok(())
    }
}

/// What a consumer asks for.
pub(crate) fn request(max_in_flight: i32) -> pb::StreamRequest {
    pb::StreamRequest {
        topics: vec![TOPIC.to_owned()],
        max_in_flight,
        max_batch: MESSAGE_JOBS,
        lease_duration: Some(prost_types::Duration { seconds: 120, nanos: 0 }),
        ..Default::default()
    }
}

/// Acknowledges; the numbers that are done. A refused receipt is an error: nothing here takes a
/// job away.
pub(crate) async fn ack(mut queue: Queue, held: Vec<(u32, String)>) -> Result<Vec<u32>> {
    let (numbers, items): (Vec<u32>, Vec<pb::AckItem>) = held
        .into_iter()
        .map(|(number, receipt)| (number, pb::AckItem { receipt, ..Default::default() }))
        .unzip();
    let failures = queue.ack(pb::AckRequest { items }).await?.into_inner().failures;
    ensure!(failures.is_empty(), "{} receipts refused: {:?}", failures.len(), failures[0]);
    Ok(numbers)
}
