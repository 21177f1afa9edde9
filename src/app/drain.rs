//! The end of a server, in order and in time: what is under way is finished, what is running may be
//! settled, and nothing is waited for beyond its grace, but for 20 s at most: [`LINGER`] for connections, [`SHARDS_CLOSE_MAX`]
//! for shards, and what the HTTP port and the runtime take.

use std::future::Future;
use std::pin::pin;
use std::time::Duration;

use tokio::time::Instant;

use crate::dispatch::Dispatcher;
use crate::grpc;

use super::Error;

/// How long connections whose clients do not let go may hold up the end, once all is settled.
const CONNECTIONS_CLOSE_MAX: Duration = Duration::from_secs(5);

/// How long it may take to give back what no worker has, and to let go of the shards. What is not given back by
/// then is found by the other replicas, or by this one's next start.
const SHARDS_CLOSE_MAX: Duration = Duration::from_secs(10);

/// How often it is said what is waited for.
const PROGRESS_LOG_INTERVAL: Duration = Duration::from_secs(5);

/// How long settles are waited for by a server that others stand in for, unless its settings say so.
const GRACE: Duration = Duration::from_secs(60);

/// The same for a server that is alone on a shard, whose jobs nobody delivers until it is back: time for settles that
/// are on their way and for jobs of a moment. Longer jobs lose nothing: the server that follows has the same leases.
const GRACE_ALONE: Duration = Duration::from_secs(2);

/// How long settles are waited for.
pub(super) fn grace(are_others_there: bool) -> Duration {
    if are_others_there { GRACE } else { GRACE_ALONE }
}

/// Tells every stream that this replica is leaving and waits until all deliveries are settled, for
/// `grace` at most. What is not settled by then stays leased: its worker can settle it with any
/// replica, or with this one after its restart.
pub(super) async fn drain_streams(dispatcher: &Dispatcher, grace: Duration) {
    let (end, streams) = (Instant::now() + grace, dispatcher.streams_count());
    dispatcher.drain();
    let unsettled = dispatcher.unsettled_count();
    tracing::info!(
        streams,
        unsettled,
        grace_s = grace.as_secs(),
        "streams were told to end; waiting for settles of what their workers hold"
    );
    let mut news =
        tokio::time::interval_at(Instant::now() + PROGRESS_LOG_INTERVAL, PROGRESS_LOG_INTERVAL);
    loop {
        tokio::select! {
            () = dispatcher.wait_idle() => return tracing::info!("every delivery is settled"),
            () = tokio::time::sleep_until(end) => break,
            _ = news.tick() => {
                let left_s = end.duration_since(Instant::now()).as_secs();
                tracing::info!(unsettled = dispatcher.unsettled_count(), left_s, "still waiting for settles");
            }
        }
    }
    let unsettled = dispatcher.unsettled_count();
    tracing::warn!(
        unsettled,
        "the grace is over; these leases stay, and their workers can settle them with any replica"
    );
}

/// Runs `serve` until it ends after `told`, or [`LINGER`] longer than that: connections that are open
/// for no call of theirs end with the process.
pub(super) async fn serve_bounded(
    told: impl Future<Output = Result<(), Error>>,
    serve: impl Future<Output = Result<(), grpc::Error>>,
) -> Result<(), Error> {
    let (mut told, mut serve) = (pin!(told), pin!(serve));
    tokio::select! {
        told = &mut told => told?,
        served = &mut serve => return Ok(served?),
    }
    match tokio::time::timeout(CONNECTIONS_CLOSE_MAX, serve).await {
        Ok(served) => Ok(served?),
        Err(_) => {
            tracing::warn!("connections are open at the end and are cut");
            Ok(())
        }
    }
}

/// Lets go of everything, in time.
pub(super) async fn close_shards(rest: impl Future<Output = ()>) {
    if tokio::time::timeout(SHARDS_CLOSE_MAX, rest).await.is_err() {
        tracing::warn!(
            "a shard does not answer: jobs that no worker has come back when this replica is missed"
        );
    }
}
