use super::{ringq, rows};
use crate::harness::Server;

#[tokio::test]
async fn shards_are_listed() {
    let server = Server::start().await;
    let table = rows(&ringq(&server, &["shard", "list"]).await.ok());
    assert_eq!(table[0][..4], ["NAME", "STATE", "WEIGHT", "JOBS"]);
    assert_eq!(table[1][..2], ["s0", "ACTIVE"]);
    assert_eq!(table.len(), 2);
    let json = ringq(&server, &["shard", "list", "-o", "json"]).await.json();
    assert_eq!(json[0]["name"], "s0");
    assert_eq!(json[0]["state"], "SHARD_STATE_ACTIVE");
}
