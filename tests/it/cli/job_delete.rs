use ringq::pb::JobState;

use super::ringq;
use crate::harness::{Server, job};

#[tokio::test]
async fn jobs_are_deleted_and_what_is_missing_is_reported() {
    let server = Server::start().await;
    let client = server.connect().await;
    for id in ["a", "b", "c"] {
        client.enqueue(job("mail").with_id(id)).await;
    }
    let ran = ringq(&server, &["job", "delete", "mail", "a", "nope", "b"]).await;
    let ran = ran.fails(3, &["cannot delete job mail/nope", "`ringq job list mail`"]);
    assert_eq!(ran.stdout, "a cancelled, was READY\nb cancelled, was READY\n");
    for id in ["a", "b"] {
        assert_eq!(client.state("mail", id).await, JobState::Cancelled);
    }
    let args = ["job", "delete", "mail", "c", "nope", "--allow-missing", "-o", "json"];
    let rows = ringq(&server, &args).await.json();
    assert_eq!(rows[0], serde_json::json!({"id": "c", "previousState": "JOB_STATE_READY"}));
    assert_eq!(rows[1]["previousState"], "JOB_STATE_UNSPECIFIED");
    // The second time it would remove the job that it has cancelled.
    client.enqueue(job("mail").with_id("d")).await;
    let twice = ringq(&server, &["job", "delete", "mail", "d", "d"]).await.ok();
    assert_eq!(twice, "d cancelled, was READY\n");
    assert_eq!(client.state("mail", "d").await, JobState::Cancelled);
    ringq(&server, &["job", "delete", "mail"]).await.fails(2, &["<ID>"]);
}
