//! Producers: one job per call or many.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};

use anyhow::{Result, ensure};
use ringq::pb;
use ringq::pb::EnqueueOutcome;
use tokio::task::JoinSet;

use crate::client::{Client, Queue, TOPIC, spec};
use crate::ledger::Ledger;

/// Calls in flight of the unary producers.
pub(crate) const UNARY_IN_FLIGHT: usize = 50;
/// Jobs per bulk call.
const BULK_JOBS: u32 = 128;
/// Bulk calls in flight.
const BULK_IN_FLIGHT: usize = 8;

/// Enqueues all jobs of the books, ready now, one per call.
pub(crate) async fn unary(client: &Client, ledger: &Arc<Ledger>) -> Result<()> {
    let next = Arc::new(AtomicU32::new(0));
    let mut lanes = JoinSet::new();
    for lane in 0..UNARY_IN_FLIGHT {
        lanes.spawn(unary_lane(client.queue(lane), Arc::clone(ledger), Arc::clone(&next)));
    }
    join(lanes).await
}

async fn unary_lane(mut queue: Queue, ledger: Arc<Ledger>, next: Arc<AtomicU32>) -> Result<()> {
    loop {
        let number = next.fetch_add(1, Relaxed);
        if number >= ledger.jobs() {
            return Ok(());
        }
        one(&mut queue, &ledger, number).await?;
    }
}

/// Enqueues one job, ready now.
pub(crate) async fn one(queue: &mut Queue, ledger: &Arc<Ledger>, number: u32) -> Result<()> {
    let job = Some(spec(ledger, number, 0));
    let answer = queue.enqueue(pb::EnqueueRequest { job, ..Default::default() }).await?;
    ensure!(answer.into_inner().outcome() == EnqueueOutcome::Created, "not created");
    ledger.enqueued(number);
    Ok(())
}

/// Enqueues all jobs of the books in bulk calls, job `n` due at `due_us(n)` (0: now).
pub(crate) async fn bulk<D>(client: &Client, ledger: &Arc<Ledger>, due_us: D) -> Result<()>
where
    D: Fn(u32) -> i64 + Clone + Send + Sync + 'static,
{
    let next = Arc::new(AtomicU32::new(0));
    let mut lanes = JoinSet::new();
    for lane in 0..BULK_IN_FLIGHT {
        let (ledger, next) = (Arc::clone(ledger), Arc::clone(&next));
        lanes.spawn(bulk_lane(client.queue(lane), ledger, next, due_us.clone()));
    }
    join(lanes).await
}

async fn bulk_lane<D: Fn(u32) -> i64>(
    mut queue: Queue,
    ledger: Arc<Ledger>,
    next: Arc<AtomicU32>,
    due_us: D,
) -> Result<()> {
    loop {
        let from = next.fetch_add(BULK_JOBS, Relaxed).min(ledger.jobs());
        let until = (from + BULK_JOBS).min(ledger.jobs());
        if from == until {
            return Ok(());
        }
        let jobs = (from..until).map(|number| spec(&ledger, number, due_us(number))).collect();
        let request = pb::BatchEnqueueRequest { jobs, ..Default::default() };
        let answer = queue.batch_enqueue(request).await?.into_inner();
        ensure!(answer.failed_count == 0, "{} jobs of {TOPIC} failed", answer.failed_count);
        for (number, result) in (from..until).zip(&answer.results) {
            ensure!(result.outcome() == EnqueueOutcome::Created, "not created");
            ledger.enqueued(number);
        }
    }
}

async fn join(mut lanes: JoinSet<Result<()>>) -> Result<()> {
    while let Some(lane) = lanes.join_next().await {
        lane??;
    }
    Ok(())
}
