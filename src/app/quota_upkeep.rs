//! Numbers that quotas need: live servers, which share the rates, and waiting jobs of namespaces.

use std::collections::HashMap;

use futures::future::{join_all, select_all};
use tokio::time::Instant;

use crate::auth::quota::namespace_meter::READ_INTERVAL;
use crate::auth::{Authenticator, NamespaceMeters, NamespaceTable};
use crate::domain::ShardName;
use crate::scheduler::Scheduler;
use crate::shards::{Shard, Shards};

/// Time that a shard rests behind each read of waiting jobs, as a multiple of the read: all servers together read for a
/// tenth of the time at most.
const REST: u32 = 9;

/// Waiting jobs of namespaces by shard, as they were read last.
type LastCounts = HashMap<ShardName, HashMap<String, u64>>;

/// Keeps the numbers up to date while there are identities.
pub(super) async fn run(scheduler: Scheduler, authenticator: Authenticator) {
    let Some(namespaces) = authenticator.namespaces() else { return };
    let servers = follow_servers(scheduler.shards(), &authenticator);
    tokio::join!(servers, follow_namespaces(&scheduler, namespaces));
}

/// Sets the number of live servers with each heartbeat.
async fn follow_servers(shards: &Shards, authenticator: &Authenticator) {
    let mut states: Vec<_> = shards.all().iter().map(Shard::watch_shared_state).collect();
    loop {
        authenticator.set_servers(shards.live_replicas());
        let changes = states.iter_mut().map(|state| Box::pin(state.changed()));
        if select_all(changes).await.0.is_err() {
            return;
        }
    }
}

/// Reads the waiting jobs of namespaces with a quota, about once a second while there are any.
async fn follow_namespaces(scheduler: &Scheduler, namespaces: &NamespaceMeters) {
    let mut last = LastCounts::new();
    loop {
        let table = namespaces.wait_for_any().await;
        let next = Instant::now() + READ_INTERVAL;
        read_namespaces(scheduler, namespaces, &table, &mut last).await;
        tokio::time::sleep_until(next).await;
    }
}

async fn read_namespaces(
    scheduler: &Scheduler,
    namespaces: &NamespaceMeters,
    table: &NamespaceTable,
    last: &mut LastCounts,
) {
    table.begin_read();
    let read =
        async |shard: &Shard| (shard.name().clone(), read_shard(scheduler, table, shard).await);
    let shards = scheduler.shards().all();
    for (shard, counts) in join_all(shards.iter().map(read)).await {
        // A shard that does not answer counts as it did last.
        if let Some(counts) = counts {
            last.insert(shard, counts);
        }
    }
    let mut sums: HashMap<String, u64> = HashMap::new();
    for (name, jobs) in last.values().flatten() {
        *sums.entry(name.clone()).or_default() += jobs;
    }
    namespaces.end_read(table, &sums);
}

/// Returns the waiting jobs of namespaces on a shard; `None`: it does not answer.
async fn read_shard(
    scheduler: &Scheduler,
    table: &NamespaceTable,
    shard: &Shard,
) -> Option<HashMap<String, u64>> {
    let servers = u32::try_from(scheduler.shards().live_replicas()).unwrap_or(u32::MAX);
    let rest = (REST + 1).saturating_mul(servers) - 1;
    let mut counts = HashMap::new();
    for prefix in table.outermost() {
        if shard.is_down() {
            return None;
        }
        let add = |topic: &_, jobs| {
            for name in table.names_of(topic) {
                *counts.entry(name.to_owned()).or_default() += jobs;
            }
        };
        if let Err(error) = scheduler.count_waiting(shard, prefix, rest, add).await {
            tracing::debug!(%error, "cannot read the waiting jobs of namespaces for their quotas");
            return None;
        }
    }
    Some(counts)
}
