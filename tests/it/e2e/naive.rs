use ringq::pb::{JobState, NackAction, NackItem, PullRequest, StreamRequest};

use crate::harness::{JobExt as _, Server, Setup, eventually, job, millis, nack, proto, take};

#[tokio::test]
async fn the_log_names_the_job_of_a_lease_that_expired_and_a_dead_one_but_not_what_is_in_it() {
    let server = Server::start().await;
    let client = server.connect().await;
    let spec = |id: &str| job("mail").with_id(id).with_text("a secret").with_max_attempts(1);
    client.enqueue(spec("lapses").with_lease(millis(1_000))).await;
    let worker_id = "host-7".to_owned();
    let mut worker = client.stream(StreamRequest { worker_id, ..take("mail") }).await;
    worker.next().await;
    client.until("mail", "lapses", JobState::Dead).await;
    client.enqueue(spec("refused")).await;
    let refused = worker.next().await;
    let error = "a secret, too".to_owned();
    client.nack(NackItem { error, ..nack(&refused.receipt, NackAction::DeadLetter) }).await;
    let log = eventually("both deaths are logged", async || {
        let log = server.log();
        (log.matches("became a dead letter").count() == 2).then_some(log)
    })
    .await;
    let line = |text: &str| log.lines().find(|line| line.contains(text)).unwrap().to_owned();
    let lapse = line("expired before its job was settled");
    for part in
        ["WARN", "topic=\"mail\"", "job=lapses", "worker=\"host-7\"", "credit=16", "age_s=1"]
    {
        assert!(lapse.contains(part), "{part}: {lapse}");
    }
    let died = line("LEASE_EXPIRED");
    for part in ["topic=\"mail\"", "job=lapses", "attempts=1"] {
        assert!(died.contains(part), "{part}: {died}");
    }
    assert!(line("DEAD_LETTERED").contains("job=refused"), "{log}");
    assert!(!log.contains("secret"), "{log}");
}

#[tokio::test]
async fn many_leases_that_expire_at_once_are_a_line_or_two_in_the_log() {
    let server = Server::start().await;
    let client = server.connect().await;
    client.enqueue_all(vec![job("mail").with_lease(millis(1_000)).with_max_attempts(1); 300]).await;
    let wait = Some(proto(millis(5_000)));
    let pull =
        PullRequest { topics: vec!["mail".into()], max_jobs: 256, wait, ..Default::default() };
    let taken = client.pull(pull).await.unwrap().len();
    assert!(taken > 100, "{taken}");
    eventually("all of them are dead", async || {
        (client.stats("mail").await.dead as usize == taken).then_some(())
    })
    .await;
    // The server logs what its store has already done.
    for line in ["expired before its job was settled", "became a dead letter"] {
        let count = async || Some(server.log().matches(line).count()).filter(|lines| *lines > 0);
        let lines = eventually("it is logged", count).await;
        assert!(lines <= 2, "{}", server.log());
    }
}

#[tokio::test]
async fn the_only_server_waits_two_seconds_for_a_job_that_is_settled_with_the_next() {
    let mut server = Setup::new().restartable().start().await;
    let client = server.connect().await;
    let spec = |id: &str| job("mail").with_id(id).with_retention(millis(60_000));
    client.enqueue_all(["slow", "soon", "next"].map(spec).to_vec()).await;
    let mut worker = client.stream(StreamRequest { max_in_flight: 2, ..take("mail") }).await;
    let [slow, soon]: [_; 2] = worker.next_many(2).await.try_into().unwrap();
    server.terminate();
    worker.end().await;
    client.ack(&soon.receipt).await;
    assert!(server.exit().await.success());
    let log = server.log();
    assert!(log.contains("streams=1 unsettled=2 grace_s=2"), "{log}");
    server.restart().await;
    let client = server.connect().await;
    let mut other = client.stream(take("mail")).await;
    let next = other.next().await;
    assert_eq!(next.id, "next");
    other.quiet(millis(300)).await;
    client.ack_all(&[slow.receipt, next.receipt]).await;
    for id in ["slow", "soon", "next"] {
        let job = client.get("mail", id).await;
        assert_eq!((job.state(), job.deliveries, job.failures), (JobState::Succeeded, 1, 0));
    }
}
