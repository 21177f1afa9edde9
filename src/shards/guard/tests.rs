//! What the log tells of a shard, and when it is asked.

use std::cell::RefCell;
use std::io;
use std::pin::pin;
use std::sync::Once;

use tokio::sync::oneshot;

use crate::clock::Clock;
use crate::domain::ring::ShardState;
use crate::metrics::Metrics;
use crate::store::faulty::{Fault, FaultStore};
use crate::store::{About, Event, Events};

use crate::domain::{JobId, JobKey, TopicName};
use crate::store::Delete;

use super::*;

const LATE_ENOUGH: Duration = Duration::from_secs(60);
const SOON: Duration = Duration::from_millis(1);

thread_local! {
    /// What this thread has logged, by level, message and fields; None: nobody asks.
    static LOG: RefCell<Option<Vec<String>>> = const { RefCell::new(None) };
}

struct Line;

impl io::Write for Line {
    fn write(&mut self, line: &[u8]) -> io::Result<usize> {
        let text = String::from_utf8_lossy(line).into_owned();
        LOG.with_borrow_mut(|log| log.iter_mut().for_each(|log| log.push(text.clone())));
        Ok(line.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Notes what this thread logs from now on, but for details. One subscriber serves all threads: whether a line
/// is of interest is remembered for all of them, by what the first one has.
fn begin_log() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        let log = tracing_subscriber::fmt().with_max_level(tracing::Level::INFO);
        let log = log.without_time().with_target(false).with_ansi(false).with_writer(|| Line);
        tracing::subscriber::set_global_default(log.finish()).unwrap();
    });
    LOG.set(Some(Vec::new()));
}

fn lines() -> Vec<String> {
    LOG.with_borrow(|log| log.clone().unwrap())
}

fn guard(store: &Arc<FaultStore>, patience: Patience) -> Arc<Guard> {
    let (shard, down) = (Arc::clone(store), watch::Sender::new(0));
    Arc::new(Guard::new(shard, Metrics::new().shard("s0"), patience, down))
}

fn hasty() -> Patience {
    Patience { probes: (10 * SOON, 10 * SOON), ..Patience::default() }
}

async fn call(guard: &Arc<Guard>, store: &FaultStore) -> bool {
    guard.call(Op::Claim, LATE_ENOUGH, store.info()).await.is_ok()
}

/// Waits until nobody asks any more whether the shard answers.
async fn sure(guard: &Guard) {
    while !guard.doubt.is_none() {
        tokio::time::sleep(SOON).await;
    }
}

#[tokio::test]
async fn one_call_that_fails_is_enough_to_find_out_that_nobody_answers() {
    let store = FaultStore::new("s0", &Clock::system());
    let guard = guard(&store, hasty());
    begin_log();
    store.set(Fault::Refuses);
    assert!(!call(&guard, &store).await);
    sure(&guard).await;
    assert!(guard.breaker().is_open());
    store.set(Fault::None);
    guard.breaker().closed().await;
    assert!(call(&guard, &store).await);
    let lines = lines();
    assert_eq!(lines.len(), 2, "{lines:?}");
    assert!(lines[0].contains("WARN the shard does not answer"), "{lines:?}");
    assert!(lines[1].contains("INFO the shard answers again"), "{lines:?}");
}

#[tokio::test]
async fn calls_that_fail_while_the_shard_answers_are_told_once_with_their_number_and_end() {
    let store = FaultStore::new("s0", &Clock::system());
    let guard = guard(&store, hasty());
    begin_log();
    for _ in 0..3 {
        let failed = async { Err::<(), _>(Error::Unavailable("lost".into())) };
        assert!(guard.call(Op::Info, LATE_ENOUGH, failed).await.is_err());
    }
    sure(&guard).await;
    assert!(!guard.breaker().is_open() && call(&guard, &store).await);
    let lines = lines();
    assert_eq!(lines.len(), 1, "{lines:?}");
    for part in ["WARN store calls failed; the shard answers now", "failed=3 first_op=\"info\""] {
        assert!(lines[0].contains(part), "{part}: {lines:?}");
    }
}

#[tokio::test]
async fn failures_of_a_shard_that_is_known_not_to_answer_are_told_no_more() {
    let store = FaultStore::new("s0", &Clock::system());
    let guard = guard(&store, hasty());
    begin_log();
    guard.doubt.cast(Some((Op::Info, &Error::Unavailable("lost".into()))));
    guard.begin_down("told elsewhere");
    guard.breaker().closed().await;
    // Who asks has slept over all that.
    Arc::clone(&guard).make_sure().await;
    assert_eq!(lines(), Vec::<String>::new());
}

#[tokio::test]
async fn an_outage_that_ends_at_once_is_told_by_its_two_lines() {
    let store = FaultStore::new("s0", &Clock::system());
    let guard = guard(&store, hasty());
    begin_log();
    // Its answer comes when all is over.
    let (late, hold) = oneshot::channel::<()>();
    let held = async {
        let _ = hold.await;
        Err::<(), _>(Error::Unknown("lost".into()))
    };
    let mut held = pin!(guard.call(Op::Claim, LATE_ENOUGH, held));
    assert!(futures::poll!(held.as_mut()).is_pending());
    store.set(Fault::Refuses);
    assert!(!call(&guard, &store).await);
    while !guard.breaker().is_open() {
        tokio::task::yield_now().await;
    }
    store.set(Fault::None);
    guard.breaker().closed().await;
    drop(late);
    assert!(held.await.is_err());
    sure(&guard).await;
    let lines = lines();
    assert_eq!(lines.len(), 2, "{lines:?}");
}

#[tokio::test(start_paused = true)]
async fn a_shard_that_answers_probes_and_nothing_else_is_left_alone() {
    let store = FaultStore::new("s0", &Clock::system());
    let guard = guard(&store, hasty());
    for is_open in [false, true] {
        let late = async {
            tokio::time::sleep(LATE).await;
            Err::<(), _>(Error::Unknown("no answer".into()))
        };
        assert!(guard.call(Op::Enqueue, LATE_ENOUGH, late).await.is_err());
        assert_eq!(guard.breaker().is_open(), is_open);
        // Which takes a thread of the store, and no time.
        tokio::time::resume();
        sure(&guard).await;
        tokio::time::pause();
    }
}

#[tokio::test]
async fn a_shard_of_which_nothing_is_heard_any_more_is_asked_without_any_call() {
    let (store, events) = (FaultStore::new("s0", &Clock::system()), Events::new());
    let guard = guard(&store, hasty());
    guard.listen(events.about(About::Shard));
    store.set(Fault::Refuses);
    events.send(Event::Configured);
    tokio::task::yield_now().await;
    assert!(guard.doubt.is_none() && store.calls() == 0);
    events.send(Event::Lost);
    let open = async {
        while !guard.breaker().is_open() {
            tokio::task::yield_now().await;
        }
    };
    assert!(tokio::time::timeout(LATE_ENOUGH, open).await.is_ok());
}

#[tokio::test]
async fn an_idle_shard_of_which_nothing_is_heard_is_asked_at_once() {
    let store = FaultStore::new("s0", &Clock::system());
    let guard = guard(&store, hasty());
    for (fault, is_open) in [(Fault::None, false), (Fault::Refuses, true)] {
        store.set(fault);
        let calls = store.calls();
        guard.doubt(None);
        sure(&guard).await;
        assert!(store.calls() > calls, "{fault:?}");
        assert_eq!(guard.breaker().is_open(), is_open, "{fault:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn what_a_full_shard_refuses_is_told_with_the_number_of_what_was_not() {
    let store = FaultStore::new("s0", &Clock::system());
    let guard = guard(&store, Patience::default());
    begin_log();
    let refuse = async || {
        let full = async { Err::<(), _>(Error::Full("no room".into())) };
        assert!(guard.call(Op::Enqueue, LATE_ENOUGH, full).await.is_err());
    };
    for _ in 0..5 {
        refuse().await;
    }
    tokio::time::sleep(SAY_EVERY).await;
    refuse().await;
    let lines = lines();
    assert_eq!(lines.len(), 2, "{lines:?}");
    assert!(lines[1].contains("suppressed=4"), "{lines:?}");
}

#[tokio::test]
async fn a_shard_that_is_heard_of_is_asked_at_once() {
    let late = LATE_ENOUGH;
    let store = FaultStore::new("s0", &Clock::system());
    let guard = guard(&store, Patience { probes: (late, late), ..Patience::default() });
    store.set(Fault::Refuses);
    while !guard.breaker().is_open() {
        assert!(!call(&guard, &store).await);
    }
    store.set(Fault::None);
    store.inner().set_state(ShardState::Active, None).await.unwrap();
    let closed = tokio::time::timeout(late / 3, guard.breaker().closed()).await;
    assert!(closed.is_ok(), "the pause went by");
}

#[tokio::test]
async fn a_long_call_that_takes_longer_than_others_may_opens_nothing() {
    let store = FaultStore::new("s0", &Clock::system());
    let guard = guard(&store, Patience { answer: SOON, ..hasty() });
    let many_steps = async {
        tokio::time::sleep(50 * SOON).await;
        Ok(())
    };
    assert!(guard.long_call(Op::Info, LATE_ENOUGH, many_steps).await.is_ok());
    for _ in 0..9 {
        let endless = std::future::pending::<store::Result<()>>();
        assert!(guard.long_call(Op::Info, SOON, endless).await.is_err());
    }
    sure(&guard).await;
    assert!(!guard.breaker().is_open() && !guard.breaker().is_open_for_reads());
}

#[tokio::test]
async fn a_long_call_ends_when_its_shard_is_found_not_to_answer() {
    let store = FaultStore::new("s0", &Clock::system());
    let guard = guard(&store, hasty());
    let endless = std::future::pending::<store::Result<()>>();
    let mut long = pin!(guard.long_call(Op::Info, LATE_ENOUGH, endless));
    assert!(futures::poll!(long.as_mut()).is_pending());
    store.set(Fault::Refuses);
    while !guard.breaker().is_open() {
        call(&guard, &store).await;
    }
    let ended = tokio::time::timeout(LATE_ENOUGH / 3, long).await.expect("it ends");
    assert_eq!(ended, Err(Error::Unavailable("connection refused".into())));
}

/// A healthy shard may have callers that wait for less time than it takes: the others hear nothing of that.
#[tokio::test]
async fn callers_that_came_too_late_open_no_breaker() {
    let store = FaultStore::new("s0", &Clock::system());
    let guard = guard(&store, hasty());
    let delete = |until: Instant| {
        let key = JobKey { topic: TopicName::try_new("t").unwrap(), id: JobId::stored("a") };
        Request::from(Delete { key, finished: None, until: Some(until) })
    };
    for n in 0..20 {
        let now = Instant::now();
        let requests = vec![delete(now), delete(now + LATE_ENOUGH)];
        let answers = guard.call_each(Op::Delete, LATE_ENOUGH, requests).await;
        assert!(matches!(answers[..], [Err(Error::Late(_)), Ok(_)]), "{n}: {answers:?}");
    }
    assert!(!guard.breaker().is_open());
}
