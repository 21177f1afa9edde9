//! Receipts: what a worker that guesses those of others can do.

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use ringq::pb;
use serde_json::json;

use crate::harness::{JsonClient, Redis, Server, eventually, http_get, job};

use super::identities::{Caller, IdentityDir, table, token};

/// Bytes at the end of a receipt that no other worker knows.
const CODE_BYTES: usize = 8;

/// Returns the value of a series of the metrics; 0 without one.
async fn metric(server: &Server, series: &str) -> u64 {
    let text = http_get(server.http, "/metrics").await.1;
    let value = text.lines().find_map(|line| line.strip_prefix(series)?.strip_prefix(' '));
    value.map_or(0, |value| value.parse().unwrap())
}

/// Returns the receipt with other bytes at its end: all that another worker can know, and a guess.
fn guess(receipt: &str, number: u64) -> String {
    let mut bytes = URL_SAFE_NO_PAD.decode(receipt).unwrap();
    let at = bytes.len() - CODE_BYTES;
    let code = u64::from_be_bytes(bytes[at..].try_into().unwrap());
    bytes[at..].copy_from_slice(&code.wrapping_add(number).to_be_bytes());
    URL_SAFE_NO_PAD.encode(bytes)
}

/// Starts a server on each store with two workers of one topic.
async fn servers(dir: &IdentityDir, log: &std::path::Path) -> Vec<(Option<Redis>, Server)> {
    let mut servers = Vec::new();
    for on_redis in [false, true] {
        let redis = if on_redis { Redis::start().await } else { None };
        let setup = dir.setup().config(&format!("metrics_open = true\naudit_log = {log:?}"));
        let setup = match (&redis, on_redis) {
            (Some(redis), _) => setup.shard(format!("s0={}", redis.url())),
            (None, false) => setup,
            (None, true) => continue,
        };
        servers.push((redis, setup.start().await));
    }
    servers
}

/// The bar: a worker that knows everything of a receipt of another one but its last 64 bits settles nothing by it, on any
/// store, by either protocol; its guesses cost the store nothing, and are counted under its name and logged.
#[tokio::test]
async fn a_worker_that_knows_all_but_the_code_of_a_receipt_settles_nothing() {
    let worker = "producer = ['t']\nworker = ['t']\nviewer = ['t']";
    let dir = IdentityDir::new(&(table("victim", worker) + &table("evil", worker)));
    let log = tempfile::tempdir().unwrap();
    for (_redis, server) in servers(&dir, log.path()).await {
        let victim = Caller::connect(&server, "victim").await;
        let evil = victim.as_identity("evil");
        victim.enqueue(pb::JobSpec { id: "a".to_owned(), ..job("t") }).await;
        let pull = pb::PullRequest { topics: vec!["t".to_owned()], ..Default::default() };
        let pulled: pb::PullResponse = victim.call("QueueService/Pull", &pull).await.unwrap();
        let receipt = &pulled.deliveries[0].receipt;

        const CALLS: [&str; 2] = [
            "ringq_store_op_seconds_count{op=\"settle\",shard=\"s0\"}",
            "ringq_store_op_seconds_count{op=\"extend\",shard=\"s0\"}",
        ];
        let calls = async || [metric(&server, CALLS[0]).await, metric(&server, CALLS[1]).await];
        let before = calls().await;
        let stale = i32::from(pb::SettleError::Stale);
        let guesses: Vec<String> = (1..=1_000).map(|number| guess(receipt, number)).collect();
        let item = |receipt| pb::ExtendItem { receipt, ..Default::default() };
        let extend = pb::ExtendRequest { items: guesses.iter().cloned().map(item).collect() };
        let extended: pb::ExtendResponse = evil.call("QueueService/Extend", &extend).await.unwrap();
        assert!(
            extended.failures.len() == 1_000 && extended.failures.iter().all(|f| f.error == stale)
        );
        let receipt_of_guess = guesses[0].clone();
        let ack = pb::AckItem { receipt: receipt_of_guess.clone(), ..Default::default() };
        let acked: pb::AckResponse =
            evil.call("QueueService/Ack", &pb::AckRequest { items: vec![ack] }).await.unwrap();
        let nack = pb::NackItem { receipt: receipt_of_guess.clone(), ..Default::default() };
        let nacked: pb::NackResponse =
            evil.call("QueueService/Nack", &pb::NackRequest { items: vec![nack] }).await.unwrap();
        assert_eq!((acked.failures[0].error, nacked.failures[0].error), (stale, stale));

        let mut json = JsonClient::connect(server.http).await;
        let bearer = format!("Bearer {}", token("evil"));
        for method in ["Ack", "Nack", "Extend"] {
            let text = json!({"items": [{"receipt": receipt_of_guess}]}).to_string();
            let headers = [("authorization", &*bearer)];
            let answer = json.send(&format!("QueueService/{method}"), text, &headers).await;
            assert_eq!(answer.status, 200, "{answer:?}");
            assert_eq!(answer.body["failures"][0]["error"], "SETTLE_ERROR_STALE", "{answer:?}");
        }
        assert_eq!(calls().await, before, "the store was not asked");
        let counted = "ringq_identity_forged_receipts_total{identity=\"evil\"}";
        assert_eq!(metric(&server, counted).await, 1_005);
        let warned = async || {
            let log = server.log();
            let lines = log.lines().filter(|line| line.contains("receipts that no server"));
            let lines: Vec<String> = lines.map(str::to_owned).collect();
            Some(lines).filter(|lines| !lines.is_empty())
        };
        let lines = eventually("a warning", warned).await;
        let names_it = lines[0].contains("identity=\"evil\"") && lines[0].contains("receipts=1000");
        assert!(names_it && lines.len() == 1, "one line in ten seconds: {lines:?}");
        let audited = async || {
            let files = std::fs::read_dir(log.path()).unwrap();
            let text = files.map(|file| std::fs::read_to_string(file.unwrap().path()).unwrap());
            let text: String = text.collect();
            let mut lines = text.lines().filter(|line| line.contains("\"Extend\""));
            lines.find(|line| line.contains("evil") && line.contains("\"denied\":1000")).map(drop)
        };
        eventually("a line of the audit log", audited).await;

        let get = pb::GetRequest { topic: "t".to_owned(), id: "a".to_owned(), view: 0 };
        let found: pb::GetResponse = victim.call("QueueService/Get", &get).await.unwrap();
        assert_eq!(found.job.unwrap().state(), pb::JobState::Running);
        let own = pb::AckItem { receipt: receipt.clone(), ..Default::default() };
        let done: pb::AckResponse =
            victim.call("QueueService/Ack", &pb::AckRequest { items: vec![own] }).await.unwrap();
        assert!(done.failures.is_empty(), "{done:?}");
    }
}
