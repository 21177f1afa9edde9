//! The handle to all of it.

use std::sync::Arc;

use crate::scheduler::{Listener, Scheduler};
use crate::shards::Shard;

use super::hub::Hub;
use super::ledger::Mode;
use super::pull::{self, Handover, PullOptions};
use super::stream::Home;
use super::streams::Streams;
use super::{Config, Delivery, OpenError, Outbox, StreamOptions, Worker};

/// Gets the jobs of every shard to the streams and pulls of this replica. Cheap to clone.
#[derive(Clone)]
pub struct Dispatcher {
    hub: Arc<Hub>,
}

// === impl Dispatcher ===

impl Dispatcher {
    /// Starts the feeds of all shards, and looks for leases of former lives and of silent replicas.
    /// Must be called within a runtime, once per scheduler, whose hints it hears from then on.
    #[must_use]
    pub fn spawn(scheduler: Scheduler, config: Config) -> Dispatcher {
        let shards = scheduler.shards().all();
        let home = Home {
            clock: scheduler.clock().clone(),
            metrics: scheduler.metrics().clone(),
            owner: scheduler.replica().nonce,
            shards: shards.iter().map(|shard| shard.name().clone()).collect(),
            shared: shards.iter().any(Shard::is_shared),
        };
        let streams = Arc::new(Streams::new(home));
        let (hinted, asked) = (Arc::clone(&streams), Arc::clone(&streams));
        scheduler.listen(Listener {
            hint: Box::new(move |shard, hint| hinted.apply(shard.index(), hint)),
            credit: Box::new(move |stream| asked.credit(stream)),
        });
        Dispatcher { hub: Arc::new(Hub::spawn(scheduler, config, streams)) }
    }

    /// Opens a stream.
    ///
    /// # Errors
    /// [`OpenError`], when there are too many or the replica is leaving.
    pub fn open(&self, options: StreamOptions) -> Result<Outbox, OpenError> {
        let (stream, place) = self.hub.open(options, Mode::Stream)?;
        Ok(Outbox::new(Arc::clone(&self.hub), stream, place))
    }

    /// Jobs that are ready now or within the wait, whatever comes first. A caller that drops this, or the
    /// [`Handover`] before it is done, has got nothing, and nothing is counted.
    ///
    /// # Errors
    /// [`OpenError`], when there are too many streams and pulls or the replica is leaving.
    pub async fn pull(&self, options: PullOptions) -> Result<(Vec<Delivery>, Handover), OpenError> {
        pull::pull(Arc::clone(&self.hub), options).await
    }

    /// The open streams, for people.
    #[must_use]
    pub fn workers(&self) -> Vec<Worker> {
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
    pub fn unsettled(&self) -> usize {
        self.hub.streams.unsettled()
    }

    /// Claims nothing more, gives back what was not sent, and ends every stream with `draining`.
    pub fn drain(&self) {
        self.hub.streams.drain();
    }

    /// Resolves when no worker holds a lease of a stream or pull of this replica any more, for a
    /// replica that drains; broken streams do not count.
    pub async fn idle(&self) {
        self.hub.streams.idle().await;
    }

    /// Stops every task where it is, as a kill does: nothing is given back or detached.
    #[cfg(test)]
    pub(super) fn kill(&self) {
        self.hub.kill();
    }

    /// Drains, waits for claims under way, gives back what reached nobody, lets what was sent by streams that took their
    /// end outlive them, and stops every task. After it the stores may close.
    pub async fn close(&self) {
        self.drain();
        self.hub.end().await;
    }
}
