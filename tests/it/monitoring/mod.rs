//! Metrics of a server as Prometheus reads them.

mod promtool;

use ringq::pb::{NackAction, PullRequest};

use crate::harness::{Redis, Server, Setup, http_get, job, millis, nack, proto, receipts, take};

use promtool::promtool;

/// Makes most series appear: deliveries by streams and pulls, every end of a lease that needs no wait, rejected calls.
async fn load(server: &Server) {
    let client = server.connect().await;
    client.enqueue_all(vec![job("mail"); 40]).await;
    client.enqueue_all(vec![job("report"); 10]).await;
    let mut worker = client.stream(take("mail")).await;
    for action in [NackAction::Retry, NackAction::Release, NackAction::DeadLetter] {
        let held = worker.next().await;
        client.nack(nack(&held.receipt, action)).await;
    }
    for _ in 0..20 {
        client.ack(&worker.next().await.receipt).await;
    }
    let pulled = client.pull_now("report", 10).await;
    client.ack_all(&receipts(&pulled)).await;
    let wrong =
        PullRequest { max_jobs: -1, wait: Some(proto(millis(0))), ..PullRequest::default() };
    client.pull(wrong).await.unwrap_err();
}

#[tokio::test]
async fn promtool_accepts_the_metrics_of_a_server_under_load() {
    let Some(promtool) = promtool().await else { return };
    let redis = Redis::start().await;
    let setup = Setup::new();
    let setup = match &redis {
        Some(redis) => setup.and_shard(format!("r1={}", redis.url())),
        None => setup,
    };
    let server = setup.start().await;
    load(&server).await;
    let (status, text) = http_get(server.http, "/metrics").await;
    assert_eq!(status, 200);
    for name in [
        "ringq_job_lag_seconds_bucket",
        "ringq_store_bytes",
        "ringq_rpc_seconds_count",
        "process_open_fds",
    ] {
        assert!(text.contains(&format!("\n{name}")), "{name}\n{text}");
    }
    let answer = promtool.run(&["check", "metrics"], &text).await;
    assert_eq!(answer, Ok(String::new()), "{text}");
    // The check has teeth: promtool reports a wrong name.
    let answer =
        promtool.run(&["check", "metrics"], "# TYPE jobs_total gauge\njobs_total 1\n").await;
    assert!(answer.unwrap_err().contains("jobs_total"));
}

#[tokio::test]
async fn promtool_accepts_the_rules_and_their_unit_tests() {
    let Some(promtool) = promtool().await else { return };
    promtool.run(&["check", "rules", "deploy/monitoring/alerts.yaml"], "").await.unwrap();
    promtool.run(&["test", "rules", "deploy/monitoring/alerts_test.yaml"], "").await.unwrap();
}
