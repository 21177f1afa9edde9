use std::collections::HashMap;
use std::time::Duration;

use ringq::pb::job_spec::{Expiration, Schedule};
use ringq::pb::{JobSpec, JobState, RescheduleRequest, StreamRequest};
use tokio::time::Instant;

use crate::harness::{
    Server, Setup, SinceEpoch as _, eventually, job, millis, proto, take, timestamp, wall_now,
};

fn due_at(spec: JobSpec, since_epoch: Duration) -> JobSpec {
    JobSpec { schedule: Some(Schedule::DueTime(timestamp(since_epoch))), ..spec }
}

#[tokio::test]
async fn a_delayed_job_never_comes_early_by_the_clients_clock_and_not_much_late() {
    const JOBS: u64 = 60;
    let server = Server::start().await;
    let client = server.connect().await;
    let mut worker = client.stream(StreamRequest { max_in_flight: 1_000, ..take("later") }).await;
    let mut sent = HashMap::new();
    for n in 0..JOBS {
        // Some by delay, some by time, in no order.
        let delay = millis(200 + n * 37 % 1_500);
        let spec = job("later").with_id(format!("n{n}"));
        let (now, wall) = (Instant::now(), wall_now());
        let spec = if n % 2 == 0 { spec.with_delay(delay) } else { due_at(spec, wall + delay) };
        let answer = client.enqueue(spec).await;
        assert_eq!(answer.state(), JobState::Scheduled);
        assert!(answer.due_time.since_epoch() + millis(1) >= wall + delay);
        sent.insert(answer.id, (now, delay));
    }
    let mut lateness = Vec::new();
    for _ in 0..JOBS {
        let delivery = worker.next().await;
        let arrival = Instant::now();
        let (enqueued, delay) = sent.remove(&delivery.id).expect("each comes once");
        let waited = arrival - enqueued;
        // A timestamp is cut to the microsecond, no more.
        assert!(waited + Duration::from_micros(5) >= delay, "{waited:?} instead of {delay:?}");
        lateness.push(waited.saturating_sub(delay));
    }
    lateness.sort();
    let (median, worst) = (lateness[lateness.len() / 2], lateness[lateness.len() - 1]);
    assert!(median < millis(100), "half of the jobs were later than {median:?}");
    assert!(worst < millis(1_000), "the worst was {worst:?} late");
    worker.quiet(millis(100)).await;
}

#[tokio::test]
async fn a_due_job_is_ready_on_time_without_any_call() {
    let server = Server::start().await;
    let client = server.connect().await;
    client.enqueue(job("later").with_id("a").with_delay(millis(400))).await;
    assert_eq!(client.state("later", "a").await, JobState::Scheduled);
    assert_eq!(client.pull_now("later", 1).await, []);
    let stats = client.stats("later").await;
    assert_eq!((stats.scheduled, stats.ready), (1, 0));
    assert_eq!(stats.oldest_ready_age, None);
    client.until("later", "a", JobState::Ready).await;
    let stats = client.stats("later").await;
    assert_eq!((stats.scheduled, stats.ready), (0, 1));
    assert!(stats.oldest_ready_age.is_some());
    assert_eq!(client.pull_now("later", 1).await.len(), 1);
}

#[tokio::test]
async fn a_time_that_has_passed_means_now() {
    let server = Server::start().await;
    let client = server.connect().await;
    for past in [Duration::ZERO, Duration::from_secs(1), wall_now() - millis(1_000)] {
        let before = wall_now();
        let answer = client.enqueue(due_at(job("later"), past)).await;
        assert_eq!(answer.state(), JobState::Ready);
        assert!(answer.due_time.since_epoch() >= before, "an old time brings no better place");
        assert_eq!(client.pull_now("later", 1).await.len(), 1);
    }
}

#[tokio::test]
async fn a_job_that_is_moved_keeps_to_its_new_time() {
    let server = Server::start().await;
    let client = server.connect().await;
    let mut worker = client.stream(take("later")).await;
    let delay = |ms| Some(ringq::pb::reschedule_request::Schedule::Delay(proto(millis(ms))));
    let reschedule = async |id: &str, schedule| {
        let (topic, id) = ("later".into(), id.into());
        let request = RescheduleRequest { topic, id, schedule, priority: None };
        client.queue.clone().reschedule(request).await.unwrap();
    };
    client.enqueue(job("later").with_id("sooner").with_delay(millis(3_600_000))).await;
    client.enqueue(job("later").with_id("later").with_delay(millis(500))).await;
    let begin = Instant::now();
    reschedule("later", delay(1_200)).await;
    reschedule("sooner", delay(300)).await;
    assert_eq!(worker.next().await.id, "sooner");
    assert!(begin.elapsed() >= millis(300));
    assert_eq!(worker.next().await.id, "later");
    assert!(begin.elapsed() >= millis(1_200), "moved to later, came after {:?}", begin.elapsed());
    assert!(begin.elapsed() < millis(3_000));
}

#[tokio::test]
async fn delayed_jobs_survive_the_death_of_the_server_and_come_on_time() {
    let mut server = Setup::new().restartable().start().await;
    let client = server.connect().await;
    let begin = Instant::now();
    client.enqueue(job("later").with_id("soon").with_delay(millis(100))).await;
    client.enqueue(job("later").with_id("then").with_delay(millis(2_500))).await;
    server.kill().await;
    server.restart().await;
    let mut worker = server.connect().await.stream(take("later")).await;
    assert_eq!(worker.next().await.id, "soon");
    assert_eq!(worker.next().await.id, "then");
    assert!(begin.elapsed() >= millis(2_500), "after {:?}", begin.elapsed());
}

#[tokio::test]
async fn a_job_that_is_not_running_when_its_time_is_over_expires() {
    let server = Server::start().await;
    let client = server.connect().await;
    let kept = |id: &str| job("mail").with_id(id).with_retention(millis(60_000));
    let at = wall_now() + millis(500);
    let expiration = Some(Expiration::ExpireTime(timestamp(at)));
    client.enqueue(JobSpec { expiration, ..kept("by-time") }).await;
    client.enqueue(kept("by-ttl").with_ttl(millis(500))).await;
    client.enqueue(kept("before-due").with_delay(millis(400)).with_ttl(millis(500))).await;
    client.enqueue(kept("running").with_ttl(millis(500)).with_priority(9)).await;
    client.enqueue(kept("forever")).await;
    let running = client.pull_one("mail").await;
    assert_eq!(running.id, "running");
    for id in ["by-time", "by-ttl", "before-due"] {
        let expired = client.until("mail", id, JobState::Expired).await;
        assert_eq!(expired.deliveries, 0);
        assert!(expired.finish_time.is_some());
        assert!(wall_now() >= at);
    }
    assert_eq!(client.state("mail", "running").await, JobState::Running, "it started in time");
    client.ack(&running.receipt).await;
    let left: Vec<_> = client.pull_now("mail", 10).await.into_iter().map(|d| d.id).collect();
    assert_eq!(left, ["forever"]);
}

#[tokio::test]
async fn finished_jobs_are_forgotten_when_their_retention_is_over() {
    let server = Server::start().await;
    let client = server.connect().await;
    client.enqueue(job("mail").with_id("short").with_retention(millis(300))).await;
    client.enqueue(job("mail").with_id("tombstone").with_text("secret")).await;
    client.enqueue(job("mail").with_id("none").with_retention(millis(0))).await;
    let made = client.enqueue(job("mail")).await.id;
    for delivery in client.pull_now("mail", 10).await {
        client.ack(&delivery.receipt).await;
    }
    assert_eq!(client.find("mail", "none").await, None);
    assert_eq!(client.find("mail", &made).await, None, "a made id leaves nothing");
    let tombstone = client.get("mail", "tombstone").await;
    assert_eq!(tombstone.state(), JobState::Succeeded);
    assert_eq!(tombstone.spec.unwrap().payload, None, "a tombstone has no payload");
    eventually("the retention is over", async || {
        client.find("mail", "short").await.is_none().then_some(())
    })
    .await;
    assert!(client.find("mail", "tombstone").await.is_some());
}
