use super::work_rig::Work;
use super::{ringq, rows};
use crate::harness::{Server, eventually, job, take};

#[tokio::test]
async fn workers_are_listed() {
    let server = Server::start().await;
    let none = ringq(&server, &["worker", "list"]).await;
    let expected = "no worker takes jobs at this server; \
                  `ringq job list TOPIC --state running` shows what still runs\n";
    assert_eq!(none.stderr, expected);
    assert_eq!(none.ok(), "");
    let client = server.connect().await;
    let request = ringq::pb::StreamRequest { worker_id: "w1".to_owned(), ..take("mail") };
    let _worker = client.stream(request).await;
    let table = rows(&ringq(&server, &["worker", "list", "mail"]).await.ok());
    assert_eq!(table[0][..3], ["WORKER", "TOPICS", "RUNNING"]);
    assert_eq!(table[1][..3], ["w1", "mail", "0"]);
    let json = ringq(&server, &["worker", "list", "-o", "json"]).await.json();
    assert_eq!(json[0]["workerId"], "w1");
    ringq(&server, &["worker", "list", ""]).await.fails(2, &["is a variable not set?"]);
    let other = ringq(&server, &["worker", "list", "post", "-o", "json"]).await.json();
    assert_eq!(other, serde_json::json!([]));
}

/// A worker with its last job has closed its stream; the report about it is still true.
#[tokio::test]
async fn a_worker_that_is_about_to_end_is_not_denied() {
    let server = Server::start().await;
    server.connect().await.enqueue(job("t").with_id("a")).await;
    let wait = "echo begun; while [ ! -e go ]; do sleep 0.02; done";
    let mut work = Work::start(&server, wait, &["--max-jobs", "1"]);
    work.line().await;
    let printed = eventually("its stream is closed", async || {
        let ran = ringq(&server, &["worker", "list", "t"]).await;
        Some(ran.stderr).filter(|printed| !printed.is_empty())
    })
    .await;
    let expected = "no worker takes jobs of t at this server; \
                `ringq job list t --state running` shows what still runs\n";
    assert_eq!(printed, expected);
    let table = rows(&ringq(&server, &["job", "list", "t", "--state", "running"]).await.ok());
    assert_eq!(table[1][..2], ["a", "RUNNING"]);
    work.go();
    assert_eq!(work.done().await.code, Some(0));
}
