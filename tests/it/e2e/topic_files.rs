//! Policies of topics from files, which change while servers run.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::time::Duration;

use ringq::pb::{
    CreateTopicRequest, DeleteTopicRequest, GetTopicRequest, PauseTopicRequest, Topic, TopicState,
    UpdateTopicRequest,
};
use tempfile::TempDir;
use tonic::Code;
use tonic_types::StatusExt as _;

use crate::harness::{
    Client, Redis, Server, Setup, assert_refused, eventually, http_get, job, millis,
};

/// Directory with a file of policies.
struct TopicDir {
    dir: TempDir,
}

impl TopicDir {
    fn new(text: &str) -> TopicDir {
        let dir = TempDir::new().unwrap();
        let topics = TopicDir { dir };
        topics.write(text);
        topics
    }

    fn path(&self) -> PathBuf {
        self.dir.path().join("topics.toml")
    }

    fn write(&self, text: &str) {
        fs::write(self.path(), text).unwrap();
    }

    fn setup(&self, setup: Setup) -> Setup {
        setup.config(&format!("topics = '{}'", self.path().display()))
    }
}

/// Returns a file in which this topic or pattern has this priority.
fn file(revision: u64, topics: &[(&str, i32)]) -> String {
    let tables = topics.iter().map(|(name, p)| format!("[topic.{name:?}]\npriority = {p}\n"));
    format!("revision = {revision}\n{}", tables.collect::<String>())
}

async fn topic(client: &Client, name: &str) -> Topic {
    let request = GetTopicRequest { name: name.into() };
    client.topics.clone().get_topic(request).await.unwrap().into_inner().topic.unwrap()
}

async fn has_priority(client: &Client, name: &str, priority: Option<i32>) {
    let what = format!("{name} has priority {priority:?}");
    eventually(&what, async || (topic(client, name).await.priority == priority).then_some(()))
        .await;
}

async fn logs(server: &Server, text: &str) {
    eventually(text, async || server.log().contains(text).then_some(())).await;
}

/// Waits until the metric has this value.
async fn not_in_force(server: &Server, value: u8) {
    let line = format!("\nringq_topics_file_not_in_force {value}\n");
    eventually(&line, async || {
        let page = http_get(server.http, "/metrics").await.1;
        page.contains(&line).then_some(())
    })
    .await;
}

#[tokio::test]
async fn a_file_is_applied_and_followed_and_a_bad_one_changes_nothing() {
    let dir = TopicDir::new(&file(1, &[("billing.*", 3), ("orders", 4)]));
    let server = dir.setup(Setup::new().shards(2)).start().await;
    let client = server.connect().await;
    client.enqueue(job("billing.eu")).await;
    has_priority(&client, "orders", Some(4)).await;
    has_priority(&client, "billing.eu", Some(3)).await;

    let read = topic(&client, "orders").await;
    assert_eq!((read.file_revision, read.settings_from.as_str()), (Some(1), "orders"));
    let read = topic(&client, "billing.eu").await;
    assert_eq!((read.file_revision, read.settings_from.as_str()), (Some(1), "billing.*"));

    // Calls do not change its settings, but pause the topic.
    let update = UpdateTopicRequest {
        topic: Some(Topic { name: "orders".into(), priority: Some(1), ..Topic::default() }),
        ..UpdateTopicRequest::default()
    };
    let status = client.topics.clone().update_topic(update).await.unwrap_err();
    let reason = status.get_details_error_info().unwrap().reason;
    assert_eq!((status.code(), reason.as_str()), (Code::FailedPrecondition, "TOPIC_READ_ONLY"));
    let pause = PauseTopicRequest { name: "orders".into(), ..PauseTopicRequest::default() };
    client.topics.clone().pause_topic(pause).await.unwrap();

    for (bad, why) in [
        ("revision = 2\n[topic.orders]\npriority = 77\n", "priority: must be 0 to 9"),
        ("revision = 2\n[topic.or", "policies of topics not read"),
        ("[topic.orders]\n", "revision: must be a whole number"),
    ] {
        dir.write(bad);
        logs(&server, why).await;
        assert_eq!(topic(&client, "orders").await.priority, Some(4), "{bad}");
        not_in_force(&server, 1).await;
    }
    dir.write(&file(2, &[("orders", 5)]));
    has_priority(&client, "orders", Some(5)).await;
    has_priority(&client, "billing.eu", None).await;
    not_in_force(&server, 0).await;
    assert_eq!(topic(&client, "orders").await.state(), TopicState::Paused, "the pause stays");
    dir.write(&file(3, &[]));
    has_priority(&client, "orders", None).await;
    assert_eq!(topic(&client, "orders").await.state(), TopicState::Paused);
}

/// A call takes nothing away from what a pattern of the file sets.
#[tokio::test]
async fn settings_of_a_pattern_are_read_only_for_calls() {
    let file = |revision: u64, all: &str| {
        format!("revision = {revision}\n[topic.own]\npriority = 3\n{all}")
    };
    let dir = TopicDir::new(&file(1, ""));
    let server = dir.setup(Setup::new()).start().await;
    let client = server.connect().await;
    let update = async |name: &str, priority: Option<i32>| {
        let update_mask = Some(prost_types::FieldMask { paths: vec!["priority".into()] });
        let topic = Some(Topic { name: name.into(), priority, ..Topic::default() });
        let request = UpdateTopicRequest { topic, update_mask, allow_missing: true };
        client.topics.clone().update_topic(request).await
    };
    let create = async |topic: Topic| {
        client.topics.clone().create_topic(CreateTopicRequest { topic: Some(topic) }).await
    };
    let named = |name: &str| Topic { name: name.into(), ..Topic::default() };
    update("before", Some(7)).await.unwrap();
    let all = |max: u32| format!("[topic.\"*\"]\nmax_jobs = {max}\nretention = '7d'\n");
    dir.write(&file(2, &all(5)));
    client.enqueue(job("billing.us")).await;
    create(named("bare")).await.unwrap();
    let limits = async |name: &str| {
        let read = topic(&client, name).await;
        (read.max_jobs, read.settings_from, read.file_revision)
    };
    let has = async |name: &str, max, from: &str, revision| {
        let want = (max, from.to_owned(), revision);
        eventually(&format!("{name}: {want:?}"), async || {
            (limits(name).await == want).then_some(())
        })
        .await;
    };
    for name in ["billing.us", "bare"] {
        has(name, 5, "*", Some(2)).await;
    }
    has("before", 0, "before", None).await;
    for name in ["billing.us", "bare", "own", "new"] {
        let status = update(name, Some(1)).await.unwrap_err();
        assert_refused(&status, Code::FailedPrecondition, "TOPIC_READ_ONLY", "");
        let by =
            if name == "own" { "revision 2; change the file" } else { "the pattern * in a file" };
        assert!(status.message().contains(by), "{status:?}");
    }
    let described = Topic { description: "mails".into(), ..named("new") };
    let status = create(described).await.unwrap_err();
    assert_refused(&status, Code::FailedPrecondition, "TOPIC_READ_ONLY", "");
    // What was refused has changed nothing.
    dir.write(&file(3, &all(6)));
    for name in ["billing.us", "bare"] {
        has(name, 6, "*", Some(3)).await;
    }
    has("own", 0, "own", Some(3)).await;
    // Settings of calls from before stay theirs, until they are unset.
    update("before", Some(8)).await.unwrap();
    has("before", 0, "before", None).await;
    update("before", None).await.unwrap();
    has("before", 6, "*", Some(3)).await;
    let request = DeleteTopicRequest { name: "bare".into(), ..Default::default() };
    client.topics.clone().delete_topic(request).await.unwrap();
}

#[tokio::test]
async fn a_swapped_link_is_followed_as_kubernetes_swaps_it() {
    let dir = TempDir::new().unwrap();
    let swap = |version: u64, text: &str| {
        let data = dir.path().join(format!("..data_{version}"));
        fs::create_dir(&data).unwrap();
        fs::write(data.join("topics.toml"), text).unwrap();
        let next = dir.path().join("..data_tmp");
        symlink(&data, &next).unwrap();
        fs::rename(&next, dir.path().join("..data")).unwrap();
    };
    swap(1, &file(1, &[("t", 1)]));
    symlink(Path::new("..data/topics.toml"), dir.path().join("topics.toml")).unwrap();
    let server = Setup::new().config(&format!("topics = '{}'", dir.path().display())).start().await;
    let client = server.connect().await;
    has_priority(&client, "t", Some(1)).await;
    swap(2, &file(2, &[("t", 2)]));
    has_priority(&client, "t", Some(2)).await;
}

#[tokio::test]
async fn a_lower_revision_never_replaces_a_higher_one_and_equal_ones_must_be_equal() {
    let Some(redis) = Redis::start().await else { return };
    let dirs = [1, 2].map(|revision| TopicDir::new(&file(revision, &[("t", revision as i32)])));
    let serve = async |dir: &TopicDir| dir.setup(Setup::on(&redis.url())).start().await;
    let newer = serve(&dirs[1]).await;
    let client = newer.connect().await;
    has_priority(&client, "t", Some(2)).await;
    let older = serve(&dirs[0]).await;
    logs(&older, "revision 2 is in force, which is higher").await;
    assert_eq!(topic(&client, "t").await.priority, Some(2));
    dirs[0].write(&file(2, &[("t", 7)]));
    logs(&older, "another file of the same revision is in force, which differs in t").await;
    dirs[0].write(&file(2, &[]));
    tokio::time::sleep(millis(1_500)).await;
    assert_eq!(topic(&client, "t").await.priority, Some(2));
    // The rollout ends: all have the same.
    dirs[0].write(&file(3, &[("t", 3)]));
    has_priority(&client, "t", Some(3)).await;
    logs(&newer, "revision 3 is in force").await;
    dirs[1].write(&file(3, &[("t", 3)]));
    let begun = tokio::time::Instant::now();
    while begun.elapsed() < Duration::from_secs(2) {
        assert_eq!(topic(&client, "t").await.priority, Some(3), "nothing goes back");
        tokio::time::sleep(millis(50)).await;
    }
}

#[tokio::test]
async fn a_server_does_not_start_with_a_bad_file() {
    let dir = TopicDir::new("revision = 1\n[topic.t]\nlease = 5\n");
    let failure = dir.setup(Setup::new()).fail().await;
    let text = format!("{failure:?}");
    assert!(text.contains("lease: must be a duration in quotes"), "{text}");
}
