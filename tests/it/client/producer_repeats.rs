//! Repeats of enqueues with an unknown outcome, against a scripted server.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use ringq::pb::{BatchEnqueueRequest, ConflictPolicy, EnqueueOutcome, JobSpec};

use super::fake::{Fake, Script, not_done, unknown};
use crate::harness::{millis, within};

/// Builds a server whose first call is lost after it may have been written, and that is down from then on.
fn lost_then_down() -> Script {
    let calls = AtomicUsize::new(0);
    let verdict = move |_: &BatchEnqueueRequest| match calls.fetch_add(1, Ordering::SeqCst) {
        0 => Some(unknown()),
        _ => Some(not_done(Duration::ZERO)),
    };
    Script::failing(verdict)
}

fn id(id: &str) -> JobSpec {
    JobSpec::new("t").with_id(id)
}

#[tokio::test]
async fn a_repeat_that_surely_failed_does_not_make_the_first_call_certain() {
    for batch in [true, false] {
        let (fake, client) = Fake::start(lost_then_down()).await;
        let producer = client.producer().repeat_for(millis(700));
        let error = match batch {
            true => producer.enqueue_batch(vec![id("a")]).await.remove(0).unwrap_err(),
            false => producer.enqueue(id("a")).await.unwrap_err(),
        };
        assert!(fake.0.enqueues.lock().unwrap().len() > 1, "it was repeated");
        assert_eq!(error.reason(), "DRAINING");
        assert!(error.outcome_unknown(), "the first call may have written it: {error:?}");
    }
    let (_, client) = Fake::start(Script::failing(|_| Some(not_done(millis(1))))).await;
    let error = client.producer().repeat_for(millis(300)).enqueue(id("a")).await.unwrap_err();
    assert!(!error.outcome_unknown(), "all calls were certain: {error:?}");
}

#[tokio::test]
async fn what_may_be_forgotten_is_not_repeated() {
    let script = || Script::failing(|_| Some(unknown()));
    let calls = |fake: &Fake| fake.0.enqueues.lock().unwrap().len();

    let (fake, client) = Fake::start(script()).await;
    let producer = client.producer().repeat_for(Duration::from_secs(20));
    let gone = producer.enqueue(id("a").with_retention(Duration::ZERO));
    let error = within("the error", gone).await.unwrap_err();
    assert!(error.outcome_unknown() && calls(&fake) == 1, "{} calls", calls(&fake));

    let soon = producer.enqueue(id("a").with_retention(millis(800)));
    assert!(within("the error", soon).await.unwrap_err().outcome_unknown());
    assert!(calls(&fake) > 2, "it is repeated while it is surely known");

    // One call: a caller that gives up does not end the repeats of others.
    let (fake, client) = Fake::start(script()).await;
    let producer = client.producer().repeat_for(millis(1_000));
    producer.enqueue_batch(vec![id("a").with_retention(Duration::ZERO), id("b")]).await;
    let sent = std::mem::take(&mut *fake.0.enqueues.lock().unwrap());
    assert!(sent.len() > 2 && sent[1..].iter().all(|call| call.jobs == [id("b")]), "{sent:?}");
}

#[tokio::test]
async fn what_surely_was_not_written_is_repeated_whatever_its_retention() {
    let calls = AtomicUsize::new(0);
    let verdict = move |_: &BatchEnqueueRequest| {
        (calls.fetch_add(1, Ordering::SeqCst) < 3).then(|| not_done(millis(50)))
    };
    let (fake, client) = Fake::start(Script::failing(verdict)).await;
    let replace = client.producer().on_conflict(ConflictPolicy::Replace);
    for job in [id("a").with_retention(Duration::ZERO), JobSpec::new("t")] {
        within("the answer", replace.enqueue(job)).await.unwrap();
    }
    assert_eq!(fake.0.jobs.lock().unwrap().len(), 2);
}

/// A job without an id is repeated under the server-made one, unless the policy would change the existing job.
#[tokio::test]
async fn what_the_server_has_named_is_repeated_by_that_name() {
    let script = || {
        let calls = AtomicUsize::new(0);
        Script::doubting(move |_| calls.fetch_add(1, Ordering::SeqCst) < 2)
    };
    let (fake, client) = Fake::start(script()).await;
    let producer = client.producer().repeat_for(Duration::from_secs(20));
    let job = within("the job", producer.enqueue(JobSpec::new("t"))).await.unwrap();
    assert_eq!((job.id.as_str(), job.outcome), ("s1~0", EnqueueOutcome::Created));
    assert_eq!(fake.0.jobs.lock().unwrap().len(), 1, "one job");
    let sent = std::mem::take(&mut *fake.0.enqueues.lock().unwrap());
    let ids: Vec<_> = sent.iter().map(|call| call.jobs[0].id.as_str()).collect();
    assert_eq!(ids, ["", "s1~0", "s1~0"]);

    let (fake, client) = Fake::start(script()).await;
    let producer = client.producer().on_conflict(ConflictPolicy::Replace);
    let error = producer.enqueue(JobSpec::new("t")).await.unwrap_err();
    assert!(error.outcome_unknown(), "{error:?}");
    assert_eq!(fake.0.enqueues.lock().unwrap().len(), 1);
}
