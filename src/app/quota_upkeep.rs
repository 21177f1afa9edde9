//! Numbers that quotas need: live servers, which share the rates, and the use of namespaces.

use std::collections::HashMap;

use futures::future::{join_all, select_all};
use tokio::time::Instant;

use crate::auth::quota::namespace_meter::READ_INTERVAL;
use crate::auth::{Authenticator, NamespaceFigure, NamespaceMeters, NamespaceTable};
use crate::domain::ShardName;
use crate::scheduler::Upkeep;
use crate::shards::{Shard, Shards};

/// Time that a shard rests behind each read of a figure, as a multiple of the read: all servers together read it for a
/// tenth of the time at most.
const REST: u32 = 9;

/// A figure of namespaces by shard, as it was read last.
type LastNumbers = HashMap<ShardName, HashMap<String, u64>>;

/// Keeps the numbers up to date while there are identities.
pub(super) async fn run(upkeep: Upkeep, authenticator: Authenticator) {
    let Some(namespaces) = authenticator.namespaces() else { return };
    let servers = follow_servers(upkeep.shards(), &authenticator);
    // Each by itself: the bytes of many jobs take long to read, and waiting jobs do not wait for them.
    let [waiting, stored] =
        NamespaceFigure::ALL.map(|figure| follow_namespaces(&upkeep, namespaces, figure));
    tokio::join!(servers, waiting, stored);
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

/// Reads a figure of the namespaces with a quota of it while there are any, about once a second, and when a job needs it.
async fn follow_namespaces(upkeep: &Upkeep, namespaces: &NamespaceMeters, figure: NamespaceFigure) {
    let mut last = LastNumbers::new();
    loop {
        let table = namespaces.wait_for_any(figure).await;
        let next = Instant::now() + READ_INTERVAL;
        read_namespaces(upkeep, namespaces, (&table, figure), &mut last).await;
        tokio::select! {
            () = tokio::time::sleep_until(next) => {}
            () = namespaces.read_wanted(figure) => {}
        }
    }
}

async fn read_namespaces(
    upkeep: &Upkeep,
    namespaces: &NamespaceMeters,
    (table, figure): (&NamespaceTable, NamespaceFigure),
    last: &mut LastNumbers,
) {
    namespaces.begin_read(table, figure);
    let read = async |shard: &Shard| {
        (shard.name().clone(), read_shard(upkeep, table, figure, shard).await)
    };
    let shards = upkeep.shards().all();
    for (shard, numbers) in join_all(shards.iter().map(read)).await {
        // A shard that does not answer counts as it did last.
        if let Some(numbers) = numbers {
            last.insert(shard, numbers);
        }
    }
    let mut sums: HashMap<String, u64> = HashMap::new();
    for (name, number) in last.values().flatten() {
        *sums.entry(name.clone()).or_default() += number;
    }
    namespaces.end_read(table, figure, &sums);
}

/// Returns a figure of namespaces on a shard; `None`: the shard does not answer, or does not know it.
async fn read_shard(
    upkeep: &Upkeep,
    table: &NamespaceTable,
    figure: NamespaceFigure,
    shard: &Shard,
) -> Option<HashMap<String, u64>> {
    let servers = u32::try_from(upkeep.shards().live_replicas()).unwrap_or(u32::MAX);
    let rest = (REST + 1).saturating_mul(servers) - 1;
    let mut numbers = HashMap::new();
    for prefix in table.outermost(figure) {
        if shard.is_down() {
            return None;
        }
        let add = |topic: &_, number| {
            for name in table.names_of(topic) {
                *numbers.entry(name.to_owned()).or_default() += number;
            }
        };
        let read = match figure {
            NamespaceFigure::WaitingJobs => {
                upkeep.count_waiting(shard, prefix, rest, add).await.map(|()| true)
            }
            NamespaceFigure::StoredBytes => upkeep.sum_stored_bytes(shard, prefix, rest, add).await,
        };
        match read {
            Ok(true) => {}
            // The store has logged the reason.
            Ok(false) => return None,
            Err(error) => {
                tracing::debug!(%error, ?figure, "cannot read the use of namespaces for their quotas");
                return None;
            }
        }
    }
    Some(numbers)
}
