//! Several replicas on one Redis: writes of one reach the streams of another, and idle replicas are silent.

use std::time::Duration;

use ringq::pb::reschedule_request::Schedule;
use ringq::pb::{
    DeleteRequest, GetRequest, GetTopicStatsRequest, JobState, ListJobsRequest, ListTopicsRequest,
    ListWorkersRequest, RedriveJobsRequest, RescheduleRequest, RevocationReason, StreamRequest,
};
use tokio::time::Instant;
use tonic::{Code, Status};
use tonic_types::StatusExt as _;

use crate::harness::{
    Client, JobExt as _, Redis, Server, Setup, assert_refused, eventually, job, millis, nack_retry,
    proto, request, take,
};

/// Two replicas on one Redis, and a client of each.
struct Two {
    redis: Redis,
    /// Client for streams.
    here: Client,
    /// Client for everything else.
    there: Client,
    servers: [Server; 2],
}

async fn two() -> Option<Two> {
    let redis = Redis::start().await?;
    let serve = || Setup::on(&redis.url()).start();
    let servers = [serve().await, serve().await];
    let (here, there) = (servers[0].connect().await, servers[1].connect().await);
    Some(Two { redis, here, there, servers })
}

fn one_at_a_time() -> StreamRequest {
    StreamRequest { max_in_flight: 1, ..take("t") }
}

#[tokio::test]
async fn what_is_settled_elsewhere_makes_room() {
    let Some(two) = two().await else { return };
    two.there.enqueue_all(vec![job("t").with_max_attempts(1); 20]).await;
    let mut worker = two.here.stream(one_at_a_time()).await;
    for n in 0..20 {
        let delivery = worker.next().await;
        assert_eq!(worker.messages.last().unwrap().in_flight, 1);
        match n % 2 {
            0 => two.there.ack(&delivery.receipt).await,
            _ => two.there.nack(nack_retry(&delivery.receipt, "no")).await,
        }
    }
    assert!(worker.messages.iter().all(|message| message.revocations == 0));
}

#[tokio::test]
async fn a_job_that_is_deleted_elsewhere_is_revoked() {
    let Some(two) = two().await else { return };
    two.there.enqueue(job("t").with_id("a")).await;
    two.there.enqueue(job("t").with_id("b")).await;
    let mut worker = two.here.stream(one_at_a_time()).await;
    let delivery = worker.next().await;
    let request = DeleteRequest { topic: "t".into(), id: "a".into(), ..Default::default() };
    two.there.queue.clone().delete(request).await.unwrap();
    let revocation = worker.revocation().await;
    assert_eq!(revocation.receipt, delivery.receipt);
    assert_eq!(revocation.reason(), RevocationReason::Deleted);
    assert_eq!(worker.next().await.id, "b");
}

/// A stream of another replica, which ends it or drains: its worker continues here, and then it dies.
#[tokio::test]
async fn jobs_follow_their_worker_to_another_replica_and_come_back_when_it_dies() {
    let Some(two) = two().await else { return };
    for (lease, drains) in [(30, false), (86_400, true)] {
        let (lease, id) = (Duration::from_secs(lease), format!("of-{lease}"));
        two.there.enqueue(job("t").with_id("gone").with_lease(lease)).await;
        two.there.enqueue(job("t").with_id(&id).with_lease(lease)).await;
        let (from, to) = if drains { (&two.there, &two.here) } else { (&two.here, &two.there) };
        let max_jobs = if drains { 0 } else { 2 };
        let request = StreamRequest { worker_id: "w".into(), max_jobs, ..take("t") };
        let mut worker = from.stream(request).await;
        let sent = worker.next_many(2).await;
        if drains {
            two.servers[1].terminate();
        }
        worker.end().await;
        let request = StreamRequest {
            worker_id: "w".into(),
            continues_stream_id: worker.info.stream_id.clone(),
            orphan_grace: Some(proto(millis(300))),
            ..take("t")
        };
        let mut next = to.stream(request).await;
        eventually("it adopts", async || {
            let list = to.admin.clone().list_workers(ListWorkersRequest::default()).await.unwrap();
            let mut rows = list.into_inner().workers.into_iter();
            rows.find(|row| row.stream_id == next.info.stream_id && row.in_flight == 2)
        })
        .await;
        let request = DeleteRequest { topic: "t".into(), id: "gone".into(), ..Default::default() };
        to.queue.clone().delete(request).await.unwrap();
        let revoked = next.revocation().await;
        assert!(sent.iter().any(|sent| sent.id == "gone" && sent.receipt == revoked.receipt));
        drop(next);
        let again = to.pull_one("t").await;
        assert_eq!((again.id, again.attempt, again.delivery), (id, 1, 2));
        to.ack(&again.receipt).await;
    }
}

#[tokio::test]
async fn a_lease_that_is_extended_elsewhere_lasts() {
    let Some(two) = two().await else { return };
    two.there.enqueue(job("t").with_id("a").with_lease(Duration::from_secs(1))).await;
    let mut worker = two.here.stream(take("t")).await;
    let delivery = worker.next().await;
    two.there.extend(&delivery.receipt, Duration::from_secs(60)).await;
    worker.quiet(millis(2_000)).await;
    assert!(worker.messages.iter().all(|message| message.revocations == 0));
    two.there.ack(&delivery.receipt).await;
}

#[tokio::test]
async fn a_lease_that_runs_out_is_revoked_whichever_replica_notices() {
    let Some(two) = two().await else { return };
    let lease = Duration::from_secs(1);
    let jobs = (0..8).map(|n| job("t").with_id(format!("j{n}")).with_lease(lease));
    two.there.enqueue_all(jobs.collect()).await;
    let mut worker = two.here.stream(StreamRequest { max_in_flight: 8, ..take("t") }).await;
    worker.next_many(8).await;
    for _ in 0..8 {
        assert_eq!(worker.revocation().await.reason(), RevocationReason::LeaseExpired);
    }
}

/// Returns the refusals of Get, Delete and Reschedule for a job that they do not find.
async fn refusals(client: &Client, id: &str) -> [Status; 3] {
    let (topic, id) = ("t".to_owned(), id.to_owned());
    let get = GetRequest { topic: topic.clone(), id: id.clone(), ..Default::default() };
    let delete = DeleteRequest { topic: topic.clone(), id: id.clone(), ..Default::default() };
    let now = Some(Schedule::Delay(prost_types::Duration::default()));
    let reschedule = RescheduleRequest { topic, id, schedule: now, ..Default::default() };
    let mut queue = client.queue.clone();
    [
        queue.get(get).await.unwrap_err(),
        queue.delete(delete).await.unwrap_err(),
        queue.reschedule(reschedule).await.unwrap_err(),
    ]
}

/// While a shard is added to one replica after the other, some have it and some do not.
#[tokio::test]
async fn what_may_lie_on_a_shard_that_only_others_have_is_unavailable() {
    let (Some(a), Some(b)) = (Redis::start().await, Redis::start().await) else { return };
    let (a, b) = (format!("a={}", a.url()), format!("b={}", b.url()));
    let short = Setup::new().shard(&a).start().await;
    let mut long = Setup::new().ring(vec![a.clone(), b]).start().await;
    let (here, there) = (short.connect().await, long.connect().await);
    let mut on_b = Vec::new();
    // One job with a client-chosen id, and one with a server-made id.
    for name in ["order-", ""] {
        let mut n = 0;
        let enqueued = loop {
            let spec =
                if name.is_empty() { job("t") } else { job("t").with_id(format!("{name}{n}")) };
            let enqueued = there.enqueue(spec).await;
            if enqueued.shard == "b" {
                break enqueued;
            }
            n += 1;
        };
        on_b.push(enqueued.id);
    }
    for id in &on_b {
        eventually("the other replica has seen the shard", async || {
            let statuses = refusals(&here, id).await;
            statuses.iter().all(|status| status.code() == Code::Unavailable).then_some(())
        })
        .await;
        for status in refusals(&here, id).await {
            assert_refused(&status, Code::Unavailable, "SHARD_UNAVAILABLE", "");
            assert!(status.get_details_retry_info().is_some(), "the error has a retry delay");
            assert!(
                status.message().starts_with("shard b is not configured at this server"),
                "{status:?}"
            );
        }
        there.get("t", id).await;
    }
    // A repeat with a server-made id must be retried: it reaches the right server, or succeeds later.
    let repeat = here.send(request(job("t").with_id(&on_b[1]))).await.unwrap_err();
    assert_refused(&repeat, Code::Unavailable, "SHARD_UNAVAILABLE", "");
    let gone = "order-gone-".to_owned();
    let codes = futures::future::join_all((0..40).map(async |n| {
        let [status, ..] = refusals(&here, &format!("{gone}{n}")).await;
        status.code()
    }));
    let codes = codes.await;
    for code in [Code::NotFound, Code::Unavailable] {
        assert!(codes.contains(&code), "about half of the places are those of a: {codes:?}");
    }
    // Logged once, with the right text.
    let count = |log: String, text: &str| log.matches(text).count();
    let warning = "WARN ringq::shards::ring_state: replicas serve different rings";
    eventually("both log it", async || {
        let counts = [count(short.log(), warning), count(long.log(), warning)];
        (counts == [1, 1]).then_some(())
    })
    .await;
    assert_eq!(count(short.log(), "no replica has"), 0, "{}", short.log());
    a_redrive_names_it(&here, &on_b).await;
    lists_and_numbers_name_it(&here).await;
    long.terminate();
    long.exit().await;
    let lost = "WARN ringq::shards::ring_state: no replica has a shard that may have jobs";
    eventually("no replica has it any more", async || {
        (count(short.log(), lost) == 1).then_some(())
    })
    .await;
    // The server that had it may only be restarting.
    for status in refusals(&here, &on_b[0]).await {
        assert_refused(&status, Code::Unavailable, "SHARD_UNAVAILABLE", "");
    }
    let log = short.log();
    let texts = [warning, "serve the same ring again", lost];
    assert_eq!(texts.map(|text| count(log.clone(), text)), [1, 1, 1], "{log}");
    assert_eq!(count(log.clone(), "ERROR"), 0, "{log}");
}

/// A redrive finds the jobs here, and reports the other shard.
async fn a_redrive_names_it(here: &Client, on_b: &[String]) {
    let named =
        RedriveJobsRequest { topic: "t".to_owned(), ids: on_b.to_vec(), ..Default::default() };
    let refused = here.admin.clone().redrive_jobs(named).await.unwrap_err();
    assert_refused(&refused, Code::Unavailable, "SHARD_UNAVAILABLE", "");
    let all = RedriveJobsRequest { topic: "t".to_owned(), all: true, ..Default::default() };
    let all = here.admin.clone().redrive_jobs(all).await.unwrap().into_inner();
    assert_eq!((all.redriven_count, all.unreachable_shards), (0, vec!["b".to_owned()]));
}

/// The answers contain the jobs here, and name the missing shard.
async fn lists_and_numbers_name_it(here: &Client) {
    let mut topics = here.topics.clone();
    let topic = "here".to_owned();
    here.enqueue(job(&topic)).await;
    let state = JobState::Ready.into();
    let list = ListJobsRequest { topic: topic.clone(), state, ..Default::default() };
    let page = here.admin.clone().list_jobs(list).await.unwrap().into_inner();
    assert_eq!((page.jobs.len(), page.unreachable_shards), (1, vec!["b".to_owned()]));
    let listed = topics.list_topics(ListTopicsRequest::default()).await.unwrap().into_inner();
    let row = listed.topics.into_iter().find(|row| row.topic.as_ref().unwrap().name == topic);
    assert_eq!(row.unwrap().stats.unwrap().unreachable_shards, ["b"]);
    let there = GetTopicStatsRequest { name: "there".to_owned() };
    let refused = topics.get_topic_stats(there).await.unwrap_err();
    assert_refused(&refused, Code::Unavailable, "SHARD_UNAVAILABLE", "");
    assert!(
        refused.message().starts_with("shard b is not configured at this server"),
        "{refused:?}"
    );
}

/// Returns the calls of a command so far, by Redis's own count, over sockets and not by scripts.
async fn calls(redis: &Redis, command: &str) -> u64 {
    let stats = redis.command(&["INFO", "commandstats"]).await;
    let name = format!("cmdstat_{command}:calls=");
    let calls = stats.lines().find_map(|line| line.strip_prefix(&name)?.split(',').next());
    calls.map_or(0, |calls| calls.parse().unwrap())
}

#[tokio::test]
async fn replicas_with_nothing_to_do_are_nearly_silent() {
    const TOPICS: usize = 100;
    const TIME: Duration = Duration::from_secs(6);
    const REPLICAS: f64 = 2.0;
    let Some(two) = two().await else { return };
    let topics: Vec<String> = (0..TOPICS).map(|n| format!("topic{n}")).collect();
    two.there.enqueue_all(topics.iter().map(|topic| job(topic)).collect()).await;
    let mut workers = Vec::new();
    for client in [&two.here, &two.there] {
        for topics in topics.chunks(TOPICS / 2) {
            let request = StreamRequest { topics: topics.to_vec(), ..take("") };
            workers.push(client.stream(request).await);
        }
        workers.push(client.stream(take("topic*")).await);
    }
    let mut done = 0;
    while done < TOPICS {
        for worker in &mut workers {
            while let Some(delivery) = worker.next_within(millis(50)).await {
                two.there.ack(&delivery.receipt).await;
                done += 1;
            }
        }
    }
    tokio::time::sleep(Duration::from_secs(2)).await;
    two.redis.command(&["CONFIG", "RESETSTAT"]).await;
    let begin = Instant::now();
    tokio::time::sleep(TIME).await;
    let mut sum = 0.0;
    for command in ["evalsha", "ping", "info"] {
        let rate =
            calls(&two.redis, command).await as f64 / begin.elapsed().as_secs_f64() / REPLICAS;
        println!("{command}: {rate:.2} per second and replica");
        sum += rate;
    }
    // Policies of topics are read once a second, sleeping topics checked, and heartbeats sent every two.
    assert!(sum < 4.0, "{sum:.2} calls per second and replica of a server that has nothing to do");
    two.there.enqueue(job("topic99").with_id("after")).await;
    let next = workers.iter_mut().map(|worker| Box::pin(worker.next()));
    let (delivery, ..) = futures::future::select_all(next).await;
    assert_eq!(delivery.id, "after");
}
