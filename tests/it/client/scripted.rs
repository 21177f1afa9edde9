//! Behaviour that only a scripted server can show.

use std::sync::atomic::Ordering;
use std::time::Instant;

use futures::future::join_all;
use ringq::client::Worker;
use ringq::pb::{ConflictPolicy, JobSpec};

use super::fake::{Fake, Script};
use super::{Count, Running};
use crate::harness::{eventually, millis, within};

/// A shard is down: its jobs are repeated, and no other caller waits for that.
#[tokio::test]
async fn who_shares_a_call_with_a_job_that_is_repeated_has_an_answer_at_once() {
    let (fake, client) = Fake::start(Script { down: true.into(), ..Script::default() }).await;
    let producer = client.producer();
    let down: Vec<_> = (0..20)
        .map(|_| {
            let producer = producer.clone();
            tokio::spawn(async move { producer.enqueue(JobSpec::new("down")).await })
        })
        .collect();
    let all = (0..2_000).map(|n| producer.enqueue(JobSpec::new("up").with_id(n.to_string())));
    let up = within("the others", join_all(all)).await;
    assert!(up.iter().all(Result::is_ok));
    assert!(down.iter().all(|caller| !caller.is_finished()), "those wait for their shard");
    fake.0.down.store(false, Ordering::SeqCst);
    assert!(within("the rest", join_all(down)).await.into_iter().all(|it| it.unwrap().is_ok()));
}

#[tokio::test]
async fn what_may_have_been_written_is_repeated_only_by_its_id() {
    let (fake, client) = Fake::start(Script::default()).await;
    let keep = client.producer().repeat_for(millis(1_500));
    let jobs = || vec![JobSpec::new("unknown"), JobSpec::new("unknown").with_id("a")];
    let answers = keep.enqueue_batch(jobs()).await;
    assert!(answers.iter().all(|answer| answer.as_ref().unwrap_err().outcome_unknown()));
    let sent = std::mem::take(&mut *fake.0.enqueues.lock().unwrap());
    assert!(sent.len() > 2 && sent[0].jobs.len() == 2, "{sent:?}");
    assert!(sent[1..].iter().all(|call| call.jobs.len() == 1 && call.jobs[0].id == "a"));
    assert!(sent.iter().all(|call| call.request_id.is_empty()), "KEEP needs none");

    let replace = keep.on_conflict(ConflictPolicy::Replace);
    replace.enqueue_batch(jobs()).await;
    let sent = std::mem::take(&mut *fake.0.enqueues.lock().unwrap());
    let (named, unnamed): (Vec<_>, Vec<_>) =
        sent.into_iter().partition(|call| !call.request_id.is_empty());
    assert_eq!((unnamed.len(), unnamed[0].jobs[0].id.as_str()), (1, ""));
    assert!(named.len() > 2 && named.iter().all(|call| call.request_id == named[0].request_id));
}

/// Settles behave alike: the worker ends when the last one is through.
#[tokio::test]
async fn an_ack_that_is_repeated_holds_up_no_other() {
    let receipts = vec!["a", "down", "b"].into();
    let script = Script { down: true.into(), receipts, ..Script::default() };
    let (fake, client) = Fake::start(script).await;
    let worker = Worker::new(client, ["t"]).concurrency(3).max_jobs(3);
    let worker = Running::start(worker, |_| async {});
    eventually("repeats", async || (fake.0.acks.lock().unwrap().len() >= 3).then_some(())).await;
    fake.0.down.store(false, Ordering::SeqCst);
    let summary = worker.ended().await;
    assert_eq!((summary.acked, summary.unsettled), (3, 0));
    let acks = fake.0.acks.lock().unwrap();
    assert_eq!(acks[0].items.len(), 3);
    assert!(acks[1..].iter().all(|call| call.items.len() == 1), "{acks:?}");
}

/// A lone ack does not wait until there are more.
#[tokio::test]
async fn a_lone_ack_goes_out() {
    let script = Script { receipts: vec!["a"].into(), ..Script::default() };
    let (fake, client) = Fake::start(script).await;
    let done = Count::default();
    let count = done.clone();
    let handler = move |_| {
        count.add();
        async {}
    };
    let worker = Running::start(Worker::new(client, ["t"]).concurrency(100), handler);
    done.reaches(1).await;
    let sent = async {
        while fake.0.acks.lock().unwrap().is_empty() {
            tokio::task::yield_now().await;
        }
    };
    within("the ack", sent).await;
    assert_eq!(worker.stop().await.acked, 1);
}

#[tokio::test]
async fn a_server_that_ends_every_stream_is_asked_with_growing_pauses() {
    let (fake, client) = Fake::start(Script { leaving: true, ..Script::default() }).await;
    let worker = Running::start(Worker::new(client, ["t"]), |_| async {});
    let begin = Instant::now();
    fake.0.streams.reaches(8).await;
    assert!(begin.elapsed() >= millis(2_000), "8 streams in {:?}", begin.elapsed());
    worker.stop().await;
}
