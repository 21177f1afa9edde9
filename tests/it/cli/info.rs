use super::ringq;
use crate::harness::Server;

#[tokio::test]
async fn a_server_says_what_it_is() {
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
