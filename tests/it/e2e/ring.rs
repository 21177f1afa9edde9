use std::collections::{BTreeMap, HashSet};
use std::process::Command;
use std::time::Duration;

use ringq::pb::{
    EnqueueResponse, JobSpec, JobState, ListShardsRequest, Shard, ShardState, StreamRequest,
};
use tokio::time::Instant;
use tonic::Code;

use crate::harness::{
    Client, Server, Setup, eventually, http_get, job, millis, names_lock, receipts, refusal, take,
};

const KEPT: Duration = Duration::from_secs(600);

async fn four() -> Server {
    Setup::new().shards(4).start().await
}

async fn shards(client: &Client) -> Vec<Shard> {
    let answer = client.admin.clone().list_shards(ListShardsRequest {}).await.unwrap();
    answer.into_inner().shards
}

fn count<'a>(shards: impl Iterator<Item = &'a str>) -> BTreeMap<String, usize> {
    let mut counts = BTreeMap::new();
    shards.for_each(|shard| *counts.entry(shard.to_owned()).or_default() += 1);
    counts
}

/// Builds jobs, half of them with client-chosen ids.
fn jobs(topic: &str, count: usize) -> Vec<JobSpec> {
    let spec = |n: usize| {
        let spec = job(topic).with_retention(KEPT);
        if n.is_multiple_of(2) { spec.with_id(format!("order-{n}")) } else { spec }
    };
    (0..count).map(spec).collect()
}

/// Acknowledges deliveries until `left` shows that nothing is left; returns the ids, each as often as it came.
async fn work(client: Client, topic: &'static str) -> Vec<String> {
    let request = StreamRequest {
        max_in_flight: 200,
        idle_timeout: Some(crate::harness::proto(millis(1_500))),
        ..take(topic)
    };
    let (mut worker, mut ids) = (client.stream(request).await, Vec::new());
    while let Some(message) = worker.message().await {
        if message.deliveries > 0 {
            let deliveries = worker.next_many(message.deliveries).await;
            client.ack_all(&receipts(&deliveries)).await;
            ids.extend(deliveries.into_iter().map(|delivery| delivery.id));
        }
    }
    ids
}

#[tokio::test]
async fn ten_thousand_jobs_are_spread_evenly_and_each_is_done_once() {
    let server = four().await;
    let client = server.connect().await;
    let ids = client.enqueue_all(jobs("mail", 10_000)).await;
    let made = count(ids.iter().filter_map(|id| id.split_once('~')).map(|(shard, _)| shard));
    assert_eq!(made.values().sum::<usize>(), 5_000);
    for (shard, jobs) in made {
        assert!((1_125..=1_375).contains(&jobs), "{shard}: {jobs} of its server's ids");
    }
    for shard in shards(&client).await {
        assert!((2_250..=2_750).contains(&shard.jobs), "{shard:?}");
        assert_eq!((shard.state(), shard.weight), (ShardState::Active, 1));
    }
    let workers = (0..3).map(|_| async { work(server.connect().await, "mail").await });
    let mut done = futures::future::join_all(workers).await.concat();
    assert_eq!(done.len(), 10_000, "each once");
    done.sort_unstable();
    let mut ids = ids;
    ids.sort_unstable();
    assert!(done == ids);
    let stats = client.stats("mail").await;
    assert_eq!((stats.ready, stats.running, stats.succeeded_total), (0, 0, 10_000));
    let kept = client.list("mail", JobState::Succeeded).await;
    assert_eq!(kept.len(), 10_000, "pages go over all shards");
    assert!(kept.is_sorted_by_key(|job| {
        let due = job.due_time.unwrap();
        (due.seconds, due.nanos)
    }));
}

#[tokio::test]
async fn a_batch_stays_together_and_a_large_one_is_spread_in_runs() {
    let server = four().await;
    let client = server.connect().await;
    let shard = |id: &String| id.split_once('~').unwrap().0.to_owned();
    let ids = client.enqueue_all(vec![job("mail"); 64]).await;
    assert_eq!(ids.iter().map(shard).collect::<HashSet<_>>().len(), 1);
    let ids = client.enqueue_all(vec![job("mail"); 1_000]).await;
    for run in ids.chunks(64) {
        assert_eq!(run.iter().map(shard).collect::<HashSet<_>>().len(), 1);
    }
    assert_eq!(ids.iter().map(shard).collect::<HashSet<_>>().len(), 4);
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

/// Enqueues a job without an id; returns the answer and the time that it took.
async fn enqueue(client: &Client) -> (EnqueueResponse, Duration) {
    let begin = Instant::now();
    let enqueued = client.enqueue(job("mail")).await;
    (enqueued, begin.elapsed())
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
        let enqueues = futures::future::join_all((0..4).map(|_| enqueue(&client))).await;
        assert!(enqueues.iter().all(|(enqueued, _)| enqueued.shard != "s2"), "it cannot have it");
        let shards = shards(&client).await;
        shards.into_iter().find(|shard| shard.state() == ShardState::Unreachable)
    };
    let dead = eventually("the shard is left alone", down).await;
    assert_eq!(dead.name, "s2");
    assert!(names_lock(&dead.last_error), "{}", dead.last_error);
    // One bad shard makes no server unready.
    assert_eq!(http_get(server.http, "/readyz").await.0, 200);

    let mut took = Vec::new();
    for _ in 0..100 {
        took.push(enqueue(&client).await.1);
    }
    for (id, shard) in &lies_on {
        let begin = Instant::now();
        let spec = job("ids").with_id(id);
        match client.send(crate::harness::request(spec)).await {
            Ok(enqueued) => assert_eq!((&enqueued.shard, shard != "s2"), (shard, true)),
            Err(status) => {
                assert_eq!(shard, "s2", "{status:?}");
                assert_eq!(status.code(), Code::Unavailable);
                took.push(begin.elapsed());
                assert!(refusal(&status).contains("SHARD_UNAVAILABLE"), "{}", refusal(&status));
            }
        }
    }
    // No call waits for it. A busy machine stands still now and then, so some may be slow.
    let slow = took.iter().filter(|took| **took >= millis(500)).count();
    assert!(slow <= 5, "{slow} of {}: {took:?}", took.len());
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
        (enqueue(&client).await.0.shard == "s2").then_some(())
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

#[tokio::test]
async fn an_id_of_a_shard_that_is_not_here_is_reported_as_such() {
    let server = four().await;
    let client = server.connect().await;
    let id = client.enqueue(job("mail")).await.id.replacen('s', "x", 1);
    let status = client.send(crate::harness::request(job("mail").with_id(&id))).await.unwrap_err();
    assert!(refusal(&status).contains("INVALID_FIELD"), "{}", refusal(&status));
    assert_eq!(client.find("mail", &id).await, None);
}

/// Everything that a user sees on one shard holds on four: these tests again, on servers with four. Tests about a
/// single file, and about the order within one shard, are left out.
#[tokio::test]
async fn what_holds_on_one_shard_holds_on_four() {
    const THEMES: [&str; 5] =
        ["e2e::admin::", "e2e::enqueue::", "e2e::jobs::", "e2e::settle::", "e2e::stream::"];
    const ABOUT_ONE: [&str; 12] = [
        "list_shards_and_server_info_report_what_there_is",
        "ids_made_by_the_server_differ_and_lead_back_to_their_job",
        "one_batch_may_carry_a_thousand_jobs",
        "a_bad_receipt_fails_its_own_item_and_no_other",
        "a_nack_waits_by_the_policy_or_by_its_own_delay",
        "a_repeated_ack_is_a_success_while_the_record_lives",
        "an_extend_moves_the_end_of_the_lease_later_or_sooner",
        "a_deleted_job_is_revoked_and_its_credit_is_free",
        "a_delivery_states_all_that_a_worker_needs",
        "a_released_job_keeps_its_place_and_counts_no_failure",
        "reschedule_moves_waiting_jobs_and_revives_dead_ones",
        "higher_priorities_go_first_then_earlier_due_times",
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
    assert!(passed > 40, "{passed}");
}
