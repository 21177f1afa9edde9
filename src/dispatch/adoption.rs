//! Ties what a worker holds to its next stream: of streams of this replica that are over, and of those that it names
//! and that the store knows. A lease moves in the store first, then in the books; what became of it in between is
//! looked up.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use futures::StreamExt as _;
use futures::stream::FuturesUnordered;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::domain::credit::{Amount, Counted};
use crate::domain::{StreamId, limit};
use crate::pauses::Pauses;
use crate::scheduler::Scheduler;
use crate::shards::Shard;
use crate::store::{Adopt, Adoptee, Lease, LeaseRef, Tied};

use super::adoptions::{FirstLook, From, Search};
use super::ledger::{Over, StreamLease};
use super::stream::Stream;
use super::streams::Streams;
use super::{detach, orphans, watch};

/// First and longest pause after a failed call, and between two questions for leases of another replica that it may
/// detach yet.
const PAUSES: (Duration, Duration) = (Duration::from_millis(250), Duration::from_secs(4));
/// How long those are asked for while the shard answers: until a replica that was killed is noticed, and its leases are
/// released or detached.
const ELSEWHERE_MAX: Duration = limit::REPLICA_SILENCE_MAX.saturating_mul(2);
/// What the searches of one shard share.
struct Adopter<'a> {
    scheduler: &'a Scheduler,
    shard: &'a Shard,
    streams: &'a Arc<Streams>,
    stop: &'a CancellationToken,
    /// Searches for leases of other replicas: one look at all leases serves those that wait.
    elsewhere: Mutex<Vec<(Search, StreamId)>>,
    looking: tokio::sync::Mutex<()>,
}

/// Serves the searches of one shard until `stop`.
pub(super) async fn run(
    scheduler: Scheduler,
    shard: Shard,
    streams: Arc<Streams>,
    stop: CancellationToken,
) {
    let adopter = Adopter {
        scheduler: &scheduler,
        shard: &shard,
        streams: &streams,
        stop: &stop,
        elsewhere: Mutex::default(),
        looking: tokio::sync::Mutex::default(),
    };
    let adoptions = &streams.adoptions[shard.index()];
    let mut under_way = FuturesUnordered::new();
    loop {
        tokio::select! {
            () = stop.cancelled() => return,
            () = adoptions.added() => {}
            Some(()) = under_way.next() => continue,
        }
        for search in adoptions.take() {
            under_way.push(adopter.serve(search));
        }
    }
}

fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

// === impl Adopter ===

impl Adopter<'_> {
    async fn serve(&self, search: Search) {
        match search.from {
            From::Here(from) => self.here(search.heir, from, search.first_look).await,
            From::Elsewhere(from) => {
                lock(&self.elsewhere).push((search, from));
                self.look_elsewhere().await;
            }
        }
    }

    // --- streams of this replica

    /// Repeats a failing call as long as the stream holds something.
    async fn here(
        &self,
        heir: Arc<Stream>,
        from: Arc<Stream>,
        mut first_look: Option<Arc<FirstLook>>,
    ) {
        let mut pauses = Pauses::new(PAUSES.0, PAUSES.1);
        loop {
            let items = self.left_of(&from, &heir);
            if items.is_empty() {
                return;
            }
            let tokens: Vec<_> = items.iter().map(|item| item.tied.lease.token).collect();
            if let Ok(adopted) = self.adopt(&heir, items).await {
                let moved = tokens.into_iter().zip(adopted).filter(|(_, adopted)| *adopted);
                let tokens: Vec<_> = moved.map(|(token, _)| token).collect();
                let origin = from.stream_id();
                let mut adopted = self.streams.hand_over(&from, &tokens);
                for counted in &mut adopted {
                    counted.value.origin.get_or_insert(origin);
                }
                return self.take_in(&heir, adopted).await;
            }
            drop(first_look.take());
            if !self.pause(&mut pauses).await {
                return;
            }
        }
    }

    /// What is left of the stream on this shard. A worker that has never heard of this stream had spoken for what it
    /// had adopted before that.
    fn left_of(&self, from: &Stream, heir: &Stream) -> Vec<Adoptee> {
        let is_unheard = from.is_sibling(heir);
        let ledger = from.ledger();
        let skew = self.streams.skew(self.shard.index());
        let spoken_for = ledger.broke.map(|at| skew.there(at.minus(limit::EXTEND_BEFORE_BREAK)));
        let adoptee = |held: StreamLease| Adoptee {
            tied: Tied { lease: held.lease, stream: from.stream_id() },
            since: spoken_for.filter(|_| !(is_unheard && held.origin.is_some())),
        };
        ledger.sent_on(self.shard.index()).into_iter().map(adoptee).collect()
    }

    // --- streams that the store knows

    /// Looks for the leases of all that wait, unless a look that began later than this serves them.
    async fn look_elsewhere(&self) {
        let looking = self.looking.lock().await;
        let searches = std::mem::take(&mut *lock(&self.elsewhere));
        if searches.is_empty() {
            return;
        }
        let ids: Vec<StreamId> = searches.iter().map(|(_, from)| *from).collect();
        let mut pauses = Pauses::new(PAUSES.0, PAUSES.1);
        let leases = loop {
            match self.shard.leases_of(ids.clone()).await {
                Ok(leases) => break leases,
                Err(_) => {
                    searches
                        .iter()
                        .filter_map(|(search, _)| search.first_look.as_ref())
                        .for_each(|look| look.end());
                    if !self.pause(&mut pauses).await {
                        return;
                    }
                }
            }
        };
        drop(looking);
        let mut by_stream: HashMap<StreamId, Vec<Lease>> = HashMap::new();
        for lease in leases {
            by_stream.entry(lease.stream_id()).or_default().push(lease);
        }
        let found = searches.into_iter().map(|(search, from)| {
            let mut leases = by_stream.get(&from).cloned().unwrap_or_default();
            leases.retain(|lease| lease.worker == *search.heir.options().worker_id);
            self.elsewhere(search.heir, leases, search.first_look)
        });
        found.collect::<FuturesUnordered<_>>().collect::<()>().await;
    }

    /// Adopts these leases, some maybe not before their replica detaches them.
    async fn elsewhere(
        &self,
        heir: Arc<Stream>,
        mut leases: Vec<Lease>,
        mut first_look: Option<Arc<FirstLook>>,
    ) {
        let read = self.scheduler.clock().now();
        let mut until = Instant::now() + ELSEWHERE_MAX;
        let mut pauses = Pauses::new(PAUSES.0, PAUSES.1);
        while !leases.is_empty() && Instant::now() < until {
            let items = leases.iter().map(adoptee).collect();
            if let Ok(adopted) = self.adopt(&heir, items).await {
                let mut adopted = adopted.into_iter();
                let taken: Vec<Lease> =
                    leases.extract_if(.., |_| adopted.next() == Some(true)).collect();
                let shard = self.shard.index();
                let taken = taken.into_iter().map(|lease| {
                    let origin = Some(lease.stream_id());
                    let deadline = read.plus(lease.deadline.since(lease.now));
                    let cost = Amount::of_job(lease.bytes);
                    let lease = LeaseRef { key: lease.key, token: lease.token };
                    Counted::sent(cost, StreamLease { lease, shard, since: None, deadline, origin })
                });
                self.take_in(&heir, taken.collect()).await;
            } else {
                // They may be the heir's by now: only an answer tells.
                until = Instant::now() + ELSEWHERE_MAX;
            }
            drop(first_look.take());
            if !leases.is_empty() && !self.pause(&mut pauses).await {
                return;
            }
        }
    }

    // --- both

    async fn adopt(&self, heir: &Stream, items: Vec<Adoptee>) -> crate::shards::Result<Vec<bool>> {
        let (to, grace) = (heir.stream_id(), heir.options().orphan_grace);
        self.shard.adopt(Adopt { to, grace, items }).await
    }

    /// The leases are the heir's in the store. It may be over already: then it answers for them as for all that it was
    /// sent. And they may be over, which the heir did not hear.
    async fn take_in(&self, heir: &Arc<Stream>, adopted: Vec<Counted<StreamLease>>) {
        if adopted.is_empty() {
            return;
        }
        let shard = self.shard.index();
        let leases: Vec<StreamLease> =
            adopted.iter().map(|counted| counted.value.clone()).collect();
        let (stream, jobs) = (heir.name(), leases.len());
        tracing::debug!(shard = %self.shard.name(), stream, jobs, "a stream adopts leases");
        let unsure = leases.iter().map(|held| (heir.id(), held.lease.clone())).collect();
        let over = self.streams.adopt(heir, adopted);
        let unsure = watch::Question::about(unsure);
        watch::ask(self.scheduler.clone(), Arc::clone(self.streams), shard, unsure).await;
        match over {
            Over::Not => {}
            Over::Ended => {
                let (shard, stop) = (self.shard.clone(), self.stop.clone());
                detach::run(shard, heir.stream_id(), leases, stop).await;
            }
            Over::Broken => {
                let now = self.scheduler.clock().now();
                let alive = heir.ledger().broke.unwrap_or(now);
                let (scheduler, shard) = (self.scheduler.clone(), self.shard.clone());
                let (from, stop) = (
                    orphans::Broken { stream: heir.stream_id(), at: now, alive },
                    self.stop.clone(),
                );
                orphans::of_stream(scheduler, shard, leases, from, stop).await;
            }
        }
        self.streams.follow(shard, heir);
    }

    /// Waits before a call is repeated; whether it is to be.
    async fn pause(&self, pauses: &mut Pauses) -> bool {
        tokio::select! {
            () = self.shard.wait_out(pauses.pause()) => true,
            () = self.stop.cancelled() => false,
        }
    }
}

/// A lease of another replica. If it is tied to its stream, nobody here knows whether that is broken; but one that its
/// worker has extended within the time in which a broken one is noticed and released is the worker's.
fn adoptee(lease: &Lease) -> Adoptee {
    let noticed = limit::REPLICA_SILENCE_MAX + lease.grace.unwrap_or_default();
    Adoptee { tied: lease.tied(), since: Some(lease.now.minus(noticed)) }
}
