//! Replicas are cut off from a Redis that lives: nothing arrives, connections are reset, or answers do not arrive.
//! The last is the worst: the call is executed, and no replica has the outcome.

use std::time::Duration;

use ringq::pb::{DeleteRequest, EnqueueOutcome, EnqueueRequest};

use crate::cluster::Shape;
use crate::harness::{Client, eventually, job, millis, request};
use crate::load::{Habits, NO_ID};
use crate::proxy::{Proxy, Way};
use crate::redis::{Blow, HIT};
use crate::trial::{Outcome, Trial, harm_time};

/// Resets in a thousand requests, and in a thousand answers: one in fifty calls fails.
const BROKEN: u32 = 10;
/// Time for which a client waits for an answer that does not come.
const IMPATIENCE: Duration = millis(500);
/// Topic of jobs that are not part of the load.
pub(crate) const TOPIC: &str = "mail";

async fn proxied(name: &'static str) -> Option<Trial> {
    let shape = Shape { proxied: true, ..Shape::default() };
    Trial::start(name, shape, Habits::default()).await
}

async fn cut_off(name: &'static str, way: Way) -> Option<Outcome> {
    let mut trial = proxied(name).await?;
    trial.take_away(Blow::Network(way)).await;
    Some(trial.finish().await)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nothing_arrives() {
    let Some(outcome) = cut_off("cut_off_silent", Way::Silent).await else { return };
    assert!(outcome.troubles("") > 0, "no client had a failure");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "make faults runs it"]
async fn connections_are_reset() {
    let Some(outcome) = cut_off("cut_off_reset", Way::Reset).await else { return };
    // A refused connection proves that nothing was written: another shard takes the job.
    assert_eq!(outcome.troubles(&format!("{NO_ID}: SHARD_UNAVAILABLE")), 0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "make faults runs it"]
async fn answers_do_not_arrive() {
    let Some(outcome) = cut_off("cut_off_one_way", Way::Unanswered).await else { return };
    assert!(outcome.troubles("") > 0, "no client had a failure");
}

/// The promise about repeats, checked with one job in every way.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "make faults runs it"]
async fn a_job_that_was_written_without_an_answer_is_not_doubled_by_repeats() {
    let Some(trial) = proxied("written_unanswered").await else { return };
    let client = Client::connect(trial.cluster.replica[0].grpc).await;
    let id = id_on(&client, &format!("s{HIT}")).await;
    let redis = &trial.cluster.redis[HIT];
    let key = format!("ringq:{{s{HIT}}}:jobs:{TOPIC}");
    let before = redis.command(&["HGET", &key, &id]).await;
    trial.network(HIT, Way::Unanswered);
    eventually("the job is written all the same", async || {
        // A call that waits behind calls without an answer is refused, unwritten, when these have failed.
        let unanswered = tokio::time::timeout(IMPATIENCE, client.send(asks_for(&id))).await;
        assert!(!matches!(unanswered, Ok(Ok(_))), "answers arrive: {unanswered:?}");
        (redis.command(&["HGET", &key, &id]).await != before).then_some(())
    })
    .await;
    trial.run(harm_time() / 2).await;
    trial.network(HIT, Way::Open);

    for replica in &trial.cluster.replica {
        let other = Client::connect(replica.grpc).await;
        let repeat =
            eventually("it can be asked for again", async || other.send(asks_for(&id)).await.ok());
        assert_eq!(repeat.await.outcome(), EnqueueOutcome::Unchanged);
    }
    let only = client.pull_one(TOPIC).await;
    assert_eq!((only.id.as_str(), only.delivery, only.attempt), (id.as_str(), 1, 1));
    client.ack(&only.receipt).await;
    let again = client.enqueue(job(TOPIC).with_id(&id)).await;
    assert_eq!(again.outcome(), EnqueueOutcome::Unchanged);
    assert_eq!(client.pull_now(TOPIC, 10).await, []);
    trial.finish().await;
}

pub(crate) fn asks_for(id: &str) -> EnqueueRequest {
    request(job(TOPIC).with_id(id))
}

/// Returns an id on this shard of which no record is left there: an enqueue onto an existing job is decided by a
/// read, so it would not be written where no answer arrives.
pub(crate) async fn id_on(client: &Client, shard: &str) -> String {
    for number in 0.. {
        let id = format!("job-{number}");
        let lies_on = client.enqueue(job(TOPIC).with_id(&id)).await.shard;
        let delete =
            DeleteRequest { topic: TOPIC.into(), id: id.clone(), ..DeleteRequest::default() };
        // It is cancelled, and then removed.
        client.queue.clone().delete(delete.clone()).await.unwrap();
        client.queue.clone().delete(delete).await.unwrap();
        if lies_on == shard {
            return id;
        }
    }
    unreachable!("every shard has a part of the ring")
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "make faults runs it"]
async fn connections_break_now_and_then() {
    let Some(trial) = proxied("connections_break").await else { return };
    let proxies = &trial.cluster.proxy;
    let break_at = |requests, answers| {
        proxies.iter().for_each(|proxy| proxy.break_at(requests, answers));
    };
    // A call is repeated once nothing can execute it late any more, and may lose its connection again.
    trial.may_wait();
    trial.note("connections break");
    break_at(BROKEN, BROKEN);
    trial.run(harm_time()).await;
    break_at(0, 0);
    let broken: u32 = proxies.iter().map(Proxy::broken).sum();
    println!("connections_break: {broken} connections broke");
    assert!(broken > 0);
    trial.finish().await;
}
