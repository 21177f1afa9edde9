//! Topics with a limit of waiting jobs, at several servers and shards, some of which die.

use ringq::pb::payload::Kind;
use ringq::pb::{
    BatchEnqueueRequest, CreateTopicRequest, Delivery, ItemError, JobSpec, JobState,
    OverflowPolicy, Topic, UpdateTopicRequest,
};
use tonic::Code;
use tonic_types::StatusExt as _;

use crate::harness::{Client, Redis, Server, Setup, eventually, http_get, job, request, take};

/// Servers on some shards, and a client of each.
pub(super) struct Fleet {
    shards: Vec<Redis>,
    _servers: Vec<Server>,
    pub(super) clients: Vec<Client>,
}

impl Fleet {
    /// Starts them with a topic `t`, whose limits all servers have; `None`: there is no redis-server.
    pub(super) async fn start(servers: usize, shards: usize, topic: Topic) -> Option<Fleet> {
        let mut redis = Vec::new();
        for _ in 0..shards {
            redis.push(Redis::start().await?);
        }
        let ring: Vec<_> =
            redis.iter().enumerate().map(|(n, redis)| format!("s{n}={}", redis.url())).collect();
        let mut fleet = Fleet { shards: redis, _servers: Vec::new(), clients: Vec::new() };
        for _ in 0..servers {
            let server = Setup::new().ring(ring.clone()).start().await;
            fleet.clients.push(server.connect().await);
            fleet._servers.push(server);
        }
        create(&fleet.clients[0], topic).await;
        for client in &fleet.clients {
            eventually("the limit", async || has_limit(client).await.then_some(())).await;
        }
        Some(fleet)
    }
}

async fn has_limit(client: &Client) -> bool {
    let request = ringq::pb::GetTopicRequest { name: "t".into() };
    let topic = client.topics.clone().get_topic(request).await;
    let has_limit = |topic: Topic| topic.max_jobs > 0 || topic.max_stored_bytes > 0;
    topic.is_ok_and(|topic| topic.into_inner().topic.is_some_and(has_limit))
}

fn limited(max_jobs: i64, on_full: OverflowPolicy) -> Topic {
    Topic { name: "t".into(), max_jobs, on_full: on_full.into(), ..Topic::default() }
}

pub(super) async fn create(client: &Client, topic: Topic) {
    let request = CreateTopicRequest { topic: Some(topic) };
    client.topics.clone().create_topic(request).await.unwrap();
}

/// Enqueues jobs in one call; returns the error of each that was refused.
pub(super) async fn enqueue(client: &Client, jobs: Vec<JobSpec>) -> Vec<Option<ItemError>> {
    let request = BatchEnqueueRequest { jobs, ..Default::default() };
    let answer = client.queue.clone().batch_enqueue(request).await.unwrap().into_inner();
    answer.results.into_iter().map(|result| result.error).collect()
}

/// Returns the number that a job was given as its payload.
fn number(delivery: &Delivery) -> Option<u32> {
    match delivery.payload.as_ref()?.kind.as_ref()? {
        Kind::Text(text) => text.parse().ok(),
        Kind::Data(_) => None,
    }
}

/// Returns the number of jobs that were written; the others were refused because the topic is full.
pub(super) fn taken(results: &[Option<ItemError>]) -> usize {
    for error in results.iter().flatten() {
        assert_eq!(error.reason, "TOPIC_FULL", "{error:?}");
    }
    results.iter().filter(|error| error.is_none()).count()
}

#[tokio::test]
async fn a_full_topic_refuses_jobs_until_workers_take_some() {
    let server = Server::start().await;
    let client = server.connect().await;
    create(&client, limited(2, OverflowPolicy::Unspecified)).await;
    client.enqueue(job("t").with_id("a")).await;
    client.enqueue(job("t").with_id("b")).await;
    let status = client.send(request(job("t"))).await.unwrap_err();
    let details = status.get_error_details();
    let info = details.error_info().unwrap();
    assert_eq!((status.code(), info.reason.as_str()), (Code::ResourceExhausted, "TOPIC_FULL"));
    assert_eq!(info.metadata["topic"], "t");
    assert_eq!(details.quota_failure().unwrap().violations[0].subject, "topics/t max_jobs");
    assert!(details.retry_info().unwrap().retry_delay.is_some());
    // A repeat of a job that is there needs no room.
    client.send(request(job("t").with_id("a"))).await.unwrap();
    let delivery = client.pull_one("t").await;
    client.enqueue(job("t").with_id("c")).await;
    client.ack(&delivery.receipt).await;
    assert_eq!(taken(&enqueue(&client, vec![job("t"); 3]).await), 0);
    // Without the limit again.
    let update = UpdateTopicRequest {
        topic: Some(limited(0, OverflowPolicy::Unspecified)),
        update_mask: Some(prost_types::FieldMask { paths: vec!["max_jobs".into()] }),
        allow_missing: false,
    };
    client.topics.clone().update_topic(update).await.unwrap();
    assert_eq!(taken(&enqueue(&client, vec![job("t"); 3]).await), 3);
}

#[tokio::test]
async fn servers_together_never_exceed_a_limit_and_fill_it() {
    for (shards, max) in [(1, 7), (2, 1), (3, 2), (4, 101)] {
        let topic = limited(max, OverflowPolicy::Reject);
        let Some(fleet) = Fleet::start(3, shards, topic).await else { return };
        let calls = fleet.clients.iter().flat_map(|client| {
            // Single jobs, batches, and jobs with ids and groups.
            let grouped = JobSpec { group: "g".into(), ..job("t") };
            let batches =
                [vec![job("t"); 30], vec![grouped; 20], vec![job("t")], vec![job("t"); 2]];
            batches.map(|jobs| enqueue(client, jobs))
        });
        let results = futures::future::join_all(calls).await;
        let count: usize = results.iter().map(|results| taken(results)).sum();
        // 53 of each of the three servers.
        assert_eq!(count as i64, max.min(159), "{shards} shards");
        // An id that a client chose has one shard, which may be full before the others are.
        let chosen = (0..40).map(|n| job("t").with_id(format!("id{n}"))).collect();
        assert_eq!(taken(&enqueue(&fleet.clients[0], chosen).await), 0);
        assert_eq!(fleet.clients[1].stats("t").await.ready, max.min(159));
    }
}

#[tokio::test]
async fn jobs_with_chosen_ids_stay_below_a_limit_and_a_dead_shard_raises_no_share() {
    let Some(mut fleet) = Fleet::start(2, 4, limited(40, OverflowPolicy::Reject)).await else {
        return;
    };
    let client = fleet.clients[0].clone();
    let chosen = (0..200).map(|n| job("t").with_id(format!("id{n}"))).collect();
    let count = taken(&enqueue(&client, chosen).await);
    assert_eq!(count, 40, "each of four shards is full by far more jobs than its share");
    let mut drained = 0;
    while drained < 40 {
        let pulled = client.pull_now("t", 64).await;
        client.ack_all(&crate::harness::receipts(&pulled)).await;
        drained += pulled.len();
    }
    fleet.shards[2].kill();
    // A quarter of the limit each; that of the dead one stays unused.
    let mut accepted = 0;
    for _ in 0..8 {
        let results = enqueue(&fleet.clients[1], vec![job("t"); 16]).await;
        accepted += results.iter().filter(|error| error.is_none()).count();
    }
    assert_eq!(accepted, 30, "on three shards of four");
}

#[tokio::test]
async fn the_oldest_jobs_of_a_full_topic_make_room() {
    for (servers, shards) in [(1, 1), (2, 4)] {
        let topic = limited(20, OverflowPolicy::DropOldest);
        let Some(fleet) = Fleet::start(servers, shards, topic).await else { return };
        let client = &fleet.clients[0];
        let urgent = JobSpec { priority: Some(5), ..job("t").with_id("urgent") };
        client.enqueue(urgent).await;
        for n in 0..300 {
            let client = &fleet.clients[n % servers];
            client.enqueue(job("t").with_text(n.to_string())).await;
        }
        let stats = client.stats("t").await;
        assert_eq!((stats.ready, stats.enqueued_total), (20, 301), "{shards} shards");
        assert_eq!(client.state("t", "urgent").await, JobState::Ready, "priorities go last");
        let mut left = Vec::new();
        let mut worker = client.stream(take("t")).await;
        for _ in 0..20 {
            let delivery = worker.next().await;
            client.ack(&delivery.receipt).await;
            left.extend(number(&delivery));
        }
        // On several shards each drops its own oldest.
        assert!(left.iter().all(|n| *n >= 200), "{left:?}");
        let metrics = http_get(fleet._servers[0].http, "/metrics").await.1;
        assert!(metrics.contains("ringq_jobs_evicted_total{topic=\"t\"}"));
    }
}
