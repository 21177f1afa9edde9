use ringq::pb::JobState;

use super::ringq;
use crate::harness::{Server, job, millis};

#[tokio::test]
async fn a_job_is_moved() {
    let server = Server::start().await;
    let client = server.connect().await;
    client.enqueue(job("mail").with_id("a").with_delay(millis(3_600_000))).await;
    let args = ["job", "reschedule", "mail", "a", "--now"];
    assert_eq!(ringq(&server, &args).await.ok(), "a READY, due now\n");
    assert_eq!(client.state("mail", "a").await, JobState::Ready);
    let args = ["job", "reschedule", "mail", "a", "--delay", "2h", "--priority", "7"];
    assert_eq!(ringq(&server, &args).await.ok(), "a SCHEDULED, due in 2h\n");
    assert_eq!(client.get("mail", "a").await.spec.unwrap().priority, Some(7));
    let time = "2033-01-31T09:00:00Z";
    let args = ["job", "reschedule", "mail", "a", "--at", time, "-o", "json"];
    assert_eq!(ringq(&server, &args).await.json()["dueTime"], time);
}

#[tokio::test]
async fn what_cannot_be_moved_is_reported() {
    let server = Server::start().await;
    let client = server.connect().await;
    let args = ["job", "reschedule", "mail", "a", "--now"];
    ringq(&server, &args)
        .await
        .fails(3, &["cannot reschedule job mail/a", "there is no topic mail: `ringq topic list`"]);
    client.enqueue(job("mail").with_id("a")).await;
    client.pull_one("mail").await;
    let texts = ["cannot reschedule job mail/a", "that is running", "`ringq job get mail a`"];
    let ran = ringq(&server, &args).await.fails(1, &texts);
    assert!(!ran.stderr.contains("Get"), "{}", ran.stderr);
    let past = ["job", "reschedule", "mail", "b", "--at", "2020-11-22T10:00:00Z"];
    client.enqueue(job("mail").with_id("b")).await;
    let ran = ringq(&server, &past).await;
    assert!(ran.stderr.ends_with("y ago: the job is due now\n"), "{}", ran.stderr);
    ran.ok();
    ringq(&server, &args[..4]).await.fails(2, &["--now", "--delay"]);
    let both = ["job", "reschedule", "mail", "a", "--now", "--delay", "1s"];
    ringq(&server, &both).await.fails(2, &["cannot be used with"]);
}
