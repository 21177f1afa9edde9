//! How replicas of one queue learn of each other and of the ring, through their shards. Each shows every shard that it
//! lives, and reads there who else does, whether the shard takes new jobs, and which rings jobs may lie on. The ring
//! that it serves by that is recorded on every shard before a job is written by it.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use futures::future::join_all;
use tokio::sync::broadcast::error::RecvError;
use tokio::time::Instant;

use crate::clock::{Clock, Skew};
use crate::domain::open_rings::{self, OpenRings};
use crate::domain::ring::ShardState;
use crate::domain::{ShardName, limit};
use crate::store::{EventKind, Heartbeat, ShardEvent};

use super::op::Op;
use super::ring_state::{RingView, open_active_ring};
use super::{Shard, Shards};

/// Rounds in which shards are told of a change: what one says may be news for the others.
const ROUNDS_MAX: usize = 4;

/// That all replicas serve one ring, and since when.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RingAgreement(Instant);

// === impl Shards ===

impl Shards {
    /// Joins the other replicas of these shards as `owner`: reads what they know, and shows itself from
    /// then on, until [`Shards::close`]. To be called once, and before anything is written. `clock`: this server's, with
    /// which those of the shards are compared.
    pub async fn join(&self, owner: u32, clock: &Clock) {
        if self.inner.ring_state.owner.set(owner).is_err() {
            return;
        }
        let _ = self.inner.ring_state.clock.set(clock.clone());
        join_all(self.all().iter().map(|shard| self.exchange_state(owner, shard))).await;
        self.update_ring(owner).await;
        for shard in self.all() {
            tokio::spawn(self.clone().heartbeat_loop(owner, shard.clone()));
        }
    }

    /// Says, for all replicas, whether a shard takes new jobs. When this returns, this replica heeds it.
    ///
    /// # Errors
    /// As the store's.
    pub async fn set_state(
        &self,
        shard: &Shard,
        state: ShardState,
        until: Option<Instant>,
    ) -> super::Result<()> {
        shard.call(Op::SetState, |store| store.set_state(state, until)).await?;
        shard.set_state(state);
        let owner = self.inner.ring_state.owner.get().copied().unwrap_or_default();
        self.update_ring(owner).await;
        Ok(())
    }

    /// Whether each shard that has answered is served by another replica too, as far as it was seen last.
    #[must_use]
    pub fn are_all_served_by_others(&self) -> bool {
        let owner = self.inner.ring_state.owner.get();
        self.all().iter().filter_map(Shard::shared_state).all(|census| {
            // One that was only met has not shown itself.
            let mut living = census.replicas.iter().filter(|sign| sign.is_alive(census.now));
            living.any(|sign| sign.ring != 0 && Some(&sign.owner) != owner)
        })
    }

    /// The rings as they are now.
    pub(super) fn rings(&self) -> Arc<OpenRings> {
        self.inner.ring_state.rings()
    }

    /// Another number whenever the rings may have changed.
    #[must_use]
    pub fn ring_changes(&self) -> u64 {
        self.inner.ring_state.changes.load(Ordering::Acquire)
    }

    /// That former rings are open, that all replicas have agreed on the newest one for long enough, by what
    /// every shard says, and that it is for this replica to close the others: of all that live its nonce is the
    /// lowest. Where a shard is silent nobody knows what others serve.
    #[must_use]
    pub fn agreement(&self) -> Option<RingAgreement> {
        self.agreement_in(&self.inner.ring_state.known())
    }

    fn agreement_in(&self, known: &RingView) -> Option<RingAgreement> {
        let &owner = self.inner.ring_state.owner.get()?;
        let now = Instant::now();
        let is_heard =
            |shard: &Shard| !shard.is_shared() || known.disagreement.is_recent(shard.name(), now);
        let heard = self.all().iter().all(is_heard);
        let long =
            heard && now.duration_since(known.agreed_since) >= self.inner.timeouts.ring_agreement;
        let ours = self.all().iter().all(|shard| {
            shard.shared_state().is_some_and(|census| {
                let living = census.replicas.iter().filter(|sign| sign.is_alive(census.now));
                living.map(|sign| sign.owner).min() == Some(owner)
            })
        });
        (long && ours && self.rings().is_changing()).then_some(RingAgreement(known.agreed_since))
    }

    /// How long it takes at least until there is an agreement that there is not yet; zero where there may be one.
    #[must_use]
    pub fn until_agreement(&self) -> Duration {
        let agreed = self.inner.ring_state.known().agreed_since;
        self.inner.timeouts.ring_agreement.saturating_sub(agreed.elapsed())
    }

    /// Whether a job may lie on this shard whose id its client chose, or come to lie there: it is on an open ring.
    #[must_use]
    pub fn is_on_ring(&self, shard: &ShardName) -> bool {
        let known = self.inner.ring_state.known();
        known.records.iter().any(|(members, mark)| mark.open && members.contains(shard))
    }

    /// Whether a former ring may be closed at all, once no job is left that only it finds.
    #[must_use]
    pub fn may_close_rings(&self) -> bool {
        !self.inner.ring_state.known().closable().is_empty()
    }

    /// Closes all rings that may be closed, if what was agreed on still is.
    pub async fn close_former_rings(&self, agreement: RingAgreement) {
        let close = |known: &mut RingView| {
            for ring in known.closable() {
                open_rings::close_ring(&mut known.records, &ring);
                tracing::info!(%ring, "a former ring is closed: no job is left that only it finds");
            }
        };
        self.close_rings_if_agreed(agreement, close).await;
    }

    /// Takes a shard that is empty and takes no new jobs off all former rings, if what was agreed on still is.
    pub async fn remove_from_former_rings(&self, agreement: RingAgreement, shard: &ShardName) {
        let leave = |known: &mut RingView| {
            if known.served.contains(shard) {
                return;
            }
            for ring in open_rings::remove_shard(&mut known.records, shard) {
                tracing::info!(%shard, %ring, "a shard that is empty leaves a former ring");
            }
        };
        self.close_rings_if_agreed(agreement, leave).await;
    }

    async fn close_rings_if_agreed(
        &self,
        agreement: RingAgreement,
        close: impl FnOnce(&mut RingView),
    ) {
        let council = &self.inner.ring_state;
        {
            let mut known = council.known();
            // A shard may be silent by now, or a replica have come.
            if self.agreement_in(&known) != Some(agreement) {
                return;
            }
            close(&mut known);
        }
        self.update_ring(council.owner.get().copied().unwrap_or_default()).await;
    }

    /// Shows this replica to one shard again and again.
    async fn heartbeat_loop(self, owner: u32, shard: Shard) {
        let leaving = self.inner.ring_state.shutdown.clone();
        let mut events = shard.events(EventKind::Shard);
        let attend = async {
            loop {
                // Two of them are lost before anybody takes this replica for dead.
                let pause = tokio::time::sleep(limit::REPLICA_HEARTBEAT);
                tokio::select! {
                    () = pause, if shard.is_shared() => {}
                    () = shard.heartbeat_requested() => {}
                    () = async { while !wants_heartbeat(events.recv().await) {} } => {}
                }
                while !self.send_heartbeat(owner, &shard).await {
                    shard.pause_before_retry(limit::REPLICA_HEARTBEAT).await;
                }
            }
        };
        tokio::select! {
            () = leaving.cancelled() => {}
            () = attend => {}
        }
    }

    /// Shows this replica to one shard; whether that has answered. What follows from the answer is done
    /// beside: it may have to wait for other shards, and the next sign of life must not.
    async fn send_heartbeat(&self, owner: u32, shard: &Shard) -> bool {
        let follows = self.exchange_state(owner, shard).await;
        if follows == Some(true) {
            let shards = self.clone();
            tokio::spawn(async move { shards.update_ring(owner).await });
        }
        follows.is_some()
    }

    /// Shows this replica to one shard; whether anything follows from the answer, if there was one.
    async fn exchange_state(&self, owner: u32, shard: &Shard) -> Option<bool> {
        if self.inner.ring_state.shutdown.is_cancelled() {
            return None;
        }
        let beat = self.inner.ring_state.heartbeat(owner, shard);
        let (met, gone) = (beat.seen_owners.clone(), beat.removed_owners.clone());
        let clock = self.inner.ring_state.clock.get();
        let sent = clock.map(Clock::now);
        let census = shard.heartbeat(beat).await.ok()?;
        if let (Some(clock), Some(sent)) = (clock, sent) {
            shard.compare_clocks(Skew::at_least(sent, census.now, clock.now()));
        }
        shard.clear_peer_updates(&met, &gone);
        shard.set_state(census.state);
        shard.set_shared_state(census.clone());
        Some(self.inner.ring_state.apply_shared_state(owner, self.all(), shard, &census))
    }

    /// Serves the ring that follows from what is known, once every shard that answers has it on record.
    async fn update_ring(&self, owner: u32) {
        let council = &self.inner.ring_state;
        let _one = council.change_lock.lock().await;
        let mut silent: Vec<ShardName> = Vec::new();
        let mut served = open_active_ring(&mut council.known().records, self.all());
        for _ in 0..ROUNDS_MAX {
            let lacking: Vec<&Shard> = {
                let mut known = council.known();
                served = open_active_ring(&mut known.records, self.all());
                let lacks = |shard: &&Shard| {
                    let census = shard.shared_state();
                    census.is_some_and(|c| {
                        !open_rings::missing_records(&c.rings, &known.records).is_empty()
                    })
                };
                let answering = self.all().iter().filter(|shard| !silent.contains(shard.name()));
                answering.filter(lacks).collect()
            };
            if lacking.is_empty() {
                break;
            }
            let asked = lacking.iter().map(|shard| self.exchange_state(owner, shard));
            let answers = join_all(asked).await;
            let failed = lacking.iter().zip(answers).filter(|(_, answer)| answer.is_none());
            silent.extend(failed.map(|(shard, _)| shard.name().clone()));
        }
        council.serve(self.all(), served);
    }

    /// Tells every shared shard that nothing of this replica is left, where that is so: the leases of a
    /// stream that broke a moment ago are given back by those who find this replica silent.
    pub(super) async fn announce_leave(&self) {
        let council = &self.inner.ring_state;
        council.shutdown.cancel();
        let Some(&owner) = council.owner.get() else { return };
        let bye = async |shard: &Shard| {
            let census = shard.shared_state();
            let known = census.iter().flat_map(|census| &census.replicas).map(|sign| sign.owner);
            let others = known.filter(|&other| other != owner).collect();
            // What fails is found out by the others.
            let Ok(left) = shard.orphans(others).await else { return };
            if left.iter().all(|lease| lease.owner != owner) {
                let beat =
                    Heartbeat { removed_owners: vec![owner], ..council.heartbeat(owner, shard) };
                let _ = shard.heartbeat(beat).await;
            }
        };
        let shared = self.all().iter().filter(|shard| shard.is_shared() && !shard.is_down());
        join_all(shared.map(bye)).await;
    }
}

/// Whether a shard should be asked at once.
fn wants_heartbeat(event: Result<ShardEvent, RecvError>) -> bool {
    match event {
        Ok(ShardEvent::StateSet | ShardEvent::EventsMissed) | Err(RecvError::Lagged(_)) => true,
        Ok(_) => false,
        // The shard is closed, and this task about to be.
        Err(RecvError::Closed) => true,
    }
}
