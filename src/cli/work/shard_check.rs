//! Shards that do not answer: a worker gets nothing of what lies there, and hears nothing of that.

use std::time::Duration;

use tokio::time::timeout;

use super::super::exit::print_note;
use super::super::shard::view::is_reachable;
use crate::client::Client;
use crate::pb::ListShardsRequest;

/// Nobody waits long to be told.
const CHECK_TIMEOUT: Duration = Duration::from_secs(2);

/// Says before the first job which do not answer.
pub(super) async fn warn_unreachable_shards(client: &Client) {
    let names = unreachable_shards(client).await;
    if !names.is_empty() {
        let names = names.join(", ");
        print_note(&format!(
            "ringq: jobs wait on shards that do not answer: {names}; `ringq shard list` says why"
        ));
    }
}

/// Their names. Who may not ask, or gets no answer, is told none.
pub(super) async fn unreachable_shards(client: &Client) -> Vec<String> {
    let mut admin = client.admin();
    let asked = timeout(CHECK_TIMEOUT, admin.list_shards(ListShardsRequest::default())).await;
    let Ok(Ok(answer)) = asked else { return Vec::new() };
    let shards = answer.into_inner().shards.into_iter();
    let silent = shards.filter(|shard| !is_reachable(shard));
    silent.map(|shard| shard.name).collect()
}
