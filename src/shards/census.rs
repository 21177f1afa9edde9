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
use crate::domain::ring::ShardState;
use crate::domain::rings::{self, Rings};
use crate::domain::{ShardName, limit};
use crate::store::{About, Beat, Event};

use super::council::{Known, open};
use super::op::Op;
use super::{Shard, Shards};

/// Rounds in which shards are told of a change: what one says may be news for the others.
const ROUNDS_MAX: usize = 4;

/// That all replicas serve one ring, and since when.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Agreement(Instant);

// === impl Shards ===

impl Shards {
    /// Joins the other replicas of these shards as `owner`: reads what they know, and shows itself from
    /// then on, until [`Shards::close`]. To be called once, and before anything is written. `clock`: this server's, with
    /// which those of the shards are compared.
    pub async fn join(&self, owner: u32, clock: &Clock) {
        if self.inner.council.owner.set(owner).is_err() {
            return;
        }
        let _ = self.inner.council.clock.set(clock.clone());
        join_all(self.all().iter().map(|shard| self.ask(owner, shard))).await;
        self.change(owner).await;
        for shard in self.all() {
            tokio::spawn(self.clone().attend(owner, shard.clone()));
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
        let owner = self.inner.council.owner.get().copied().unwrap_or_default();
        self.change(owner).await;
        Ok(())
    }

    /// Whether each shard that has answered is served by another replica too, as far as it was seen last.
    #[must_use]
    pub fn are_all_served_by_others(&self) -> bool {
        let owner = self.inner.council.owner.get();
        self.all().iter().filter_map(Shard::census).all(|census| {
            // One that was only met has not shown itself.
            let mut living = census.replicas.iter().filter(|sign| sign.is_living(census.now));
            living.any(|sign| sign.ring != 0 && Some(&sign.owner) != owner)
        })
    }

    /// The rings as they are now.
    pub(super) fn rings(&self) -> Arc<Rings> {
        self.inner.council.rings()
    }

    /// Another number whenever the rings may have changed.
    #[must_use]
    pub fn changes(&self) -> u64 {
        self.inner.council.changes.load(Ordering::Acquire)
    }

    /// That former rings are open, that all replicas have agreed on the newest one for long enough, by what
    /// every shard says, and that it is for this replica to close the others: of all that live its nonce is the
    /// lowest. Where a shard is silent nobody knows what others serve.
    #[must_use]
    pub fn agreement(&self) -> Option<Agreement> {
        self.agreement_by(&self.inner.council.known())
    }

    fn agreement_by(&self, known: &Known) -> Option<Agreement> {
        let &owner = self.inner.council.owner.get()?;
        let now = Instant::now();
        let is_heard = |shard: &Shard| !shard.is_shared() || known.dissent.hears(shard.name(), now);
        let heard = self.all().iter().all(is_heard);
        let long = heard && now.duration_since(known.agreed) >= self.inner.patience.agreement;
        let ours = self.all().iter().all(|shard| {
            shard.census().is_some_and(|census| {
                let living = census.replicas.iter().filter(|sign| sign.is_living(census.now));
                living.map(|sign| sign.owner).min() == Some(owner)
            })
        });
        (long && ours && self.rings().is_changing()).then_some(Agreement(known.agreed))
    }

    /// How long it takes at least until there is an agreement that there is not yet; zero where there may be one.
    #[must_use]
    pub fn until_agreement(&self) -> Duration {
        let agreed = self.inner.council.known().agreed;
        self.inner.patience.agreement.saturating_sub(agreed.elapsed())
    }

    /// Whether a job may lie on this shard whose id its client chose, or come to lie there: it is on an open ring.
    #[must_use]
    pub fn is_on_ring(&self, shard: &ShardName) -> bool {
        let known = self.inner.council.known();
        known.records.iter().any(|(members, mark)| mark.open && members.contains(shard))
    }

    /// Whether a former ring may be closed at all, once no job is left that only it finds.
    #[must_use]
    pub fn may_close_rings(&self) -> bool {
        !self.inner.council.known().closable().is_empty()
    }

    /// Closes all rings that may be closed, if what was agreed on still is.
    pub async fn close_former_rings(&self, agreement: Agreement) {
        let close = |known: &mut Known| {
            for ring in known.closable() {
                rings::close(&mut known.records, &ring);
                tracing::info!(%ring, "a former ring is closed: no job is left that only it finds");
            }
        };
        self.close_rings(agreement, close).await;
    }

    /// Takes a shard that is empty and takes no new jobs off all former rings, if what was agreed on still is.
    pub async fn leave_former_rings(&self, agreement: Agreement, shard: &ShardName) {
        let leave = |known: &mut Known| {
            if known.served.contains(shard) {
                return;
            }
            for ring in rings::leave(&mut known.records, shard) {
                tracing::info!(%shard, %ring, "a shard that is empty leaves a former ring");
            }
        };
        self.close_rings(agreement, leave).await;
    }

    async fn close_rings(&self, agreement: Agreement, close: impl FnOnce(&mut Known)) {
        let council = &self.inner.council;
        {
            let mut known = council.known();
            // A shard may be silent by now, or a replica have come.
            if self.agreement_by(&known) != Some(agreement) {
                return;
            }
            close(&mut known);
        }
        self.change(council.owner.get().copied().unwrap_or_default()).await;
    }

    /// Shows this replica to one shard again and again.
    async fn attend(self, owner: u32, shard: Shard) {
        let leaving = self.inner.council.leaving.clone();
        let mut events = shard.events(About::Shard);
        let attend = async {
            loop {
                // Two of them are lost before anybody takes this replica for dead.
                let pause = tokio::time::sleep(limit::REPLICA_HEARTBEAT);
                tokio::select! {
                    () = pause, if shard.is_shared() => {}
                    () = shard.nudged() => {}
                    () = async { while !is_call(events.recv().await) {} } => {}
                }
                while !self.beat(owner, &shard).await {
                    shard.wait_out(limit::REPLICA_HEARTBEAT).await;
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
    async fn beat(&self, owner: u32, shard: &Shard) -> bool {
        let follows = self.ask(owner, shard).await;
        if follows == Some(true) {
            let shards = self.clone();
            tokio::spawn(async move { shards.change(owner).await });
        }
        follows.is_some()
    }

    /// Shows this replica to one shard; whether anything follows from the answer, if there was one.
    async fn ask(&self, owner: u32, shard: &Shard) -> Option<bool> {
        if self.inner.council.leaving.is_cancelled() {
            return None;
        }
        let beat = self.inner.council.beat(owner, shard);
        let (met, gone) = (beat.met.clone(), beat.gone.clone());
        let clock = self.inner.council.clock.get();
        let sent = clock.map(Clock::now);
        let census = shard.beat(beat).await.ok()?;
        if let (Some(clock), Some(sent)) = (clock, sent) {
            shard.compare_clocks(Skew::at_least(sent, census.now, clock.now()));
        }
        shard.told(&met, &gone);
        shard.set_state(census.state);
        shard.set_census(census.clone());
        Some(self.inner.council.hear(owner, self.all(), shard, &census))
    }

    /// Serves the ring that follows from what is known, once every shard that answers has it on record.
    async fn change(&self, owner: u32) {
        let council = &self.inner.council;
        let _one = council.changing.lock().await;
        let mut silent: Vec<ShardName> = Vec::new();
        let mut served = open(&mut council.known().records, self.all());
        for _ in 0..ROUNDS_MAX {
            let lacking: Vec<&Shard> = {
                let mut known = council.known();
                served = open(&mut known.records, self.all());
                let lacks = |shard: &&Shard| {
                    let census = shard.census();
                    census.is_some_and(|c| !rings::news_for(&c.rings, &known.records).is_empty())
                };
                let answering = self.all().iter().filter(|shard| !silent.contains(shard.name()));
                answering.filter(lacks).collect()
            };
            if lacking.is_empty() {
                break;
            }
            let asked = lacking.iter().map(|shard| self.ask(owner, shard));
            let answers = join_all(asked).await;
            let failed = lacking.iter().zip(answers).filter(|(_, answer)| answer.is_none());
            silent.extend(failed.map(|(shard, _)| shard.name().clone()));
        }
        council.serve(self.all(), served);
    }

    /// Tells every shared shard that nothing of this replica is left, where that is so: the leases of a
    /// stream that broke a moment ago are given back by those who find this replica silent.
    pub(super) async fn leave(&self) {
        let council = &self.inner.council;
        council.leaving.cancel();
        let Some(&owner) = council.owner.get() else { return };
        let bye = async |shard: &Shard| {
            let census = shard.census();
            let known = census.iter().flat_map(|census| &census.replicas).map(|sign| sign.owner);
            let others = known.filter(|&other| other != owner).collect();
            // What fails is found out by the others.
            let Ok(left) = shard.orphans(others).await else { return };
            if left.iter().all(|lease| lease.owner != owner) {
                let beat = Beat { gone: vec![owner], ..council.beat(owner, shard) };
                let _ = shard.beat(beat).await;
            }
        };
        let shared = self.all().iter().filter(|shard| shard.is_shared() && !shard.is_down());
        join_all(shared.map(bye)).await;
    }
}

/// Whether a shard should be asked at once.
fn is_call(event: Result<Event, RecvError>) -> bool {
    match event {
        Ok(Event::Configured | Event::Missed) | Err(RecvError::Lagged(_)) => true,
        Ok(_) => false,
        // The shard is closed, and this task about to be.
        Err(RecvError::Closed) => true,
    }
}
