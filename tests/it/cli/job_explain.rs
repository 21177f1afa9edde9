use super::{ringq, silenced};
use crate::harness::{Server, Setup, job, millis};

#[tokio::test]
async fn each_reason_is_a_paragraph_with_its_time_and_the_next_step() {
    let server = Server::start().await;
    let client = server.connect().await;
    client.enqueue(job("mail").with_id("a").with_delay(millis(3_600_000))).await;
    for verb in ["explain", "why"] {
        let text = ringq(&server, &["job", verb, "mail", "a"]).await.ok();
        let paragraphs: Vec<_> = text.trim_end().split("\n\n").collect();
        assert_eq!(paragraphs.len(), 3, "{text}");
        assert_eq!(paragraphs[0], "mail/a is SCHEDULED");
        let lines: Vec<_> = paragraphs[1].lines().collect();
        assert!(lines[0].starts_with("NOT_DUE: The job is due at 20"), "{text}");
        assert!(lines[1].starts_with("  until: 20") && lines[1].ends_with("(in 1h)"), "{text}");
        assert!(lines[2].contains("  next: Wait, or make it due now: `ringq job reschedule --now"));
        assert!(paragraphs[2].starts_with("NO_STREAM: No stream or waiting Pull"), "{text}");
    }
    let json = ringq(&server, &["job", "explain", "mail", "a", "-o", "json"]).await.json();
    assert_eq!(json["job"]["spec"]["id"], "a");
    assert_eq!(json["reasons"][0]["code"], "NOT_DUE");
    assert_eq!(json["reasons"][1]["code"], "NO_STREAM");
}

/// The commands that remedies name exist.
#[tokio::test]
async fn the_next_step_can_be_taken_as_it_is_printed() {
    let server = Server::start().await;
    let client = server.connect().await;
    client.enqueue(job("mail").with_id("-a").with_delay(millis(3_600_000))).await;
    let json = ringq(&server, &["job", "explain", "-o", "json", "--", "mail", "-a"]).await.json();
    let remedy = json["reasons"][0]["remedy"].as_str().unwrap();
    let step = remedy.split('`').nth(1).unwrap().strip_prefix("ringq ").unwrap();
    ringq(&server, &step.split(' ').collect::<Vec<_>>()).await.ok();
    let text = ringq(&server, &["job", "explain", "--", "mail", "-a"]).await.ok();
    assert!(text.starts_with("mail/-a is READY\n"), "{text}");
}

#[tokio::test]
async fn a_job_whose_shard_does_not_answer_is_explained() {
    let server = Setup::new().shards(2).start().await;
    let client = server.connect().await;
    let ids = client.enqueue_all(vec![job("mail").with_delay(millis(3_600_000)); 200]).await;
    let id = ids.iter().find(|id| id.starts_with("s1~")).expect("a job on s1");
    let holder = silenced(&server, "s1").await;
    let text = ringq(&server, &["job", "explain", "mail", id]).await.ok();
    assert!(text.starts_with(&format!("mail/{id} is of unknown state\n\nSHARD_UNREACHABLE: ")));
    drop(holder);
}

#[tokio::test]
async fn a_job_that_is_not_there_is_reported_with_the_way_on() {
    let server = Server::start().await;
    let ran = ringq(&server, &["job", "explain", "mail", "a"]).await;
    let texts = ["ringq: cannot explain job mail/a: ", "there is no topic mail"];
    assert_eq!(ran.fails(3, &texts).stdout, "");
    ringq(&server, &["job", "explain", "mail"]).await.fails(2, &["<ID>"]);
}
