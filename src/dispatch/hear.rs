//! What a shard says about leases of this replica: others have settled, extended or revoked them. It is heard
//! beside the feed, which may wait for a claim. A message that was lost is made good by questions, see
//! [`super::watch`].

use std::sync::Arc;

use tokio::sync::broadcast::error::RecvError;
use tokio_util::sync::CancellationToken;

use crate::shards::Shard;
use crate::store::{About, Event};

use super::streams::Streams;

/// Hears the shard, until `stop` or its end.
pub(super) async fn run(shard: Shard, streams: Arc<Streams>, stop: CancellationToken) {
    let mut events = shard.events(About::Leases);
    loop {
        let event = tokio::select! {
            () = stop.cancelled() => return,
            event = events.recv() => event,
        };
        match event {
            Ok(Event::Lease(hint)) => streams.apply(shard.index(), hint),
            // A store of which nobody else knows has nothing to say about leases.
            Ok(Event::Missed) | Err(RecvError::Lagged(_)) if shard.is_shared() => {
                tracing::info!(shard = %shard.name(), "hints may be lost, all leases are looked up");
                streams.doubt(shard.index());
            }
            Ok(_) | Err(RecvError::Lagged(_)) => {}
            Err(RecvError::Closed) => return,
        }
    }
}
