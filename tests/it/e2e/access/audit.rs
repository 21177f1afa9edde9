//! The audit log.

use std::fs;
use std::path::Path;

use ringq::pb;
use serde_json::Value;
use tokio::process::Command;
use tonic::Code;

use crate::harness::{Server, eventually, job};

use super::identities::{Caller, IdentityDir, table};

const TABLES: [(&str, &str); 2] = [("app", "producer = ['mail.*']"), ("ops", "operator = ['*']")];

async fn server(dir: &IdentityDir, log: &Path, calls: &str) -> Server {
    let lines = format!("audit_log = {log:?}\naudit_calls = '{calls}'");
    dir.setup().config(&lines).start().await
}

fn identities() -> IdentityDir {
    IdentityDir::new(&TABLES.map(|(name, lines)| table(name, lines)).concat())
}

/// Returns the lines of the only file of the log.
fn lines(log: &Path) -> Vec<Value> {
    let mut files: Vec<_> = fs::read_dir(log).unwrap().map(|file| file.unwrap().path()).collect();
    assert_eq!(files.len(), 1, "{files:?}");
    let file = files.remove(0);
    let name = file.file_name().unwrap().to_str().unwrap().to_owned();
    assert!(name.starts_with("ringq-audit.20") && name.ends_with(".jsonl"), "{name}");
    let text = fs::read_to_string(file).unwrap();
    text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

async fn wait_for(log: &Path, count: usize) -> Vec<Value> {
    eventually("its lines", async || Some(lines(log)).filter(|lines| lines.len() >= count)).await
}

/// Enqueues a job and deletes it as another identity, sets a shard, and is refused twice.
async fn calls(server: &Server) {
    let app = Caller::connect(server, "app").await;
    let ops = app.as_identity("ops");
    app.enqueue(pb::JobSpec { id: "a".to_owned(), ..job("mail.x") }).await;
    let (topic, id) = ("mail.x".to_owned(), "a".to_owned());
    let delete = pb::DeleteRequest { topic, id, allow_missing: false };
    ops.call::<pb::DeleteResponse>("QueueService/Delete", &delete).await.unwrap();
    let none = pb::DeleteRequest { id: "none".to_owned(), ..delete };
    let gone = ops.call::<pb::DeleteResponse>("QueueService/Delete", &none).await.unwrap_err();
    assert_eq!(gone.code(), Code::NotFound);
    let (name, state) = ("s0".to_owned(), pb::ShardState::Active.into());
    let set = pb::SetShardStateRequest { name, state };
    ops.call::<pb::SetShardStateResponse>("AdminService/SetShardState", &set).await.unwrap();
    app.call::<pb::SetShardStateResponse>("AdminService/SetShardState", &set).await.unwrap_err();
    let other = pb::EnqueueRequest { job: Some(job("bank")), ..Default::default() };
    app.call::<pb::EnqueueResponse>("QueueService/Enqueue", &other).await.unwrap_err();
    let stranger = Caller::with(server, Some("Bearer planted-secret")).await;
    stranger.call::<pb::EnqueueResponse>("QueueService/Enqueue", &other).await.unwrap_err();
}

/// Returns what the lines have under these keys.
fn rows(lines: &[Value], keys: &[&str]) -> Vec<String> {
    let cell = |line: &Value, key: &&str| line.get(*key).map_or("-".into(), ToString::to_string);
    let row = |line: &Value| keys.iter().map(|key| cell(line, key)).collect::<Vec<_>>().join(" ");
    lines.iter().map(|line| row(line).replace('"', "")).collect()
}

/// Counts and removes jobs of a topic, whose lines have their number, and is refused for one that does not exist.
async fn purges(server: &Server) {
    let app = Caller::connect(server, "app").await;
    for _ in 0..20 {
        app.enqueue(job("mail.x")).await;
    }
    let ops = app.as_identity("ops");
    let states = vec![pb::JobState::Ready.into()];
    let name = "mail.x".to_owned();
    let count = pb::PurgeTopicRequest { name, states, validate_only: true, group: None };
    let purge = pb::PurgeTopicRequest { validate_only: false, ..count.clone() };
    let none = pb::PurgeTopicRequest { name: "none".to_owned(), ..purge.clone() };
    let method = "TopicService/PurgeTopic";
    for purge in [&count, &purge, &purge] {
        ops.call::<pb::PurgeTopicResponse>(method, purge).await.unwrap();
    }
    ops.call::<pb::PurgeTopicResponse>(method, &none).await.unwrap_err();
}

#[tokio::test]
async fn changes_and_refusals_are_logged_with_who_did_what_to_which() {
    let (dir, log) = (identities(), tempfile::tempdir().unwrap());
    let server = server(&dir, log.path(), "changes").await;
    calls(&server).await;
    let lines = wait_for(log.path(), 6).await;
    assert_eq!(
        rows(&lines, &["rpc", "identity", "topics", "jobs", "shard", "code"]),
        [
            "Delete ops [mail.x] [mail.x/a] - OK",
            "Delete ops [mail.x] [mail.x/none] - NOT_FOUND",
            "SetShardState ops - - s0 OK",
            "SetShardState app - - - PERMISSION_DENIED",
            "Enqueue app [bank] - - PERMISSION_DENIED",
            "Enqueue - - - - UNAUTHENTICATED",
        ]
    );
    for line in &lines {
        assert!(line["peer"].as_str().unwrap().starts_with("127.0.0.1:"), "{line}");
        assert!(line["time"].as_str().unwrap().ends_with('Z') && line["took_ms"].is_u64());
        assert_eq!(line["request_id"].as_str().unwrap().len(), 16);
    }
    assert!(lines[4]["error"].as_str().unwrap().contains("no pattern of its role producer"));

    purges(&server).await;
    let lines = wait_for(log.path(), 10).await;
    assert_eq!(
        rows(&lines[6..], &["rpc", "identity", "topics", "jobs", "jobs_count", "code"]),
        [
            "PurgeTopic ops [mail.x] - - OK",
            "PurgeTopic ops [mail.x] - 20 OK",
            "PurgeTopic ops [mail.x] - 0 OK",
            "PurgeTopic ops [none] - - NOT_FOUND",
        ]
    );
    dir.write(
        "identities.toml",
        &TABLES.map(|(name, lines)| table(name, lines)).concat().replace("mail", "post"),
    );
    let lines = wait_for(log.path(), 11).await;
    assert_eq!(rows(&lines[10..], &["event", "rpc"]), ["identities_read -"]);
}

#[tokio::test]
async fn all_calls_are_logged_by_a_setting_and_health_is_not() {
    let (dir, log) = (identities(), tempfile::tempdir().unwrap());
    let server = server(&dir, log.path(), "all").await;
    calls(&server).await;
    let app = Caller::connect(&server, "app").await;
    app.raw("grpc.health.v1.Health/Check", Vec::new().into()).await.unwrap();
    let jobs = vec![job("mail.x"); 20];
    let batch = pb::BatchEnqueueRequest { jobs, ..Default::default() };
    app.call::<pb::BatchEnqueueResponse>("QueueService/BatchEnqueue", &batch).await.unwrap();
    let lines = wait_for(log.path(), 8).await;
    let rows = rows(&lines, &["rpc", "identity", "topics", "code"]);
    assert_eq!(rows[0], "Enqueue app [mail.x] OK");
    assert_eq!(rows[7], "BatchEnqueue app [mail.x] OK");
    assert_eq!(rows.len(), 8, "{rows:?}");
}

/// Answers that hide what they refuse are logged with it, even those that are OK.
#[tokio::test]
async fn denials_that_the_answer_hides_are_logged() {
    let tables = table("mail", "namespaces = ['mail.']\nproducer = ['*']\nworker = ['*']")
        + &table("bank", "producer = ['*']\nworker = ['*']\nviewer = ['bank']");
    let dir = IdentityDir::new(&tables);
    let log = tempfile::tempdir().unwrap();
    let server = server(&dir, log.path(), "changes").await;
    let bank = Caller::connect(&server, "bank").await;
    bank.enqueue(pb::JobSpec { id: "a".to_owned(), ..job("bank") }).await;
    let pull = pb::PullRequest { topics: vec!["bank".to_owned()], ..Default::default() };
    let pulled = bank.call::<pb::PullResponse>("QueueService/Pull", &pull).await.unwrap();
    let receipt = pulled.deliveries[0].receipt.clone();

    let mail = bank.as_identity("mail");
    let (topic, id) = ("bank".to_owned(), "a".to_owned());
    let get = pb::GetRequest { topic: topic.clone(), id: id.clone(), view: 0 };
    mail.call::<pb::GetResponse>("QueueService/Get", &get).await.unwrap_err();
    let delete = pb::DeleteRequest { topic, id, allow_missing: true };
    mail.call::<pb::DeleteResponse>("QueueService/Delete", &delete).await.unwrap();
    let item = pb::AckItem { receipt, ..Default::default() };
    let ack = pb::AckRequest { items: vec![item] };
    mail.call::<pb::AckResponse>("QueueService/Ack", &ack).await.unwrap();
    let jobs = vec![job("mail.x"), job("bank"), job("bank")];
    let batch = pb::BatchEnqueueRequest { jobs, ..Default::default() };
    mail.call::<pb::BatchEnqueueResponse>("QueueService/BatchEnqueue", &batch).await.unwrap();
    // What is allowed has no line.
    mail.enqueue(job("mail.x")).await;
    for who in ["bank", "stranger"] {
        let header = format!("authorization: Bearer {}", super::identities::token(who));
        let url = format!("http://{}/metrics", server.http);
        let status = ["-s", "-o", "/dev/null", "-w", "%{http_code}", "-H", &header, &url];
        let answer = Command::new("curl").args(status).output().await.unwrap();
        assert!([&b"401"[..], b"403"].contains(&&*answer.stdout), "{answer:?}");
    }
    let lines = wait_for(log.path(), 6).await;
    assert_eq!(
        rows(&lines, &["rpc", "identity", "topics", "jobs", "denied", "code"]),
        [
            "Get mail [bank] [bank/a] 1 NOT_FOUND",
            "Delete mail [bank] [bank/a] 1 OK",
            "Ack mail [bank] [bank/a] 1 OK",
            "BatchEnqueue mail [bank] - 2 OK",
            "GET /metrics bank - - - PERMISSION_DENIED",
            "GET /metrics - - - - UNAUTHENTICATED",
        ]
    );
    assert!(lines[4]["peer"].as_str().unwrap().starts_with("127.0.0.1:"), "{}", lines[4]);
}

/// A server that ends writes what it has; the next one goes on in the same file.
#[tokio::test]
async fn no_line_is_lost_at_the_end() {
    let (dir, log) = (identities(), tempfile::tempdir().unwrap());
    let mut server = server(&dir, log.path(), "changes").await;
    calls(&server).await;
    server.terminate();
    server.exit().await;
    assert_eq!(lines(log.path()).len(), 6);
    server.restart().await;
    calls(&server).await;
    server.terminate();
    server.exit().await;
    assert_eq!(lines(log.path()).len(), 12);
}

#[tokio::test]
async fn a_directory_that_cannot_be_written_stops_the_start() {
    let failure = identities().setup().config("audit_log = '/proc/no'").fail().await;
    assert!(failure.stderr.contains("cannot write the audit log"), "{}", failure.stderr);
    assert!(failure.stderr.contains("--audit-log"), "{}", failure.stderr);
}

/// Whatever comes after them, suppressed refusals are in a line: their number, and up to 16 of their topics.
#[tokio::test]
async fn refusals_that_have_no_line_are_counted_and_named_soon() {
    let (dir, log) = (identities(), tempfile::tempdir().unwrap());
    let mut server = server(&dir, log.path(), "changes").await;
    let app = Caller::connect(&server, "app").await;
    let enqueue = async |topic: String| {
        let request = pb::EnqueueRequest { job: Some(job(&topic)), ..Default::default() };
        app.call::<pb::EnqueueResponse>("QueueService/Enqueue", &request).await.unwrap_err();
    };
    const REFUSED: u64 = 101;
    enqueue("harmless".to_owned()).await;
    for number in 1..REFUSED {
        enqueue(format!("bank.{number:03}")).await;
    }
    let counted = |lines: &[Value]| {
        let of = |line: &Value| 1 + line["suppressed"].as_u64().unwrap_or(0);
        lines.iter().filter(|line| line["code"] == "PERMISSION_DENIED").map(of).sum::<u64>()
    };
    let lines = eventually("all are counted, and no call comes", async || {
        Some(lines(log.path())).filter(|lines| counted(lines) == REFUSED)
    })
    .await;
    let last = lines.last().unwrap();
    assert_eq!((&last["event"], &last["identity"]), (&"call".into(), &"app".into()));
    let topics = last["suppressed_topics"].as_array().unwrap();
    assert!((1..=16).contains(&topics.len()), "{last}");
    assert!(topics.iter().all(|topic| topic.as_str().unwrap().starts_with("bank.")), "{last}");
    // And at the end, at once.
    for _ in 0..10 {
        enqueue("late".to_owned()).await;
    }
    server.terminate();
    server.exit().await;
    let lines = self::lines(log.path());
    assert_eq!(counted(&lines), REFUSED + 10, "{lines:?}");
}

/// Callers that prove nothing are known by their addresses: one that floods hides no other.
#[tokio::test]
async fn a_flood_without_a_token_hides_no_other_address() {
    let (dir, log) = (identities(), tempfile::tempdir().unwrap());
    let server = server(&dir, log.path(), "changes").await;
    let refused = async |from: &str| {
        let url = format!("http://{}/v1/ringq.v1.AdminService/ListShards", server.http);
        let options =
            ["-s", "--interface", from, "-H", "content-type: application/json", "-d", "{}", &url];
        let answer = Command::new("curl").args(options).output().await.unwrap();
        assert!(String::from_utf8_lossy(&answer.stdout).contains("credentials"), "{answer:?}");
    };
    for _ in 0..5 {
        refused("127.0.0.1").await;
    }
    refused("127.0.0.2").await;
    refused("127.0.0.1").await;
    let peers = async |address: &str| {
        let lines = lines(log.path());
        let is_from =
            |line: &&Value| line["peer"].as_str().is_some_and(|peer| peer.starts_with(address));
        (lines.iter().filter(is_from).count() > 0).then_some(())
    };
    eventually("the second address is named", async || peers("127.0.0.2:").await).await;
    assert!(peers("127.0.0.1:").await.is_some());
}
