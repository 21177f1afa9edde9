//! This server's view of the ring: known rings, peers and shards, and the ring that it routes by: the configured
//! shards that take new jobs.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use parking_lot::{Mutex, MutexGuard, RwLock};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::clock::Clock;
use crate::domain::ShardName;
use crate::domain::open_rings::{self, OpenRings, RingMembers, RingRecords};
use crate::domain::ring::ShardState;
use crate::metrics::Metrics;
use crate::store::{Heartbeat, SharedState};

use super::Shard;
use super::ring_disagreement::{DisagreementEvent, RingDisagreement};

/// View of a replica: its rings and peers, and the rings that its calls use.
pub(super) struct RingState {
    /// Nonce by which other replicas identify this one; set when it joins them.
    pub(super) owner: OnceLock<u32>,
    /// Clock of this server, compared with the clocks of the shards.
    pub(super) clock: OnceLock<Clock>,
    known: Mutex<RingView>,
    rings: RwLock<Arc<OpenRings>>,
    /// Counter that rises whenever the rings may have changed.
    pub(super) changes: AtomicU64,
    /// Lock held while the ring is changed.
    pub(super) change_lock: tokio::sync::Mutex<()>,
    /// Longest time that a call runs under one ring.
    call_max: Duration,
    metrics: Metrics,
    pub(super) shutdown: CancellationToken,
}

/// Known rings and peers, and which findings were logged.
pub(super) struct RingView {
    pub(super) records: RingRecords,
    pub(super) served: RingMembers,
    /// Rings under which calls may be in flight, with the time since when they are no longer served; `None`: served
    /// now.
    used: BTreeMap<RingMembers, Option<Instant>>,
    fingerprint: u64,
    /// Time since when all replicas serve the same ring, as far as known.
    pub(super) agreed_since: Instant,
    pub(super) disagreement: RingDisagreement,
    pub(super) peer_rings: PeerRings,
    /// Shards on an open ring that are not configured here, as of the last check.
    pub(super) unconfigured: BTreeSet<ShardName>,
    /// Shards of `unconfigured` that no replica serves.
    unserved: BTreeSet<ShardName>,
}

/// Rings of other replicas with shards that are not configured here.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct PeerRings {
    /// Rings that they serve now.
    current: BTreeSet<RingMembers>,
    /// Rings that they serve, or served in the last 10 min: a replica that served one may only be restarting.
    pub(super) recent: BTreeSet<RingMembers>,
}

// === impl RingState ===

impl RingState {
    /// Creates the state of a replica that has only the configuration of these shards.
    pub(super) fn new(shards: &[Shard], call_max: Duration, metrics: &Metrics) -> RingState {
        let records = RingRecords::new();
        let served = active_ring(&records, shards);
        let rings = Arc::new(OpenRings::new(&served, &records, &BTreeSet::new()));
        let known = RingView {
            fingerprint: rings.newest().fingerprint(),
            records,
            served,
            used: BTreeMap::new(),
            agreed_since: Instant::now(),
            disagreement: RingDisagreement::default(),
            peer_rings: PeerRings::default(),
            unconfigured: BTreeSet::new(),
            unserved: BTreeSet::new(),
        };
        RingState {
            owner: OnceLock::new(),
            clock: OnceLock::new(),
            known: Mutex::new(known),
            rings: RwLock::new(rings),
            changes: AtomicU64::new(0),
            change_lock: tokio::sync::Mutex::default(),
            call_max,
            metrics: metrics.clone(),
            shutdown: CancellationToken::new(),
        }
    }

    /// Returns the rings that calls use now.
    pub(super) fn rings(&self) -> Arc<OpenRings> {
        Arc::clone(&self.rings.read())
    }

    pub(super) fn known(&self) -> MutexGuard<'_, RingView> {
        self.known.lock()
    }

    /// Builds the heartbeat for `shard`.
    pub(super) fn heartbeat(&self, owner: u32, shard: &Shard) -> Heartbeat {
        let known = self.known();
        let theirs = shard.shared_state();
        let theirs = theirs.as_deref().map(|shared_state| &shared_state.rings);
        // Before the first answer the versions on the shard are not known.
        let rings = theirs.map_or_else(RingRecords::new, |rings| {
            open_rings::missing_records(rings, &known.records)
        });
        let (seen, gone) = shard.peer_updates();
        Heartbeat {
            owner,
            ring: known.fingerprint,
            state: shard.state(),
            rings,
            seen_owners: seen,
            removed_owners: gone,
        }
    }

    /// Merges the answer of a shard to a heartbeat. Returns whether the ring must be updated.
    pub(super) fn apply_shared_state(
        &self,
        owner: u32,
        shards: &[Shard],
        shard: &Shard,
        shared_state: &SharedState,
    ) -> bool {
        let (mut known, now) = (self.known(), Instant::now());
        let before = known.open_rings();
        let news = open_rings::merge_records(&mut known.records, &shared_state.rings);
        known.reopen_used(self.call_max, now);
        let opened = known.open_rings().difference(&before).next().is_some();
        let served = active_ring(&known.records, shards);
        let lacks = !open_rings::missing_records(&shared_state.rings, &known.records).is_empty();
        let living = shared_state.replicas.iter().filter(|sign| sign.is_alive(shared_state.now));
        let others = living.filter(|sign| sign.owner != owner && sign.ring != 0);
        let others: BTreeSet<u64> = others.map(|sign| sign.ring).collect();
        let dissents = others.iter().any(|&ring| ring != known.fingerprint);
        let was_silent = known.disagreement.record(shard.name(), others, now);
        // A replica may serve a ring that this one has not received yet, or have served it for less than a heartbeat.
        if dissents || opened || was_silent && shard.is_shared() {
            known.agreed_since = now;
        }
        let elsewhere = self.compare_served_rings(&mut known, shards, now);
        news || lacks || served != known.served || elsewhere != known.peer_rings
    }

    /// Logs when replicas begin or cease to serve other rings, and sets the metric. Returns those of these rings that
    /// have shards which are not configured here.
    fn compare_served_rings(
        &self,
        known: &mut RingView,
        shards: &[Shard],
        now: Instant,
    ) -> PeerRings {
        let others = known.disagreement.other_rings(known.fingerprint, now);
        let dissents = !others.is_empty();
        self.metrics.set_ring_disagreement(dissents);
        let is_other = |ring: &&RingMembers| dissents && others.contains(&ring.fingerprint());
        let rings: BTreeSet<RingMembers> = known.records.keys().filter(is_other).cloned().collect();
        if let Some(news) = known.disagreement.next_event(dissents, now) {
            log_disagreement(news, &known.served, &rings);
        }
        let is_here = |name: &ShardName| shards.iter().any(|shard| shard.name() == name);
        let has_strangers = |ring: &&RingMembers| ring.names().iter().any(|name| !is_here(name));
        let lately = known.disagreement.recent_rings(now);
        let open = known.records.iter().filter(|(_, mark)| mark.open).map(|(ring, _)| ring);
        let lately = open.filter(|ring| lately.contains(&ring.fingerprint())).chain(&rings);
        PeerRings {
            recent: lately.filter(has_strangers).cloned().collect(),
            current: rings.iter().filter(has_strangers).cloned().collect(),
        }
    }

    /// Serves `served`, which every shard that answers has on record.
    pub(super) fn serve(&self, shards: &[Shard], served: RingMembers) {
        let (mut known, now) = (self.known(), Instant::now());
        let fingerprint = served.fingerprint();
        if served != known.served {
            tracing::info!(
                ring = %served, before = %known.served, fingerprint = format!("{fingerprint:016x}"),
                "the ring has changed: ids chosen by clients are placed on these shards, with these weights"
            );
            known.agreed_since = now;
        }
        // No job was written under a ring before a shard has answered.
        if has_shared_state(shards) {
            known.used.values_mut().for_each(|until| *until = until.or(Some(now)));
            known.used.insert(served.clone(), None);
        }
        (known.served, known.fingerprint) = (served, fingerprint);
        known.peer_rings = self.compare_served_rings(&mut known, shards, now);
        known.log_unconfigured_shards(shards);
        let rings = OpenRings::new(&known.served, &known.records, &known.peer_rings.recent);
        self.metrics.set_rings_open(rings.count());
        *self.rings.write() = Arc::new(rings);
        self.changes.fetch_add(1, Ordering::Release);
    }
}

/// Returns the ring of the shards for which `takes` is true, with their weights.
fn ring_members(shards: &[Shard], takes: impl Fn(&Shard) -> bool) -> RingMembers {
    let members = shards.iter().filter(|shard| takes(shard));
    let members: Vec<_> = members.map(|shard| (shard.name().clone(), shard.weight())).collect();
    RingMembers::new(&members)
}

/// Returns whether any shard has answered a heartbeat.
fn has_shared_state(shards: &[Shard]) -> bool {
    shards.iter().any(|shard| shard.shared_state().is_some())
}

/// Returns whether a shard was on rings that are all closed: it was found empty, and removed. A shard that has
/// answered reports itself whether it takes jobs again.
fn has_left_rings(records: &RingRecords, shard: &Shard) -> bool {
    let mut its = records.iter().filter(|(ring, _)| ring.contains(shard.name())).peekable();
    shard.shared_state().is_none() && its.peek().is_some() && its.all(|(_, mark)| !mark.open)
}

/// Returns the ring of the shards that take new jobs.
fn active_ring(records: &RingRecords, shards: &[Shard]) -> RingMembers {
    let takes = |shard: &Shard| shard.state() == ShardState::Active;
    let served = ring_members(shards, |shard| takes(shard) && !has_left_rings(records, shard));
    if served == RingMembers::new(&[]) { ring_members(shards, takes) } else { served }
}

/// Opens and returns the ring of the shards that take new jobs. Also opens the ring of all shards if there is no
/// record of it, because a draining shard has been on it. Opens none before a shard has answered with its records of
/// both.
pub(super) fn open_active_ring(records: &mut RingRecords, shards: &[Shard]) -> RingMembers {
    let served = active_ring(records, shards);
    if has_shared_state(shards) {
        let all = ring_members(shards, |shard| !has_left_rings(records, shard));
        if !records.contains_key(&all) {
            open_rings::open_ring(records, &all);
        }
        open_rings::open_ring(records, &served);
    }
    served
}

/// Logs that replicas serve different rings, or that they agree again.
fn log_disagreement(news: DisagreementEvent, served: &RingMembers, others: &BTreeSet<RingMembers>) {
    let others: Vec<&str> = others.iter().map(RingMembers::as_str).collect();
    let others = others.join(" ");
    match news {
        DisagreementEvent::Started => tracing::warn!(
            %served, others,
            "replicas serve different rings, as during a rolling change of the list of shards: this ends when all \
             have the same list; until then two replicas may create one id on two shards"
        ),
        DisagreementEvent::Persists => tracing::error!(
            %served, others,
            "replicas have served different rings for 10 min: configure the same shards on all of them; until then \
             two replicas may create one id on two shards"
        ),
        DisagreementEvent::Resolved => {
            tracing::info!(%served, "all replicas serve the same ring again")
        }
    }
}

// === impl RingView ===

impl RingView {
    fn open_rings(&self) -> BTreeSet<RingMembers> {
        let open = self.records.iter().filter(|(_, mark)| mark.open);
        open.map(|(ring, _)| ring.clone()).collect()
    }

    /// Reopens rings under which calls of this replica may be in flight, which take `call_max`. The replica that
    /// closed one had taken this replica for dead, because this one had stalled.
    fn reopen_used(&mut self, call_max: Duration, now: Instant) {
        self.used
            .retain(|_, until| until.is_none_or(|until| now.duration_since(until) <= call_max));
        for ring in self.used.keys() {
            open_rings::open_ring(&mut self.records, ring);
        }
    }

    /// Returns former rings that are open and whose shards are all configured here. A ring with an absent shard stays
    /// open: the jobs there are not searched, and may return with the shard.
    pub(super) fn closable(&self) -> Vec<RingMembers> {
        let is_here =
            |ring: &RingMembers| !self.unconfigured.iter().any(|shard| ring.contains(shard));
        let former = self.records.iter().filter(|(ring, mark)| mark.open && **ring != self.served);
        former.map(|(ring, _)| ring).filter(|ring| is_here(ring)).cloned().collect()
    }

    /// Finds shards on open rings that are not configured here, and logs new ones.
    fn log_unconfigured_shards(&mut self, shards: &[Shard]) {
        let is_here = |name: &ShardName| shards.iter().any(|shard| shard.name() == name);
        let names = |ring: &RingMembers| ring.names().into_iter().filter(|name| !is_here(name));
        let open = self.records.iter().filter(|(_, mark)| mark.open);
        let strangers: BTreeSet<ShardName> = open.flat_map(|(ring, _)| names(ring)).collect();
        let served: BTreeSet<ShardName> = self.peer_rings.current.iter().flat_map(names).collect();
        let lost = strangers.difference(&served).cloned().collect();
        for shard in served.difference(&self.unconfigured) {
            tracing::info!(
                %shard,
                "another replica has a shard that is not configured here: calls here about ids that may \
                 be on it return UNAVAILABLE until all replicas have the same list of shards"
            );
        }
        for shard in BTreeSet::difference(&lost, &self.unserved) {
            tracing::warn!(
                %shard,
                "no replica has a shard that may have jobs: they are neither found nor delivered; configure the shard \
                 on all servers, an empty one of that name if its data is gone, and remove it when `ringq shard drain` \
                 with --wait has ended"
            );
        }
        (self.unconfigured, self.unserved) = (strangers, lost);
    }
}

#[cfg(test)]
mod tests {
    use crate::clock::ManualClock;
    use crate::domain::Time;
    use crate::domain::open_rings::RingRecord;
    use crate::shards::{ShardMember, ShardTimeouts, Shards};
    use crate::store::faulty_store::FaultyStore;

    use super::*;

    const MINUTE: Duration = Duration::from_secs(60);

    /// Two shards that have answered, and a replica that serves both.
    fn shards() -> Shards {
        let member = |name| ShardMember::from(FaultyStore::new(name, &Clock::system()));
        let shards = Shards::new(["s0", "s1"].map(member).into(), &Metrics::new());
        shards
            .all()
            .iter()
            .for_each(|shard| shard.set_shared_state(shared_state(RingRecords::new())));
        serve(&shards);
        shards
    }

    fn shared_state(rings: RingRecords) -> SharedState {
        SharedState {
            now: Time(0),
            state: ShardState::Active,
            is_new: false,
            last_heartbeat: None,
            rings,
            replicas: Vec::new(),
        }
    }

    /// Serves the ring that follows from the known records.
    fn serve(shards: &Shards) {
        let ring_state = &shards.inner.ring_state;
        let served = open_active_ring(&mut ring_state.known().records, shards.all());
        ring_state.serve(shards.all(), served);
    }

    /// Applies an answer of the first shard with this record of a ring.
    fn receive(shards: &Shards, ring: &RingMembers, version: u64, open: bool) {
        let shared_state =
            shared_state(RingRecords::from([(ring.clone(), RingRecord { version, open })]));
        shards.inner.ring_state.apply_shared_state(
            1,
            shards.all(),
            &shards.all()[0],
            &shared_state,
        );
    }

    #[tokio::test(start_paused = true)]
    async fn a_ring_stays_open_until_calls_that_began_under_it_have_ended() {
        let shards = shards();
        let ring_state = &shards.inner.ring_state;
        let both = ring_state.known().served.clone();
        shards.all()[1].set_state(ShardState::Draining);
        serve(&shards);
        assert_ne!(ring_state.known().served, both);
        // Other replicas take this one for dead, and close the ring again and again.
        let is_open_though_closed = |version| {
            receive(&shards, &both, version, false);
            ring_state.known().records[&both].open
        };
        assert!(is_open_though_closed(9));
        tokio::time::advance(ShardTimeouts::default().call_max()).await;
        assert!(is_open_though_closed(19));
        tokio::time::advance(Duration::from_millis(1)).await;
        assert!(!is_open_though_closed(29));
    }

    #[tokio::test(start_paused = true)]
    async fn all_served_by_others_needs_a_peer_on_each_shard() {
        use crate::store::ReplicaHeartbeat;
        let shards = shards();
        let second = 1_000_000;
        let sees = |shard: usize, signs: &[(u32, u64, i64)]| {
            let sign = |&(owner, ring, at): &(u32, u64, i64)| ReplicaHeartbeat {
                owner,
                ring,
                time: Time(at),
            };
            let replicas = signs.iter().map(sign).collect();
            let shared_state = SharedState {
                now: Time(60 * second),
                replicas,
                ..shared_state(RingRecords::new())
            };
            shards.all()[shard].set_shared_state(shared_state);
            shards.are_all_served_by_others()
        };
        shards.inner.ring_state.owner.set(1).unwrap();
        let (me, other) = ((1, 5, 60 * second), (2, 5, 59 * second));
        assert!(!sees(0, &[me]));
        assert!(!sees(0, &[me, other]), "the other shard is served here alone");
        assert!(sees(1, &[me, other]));
        assert!(!sees(1, &[me, (2, 5, 50 * second)]), "it is silent");
        assert!(!sees(1, &[me, (2, 0, 60 * second)]), "only its leases were seen");
        assert!(sees(1, &[me, (2, 0, 60 * second), (3, 6, 55 * second)]));
    }

    #[tokio::test(start_paused = true)]
    async fn agreement_begins_anew_when_a_ring_is_opened() {
        let shards = shards();
        let ring_state = &shards.inner.ring_state;
        let since = || ring_state.known().agreed_since.elapsed();
        let other = RingMembers::stored("s0:1,s2:1").unwrap();
        for (version, open, agreed) in [
            (1, true, Duration::ZERO),
            (1, true, MINUTE),
            (2, false, 2 * MINUTE),
            (3, true, Duration::ZERO),
        ] {
            tokio::time::advance(MINUTE).await;
            receive(&shards, &other, version, open);
            assert_eq!(since(), agreed, "{version} {open}");
        }
    }

    #[tokio::test]
    async fn clock_skew_of_a_shard_is_reported() {
        let metrics = Metrics::new();
        let member = ShardMember::from(FaultyStore::new("s0", &Clock::system()));
        let shards = Shards::new(vec![member], &metrics);
        let ahead = ManualClock::new(Clock::system().now().plus(Duration::from_secs(5)));
        shards.join(1, &Clock::Manual(ahead)).await;
        let name = "ringq_shard_clock_skew_seconds{shard=\"s0\"} ";
        let text = metrics.render();
        let shown = text.lines().find_map(|line| line.strip_prefix(name)).expect("the gauge");
        let seconds: f64 = shown.parse().unwrap();
        assert!((-5.0..-4.0).contains(&seconds), "{seconds}");
    }
}
