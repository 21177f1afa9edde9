//! Settles by workers: ack, nack and extend. Leases that no worker settles end in `end_leases`.
//!
//! - `end_leases`: ends leases otherwise than by an ack, and without their workers
//! - `crash_topic`: moves jobs that have crashed as often as they may to their crash topics
//! - `lease_status`: looks up leases whose settle notification may have been lost
//! - `job_log`: log lines about expired leases and dead letters

mod crash_topic;
mod end_leases;
mod job_log;
mod lease_status;

use std::ops::Deref;
use std::time::Duration;

use tokio::time::Instant;

use crate::domain::engine::{Command, CrashMove, Extend, Settle};
use crate::domain::lifecycle::LeaseEndCause;
use crate::domain::ring::ShardState;
use crate::domain::{Payload, Receipt, ShardName, Token};
use crate::shards::{self, Shard, ShardError};
use crate::store::{
    Error, JobRequest, LeaseEvent, LeaseRef, LeaseRefusal, RequestResult, SettleAction,
};

use crate::scheduler::by_shard::ByShard;
use crate::scheduler::{Draft, EnqueueError, WriteTerms};

use super::Core;

pub use end_leases::EndLeasesResult;
pub(super) use job_log::JobLogLimiter;
pub use lease_status::LeaseStatus;

/// Verbs about leases. Cheap to clone.
#[derive(Clone)]
pub struct Settler(pub(super) Core);

impl Deref for Settler {
    type Target = Core;

    fn deref(&self) -> &Core {
        &self.0
    }
}

/// Item of an ack: ends an attempt with success.
#[derive(Clone, Debug)]
pub struct AckItem {
    /// Receipt of the lease.
    pub receipt: Receipt,
    /// Result, kept for the job's retention.
    pub result: Option<Payload>,
    /// Follow-up jobs to write together with the ack.
    pub follow_ups: Vec<Draft>,
}

/// Item of a nack: ends an attempt without success.
#[derive(Clone, Debug)]
pub struct NackItem {
    /// Receipt of the lease.
    pub receipt: Receipt,
    /// Cause of the end.
    pub cause: LeaseEndCause,
}

/// Item of an extend: moves the deadline of a lease.
#[derive(Clone, Debug)]
pub struct ExtendItem {
    /// Receipt of the lease.
    pub receipt: Receipt,
    /// New duration from now; `None`: the lease's own.
    pub duration: Option<Duration>,
    /// Note on the progress, for operators.
    pub progress: Option<String>,
    /// Checkpoint for the next delivery; an empty one clears it.
    pub checkpoint: Option<Payload>,
}

/// Reason why a receipt could not be settled or extended.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SettleError {
    /// The job is gone.
    #[error(
        "the job is gone: deleted, or finished without retention; if this is a repeated ack, the first one was applied"
    )]
    NotFound,
    /// The receipt is stale: the job has another lease, or none.
    #[error(
        "the lease is over: it ran out, was revoked or was settled otherwise; stop work on this delivery"
    )]
    Stale,
    /// The shard did not answer or refused; the same receipt may be settled again.
    #[error("shard {0} did not answer, or refused; repeat with the same receipt")]
    Unavailable(ShardName),
    /// The shard has no room for a checkpoint or a follow-up; the lease is unchanged.
    #[error(
        "shard {0} is full and took neither checkpoint nor follow-up, and nothing of the item was applied; extend \
         without a checkpoint to keep the lease, and repeat with the same receipt once there is room"
    )]
    Full(ShardName),
    /// A follow-up that must be written first is not confirmed, for this reason; the same receipt may be settled
    /// again.
    #[error("a follow-up job is not confirmed: {0}; repeat with the same receipt")]
    FollowUp(Box<EnqueueError>),
}

/// Result of a settle.
pub type SettleResult = Result<(), SettleError>;

// === impl Settler ===

impl Settler {
    /// Completes jobs; each result is for the item of its index. Follow-ups with ids of their own are written first,
    /// after the lease was checked; those without are part of the ack.
    pub async fn ack(&self, items: Vec<AckItem>) -> Vec<SettleResult> {
        let settler = self.clone();
        Core::run_to_completion(async move {
            let (split, mut results) = settler.split(items, |item| &item.receipt);
            let settled = split.call(|shard, items| settler.ack_on_shard(shard, items)).await;
            settled.for_each(|(index, settled)| results[index] = settled);
            results
        })
        .await
    }

    /// Ends attempts without success; each result is for the item of its index.
    pub async fn nack(&self, items: Vec<NackItem>) -> Vec<SettleResult> {
        let settler = self.clone();
        Core::run_to_completion(async move {
            let (split, mut results) = settler.split(items, |item| &item.receipt);
            let settled = split.call(|shard, items| settler.nack_on_shard(shard, items)).await;
            settled.for_each(|(index, settled)| results[index] = settled);
            results
        })
        .await
    }

    /// Moves deadlines of leases; each result is for the item of its index. Nothing is done after `until`.
    pub async fn extend(
        &self,
        items: Vec<ExtendItem>,
        until: Option<Instant>,
    ) -> Vec<SettleResult> {
        let (split, mut results) = self.split(items, |item| &item.receipt);
        let extended = split.call(|shard, items| self.extend_on_shard(shard, items, until)).await;
        extended.for_each(|(index, extended)| results[index] = extended);
        results
    }

    /// Splits items by the shards of their receipts, and returns results for all, which are those of the items whose shard is
    /// not configured here.
    fn split<I>(
        &self,
        items: Vec<I>,
        receipt: impl Fn(&I) -> &Receipt,
    ) -> (ByShard<'_, I>, Vec<SettleResult>) {
        let count = items.len();
        let mut results = vec![Err(SettleError::NotFound); count];
        let mut split = ByShard::new();
        for (index, item) in items.into_iter().enumerate() {
            match self.shard(&receipt(&item).shard) {
                Ok(shard) => split.add(shard, (index, item), count - index - 1),
                Err(error) => results[index] = Err(error.into()),
            }
        }
        (split, results)
    }

    async fn ack_on_shard(&self, shard: &Shard, mut items: Vec<AckItem>) -> Vec<SettleResult> {
        let refused = match self.write_follow_ups(shard, &mut items).await {
            Ok(refused) => refused,
            Err(error) => {
                self.mark_unconfirmed(shard, items.iter().map(|item| &item.receipt));
                return items.iter().map(|_| Err(error.clone().into())).collect();
            }
        };
        let room = items.len();
        let (mut receipts, mut acks) = (Vec::with_capacity(room), Vec::with_capacity(room));
        for (item, refused) in items.into_iter().zip(&refused) {
            if refused.is_none() {
                let follow_up = |draft| {
                    let mut job = self.producer().with_new_id(shard, draft);
                    job.enqueue.max_bytes = self.only_counted(&job.key.topic);
                    job
                };
                let follow_ups = item.follow_ups.into_iter().map(follow_up).collect();
                let action = SettleAction::Ack { result: item.result, follow_ups };
                acks.push(settle_request(&item.receipt, action));
                receipts.push(item.receipt);
            }
        }
        let settled = shard.apply(acks).await;
        self.note_settled(shard, &receipts, &settled);
        self.count_acks(&receipts, &settled);
        let mut settled = settled.into_iter().map(settle_result);
        let answer = |refused: Option<SettleError>| match refused {
            Some(error) => Err(error),
            None => settled.next().unwrap_or(Err(SettleError::NotFound)),
        };
        refused.into_iter().map(answer).collect()
    }

    /// Notifies the streams that have the leases of these receipts, which were settled with these results.
    fn note_settled(
        &self,
        shard: &Shard,
        receipts: &[Receipt],
        settled: &[shards::Result<RequestResult>],
    ) {
        let (mut taken, mut left) = (Vec::with_capacity(receipts.len()), Vec::new());
        for (receipt, answer) in receipts.iter().zip(settled) {
            if answer.is_ok() { taken.push(receipt) } else { left.push(receipt) }
        }
        self.mark_unconfirmed(shard, left);
        self.notify_settled(shard, taken);
    }

    /// Writes follow-ups of items whose lease is live, all items together, and takes them out of the items: those
    /// with ids of their own, and all of them if the shard drains or takes no new jobs, as the others go elsewhere
    /// then. The rest goes with the ack. Returns, by item, why it cannot be acknowledged now.
    ///
    /// Nothing is written for a lease that has ended: the settle distinguishes a repeated ack from a stale one, and
    /// writes no follow-ups in either case.
    async fn write_follow_ups(
        &self,
        shard: &Shard,
        items: &mut [AckItem],
    ) -> shards::Result<Vec<Option<SettleError>>> {
        let mut refused = vec![None; items.len()];
        let handing: Vec<usize> =
            (0..items.len()).filter(|&index| !items[index].follow_ups.is_empty()).collect();
        if handing.is_empty() {
            return Ok(refused);
        }
        let refs = handing.iter().map(|&index| lease_ref(&items[index].receipt)).collect();
        let leases = shard.running_leases(refs).await?;
        let (mut named, mut moving) = (Vec::new(), Vec::new());
        let elsewhere =
            shard.state() == ShardState::Draining || shard.health().jobs_refused.is_some();
        for (index, lease) in handing.into_iter().zip(leases) {
            let drafts = std::mem::take(&mut items[index].follow_ups);
            if lease.is_ok() {
                let (with_id, without): (Vec<_>, _) =
                    drafts.into_iter().partition(|draft| draft.id.is_some());
                named.extend(with_id.into_iter().map(|draft| (index, draft)));
                match elsewhere {
                    true => moving.extend(without.into_iter().map(|draft| (index, draft))),
                    false => items[index].follow_ups = without,
                }
            }
        }
        self.write_before_ack(named, &mut refused).await;
        // Written last, and not for items that cannot be acknowledged now: a repeat would write them once more.
        self.write_before_ack(moving, &mut refused).await;
        Ok(refused)
    }

    /// Writes follow-ups, each with the index of its item, of items that are not refused yet. Stores in `refused` why
    /// an item is refused from now on.
    async fn write_before_ack(
        &self,
        follow_ups: Vec<(usize, Draft)>,
        refused: &mut [Option<SettleError>],
    ) {
        let wanted = follow_ups.into_iter().filter(|(index, _)| refused[*index].is_none());
        let (whose, drafts): (Vec<usize>, Vec<Draft>) = wanted.unzip();
        for (index, written) in whose
            .into_iter()
            .zip(self.producer().enqueue(drafts, WriteTerms::of_follow_ups()).await)
        {
            if let Err(error) = written
                && !matches!(error, EnqueueError::AlreadyExists { .. })
            {
                refused[index] = Some(SettleError::FollowUp(Box::new(error)));
            }
        }
    }

    async fn nack_on_shard(&self, shard: &Shard, items: Vec<NackItem>) -> Vec<SettleResult> {
        let (receipts, causes): (Vec<Receipt>, Vec<LeaseEndCause>) =
            items.into_iter().map(|item| (item.receipt, item.cause)).unzip();
        let nack = |(receipt, cause): (&Receipt, &LeaseEndCause)| {
            let topic = &receipt.key.topic;
            settle_request(receipt, self.unacked(topic, cause.clone(), CrashMove::None))
        };
        let results = shard.apply(receipts.iter().zip(&causes).map(nack).collect()).await;
        self.note_settled(shard, &receipts, &results);
        for ((receipt, cause), result) in receipts.iter().zip(&causes).zip(&results) {
            if let Ok(applied) = result {
                let policy = self.retry_policy(&receipt.key.topic, None);
                self.count_end(&receipt.key, cause, cause.counts(&policy), applied);
            }
        }
        results.into_iter().map(settle_result).collect()
    }

    /// Counts the acks of a call; runs of one topic, which is most calls, at once.
    fn count_acks(&self, receipts: &[Receipt], settled: &[shards::Result<RequestResult>]) {
        let topics = receipts.iter().map(|receipt| &receipt.key.topic);
        let settled =
            settled.iter().map(|answer| answer.as_ref().ok().map(RequestResult::settle_result));
        let pairs: Vec<_> = topics.zip(settled).collect();
        for run in pairs.chunk_by(|a, b| a.0 == b.0) {
            let topic = run[0].0;
            let (mut count, mut refused) = (0, 0);
            for (_, settled) in run {
                match settled {
                    Some(Ok(settled)) => count += u64::from(!settled.repeated),
                    Some(Err(_)) => refused += 1,
                    None => {}
                }
            }
            if count > 0 {
                self.inner.metrics.settled(topic.as_str(), "succeeded", count);
                self.inner.rates.finished(topic, count, self.now());
            }
            if refused > 0 {
                self.inner.metrics.settled(topic.as_str(), "refused", refused);
            }
        }
    }

    /// Handles settles that a shard did not take. Their leases keep their credit, because they may still run: their
    /// workers repeat, or the store is queried. While the shard is down both can take as long as that lasts, so the
    /// credit is free then: a worker that is done with all its jobs would stand idle for the jobs of all other
    /// shards. The leases stay recorded at their streams.
    fn mark_unconfirmed<'a>(&self, shard: &Shard, receipts: impl IntoIterator<Item = &'a Receipt>) {
        if shard.is_down() {
            self.notify_streams(shard, receipts, |stream, tokens| LeaseEvent::SettlePending {
                stream,
                tokens,
            });
        }
    }

    /// Notifies the streams of settled receipts, whose credit is free then, once each. Includes refused receipts:
    /// their worker is done with them in any case.
    fn notify_settled<'a>(&self, shard: &Shard, receipts: impl IntoIterator<Item = &'a Receipt>) {
        self.notify_streams(shard, receipts, |stream, tokens| LeaseEvent::Settled {
            stream,
            tokens,
        });
    }

    /// Notifies each stream of this replica once of its leases among these. Includes receipts of other replicas: a
    /// stream of this one may have adopted the lease.
    fn notify_streams<'a>(
        &self,
        shard: &Shard,
        receipts: impl IntoIterator<Item = &'a Receipt>,
        hint: impl Fn(u32, Vec<Token>) -> LeaseEvent,
    ) {
        let mut streams: Vec<(u32, Vec<Token>)> = Vec::new();
        for receipt in receipts {
            match streams.iter_mut().find(|(stream, _)| *stream == receipt.stream) {
                Some((_, tokens)) => tokens.push(receipt.token),
                None => streams.push((receipt.stream, vec![receipt.token])),
            }
        }
        for (stream, tokens) in streams {
            self.notify_stream(shard, self.inner.replica.nonce, hint(stream, tokens));
        }
    }

    async fn extend_on_shard(
        &self,
        shard: &Shard,
        items: Vec<ExtendItem>,
        until: Option<Instant>,
    ) -> Vec<SettleResult> {
        let extend = |item: &ExtendItem| {
            let extend = Extend {
                token: item.receipt.token,
                duration: item.duration,
                progress: item.progress.clone(),
                checkpoint: item.checkpoint.clone(),
                outage_expiry: None,
            };
            let request = JobRequest::new(item.receipt.key.clone(), Command::Extend(extend));
            JobRequest { deadline: until, ..request }
        };
        let extended = shard.apply(items.iter().map(extend).collect()).await;
        let answer = |(item, extended): (&ExtendItem, shards::Result<RequestResult>)| {
            let deadline = extended?.extend_result()?;
            let Receipt { stream, token, .. } = item.receipt;
            let hint = LeaseEvent::Extended { stream, tokens: vec![token], deadline };
            self.notify_stream(shard, self.inner.replica.nonce, hint);
            Ok(())
        };
        items.iter().zip(extended).map(answer).collect()
    }
}

/// Builds the request that ends the lease of a receipt.
fn settle_request(receipt: &Receipt, action: SettleAction) -> JobRequest {
    let settle = Settle { token: receipt.token, deadline: None, action };
    let request = JobRequest::new(receipt.key.clone(), Command::Settle(settle));
    JobRequest { owner: receipt.owner, ..request }
}

fn settle_result(answer: shards::Result<RequestResult>) -> SettleResult {
    answer?.settle_result()?;
    Ok(())
}

fn lease_ref(receipt: &Receipt) -> LeaseRef {
    LeaseRef { key: receipt.key.clone(), token: receipt.token }
}

// === impl SettleError ===

impl From<ShardError> for SettleError {
    fn from(ShardError { shard, error, .. }: ShardError) -> SettleError {
        match error {
            Error::Full(_) => SettleError::Full(shard),
            _ => SettleError::Unavailable(shard),
        }
    }
}

impl From<LeaseRefusal> for SettleError {
    fn from(refused: LeaseRefusal) -> SettleError {
        match refused {
            LeaseRefusal::NotFound => SettleError::NotFound,
            LeaseRefusal::Stale => SettleError::Stale,
        }
    }
}
