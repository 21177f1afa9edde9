//! What the replicas of one queue know of each other and of the ring, through their shards. Each shows
//! every shard that it lives, and reads there who else does, whether the shard takes new jobs, and which
//! rings jobs may lie on. From that follows the ring that this replica serves: the configured shards that
//! take new jobs. It is recorded on every shard before a job is written by it.

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, RwLock};
use std::time::Duration;

use futures::future::join_all;
use tokio::sync::broadcast::error::RecvError;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::domain::ring::ShardState;
use crate::domain::rings::{self, Members, Records, Rings};
use crate::domain::{ShardName, limit};
use crate::metrics::Metrics;
use crate::store::{About, Beat, Census, Event};

use super::dissent::{Dissent, News};
use super::op::Op;
use super::{Shard, Shards};

/// Rounds in which shards are told of a change: what one says may be news for the others.
const ROUNDS_MAX: usize = 4;

/// That all replicas serve one ring, and since when.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Agreement(Instant);

/// See the module.
pub(super) struct Council {
    /// Who this replica is to the others, once it has joined them.
    owner: OnceLock<u32>,
    known: Mutex<Known>,
    rings: RwLock<Arc<Rings>>,
    /// Counts how often other rings were served.
    changes: AtomicU64,
    /// Held by whoever changes the ring.
    changing: tokio::sync::Mutex<()>,
    metrics: Metrics,
    leaving: CancellationToken,
}

struct Known {
    records: Records,
    served: Members,
    /// Whether `served` was ever served: before that nothing was written under it.
    serves: bool,
    fingerprint: u64,
    /// Since when all replicas serve the same ring, as far as known.
    agreed: Instant,
    dissent: Dissent,
    elsewhere: Elsewhere,
    /// Shards that are on an open ring and not configured, as far as that was said.
    strangers: BTreeSet<ShardName>,
    /// Of those the ones that nobody serves.
    lost: BTreeSet<ShardName>,
}

/// Rings of other replicas that have shards which are not here.
#[derive(Debug, Default, PartialEq, Eq)]
struct Elsewhere {
    /// Those that they serve.
    now: BTreeSet<Members>,
    /// Those that they served a while ago, too: who did may only be restarted.
    lately: BTreeSet<Members>,
}

// === impl Council ===

impl Council {
    /// Of a replica that knows nothing but how these shards are configured.
    pub(super) fn new(shards: &[Shard], metrics: &Metrics) -> Council {
        let mut records = Records::new();
        let served = open(&mut records, shards);
        let rings = Arc::new(Rings::new(&served, &records, &BTreeSet::new()));
        let known = Known {
            fingerprint: rings.newest().fingerprint(),
            records,
            served,
            serves: false,
            agreed: Instant::now(),
            dissent: Dissent::default(),
            elsewhere: Elsewhere::default(),
            strangers: BTreeSet::new(),
            lost: BTreeSet::new(),
        };
        Council {
            owner: OnceLock::new(),
            known: Mutex::new(known),
            rings: RwLock::new(rings),
            changes: AtomicU64::new(0),
            changing: tokio::sync::Mutex::default(),
            metrics: metrics.clone(),
            leaving: CancellationToken::new(),
        }
    }

    /// The rings as they are now.
    pub(super) fn rings(&self) -> Arc<Rings> {
        Arc::clone(&self.rings.read().unwrap_or_else(PoisonError::into_inner))
    }

    fn known(&self) -> MutexGuard<'_, Known> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What a beat of `shard` says.
    fn beat(&self, owner: u32, shard: &Shard) -> Beat {
        let known = self.known();
        let theirs = shard.census();
        let theirs = theirs.as_deref().map(|census| &census.rings);
        // Before the first answer nobody knows which versions are there.
        let rings =
            theirs.map_or_else(Records::new, |rings| rings::news_for(rings, &known.records));
        let (met, gone) = shard.others();
        Beat { owner, ring: known.fingerprint, state: shard.state(), rings, met, gone }
    }

    /// Takes in what a shard has answered. Answers whether anything follows from it.
    fn hear(&self, owner: u32, shards: &[Shard], shard: &ShardName, census: &Census) -> bool {
        let mut known = self.known();
        let news = rings::merge(&mut known.records, &census.rings);
        if known.serves {
            // Who closed it took this replica for dead: it has stood still, and its calls go on under this ring.
            let served = known.served.clone();
            rings::open(&mut known.records, &served);
        }
        let served = members(shards, |shard| shard.state() == ShardState::Active);
        let lacks = !rings::news_for(&census.rings, &known.records).is_empty();
        let living = census.replicas.iter().filter(|sign| sign.is_living(census.now));
        let others = living.filter(|sign| sign.owner != owner && sign.ring != 0);
        let others: BTreeSet<u64> = others.map(|sign| sign.ring).collect();
        let now = Instant::now();
        let dissents = others.iter().any(|&ring| ring != known.fingerprint);
        let was_silent = known.dissent.hear(shard, others, now);
        if dissents || was_silent {
            known.agreed = now;
        }
        let elsewhere = self.compare(&mut known, shards, now);
        news || lacks || served != known.served || elsewhere != known.elsewhere
    }

    /// Says what there is to say of replicas that serve other rings. Answers which of those have shards that are not
    /// here.
    fn compare(&self, known: &mut Known, shards: &[Shard], now: Instant) -> Elsewhere {
        let others = known.dissent.others(known.fingerprint, now);
        let dissents = !others.is_empty();
        self.metrics.set_ring_disagreement(dissents);
        let is_other = |ring: &&Members| dissents && others.contains(&ring.fingerprint());
        let rings: BTreeSet<Members> = known.records.keys().filter(is_other).cloned().collect();
        if let Some(news) = known.dissent.news(dissents, now) {
            tell(news, &known.served, &rings);
        }
        let is_here = |name: &ShardName| shards.iter().any(|shard| shard.name() == name);
        let has_strangers = |ring: &&Members| ring.names().iter().any(|name| !is_here(name));
        let lately = known.dissent.lately(now);
        let open = known.records.iter().filter(|(_, mark)| mark.open).map(|(ring, _)| ring);
        let lately = open.filter(|ring| lately.contains(&ring.fingerprint()));
        Elsewhere {
            now: rings.iter().filter(has_strangers).cloned().collect(),
            lately: lately.filter(has_strangers).cloned().collect(),
        }
    }

    /// Serves this ring, which every shard that answers has on record.
    fn serve(&self, shards: &[Shard], served: Members) {
        let (mut known, now) = (self.known(), Instant::now());
        let fingerprint = served.fingerprint();
        if served != known.served {
            tracing::info!(%served, fingerprint = format!("{fingerprint:016x}"), "the ring changes");
            known.agreed = now;
        }
        (known.served, known.fingerprint, known.serves) = (served, fingerprint, true);
        known.elsewhere = self.compare(&mut known, shards, now);
        known.meet_strangers(shards);
        let rings = Rings::new(&known.served, &known.records, &known.elsewhere.lately);
        self.metrics.set_rings_open(rings.count());
        *self.rings.write().unwrap_or_else(PoisonError::into_inner) = Arc::new(rings);
        self.changes.fetch_add(1, Ordering::Release);
    }
}

/// The shards of the ring, and how much each weighs there.
fn members(shards: &[Shard], takes: impl Fn(&Shard) -> bool) -> Members {
    let members = shards.iter().filter(|shard| takes(shard));
    let members: Vec<_> = members.map(|shard| (shard.name().clone(), shard.weight())).collect();
    Members::new(&members)
}

/// Opens the ring of the shards that take new jobs; and the one of all of them if it was never heard of,
/// because one that is to become empty has been on it. A ring that was closed is not opened again for a shard
/// that has never answered: it left, or nobody would have closed it, and only itself can say that it is back.
fn open(records: &mut Records, shards: &[Shard]) -> Members {
    let all = members(shards, |_| true);
    if !records.contains_key(&all) {
        rings::open(records, &all);
    }
    let takes = |shard: &Shard| shard.state() == ShardState::Active;
    let mut served = members(shards, takes);
    if records.get(&served).is_some_and(|mark| !mark.open) {
        served = members(shards, |shard| takes(shard) && shard.census().is_some());
    }
    rings::open(records, &served);
    served
}

/// Says that replicas serve different rings, or do no more.
fn tell(news: News, served: &Members, others: &BTreeSet<Members>) {
    let others: Vec<&str> = others.iter().map(Members::as_str).collect();
    let others = others.join(" ");
    match news {
        News::Begins => tracing::warn!(
            %served, others,
            "replicas serve different rings, as they do while they are given another list of shards one \
             by one: it ends by itself when all have the same; until then two of them may create one id \
             on two shards"
        ),
        News::Lasts => tracing::error!(
            %served, others,
            "replicas have served different rings for minutes: give all of them the same shards; until \
             then two of them may create one id on two shards"
        ),
        News::Ends => tracing::info!(%served, "all replicas serve the same ring again"),
    }
}

// === impl Known ===

impl Known {
    /// Looks which shards are on an open ring and not here, and says so of new ones.
    fn meet_strangers(&mut self, shards: &[Shard]) {
        let is_here = |name: &ShardName| shards.iter().any(|shard| shard.name() == name);
        let names = |ring: &Members| ring.names().into_iter().filter(|name| !is_here(name));
        let open = self.records.iter().filter(|(_, mark)| mark.open);
        let strangers: BTreeSet<ShardName> = open.flat_map(|(ring, _)| names(ring)).collect();
        let served: BTreeSet<ShardName> = self.elsewhere.now.iter().flat_map(names).collect();
        let lost = strangers.difference(&served).cloned().collect();
        for shard in served.difference(&self.strangers) {
            tracing::info!(
                %shard,
                "another replica has a shard that is not configured here: what is asked here about ids that \
                 may lie there is UNAVAILABLE until all replicas have the same list"
            );
        }
        for shard in BTreeSet::difference(&lost, &self.lost) {
            tracing::warn!(
                %shard,
                "no replica has a shard that may have jobs: they are neither found nor delivered; configure it on \
                 all servers, and remove it when `ringq shard drain` with --wait has ended; if its data is gone, \
                 nothing can be done"
            );
        }
        (self.strangers, self.lost) = (strangers, lost);
    }
}

// === impl Shards ===

impl Shards {
    /// Joins the other replicas of these shards as `owner`: reads what they know, and shows itself from
    /// then on, until [`Shards::close`]. To be called once, and before anything is written.
    pub async fn join(&self, owner: u32) {
        if self.inner.council.owner.set(owner).is_err() {
            return;
        }
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
    pub async fn set_state(&self, shard: &Shard, state: ShardState) -> super::Result<()> {
        shard.call(Op::SetState, |store| store.set_state(state)).await?;
        shard.set_state(state);
        let owner = self.inner.council.owner.get().copied().unwrap_or_default();
        self.change(owner).await;
        Ok(())
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
        let council = &self.inner.council;
        let (&owner, known) = (council.owner.get()?, council.known());
        let now = Instant::now();
        let is_heard = |shard: &Shard| !shard.is_shared() || known.dissent.hears(shard.name(), now);
        let heard = self.all().iter().all(is_heard);
        let agreed = known.agreed;
        drop(known);
        let long = heard && agreed.elapsed() >= self.inner.patience.agreement;
        let ours = self.all().iter().all(|shard| {
            shard.census().is_some_and(|census| {
                let living = census.replicas.iter().filter(|sign| sign.is_living(census.now));
                living.map(|sign| sign.owner).min() == Some(owner)
            })
        });
        (long && ours && self.rings().is_changing()).then_some(Agreement(agreed))
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

    /// Closes all rings but the newest one, if what was agreed on still is.
    pub async fn close_former_rings(&self, agreement: Agreement) {
        let close = |known: &mut Known| {
            // What lies on a shard that is not here was not looked for.
            let is_here = |ring: &Members| !known.strangers.iter().any(|s| ring.contains(s));
            let former =
                known.records.keys().filter(|ring| **ring != known.served && is_here(ring));
            let mut former: Vec<_> = former.cloned().collect();
            former.retain(|ring| rings::close(&mut known.records, ring));
            for ring in &former {
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
            if Agreement(known.agreed) != agreement {
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
        let census = shard.beat(beat).await.ok()?;
        shard.told(&met, &gone);
        shard.set_state(census.state);
        let follows = self.inner.council.hear(owner, self.all(), shard.name(), &census);
        shard.set_census(census);
        Some(follows)
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
