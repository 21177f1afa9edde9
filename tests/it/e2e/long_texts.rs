//! Texts for people that are longer than their limit: cut and marked, and the rest of the call is applied.

use ringq::pb::{
    CreateTopicRequest, ExtendItem, GetTopicRequest, JobState, NackAction, NackItem,
    PauseGroupRequest, PauseTopicRequest, Topic, TopicState,
};

use crate::harness::{Server, job, nack};

const ERROR: usize = 4_096;
const NOTE: usize = 1_024;

/// Returns texts that are as long as a limit, one byte longer, and far longer, of characters of one to four bytes.
fn texts(max: usize) -> Vec<String> {
    let lengths = [0, 1, 2, 7, max - 1, max, max + 1, 20_000];
    let text = |character: &str, length: usize| {
        let text = character.repeat(length / character.len());
        format!("{}{text}", "a".repeat(length - text.len()))
    };
    let of = |character| lengths.map(|length| text(character, length));
    ["x", "ä", "€", "𝄞"].into_iter().flat_map(of).collect()
}

#[track_caller]
fn assert_cut(stored: &str, sent: &str, max: usize) {
    if sent.len() <= max {
        assert_eq!(stored, sent);
        return;
    }
    assert!(stored.len() <= max && stored.len() > max - 4, "{} of {max}", stored.len());
    let kept = stored.strip_suffix('…').expect("it is marked");
    assert!(sent.starts_with(kept));
}

#[tokio::test]
async fn a_long_error_or_note_of_a_worker_is_cut_and_its_job_settled() {
    let server = Server::start().await;
    let client = server.connect().await;
    let (errors, notes) = (texts(ERROR), texts(NOTE));
    let ids = (0..errors.len()).map(|n| format!("id{n}"));
    let jobs = ids.clone().map(|id| job("t").with_id(id)).collect();
    client.enqueue_all(jobs).await;
    let mut held = client.pull_now("t", 64).await;
    held.sort_by_key(|held| held.id[2..].parse::<usize>().unwrap());
    let extend = |(held, note): (&ringq::pb::Delivery, &String)| ExtendItem {
        receipt: held.receipt.clone(),
        progress: note.clone(),
        ..ExtendItem::default()
    };
    let extends = held.iter().zip(&notes).map(extend).collect();
    assert_eq!(client.extend_items(extends).await, []);
    let actions = [NackAction::DeadLetter, NackAction::Retry];
    let nacks = held.iter().zip(&errors).enumerate().map(|(n, (held, error))| NackItem {
        error: error.clone(),
        ..nack(&held.receipt, actions[n % 2])
    });
    assert_eq!(client.nack_items(nacks.collect()).await, []);
    for (n, id) in ids.enumerate() {
        let job = client.get("t", &id).await;
        let is_dead = job.state() == JobState::Dead;
        assert_eq!(is_dead, n % 2 == 0, "{id}");
        match errors[n].as_str() {
            // A dead letter has a reason in any case.
            "" if is_dead => assert_eq!(job.last_error, "the worker gave no error"),
            error => assert_cut(&job.last_error, error, ERROR),
        }
        assert_cut(&job.progress, &notes[n], NOTE);
    }
}

#[tokio::test]
async fn a_long_description_or_note_of_an_operator_is_cut_and_the_call_applied() {
    let server = Server::start().await;
    let client = server.connect().await;
    let mut topics = client.topics.clone();
    for (n, text) in texts(NOTE).into_iter().enumerate() {
        let name = format!("t{n}");
        let topic = Topic {
            name: name.clone(),
            description: text.clone(),
            max_jobs: 7,
            ..Topic::default()
        };
        topics.create_topic(CreateTopicRequest { topic: Some(topic) }).await.unwrap();
        let pause = PauseTopicRequest { name: name.clone(), note: text.clone(), until_time: None };
        topics.pause_topic(pause).await.unwrap();
        let group =
            PauseGroupRequest { topic: name.clone(), group: "g".into(), note: text.clone() };
        topics.pause_group(group).await.unwrap();
        let topic = topics.get_topic(GetTopicRequest { name }).await.unwrap().into_inner().topic;
        let topic = topic.unwrap();
        assert_eq!((topic.max_jobs, topic.state()), (7, TopicState::Paused));
        assert_cut(&topic.description, &text, NOTE);
        assert_cut(&topic.pause_note, &text, NOTE);
    }
}
