//! Whether the server takes work: as long as one of its shards answers. A single dead one must not
//! take every replica out of service, and without any there is nothing that a replica could do.

use tokio::sync::watch;

use crate::grpc::Health;

/// Whether work is taken from the start, while some of `all` shards are `down`.
pub(super) fn begin(down: usize, all: usize) -> bool {
    let is = down < all;
    if !is {
        tracing::warn!("no shard answers yet, no work is taken");
    }
    is
}

/// Keeps both kinds of readiness up to date while some of `all` shards are `down`. Ends never.
pub(super) async fn follow(
    mut down: watch::Receiver<usize>,
    all: usize,
    ready: &watch::Sender<bool>,
    health: &Health,
) {
    loop {
        let is = *down.borrow_and_update() < all;
        if *ready.borrow() != is {
            if is {
                tracing::info!("a shard answers again, work is taken");
            } else {
                tracing::warn!("no shard answers, no work is taken");
            }
            ready.send_replace(is);
            health.set_serving(is).await;
        }
        if down.changed().await.is_err() {
            // The shards are gone, and the server soon.
            std::future::pending::<()>().await;
        }
    }
}
