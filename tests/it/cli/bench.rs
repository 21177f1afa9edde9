//! `ringq bench` against real servers: its output, and its detection of faults.

use std::net::{SocketAddr, TcpListener};

use ringq::pb::{GetTopicStatsRequest, ListTopicsRequest, StreamRequest};
use serde_json::Value;
use tokio::process::{Child, Command};

use super::{Ran, command, finish};
use crate::harness::{Client, Server, eventually, job, millis, take};

fn begin(server: SocketAddr, words: &str) -> Child {
    let words: Vec<&str> = words.split_whitespace().collect();
    command(server, &[&["bench"], words.as_slice()].concat()).spawn().unwrap()
}

async fn bench(server: &Server, words: &str) -> Ran {
    finish(begin(server.grpc, words)).await
}

async fn signal(process: u32, name: &str) {
    let kill = format!("kill -{name} {process}");
    assert!(Command::new("sh").args(["-c", &kill]).status().await.unwrap().success());
}

async fn report(server: &Server, words: &str) -> Value {
    bench(server, &format!("{words} -o json")).await.json()
}

/// Waits until a run on topic `t` has had the answers to many acks.
async fn goes_on(server: &Server) {
    let client = server.connect().await;
    eventually("the run goes on", async || {
        let request = GetTopicStatsRequest { name: "t".to_owned() };
        let stats = client.topics.clone().get_topic_stats(request).await.ok()?.into_inner();
        (stats.stats?.succeeded_total > 2_000).then_some(())
    })
    .await;
}

#[tokio::test]
async fn a_lifecycle_balances_and_states_what_it_depends_on() {
    let server = Server::start().await;
    let report = report(&server, "lifecycle --jobs 2000 --rounds 2").await;
    assert_eq!(report["complete"], true);
    assert_eq!(report["sound"], true);
    assert_eq!(report["server"]["credit"], 1000, "as granted");
    assert_eq!(report["server"]["durability_reached"], "FSYNCED");
    assert_eq!(report["server"]["clock_uncertainty_us"], 0, "one machine has one clock");
    assert_eq!(report["setting"]["warm_up"], 100);
    assert!(report["results"]["rate"]["median"].as_f64().unwrap() > 0.0);
    for round in report["rounds"].as_array().unwrap() {
        assert_eq!(round["jobs"], 2000);
        assert_eq!(round["enqueue_us"]["count"], 16, "batches of 128");
        assert_eq!(round["dispatch_us"], Value::Null, "they waited in a backlog");
        let books = &round["books"];
        assert_eq!((&books["enqueued"], &books["acked"]), (&2000.into(), &2000.into()));
        assert_eq!((&books["doubled"], &books["early"]), (&0.into(), &0.into()));
    }
    let topic = report["topic"].as_str().unwrap();
    assert_eq!(server.connect().await.stats(topic).await.succeeded_total, 4100);
}

#[tokio::test]
async fn every_shape_of_load_balances() {
    let server = Server::start().await;
    for (words, latency) in [
        ("unary --jobs 300", "enqueue_us"),
        ("both --duration 200ms --batch 7", "dispatch_us"),
        ("idle --duration 200ms --threads 2", "dispatch_us"),
        ("burst --jobs 500 --lead 500ms --body 36", "lateness_us"),
        ("delayed --duration 200ms --rate 500/s --lead 300ms --spread 300ms", "lateness_us"),
    ] {
        let report = report(&server, words).await;
        let round = &report["rounds"][0];
        assert!(round[latency]["p99"].is_u64(), "{words}: {report}");
        assert!(round["jobs"].as_u64().unwrap() > 0, "{words}");
        assert_eq!(round["books"]["acked"], round["jobs"], "{words}");
        assert_eq!(round["overdue"], 0, "{words}");
    }
}

#[tokio::test]
async fn a_rate_is_kept_to_the_last_job() {
    let server = Server::start().await;
    let report = report(&server, "both --jobs 700 --rate 500/s --warm-up 0").await;
    let round = &report["rounds"][0];
    let seconds = round["seconds"].as_f64().unwrap();
    assert!(seconds >= 1.39, "{seconds} s");
    assert_eq!(round["books"]["acked"], 700);
}

#[tokio::test]
async fn a_server_that_stalls_is_reported() {
    let server = Server::start().await;
    let run = begin(server.grpc, "idle --jobs 400 --warm-up 0 -o json");
    let client = server.connect().await;
    eventually("its turns have begun", async || {
        let topics = client.topics.clone().list_topics(ListTopicsRequest::default()).await.ok()?;
        let mut topics = topics.into_inner().topics.into_iter();
        topics
            .any(|topic| topic.stats.is_some_and(|stats| stats.succeeded_total > 50))
            .then_some(())
    })
    .await;
    signal(server.pid(), "STOP").await;
    tokio::time::sleep(millis(500)).await;
    signal(server.pid(), "CONT").await;
    let report = finish(run).await.json();
    let round = &report["rounds"][0];
    for latency in ["enqueue_us", "dispatch_us"] {
        let p90 = round[latency]["p90"].as_u64().unwrap();
        assert!(p90 > 150_000, "100 of 400 turns came in the stall: {report}");
    }
}

#[tokio::test]
async fn a_job_that_comes_after_the_last_ack_is_seen() {
    let server = Server::start().await;
    let client = server.connect().await;
    let run = begin(server.grpc, "both --topic t --jobs 300 --warm-up 0");
    eventually("the last ack", async || {
        let request = GetTopicStatsRequest { name: "t".to_owned() };
        let answer = client.topics.clone().get_topic_stats(request).await.ok()?;
        let succeeded = answer.into_inner().stats?.succeeded_total;
        (succeeded == 300).then_some(())
    })
    .await;
    client.enqueue(job("t")).await;
    finish(run).await.fails(1, &["jobs that are not of this run were received"]);
}

#[tokio::test]
async fn a_fill_leaves_its_jobs_there() {
    let server = Server::start().await;
    let fill = "bulk --phases fill --topic t --jobs 300 --lead 1h --spread 1m";
    let table = bench(&server, fill).await.ok();
    assert!(table.contains("300 enqueued and left there"), "{table}");
    assert_eq!(server.connect().await.stats("t").await.scheduled, 300);

    let refused = bench(&server, "lifecycle --topic t").await;
    refused.fails(1, &["topic t: the topic has 300 jobs of others"]);
}

#[tokio::test]
async fn without_a_server_it_reports_it() {
    let free = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let ran = finish(begin(free, "")).await.fails(4, &["is it running?"]);
    assert_eq!(ran.stdout, "");
}

/// Takes and acks one job of the topic, as soon as there is one.
async fn steal(client: Client, topic: &'static str) {
    let request = StreamRequest { max_in_flight: 1, max_jobs: 1, ..take(topic) };
    let mut thief = client.stream(request).await;
    let loot = thief.next().await;
    client.ack(&loot.receipt).await;
}

#[tokio::test]
async fn a_job_that_another_worker_took_is_missed() {
    let server = Server::start().await;
    let thief = tokio::spawn(steal(server.connect().await, "t"));
    let ran = bench(&server, "lifecycle --topic t --jobs 2000 --warm-up 0").await;
    thief.await.unwrap();
    let ran = ran.fails(1, &["the audit failed: job ", " was never delivered"]);
    let counts = "2000 enqueued, 1999 delivered, 1999 acked";
    assert!(ran.stdout.contains(counts), "{}", ran.stdout);
}

#[tokio::test]
async fn jobs_of_others_are_reported_and_left() {
    let server = Server::start().await;
    let client = server.connect().await;
    let run = begin(server.grpc, "both --topic t --duration 1s --warm-up 0");
    eventually("the run begins", async || {
        let request = GetTopicStatsRequest { name: "t".to_owned() };
        client.topics.clone().get_topic_stats(request).await.ok()
    })
    .await;
    client.enqueue(job("t").with_text("foreign")).await;
    let ran = finish(run).await.fails(1, &["jobs that are not of this run were received"]);
    assert!(!ran.stderr.contains("delete"), "not ours to remove: {}", ran.stderr);
}

#[tokio::test]
async fn a_server_that_dies_ends_it() {
    let mut server = Server::start().await;
    let run = begin(server.grpc, "both --topic t --duration 1m");
    goes_on(&server).await;
    server.kill().await;
    let ran = finish(run).await.fails(4, &["jobs may be left on topic t"]);
    assert!(ran.stdout.contains("cut short"), "{}", ran.stdout);
}

#[tokio::test]
async fn what_was_cut_short_is_not_sound_and_has_its_sums() {
    let mut server = Server::start().await;
    let run = begin(server.grpc, "both --topic t --duration 1m --warm-up 0 -o json");
    goes_on(&server).await;
    server.kill().await;
    let report: Value = serde_json::from_str(&finish(run).await.fails(4, &[]).stdout).unwrap();
    assert_eq!((&report["complete"], &report["sound"]), (&false.into(), &false.into()));
    let books = &report["rounds"][0]["books"];
    let sum = |name: &str| books[name].as_u64().unwrap();
    assert!(sum("acked") > 0 && sum("delivered") >= sum("acked"), "{books}");
    assert_eq!(books["faults"].as_array().unwrap().len(), 0, "{books}");
}

#[tokio::test]
async fn an_interrupt_prints_what_is_known() {
    let server = Server::start().await;
    let run = begin(server.grpc, "both --topic t --duration 1m --warm-up 0");
    goes_on(&server).await;
    signal(run.id().unwrap(), "INT").await;
    let ran = finish(run).await.fails(130, &["interrupted"]);
    for part in ["enqueue call", "cut short"] {
        assert!(ran.stdout.contains(part), "{}", ran.stdout);
    }
}
