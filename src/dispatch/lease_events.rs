//! What a shard says about leases of this replica: others have settled, extended or revoked them. It is heard
//! beside the feed, which may wait for a claim. A message that was lost is made good by questions, see
//! [`super::watch`].

use std::sync::Arc;

use tokio::sync::broadcast::error::RecvError;
use tokio_util::sync::CancellationToken;

use crate::shards::Shard;
use crate::store::{EventKind, ShardEvent};

use super::stream_registry::StreamRegistry;

/// Hears the shard, until `stop` or its end.
pub(super) async fn run(shard: Shard, streams: Arc<StreamRegistry>, stop: CancellationToken) {
    let mut events = shard.events(EventKind::Leases);
    loop {
        let event = tokio::select! {
            () = stop.cancelled() => return,
            event = events.recv() => event,
        };
        match event {
            Ok(ShardEvent::Lease(hint)) => streams.apply_hint(shard.index(), hint),
            Err(RecvError::Closed) => return,
            // A store of which nobody else knows has nothing to say about leases.
            _ if !shard.is_shared() => {}
            // The store has told the log why.
            Ok(ShardEvent::EventsMissed) => {
                tracing::debug!(shard = %shard.name(), "all leases are looked up");
                streams.request_lookup(shard.index());
            }
            Err(RecvError::Lagged(_)) => {
                tracing::info!(shard = %shard.name(), "hints may be lost, all leases are looked up");
                streams.request_lookup(shard.index());
            }
            Ok(_) => {}
        }
    }
}
