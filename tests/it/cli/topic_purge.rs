use std::process::Stdio;

use ringq::pb::NackAction;

use super::terminal::Terminal;
use super::{command, finish, ringq, silenced};
use crate::harness::{Client, Server, Setup, job, millis, nack};

/// Enqueues three ready jobs and a dead letter.
async fn fill(client: &Client) {
    client.enqueue(job("mail")).await;
    let dead = client.pull_one("mail").await;
    client.nack(nack(&dead.receipt, NackAction::DeadLetter)).await;
    client.enqueue_all(vec![job("mail"); 3]).await;
}

#[tokio::test]
async fn jobs_in_the_named_states_are_counted_and_removed() {
    let server = Server::start().await;
    let client = server.connect().await;
    fill(&client).await;
    client.enqueue(job("mail").with_delay(millis(600_000))).await;
    let purge = async |flags: &[&str]| {
        let args: Vec<_> = ["topic", "purge", "mail"].iter().chain(flags).copied().collect();
        ringq(&server, &args).await
    };
    assert_eq!(purge(&["--state", "dead", "--dry-run"]).await.ok(), "1 would be removed\n");
    let all = ["--state", "ready,SCHEDULED,dead,ready", "--dry-run", "-o", "json"];
    assert_eq!(purge(&all).await.json()["purgedCount"], "5");
    assert_eq!(purge(&["--state", "dead", "--yes"]).await.ok(), "1 removed\n");
    let json = purge(&["--state", "ready", "--state", "scheduled", "-y", "-o", "json"]).await;
    assert_eq!(json.json()["purgedCount"], "4");
    assert_eq!(purge(&["--state", "ready,dead", "--yes"]).await.ok(), "0 removed\n");
}

#[tokio::test]
async fn mistakes_remove_nothing() {
    let server = Server::start().await;
    let client = server.connect().await;
    fill(&client).await;
    ringq(&server, &["topic", "purge", "mail"]).await.fails(2, &["--state"]);
    ringq(&server, &["topic", "purge", "mail", "--yes"]).await.fails(2, &["--state"]);
    let odd = ["topic", "purge", "mail", "--state", "waiting", "--yes"];
    ringq(&server, &odd).await.fails(2, &["--state"]);
    let unconfirmed = ["topic", "purge", "mail", "--state", "dead"];
    ringq(&server, &unconfirmed).await.fails(2, &["no terminal", "--yes", "--dry-run"]);
    let unknown = ["topic", "purge", "mial", "--state", "dead", "--yes"];
    ringq(&server, &unknown).await.fails(3, &["cannot purge topic mial", "`ringq topic list`"]);
    let stats = client.stats("mail").await;
    assert_eq!((stats.ready, stats.dead), (3, 1));
}

/// On a terminal the command asks with the number of jobs, and only a yes removes them.
#[tokio::test]
async fn a_terminal_is_asked() {
    let server = Server::start().await;
    let client = server.connect().await;
    fill(&client).await;
    for (answer, code, left) in [("\n", 1, 3), ("n\n", 1, 3), ("\u{4}", 1, 3), ("Yes\n", 0, 0)] {
        let terminal = Terminal::of(100);
        let mut asked = command(server.grpc, &["topic", "purge", "mail", "--state", "ready"]);
        asked.stdin(terminal.stdio()).stderr(terminal.stdio());
        let child = asked.spawn().unwrap();
        drop(asked);
        terminal.types(answer);
        let ran = finish(child).await;
        let text = terminal.text();
        assert!(text.contains("Remove 3 jobs of mail (READY) for good? [y/N] "), "{text}");
        assert_eq!(ran.code, code, "{answer:?}: {text}");
        assert_eq!(ran.stdout, if code == 0 { "3 removed\n" } else { "" });
        assert_eq!(text.contains("nothing was removed"), code != 0, "{text}");
        assert_eq!(client.stats("mail").await.ready, left, "{answer:?}");
    }
    let terminal = Terminal::of(100);
    let mut asked = command(server.grpc, &["topic", "purge", "mail", "--state", "ready"]);
    asked.stdin(terminal.stdio()).stderr(terminal.stdio()).stdout(Stdio::piped());
    let child = asked.spawn().unwrap();
    drop(asked);
    assert_eq!(finish(child).await.stdout, "0 removed\n", "there is nothing to ask about");
    assert_eq!(terminal.text(), "");
}

#[tokio::test]
async fn a_shard_that_does_not_answer_is_named() {
    let server = Setup::new().shards(2).start().await;
    let client = server.connect().await;
    let jobs = (0..40).map(|n| job("mail").with_id(format!("n{n}")));
    client.enqueue_all(jobs.collect()).await;
    let _holder = silenced(&server, "s1").await;
    let ran = ringq(&server, &["topic", "purge", "mail", "--state", "ready", "--yes"]).await;
    let ran = ran.fails(4, &["jobs may be left on shards", ": s1", "the same command again"]);
    let removed: usize = ran.stdout.strip_suffix(" removed\n").unwrap().parse().unwrap();
    assert!(removed > 0 && removed < 40, "{ran:?}");
}

#[tokio::test]
async fn jobs_of_one_group_are_removed() {
    let server = Server::start().await;
    let client = server.connect().await;
    for group in ["a", "a", "b", ""] {
        client.enqueue(ringq::pb::JobSpec { group: group.into(), ..job("mail") }).await;
    }
    let purge = async |group: &str, flags: &[&str]| {
        let args = [&["group", "purge", "mail", group, "--state", "ready"], flags].concat();
        ringq(&server, &args).await
    };
    assert_eq!(purge("a", &["--dry-run"]).await.ok(), "2 would be removed\n");
    purge("a", &[]).await.fails(2, &["no terminal", "--yes", "--dry-run"]);
    assert_eq!(purge("a", &["--yes"]).await.ok(), "2 removed\n");
    assert_eq!(purge("-", &["--yes"]).await.ok(), "1 removed\n");
    assert_eq!(client.stats("mail").await.ready, 1);
}
