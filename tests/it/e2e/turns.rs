//! Topics are served in turn.

use std::collections::BTreeMap;

use ringq::pb::{PullRequest, StreamRequest};

use crate::harness::{Client, Server, job};

const TOPICS: [&str; 4] = ["t.a", "t.b", "t.c", "t.d"];
/// Deliveries of each topic if each had the same share.
const SHARE: usize = 10;

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
