use std::collections::BTreeMap;
use std::process::Command;
use std::time::Duration;

use ringq::pb::{JobSpec, ListShardsRequest, Shard, ShardState, StreamRequest};
use tonic::Code;

use crate::harness::{
    Client, Server, Setup, eventually, http_get, job, names_lock, receipts, refusal, take,
};

const KEPT: Duration = Duration::from_secs(600);

async fn four() -> Server {
    Setup::new().shards(4).start().await
}

async fn shards(client: &Client) -> Vec<Shard> {
    let answer = client.admin.clone().list_shards(ListShardsRequest {}).await.unwrap();
    answer.into_inner().shards
}

/// Builds jobs, half of them with client-chosen ids.
fn jobs(topic: &str, count: usize) -> Vec<JobSpec> {
    let spec = |n: usize| {
        let spec = job(topic).with_retention(KEPT);
        if n.is_multiple_of(2) { spec.with_id(format!("order-{n}")) } else { spec }
    };
    (0..count).map(spec).collect()
}

#[tokio::test]
async fn four_shards_survive_kill_9_and_another_order_of_their_names() {
    let mut server = Setup::new().shards(4).restartable().start().await;
    let client = server.connect().await;
    let ids = client.enqueue_all(jobs("mail", 2_000)).await;
    let request = StreamRequest { max_in_flight: 300, ..take("mail") };
    let mut worker = client.stream(request).await;
    let held = worker.next_many(300).await;
    let (done, open) = held.split_at(100);
    client.ack_all(&receipts(done)).await;
    server.kill().await;
    server.reverse_shards();
    server.restart().await;
    let client = server.connect().await;
    client.ack_all(&receipts(&open[..100])).await;
    for id in &ids {
        client.get("mail", id).await;
    }
    // Unsettled jobs come back after the grace; the worker's stream waits longer than that.
    let mut worker = client.stream(StreamRequest { max_in_flight: 300, ..take("mail") }).await;
    let mut acked = 0;
    while acked < 1_800 {
        let message = worker.message().await.unwrap();
        let deliveries = worker.next_many(message.deliveries).await;
        acked += deliveries.len();
        client.ack_all(&receipts(&deliveries)).await;
    }
    let stats = client.stats("mail").await;
    assert_eq!((stats.ready, stats.running, stats.succeeded_total), (0, 0, 2_000));
}

#[tokio::test]
async fn a_shard_that_cannot_write_hurts_only_its_own_jobs_and_recovers_by_itself() {
    let server = four().await;
    let client = server.connect().await;
    let ids: Vec<String> = (0..40).map(|n| format!("n{n}")).collect();
    let mut lies_on = BTreeMap::new();
    for id in &ids {
        lies_on.insert(id.clone(), client.enqueue(job("ids").with_id(id)).await.shard);
    }
    // Another process holds the write lock of one file.
    let holder = rusqlite::Connection::open(server.shard_file("s2")).unwrap();
    holder.execute_batch("BEGIN IMMEDIATE").unwrap();
    let down = async || {
        let enqueues = (0..4).map(|_| client.enqueue(job("mail")));
        let enqueues = futures::future::join_all(enqueues).await;
        assert!(enqueues.iter().all(|enqueued| enqueued.shard != "s2"), "it cannot have it");
        let shards = shards(&client).await;
        shards.into_iter().find(|shard| shard.state() == ShardState::Unreachable)
    };
    let dead = eventually("the shard is left alone", down).await;
    assert_eq!(dead.name, "s2");
    assert!(names_lock(&dead.last_error), "{}", dead.last_error);
    // One bad shard makes no server unready.
    assert_eq!(http_get(server.http, "/readyz").await.0, 200);

    for _ in 0..100 {
        client.enqueue(job("mail")).await;
    }
    for (id, shard) in &lies_on {
        let spec = job("ids").with_id(id);
        match client.send(crate::harness::request(spec)).await {
            Ok(enqueued) => assert_eq!((&enqueued.shard, shard != "s2"), (shard, true)),
            Err(status) => {
                assert_eq!(shard, "s2", "{status:?}");
                assert_eq!(status.code(), Code::Unavailable);
                assert!(refusal(&status).contains("SHARD_UNAVAILABLE"), "{}", refusal(&status));
            }
        }
    }
    let stats = client.stats("ids").await;
    assert_eq!(stats.unreachable_shards, ["s2"]);
    let here = lies_on.values().filter(|shard| *shard != "s2").count();
    assert_eq!(stats.ready, i64::try_from(here).unwrap());
    let (_, metrics) = http_get(server.http, "/metrics").await;
    assert!(metrics.contains("ringq_shard_breaker_open{shard=\"s2\"} 1"), "{metrics}");
    assert!(metrics.contains("ringq_shard_up{shard=\"s2\"} 0"), "{metrics}");
    for (shard, counted) in [("s0", 1), ("s2", 0)] {
        let gauge = format!("ringq_shard_counted{{shard=\"{shard}\"}} {counted}");
        assert!(metrics.contains(&gauge), "{gauge}: {metrics}");
        // A size that may be old is not shown.
        let size = format!("ringq_store_bytes{{shard=\"{shard}\"}}");
        assert_eq!(metrics.contains(&size), counted == 1, "{size}: {metrics}");
    }

    holder.execute_batch("ROLLBACK").unwrap();
    eventually("it takes jobs again", async || {
        (client.enqueue(job("mail")).await.shard == "s2").then_some(())
    })
    .await;
    assert!(shards(&client).await.iter().all(|shard| shard.state() == ShardState::Active));
    let mut found = client.pull_now("ids", 256).await;
    while found.len() < ids.len() {
        let more = client.pull_now("ids", 256).await;
        assert!(!more.is_empty(), "{} of {}", found.len(), ids.len());
        found.extend(more);
    }
    let log = server.log();
    assert!(
        log.contains("does not answer; its calls fail at once") && log.contains("answers again")
    );
}

#[tokio::test]
async fn without_any_shard_the_server_takes_no_work_until_one_is_back() {
    let server = Setup::new().shards(2).start().await;
    let client = server.connect().await;
    let hold = |shard| {
        let holder = rusqlite::Connection::open(server.shard_file(shard)).unwrap();
        holder.execute_batch("BEGIN IMMEDIATE").unwrap();
        holder
    };
    let holders = [hold("s0"), hold("s1")];
    let ready = async || http_get(server.http, "/readyz").await.0 == 200;
    eventually("no worker is left", async || {
        let status = client.send(crate::harness::request(job("mail"))).await.unwrap_err();
        assert_eq!(status.code(), Code::Unavailable);
        (!ready().await).then_some(())
    })
    .await;
    assert_eq!(http_get(server.http, "/healthz").await.0, 200, "the process is well");
    let [first, _second] = holders;
    first.execute_batch("ROLLBACK").unwrap();
    eventually("one is enough", async || ready().await.then_some(())).await;
    assert_eq!(client.enqueue(job("mail")).await.shard, "s0");
}

/// Everything that a user sees on one shard holds on four: these tests again, on servers with four. Tests about a
/// single file, and about the order within one shard, are left out.
#[tokio::test]
async fn what_holds_on_one_shard_holds_on_four() {
    const THEMES: [&str; 5] =
        ["e2e::admin::", "e2e::enqueue::", "e2e::jobs::", "e2e::settle::", "e2e::stream::"];
    const ABOUT_ONE: [&str; 4] = [
        "list_shards_and_server_info_report_what_there_is",
        "a_bad_receipt_fails_its_own_item_and_no_other",
        "an_extend_moves_the_end_of_the_lease_later_or_sooner",
        "a_delivery_states_all_that_a_worker_needs",
    ];
    let mut tests = Command::new(std::env::current_exe().unwrap());
    // Beside the tests that run anyway.
    tests.env("RUST_TEST_THREADS", "2");
    tests.args(THEMES).args(ABOUT_ONE.iter().flat_map(|name| ["--skip", name]));
    tests.env("RINGQ_TEST_SHARDS", "4");
    let output = tokio::task::spawn_blocking(move || tests.output()).await.unwrap().unwrap();
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{text}\n{}", String::from_utf8_lossy(&output.stderr));
    let passed = text.lines().filter(|line| line.ends_with("... ok")).count();
    assert!(passed >= 16, "{passed}");
}
