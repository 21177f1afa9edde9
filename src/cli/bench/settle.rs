//! Settling of deliveries: acks and releases.

use std::sync::Arc;

use super::clocks;
use super::error::{BenchError, Result};
use super::round::BenchRound;
use crate::client::{Error, Transport};
use crate::pb::queue_service_client::QueueServiceClient;
use crate::pb::{AckItem, AckRequest, NackAction, NackItem, NackRequest, SettleError};

const WHAT: &str = "cannot ack";

/// Delivery to settle: the job's number, None for a damaged one, and its receipt.
pub(super) type HeldDelivery = (Option<u32>, String);

/// Acknowledges a batch and records it in the audit.
pub(super) async fn ack(
    round: Arc<BenchRound>,
    mut queue: QueueServiceClient<Transport>,
    batch: Vec<HeldDelivery>,
) -> Result<()> {
    let start = clocks::now();
    let (numbers, items): (Vec<Option<u32>>, Vec<AckItem>) = batch
        .into_iter()
        .map(|(number, receipt)| (number, AckItem { receipt, ..Default::default() }))
        .unzip();
    let answer = queue.ack(AckRequest { items }).await.map_err(BenchError::call_failed(WHAT))?;
    round.latency.ack.record(clocks::micros(start.elapsed()));
    // Nearly always empty.
    let failures = answer.into_inner().failures;
    if let Some(failure) = failures.iter().find(|row| row.error() == SettleError::Unavailable) {
        let status = tonic::Status::unavailable(failure.message.clone());
        return Err(BenchError::CallFailed(WHAT, Box::new(Error::from(status))));
    }
    for (index, number) in (0_i32..).zip(numbers) {
        let refused = failures.iter().any(|failure| failure.index == index);
        match number {
            Some(number) if refused => round.audit.record_rejected_ack(number),
            Some(number) => round.audit.record_acked(number),
            None => {}
        }
    }
    round.finish_if_complete();
    Ok(())
}

/// Releases jobs of others; they keep their place, and the attempt does not count.
pub(super) async fn release(
    mut queue: QueueServiceClient<Transport>,
    receipts: Vec<String>,
) -> Result<()> {
    let action = NackAction::Release.into();
    let item = |receipt| NackItem { receipt, action, ..Default::default() };
    let items = receipts.into_iter().map(item).collect();
    let answer = queue.nack(NackRequest { items }).await;
    answer.map_err(BenchError::call_failed("cannot release a job that is not of this run"))?;
    Ok(())
}
