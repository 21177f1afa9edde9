//! Topics are served in turn.

use std::collections::BTreeMap;

use ringq::pb::{PullRequest, StreamRequest};

use crate::harness::{Client, Server, job, receipts, take};

const TOPICS: [&str; 4] = ["t.a", "t.b", "t.c", "t.d"];
/// Deliveries of each topic if each had the same share.
const SHARE: usize = 10;

/// Topics with their turns per round, in percent of the sum.
const WEIGHTS: [(&str, i32); 3] = [("high", 50), ("mid", 30), ("low", 20)];
const WEIGHTED_DELIVERIES: usize = 2_000;

/// Fills the topics with a backlog, larger than the test takes.
async fn fill(client: &Client) {
    for topic in TOPICS {
        client.enqueue_all(vec![job(topic); 2 * TOPICS.len() * SHARE]).await;
    }
}

fn assert_shared(delivered: &[String]) {
    let mut counts = BTreeMap::<&str, usize>::new();
    delivered.iter().for_each(|topic| *counts.entry(topic).or_default() += 1);
    let fair = counts.len() == TOPICS.len() && counts.values().all(|&count| count == SHARE);
    assert!(fair, "{counts:?}");
}

#[tokio::test]
async fn streams_and_pulls_of_one_job_serve_their_topics_in_turns() {
    let server = Server::start().await;
    let client = server.connect().await;
    fill(&client).await;
    let request = StreamRequest { max_in_flight: 1, ..take("t.*") };
    let mut worker = client.stream(request).await;
    let mut delivered = Vec::new();
    for _ in 0..SHARE * TOPICS.len() {
        let delivery = worker.next().await;
        client.ack(&delivery.receipt).await;
        delivered.push(delivery.topic);
    }
    assert_shared(&delivered);
    drop(worker);
    fill(&client).await;
    let topics = TOPICS.map(str::to_owned).to_vec();
    let request = PullRequest { topics, max_jobs: 1, ..Default::default() };
    let mut delivered = Vec::new();
    for _ in 0..SHARE * TOPICS.len() {
        let pulled = client.pull(request.clone()).await.unwrap();
        delivered.extend(pulled.into_iter().map(|job| job.topic));
    }
    assert_shared(&delivered);
}

/// Takes [`WEIGHTED_DELIVERIES`] jobs by a stream with this credit and returns the number of each topic.
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

#[tokio::test]
async fn topics_are_served_by_their_weights() {
    let server = Server::start().await;
    let counts = take_weighted(&server.connect().await, 40).await;
    for (topic, percent) in WEIGHTS {
        let fair = WEIGHTED_DELIVERIES as i32 * percent / 100;
        let off = (counts.get(topic).copied().unwrap_or(0) - fair).abs();
        assert!(100 * off <= 3 * fair, "{topic} has not {fair}, 3 % more or less: {counts:?}");
    }
}
