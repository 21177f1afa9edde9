//! Observes the durability that the shard can offer, in the background.

use std::sync::Arc;
use std::time::Duration;

use deadpool_redis::redis::{self, FromRedisValue as _};
use tokio_util::task::AbortOnDropHandle;

use crate::backoff::{Backoff, BackoffRange};
use crate::domain::Time;
use crate::store::Result;

use super::check::{evicts, is_replica};
use super::connections::ConnectionLane;
use super::durability_info::RedisDurabilityInfo;
use super::error_mapping;
use super::event_sender::RedisEventSender;
use super::shard::RedisShard;

/// Interval between observations of the shard.
const OBSERVE_EVERY: Duration = Duration::from_secs(10);
/// First and longest pause between observations that cause each other.
const RETRY_PAUSES: BackoffRange =
    BackoffRange { min: Duration::from_millis(50), max: Duration::from_secs(2) };
/// Reads at intervals the durability of a write, and checks that the shard can still be written to. A shard that was
/// never reached is tried more often.
pub(super) fn observe(
    shard: Arc<RedisShard>,
    hints: Arc<RedisEventSender>,
) -> AbortOnDropHandle<()> {
    AbortOnDropHandle::new(tokio::spawn(async move {
        let mut pauses = Backoff::new(RETRY_PAUSES);
        loop {
            let was_known = shard.status.is_known();
            let pause = if was_known { OBSERVE_EVERY } else { RETRY_PAUSES.max };
            let changed = tokio::select! {
                () = tokio::time::sleep(pause) => false,
                () = shard.status.wait_for_replacement() => true,
            };
            observe_once(&shard).await;
            // No live owner watches the leases of a replica that is gone, so each live replica checks for them.
            hints.send_upkeep(Some(Time(0)));
            match changed {
                // While lanes lead to two processes, an observation of one reports that the other is different.
                true => tokio::time::sleep(pauses.next_delay()).await,
                false => pauses.reset(),
            }
        }
    }))
}

/// Makes one observation.
pub(super) async fn observe_once(shard: &RedisShard) {
    if shard.connections.is_outdated().await {
        tracing::warn!(shard = %shard.name, "sentinels name another primary; reconnecting to it");
        shard.connections.disconnect();
    }
    // Stores the time, too, so that a clock that goes back is noticed.
    if let Err(error) = shard.identify().await {
        tracing::debug!(shard = %shard.name, %error, "durability not observed: no answer");
        return;
    }
    let Ok(mut connection) = shard.connection(ConnectionLane::Read).await else { return };
    let info: String = match redis::cmd("INFO").query_async(&mut connection).await {
        Ok(info) => info,
        Err(error) => {
            shard.connections.failed(ConnectionLane::Read, &error);
            return;
        }
    };
    match settings(shard).await {
        Ok(settings) => {
            shard.status.set_observation(&shard.name, RedisDurabilityInfo::read(&info, &settings))
        }
        Err(error) => {
            tracing::debug!(shard = %shard.name, %error, "durability not observed: settings unreadable");
        }
    }
    shard.status.set_eviction_policy(evicts(&info));
    if is_replica(&info) {
        tracing::error!(shard = %shard.name, "redis has become a read-only replica; reconnecting to find its primary");
        shard.connections.disconnect();
    }
}

/// Reads the settings that determine durability; none where the login may not read them.
async fn settings(shard: &RedisShard) -> Result<Vec<(String, String)>> {
    let mut connection = shard.connection(ConnectionLane::Read).await?;
    let mut settings = redis::cmd("CONFIG");
    settings.arg("GET").arg("*append*");
    match settings.query_async::<redis::Value>(&mut connection).await {
        Ok(value) => Ok(Vec::from_redis_value(value).unwrap_or_default()),
        // Redis has answered that the login may not read the settings.
        Err(error) if error.code().is_some() => Ok(Vec::new()),
        Err(error) => Err(error_mapping::call_error(&error, true)),
    }
}
