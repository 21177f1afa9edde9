//! Receives the events of a shard about leases of this replica that other replicas have settled, extended or revoked.
//! Runs beside the feed, which may be waiting for a claim. A lost event is made up for by a lookup:
//! [`super::watch`].

use std::sync::Arc;

use tokio::sync::broadcast::error::RecvError;
use tokio_util::sync::CancellationToken;

use crate::shards::Shard;
use crate::store::{EventKind, ShardEvent};

use crate::dispatch::streams::registry::StreamRegistry;

/// Applies the lease events of the shard until `stop` or until the channel closes.
pub(in crate::dispatch) async fn run(
    shard: Shard,
    streams: Arc<StreamRegistry>,
    stop: CancellationToken,
) {
    let mut events = shard.events(EventKind::Leases);
    loop {
        let event = tokio::select! {
            () = stop.cancelled() => return,
            event = events.recv() => event,
        };
        match event {
            Ok(ShardEvent::Lease(hint)) => streams.apply_lease_event(shard.index(), hint),
            Err(RecvError::Closed) => return,
            // A store that no other replica uses sends no lease events.
            _ if !shard.is_shared() => {}
            // The store has logged the cause.
            Ok(ShardEvent::EventsMissed) => {
                tracing::debug!(shard = %shard.name(), "lease events were missed; looking up all leases of the shard");
                streams.request_lookup(shard.index());
            }
            Err(RecvError::Lagged(_)) => {
                tracing::info!(shard = %shard.name(), "lease events were dropped; looking up all leases of the shard");
                streams.request_lookup(shard.index());
            }
            Ok(_) => {}
        }
    }
}
