//! Topics are served in turn.

use std::collections::BTreeMap;

use ringq::pb::{PullRequest, StreamRequest};

use crate::harness::{Client, Redis, Server, Setup, job, receipts};

const TOPICS: [&str; 4] = ["t.a", "t.b", "t.c", "t.d"];
/// Deliveries of each topic if each had the same share.
const SHARE: usize = 10;

/// Topics with their turns per round, in percent of the sum.
const WEIGHTS: [(&str, i32); 3] = [("high", 50), ("mid", 30), ("low", 20)];
const WEIGHTED_DELIVERIES: usize = 10_000;

/// Fills these topics with a backlog, larger than the test takes.
async fn fill(client: &Client, topics: &[&str]) {
    for topic in topics {
        client.enqueue_all(vec![job(topic); 2 * topics.len() * SHARE]).await;
    }
}

fn assert_shared(topics: &[&str], delivered: &[String]) {
    let mut counts = BTreeMap::<&str, usize>::new();
    delivered.iter().for_each(|topic| *counts.entry(topic).or_default() += 1);
    let fair = counts.len() == topics.len() && counts.values().all(|&count| count == SHARE);
    assert!(fair, "{counts:?}");
}

#[tokio::test]
async fn a_stream_with_credit_for_one_job_serves_its_topics_in_turns() {
    for topics in [&TOPICS[..2], &TOPICS] {
        for glob in [false, true] {
            let server = Server::start().await;
            let client = server.connect().await;
            fill(&client, topics).await;
            let asked = if glob { &["t.*"] } else { topics };
            let names = asked.iter().map(ToString::to_string).collect();
            let request = StreamRequest { topics: names, max_in_flight: 1, ..Default::default() };
            let mut worker = client.stream(request).await;
            let mut delivered = Vec::new();
            for _ in 0..SHARE * topics.len() {
                let delivery = worker.next().await;
                client.ack(&delivery.receipt).await;
                delivered.push(delivery.topic);
            }
            assert_shared(topics, &delivered);
        }
    }
}

#[tokio::test]
async fn pulls_of_one_job_serve_their_topics_in_turns() {
    for topics in [&TOPICS[..2], &TOPICS] {
        let server = Server::start().await;
        let client = server.connect().await;
        fill(&client, topics).await;
        let mut delivered = Vec::new();
        for _ in 0..SHARE * topics.len() {
            let names = topics.iter().map(ToString::to_string).collect();
            let request = PullRequest { topics: names, max_jobs: 1, ..Default::default() };
            delivered.extend(client.pull(request).await.unwrap().into_iter().map(|job| job.topic));
        }
        assert_shared(topics, &delivered);
    }
}

/// Takes 10,000 jobs by a stream with this credit and returns the number of each topic.
async fn take_weighted(client: &Client, credit: i32) -> BTreeMap<String, i32> {
    for (topic, percent) in WEIGHTS {
        let backlog = WEIGHTED_DELIVERIES * percent as usize / 100 + 500;
        for _ in 0..backlog.div_ceil(500) {
            client.enqueue_all(vec![job(topic); 500]).await;
        }
    }
    let request = StreamRequest {
        topics: WEIGHTS.map(|(topic, _)| topic.to_owned()).into(),
        topic_weights: WEIGHTS.map(|(topic, percent)| (topic.to_owned(), percent / 10)).into(),
        max_in_flight: credit,
        ..Default::default()
    };
    let mut worker = client.stream(request).await;
    let (mut counts, mut left) = (BTreeMap::new(), WEIGHTED_DELIVERIES);
    while left > 0 {
        let mut deliveries = vec![worker.next().await];
        let more = worker.unread().min(left - 1);
        deliveries.extend(worker.next_many(more).await);
        left -= deliveries.len();
        client.ack_all(&receipts(&deliveries)).await;
        for delivery in deliveries {
            *counts.entry(delivery.topic).or_insert(0) += 1;
        }
    }
    counts
}

fn assert_weighted(shards: &str, counts: &BTreeMap<String, i32>) {
    println!("{shards}: {counts:?} of {WEIGHTED_DELIVERIES}");
    for (topic, percent) in WEIGHTS {
        let fair = 100 * percent;
        let off = (counts.get(topic).copied().unwrap_or(0) - fair).abs();
        assert!(100 * off <= 3 * fair, "{topic} has not {fair}, 3 % more or less: {counts:?}");
    }
}

#[tokio::test]
async fn topics_are_served_by_their_weights() {
    let server = Server::start().await;
    let counts = take_weighted(&server.connect().await, 40).await;
    assert_weighted("SQLite, credit 40", &counts);
}

#[tokio::test]
async fn topics_are_served_by_their_weights_from_three_redis_shards() {
    let Some(first) = Redis::start().await else { return };
    let others =
        [Redis::start().await, Redis::start().await].map(|redis| redis.expect("as before"));
    let shards = ["s0", "s1", "s2"].into_iter().zip([&first, &others[0], &others[1]]);
    let mut setup = Setup::new();
    setup = setup.ring(shards.map(|(name, redis)| format!("{name}={}", redis.url())).collect());
    let server = setup.start().await;
    let client = server.connect().await;
    for credit in [30, 3] {
        let counts = take_weighted(&client, credit).await;
        assert_weighted(&format!("3 Redis shards, credit {credit}"), &counts);
    }
}
