//! Check for shards that do not answer: a worker gets none of their jobs, and no error.

use std::time::Duration;

use tokio::time::timeout;

use super::super::exit::print_note;
use super::super::shard::view::is_reachable;
use crate::client::Client;
use crate::pb::ListShardsRequest;

/// Timeout of the check, which delays the start.
const CHECK_TIMEOUT: Duration = Duration::from_secs(2);

/// Prints a note, before the first job, of the shards that do not answer.
pub(super) async fn warn_unreachable_shards(client: &Client) {
    let names = unreachable_shards(client).await;
    if !names.is_empty() {
        let names = names.join(", ");
        print_note(&format!(
            "ringq: jobs wait on shards that do not answer: {names}; `ringq shard list` prints why"
        ));
    }
}

/// Returns the names of shards that do not answer; none if the call is not allowed or gets no answer.
pub(super) async fn unreachable_shards(client: &Client) -> Vec<String> {
    let mut admin = client.admin();
    let asked = timeout(CHECK_TIMEOUT, admin.list_shards(ListShardsRequest::default())).await;
    let Ok(Ok(answer)) = asked else { return Vec::new() };
    let shards = answer.into_inner().shards.into_iter();
    let silent = shards.filter(|shard| !is_reachable(shard));
    silent.map(|shard| shard.name).collect()
}
