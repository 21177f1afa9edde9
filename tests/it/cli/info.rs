use super::ringq;
use crate::harness::{Server, Setup};

#[tokio::test]
async fn a_server_states_what_it_is() {
    let server = Server::start().await;
    let text = ringq(&server, &["info"]).await.ok();
    for part in
        [env!("CARGO_PKG_VERSION"), "store:        sqlite\n", "FSYNCED", "payload_bytes_max"]
    {
        assert!(text.contains(part), "{part:?} in:\n{text}");
    }
    let json = ringq(&server, &["info", "-o", "json"]).await.json();
    assert_eq!(json["limits"]["payload_bytes_max"], "1048576");
}

#[tokio::test]
async fn what_a_server_has_not_seen_is_unknown_and_no_failure() {
    // No process listens at port 1.
    let server = Setup::new().shard("s0=redis://127.0.0.1:1").start().await;
    let text = ringq(&server, &["info"]).await.ok();
    for part in ["durability:   unknown\n", "unreachable:  s0\n"] {
        assert!(text.contains(part), "{part:?} in:\n{text}");
    }
    let json = ringq(&server, &["info", "-o", "json"]).await.json();
    assert_eq!(json["unreachableShards"][0], "s0");
}
