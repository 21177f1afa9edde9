use super::ringq;
use crate::harness::{JobExt as _, Server, job, millis, nack_retry};

#[tokio::test]
async fn a_job_is_shown_in_full() {
    let server = Server::start().await;
    let client = server.connect().await;
    let spec = job("mail").with_id("a").with_text("hello\nworld\u{1b}]0;title\u{7}");
    client.enqueue(spec.with_header("k", "v").with_max_attempts(3)).await;
    let delivery = client.pull_one("mail").await;
    client.nack(nack_retry(&delivery.receipt, "smtp down")).await;
    let text = ringq(&server, &["job", "get", "mail", "a"]).await.ok();
    for part in [
        "topic:       mail\n",
        "state:       BACKOFF\n",
        "failures:    1 of 3\n",
        "headers:     k=v\n",
        "payload:     hello\n             world\\u{1b}]0;title\\u{7}\n",
        "last error:  smtp down\n",
        "DELIVERY  OUTCOME",
        "1         FAILED",
    ] {
        assert!(text.contains(part), "{part:?} in:\n{text}");
    }
    let json = ringq(&server, &["job", "get", "mail", "a", "-o", "json"]).await.json();
    assert_eq!(json["spec"]["payload"]["text"], "hello\nworld\u{1b}]0;title\u{7}");
    assert_eq!(json["state"], "JOB_STATE_BACKOFF");
    assert_eq!(json["attempts"][0]["error"], "smtp down");
}

#[tokio::test]
async fn bytes_are_shown_as_hex() {
    let server = Server::start().await;
    let client = server.connect().await;
    client.enqueue(job("mail").with_id("a").with_bytes(3).with_delay(millis(3_600_000))).await;
    let text = ringq(&server, &["job", "get", "mail", "a"]).await.ok();
    assert!(text.contains("payload:     3 bytes: 78 78 78\n"), "{text}");
    assert!(text.contains("(in 1h)"), "{text}");
}

#[tokio::test]
async fn of_a_job_without_retention_it_states_what_is_left() {
    let server = Server::start().await;
    let client = server.connect().await;
    for (spec, is_left) in [
        (job("mail").with_id("gone").with_text("x"), false),
        (job("mail").with_id("kept").with_text("x").with_retention(millis(60_000)), true),
        (job("mail").with_id("bare").with_retention(millis(60_000)), true),
    ] {
        client.enqueue(spec).await;
        let delivery = client.pull_one("mail").await;
        client.ack(&delivery.receipt).await;
        let text = ringq(&server, &["job", "get", "mail", &delivery.id]).await.ok();
        assert!(text.contains("state:       SUCCEEDED\n"), "{text}");
        let kept = "kept:        state and id only; enqueue with --retention to keep";
        assert_eq!(text.contains(kept), !is_left, "{text}");
        assert_eq!(text.contains("attempts: "), is_left, "{text}");
    }
}

#[tokio::test]
async fn a_job_that_is_not_there_is_reported_with_the_way_on() {
    let server = Server::start().await;
    let ran = ringq(&server, &["job", "get", "mail", "a"]).await;
    let texts = ["ringq: cannot read job mail/a: ", "there is no topic mail: `ringq topic list`"];
    assert_eq!(ran.fails(3, &texts).stdout, "");
    ringq(&server, &["job", "get", "mail", ""]).await.fails(2, &["<ID>", "is a variable not set?"]);
    server.connect().await.enqueue(job("mail").with_id("b")).await;
    let ran = ringq(&server, &["job", "get", "mail", "a"]).await;
    ran.fails(3, &["ringq: cannot read job mail/a: ", "`ringq job list mail`"]);
}
