//! A Redis stands still, in several ways and for several lengths of time: calls in flight have an unknown outcome and
//! can be repeated, later callers get an answer in time that it is unreachable, and when it continues it is not
//! flooded.

use std::time::Duration;

use tokio::task::JoinSet;
use tokio::time::Instant;
use tonic::{Code, Request, Status};
use tonic_types::StatusExt as _;

use crate::cluster::Shape;
use crate::cut_off::{TOPIC, asks_for, id_on};
use crate::harness::raw::RawQueue;
use crate::harness::{Client, millis, raw_queue};
use crate::load::Habits;
use crate::redis::HIT;
use crate::trial::{Trial, long};

/// Deadline of a caller.
const DEADLINE: Duration = Duration::from_secs(1);
/// Allowance beyond the deadline on a busy machine.
const LATE: Duration = millis(700);
/// Pause between two callers.
const EVERY: Duration = millis(100);
/// Connections that each replica may make during one outage, in addition to one per second of it: the ones that it
/// gave up, and one at a time to probe whether the Redis is back.
const CONNECTIONS: u64 = 4;
/// Length of an outage that no caller has to notice.
const SHORT: Duration = millis(300);

/// A way in which a Redis stands still.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Still {
    Stopped,
    ClientsPaused,
    Asleep,
}

/// Time of a call and its status.
type Answer = (Duration, Option<Status>);

/// Returns all ways, the longest last.
fn all_ways() -> Vec<(Still, Duration)> {
    let time = Duration::from_secs(2);
    let mut ways = vec![
        (Still::Stopped, SHORT),
        (Still::Stopped, time),
        (Still::ClientsPaused, time),
        (Still::Asleep, time),
    ];
    if long() {
        ways.push((Still::Stopped, Duration::from_secs(40)));
    }
    ways
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "make faults runs it"]
async fn for_a_moment_and_for_long() {
    let name = "redis_still";
    let Some(trial) = Trial::start(name, Shape::default(), Habits::default()).await else { return };
    let client = Client::connect(trial.cluster.replica[0].grpc).await;
    let id = id_on(&client, &format!("s{HIT}")).await;
    for (how, time) in all_ways() {
        trial.run(Duration::from_secs(1)).await;
        let before = trial.connections().await;
        let noticed = trial.shared().troubles.times("");
        let (answers, ()) = tokio::join!(ask(&trial, &id, time), trial.stand_still(how, time));
        trial.run(Duration::from_secs(1)).await;
        let connections = trial.connections().await - before;
        let noticed = trial.shared().troubles.times("") - noticed;
        let slowest = answers.iter().map(|(took, _)| *took).max().unwrap_or_default();
        let refused = answers.iter().filter(|(_, refused)| refused.is_some()).count();
        println!(
            "{name}: {how:?} for {time:?}: {refused} of {} calls refused, the slowest after {slowest:?}; the load \
             noticed it {noticed} times; {connections} new connections",
            answers.len()
        );
        answers.iter().for_each(is_reported_in_time);
        match time <= SHORT {
            true => assert_eq!((refused, noticed), (0, 0), "{how:?} for {time:?}"),
            false => assert!(refused > 0, "no call was refused in {how:?} for {time:?}"),
        }
        let replicas = u64::try_from(trial.cluster.replica.len()).unwrap();
        let limit = replicas * (CONNECTIONS + time.as_secs());
        assert!(connections <= limit, "{connections} connections");
    }
    // Exactly one, however often it was enqueued.
    let only = client.pull_one(TOPIC).await;
    assert_eq!((only.id, only.delivery, only.attempt), (id, 1, 1));
    client.ack(&only.receipt).await;
    assert_eq!(client.pull_now(TOPIC, 10).await, []);
    trial.finish().await;
}

/// Checks an answer: it comes by the deadline, and a refusal names the unreachable shard and a retry delay.
fn is_reported_in_time((took, refused): &Answer) {
    assert!(*took < DEADLINE + LATE, "answered after {took:?}");
    let Some(status) = refused else { return };
    let known = matches!(status.code(), Code::Unavailable | Code::ResourceExhausted);
    assert!(known && status.get_error_details().retry_info().is_some(), "{status:?}");
}

/// Enqueues a job again and again while the Redis of its shard stands still.
async fn ask(trial: &Trial, id: &str, time: Duration) -> Vec<Answer> {
    let queue = raw_queue(trial.cluster.replica[0].grpc).await;
    let (end, mut calls) = (Instant::now() + time, JoinSet::new());
    while Instant::now() < end {
        calls.spawn(once(queue.clone(), id.to_owned()));
        tokio::time::sleep(EVERY).await;
    }
    calls.join_all().await
}

/// Sends one call without tonic's channel, which would apply the deadline by itself.
async fn once(mut queue: RawQueue, id: String) -> Answer {
    let mut call = Request::new(asks_for(&id));
    let deadline = format!("{}m", DEADLINE.as_millis());
    call.metadata_mut().insert("grpc-timeout", deadline.parse().unwrap());
    let begin = Instant::now();
    let answer = queue.enqueue(call).await;
    (begin.elapsed(), answer.err())
}

impl Trial {
    async fn stand_still(&self, how: Still, time: Duration) {
        let ms = time.as_millis().to_string();
        match how {
            Still::Stopped => {
                self.stop_redis(HIT);
                self.run(time).await;
                self.resume_redis(HIT);
            }
            Still::ClientsPaused => {
                self.note("pause all clients");
                self.command(HIT, &["CLIENT", "PAUSE", &ms, "ALL"]).await;
                self.run(time).await;
            }
            Still::Asleep => {
                self.note("sleep");
                self.command(HIT, &["DEBUG", "SLEEP", &time.as_secs_f64().to_string()]).await;
            }
        }
    }

    /// Returns the number of connections that the Redis has accepted so far.
    async fn connections(&self) -> u64 {
        self.cluster.redis[HIT].info("stats", "total_connections_received").await
    }
}
