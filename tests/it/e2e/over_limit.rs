//! Topics that are over their limits, by each way to get there: each new job is taken in place of older ones, and a job
//! that is refused has dropped nothing.

use futures::future::join_all;
use ringq::pb::{
    AckItem, BatchEnqueueRequest, JobSpec, JobState, OverflowPolicy, PullRequest, RetryPolicy,
    Topic, UpdateTopicRequest,
};
use tonic::Code;

use crate::harness::{Client, Redis, Server, Setup, eventually, job, millis, proto, request};

use super::full::{create, enqueue, taken};

/// Jobs that may wait, and those that a topic comes to have.
const MAX: usize = 10;
const OVER: usize = 30;
/// Bytes of a job.
const BYTES: usize = 100;

/// The limit that a topic is over.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Kind {
    Jobs,
    Bytes,
}

impl Kind {
    fn topic(self, name: &str) -> Topic {
        let plain = Topic { on_full: OverflowPolicy::DropOldest.into(), ..Topic::default() };
        match self {
            Kind::Jobs => Topic { name: name.into(), max_jobs: MAX as i64, ..plain },
            Kind::Bytes => {
                Topic { name: name.into(), max_stored_bytes: (MAX * BYTES) as i64, ..plain }
            }
        }
    }
}

fn sized(topic: &str) -> JobSpec {
    job(topic).with_text("x".repeat(BYTES))
}

fn jobs(topic: &str, count: usize) -> Vec<JobSpec> {
    vec![sized(topic); count]
}

async fn waiting(client: &Client, topic: &str) -> usize {
    let stats = client.stats(topic).await;
    usize::try_from(stats.ready + stats.scheduled + stats.backoff).unwrap()
}

async fn set_limit(client: &Client, topic: Topic) {
    let update = UpdateTopicRequest { topic: Some(topic), update_mask: None, allow_missing: true };
    client.topics.clone().update_topic(update).await.unwrap();
}

/// Brings a topic over its limit.
async fn go_over(client: &Client, way: &str, kind: Kind) -> String {
    let name = format!("{way}-{kind:?}");
    let topic = kind.topic(&name);
    if way == "lowered" {
        enqueue(client, jobs(&name, OVER)).await;
        set_limit(client, topic).await;
        return name;
    }
    // Bytes of running jobs and dead letters count, so these come before the limit.
    let early = if kind == Kind::Jobs {
        topic.clone()
    } else {
        Topic { max_stored_bytes: 0, ..topic.clone() }
    };
    create(client, early).await;
    match way {
        "follow-ups" => {
            for _ in 0..OVER / 10 {
                let source = format!("source-{name}");
                client.enqueue(job(&source)).await;
                let receipt = client.pull_one(&source).await.receipt;
                let item = AckItem { receipt, enqueue: jobs(&name, 10), ..AckItem::default() };
                assert_eq!(client.ack_items(vec![item]).await, []);
            }
        }
        "crashed" => crash(client, &name).await,
        _ => panic!("{way}"),
    }
    if kind == Kind::Bytes {
        set_limit(client, topic).await;
    }
    name
}

/// Lets jobs crash whose crash topic this is.
async fn crash(client: &Client, name: &str) {
    let source = format!("source-{name}");
    let retry =
        RetryPolicy { max_crashes: 1, crash_topic: name.to_owned(), ..RetryPolicy::default() };
    let crashing = sized(&source).with_retry(retry);
    enqueue(client, vec![crashing; OVER]).await;
    let pull = PullRequest {
        topics: vec![source],
        max_jobs: OVER as i32,
        lease_duration: Some(proto(millis(1_000))),
        ..PullRequest::default()
    };
    assert_eq!(client.pull(pull).await.unwrap().len(), OVER);
    let are_moved = async || (waiting(client, name).await == OVER).then_some(());
    eventually("all have crashed", are_moved).await;
}

/// A server on each store that servers of this machine have.
async fn servers() -> Vec<(Option<Redis>, Server)> {
    let mut servers = vec![(None, Setup::new().shards(1).start().await)];
    if let Some(redis) = Redis::start().await {
        let server = Setup::on(&redis.url()).start().await;
        servers.push((Some(redis), server));
    }
    servers
}

/// Checks one topic that is over its limit.
async fn comes_down(client: &Client, name: &str, kind: Kind) {
    let mut before = waiting(client, name).await;
    assert_eq!(before, OVER, "{name}");
    if kind == Kind::Bytes {
        let huge = job(name).with_text("x".repeat(MAX * BYTES + 1));
        let status = client.send(request(huge)).await.unwrap_err();
        assert_eq!(status.code(), Code::ResourceExhausted, "{name}: it never fits");
        assert_eq!(waiting(client, name).await, before, "{name}: nothing has left for it");
    }
    // On Redis the first jobs count what was stored before the limit of bytes: these cost nothing.
    for (round, count) in [1, 2, 7, 1].into_iter().enumerate() {
        let newest = sized(name).with_id(format!("newest{round}"));
        let mut batch = jobs(name, count - 1);
        batch.push(newest);
        assert_eq!(taken(&enqueue(client, batch).await), count, "{name}");
        let now = waiting(client, name).await;
        assert!(now <= before && now + count >= before, "{name}: {before}, {count} more: {now}");
        let state = client.state(name, &format!("newest{round}")).await;
        assert_eq!(state, JobState::Ready, "{name}");
        before = now;
    }
    let calls = (0..16).map(|_| client.send(request(sized(name))));
    for answer in join_all(calls).await {
        answer.unwrap_or_else(|status| panic!("{name}: {status}"));
    }
    let now = waiting(client, name).await;
    assert!(now <= before, "{name}: {before}, 16 more: {now}");
    for _ in MAX..OVER {
        client.send(request(sized(name))).await.unwrap();
    }
    assert_eq!(waiting(client, name).await, MAX, "{name} is down at its limit, and full");
}

#[tokio::test]
async fn a_topic_over_its_limit_takes_each_new_job_and_comes_down_step_by_step() {
    for (_redis, server) in servers().await {
        let client = server.connect().await;
        let ways = ["lowered", "follow-ups", "crashed"];
        let ways = ways.into_iter().flat_map(|way| [(way, Kind::Jobs), (way, Kind::Bytes)]);
        let checks = ways.map(async |(way, kind)| {
            let name = go_over(&client, way, kind).await;
            comes_down(&client, &name, kind).await;
        });
        join_all(checks).await;
    }
}

#[tokio::test]
async fn a_shard_that_is_added_costs_no_accepted_jobs() {
    for (kind, is_redis) in [(Kind::Jobs, true), (Kind::Bytes, false)] {
        let setup = Setup::new().restartable();
        let url =
            |n: usize| format!("s{n}=sqlite:{}", setup.dir().join(format!("s{n}.db")).display());
        let (mut ring, mut redis) = (vec![url(0), url(1)], Vec::new());
        if is_redis {
            let Some(first) = Redis::start().await else { return };
            redis = vec![first, Redis::start().await.unwrap()];
            ring =
                redis.iter().zip(0..).map(|(redis, n)| format!("s{n}={}", redis.url())).collect();
        }
        let mut server = setup.ring(ring[..1].to_vec()).start().await;
        let client = server.connect().await;
        create(&client, kind.topic("t")).await;
        assert_eq!(taken(&enqueue(&client, jobs("t", MAX)).await), MAX);
        server.terminate();
        server.exit().await;
        server.move_to(ring);
        server.restart().await;
        let client = server.connect().await;
        // Half of the ids belong to each shard: what leaves the full one is what the new one gets, about.
        let named = |n: usize| sized("t").with_id(format!("n{n}"));
        let mut on_first = 0;
        for n in 0..MAX / 2 {
            on_first += usize::from(client.enqueue(named(n)).await.shard == "s0");
            let on_second = n + 1 - on_first;
            assert_eq!(waiting(&client, "t").await, MAX - on_first + on_second, "{kind:?} {n}");
        }
        // Jobs without an id go to the new shard, as long as that has room.
        while waiting(&client, "t").await < MAX {
            client.enqueue(sized("t")).await;
        }
        for n in MAX..5 * MAX {
            client.enqueue(named(n)).await;
        }
        assert_eq!(waiting(&client, "t").await, MAX, "each shard has its part");
        drop(redis);
    }
}

#[tokio::test]
async fn a_shard_without_a_part_drops_nothing() {
    for kind in [Kind::Jobs, Kind::Bytes] {
        let server = Setup::new().shards(2).start().await;
        let client = server.connect().await;
        let one = match kind {
            Kind::Jobs => Topic { max_jobs: 1, ..kind.topic("t") },
            Kind::Bytes => Topic { max_stored_bytes: 199, ..kind.topic("t") },
        };
        let named = (0..40).map(|n| sized("t").with_id(format!("old{n}"))).collect();
        enqueue(&client, named).await;
        set_limit(&client, one).await;
        let mut before = waiting(&client, "t").await;
        for n in 0..20 {
            let answer = client.send(request(sized("t").with_id(format!("n{n}")))).await;
            let now = waiting(&client, "t").await;
            match answer {
                Ok(_) => assert!(now <= before, "{kind:?}: {before} then {now}"),
                Err(status) => {
                    assert_eq!(status.code(), Code::ResourceExhausted, "{status}");
                    assert_eq!(now, before, "{kind:?}: a refused job has dropped some");
                }
            }
            before = now;
        }
    }
}

/// The answer of a batch that is larger than the limit names those of its jobs that it has dropped itself.
#[tokio::test]
async fn a_batch_that_drops_its_own_jobs_answers_so() {
    for (_redis, server) in servers().await {
        let client = server.connect().await;
        create(&client, Kind::Jobs.topic("t")).await;
        let named = (0..5 * MAX).map(|n| sized("t").with_id(format!("n{n}"))).collect();
        let batch = BatchEnqueueRequest { jobs: named, ..Default::default() };
        let answer = client.queue.clone().batch_enqueue(batch).await.unwrap().into_inner();
        let mut ready = 0;
        for result in answer.results {
            let job = client.find("t", &result.id).await;
            let is_there = job.is_some_and(|job| job.state() == JobState::Ready);
            let expected = if is_there { JobState::Ready } else { JobState::Expired };
            assert_eq!(result.state(), expected, "{}", result.id);
            ready += usize::from(is_there);
        }
        assert_eq!(ready, MAX);
    }
}
