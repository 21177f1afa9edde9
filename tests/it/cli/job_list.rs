use serde_json::Value;

use super::terminal::Terminal;
use super::{command, finish, ringq, rows};
use ringq::pb::NackAction;

use crate::harness::{Server, job, millis};

#[tokio::test]
async fn jobs_are_listed_by_state() {
    let server = Server::start().await;
    let client = server.connect().await;
    client.enqueue(job("mail").with_id("later").with_delay(millis(3_600_000))).await;
    client.enqueue(job("mail").with_id("dead").with_priority(9)).await;
    let delivery = client.pull_one("mail").await;
    let mut item = crate::harness::nack(&delivery.receipt, NackAction::DeadLetter);
    item.error = "a\nlong\u{1b}[31m story ".repeat(10);
    client.nack(item).await;
    client.enqueue(job("mail").with_id("ready")).await;

    let table = rows(&ringq(&server, &["job", "list", "mail"]).await.ok());
    assert_eq!(table[0][..3], ["ID", "STATE", "DUE"]);
    let ids: Vec<_> = table[1..].iter().map(|row| (row[0].as_str(), row[1].as_str())).collect();
    assert_eq!(ids, [("ready", "READY"), ("later", "SCHEDULED"), ("dead", "DEAD")]);
    assert_eq!(table[2][2], "in 1h");
    assert!(table[3].last().unwrap().starts_with("a\\nlong\\u{1b}[31m"), "{table:?}");

    let args = ["job", "list", "mail", "--state", "DEAD,Ready", "-o", "JSON"];
    let jobs = ringq(&server, &args).await.json();
    let ids: Vec<&Value> = jobs.as_array().unwrap().iter().map(|job| &job["spec"]["id"]).collect();
    assert_eq!(ids, ["dead", "ready"]);
}

#[tokio::test]
async fn payloads_are_listed_on_demand() {
    let server = Server::start().await;
    server.connect().await.enqueue(job("mail").with_id("a").with_text("hello")).await;
    let list = async |flags: &[&str]| {
        let args: Vec<_> = ["job", "list", "mail"].iter().chain(flags).copied().collect();
        ringq(&server, &args).await
    };
    let jobs = list(&["--full", "-o", "json"]).await.json();
    assert_eq!(jobs[0]["spec"]["payload"]["text"], "hello");
    assert!(list(&["-o", "json"]).await.json()[0]["spec"].get("payload").is_none());
    list(&["--full"]).await.fails(2, &["-o json", "`ringq job get`"]);
    list(&["--limit", "many"]).await.fails(2, &["not a whole number"]);
}

#[tokio::test]
async fn a_limit_holds_and_is_reported() {
    let server = Server::start().await;
    let jobs = (0..1_234).map(|n| job("bulk").with_id(format!("j{n}"))).collect();
    server.connect().await.enqueue_all(jobs).await;
    let ran = ringq(&server, &["job", "list", "bulk"]).await;
    assert_eq!(ran.stderr, "the first 100; --limit 0 lists all\n");
    assert_eq!(ran.ok().lines().count(), 101);
    for (limit, want) in [("0", 1_234), ("600", 600), ("1234", 1_234), ("9999", 1_234)] {
        let args = ["job", "list", "bulk", "--limit", limit, "-o", "json"];
        let ran = ringq(&server, &args).await;
        assert_eq!(ran.stderr.is_empty(), want == 1_234, "{limit}: {}", ran.stderr);
        assert_eq!(ran.json().as_array().unwrap().len(), want, "{limit}");
    }
}

#[tokio::test]
async fn nothing_to_list_is_distinguished_from_no_topic() {
    let server = Server::start().await;
    server.connect().await.enqueue(job("mail")).await;
    let ran = ringq(&server, &["job", "list", "mail", "--state", "dead"]).await;
    assert_eq!(ran.stderr, "no such jobs in mail\n");
    assert_eq!(ran.ok(), "");
    let args = ["job", "list", "mail", "--state", "dead", "-o", "json"];
    assert_eq!(ringq(&server, &args).await.json(), serde_json::json!([]));
    ringq(&server, &["job", "list", "mial"]).await.fails(3, &["mial", "`ringq topic list`"]);
    ringq(&server, &["job", "list", "mail", "--state", "gone"]).await.fails(2, &["expired"]);
}

/// A terminal shows the main columns of a job, and an id that can be copied.
#[tokio::test]
async fn long_ids_leave_room_for_the_columns_on_a_terminal() {
    let server = Server::start().await;
    let client = server.connect().await;
    let id = "0123456789abcdef".repeat(4);
    client.enqueue(job("mail").with_id(&id).with_delay(millis(3_600_000))).await;
    client.enqueue(job("mail").with_id("short")).await;
    let list = async |columns| {
        let terminal = Terminal::of(columns);
        let mut command = command(server.grpc, &["job", "list", "mail"]);
        let child = command.stdout(terminal.stdio()).spawn().unwrap();
        drop(command);
        assert_eq!(finish(child).await.code, 0);
        terminal.text()
    };
    let narrow = list(80).await;
    let lines: Vec<&str> = narrow.lines().collect();
    assert_eq!(lines[0], "ID");
    assert!(lines[1].starts_with("  STATE      DUE    PRIORITY  FAILURES  DELIVERIES  CREATED"));
    assert_eq!(lines[2], "short");
    assert!(lines[3].starts_with("  READY "), "{narrow}");
    assert_eq!(lines[4], id, "whole");
    assert!(lines[5].starts_with("  SCHEDULED  in 1h  0 "), "{narrow}");
    let wide = rows(&list(200).await);
    assert_eq!((&*wide[2][0], &*wide[2][1]), (&*id, "SCHEDULED"), "one line where there is room");
}
