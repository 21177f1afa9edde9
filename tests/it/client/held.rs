//! Jobs that a worker holds: over a break, and while their settles are repeated.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use ringq::client::{Delivery, Worker};
use ringq::pb::{NackAction, Payload};
use tokio::sync::Semaphore;

use super::fake::{Fake, Script};
use super::{Count, Running};
use crate::harness::{eventually, millis};

/// Returns whether so many Extend calls name both `a` and `b`.
fn extends_of_both(fake: &Fake, count: usize) -> bool {
    let extends = fake.0.extends.lock().unwrap();
    let names = |receipt: &str, call: &ringq::pb::ExtendRequest| {
        call.items.iter().any(|item| item.receipt == receipt)
    };
    extends.iter().filter(|call| names("a", call) && names("b", call)).count() >= count
}

/// Builds a handler that waits for a permit.
fn gated(gate: Arc<Semaphore>) -> impl Fn(Delivery) -> futures::future::BoxFuture<'static, ()> {
    move |_| {
        let gate = Arc::clone(&gate);
        Box::pin(async move { gate.acquire().await.unwrap().forget() })
    }
}

#[tokio::test]
async fn a_delivery_that_comes_twice_runs_once() {
    let script = Script { receipts: vec!["a", "a", "b"].into(), ..Script::default() };
    let (fake, client) = Fake::start(script).await;
    let count = Count::default();
    let runs = count.clone();
    let handler = move |_| {
        runs.add();
        async {}
    };
    let worker = Running::start(Worker::new(client, ["t"]).concurrency(3), handler);
    let acked = async || {
        let items: usize = fake.0.acks.lock().unwrap().iter().map(|call| call.items.len()).sum();
        (items >= 2).then_some(())
    };
    eventually("acks", acked).await;
    assert_eq!((worker.stop().await.acked, count.get()), (2, 2));
}

#[tokio::test]
async fn a_lease_is_extended_while_its_ack_is_repeated() {
    let lease = Some(millis(1_000));
    let receipts = vec!["down"].into();
    let script = Script { down: true.into(), receipts, lease, ..Script::default() };
    let (fake, client) = Fake::start(script).await;
    let worker = Running::start(Worker::new(client, ["t"]).max_jobs(1), |_| async {});
    // The lease would have ended twice.
    let extended = async || (fake.0.extends.lock().unwrap().len() >= 5).then_some(());
    eventually("extends", extended).await;
    fake.0.down.store(false, Ordering::SeqCst);
    let summary = worker.ended().await;
    assert_eq!((summary.acked, summary.unsettled), (1, 0));
}

#[tokio::test]
async fn a_job_that_waits_stays_over_a_break() {
    let receipts = vec!["a", "b"].into();
    let script = Script { receipts, breaking: 1.into(), ..Script::default() };
    let (fake, client) = Fake::start(script).await;
    let gate = Arc::new(Semaphore::new(0));
    let worker = Running::start(Worker::new(client, ["t"]), gated(Arc::clone(&gate)));
    // One after the break, one on the new stream, whose answers show revocations that did not come.
    eventually("extends", async || extends_of_both(&fake, 2).then_some(())).await;
    fake.0.streams.reaches(2).await;
    gate.add_permits(2);
    let acked = async || {
        let items: usize = fake.0.acks.lock().unwrap().iter().map(|call| call.items.len()).sum();
        (items >= 2).then_some(())
    };
    eventually("acks", acked).await;
    let summary = worker.stop().await;
    assert_eq!((summary.acked, summary.released, summary.unsettled), (2, 0, 0));
}

#[tokio::test]
async fn a_handler_ends_when_its_checkpoint_is_stale() {
    let script = Script { receipts: vec!["a"].into(), stale: true, ..Script::default() };
    let (fake, client) = Fake::start(script).await;
    let count = Count::default();
    let (begun, ended) = (count.clone(), Count::default());
    let went_on = ended.clone();
    let handler = move |job: Delivery| {
        begun.add();
        let went_on = went_on.clone();
        async move {
            let saved = job.save(Payload::text("1")).await;
            tokio::time::sleep(millis(300)).await;
            went_on.add();
            saved
        }
    };
    let worker = Running::start(Worker::new(client, ["t"]), handler);
    count.reaches(1).await;
    tokio::time::sleep(millis(600)).await;
    let summary = worker.stop().await;
    assert_eq!((summary.unsettled, ended.get()), (1, 0), "{summary:?}");
    assert!(fake.0.nacks.lock().unwrap().is_empty() && fake.0.acks.lock().unwrap().is_empty());
}

#[tokio::test]
async fn a_job_that_outlasts_the_grace_is_released() {
    let script = Script { receipts: vec!["a"].into(), ..Script::default() };
    let (fake, client) = Fake::start(script).await;
    let begun = Count::default();
    let count = begun.clone();
    let handler = move |_| {
        count.add();
        std::future::pending::<()>()
    };
    let worker = Running::start(Worker::new(client, ["t"]).grace(millis(300)), handler);
    begun.reaches(1).await;
    let summary = worker.stop().await;
    assert_eq!((summary.released, summary.unsettled), (1, 0), "{summary:?}");
    let nacks = fake.0.nacks.lock().unwrap();
    assert_eq!(nacks[0].items[0].action(), NackAction::Release);
}

/// The server has given the jobs of a broken stream to others by then, unless an Extend got through.
#[tokio::test]
async fn a_job_that_waits_is_not_begun_after_the_grace_of_a_break() {
    let (receipts, lease, grace) = (vec!["a", "b"].into(), Some(millis(2_000)), Some(millis(300)));
    let (breaking, cut) = (1.into(), true.into());
    let script = Script { receipts, breaking, cut, lease, grace, ..Script::default() };
    let (fake, client) = Fake::start(script).await;
    let (gate, begun) = (Arc::new(Semaphore::new(0)), Count::default());
    let (run, count) = (gated(Arc::clone(&gate)), begun.clone());
    let handler = move |job| {
        count.add();
        run(job)
    };
    let worker = Running::start(Worker::new(client, ["t"]), handler);
    let extends = async || (!fake.0.extends.lock().unwrap().is_empty()).then_some(());
    eventually("an Extend, which fails", extends).await;
    tokio::time::sleep(millis(300)).await;
    gate.add_permits(2);
    eventually("a is acked", async || (!fake.0.acks.lock().unwrap().is_empty()).then_some(()))
        .await;
    tokio::time::sleep(millis(100)).await;
    assert_eq!(begun.get(), 1);
    fake.0.cut.store(false, Ordering::SeqCst);
    begun.reaches(2).await;
    assert_eq!(worker.stop().await.acked, 2);
}

#[tokio::test]
async fn a_stopped_worker_gives_up_a_settle_that_never_succeeds() {
    let receipts = vec!["down"].into();
    let script = Script { down: true.into(), receipts, ..Script::default() };
    let (fake, client) = Fake::start(script).await;
    let worker = Worker::new(client, ["t"]).call_timeout(millis(300));
    let worker = Running::start(worker, |_| async {});
    let repeated = async || (fake.0.acks.lock().unwrap().len() >= 2).then_some(());
    eventually("acks", repeated).await;
    let summary = worker.stop().await;
    assert_eq!((summary.acked, summary.unsettled), (0, 1), "{summary:?}");
}
