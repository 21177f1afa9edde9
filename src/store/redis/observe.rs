//! What goes on beside the calls: observing what the shard can promise.

use std::sync::Arc;
use std::time::Duration;

use deadpool_redis::redis::{self, FromRedisValue as _};
use tokio_util::task::AbortOnDropHandle;

use crate::domain::Time;
use crate::pauses::Pauses;
use crate::store::Result;

use super::check::{evicts, is_replica};
use super::facts::Facts;
use super::fault;
use super::hints::Hints;
use super::link::Lane;
use super::shard::Shard;

/// How often the shard is asked what it can promise.
const OBSERVE_EVERY: Duration = Duration::from_secs(10);
/// Pauses between looks that bring each other about: the first and the longest.
const PAUSES: (Duration, Duration) = (Duration::from_millis(50), Duration::from_secs(2));
/// Reads every now and then what a write reaches, and whether the shard can still be written to. A shard that
/// was never reached is tried more often.
pub(super) fn observe(shard: Arc<Shard>, hints: Arc<Hints>) -> AbortOnDropHandle<()> {
    AbortOnDropHandle::new(tokio::spawn(async move {
        let mut pauses = Pauses::new(PAUSES.0, PAUSES.1);
        loop {
            let was_known = shard.condition.is_known();
            let pause = if was_known { OBSERVE_EVERY } else { PAUSES.1 };
            let changed = tokio::select! {
                () = tokio::time::sleep(pause) => false,
                () = shard.condition.replaced() => true,
            };
            look(&shard).await;
            // Leases of a replica that is no more are nobody's alarm: whoever lives looks for them.
            hints.upkeep(Some(Time(0)));
            match changed {
                // While lanes lead to two processes, a look at the one says that it is not the other.
                true => tokio::time::sleep(pauses.pause()).await,
                false => pauses.reset(),
            }
        }
    }))
}

/// One look.
pub(super) async fn look(shard: &Shard) {
    if shard.link.is_outdated().await {
        tracing::warn!(shard = %shard.name, "sentinel names another primary");
        shard.link.disconnect();
    }
    // Notes the time, too, so that a clock that goes back is seen.
    if let Err(error) = shard.identify().await {
        tracing::debug!(shard = %shard.name, %error, "the shard does not answer");
        return;
    }
    let Ok(mut connection) = shard.connection(Lane::Read).await else { return };
    let info: String = match redis::cmd("INFO").query_async(&mut connection).await {
        Ok(info) => info,
        Err(error) => {
            shard.link.failed(Lane::Read, &error);
            return;
        }
    };
    match settings(shard).await {
        Ok(settings) => shard.condition.learn(&shard.name, Facts::read(&info, &settings)),
        Err(error) => {
            tracing::debug!(shard = %shard.name, %error, "what a write reaches cannot be read");
        }
    }
    shard.condition.evicts(evicts(&info));
    if is_replica(&info) {
        tracing::error!(shard = %shard.name, "redis has become a read-only replica; its primary is looked for");
        shard.link.disconnect();
    }
}

/// The settings that decide; none where it is forbidden to read them.
async fn settings(shard: &Shard) -> Result<Vec<(String, String)>> {
    let mut connection = shard.connection(Lane::Read).await?;
    let mut settings = redis::cmd("CONFIG");
    settings.arg("GET").arg("*append*");
    match settings.query_async::<redis::Value>(&mut connection).await {
        Ok(value) => Ok(Vec::from_redis_value(value).unwrap_or_default()),
        // Redis has answered that it is forbidden.
        Err(error) if error.code().is_some() => Ok(Vec::new()),
        Err(error) => Err(fault::of_call(&error, true)),
    }
}
