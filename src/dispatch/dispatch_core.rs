//! State shared by streams, pulls and the tasks of all shards.

use std::collections::BTreeMap;
use std::sync::Arc;

use tokio::runtime::Handle;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::domain::Time;
use crate::scheduler::Settler;

use super::feed::claim_planner::ServedCounts;
use super::feed::lost_claims;
use super::feed::shard_feed::ShardFeed;
use super::leases::orphan_release::BrokenStream;
use super::streams::adoption_queue::{ADOPTION_WAIT_MAX, AdoptionGate, AdoptionRequest};
use super::streams::ledger::{StreamLease, StreamMode};
use super::streams::registry::StreamRegistry;
use super::streams::return_queue;
use super::streams::stream::Stream;
use super::{Config, JobDelivery, StreamOpenError, StreamOptions, leases};

/// Verbs about leases, stream registry and task groups of the dispatcher.
pub(super) struct DispatchCore {
    pub(super) settler: Settler,
    pub(super) config: Config,
    pub(super) streams: Arc<StreamRegistry>,
    stream_slots: Arc<Semaphore>,
    runtime: Handle,
    /// Tasks of feeds, lost claims, lease events, lease watch, adoption and orphan release.
    claiming: TaskGroup,
    /// Tasks that return undelivered leases and detach leases of ended streams. They stop last.
    returning: TaskGroup,
}

#[derive(Default)]
struct TaskGroup {
    tracker: TaskTracker,
    stop: CancellationToken,
}

// === impl DispatchCore ===

impl DispatchCore {
    /// Starts the tasks of all shards.
    pub(super) fn spawn(
        settler: Settler,
        config: Config,
        streams: Arc<StreamRegistry>,
    ) -> DispatchCore {
        let core = DispatchCore {
            stream_slots: Arc::new(Semaphore::new(config.streams_max)),
            runtime: Handle::current(),
            claiming: TaskGroup::default(),
            returning: TaskGroup::default(),
            settler,
            config,
            streams,
        };
        core.spawn_tasks();
        core
    }

    /// Stops the tasks: first those that claim, then those that return and detach leases.
    pub(super) async fn shut_down(&self) {
        self.claiming.shut_down().await;
        self.returning.shut_down().await;
    }

    /// Cancels all tasks without waiting for them.
    #[cfg(test)]
    pub(super) fn abort_tasks(&self) {
        self.claiming.stop.cancel();
        self.returning.stop.cancel();
    }

    /// Opens a stream and takes one of the `streams_max` slots.
    pub(super) fn open(
        &self,
        options: StreamOptions,
        mode: StreamMode,
    ) -> Result<(Arc<Stream>, OwnedSemaphorePermit), StreamOpenError> {
        let max = self.config.streams_max;
        let slot = Arc::clone(&self.stream_slots).try_acquire_owned();
        let slot = slot.map_err(|_| StreamOpenError::TooManyStreams { max })?;
        let stream = self.streams.open(options, mode, self.now())?;
        self.queue_adoptions(&stream);
        Ok((stream, slot))
    }

    /// Queues the adoption of the leases of the streams that this one continues. The stream is announced to the feeds
    /// after the first lookup on every shard, or after [`ADOPTION_WAIT_MAX`].
    fn queue_adoptions(&self, stream: &Arc<Stream>) {
        let (streams, opened) = (Arc::clone(&self.streams), Arc::clone(stream));
        let gate = AdoptionGate::new(move || streams.announce(&opened));
        if stream.mode() == StreamMode::Pull {
            return;
        }
        let over = self.streams.predecessors(stream);
        let own = self.settler.replica().nonce;
        let elsewhere = stream.options().continues.filter(|named| named.owner != own);
        for adoptions in &self.streams.adoptions {
            for from in &over {
                let gate = Some(Arc::clone(&gate));
                adoptions.add(AdoptionRequest::from_stream(
                    Arc::clone(stream),
                    Arc::clone(from),
                    gate,
                ));
            }
            if let Some(from) = elsewhere {
                let gate = Some(Arc::clone(&gate));
                adoptions.add(AdoptionRequest::from_store(Arc::clone(stream), from, gate));
            }
        }
        if !over.is_empty() || elsewhere.is_some() {
            let stop = self.claiming.stop.clone();
            // Weak: the stream is announced as soon as the last request has dropped its reference.
            let gate = Arc::downgrade(&gate);
            let end = async move {
                tokio::select! {
                    () = tokio::time::sleep(ADOPTION_WAIT_MAX) => {
                        if let Some(gate) = gate.upgrade() {
                            gate.announce_once();
                        }
                    }
                    () = stop.cancelled() => {}
                }
            };
            self.claiming.tracker.spawn_on(end, &self.runtime);
        }
    }

    /// Ends a stream whose transport has taken the end: its sent leases outlive it and are detached.
    pub(super) fn end_stream(&self, stream: &Arc<Stream>) {
        // Held from before the stream ends until its tasks are tracked: a shutdown that finds nothing left to detach
        // must wait for these tasks.
        let _pending = self.returning.tracker.token();
        for (shard, sent) in by_shard(self.streams.end_stream(stream)) {
            let shard = self.settler.shards().all()[shard].clone();
            let detach =
                leases::detach::run(shard, stream.stream_id(), sent, self.returning.stop.clone());
            self.returning.tracker.spawn_on(detach, &self.runtime);
        }
    }

    /// Breaks a stream whose transport was lost or did not take the end of the stream. Its sent leases are released
    /// after the grace, except those that were extended in time: these go to the worker's next stream.
    pub(super) fn break_stream(&self, stream: &Arc<Stream>) {
        let sent = self.streams.break_stream(stream);
        if self.claiming.stop.is_cancelled() {
            return;
        }
        let now = self.now();
        let broken = BrokenStream::of(stream, now);
        for (shard, sent) in by_shard(sent) {
            let at = self.settler.shards().all()[shard].clone();
            let (settler, stop) = (self.settler.clone(), self.claiming.stop.clone());
            let orphans =
                leases::orphan_release::release_of_stream(settler, at, sent, broken, stop);
            let (streams, stream) = (Arc::clone(&self.streams), Arc::clone(stream));
            let release = async move {
                orphans.await;
                streams.queue_adoption(shard, &stream);
            };
            self.claiming.tracker.spawn_on(release, &self.runtime);
        }
    }

    /// Updates the metrics of deliveries.
    pub(super) fn count_deliveries(&self, deliveries: &[JobDelivery], mode: &'static str) {
        let metrics = self.settler.metrics();
        for run in deliveries.chunk_by(|a, b| a.job.key.topic == b.job.key.topic) {
            let lags = run.iter().map(|delivery| delivery.lag);
            metrics.delivered(run[0].job.key.topic.as_str(), mode, lags);
        }
    }

    /// Runtime on which the tasks of streams run.
    pub(super) fn runtime(&self) -> &Handle {
        &self.runtime
    }

    pub(super) fn now(&self) -> Time {
        self.settler.clock().now()
    }

    fn spawn_tasks(&self) {
        let (claiming, returning) = (&self.claiming, &self.returning);
        let served = Arc::<ServedCounts>::default();
        for shard in self.settler.shards().all() {
            let (streams, stop) = (Arc::clone(&self.streams), claiming.stop.clone());
            let (settler, shard) = (self.settler.clone(), shard.clone());
            let lease_events =
                leases::events::run(shard.clone(), Arc::clone(&streams), stop.clone());
            claiming.tracker.spawn(lease_events);
            let lost = Arc::default();
            claiming.tracker.spawn(lost_claims::run(
                shard.clone(),
                Arc::clone(&lost),
                stop.clone(),
            ));
            let feed = ShardFeed::new(
                settler.clone(),
                shard.clone(),
                streams,
                Arc::clone(&served),
                lost,
                stop.clone(),
            );
            claiming.tracker.spawn(feed.run());
            claiming.tracker.spawn(leases::replica_watcher::run(
                settler.clone(),
                shard.clone(),
                stop.clone(),
            ));
            let streams = Arc::clone(&self.streams);
            claiming.tracker.spawn(leases::adopter::run(
                settler.clone(),
                shard.clone(),
                streams,
                stop,
            ));
            let waiting = Arc::clone(&self.streams.returns[shard.index()]);
            let stop = returning.stop.clone();
            returning.tracker.spawn(return_queue::run(settler, shard, waiting, stop));
        }
        let (settler, streams) = (self.settler.clone(), Arc::clone(&self.streams));
        let (watched, held) = (settler.clone(), Arc::clone(&streams));
        claiming.tracker.spawn(leases::watch::run(watched, held, claiming.stop.clone()));
        claiming.tracker.spawn(leases::pause_watch::run(settler, streams, claiming.stop.clone()));
    }
}

impl Drop for DispatchCore {
    /// Cancels all tasks: no stream is left and none can be opened.
    fn drop(&mut self) {
        self.claiming.stop.cancel();
        self.returning.stop.cancel();
    }
}

fn by_shard(leases: Vec<StreamLease>) -> BTreeMap<usize, Vec<StreamLease>> {
    let mut by_shard: BTreeMap<usize, Vec<StreamLease>> = BTreeMap::new();
    for lease in leases {
        by_shard.entry(lease.shard).or_default().push(lease);
    }
    by_shard
}

// === impl TaskGroup ===

impl TaskGroup {
    async fn shut_down(&self) {
        self.stop.cancel();
        self.tracker.close();
        self.tracker.wait().await;
    }
}
