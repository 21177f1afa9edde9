use std::collections::BTreeMap;

use ringq::pb::{JobState, NackAction, NackItem, PullRequest, StreamRequest};

use crate::harness::{
    JobExt as _, Server, Setup, duration, eventually, job, millis, nack, proto, take,
};

/// `for message in Stream(topics)`: work, Ack, and nothing else.
async fn work_off(server: &Server, topic: &str, jobs: usize) {
    let client = server.connect().await;
    let spec = job(topic).with_retention(millis(60_000));
    let mut left: BTreeMap<_, _> =
        client.enqueue_all(vec![spec; jobs]).await.into_iter().map(|id| (id, 0)).collect();
    let topics = vec![topic.to_owned()];
    let mut stream = client.stream(StreamRequest { topics, ..Default::default() }).await;
    assert_eq!(stream.info.max_in_flight, 1);
    while left.values().any(|&times| times == 0) {
        let delivery = stream.next().await;
        *left.get_mut(&delivery.id).unwrap() += 1;
        let lease = duration(&delivery.lease_duration);
        assert!(lease > millis(29 * 60_000), "a job of 45 s needs no Extend: {lease:?}");
        tokio::time::sleep(millis(30)).await;
        assert_eq!((stream.unread(), client.stats(topic).await.running), (0, 1), "one at a time");
        client.ack(&delivery.receipt).await;
    }
    for id in left.keys() {
        let job = client.get(topic, id).await;
        assert_eq!((job.state(), job.deliveries), (JobState::Succeeded, 1));
    }
}

#[tokio::test]
async fn a_serial_worker_of_defaults_finishes_each_job_once() {
    let server = Server::start().await;
    let counts = [1, 2, 3, 4, 11];
    let work = counts.map(|jobs| {
        let server = &server;
        async move { work_off(server, &format!("naive.{jobs}"), jobs).await }
    });
    futures::future::join_all(work).await;
    let client = server.connect().await;
    client.enqueue(job("pulled")).await;
    let pulled = client.pull_one("pulled").await;
    let lease = duration(&pulled.lease_duration);
    assert!(
        lease > millis(20_000) && lease <= millis(30_000),
        "no stream shows its worker: {lease:?}"
    );
}

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
async fn the_only_server_ends_soon_though_a_job_runs_long_and_that_is_settled_with_the_next() {
    let mut server = Setup::new().restartable().start().await;
    let client = server.connect().await;
    let spec = |id: &str| job("mail").with_id(id).with_retention(millis(60_000));
    client.enqueue_all(["slow", "soon", "next"].map(spec).to_vec()).await;
    let mut worker = client.stream(StreamRequest { max_in_flight: 2, ..take("mail") }).await;
    let [slow, soon]: [_; 2] = worker.next_many(2).await.try_into().unwrap();
    let began = tokio::time::Instant::now();
    server.terminate();
    worker.end().await;
    client.ack(&soon.receipt).await;
    assert!(server.exit().await.success());
    let took = began.elapsed();
    assert!(took > millis(1_500) && took < millis(8_000), "it took {took:?}");
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
