use ringq::pb::{AckItem, NackAction, Payload};

use tokio::io::{AsyncBufReadExt as _, BufReader};

use super::{command, finish};
use crate::harness::{Server, Setup, job, nack, take, within};

#[tokio::test]
async fn the_result_is_printed_byte_for_byte() {
    let server = Server::start().await;
    let client = server.connect().await;
    // A server-made id: without a retention the record would be gone with the Ack.
    for (text, flags) in [("one\n", &[][..]), ("two", &["--id", "b", "--retention", "1h"])] {
        let args: Vec<_> = ["enqueue", "sum", "x", "--wait"].iter().chain(flags).copied().collect();
        let child = command(server.grpc, &args).spawn().unwrap();
        let delivery = client.pull_one("sum").await;
        let result = Some(Payload::text(text));
        let item = AckItem { receipt: delivery.receipt, result, ..Default::default() };
        assert_eq!(client.ack_items(vec![item]).await, []);
        let ran = finish(child).await;
        assert!(ran.stderr.contains(" is READY\n"), "{}", ran.stderr);
        assert_eq!(ran.ok(), text);
    }
}

#[tokio::test]
async fn json_is_the_job() {
    let server = Server::start().await;
    let args = ["enqueue", "sum", "x", "--wait", "-o", "json", "-q"];
    let child = command(server.grpc, &args).spawn().unwrap();
    let client = server.connect().await;
    client.ack(&client.pull_one("sum").await.receipt).await;
    assert_eq!(finish(child).await.json()["state"], "JOB_STATE_SUCCEEDED");
}

#[tokio::test]
async fn without_a_worker_it_reports_it_and_waits_as_long_as_asked() {
    let server = Server::start().await;
    let args = ["enqueue", "sum", "x", "--wait", "--wait-timeout", "2500ms", "--id", "a"];
    let ran = finish(command(server.grpc, &args).spawn().unwrap()).await;
    let lonely = "no worker at this server takes jobs of sum at the moment\n";
    let texts = ["a is READY\n", lonely, "job sum/a is still READY after 2500ms", "`ringq job get"];
    let ran = ran.fails(1, &texts);
    assert_eq!((ran.stdout.as_str(), ran.stderr.matches(lonely).count()), ("", 1));
    // A busy worker counts; a job for later needs none yet.
    let client = server.connect().await;
    let _worker = client.stream(take("busy")).await;
    for (topic, flags) in [("busy", &[][..]), ("later", &["--delay", "1h"])] {
        let mut args = vec!["enqueue", topic, "x", "--wait", "--wait-timeout", "1500ms"];
        args.extend(flags);
        let ran = finish(command(server.grpc, &args).spawn().unwrap()).await;
        let ran = ran.fails(1, &["after 1500ms"]);
        assert!(!ran.stderr.contains("no worker"), "{topic}: {}", ran.stderr);
    }
}

#[tokio::test]
async fn an_end_that_is_no_success_is_a_failure() {
    let server = Server::start().await;
    let client = server.connect().await;
    let args = ["enqueue", "sum", "x", "--wait", "--id", "a"];
    let child = command(server.grpc, &args).spawn().unwrap();
    let mut worker = client.stream(take("sum")).await;
    let delivery = worker.next().await;
    let mut item = nack(&delivery.receipt, NackAction::DeadLetter);
    item.error = "boom\u{1b}[2J".to_owned();
    client.nack(item).await;
    let ran = finish(child).await;
    let texts = ["ringq: job sum/a ended DEAD: boom\\u{1b}[2J", "`ringq job get sum 'a'`"];
    assert_eq!(ran.fails(1, &texts).stdout, "");
}

/// A waiting command reports that the server is gone, and that it continues.
#[tokio::test]
async fn a_server_that_leaves_is_reported_to_those_who_wait() {
    let mut server = Setup::new().restartable().shards(2).start().await;
    let client = server.connect().await;
    client.enqueue_all(vec![job("mail"); 128]).await;
    let waits = [&["enqueue", "sum", "x", "--wait"][..], &["shard", "drain", "s1", "--wait"]];
    let mut waiting = Vec::new();
    for args in waits {
        let mut child = command(server.grpc, args).spawn().unwrap();
        let mut notes = BufReader::new(child.stderr.take().unwrap()).lines();
        // The enqueue has been answered, so the wait is next.
        let mut stdout = BufReader::new(child.stdout.take().unwrap()).lines();
        tokio::select! {
            note = notes.next_line() => assert!(note.unwrap().is_some()),
            line = stdout.next_line() => assert!(line.unwrap().is_some()),
        }
        waiting.push((child, notes, stdout));
    }
    server.kill().await;
    for (_child, notes, _stdout) in &mut waiting {
        within("a word", async {
            loop {
                let line = notes.next_line().await.unwrap().expect("it goes on");
                if line.ends_with("; trying again for up to 30s") {
                    assert!(line.starts_with("ringq: cannot read "), "{line}");
                    return;
                }
            }
        })
        .await;
    }
}
