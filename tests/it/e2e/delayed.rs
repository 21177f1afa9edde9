use std::collections::HashMap;
use std::time::Duration;

use ringq::pb::job_spec::Schedule;
use ringq::pb::{JobSpec, JobState, StreamRequest};
use tokio::time::Instant;

use crate::harness::{Server, SinceEpoch as _, job, millis, take, timestamp, wall_now};

fn due_at(spec: JobSpec, since_epoch: Duration) -> JobSpec {
    JobSpec { schedule: Some(Schedule::DueTime(timestamp(since_epoch))), ..spec }
}

#[tokio::test]
async fn a_delayed_job_never_comes_early_by_the_clients_clock() {
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
    for _ in 0..JOBS {
        let delivery = worker.next().await;
        let arrival = Instant::now();
        let (enqueued, delay) = sent.remove(&delivery.id).expect("each comes once");
        let waited = arrival - enqueued;
        // A timestamp is cut to the microsecond, no more.
        assert!(waited + Duration::from_micros(5) >= delay, "{waited:?} instead of {delay:?}");
    }
}
