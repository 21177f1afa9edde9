//! Membership: replicas of one queue find each other and agree on the ring through their shards. Each sends
//! heartbeats to every shard, and reads there which other replicas live, whether the shard takes new jobs, and which
//! rings may have jobs. The ring that a replica serves is recorded on every shard before a job is written by it.

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
use crate::store::{EventKind, Heartbeat, ReplicaHeartbeat, ShardEvent};

use super::op::Op;
use super::ring_state::{RingView, open_active_ring};
use super::{Shard, Shards};

/// Number of rounds in which a change is sent to shards: the answer of one may be news for the others.
const ROUNDS_MAX: usize = 4;

/// Agreement of all replicas on one ring, with the time since when they serve it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RingAgreement(Instant);

// === impl Shards ===

impl Shards {
    /// Joins the other replicas of these shards as `owner`: reads their shared state, and sends heartbeats until
    /// [`Shards::close`]. To be called once, before anything is written. `clock`: this server's, compared with those
    /// of the shards.
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

    /// Sets, for all replicas, whether a shard takes new jobs. This replica applies it before the call returns.
    ///
    /// # Errors
    /// Errors of the store.
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

    /// Returns whether each shard that has answered is served by another replica too, by its last answer.
    #[must_use]
    pub fn are_all_served_by_others(&self) -> bool {
        let owner = self.inner.ring_state.owner.get();
        self.all().iter().filter_map(Shard::shared_state).all(|shared_state| {
            // A replica without a ring is known by its leases alone: it has sent no heartbeat.
            let mut living =
                shared_state.replicas.iter().filter(|sign| sign.is_alive(shared_state.now));
            living.any(|sign| sign.ring != 0 && Some(&sign.owner) != owner)
        })
    }

    /// Returns the number of live replicas, this one included, by the last answers of the shards; the largest number, if
    /// they differ.
    #[must_use]
    pub fn live_replicas(&self) -> usize {
        let own = self.inner.ring_state.owner.get();
        let others = |shard: &Shard| {
            let shared_state = shard.shared_state()?;
            // A replica without a ring is known by its leases alone: it has sent no heartbeat.
            let is_other = |sign: &&ReplicaHeartbeat| {
                sign.ring != 0 && sign.is_alive(shared_state.now) && Some(&sign.owner) != own
            };
            Some(shared_state.replicas.iter().filter(is_other).count())
        };
        1 + self.all().iter().filter_map(others).max().unwrap_or(0)
    }

    /// Returns whether other replicas serve shards that are not configured here, or did so in the last 10 min.
    #[must_use]
    pub fn others_serve_more(&self) -> bool {
        !self.inner.ring_state.known().peer_rings.recent.is_empty()
    }

    /// Returns the rings that calls use now.
    pub(super) fn rings(&self) -> Arc<OpenRings> {
        self.inner.ring_state.rings()
    }

    /// Returns a counter that changes whenever the rings may have changed.
    #[must_use]
    pub fn ring_changes(&self) -> u64 {
        self.inner.ring_state.changes.load(Ordering::Acquire)
    }

    /// Returns an agreement if former rings are open, all replicas have served the newest one for long enough by the
    /// answers of every shard, and this replica is to close the others: its nonce is the lowest of all live replicas.
    /// `None` while a shard is silent, because the rings that others serve are not known then.
    #[must_use]
    pub fn agreement(&self) -> Option<RingAgreement> {
        self.agreement_in(&self.inner.ring_state.known())
    }

    fn agreement_in(&self, known: &RingView) -> Option<RingAgreement> {
        let &owner = self.inner.ring_state.owner.get()?;
        let now = Instant::now();
        let is_recent =
            |shard: &Shard| !shard.is_shared() || known.disagreement.is_recent(shard.name(), now);
        let recent = self.all().iter().all(is_recent);
        let long =
            recent && now.duration_since(known.agreed_since) >= self.inner.timeouts.ring_agreement;
        let ours = self.all().iter().all(|shard| {
            shard.shared_state().is_some_and(|shared_state| {
                let living =
                    shared_state.replicas.iter().filter(|sign| sign.is_alive(shared_state.now));
                living.map(|sign| sign.owner).min() == Some(owner)
            })
        });
        (long && ours && self.rings().is_changing()).then_some(RingAgreement(known.agreed_since))
    }

    /// Returns the shortest time until there can be an agreement; zero if there may be one now.
    #[must_use]
    pub fn until_agreement(&self) -> Duration {
        let agreed = self.inner.ring_state.known().agreed_since;
        self.inner.timeouts.ring_agreement.saturating_sub(agreed.elapsed())
    }

    /// Returns whether the shard is on an open ring: jobs with ids that clients chose may be on it, or be written to
    /// it.
    #[must_use]
    pub fn is_on_ring(&self, shard: &ShardName) -> bool {
        let known = self.inner.ring_state.known();
        known.records.iter().any(|(members, mark)| mark.open && members.contains(shard))
    }

    /// Returns whether any former ring may be closed once no job is left that only it finds.
    #[must_use]
    pub fn may_close_rings(&self) -> bool {
        !self.inner.ring_state.known().closable().is_empty()
    }

    /// Closes all rings that may be closed, if `agreement` still holds.
    pub async fn close_former_rings(&self, agreement: RingAgreement) {
        let close = |known: &mut RingView| {
            for ring in known.closable() {
                open_rings::close_ring(&mut known.records, &ring);
                tracing::info!(%ring, "a former ring is closed: no job is left that only it finds");
            }
        };
        self.close_rings_if_agreed(agreement, close).await;
    }

    /// Removes a shard that is empty and takes no new jobs from all former rings, if `agreement` still holds.
    pub async fn remove_from_former_rings(&self, agreement: RingAgreement, shard: &ShardName) {
        let leave = |known: &mut RingView| {
            if known.served.contains(shard) {
                return;
            }
            for ring in open_rings::remove_shard(&mut known.records, shard) {
                tracing::info!(%shard, %ring, "an empty shard was removed from a former ring");
            }
        };
        self.close_rings_if_agreed(agreement, leave).await;
    }

    async fn close_rings_if_agreed(
        &self,
        agreement: RingAgreement,
        close: impl FnOnce(&mut RingView),
    ) {
        let ring_state = &self.inner.ring_state;
        {
            let mut known = ring_state.known();
            // A shard may have gone silent meanwhile, or a replica may have joined.
            if self.agreement_in(&known) != Some(agreement) {
                return;
            }
            close(&mut known);
        }
        self.update_ring(ring_state.owner.get().copied().unwrap_or_default()).await;
    }

    /// Sends heartbeats to one shard until this replica leaves.
    async fn heartbeat_loop(self, owner: u32, shard: Shard) {
        let leaving = self.inner.ring_state.shutdown.clone();
        let mut events = shard.events(EventKind::Shard);
        let attend = async {
            loop {
                // Two heartbeats may be lost before another replica takes this one for dead.
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

    /// Sends one heartbeat to a shard. Returns whether the shard answered. The ring is updated in a task of its own:
    /// that may have to wait for other shards, and the next heartbeat must not.
    async fn send_heartbeat(&self, owner: u32, shard: &Shard) -> bool {
        let follows = self.exchange_state(owner, shard).await;
        if follows == Some(true) {
            let shards = self.clone();
            tokio::spawn(async move { shards.update_ring(owner).await });
        }
        follows.is_some()
    }

    /// Sends one heartbeat to a shard and applies its answer. Returns whether the ring must be updated; `None`
    /// without an answer.
    async fn exchange_state(&self, owner: u32, shard: &Shard) -> Option<bool> {
        if self.inner.ring_state.shutdown.is_cancelled() {
            return None;
        }
        let beat = self.inner.ring_state.heartbeat(owner, shard);
        let (seen, gone) = (beat.seen_owners.clone(), beat.removed_owners.clone());
        let clock = self.inner.ring_state.clock.get();
        let sent = clock.map(Clock::now);
        let beat = shard.call(Op::Heartbeat, |store| store.heartbeat(beat));
        let shared_state = beat.await.ok()?;
        if let (Some(clock), Some(sent)) = (clock, sent) {
            shard.compare_clocks(Skew::at_least(sent, shared_state.now, clock.now()));
        }
        shard.clear_peer_updates(&seen, &gone);
        shard.set_state(shared_state.state);
        if let Some(loss) = shard.shared_state().and_then(|before| shared_state.lost_since(&before))
        {
            shard.note_data_loss(loss);
        }
        shard.set_shared_state(shared_state.clone());
        Some(self.inner.ring_state.apply_shared_state(owner, self.all(), shard, &shared_state))
    }

    /// Serves the ring that follows from the known records, once every shard that answers has it on record.
    async fn update_ring(&self, owner: u32) {
        let ring_state = &self.inner.ring_state;
        let _one = ring_state.change_lock.lock().await;
        let mut silent: Vec<ShardName> = Vec::new();
        let mut served = open_active_ring(&mut ring_state.known().records, self.all());
        for _ in 0..ROUNDS_MAX {
            let lacking: Vec<&Shard> = {
                let mut known = ring_state.known();
                served = open_active_ring(&mut known.records, self.all());
                let lacks = |shard: &&Shard| {
                    let shared_state = shard.shared_state();
                    shared_state.is_some_and(|c| {
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
        ring_state.serve(self.all(), served);
    }

    /// Announces to each shared shard without leases of this replica that this replica is gone. Leases of a stream
    /// that broke a moment ago are released by the replicas that find this one silent.
    pub(super) async fn announce_leave(&self) {
        let ring_state = &self.inner.ring_state;
        ring_state.shutdown.cancel();
        let Some(&owner) = ring_state.owner.get() else { return };
        let bye = async |shard: &Shard| {
            let shared_state = shard.shared_state();
            let known = shared_state
                .iter()
                .flat_map(|shared_state| &shared_state.replicas)
                .map(|sign| sign.owner);
            let others = known.filter(|&other| other != owner).collect();
            // If this fails, other replicas find this one silent.
            let Ok(left) = shard.orphans(others).await else { return };
            if left.iter().all(|lease| lease.owner != owner) {
                let beat =
                    Heartbeat { removed_owners: vec![owner], ..ring_state.heartbeat(owner, shard) };
                let _ = shard.call(Op::Heartbeat, |store| store.heartbeat(beat)).await;
            }
        };
        let shared = self.all().iter().filter(|shard| shard.is_shared() && !shard.is_down());
        join_all(shared.map(bye)).await;
    }
}

/// Returns whether the event calls for a heartbeat at once.
fn wants_heartbeat(event: Result<ShardEvent, RecvError>) -> bool {
    match event {
        Ok(ShardEvent::StateSet | ShardEvent::EventsMissed) | Err(RecvError::Lagged(_)) => true,
        Ok(_) => false,
        // The shard is closed, and this task ends soon.
        Err(RecvError::Closed) => true,
    }
}
