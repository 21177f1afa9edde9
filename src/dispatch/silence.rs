//! Replicas that have gone silent. On a shard that several use, a replica that has not shown itself for
//! [`limit::REPLICA_SILENCE_MAX`] is dead, stands still or is cut off: all its streams are broken ones.
//! Every replica that notices gives back their leases, which is safe, because each goes by its token and
//! deadline.
//!
//! A shard that was away, or a replica that stood still itself, makes everybody else look silent. So
//! nobody is judged by one who has not been in touch with the shard for a while: long enough for the
//! living to have shown themselves.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use futures::StreamExt as _;
use futures::stream::FuturesUnordered;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use crate::domain::{Time, limit};
use crate::scheduler::Scheduler;
use crate::shards::Shard;
use crate::store::Census;

use super::orphans::{self, Orphans};

/// A replica judges others when it has been in touch with the shard for so long.
const WATCHED_MIN: Duration = Duration::from_secs(5);
/// It is in touch as long as no more time than this lies between two censuses.
const CENSUSES_APART_MAX: Duration = limit::REPLICA_HEARTBEAT.saturating_mul(2);

/// Replicas that are silent, and the last sign of each on the store's clock. One with another last sign
/// has been alive in between.
type Silent = BTreeMap<u32, Time>;

/// What a replica sees of the others on one shard.
#[derive(Debug, Default)]
struct Sight {
    /// On the store's clock: in touch since then, and the last census.
    since: Time,
    last: Time,
}

/// Replicas that went silent at one time.
pub(super) struct Silence {
    replicas: Silent,
    /// All that are silent now.
    now: watch::Receiver<Silent>,
}

/// What the parts of the task share.
struct Watcher<'a> {
    scheduler: &'a Scheduler,
    shard: &'a Shard,
    stop: &'a CancellationToken,
    now: watch::Sender<Silent>,
}

/// Gives back, until `stop`, what replicas that do not live have left on the shard.
pub(super) async fn run(scheduler: Scheduler, shard: Shard, stop: CancellationToken) {
    let begin = scheduler.clock().now();
    let now = watch::Sender::default();
    let watcher = Watcher { scheduler: &scheduler, shard: &shard, stop: &stop, now };
    let give_back = async {
        if shard.is_shared() {
            watcher.watch().await;
        } else {
            orphans::of_former_lives(&scheduler, &shard, begin, &stop).await;
        }
    };
    // A look at all leases may take long, and a call that is given up at the end harms nobody.
    tokio::select! {
        () = give_back => {}
        () = stop.cancelled() => {}
    }
}

// === impl Watcher ===

impl Watcher<'_> {
    async fn watch(&self) {
        let mut censuses = self.shard.watch_census();
        censuses.mark_changed();
        let mut sight = Sight::default();
        let (mut is_first, mut under_way) = (true, FuturesUnordered::new());
        loop {
            tokio::select! {
                changed = censuses.changed() => if changed.is_err() { return },
                Some(()) = under_way.next() => continue,
            }
            let Some(census) = censuses.borrow_and_update().clone() else { continue };
            let mut silent = sight.look(&census);
            silent.remove(&self.scheduler.replica().nonce);
            let is_news = |&(owner, at): &(&u32, &Time)| self.now.borrow().get(owner) != Some(at);
            let news: Silent = silent.iter().filter(is_news).map(|(&o, &at)| (o, at)).collect();
            self.now.send_replace(silent);
            if is_first || !news.is_empty() {
                let silence = Silence { replicas: news, now: self.now.subscribe() };
                under_way.push(self.give_back(silence, census));
                is_first = false;
            }
        }
    }

    /// Gives back the leases of these replicas. Leases of replicas that the shard does not know are met
    /// on the way; those are given their time to show themselves.
    async fn give_back(&self, mut silence: Silence, census: Arc<Census>) {
        let (scheduler, shard, stop) = (self.scheduler, self.shard, self.stop);
        let orphans = Orphans { scheduler, shard, broke: scheduler.clock().now(), stop };
        let known = census.replicas.iter().map(|sign| sign.owner);
        let mut living: Vec<u32> =
            known.filter(|owner| silence.last_sign(*owner).is_none()).collect();
        living.push(scheduler.replica().nonce);
        let Some(leases) = orphans.of_others(living).await else { return };
        let is_theirs = |owner| silence.replicas.contains_key(&owner);
        let (theirs, strange): (Vec<_>, Vec<_>) =
            leases.into_iter().partition(|lease| is_theirs(lease.owner));
        let strangers: BTreeSet<u32> = strange.iter().map(|lease| lease.owner).collect();
        if !strangers.is_empty() {
            shard.meet(&Vec::from_iter(strangers));
        }
        if silence.replicas.is_empty() {
            return;
        }
        let (replicas, leases) = (silence.replicas.len(), theirs.len());
        tracing::warn!(shard = %shard.name(), replicas, leases, "replicas are silent");
        orphans.release(theirs, Some(&mut silence)).await;
        // Only who is silent to the end: another one shows itself, and its leases are its own.
        if !stop.is_cancelled() {
            silence.recall();
            shard.forget(&Vec::from_iter(silence.replicas.into_keys()));
        }
    }
}

// === impl Sight ===

impl Sight {
    /// Who is silent by this census and those before it.
    fn look(&mut self, census: &Census) -> Silent {
        if census.now.since(self.last) > CENSUSES_APART_MAX {
            self.since = census.now;
        }
        self.last = census.now;
        if census.now.since(self.since) < WATCHED_MIN {
            return Silent::new();
        }
        let silent = census.replicas.iter().filter(|sign| !sign.is_living(census.now));
        silent.map(|sign| (sign.owner, sign.at)).collect()
    }
}

// === impl Silence ===

impl Silence {
    /// The last sign of the replica, if it is one of these.
    pub(super) fn last_sign(&self, owner: u32) -> Option<Time> {
        self.replicas.get(&owner).copied()
    }

    /// Asks the shard once more, and forgets those that have shown themselves. `None` when nobody
    /// watches any more.
    pub(super) async fn look_again(&mut self, shard: &Shard) -> Option<()> {
        self.now.borrow_and_update();
        // Nobody is met by this, but the shard is asked at once.
        shard.meet(&[]);
        self.now.changed().await.ok()?;
        self.recall();
        Some(())
    }

    fn recall(&mut self) {
        let now = self.now.borrow_and_update();
        self.replicas.retain(|owner, at| now.get(owner) == Some(at));
    }
}
