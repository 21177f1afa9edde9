//! Watches for silent replicas. On a shard that several replicas use, a replica without a heartbeat for
//! [`REPLICA_SILENCE_MAX`] is dead, stalled or cut off: all its streams count as broken. Every replica that notices
//! releases their leases. This is safe, because each release checks the lease's token and deadline.
//!
//! If the shard was unreachable, or this replica itself was stalled, all others look silent. So a replica judges
//! others only after it has been in contact with the shard for a while: long enough for live replicas to send a
//! heartbeat.
//!
//! [`REPLICA_SILENCE_MAX`]: crate::domain::limit::REPLICA_SILENCE_MAX

use std::collections::BTreeSet;
use std::sync::Arc;

use futures::StreamExt as _;
use futures::stream::FuturesUnordered;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use crate::domain::{Time, limit};
use crate::scheduler::Settler;
use crate::shards::Shard;
use crate::store::SharedState;

use super::orphan_release::{self, OrphanRelease};
use super::silence_detector::{SilenceDetector, SilentGroup, SilentReplicas};

/// State shared by the parts of the task.
struct ReplicaWatcher<'a> {
    settler: &'a Settler,
    shard: &'a Shard,
    stop: &'a CancellationToken,
    silent: watch::Sender<SilentReplicas>,
}

/// Logs that the replicas of the group are taken for dead, by the ids that they logged when they started.
fn log_silence(shard: &Shard, silence: &SilentGroup, leases: usize) {
    let ids: Vec<_> = silence.replicas.keys().map(|id| format!("{id:08x}")).collect();
    let replica_ids = ids.join(" ");
    let (shard, silent_s) = (shard.name(), limit::REPLICA_SILENCE_MAX.as_secs());
    if leases == 0 {
        tracing::info!(
            %shard, replica_ids, silent_s,
            "servers have stopped without deregistering; they held no jobs"
        );
    } else {
        tracing::warn!(
            %shard, replica_ids, silent_s, leases,
            "servers send no heartbeat and are taken for dead; the leases of their workers are released after the grace"
        );
    }
}

/// Releases, until `stop`, the leases that replicas that are not alive have left on the shard.
pub(in crate::dispatch) async fn run(settler: Settler, shard: Shard, stop: CancellationToken) {
    let begin = settler.clock().now();
    let now = watch::Sender::default();
    let watcher = ReplicaWatcher { settler: &settler, shard: &shard, stop: &stop, silent: now };
    let watch = async {
        if shard.is_shared() {
            watcher.watch().await;
        } else {
            orphan_release::release_of_previous_runs(&settler, &shard, begin, &stop).await;
        }
    };
    // A scan of all leases may take long; cancelling it at the end does no harm.
    tokio::select! {
        () = watch => {}
        () = stop.cancelled() => {}
    }
}

// === impl ReplicaWatcher ===

impl ReplicaWatcher<'_> {
    async fn watch(&self) {
        let mut states = self.shard.watch_shared_state();
        states.mark_changed();
        let mut detector = SilenceDetector::default();
        let (mut is_first, mut under_way) = (true, FuturesUnordered::new());
        loop {
            tokio::select! {
                changed = states.changed() => if changed.is_err() { return },
                Some(()) = under_way.next() => continue,
            }
            let Some(shared_state) = states.borrow_and_update().clone() else { continue };
            let mut silent = detector.silent_replicas(&shared_state);
            silent.remove(&self.settler.replica().nonce);
            let is_news =
                |&(owner, at): &(&u32, &Time)| self.silent.borrow().get(owner) != Some(at);
            let news: SilentReplicas =
                silent.iter().filter(is_news).map(|(&o, &at)| (o, at)).collect();
            self.silent.send_replace(silent);
            if is_first || !news.is_empty() {
                let silence = SilentGroup { replicas: news, silent_now: self.silent.subscribe() };
                under_way.push(self.release_silent(silence, shared_state));
                is_first = false;
            }
        }
    }

    /// Releases the leases of these replicas. Leases of replicas that are not in the membership are found on the way;
    /// those replicas are reported to the shard and get time to send a heartbeat.
    async fn release_silent(&self, mut silence: SilentGroup, shared_state: Arc<SharedState>) {
        let (settler, shard, stop) = (self.settler, self.shard, self.stop);
        let now = settler.clock().now();
        let orphans = OrphanRelease::new(settler, shard, now, now, stop);
        let known = shared_state.replicas.iter().map(|sign| sign.owner);
        let mut living: Vec<u32> =
            known.filter(|owner| silence.last_heartbeat(*owner).is_none()).collect();
        living.push(settler.replica().nonce);
        let Some(leases) = orphans.leases_of_unknown_replicas(living).await else { return };
        let is_theirs = |owner| silence.replicas.contains_key(&owner);
        let (theirs, strange): (Vec<_>, Vec<_>) =
            leases.into_iter().partition(|lease| is_theirs(lease.owner));
        let strangers: BTreeSet<u32> = strange.iter().map(|lease| lease.owner).collect();
        if !strangers.is_empty() {
            shard.report_replicas(&Vec::from_iter(strangers));
        }
        if silence.replicas.is_empty() {
            return;
        }
        log_silence(shard, &silence, theirs.len());
        orphans.release(theirs, Some(&mut silence)).await;
        // Only replicas that stayed silent: one that has sent a heartbeat since keeps its leases.
        if !stop.is_cancelled() {
            silence.drop_alive();
            shard.report_gone(&Vec::from_iter(silence.replicas.into_keys()));
        }
    }
}
