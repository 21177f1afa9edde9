use std::time::Duration;

use ringq::pb::{
    ConflictPolicy, ExplainJobRequest, ExplainJobResponse, Job, JobSpec, JobState, NackAction,
    NackItem, PauseTopicRequest, Reason, StreamRequest,
};
use tonic::{Code, Status};

use crate::harness::{
    Client, JobExt as _, Redis, Server, Setup, SinceEpoch as _, assert_refused, eventually, job,
    millis, nack, proto, take, wall_now,
};

/// A server whose shard is a SQLite file.
struct Rig {
    server: Server,
    client: Client,
}

async fn try_explain(client: &Client, topic: &str, id: &str) -> Result<ExplainJobResponse, Status> {
    let request = ExplainJobRequest { topic: topic.to_owned(), id: id.to_owned() };
    Ok(client.admin.clone().explain_job(request).await?.into_inner())
}

async fn explain(client: &Client, topic: &str, id: &str) -> (Job, Vec<Reason>) {
    let answer = try_explain(client, topic, id).await.expect("an explanation");
    (answer.job.expect("a job"), answer.reasons)
}

/// Explains a job; checks its state and the codes, and that each reason is complete. Returns the reasons.
#[track_caller]
fn checked(found: (Job, Vec<Reason>), state: JobState, codes: &[&str]) -> Vec<Reason> {
    let (job, reasons) = found;
    let found: Vec<_> = reasons.iter().map(|reason| &*reason.code).collect();
    assert_eq!((job.state(), &*found), (state, codes), "{reasons:?}");
    assert!(job.spec.unwrap().payload.is_none(), "the view is BASIC");
    for reason in &reasons {
        assert!(reason.message.ends_with('.') && reason.remedy.ends_with('.'), "{reason:?}");
    }
    reasons
}

#[track_caller]
fn contains(text: &str, parts: &[&str]) {
    for part in parts {
        assert!(text.contains(part), "{part:?} in: {text}");
    }
}

/// Returns a job that is due in an hour.
fn later(topic: &str) -> JobSpec {
    job(topic).with_delay(millis(3_600_000))
}

async fn not_due(Rig { client, .. }: &Rig) {
    client.enqueue(later("early").with_id("a").with_text("x")).await;
    let found = explain(client, "early", "a").await;
    let due = found.0.due_time;
    let reasons = checked(found, JobState::Scheduled, &["NOT_DUE", "NO_STREAM"]);
    assert_eq!(reasons[0].until_time, due);
    contains(&reasons[0].message, &["The job is due at 20", "in 59m"]);
    contains(&reasons[0].remedy, &["`ringq job reschedule --now early a`"]);

    let _worker = client.stream(take("early")).await;
    checked(explain(client, "early", "a").await, JobState::Scheduled, &["NOT_DUE"]);
}

/// A stream that holds its credit, with a job of another topic.
async fn no_credit(Rig { client, .. }: &Rig) {
    client.enqueue(job("full.a").with_id("a")).await;
    let take = StreamRequest { topics: vec!["full.*".into()], max_in_flight: 1, ..take("") };
    let mut worker = client.stream(take).await;
    let held = worker.next().await;
    client.enqueue(job("full.b").with_id("b")).await;
    let reasons = checked(explain(client, "full.b", "b").await, JobState::Ready, &["NO_CREDIT"]);
    let parts =
        ["1 stream on this server asks", "1 of at most 1 job in flight", "1 of them of other"];
    contains(&reasons[0].message, &parts);
    contains(&reasons[0].remedy, &["max_in_flight", "`ringq worker list full.b`"]);

    client.enqueue(job("full.b").with_id("c")).await;
    client.enqueue(job("full.b").with_id("first").with_priority(9)).await;
    let codes = ["NO_CREDIT", "BEHIND_OTHERS"];
    let reasons = checked(explain(client, "full.b", "c").await, JobState::Ready, &codes);
    contains(&reasons[1].message, &["2 ready jobs of topic full.b come before it on shard s0"]);
    contains(&reasons[1].remedy, &["`ringq job reschedule --priority 9 full.b c`"]);

    client.ack(&held.receipt).await;
    for id in ["first", "b", "c"] {
        let next = worker.next().await;
        assert_eq!(next.id, id, "the reasons end with their cause");
        client.ack(&next.receipt).await;
    }
}

/// A Pull that waits asks for the topic, too.
async fn topic_paused(Rig { client, .. }: &Rig) {
    client.enqueue(job("stopped").with_id("a")).await;
    let seconds = i64::try_from(wall_now().as_secs()).unwrap() + 60;
    let until_time = Some(prost_types::Timestamp { seconds, nanos: 0 });
    let (name, note) = ("stopped".to_owned(), "provider is down".to_owned());
    let request = PauseTopicRequest { name, note, until_time };
    client.topics.clone().pause_topic(request).await.unwrap();
    let _stream = client.stream(take("stopped")).await;
    let found = explain(client, "stopped", "a").await;
    let reasons = checked(found, JobState::Ready, &["TOPIC_PAUSED"]);
    contains(&reasons[0].message, &["provider is down"]);
    contains(&reasons[0].remedy, &["ringq topic resume stopped"]);
    assert_eq!(reasons[0].until_time, until_time);
}

async fn leased(Rig { client, .. }: &Rig) {
    client.enqueue(job("running").with_id("a")).await;
    let take = StreamRequest { worker_id: "worker-7".into(), ..take("running") };
    let mut worker = client.stream(take).await;
    let receipt = worker.next().await.receipt;
    client.enqueue_by(ConflictPolicy::Replace, job("running").with_id("a")).await.unwrap();
    let found = explain(client, "running", "a").await;
    let ends = found.0.lease_expire_time;
    let reasons = checked(found, JobState::Running, &["LEASED"]);
    assert_eq!(reasons[0].until_time, ends);
    assert!(ends.since_epoch() > wall_now());
    let stream = format!("by stream {} of this server", worker.info.stream_id);
    let parts = ["Worker worker-7", "delivery 1", &stream, "its lease ends at", "newer generation"];
    contains(&reasons[0].message, &parts);
    contains(&reasons[0].remedy, &["`ringq job delete running a`"]);
    contains(
        &reasons[0].message,
        &["; not extended, and no Ack, Nack or Extend of that stream for"],
    );
    client.extend(&receipt, Duration::from_secs(60)).await;
    let reasons = checked(explain(client, "running", "a").await, JobState::Running, &["LEASED"]);
    contains(
        &reasons[0].message,
        &["; extended ", " ago, and no Ack, Nack or Extend of that stream for"],
    );
}

async fn finished(Rig { client, .. }: &Rig) {
    client.enqueue(job("ended").with_id("dead")).await;
    let receipt = client.pull_one("ended").await.receipt;
    let error = "no such address".to_owned();
    client.nack(NackItem { error, ..nack(&receipt, NackAction::DeadLetter) }).await;
    let reasons = checked(explain(client, "ended", "dead").await, JobState::Dead, &["FINISHED"]);
    let parts = ["The job is DEAD since 20", "\"no such address\"", "its record is kept until 20"];
    contains(&reasons[0].message, &parts);
    contains(&reasons[0].remedy, &["`ringq job redrive ended dead`"]);
    let kept = reasons[0].until_time.since_epoch() - wall_now();
    assert!(kept > Duration::from_secs(13 * 24 * 3600), "{kept:?}");

    client.enqueue(job("ended").with_id("done")).await;
    client.ack(&client.pull_one("ended").await.receipt).await;
    let found = explain(client, "ended", "done").await;
    let reasons = checked(found, JobState::Succeeded, &["FINISHED"]);
    contains(&reasons[0].message, &["The job is SUCCEEDED since", "state and id are kept until"]);

    for id in ["nothing", "dead~"] {
        let status = try_explain(client, "ended", id).await.unwrap_err();
        assert_eq!(
            status.code(),
            if id == "nothing" { Code::NotFound } else { Code::InvalidArgument }
        );
    }
    let status = try_explain(client, "nowhere", "a").await.unwrap_err();
    assert_refused(&status, Code::NotFound, "JOB_NOT_FOUND", "");
}

/// A job that nothing holds back is seen only while its claim is on its way: here the shard cannot be written.
async fn delivering(rig: &Rig) {
    let client = &rig.client;
    let mut worker = client.stream(take("next")).await;
    client.enqueue(job("next").with_id("a").with_delay(millis(1_500))).await;
    let holder = rusqlite::Connection::open(rig.server.database()).unwrap();
    holder.execute_batch("BEGIN IMMEDIATE").unwrap();
    let reasons = eventually("the job is due", async || {
        let (job, reasons) = explain(client, "next", "a").await;
        (job.state() == JobState::Ready).then_some(reasons)
    })
    .await;
    let codes: Vec<_> = reasons.iter().map(|reason| &*reason.code).collect();
    assert_eq!(codes, ["DELIVERING"], "{reasons:?}");
    contains(&reasons[0].message, &["comes next in topic next on shard s0", "1 of 1 stream"]);
    holder.execute_batch("ROLLBACK").unwrap();
    assert_eq!(worker.next().await.id, "a");
}

/// Each source of a reason: the job, the streams, the policies and the shard. `domain::explain` has every reason,
/// `conformance::explain` what each store reports.
#[tokio::test]
async fn reasons_come_from_the_job_its_streams_and_policies() {
    let server = Setup::new().shards(1).start().await;
    let rig = Rig { client: server.connect().await, server };
    not_due(&rig).await;
    no_credit(&rig).await;
    topic_paused(&rig).await;
    leased(&rig).await;
    finished(&rig).await;
    delivering(&rig).await;
}

/// Returns the jobs that run; `None`: one of them waits for its stream. The others are READY, and the pause is the reason.
async fn sent_jobs(client: &Client, ids: &[String]) -> Option<Vec<String>> {
    let mut sent = Vec::new();
    for id in ids {
        let (job, reasons) = explain(client, "t", id).await;
        match job.state() {
            JobState::Running if reasons[0].message.contains("has not read") => return None,
            JobState::Running => sent.push(id.clone()),
            _ => assert_eq!((job.state(), &*reasons[0].code), (JobState::Ready, "TOPIC_PAUSED")),
        }
    }
    Some(sent)
}

/// A stream of one server that is not read; the pause comes by the other one.
#[tokio::test]
async fn a_pause_takes_back_what_no_transport_has_taken() {
    const JOBS: usize = 24;
    let Some(redis) = Redis::start().await else { return };
    let serve = || Setup::on(&redis.url()).start();
    let servers = [serve().await, serve().await];
    let (here, there) = (servers[0].connect().await, servers[1].connect().await);
    let ids: Vec<String> = (0..JOBS).map(|n| format!("j{n}")).collect();
    for id in &ids {
        here.enqueue(job("t").with_id(id).with_group("g").with_bytes(600_000)).await;
    }
    let request = StreamRequest {
        max_in_flight: 64,
        max_in_flight_bytes: 64 << 20,
        max_batch: 1,
        lease_duration: Some(proto(Duration::from_secs(600))),
        ..take("t")
    };
    let mut worker = here.stream(request).await;
    let unread = eventually("a job waits for its stream", async || {
        for id in ids.iter().rev() {
            let (_, reasons) = explain(&here, "t", id).await;
            if reasons[0].message.contains("has not read the job") {
                return Some(id.clone());
            }
        }
        None
    })
    .await;
    let reasons = checked(explain(&there, "t", &unread).await, JobState::Running, &["LEASED"]);
    contains(&reasons[0].message, &["of another server", "is silent is known at that server"]);

    let mut topics = there.topics.clone();
    let pause = PauseTopicRequest { name: "t".into(), ..PauseTopicRequest::default() };
    topics.pause_topic(pause).await.unwrap();
    let sent = eventually("no job waits for the stream", || sent_jobs(&here, &ids)).await;
    assert!(!sent.contains(&unread), "{sent:?}");
    // What was sent before is delivered, and nothing else until the resume.
    let mut found = Vec::new();
    for _ in &sent {
        found.push(worker.next().await.id);
    }
    found.sort();
    let mut sorted = sent.clone();
    sorted.sort();
    assert_eq!(found, sorted);
    topics.resume_topic(ringq::pb::ResumeTopicRequest { name: "t".into() }).await.unwrap();
    for _ in sent.len()..JOBS {
        let delivery = worker.next().await;
        assert!(!sent.contains(&delivery.id) && delivery.attempt == 1, "{delivery:?}");
    }
}

#[tokio::test]
async fn a_job_of_a_dead_redis_is_explained_all_the_same() {
    let Some(mut redis) = Redis::start().await else { return };
    let setup = Setup::new().shards(1).and_shard(format!("s1={}", redis.url()));
    let server = setup.start().await;
    let client = server.connect().await;
    // Ids of both kinds on the Redis, and on the other shard.
    let ids = client.enqueue_all(vec![later("mail"); 200]).await;
    let made = ids.iter().find(|id| id.starts_with("s1~")).expect("a job on s1").clone();
    let chosen: Vec<_> = (0..20).map(|n| format!("c{n}")).collect();
    client.enqueue_all(chosen.iter().map(|id| later("mail").with_id(id)).collect()).await;
    let (mut here, mut there) = (Vec::new(), vec![made.clone()]);
    for id in chosen {
        let shard = client.get("mail", &id).await.shard;
        if shard == "s1" { there.push(id) } else { here.push(id) }
    }
    redis.kill();
    for id in &there {
        let (job, reasons) = explain(&client, "mail", id).await;
        let spec = JobSpec { topic: "mail".into(), id: id.clone(), ..Default::default() };
        assert_eq!(job, Job { spec: Some(spec), ..Default::default() });
        let codes: Vec<_> = reasons.iter().map(|reason| &*reason.code).collect();
        assert_eq!(codes, ["SHARD_UNREACHABLE"]);
        contains(
            &reasons[0].message,
            &["Shard s1", &format!("topics/mail/jobs/{id}"), "not known"],
        );
        contains(&reasons[0].remedy, &["`ringq shard list`"]);
        assert!(!reasons[0].message.contains("127.0.0.1"), "addresses stay with operators");
    }
    let codes = ["NOT_DUE", "NO_STREAM"];
    checked(explain(&client, "mail", &here[0]).await, JobState::Scheduled, &codes);
    // An id that no shard here could have made does not exist, as for Get.
    let status = try_explain(&client, "mail", &made.replace("s1~", "s9~")).await.unwrap_err();
    assert_refused(&status, Code::NotFound, "JOB_NOT_FOUND", "");
}

#[tokio::test]
async fn streams_of_other_servers_are_not_seen_and_the_reason_states_that() {
    let Some(redis) = Redis::start().await else { return };
    let servers = [Setup::on(&redis.url()).start().await, Setup::on(&redis.url()).start().await];
    let [asked, other] = [servers[0].connect().await, servers[1].connect().await];
    let mut worker = other.stream(StreamRequest { max_in_flight: 1, ..take("mail") }).await;
    asked.enqueue(job("mail").with_id("a")).await;
    worker.next().await;
    asked.enqueue(job("mail").with_id("b")).await;
    let message = eventually("the servers know each other", async || {
        let (_, reasons) = explain(&asked, "mail", "b").await;
        assert_eq!(reasons[0].code, "NO_STREAM", "{reasons:?}");
        Some(reasons[0].clone()).filter(|reason| reason.message.contains("other server"))
    })
    .await;
    contains(&message.message, &["on this server", "streams of the other server of shard s0"]);
    contains(&message.remedy, &["`ringq worker list mail --server URL`"]);
    checked(explain(&other, "mail", "b").await, JobState::Ready, &["NO_CREDIT"]);
    let (_, reasons) = explain(&asked, "mail", "a").await;
    contains(&reasons[0].message, &[&worker.info.stream_id, "of another server"]);
}
