//! Texts for people that are longer than their limit: cut and marked, and the rest of the call is applied.

use ringq::pb::{
    CreateTopicRequest, ExtendItem, GetTopicRequest, JobState, NackAction, NackItem,
    PauseGroupRequest, PauseTopicRequest, Topic, TopicState,
};

use crate::harness::{Server, job, nack};

const ERROR: usize = 4_096;
const NOTE: usize = 1_024;

#[track_caller]
fn assert_cut(stored: &str, max: usize) {
    assert!(stored.len() <= max && stored.len() > max - 4, "{} of {max}", stored.len());
    let kept = stored.strip_suffix('…').expect("it is marked");
    assert!(kept.chars().all(|character| character == '€'), "{kept}");
}

#[tokio::test]
async fn a_long_text_of_a_worker_or_an_operator_is_cut_and_the_call_applied() {
    let server = Server::start().await;
    let client = server.connect().await;
    let text = "€".repeat(7_000);
    client.enqueue(job("t").with_id("a")).await;
    let receipt = client.pull_one("t").await.receipt;
    let extend =
        ExtendItem { receipt: receipt.clone(), progress: text.clone(), ..ExtendItem::default() };
    assert_eq!(client.extend_items(vec![extend]).await, []);
    client.nack(NackItem { error: text.clone(), ..nack(&receipt, NackAction::DeadLetter) }).await;
    let job = client.get("t", "a").await;
    assert_eq!(job.state(), JobState::Dead);
    assert_cut(&job.last_error, ERROR);
    assert_cut(&job.progress, NOTE);

    let mut topics = client.topics.clone();
    let name = || "paused".to_owned();
    let topic = Topic { name: name(), description: text.clone(), max_jobs: 7, ..Topic::default() };
    topics.create_topic(CreateTopicRequest { topic: Some(topic) }).await.unwrap();
    let pause = PauseTopicRequest { name: name(), note: text.clone(), until_time: None };
    topics.pause_topic(pause).await.unwrap();
    let group = PauseGroupRequest { topic: name(), group: "g".into(), note: text };
    topics.pause_group(group).await.unwrap();
    let topic = topics.get_topic(GetTopicRequest { name: name() }).await.unwrap().into_inner();
    let topic = topic.topic.unwrap();
    assert_eq!((topic.max_jobs, topic.state()), (7, TopicState::Paused));
    assert_cut(&topic.description, NOTE);
    assert_cut(&topic.pause_note, NOTE);
}
