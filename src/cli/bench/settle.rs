//! What workers do with deliveries.

use std::sync::Arc;

use super::round::Round;
use super::time;
use super::trouble::{Result, Trouble};
use crate::client::{Error, Transport};
use crate::pb::queue_service_client::QueueServiceClient;
use crate::pb::{AckItem, AckRequest, NackAction, NackItem, NackRequest, SettleError};

const WHAT: &str = "cannot ack";

/// A delivery that is to be settled: its number, none for a damaged one, and its receipt.
pub(super) type Held = (Option<u32>, String);

/// Acknowledges, and enters it in the books.
pub(super) async fn ack(
    round: Arc<Round>,
    mut queue: QueueServiceClient<Transport>,
    batch: Vec<Held>,
) -> Result<()> {
    let start = time::now();
    let (numbers, items): (Vec<Option<u32>>, Vec<AckItem>) = batch
        .into_iter()
        .map(|(number, receipt)| (number, AckItem { receipt, ..Default::default() }))
        .unzip();
    let answer = queue.ack(AckRequest { items }).await.map_err(Trouble::at(WHAT))?;
    round.latency.ack.record(time::micros(start.elapsed()));
    // Nearly always empty.
    let failures = answer.into_inner().failures;
    if let Some(failure) = failures.iter().find(|row| row.error() == SettleError::Unavailable) {
        let status = tonic::Status::unavailable(failure.message.clone());
        return Err(Trouble::Call(WHAT, Box::new(Error::from(status))));
    }
    for (index, number) in (0_i32..).zip(numbers) {
        let refused = failures.iter().any(|failure| failure.index == index);
        match number {
            Some(number) if refused => round.books.refused(number),
            Some(number) => round.books.acked(number),
            None => {}
        }
    }
    round.look();
    Ok(())
}

/// Gives back jobs of others; they keep their place and are not counted as tried.
pub(super) async fn release(
    mut queue: QueueServiceClient<Transport>,
    receipts: Vec<String>,
) -> Result<()> {
    let action = NackAction::Release.into();
    let item = |receipt| NackItem { receipt, action, ..Default::default() };
    let items = receipts.into_iter().map(item).collect();
    let answer = queue.nack(NackRequest { items }).await;
    answer.map_err(Trouble::at("cannot give back a job that is not of this run"))?;
    Ok(())
}
