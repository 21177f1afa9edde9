use super::{ringq, rows};
use crate::harness::{Server, job, millis};

#[tokio::test]
async fn topics_are_listed_with_their_numbers() {
    let server = Server::start().await;
    let none = ringq(&server, &["topic", "list"]).await;
    assert!(none.stderr.contains("no topics yet"), "{}", none.stderr);
    assert_eq!(none.ok(), "");
    let client = server.connect().await;
    client.enqueue(job("mail")).await;
    client.enqueue(job("mail").with_delay(millis(60_000))).await;
    client.enqueue(job("billing.eu")).await;
    let table = rows(&ringq(&server, &["topic", "list"]).await.ok());
    assert_eq!(table[0][..5], ["NAME", "STATE", "READY", "RUNNING", "SCHEDULED"]);
    assert_eq!(table[1][..5], ["billing.eu", "ACTIVE", "1", "0", "0"]);
    assert_eq!(table[2][..5], ["mail", "ACTIVE", "1", "0", "1"]);
    let json = ringq(&server, &["topics", "ls", "bill", "--output=json"]).await.json();
    assert_eq!(json.as_array().unwrap().len(), 1);
    assert_eq!(json[0]["topic"]["name"], "billing.eu");
    assert_eq!(json[0]["stats"]["ready"], "1");
}

#[tokio::test]
async fn groups_of_a_topic_are_listed_with_their_numbers() {
    let server = Server::start().await;
    let client = server.connect().await;
    client.enqueue(job("mail")).await;
    let none = ringq(&server, &["group", "list", "mial"]).await;
    none.fails(3, &["cannot list the groups of topic mial", "`ringq topic list`"]);
    for group in ["acme", "acme", "zeta"] {
        ringq(&server, &["enqueue", "mail", "x", "--group", group]).await.ok();
    }
    let table = rows(&ringq(&server, &["group", "list", "mail"]).await.ok());
    assert_eq!(table[0], ["GROUP", "STATE", "WEIGHT", "READY", "RUNNING", "SCHEDULED", "OLDEST"]);
    assert_eq!(table[1][..6], ["-", "ACTIVE", "1", "1", "0", "0"]);
    assert_eq!(table[2][..6], ["acme", "ACTIVE", "1", "2", "0", "0"]);
    assert_eq!(table[3][..6], ["zeta", "ACTIVE", "1", "1", "0", "0"]);
    let json = ringq(&server, &["groups", "ls", "mail", "-o", "json"]).await.json();
    assert_eq!(json.as_array().unwrap().len(), 3);
    assert_eq!((&json[1]["group"], &json[1]["ready"]), (&"acme".into(), &"2".into()));
}

#[tokio::test]
async fn the_numbers_of_one_topic() {
    let server = Server::start().await;
    server.connect().await.enqueue(job("mail")).await;
    let text = ringq(&server, &["topic", "stats", "mail"]).await.ok();
    assert!(text.contains("ready:         1\n"), "{text}");
    assert!(text.contains("enqueued:      1 in all"), "{text}");
    let json = ringq(&server, &["topic", "stats", "mail", "-o", "json"]).await.json();
    assert_eq!(json["ready"], "1");
    let ran = ringq(&server, &["topic", "stats", "mial"]).await;
    assert_eq!(ran.fails(3, &["cannot read topic mial", "`ringq topic list`"]).stdout, "");
}
