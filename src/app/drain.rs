//! The end of a server, in order and in time: what is under way is finished, what is running may be
//! settled, and nothing is waited for beyond its grace.

use std::future::Future;
use std::pin::pin;
use std::time::Duration;

use crate::dispatch::Dispatcher;
use crate::grpc;

use super::Error;

/// How long connections whose clients do not let go may hold up the end, once all is settled.
const LINGER: Duration = Duration::from_secs(5);

/// Tells every stream that this replica is leaving and waits until all deliveries are settled, for
/// `grace` at most. What is not settled by then stays leased: its worker can settle it with any
/// replica, or with this one after its restart.
pub(super) async fn streams(dispatcher: &Dispatcher, grace: Duration) {
    let grace_s = grace.as_secs();
    tracing::info!(grace_s, "waiting for unsettled jobs, if there are any");
    dispatcher.drain();
    if tokio::time::timeout(grace, dispatcher.idle()).await.is_err() {
        tracing::warn!(grace_s, "deliveries are unsettled at the end of the grace");
    }
}

/// Runs `serve` until it ends after `told`, or [`LINGER`] longer than that: connections that are open
/// for no call of theirs end with the process.
pub(super) async fn bounded(
    told: impl Future<Output = Result<(), Error>>,
    serve: impl Future<Output = Result<(), grpc::Error>>,
) -> Result<(), Error> {
    let (mut told, mut serve) = (pin!(told), pin!(serve));
    tokio::select! {
        told = &mut told => told?,
        served = &mut serve => return Ok(served?),
    }
    match tokio::time::timeout(LINGER, serve).await {
        Ok(served) => Ok(served?),
        Err(_) => {
            tracing::warn!("connections are open at the end and are cut");
            Ok(())
        }
    }
}
