//! Workers: streams that acknowledge in batches, with several acks in flight.

use std::collections::VecDeque;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use futures::StreamExt as _;
use futures::future::Either;
use futures::stream::FuturesUnordered;
use tokio::task::JoinSet;
use tokio::time::Instant;
use tonic::Streaming;

use super::body::BodyError;
use super::clocks;
use super::error::{BenchError, Result};
use super::receive::ReceiveTime;
use super::round::{BenchRound, StreamGrant};
use super::settle::HeldDelivery;
use super::{produce, settle};
use crate::client::{Client, Transport, to_proto_duration};
use crate::pb::queue_service_client::QueueServiceClient;
use crate::pb::{Delivery, StreamRequest, StreamResponse};

/// Most deliveries per message.
const MESSAGE_JOBS: i32 = 128;
/// Longest time that a delivery waits for others, to share their ack.
const ACK_WAIT: Duration = Duration::from_millis(5);
/// Lease of the jobs: long enough to work off the credit of a stream in any run.
const LEASE: Duration = Duration::from_secs(120);
/// Time after the last ack, not measured, in which duplicate deliveries are detected.
const DUPLICATE_WAIT: Duration = Duration::from_millis(200);
/// Wait before a stream that the server ended because of its age is opened again.
const REOPEN_DELAY: Duration = Duration::from_millis(100);

/// Open streams, with the deliveries of their first messages.
pub(super) struct BenchWorkers(Vec<BenchWorker>);

/// Worker with one stream.
struct BenchWorker {
    round: Arc<BenchRound>,
    queue: QueueServiceClient<Transport>,
    stream: Streaming<StreamResponse>,
    /// Deliveries that are not in an ack yet.
    held: VecDeque<HeldDelivery>,
    /// Latest time for the ack of the oldest of them.
    flush: Instant,
    /// Receipts of deliveries that are not of this run.
    foreign: Vec<String>,
}

// === impl BenchWorkers ===

impl BenchWorkers {
    /// Opens the streams, beginning at the last connection: a single worker does not share the connection of a single
    /// producer.
    pub(super) async fn open(round: &Arc<BenchRound>, clients: &[Client]) -> Result<BenchWorkers> {
        round.timings().consume_start = Some(clocks::now());
        let mut workers = Vec::new();
        for client in clients.iter().rev().cycle().take(round.plan.workers as usize) {
            workers.push(BenchWorker::open(Arc::clone(round), client.queue()).await?);
        }
        Ok(BenchWorkers(workers))
    }

    /// Works until the round is finished, and receives a little longer.
    pub(super) async fn run(self) -> Result<()> {
        let mut tasks = JoinSet::new();
        for worker in self.0 {
            tasks.spawn(worker.run());
        }
        produce::join(tasks).await
    }
}

// === impl BenchWorker ===

impl BenchWorker {
    async fn open(
        round: Arc<BenchRound>,
        mut queue: QueueServiceClient<Transport>,
    ) -> Result<BenchWorker> {
        let stream = open(&round, &mut queue).await?;
        let (held, foreign) = (VecDeque::new(), Vec::new());
        let mut worker = BenchWorker { round, queue, stream, held, flush: Instant::now(), foreign };
        // The first message arrives at once and contains the values in effect.
        if let Some(message) = worker.stream.message().await.map_err(broken)? {
            worker.receive(message);
        }
        Ok(worker)
    }

    async fn run(mut self) -> Result<()> {
        let finished = self.round.finished.clone();
        let mut listened = pin!(async {
            finished.cancelled().await;
            tokio::time::sleep(DUPLICATE_WAIT).await;
        });
        let mut acks = FuturesUnordered::new();
        loop {
            while self.held.len() >= self.round.plan.ack_batch as usize {
                acks.push(Either::Left(self.ack()));
            }
            if !self.foreign.is_empty() {
                let receipts = std::mem::take(&mut self.foreign);
                acks.push(Either::Right(settle::release(self.queue.clone(), receipts)));
            }
            tokio::select! {
                biased;
                () = &mut listened => return Ok(()),
                Some(done) = acks.next() => done?,
                // Messages are always read: unread ones fill the window of the connection, which the answers to acks
                // need, too. The credit bounds the deliveries in memory.
                message = self.stream.message() => {
                    match message.map_err(broken)? {
                        Some(message) => self.receive(message),
                        None => self.reopen().await?,
                    }
                }
                () = tokio::time::sleep_until(self.flush), if !self.held.is_empty() => {
                    acks.push(Either::Left(self.ack()));
                }
            }
        }
    }

    /// Opens a stream again that the server ended because of its age; the leases stay.
    async fn reopen(&mut self) -> Result<()> {
        tokio::time::sleep(REOPEN_DELAY).await;
        self.stream = open(&self.round, &mut self.queue).await?;
        Ok(())
    }

    fn ack(&mut self) -> impl Future<Output = Result<()>> + use<> {
        let jobs = self.held.len().min(self.round.plan.ack_batch as usize);
        let batch: Vec<HeldDelivery> = self.held.drain(..jobs).collect();
        self.flush = Instant::now() + ACK_WAIT;
        settle::ack(Arc::clone(&self.round), self.queue.clone(), batch)
    }

    fn receive(&mut self, message: StreamResponse) {
        if let Some(info) = message.info {
            let (credit, message_jobs) = (info.max_in_flight, info.max_batch);
            self.round.timings().grant = Some(StreamGrant { credit, message_jobs });
        }
        if message.deliveries.is_empty() {
            return;
        }
        if self.held.is_empty() {
            self.flush = Instant::now() + ACK_WAIT;
        }
        let arrival = ReceiveTime::now(&self.round);
        for Delivery { payload, receipt, .. } in message.deliveries {
            let body = payload.as_ref().map_or(&[][..], |payload| payload.bytes());
            match arrival.record_delivery(&self.round, body) {
                Ok(number) => self.held.push_back((Some(number), receipt)),
                // The job is of this run, so this run settles it.
                Err(BodyError::Damaged) => self.held.push_back((None, receipt)),
                Err(BodyError::Foreign) => self.foreign.push(receipt),
            }
        }
    }
}

async fn open(
    round: &BenchRound,
    queue: &mut QueueServiceClient<Transport>,
) -> Result<Streaming<StreamResponse>> {
    let request = StreamRequest {
        topics: vec![round.topic.clone()],
        max_in_flight: i32::try_from(round.plan.credit).unwrap_or(i32::MAX),
        max_batch: MESSAGE_JOBS,
        worker_id: "ringq-bench".to_owned(),
        lease_duration: Some(to_proto_duration(LEASE)),
        ..Default::default()
    };
    let answer =
        queue.stream(request).await.map_err(BenchError::call_failed("cannot open a stream"))?;
    Ok(answer.into_inner())
}

fn broken(status: tonic::Status) -> BenchError {
    BenchError::call_failed("cannot take jobs")(status)
}
