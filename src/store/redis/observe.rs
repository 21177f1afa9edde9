//! What goes on beside the calls: observing what the shard can promise.

use std::sync::Arc;
use std::time::Duration;

use deadpool_redis::redis::{self, FromRedisValue as _};
use tokio_util::task::AbortOnDropHandle;

use crate::domain::Time;
use crate::domain::limit::CONFIRM_MAX;
use crate::pauses::Pauses;
use crate::store::Result;

use super::check::{evicts, is_replica};
use super::durability::Wait;
use super::hints::Hints;
use super::link::Lane;
use super::shard::Shard;

/// How often the shard is asked what it can promise.
const OBSERVE_EVERY: Duration = Duration::from_secs(10);
/// Pauses between looks that bring each other about: the first and the longest.
const PAUSES: (Duration, Duration) = (Duration::from_millis(50), Duration::from_secs(2));
/// How often a Redis that syncs every second is asked to confirm a write, right after it has synced.
const TRIALS: usize = 5;
/// How long each time: all of it far shorter than a second.
const TRIAL: Duration = Duration::from_millis(40);
/// More confirmations than that cannot be true.
const CONFIRMED_MAX: usize = 1;

/// Reads every now and then what a write reaches, and whether the shard can still be written to. A shard that
/// was never reached is tried more often.
pub(super) fn observe(shard: Arc<Shard>, hints: Arc<Hints>) -> AbortOnDropHandle<()> {
    AbortOnDropHandle::new(tokio::spawn(async move {
        let mut pauses = Pauses::new(PAUSES.0, PAUSES.1);
        loop {
            let was_known = shard.contact.is_known();
            let pause = if was_known { OBSERVE_EVERY } else { PAUSES.1 };
            let changed = tokio::select! {
                () = tokio::time::sleep(pause) => false,
                () = shard.durability.changed() => true,
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
    if shard.link.is_astray().await {
        tracing::warn!(shard = %shard.name, "sentinel names another primary");
        shard.link.leave();
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
    if let Err(error) = look_at_durability(shard, &info).await {
        tracing::debug!(shard = %shard.name, %error, "what a write reaches cannot be read");
    }
    shard.contact.evicts(evicts(&info));
    if is_replica(&info) {
        tracing::error!(shard = %shard.name, "redis has become a read-only replica; its primary is looked for");
        shard.link.leave();
    }
}

/// Looks at what a write reaches, given the INFO of the shard.
///
/// # Errors
/// The shard does not answer; what was observed before stands.
async fn look_at_durability(shard: &Shard, info: &str) -> Result<()> {
    let mut survey = shard.durability.read(info, &settings(shard).await?);
    if survey.needs_trial() && survey.tried(waitaof_is_true(shard).await?) {
        tracing::warn!(
            shard = %shard.name,
            "redis confirms writes that are not synced yet (WAITAOF), so they count as held in \
             memory; set appendfsync to always, or use Redis 7.4.3 or newer"
        );
    }
    shard.durability.learn(&shard.name, survey);
    Ok(())
}

/// The settings that decide; none where it is forbidden to read them.
async fn settings(shard: &Shard) -> Result<Vec<(String, String)>> {
    let mut connection = shard.connection(Lane::Read).await?;
    let mut settings = redis::cmd("CONFIG");
    settings.arg("GET").arg("*append*");
    let value = settings.query_async::<redis::Value>(&mut connection).await;
    Ok(value.ok().and_then(|value| Vec::from_redis_value(value).ok()).unwrap_or_default())
}

/// Whether this Redis confirms a write no sooner than it is synced, seen from outside: one that syncs every
/// second has not synced again right after it has done so.
async fn waitaof_is_true(shard: &Shard) -> Result<bool> {
    let mut connection = shard.own_connection().await?;
    let mut trial = async |limit| {
        let kept = shard.mark(&mut connection).await;
        kept.is_ok() && matches!(Wait::DISK.until(&mut connection, limit).await, Ok(Some(_)))
    };
    if !trial(CONFIRM_MAX).await {
        return Ok(false);
    }
    let mut confirmed = 0;
    for _ in 0..TRIALS {
        confirmed += usize::from(trial(TRIAL).await);
    }
    Ok(confirmed <= CONFIRMED_MAX)
}
