//! Public handle of the dispatcher.

use std::sync::Arc;

use crate::domain::explain::HolderFacts;
use crate::domain::{Token, TopicName};
use crate::scheduler::{Settler, StreamListener};
use crate::shards::Shard;

use super::dispatch_core::DispatchCore;
use super::streams::ledger::StreamMode;
use super::streams::registry::StreamRegistry;
use super::streams::stream::StreamContext;
use super::streams::topic_streams::topic_streams;
use super::transport::pull::{self, PullHandover, PullOptions};
use super::{Config, JobDelivery, Outbox, StreamOpenError, StreamOptions, TopicStream, WorkerInfo};

/// Delivers the jobs of all shards to the streams and pulls of this replica. Cheap to clone.
#[derive(Clone)]
pub struct Dispatcher {
    core: Arc<DispatchCore>,
}

// === impl Dispatcher ===

impl Dispatcher {
    /// Starts the feeds of all shards and the search for leases of previous runs and of silent replicas. Must be
    /// called within a runtime, once per scheduler. Registers the dispatcher as its listener for lease
    /// events.
    #[must_use]
    pub fn spawn(settler: Settler, config: Config) -> Dispatcher {
        let shards = settler.shards().all();
        let context = StreamContext {
            clock: settler.clock().clone(),
            metrics: settler.metrics().clone(),
            owner: settler.replica().nonce,
            shards: shards.iter().map(|shard| shard.name().clone()).collect(),
            shared: shards.iter().any(Shard::is_shared),
        };
        let streams = Arc::new(StreamRegistry::new(context));
        let (hinted, asked) = (Arc::clone(&streams), Arc::clone(&streams));
        settler.set_listener(StreamListener {
            on_lease_event: Box::new(move |shard, hint| {
                hinted.apply_lease_event(shard.index(), hint)
            }),
            credit: Box::new(move |stream| asked.credit(stream)),
        });
        Dispatcher { core: Arc::new(DispatchCore::spawn(settler, config, streams)) }
    }

    /// Opens a stream.
    ///
    /// # Errors
    /// [`StreamOpenError`], when `streams_max` streams and pulls are open or the replica is draining.
    pub fn open(&self, options: StreamOptions) -> Result<Outbox, StreamOpenError> {
        self.open_until(options, std::future::pending())
    }

    /// Opens a stream that drains when `ends` does, as it would at its maximum age.
    ///
    /// # Errors
    /// [`StreamOpenError`], when `streams_max` streams and pulls are open or the replica is draining.
    pub fn open_until(
        &self,
        options: StreamOptions,
        ends: impl Future<Output = ()> + Send + 'static,
    ) -> Result<Outbox, StreamOpenError> {
        let (stream, place) = self.core.open(options, StreamMode::Stream)?;
        Ok(Outbox::new(Arc::clone(&self.core), stream, place, ends))
    }

    /// Returns jobs that are ready now, or that become ready within the wait. If the caller drops this future, or the
    /// [`PullHandover`] before [`PullHandover::confirm`], the jobs go back to their shards, and no attempt
    /// or delivery is counted.
    ///
    /// # Errors
    /// [`StreamOpenError`], when `streams_max` streams and pulls are open or the replica is draining.
    pub async fn pull(
        &self,
        options: PullOptions,
    ) -> Result<(Vec<JobDelivery>, PullHandover), StreamOpenError> {
        pull::pull(Arc::clone(&self.core), options).await
    }

    /// Returns the open streams, for display.
    #[must_use]
    pub fn workers(&self) -> Vec<WorkerInfo> {
        self.core.streams.workers()
    }

    /// Returns the streams and waiting pulls that take jobs and ask for `topic`, and whether a job of so many bytes fits
    /// their credit.
    #[must_use]
    pub fn topic_streams(&self, topic: &TopicName, bytes: u64) -> Vec<TopicStream> {
        topic_streams(&self.core.streams, topic, bytes)
    }

    /// Returns what is known of the stream that holds a lease; `None`: no stream of this replica does.
    #[must_use]
    pub fn holder(&self, stream: u32, token: Token) -> Option<HolderFacts> {
        self.core.streams.holder(stream, token)
    }

    /// Number of open streams. Pulls are not counted.
    #[must_use]
    pub fn streams_count(&self) -> usize {
        self.core.streams.count()
    }

    /// Number of jobs that the open streams could take now.
    #[must_use]
    pub fn credit_waiting(&self) -> usize {
        self.core.streams.credit_waiting()
    }

    /// Number of unsettled deliveries of streams and pulls of this replica. Broken streams are not counted.
    #[must_use]
    pub fn unsettled_count(&self) -> usize {
        self.core.streams.unsettled_count()
    }

    /// Stops claims, returns unsent jobs, and ends every stream with `draining`.
    pub fn drain(&self) {
        self.core.streams.drain();
    }

    /// Returns whether the replica drains: it opens no more streams.
    #[must_use]
    pub fn is_draining(&self) -> bool {
        self.core.streams.is_draining()
    }

    /// Waits until no worker holds a lease of a stream or pull of this replica. Broken streams are not counted. For a
    /// replica that is draining.
    pub async fn wait_idle(&self) {
        self.core.streams.wait_idle().await;
    }

    /// Cancels every task at once, like a kill: nothing is returned or detached.
    #[cfg(test)]
    pub(super) fn kill(&self) {
        self.core.abort_tasks();
    }

    /// Drains, waits for claims in flight, returns undelivered leases, detaches the sent leases of streams whose
    /// transport took the end, and stops every task. Afterwards the stores may close.
    pub async fn close(&self) {
        self.drain();
        self.core.shut_down().await;
    }
}
