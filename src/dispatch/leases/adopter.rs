//! Moves the leases of a worker to its next stream: from streams of this replica that are over, and from a stream
//! that the worker names and the store has leases of. A lease moves in the store first, then in the ledgers; a settle
//! or extend in between is found by a lookup.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use futures::StreamExt as _;
use futures::stream::FuturesUnordered;
use parking_lot::Mutex;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::backoff::{Backoff, BackoffRange};
use crate::dispatch::streams::adoption_queue::{AdoptionGate, AdoptionRequest, AdoptionSource};
use crate::dispatch::streams::ledger::{StreamEnd, StreamLease};
use crate::dispatch::streams::registry::StreamRegistry;
use crate::dispatch::streams::stream::Stream;
use crate::domain::credit::{CreditAmount, CreditedLease};
use crate::domain::engine::{Adopt, Command};
use crate::domain::{StreamId, Time, limit};
use crate::scheduler::Settler;
use crate::shards::Shard;
use crate::store::{JobRequest, LeaseRef, RequestResult, RunningLease};

use super::{detach, orphan_release, watch};

/// First and longest pause after a failed call, and between two lookups of leases that another replica has not
/// detached yet.
const RETRY_DELAYS: BackoffRange =
    BackoffRange { min: Duration::from_millis(250), max: Duration::from_secs(4) };
/// Longest search for such leases while the shard answers. Covers the time until a killed replica is noticed and its
/// leases are released or detached.
const STORE_SEARCH_MAX: Duration = limit::REPLICA_SILENCE_MAX.saturating_mul(2);
/// State shared by the adoption requests of one shard.
struct LeaseAdopter<'a> {
    settler: &'a Settler,
    shard: &'a Shard,
    streams: &'a Arc<StreamRegistry>,
    stop: &'a CancellationToken,
    /// Requests for leases of other replicas. One scan of all leases serves all that wait.
    store_requests: Mutex<Vec<(AdoptionRequest, StreamId)>>,
    search_lock: tokio::sync::Mutex<()>,
}

/// Serves the adoption requests of one shard until `stop`.
pub(in crate::dispatch) async fn run(
    settler: Settler,
    shard: Shard,
    streams: Arc<StreamRegistry>,
    stop: CancellationToken,
) {
    let adopter = LeaseAdopter {
        settler: &settler,
        shard: &shard,
        streams: &streams,
        stop: &stop,
        store_requests: Mutex::default(),
        search_lock: tokio::sync::Mutex::default(),
    };
    let adoptions = &streams.adoptions[shard.index()];
    let mut under_way = FuturesUnordered::new();
    loop {
        tokio::select! {
            () = stop.cancelled() => return,
            () = adoptions.wait_added() => {}
            Some(()) = under_way.next() => continue,
        }
        for search in adoptions.take() {
            under_way.push(adopter.handle(search));
        }
    }
}

// === impl LeaseAdopter ===

impl LeaseAdopter<'_> {
    async fn handle(&self, search: AdoptionRequest) {
        match search.from {
            AdoptionSource::Local(from) => {
                self.adopt_local(search.successor, from, search.first_lookup).await
            }
            AdoptionSource::Store(from) => {
                self.store_requests.lock().push((search, from));
                self.search_store().await;
            }
        }
    }

    // --- streams of this replica

    /// Adopts the leases of a stream of this replica. Retries a failed call as long as the stream holds leases.
    async fn adopt_local(
        &self,
        successor: Arc<Stream>,
        from: Arc<Stream>,
        mut first_look: Option<Arc<AdoptionGate>>,
    ) {
        let mut pauses = Backoff::new(RETRY_DELAYS);
        loop {
            let leases = self.remaining_leases(&from, &successor);
            if leases.is_empty() {
                return;
            }
            let tokens: Vec<_> = leases.iter().map(|(lease, _)| lease.token).collect();
            if let Ok(adopted) = self.adopt(&successor, from.stream_id(), leases).await {
                let moved = tokens.into_iter().zip(adopted).filter(|(_, adopted)| *adopted);
                let tokens: Vec<_> = moved.map(|(token, _)| token).collect();
                let origin = from.stream_id();
                let mut adopted = self.streams.remove_adopted(&from, &tokens);
                for counted in &mut adopted {
                    counted.value.origin.get_or_insert(origin);
                }
                return self.record_adopted(&successor, adopted).await;
            }
            drop(first_look.take());
            if !self.wait_before_retry(&mut pauses).await {
                return;
            }
        }
    }

    /// Returns the remaining leases of the stream on this shard, each with the oldest accepted time of its last Extend, for
    /// one that was not detached. If the worker never received the id of this stream,
    /// leases that the stream had itself adopted move without the check for a recent Extend: the worker had extended
    /// them before that.
    fn remaining_leases(&self, from: &Stream, successor: &Stream) -> Vec<(LeaseRef, Option<Time>)> {
        let never_received = from.continues_same(successor);
        let ledger = from.ledger();
        let skew = self.streams.skew(self.shard.index());
        let extended_since =
            ledger.broke_at.map(|at| skew.to_shard(at.minus(limit::EXTEND_BEFORE_BREAK)));
        let adoptee = |held: StreamLease| {
            let since = extended_since.filter(|_| !(never_received && held.origin.is_some()));
            (held.lease, since)
        };
        let leases = ledger.sent_leases(self.shard.index()).into_iter();
        leases.filter(|held| successor.may_hold(&held.lease.key.topic)).map(adoptee).collect()
    }

    // --- streams that the store has leases of

    /// Reads the leases for all waiting requests, unless a scan that began later has served them.
    async fn search_store(&self) {
        let looking = self.search_lock.lock().await;
        let searches = std::mem::take(&mut *self.store_requests.lock());
        if searches.is_empty() {
            return;
        }
        let ids: Vec<StreamId> = searches.iter().map(|(_, from)| *from).collect();
        let mut pauses = Backoff::new(RETRY_DELAYS);
        let leases = loop {
            match self.shard.leases_of(ids.clone()).await {
                Ok(leases) => break leases,
                Err(_) => {
                    searches
                        .iter()
                        .filter_map(|(search, _)| search.first_lookup.as_ref())
                        .for_each(|look| look.announce_once());
                    if !self.wait_before_retry(&mut pauses).await {
                        return;
                    }
                }
            }
        };
        drop(looking);
        let mut by_stream: HashMap<StreamId, Vec<RunningLease>> = HashMap::new();
        for lease in leases {
            by_stream.entry(lease.stream_id()).or_default().push(lease);
        }
        let found = searches.into_iter().map(|(search, from)| {
            let mut leases = by_stream.get(&from).cloned().unwrap_or_default();
            // The store does not know the identity of a worker on another replica, but its topics.
            leases.retain(|lease| {
                lease.worker == *search.successor.options().worker_id
                    && search.successor.may_hold(&lease.key.topic)
            });
            self.adopt_from_store(search.successor, from, leases, search.first_lookup)
        });
        found.collect::<FuturesUnordered<_>>().collect::<()>().await;
    }

    /// Adopts these leases. Some can be adopted only after their replica has detached them.
    async fn adopt_from_store(
        &self,
        successor: Arc<Stream>,
        from: StreamId,
        mut leases: Vec<RunningLease>,
        mut first_look: Option<Arc<AdoptionGate>>,
    ) {
        let read = self.settler.clock().now();
        let mut until = Instant::now() + STORE_SEARCH_MAX;
        let mut pauses = Backoff::new(RETRY_DELAYS);
        while !leases.is_empty() && Instant::now() < until {
            let since = |lease: &RunningLease| (lease.lease_ref(), Some(oldest_extend(lease)));
            let named = leases.iter().map(since).collect();
            if let Ok(adopted) = self.adopt(&successor, from, named).await {
                let mut adopted = adopted.into_iter();
                let taken: Vec<RunningLease> =
                    leases.extract_if(.., |_| adopted.next() == Some(true)).collect();
                let shard = self.shard.index();
                let taken = taken.into_iter().map(|lease| {
                    let origin = Some(lease.stream_id());
                    let deadline = read.plus(lease.deadline.since(lease.now));
                    let cost = CreditAmount::of_job(lease.bytes);
                    let lease = LeaseRef { key: lease.key, token: lease.token };
                    CreditedLease::sent(
                        cost,
                        StreamLease { lease, shard, claimed_at: None, deadline, origin },
                    )
                });
                self.record_adopted(&successor, taken.collect()).await;
            } else {
                // The store may have applied the call: only a response confirms or denies it.
                until = Instant::now() + STORE_SEARCH_MAX;
            }
            drop(first_look.take());
            if !leases.is_empty() && !self.wait_before_retry(&mut pauses).await {
                return;
            }
        }
    }

    // --- both

    /// Moves leases of the stream `from` to the successor, and returns for each whether it moved: not if it has ended, if
    /// another stream holds it, or if it is neither detached nor extended as required.
    async fn adopt(
        &self,
        successor: &Stream,
        from: StreamId,
        leases: Vec<(LeaseRef, Option<Time>)>,
    ) -> crate::shards::Result<Vec<bool>> {
        let to = successor.stream_id();
        let grace = successor.options().orphan_grace;
        let adopt = |(LeaseRef { key, token }, since)| {
            JobRequest::new(key, Command::Adopt(Adopt { token, from, to, grace, since }))
        };
        let adopted = self.shard.apply_all(leases.into_iter().map(adopt).collect()).await?;
        Ok(adopted.iter().map(RequestResult::is_done).collect())
    }

    /// Enters leases in the ledger of the successor after the store has moved them. If the successor is over by now,
    /// its leases are detached or released like those that it was sent. Leases that have ended meanwhile are found by
    /// a lookup, because the successor received no event for them.
    async fn record_adopted(
        &self,
        successor: &Arc<Stream>,
        adopted: Vec<CreditedLease<StreamLease>>,
    ) {
        if adopted.is_empty() {
            return;
        }
        let shard = self.shard.index();
        let leases: Vec<StreamLease> =
            adopted.iter().map(|counted| counted.value.clone()).collect();
        let (stream, jobs) = (successor.name(), leases.len());
        tracing::debug!(shard = %self.shard.name(), stream, jobs, "leases moved to the worker's next stream");
        let unsure = leases.iter().map(|held| (successor.id(), held.lease.clone())).collect();
        let over = self.streams.adopt(successor, adopted);
        let unsure = watch::LeaseLookup::for_leases(unsure);
        watch::look_up(self.settler.clone(), Arc::clone(self.streams), shard, unsure).await;
        match over {
            StreamEnd::StillOpen => {}
            StreamEnd::Ended => {
                let (shard, stop) = (self.shard.clone(), self.stop.clone());
                detach::run(shard, successor.stream_id(), leases, stop).await;
            }
            StreamEnd::Broken => {
                let now = self.settler.clock().now();
                let (settler, shard) = (self.settler.clone(), self.shard.clone());
                let from = orphan_release::BrokenStream::of(successor, now);
                let stop = self.stop.clone();
                orphan_release::release_of_stream(settler, shard, leases, from, stop).await;
            }
        }
        self.streams.queue_adoption(shard, successor);
    }

    /// Waits before a retry. Returns false when the task is to stop.
    async fn wait_before_retry(&self, pauses: &mut Backoff) -> bool {
        tokio::select! {
            () = self.shard.pause_before_retry(pauses.next_delay()) => true,
            () = self.stop.cancelled() => false,
        }
    }
}

/// Returns the oldest accepted time of the last Extend of a lease of another replica. If the lease is tied to its stream,
/// this replica cannot check whether that stream is broken. But a lease that was extended within the time in which a broken
/// stream is noticed and released belongs to the worker.
fn oldest_extend(lease: &RunningLease) -> Time {
    lease.now.minus(limit::REPLICA_SILENCE_MAX + lease.grace.unwrap_or_default())
}
