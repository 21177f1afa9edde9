//! Handlers, outcomes, leases.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use ringq::client::{Delivery, Outcome, Worker};
use ringq::pb::{AttemptOutcome, DeleteRequest, JobSpec, JobState, Payload, RetryPolicy};
use tokio::sync::Semaphore;

use super::{Count, Running, calls, connect, enqueue, jobs};
use crate::harness::{Server, eventually, millis, proto, within};

/// Returns the outcome of these tests' handler for a job, by its text.
async fn answer(job: Delivery) -> Outcome {
    let follow_up = |topic: &str| JobSpec::new(topic).with_id(format!("after-{}", job.id));
    let ack = |enqueue| Outcome::Ack { result: Some(Payload::text("42")), enqueue };
    match (job.text().unwrap(), job.delivery) {
        ("ack", _) => ack(vec![]),
        ("follow-up", _) => ack(vec![follow_up("next"), JobSpec::new("next")]),
        ("bad follow-up", 1) => ack(vec![follow_up("no topic")]),
        ("bad delay", 1) => Outcome::Release { error: String::new(), delay: Some(Duration::MAX) },
        ("retry", 1) => Outcome::Retry { error: "not yet".into(), delay: Some(millis(10)) },
        ("release", 1) => Outcome::Release { error: "not me".into(), delay: Some(millis(0)) },
        ("dead", _) => Outcome::dead_letter("never"),
        ("error", 1) => Err::<(), _>("an error").into(),
        ("panic", 1) => panic!("the {}", "end"),
        _ => Outcome::ack(),
    }
}

#[tokio::test]
async fn each_outcome_settles_its_job() {
    let server = Server::start().await;
    let (client, look) = (connect(&server), server.connect().await);
    let names = [
        "ack",
        "follow-up",
        "bad follow-up",
        "bad delay",
        "retry",
        "release",
        "dead",
        "error",
        "panic",
    ];
    let retry = RetryPolicy { delays: vec![proto(millis(1))], ..Default::default() };
    let job = |name: &str| JobSpec::new("t").with_id(name.replace(' ', "-")).with_text(name);
    let keep = |job: JobSpec| job.with_retention(millis(60_000)).with_retry(retry.clone());
    // Other jobs, which one bad answer must not harm.
    let company = jobs("t", 50).into_iter();
    let all = names.iter().map(|name| keep(job(name))).chain(company).collect();
    enqueue(&client, all).await;
    let worker = Worker::new(client, ["t"]).concurrency(60).idle_exit(millis(700));
    let summary = within("the jobs", worker.run(answer, std::future::pending())).await.unwrap();
    assert_eq!((summary.acked, summary.failed), (58, 5), "{summary:?}");
    assert_eq!((summary.released, summary.dead_lettered, summary.unsettled), (1, 1, 0));
    assert_eq!(summary.to_string(), "58 acked, 5 failed, 1 released, 1 dead-lettered");

    let acked = look.get("t", "ack").await;
    assert_eq!((acked.state(), acked.result.unwrap().bytes()), (JobState::Succeeded, &b"42"[..]));
    assert_eq!(look.state("next", "after-follow-up").await, JobState::Ready);
    assert_eq!(look.stats("next").await.ready, 2);
    for (id, failures, error) in [
        ("bad-follow-up", 1, "the handler's answer was refused: "),
        ("bad-delay", 1, "the handler's answer was refused: "),
        ("retry", 1, "not yet"),
        ("release", 0, ""),
        ("error", 1, "an error"),
        ("panic", 1, "the handler panicked: the end"),
    ] {
        let job = look.get("t", id).await;
        assert_eq!((job.state(), job.failures), (JobState::Succeeded, failures), "{id}");
        let last = job.attempts.last().unwrap();
        assert!(job.last_error.starts_with(error) || last.error.starts_with(error), "{job:?}");
    }
    let company = look.list("t", JobState::Succeeded).await;
    assert!(company.iter().all(|job| job.deliveries <= 2));
    assert_eq!(company.iter().filter(|job| job.deliveries == 1).count(), 52);
    let dead = look.get("t", "dead").await;
    assert_eq!((dead.state(), dead.last_error.as_str()), (JobState::Dead, "never"));
}

#[tokio::test]
async fn a_handler_that_panics_before_it_has_a_future_fails_its_job_alone() {
    let server = Server::start().await;
    let client = connect(&server);
    enqueue(&client, jobs("t", 2)).await;
    let handler = |job: Delivery| {
        assert!(job.attempt > 1 || job.id != "0", "at once");
        async {}
    };
    let worker = Worker::new(client, ["t"]).max_jobs(3);
    let summary = within("the jobs", worker.run(handler, std::future::pending())).await.unwrap();
    assert_eq!((summary.acked, summary.failed), (2, 1));
}

#[tokio::test]
async fn as_many_handlers_run_at_once_as_are_asked_for() {
    let server = Server::start().await;
    let client = connect(&server);
    enqueue(&client, jobs("t", 100)).await;
    let (now, most, gate) =
        (Count::default(), Arc::new(Mutex::new(0)), Arc::new(Semaphore::new(0)));
    let handler = {
        let (now, most, gate) = (now.clone(), Arc::clone(&most), Arc::clone(&gate));
        move |_| {
            let (now, most, gate) = (now.clone(), Arc::clone(&most), Arc::clone(&gate));
            async move {
                let running = now.add();
                let top = running.max(*most.lock().unwrap());
                *most.lock().unwrap() = top;
                gate.acquire().await.unwrap().forget();
                now.sub();
            }
        }
    };
    let worker = Running::start(Worker::new(client, ["t"]).concurrency(7).max_jobs(100), handler);
    now.reaches(7).await;
    // Prefetched jobs wait: credit for as many again.
    let look = server.connect().await;
    eventually("credit is used", async || (look.stats("t").await.running == 14).then_some(()))
        .await;
    gate.add_permits(100);
    assert_eq!(worker.ended().await.acked, 100);
    assert_eq!(*most.lock().unwrap(), 7);
}

#[tokio::test]
async fn a_lease_is_extended_while_its_handler_runs() {
    let server = Server::start().await;
    let (client, look) = (connect(&server), server.connect().await);
    enqueue(&client, jobs("t", 3)).await;
    let handler = |_| tokio::time::sleep(millis(1_500));
    // One at a time: the leases of waiting jobs are extended, too.
    let worker = Worker::new(client, ["t"]).lease(millis(1_000)).prefetch(2).max_jobs(3);
    let summary = within("the jobs", worker.run(handler, std::future::pending())).await.unwrap();
    assert_eq!((summary.acked, summary.unsettled), (3, 0));
    for job in look.list("t", JobState::Succeeded).await {
        assert_eq!((job.deliveries, job.failures), (1, 0));
    }
}

#[tokio::test]
async fn a_job_that_is_deleted_stops_its_handler() {
    struct Guard(Count);
    impl Drop for Guard {
        fn drop(&mut self) {
            self.0.add();
        }
    }
    let server = Server::start().await;
    let client = connect(&server);
    enqueue(&client, jobs("t", 1)).await;
    let (begun, dropped) = (Count::default(), Count::default());
    let handler = {
        let (begun, dropped) = (begun.clone(), dropped.clone());
        move |_| {
            let guard = Guard(dropped.clone());
            begun.add();
            async move {
                std::future::pending::<()>().await;
                drop(guard);
            }
        }
    };
    let worker = Running::start(Worker::new(client.clone(), ["t"]), handler);
    begun.reaches(1).await;
    let request = DeleteRequest { topic: "t".into(), id: "0".into(), ..Default::default() };
    client.queue().delete(request).await.unwrap();
    dropped.reaches(1).await;
    let summary = worker.stop().await;
    assert_eq!((summary.unsettled, summary.acked), (1, 0));
}

#[tokio::test]
async fn acks_go_out_by_the_hundred_and_a_lone_one_too() {
    let server = Server::start().await;
    let client = connect(&server);
    enqueue(&client, (0..10_000).map(|_| JobSpec::new("t")).collect()).await;
    let worker = Worker::new(client.clone(), ["t"]).concurrency(500).max_jobs(10_000);
    let summary = worker.run(|_| async {}, std::future::pending()).await.unwrap();
    assert_eq!(summary.acked, 10_000);
    let many = calls(&server, "Ack").await;
    assert!((100..=1_000).contains(&many), "{many} calls");

    let begun = Count::default();
    let handler = {
        let begun = begun.clone();
        move |_| {
            begun.add();
            async {}
        }
    };
    let worker = Running::start(Worker::new(client.clone(), ["lone"]).concurrency(50), handler);
    let look = server.connect().await;
    for n in 1..=5 {
        enqueue(&client, vec![JobSpec::new("lone")]).await;
        begun.reaches(n).await;
        eventually("the ack", async || {
            (look.stats("lone").await.succeeded_total == n as i64).then_some(())
        })
        .await;
    }
    assert_eq!(worker.stop().await.acked, 5);
}

#[tokio::test]
async fn batches_are_of_one_topic_and_wait_for_no_stream() {
    let server = Server::start().await;
    let client = connect(&server);
    // One lone job first: it does not wait for others.
    enqueue(&client, jobs("a", 1)).await;
    let batches = Arc::new(Mutex::new(Vec::new()));
    let (seen, count) = (Arc::clone(&batches), Count::default());
    let (done, gate) = (count.clone(), Arc::new(Semaphore::new(1)));
    let opened = Arc::clone(&gate);
    let handler = move |jobs: Vec<Delivery>| {
        let topics: Vec<String> = jobs.iter().map(|job| job.topic.clone()).collect();
        seen.lock().unwrap().push(topics);
        jobs.iter().for_each(|_| _ = done.add());
        let gate = Arc::clone(&gate);
        async move { gate.acquire().await.unwrap().forget() }
    };
    let worker = Worker::new(client.clone(), ["a", "b"]).prefetch(40).max_jobs(42);
    let worker = tokio::spawn(worker.run_batches(10, handler, std::future::pending()));
    count.reaches(1).await;
    // The next one blocks the only handler, so that 40 gather behind it.
    enqueue(&client, vec![JobSpec::new("a")]).await;
    count.reaches(2).await;
    let mixed = (0..40).map(|n| JobSpec::new(if n % 2 == 0 { "a" } else { "b" }));
    enqueue(&client, mixed.collect()).await;
    let look = server.connect().await;
    eventually("all wait", async || {
        let running = look.stats("a").await.running + look.stats("b").await.running;
        (running == 41).then_some(())
    })
    .await;
    tokio::time::sleep(millis(50)).await;
    opened.add_permits(100);
    let summary = within("the jobs", worker).await.unwrap().unwrap();
    assert_eq!(summary.acked, 42);
    let batches = batches.lock().unwrap();
    assert!(batches.iter().all(|batch| batch.iter().all(|topic| *topic == batch[0])));
    let sizes: Vec<usize> = batches.iter().map(Vec::len).collect();
    assert_eq!(sizes, [1, 1, 10, 10, 10, 10]);
}

#[tokio::test]
async fn a_handler_goes_on_where_the_last_one_was() {
    let server = Server::start().await;
    let client = connect(&server);
    enqueue(&client, jobs("t", 1)).await;
    let fences = Arc::new(Mutex::new(Vec::new()));
    let seen = Arc::clone(&fences);
    let handler = move |job: Delivery| {
        seen.lock().unwrap().push(job.fence);
        async move {
            match job.saved() {
                b"" => match job.save(Payload::text("half")).await {
                    Ok(()) => Outcome::Retry { error: "later".into(), delay: Some(millis(1)) },
                    Err(error) => Outcome::dead_letter(error),
                },
                b"half" => Outcome::ack(),
                other => Outcome::dead_letter(String::from_utf8_lossy(other)),
            }
        }
    };
    let worker = Worker::new(client, ["t"]).max_jobs(2);
    let summary = worker.run(handler, std::future::pending());
    let summary = summary.await.unwrap();
    assert_eq!((summary.acked, summary.failed), (1, 1));
    let fences = fences.lock().unwrap();
    assert!(fences.len() == 2 && fences[0] < fences[1], "{fences:?}");
}

#[tokio::test]
async fn a_note_on_the_progress_is_seen() {
    let server = Server::start().await;
    let (client, look) = (connect(&server), server.connect().await);
    enqueue(&client, jobs("t", 1)).await;
    let worker = Worker::new(client, ["t"]).max_jobs(1);
    let handler = async |job: Delivery| job.progress("half").await;
    let summary = worker.run(move |job| Box::pin(handler(job)), std::future::pending()).await;
    assert_eq!(summary.unwrap().acked, 1);
    let job = look.get("t", "0").await;
    assert_eq!(job.progress, "half");
    assert_eq!(job.attempts[0].outcome(), AttemptOutcome::Succeeded);
}
