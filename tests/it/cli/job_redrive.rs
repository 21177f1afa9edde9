use ringq::pb::NackAction;

use super::ringq;
use crate::harness::{Client, Server, job, nack};

async fn dead(client: &Client, ids: &[&str]) {
    for id in ids {
        client.enqueue(job("mail").with_id(*id)).await;
        let delivery = client.pull_one("mail").await;
        client.nack(nack(&delivery.receipt, NackAction::DeadLetter)).await;
    }
}

#[tokio::test]
async fn dead_letters_go_back_to_work() {
    let server = Server::start().await;
    let client = server.connect().await;
    dead(&client, &["a", "b", "c", "d"]).await;
    let redrive = async |flags: &[&str]| {
        let args: Vec<_> = ["job", "redrive", "mail"].iter().chain(flags).copied().collect();
        ringq(&server, &args).await
    };
    assert_eq!(redrive(&["--all", "--dry-run"]).await.ok(), "4 would be put back to work\n");
    assert_eq!(redrive(&["a"]).await.ok(), "1 put back to work\n");
    let ran = redrive(&["b", "nope"]).await;
    let ran = ran.fails(1, &["1 of the jobs named were left", "`ringq job get mail ID`"]);
    assert_eq!(ran.stdout, "1 put back to work, 1 left\n");
    assert_eq!(redrive(&["c", "--to", "post", "-o", "json"]).await.json()["redrivenCount"], "1");
    assert_eq!(client.stats("post").await.ready, 1);
    assert_eq!(redrive(&["--all", "--rate", "10/s"]).await.ok(), "1 put back to work\n");
    assert_eq!(client.stats("mail").await.dead, 0);
}

#[tokio::test]
async fn which_must_be_said() {
    let server = Server::start().await;
    ringq(&server, &["job", "redrive", "mail"]).await.fails(2, &["--all"]);
    ringq(&server, &["job", "redrive", "mail", "a", "--all"]).await.fails(2, &["--all"]);
    ringq(&server, &["job", "redrive", "mail", "--all", "--rate", "0"]).await.fails(2, &["10/s"]);
    ringq(&server, &["job", "redrive", "mail", "--all"]).await.fails(3, &["`ringq topic list`"]);
}
