//! Shutdown of a server, in order and limited in time: calls in flight are finished, and running jobs may be settled
//! for the length of the grace. Everything else takes 20 s at most: [`CONNECTIONS_CLOSE_MAX`] for connections,
//! [`SHARDS_CLOSE_MAX`] for shards, and the time of the HTTP port and the runtime.

use std::future::Future;
use std::pin::pin;
use std::time::Duration;

use tokio::time::Instant;

use super::Error;
use crate::dispatch::Dispatcher;

/// Maximum time that connections which their clients keep open may delay the shutdown, once all jobs are settled.
const CONNECTIONS_CLOSE_MAX: Duration = Duration::from_secs(5);

/// Maximum time to return the jobs that no worker has, and to close the shards. Jobs that are not returned by then
/// are found by the other replicas, or by the next start of this one.
const SHARDS_CLOSE_MAX: Duration = Duration::from_secs(10);

/// Interval of log messages while the drain waits.
const PROGRESS_LOG_INTERVAL: Duration = Duration::from_secs(5);

/// Default time to wait for settles on a server whose shards other replicas serve, too.
const GRACE: Duration = Duration::from_secs(60);

/// Default time to wait for settles on a server that is alone on a shard, whose jobs are not delivered until it is
/// back: enough for settles in flight and for short jobs. Longer jobs lose nothing: the next server has the same
/// leases.
const GRACE_ALONE: Duration = Duration::from_secs(2);

/// Returns the default time to wait for settles.
pub(super) fn grace(are_others_there: bool) -> Duration {
    if are_others_there { GRACE } else { GRACE_ALONE }
}

/// Notifies every stream that this replica is draining and waits until all deliveries are settled, for `grace` at
/// most. A job that is not settled by then stays leased: its worker can settle it with any replica, or with this one
/// after its restart.
pub(super) async fn drain_streams(dispatcher: &Dispatcher, grace: Duration) {
    let (end, streams) = (Instant::now() + grace, dispatcher.streams_count());
    dispatcher.drain();
    let unsettled = dispatcher.unsettled_count();
    tracing::info!(
        streams,
        unsettled,
        grace_s = grace.as_secs(),
        "draining: streams were notified to end; waiting until their workers settle their jobs"
    );
    let mut news =
        tokio::time::interval_at(Instant::now() + PROGRESS_LOG_INTERVAL, PROGRESS_LOG_INTERVAL);
    loop {
        tokio::select! {
            () = dispatcher.wait_idle() => return tracing::info!("drained: every delivery is settled"),
            () = tokio::time::sleep_until(end) => break,
            _ = news.tick() => {
                let left_s = end.duration_since(Instant::now()).as_secs();
                let unsettled = dispatcher.unsettled_count();
                tracing::info!(unsettled, left_s, "draining: still waiting until workers settle their jobs");
            }
        }
    }
    let unsettled = dispatcher.unsettled_count();
    tracing::warn!(
        unsettled,
        "the shutdown grace is over; unsettled jobs stay leased, and their workers can settle them with any replica"
    );
}

/// Runs `serve` until it ends after `drained`, or [`CONNECTIONS_CLOSE_MAX`] longer than that: connections that are
/// open without a call of theirs end with the process.
pub(super) async fn serve_bounded(
    drained: impl Future<Output = Result<(), Error>>,
    serve: impl Future<Output = ()>,
) -> Result<(), Error> {
    let (mut drained, mut serve) = (pin!(drained), pin!(serve));
    tokio::select! {
        drained = &mut drained => drained?,
        () = &mut serve => return Ok(()),
    }
    if tokio::time::timeout(CONNECTIONS_CLOSE_MAX, serve).await.is_err() {
        tracing::warn!("connections are still open after the drain and are closed");
    }
    Ok(())
}

/// Returns the jobs that no worker has and closes the shards, for [`SHARDS_CLOSE_MAX`] at most.
pub(super) async fn close_shards(rest: impl Future<Output = ()>) {
    if tokio::time::timeout(SHARDS_CLOSE_MAX, rest).await.is_err() {
        tracing::warn!(
            "a shard does not answer at shutdown: its jobs that no worker has are delivered again when this replica \
             is detected as gone"
        );
    }
}
