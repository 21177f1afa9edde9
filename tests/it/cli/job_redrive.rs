use ringq::pb::{JobState, NackAction};

use super::{ringq, silenced};
use crate::harness::{Client, Server, Setup, job, millis, nack};

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
    let ran = redrive(&["b", "b", "nope", "nope"]).await;
    let ran = ran.fails(3, &["ringq: no job mail/nope\n", "`ringq job list mail`"]);
    assert_eq!(ran.stdout, "1 put back to work, 1 not\n", "each is counted once");
    assert_eq!(ran.stderr.matches("mail/nope").count(), 1, "{}", ran.stderr);
    assert_eq!(redrive(&["c", "--to", "post", "-o", "json"]).await.json()["redrivenCount"], "1");
    assert_eq!(client.stats("post").await.ready, 1);
    assert_eq!(redrive(&["--all", "--rate", "10/s"]).await.ok(), "1 put back to work\n");
    assert_eq!(client.stats("mail").await.dead, 0);
}

#[tokio::test]
async fn why_a_named_job_was_left_is_reported() {
    let server = Server::start().await;
    let client = server.connect().await;
    dead(&client, &["a", "b"]).await;
    client.enqueue(job("mail").with_id("runs")).await;
    let _delivery = client.pull_one("mail").await;
    client.enqueue(job("mail").with_id("waits")).await;
    let redrive = async |flags: &[&str]| {
        let args: Vec<_> = ["job", "redrive", "mail"].iter().chain(flags).copied().collect();
        ringq(&server, &args).await
    };
    redrive(&["nope", "no"]).await.fails(3, &["no job mail/nope\n", "no job mail/no\n"]);
    let ran = redrive(&["a", "runs", "waits", "nope"]).await;
    let texts =
        ["mail/runs is RUNNING, not DEAD\n", "mail/waits is READY, not DEAD\n", "no job mail/nope"];
    assert_eq!(ran.fails(1, &texts).stdout, "1 put back to work, 3 not\n");
    client.enqueue(job("post").with_id("b")).await;
    redrive(&["b", "--to", "post"]).await.fails(1, &["1 of the named jobs", "are taken in post"]);
    redrive(&["b", "--to", ""]).await.fails(2, &["is a variable not set?"]);
}

/// Each named job is put back or reported, whatever its shard.
#[tokio::test]
async fn a_shard_that_does_not_answer_leaves_no_job_untold() {
    let server = Setup::new().shards(2).start().await;
    let client = server.connect().await;
    let ids: Vec<String> = (0..12).map(|n| format!("n{n}")).collect();
    let all: Vec<&str> = ids.iter().map(String::as_str).collect();
    dead(&client, &all).await;
    let _holder = silenced(&server, "s1").await;
    let missing: Vec<String> = (0..12).map(|n| format!("nope{n}")).collect();
    let args = ["job", "redrive", "mail"].into_iter().chain(all);
    let args: Vec<&str> = args.chain(missing.iter().map(String::as_str)).collect();
    let ran = ringq(&server, &args)
        .await
        .fails(4, &["configured at this server: s1", "`ringq shard list`"]);
    let back: usize = ran.stdout.split(' ').next().unwrap().parse().unwrap();
    assert_eq!(ran.stdout, format!("{back} put back to work, {} not\n", 24 - back));
    assert!(back > 0 && back < 12, "{ran:?}");
    let is_named = |id: &&String| {
        let unreached = format!("ringq: cannot redrive job mail/{id}: shard s1 ");
        let missing = format!("ringq: no job mail/{id}");
        ran.stderr.lines().any(|line| line.starts_with(&unreached) || line == missing)
    };
    assert_eq!(ids.iter().filter(is_named).count(), 12 - back, "{ran:?}");
    assert_eq!(missing.iter().filter(is_named).count(), 12, "{ran:?}");
}

#[tokio::test]
async fn the_jobs_must_be_named() {
    let server = Server::start().await;
    ringq(&server, &["job", "redrive", "mail"]).await.fails(2, &["--all"]);
    ringq(&server, &["job", "redrive", "mail", "a", "--all"]).await.fails(2, &["--all"]);
    ringq(&server, &["job", "redrive", "mail", "--all", "--rate", "0"]).await.fails(2, &["10/s"]);
    ringq(&server, &["job", "redrive", "mail", "--all"]).await.fails(3, &["`ringq topic list`"]);
}

#[tokio::test]
async fn jobs_that_ended_otherwise_go_back_when_their_state_is_named() {
    let server = Server::start().await;
    let client = server.connect().await;
    dead(&client, &["dead"]).await;
    client.enqueue(job("mail").with_id("done").with_retention(millis(60_000))).await;
    client.ack(&client.pull_one("mail").await.receipt).await;
    let late = job("mail").with_id("late").with_retention(millis(60_000)).with_ttl(millis(1));
    client.enqueue(late).await;
    client.until("mail", "late", JobState::Expired).await;
    let redrive = async |flags: &[&str]| {
        let args: Vec<_> = ["job", "redrive", "mail"].iter().chain(flags).copied().collect();
        ringq(&server, &args).await
    };
    let ran = redrive(&["done", "dead", "--dry-run"]).await;
    let texts = ["ringq: mail/done is SUCCEEDED, not DEAD\n"];
    assert_eq!(ran.fails(1, &texts).stdout, "1 would be put back to work, 1 not\n");
    let all = ["--all", "--state", "succeeded,expired"];
    assert_eq!(redrive(&all).await.ok(), "1 put back to work, 1 not\n");
    assert_eq!(client.state("mail", "done").await, JobState::Ready);
    let texts = ["1 of the named jobs were not put back", "need --ttl"];
    redrive(&["late", "--state", "expired"]).await.fails(1, &texts);
    let late = ["late", "--state", "expired", "--ttl", "1m"];
    assert_eq!(redrive(&late).await.ok(), "1 put back to work\n");
    assert_eq!(client.state("mail", "dead").await, JobState::Dead);
    redrive(&["--all", "--state", "running"]).await.fails(2, &["--state"]);
}
