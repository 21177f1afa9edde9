//! Checks deadlines when they are due.
//!
//! - A job that has waited for its transport for a third of its lease, or 10 s, goes back uncounted. So no lease
//!   expires in an outbox, and no job waits for a worker that does not read.
//! - A lease past its deadline without an event is looked up in the store, because memory alone never shows that it
//!   is over.
//! - The leases of a stream that waits for credit, and all leases after lease events may have been lost, are looked
//!   up too: another replica may have settled them.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use tokio_util::task::AbortOnDropHandle;

use crate::domain::{Time, limit};
use crate::scheduler::{LeaseStatus, Settler};
use crate::shards;
use crate::store::{LeaseRef, RevokeReason};

use crate::dispatch::streams::registry::StreamRegistry;
use crate::dispatch::streams::stream::Stream;

/// Shortest time between two checks, however many deadlines are due.
const CHECK_INTERVAL: Duration = Duration::from_millis(100);
/// Shortest pause after a failed call.
const RETRY_DELAY: Duration = Duration::from_millis(500);

/// Checks deadlines and looks up leases until `stop`.
pub(in crate::dispatch) async fn run(
    settler: Settler,
    streams: Arc<StreamRegistry>,
    stop: CancellationToken,
) {
    let mut asking: BTreeMap<usize, AbortOnDropHandle<()>> = BTreeMap::new();
    let watching = async {
        loop {
            wait(&settler, &streams).await;
            streams.check_timer.reset();
            asking.retain(|_, asked| !asked.is_finished());
            let shards = settler.shards().all().len();
            let questions = check_deadlines(&streams, settler.clock().now(), shards).await;
            for (shard, mut question) in questions.into_iter().enumerate() {
                let asked = asking.contains_key(&shard);
                if streams.take_lookup_request(shard) {
                    if asked {
                        streams.request_lookup(shard);
                    } else {
                        question = LeaseLookup { streams: streams.all(), ..LeaseLookup::default() };
                    }
                }
                // One lookup at a time per shard, and in parallel over shards: one may hang. A lease that is skipped
                // now is found again by a later check.
                if !question.is_empty() && !asked {
                    let ask = look_up(settler.clone(), Arc::clone(&streams), shard, question);
                    asking.insert(shard, AbortOnDropHandle::new(tokio::spawn(ask)));
                }
            }
            tokio::time::sleep(CHECK_INTERVAL).await;
        }
    };
    tokio::select! {
        () = stop.cancelled() => {}
        () = watching => {}
    }
}

/// Waits until the check timer is due.
async fn wait(settler: &Settler, streams: &StreamRegistry) {
    loop {
        let at = streams.check_timer.due_at();
        tokio::select! {
            () = settler.clock().sleep_until(at) => return,
            () = streams.check_timer.wait_changed() => {}
        }
    }
}

/// Leases to look up on one shard.
#[derive(Default)]
pub(in crate::dispatch) struct LeaseLookup {
    /// Pairs of a stream's id and a lease that it holds.
    leases: Vec<(u32, LeaseRef)>,
    /// Streams whose sent leases are all to be looked up. A stream may hold a million, so they are collected only
    /// when it is their turn.
    streams: Vec<Arc<Stream>>,
}

/// Returns stale jobs to their shards, and returns the leases to look up, by shard. Yields between streams, because
/// each may hold ten thousand jobs.
async fn check_deadlines(streams: &StreamRegistry, now: Time, shards: usize) -> Vec<LeaseLookup> {
    let mut questions: Vec<_> = (0..shards).map(|_| LeaseLookup::default()).collect();
    for stream in streams.all() {
        let check = stream.ledger().check_deadlines(now);
        streams.check_timer.set_no_later_than(check.next_check);
        if !check.stale.is_empty() {
            let (stream, jobs) = (stream.name(), check.stale.len());
            tracing::info!(stream, jobs, "stream is not read; returning its unsent jobs");
        }
        streams.queue_returns(check.stale);
        if check.check_credit {
            questions.iter_mut().for_each(|question| question.streams.push(Arc::clone(&stream)));
        } else {
            for unsure in check.overdue {
                questions[unsure.shard].leases.push((stream.id(), unsure.lease));
            }
        }
        tokio::task::yield_now().await;
    }
    questions
}

/// Looks up leases on the shard. If the shard does not answer, requests a lookup of all its leases after a pause.
pub(in crate::dispatch) async fn look_up(
    settler: Settler,
    streams: Arc<StreamRegistry>,
    shard: usize,
    question: LeaseLookup,
) {
    let asking = LookupTask { settler, streams, shard };
    if asking.run(question).await.is_err() {
        asking.settler.shards().all()[shard].pause_before_retry(RETRY_DELAY).await;
        asking.streams.request_lookup(shard);
    }
}

struct LookupTask {
    settler: Settler,
    streams: Arc<StreamRegistry>,
    shard: usize,
}

// === impl LeaseLookup ===

impl LeaseLookup {
    /// Lookup of these leases.
    pub(in crate::dispatch) fn for_leases(leases: Vec<(u32, LeaseRef)>) -> LeaseLookup {
        LeaseLookup { leases, streams: Vec::new() }
    }

    fn is_empty(&self) -> bool {
        self.leases.is_empty() && self.streams.is_empty()
    }
}

// === impl LookupTask ===

impl LookupTask {
    async fn run(&self, question: LeaseLookup) -> shards::Result<()> {
        let mut part = Vec::new();
        for (stream, lease) in question.leases {
            part.push((stream, lease));
            self.look_up_if_full(&mut part).await?;
        }
        for stream in question.streams {
            let tokens = stream.ledger().sent_tokens(self.shard);
            let mut left = &tokens[..];
            while !left.is_empty() {
                let (some, others) =
                    left.split_at(left.len().min(limit::SCAN_PART_MAX - part.len()));
                left = others;
                let leases = stream.ledger().held_leases(some);
                part.extend(leases.into_iter().map(|lease| (stream.id(), lease)));
                self.look_up_if_full(&mut part).await?;
            }
            tokio::task::yield_now().await;
        }
        self.look_up_part(part).await
    }

    async fn look_up_if_full(&self, part: &mut Vec<(u32, LeaseRef)>) -> shards::Result<()> {
        if part.len() < limit::SCAN_PART_MAX {
            return Ok(());
        }
        self.look_up_part(std::mem::take(part)).await
    }

    /// Looks up at most as many leases as one call takes.
    async fn look_up_part(&self, part: Vec<(u32, LeaseRef)>) -> shards::Result<()> {
        if part.is_empty() {
            return Ok(());
        }
        let begin = Instant::now();
        let refs: Vec<_> = part.iter().map(|(_, lease)| lease.clone()).collect();
        let shard = &self.settler.shards().all()[self.shard];
        let statuses = self.settler.lease_statuses(shard, &refs).await?;
        let now = self.settler.clock().now();
        for ((stream, lease), status) in part.into_iter().zip(statuses) {
            match status {
                LeaseStatus::Running(left) => {
                    self.streams.on_extended(stream, &[lease.token], now.plus(left))
                }
                LeaseStatus::Settled => self.streams.on_ended(stream, &[lease.token]),
                LeaseStatus::Revoked => {
                    self.streams.revoke(
                        self.shard,
                        stream,
                        &[lease.token],
                        RevokeReason::LeaseExpired,
                    );
                }
            }
        }
        // A stream may hold a million leases, and no caller waits for this lookup: leave three quarters of the time
        // to deliveries.
        tokio::time::sleep(3 * begin.elapsed()).await;
        Ok(())
    }
}
