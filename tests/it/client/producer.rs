//! Enqueues: calls, policies, repeats.

use std::collections::HashSet;

use futures::future::join_all;
use ringq::pb::{ConflictPolicy, EnqueueOutcome, GetTopicStatsRequest, JobSpec, JobState};
use tonic::Code;

use super::{calls, connect, enqueue, jobs};
use crate::harness::{Server, Setup, for_a_while, millis, within};

#[tokio::test]
async fn many_callers_share_a_few_calls() {
    let server = Server::start().await;
    let producer = connect(&server).producer();
    let all = (0..5_000).map(|_| {
        let producer = producer.clone();
        tokio::spawn(async move { producer.enqueue(JobSpec::new("t")).await.unwrap().id })
    });
    let ids = join_all(all.collect::<Vec<_>>()).await;
    let ids: HashSet<String> = ids.into_iter().map(Result::unwrap).collect();
    assert_eq!(ids.len(), 5_000, "each has an id of its own");
    let calls = calls(&server, "BatchEnqueue").await;
    assert!(calls <= 100, "{calls} calls");
    assert_eq!(server.connect().await.stats("t").await.ready, 5_000);
}

#[tokio::test]
async fn a_batch_takes_any_number_of_jobs_of_any_size() {
    let server = Server::start().await;
    let client = connect(&server);
    let ids = enqueue(&client, jobs("many", 2_345)).await;
    assert!(ids.iter().enumerate().all(|(n, id)| *id == n.to_string()), "in their order");
    let large = |_| JobSpec::new("large").with_data(vec![7; (1 << 20) - 100]);
    assert_eq!(enqueue(&client, (0..9).map(large).collect()).await.len(), 9);
    let producer = client.producer();
    let large = join_all((0..9).map(large).map(|job| producer.enqueue(job))).await;
    assert!(large.iter().all(Result::is_ok), "{large:?}");
    assert!(producer.enqueue_batch(Vec::new()).await.is_empty());
}

#[tokio::test]
async fn each_job_of_a_call_has_its_own_answer() {
    let server = Server::start().await;
    let producer = connect(&server).producer();
    let jobs = vec![JobSpec::new("t"), JobSpec::new("no topic"), JobSpec::new("t").with_id("a")];
    let answers = join_all(jobs.into_iter().map(|job| producer.enqueue(job))).await;
    assert!(answers[0].is_ok() && answers[2].is_ok(), "{answers:?}");
    let error = answers[1].as_ref().unwrap_err();
    assert_eq!((error.code(), error.reason()), (Code::InvalidArgument, "INVALID_FIELD"));
    assert_eq!((error.field(), error.outcome_unknown()), (Some("topic"), false));
}

#[tokio::test]
async fn policies_hold_for_callers_that_share_a_call() {
    let server = Server::start().await;
    let client = connect(&server);
    enqueue(&client, vec![JobSpec::new("t").with_id("a").with_text("old")]).await;
    let new = |text: &str| JobSpec::new("t").with_id("a").with_text(text);
    let kept = client.producer().enqueue(new("kept")).await.unwrap();
    assert_eq!((kept.outcome, kept.state), (EnqueueOutcome::Unchanged, JobState::Ready));

    let replace = client.producer().on_conflict(ConflictPolicy::Replace);
    let both = join_all([replace.enqueue(new("1")), replace.enqueue(new("2"))]).await;
    let outcomes: Vec<_> = both.into_iter().map(|answer| answer.unwrap().outcome).collect();
    assert_eq!(outcomes, [EnqueueOutcome::Replaced; 2], "neither is taken for a repeat");
    let batch = vec![new("3"), JobSpec::new("t"), new("4")];
    let answers = replace.enqueue_batch(batch).await;
    assert!(!answers[1].as_ref().unwrap().id.starts_with("r="), "its id is the server's");
    let job = server.connect().await.get("t", "a").await;
    assert_eq!(job.spec.unwrap().payload.unwrap().bytes(), b"4", "the last one stays");

    let reject = client.producer().on_conflict(ConflictPolicy::Reject);
    assert_eq!(reject.enqueue(new("5")).await.unwrap_err().reason(), "JOB_EXISTS");
}

/// Waits until some jobs of `t` are in, and others are not, while callers with ids enqueue.
async fn in_the_middle(server: &Server) {
    let client = server.connect().await;
    let ready = async || loop {
        let request = GetTopicStatsRequest { name: "t".to_owned() };
        let Ok(answer) = client.topics.clone().get_topic_stats(request).await else { continue };
        match answer.into_inner().stats.unwrap_or_default().ready {
            0 => {}
            ready => return ready,
        }
    };
    assert!(within("some are in", ready()).await < 3_000, "all are in");
}

#[tokio::test]
async fn jobs_with_ids_survive_a_killed_server() {
    for policy in [ConflictPolicy::Keep, ConflictPolicy::Reject] {
        let mut server = Setup::new().restartable().start().await;
        let producer = connect(&server).producer().on_conflict(policy);
        let callers: Vec<_> = jobs("t", 3_000)
            .into_iter()
            .map(|job| {
                let producer = producer.clone();
                tokio::spawn(async move { producer.enqueue(job).await })
            })
            .collect();
        in_the_middle(&server).await;
        server.kill().await;
        server.restart().await;
        for answer in within("all answers", join_all(callers)).await {
            answer.unwrap().unwrap();
        }
        assert_eq!(server.connect().await.stats("t").await.ready, 3_000);
    }
}

#[tokio::test]
async fn a_job_without_an_id_is_never_sent_twice() {
    let mut server = Setup::new().restartable().start().await;
    let producer = connect(&server).producer();
    let callers: Vec<_> = (0..3_000)
        .map(|_| {
            let producer = producer.clone();
            tokio::spawn(async move { producer.enqueue(JobSpec::new("t")).await })
        })
        .collect();
    in_the_middle(&server).await;
    server.kill().await;
    server.restart().await;
    let (mut sure, mut unknown) = (0, 0);
    for answer in within("all answers", join_all(callers)).await {
        match answer.unwrap() {
            Ok(_) => sure += 1,
            Err(error) if error.outcome_unknown() => unknown += 1,
            Err(error) => panic!("what surely was not written is repeated: {error:?}"),
        }
    }
    let stored = server.connect().await.stats("t").await.ready;
    assert!((sure..=sure + unknown).contains(&stored), "{sure} + {unknown}, but {stored} stored");
}

#[tokio::test]
async fn repeats_end_in_time_and_dropped_callers_are_forgotten() {
    let mut server = Setup::new().restartable().start().await;
    let client = connect(&server);
    server.kill().await;
    let patient = client.producer();
    let dropped =
        for_a_while(millis(300), patient.enqueue(JobSpec::new("t").with_id("dropped"))).await;
    assert!(dropped.is_none(), "it is repeated for longer than that");
    let brief = client.producer().repeat_for(millis(300));
    let error = brief.enqueue(JobSpec::new("t").with_id("brief")).await.unwrap_err();
    assert!(error.is_unavailable() && !error.outcome_unknown(), "{error:?}");
    let last = tokio::spawn(async move { patient.enqueue(JobSpec::new("t")).await });
    tokio::task::yield_now().await;
    server.restart().await;
    within("the last caller's answer", last).await.unwrap().unwrap();
    let stats = server.connect().await.stats("t").await;
    assert_eq!(stats.ready, 1, "only the last caller was still waiting");
}

/// Producers are dropped while their callers still wait.
#[tokio::test]
async fn a_queue_outlives_its_producers() {
    let server = Server::start().await;
    let client = connect(&server);
    let callers: Vec<_> = (0..50)
        .map(|_| {
            let producer = client.producer();
            tokio::spawn(async move { producer.enqueue(JobSpec::new("t")).await })
        })
        .collect();
    drop(client);
    for answer in join_all(callers).await {
        answer.unwrap().unwrap();
    }
}

/// The runtime of the queue is gone: an error, no hang.
#[test]
fn a_queue_ends_with_its_runtime() {
    let runtime = || tokio::runtime::Runtime::new().unwrap();
    let first = runtime();
    let producer = first.block_on(async {
        let server = Server::start().await;
        let producer = connect(&server).producer();
        producer.enqueue(JobSpec::new("t")).await.unwrap();
        producer
    });
    drop(first);
    let enqueue = async { within("an answer", producer.enqueue(JobSpec::new("t"))).await };
    let error = runtime().block_on(enqueue).unwrap_err();
    assert!(!error.outcome_unknown() && error.message().contains("runtime"), "{error}");
}
