use super::{ringq, rows};
use crate::harness::{Server, take};

#[tokio::test]
async fn workers_are_listed() {
    let server = Server::start().await;
    let none = ringq(&server, &["worker", "list"]).await;
    assert_eq!(none.stderr, "no worker has a stream open at this server\n");
    assert_eq!(none.ok(), "");
    let client = server.connect().await;
    let request = ringq::pb::StreamRequest { worker_id: "w1".to_owned(), ..take("mail") };
    let _worker = client.stream(request).await;
    let table = rows(&ringq(&server, &["worker", "list", "mail"]).await.ok());
    assert_eq!(table[0][..3], ["WORKER", "TOPICS", "RUNNING"]);
    assert_eq!(table[1][..3], ["w1", "mail", "0"]);
    let json = ringq(&server, &["worker", "list", "-o", "json"]).await.json();
    assert_eq!(json[0]["workerId"], "w1");
    let other = ringq(&server, &["worker", "list", "post", "-o", "json"]).await.json();
    assert_eq!(other, serde_json::json!([]));
}
