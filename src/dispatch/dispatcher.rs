//! The handle to all of it.

use std::sync::Arc;

use crate::scheduler::{Scheduler, StreamListener};
use crate::shards::Shard;

use super::dispatch_core::DispatchCore;
use super::pull::{self, PullHandover, PullOptions};
use super::stream::StreamContext;
use super::stream_ledger::StreamMode;
use super::stream_registry::StreamRegistry;
use super::{Config, JobDelivery, Outbox, StreamOpenError, StreamOptions, WorkerInfo};

/// Gets the jobs of every shard to the streams and pulls of this replica. Cheap to clone.
#[derive(Clone)]
pub struct Dispatcher {
    hub: Arc<DispatchCore>,
}

// === impl Dispatcher ===

impl Dispatcher {
    /// Starts the feeds of all shards, and looks for leases of former lives and of silent replicas.
    /// Must be called within a runtime, once per scheduler, whose hints it hears from then on.
    #[must_use]
    pub fn spawn(scheduler: Scheduler, config: Config) -> Dispatcher {
        let shards = scheduler.shards().all();
        let home = StreamContext {
            clock: scheduler.clock().clone(),
            metrics: scheduler.metrics().clone(),
            owner: scheduler.replica().nonce,
            shards: shards.iter().map(|shard| shard.name().clone()).collect(),
            shared: shards.iter().any(Shard::is_shared),
        };
        let streams = Arc::new(StreamRegistry::new(home));
        let (hinted, asked) = (Arc::clone(&streams), Arc::clone(&streams));
        scheduler.set_listener(StreamListener {
            on_lease_event: Box::new(move |shard, hint| hinted.apply_hint(shard.index(), hint)),
            credit: Box::new(move |stream| asked.credit(stream)),
        });
        Dispatcher { hub: Arc::new(DispatchCore::spawn(scheduler, config, streams)) }
    }

    /// Opens a stream.
    ///
    /// # Errors
    /// [`StreamOpenError`], when there are too many or the replica is leaving.
    pub fn open(&self, options: StreamOptions) -> Result<Outbox, StreamOpenError> {
        let (stream, place) = self.hub.open(options, StreamMode::Stream)?;
        Ok(Outbox::new(Arc::clone(&self.hub), stream, place))
    }

    /// Jobs that are ready now or within the wait, whatever comes first. A caller that drops this, or the
    /// [`Handover`] before it is done, has got nothing, and nothing is counted.
    ///
    /// # Errors
    /// [`StreamOpenError`], when there are too many streams and pulls or the replica is leaving.
    pub async fn pull(
        &self,
        options: PullOptions,
    ) -> Result<(Vec<JobDelivery>, PullHandover), StreamOpenError> {
        pull::pull(Arc::clone(&self.hub), options).await
    }

    /// The open streams, for people.
    #[must_use]
    pub fn workers(&self) -> Vec<WorkerInfo> {
        self.hub.streams.workers()
    }

    /// How many streams are open, pulls not counted.
    #[must_use]
    pub fn streams_count(&self) -> usize {
        self.hub.streams.count()
    }

    /// Jobs that the open streams could take at once.
    #[must_use]
    pub fn credit_waiting(&self) -> usize {
        self.hub.streams.credit_waiting()
    }

    /// Deliveries of streams and pulls of this replica that are not settled; broken streams do not count.
    #[must_use]
    pub fn unsettled_count(&self) -> usize {
        self.hub.streams.unsettled_count()
    }

    /// Claims nothing more, gives back what was not sent, and ends every stream with `draining`.
    pub fn drain(&self) {
        self.hub.streams.drain();
    }

    /// Resolves when no worker holds a lease of a stream or pull of this replica any more, for a
    /// replica that drains; broken streams do not count.
    pub async fn wait_idle(&self) {
        self.hub.streams.wait_idle().await;
    }

    /// Stops every task where it is, as a kill does: nothing is given back or detached.
    #[cfg(test)]
    pub(super) fn kill(&self) {
        self.hub.abort_tasks();
    }

    /// Drains, waits for claims under way, gives back what reached nobody, lets what was sent by streams that took their
    /// end outlive them, and stops every task. After it the stores may close.
    pub async fn close(&self) {
        self.drain();
        self.hub.shut_down().await;
    }
}
