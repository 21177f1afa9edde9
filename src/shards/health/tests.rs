//! Log lines about a shard, and its probes.

use std::cell::RefCell;
use std::io;
use std::pin::pin;
use std::sync::Once;
use std::time::Duration;

use tokio::sync::oneshot;
use tokio::time::Instant;

use crate::backoff::BackoffRange;
use crate::clock::Clock;
use crate::domain::engine::Command;
use crate::domain::ring::ShardState;
use crate::domain::{JobId, JobKey, TopicName};
use crate::metrics::Metrics;
use crate::store::faulty_store::{FaultyStore, InjectedFault};
use crate::store::{self, Error, JobRequest, ShardEvent};

use super::log::REPEAT_EVERY;
use super::*;

const LATE_ENOUGH: Duration = Duration::from_secs(60);
const SOON: Duration = Duration::from_millis(1);

thread_local! {
    /// Lines that this thread has logged, by level, message and fields; None: not recorded.
    static LOG: RefCell<Option<Vec<String>>> = const { RefCell::new(None) };
}

struct LogWriter;

impl io::Write for LogWriter {
    fn write(&mut self, line: &[u8]) -> io::Result<usize> {
        let text = String::from_utf8_lossy(line).into_owned();
        LOG.with_borrow_mut(|log| log.iter_mut().for_each(|log| log.push(text.clone())));
        Ok(line.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Records log lines of this thread from now on, from INFO on. One subscriber serves all threads: tracing caches for
/// all of them whether a line is of interest, by the first subscriber.
fn begin_log() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        let log = tracing_subscriber::fmt().with_max_level(tracing::Level::INFO);
        let log = log.without_time().with_target(false).with_ansi(false).with_writer(|| LogWriter);
        tracing::subscriber::set_global_default(log.finish()).unwrap();
    });
    LOG.set(Some(Vec::new()));
}

fn lines() -> Vec<String> {
    LOG.with_borrow(|log| log.clone().unwrap())
}

fn monitor(store: &Arc<FaultyStore>, patience: ShardTimeouts) -> Arc<HealthMonitor> {
    let (metrics, down) = (Metrics::new().shard("s0"), watch::Sender::new(0));
    HealthMonitor::start(Arc::clone(store) as _, metrics, patience, down)
}

fn hasty() -> ShardTimeouts {
    ShardTimeouts {
        probe_pauses: BackoffRange { min: 10 * SOON, max: 10 * SOON },
        ..ShardTimeouts::default()
    }
}

async fn call(monitor: &Arc<HealthMonitor>, store: &FaultyStore) -> bool {
    monitor.call(Op::Claim, LATE_ENOUGH, store.info()).await.is_ok()
}

/// Waits until no probe is due or in flight, unless the shard is down.
async fn settled(monitor: &Arc<HealthMonitor>) {
    while monitor.is_being_probed() {
        tokio::time::sleep(SOON).await;
    }
}

async fn down(monitor: &Arc<HealthMonitor>) {
    let down = async {
        while !monitor.is_down() {
            tokio::task::yield_now().await;
        }
    };
    tokio::time::timeout(LATE_ENOUGH, down).await.expect("the shard is down");
}

#[tokio::test]
async fn one_call_that_fails_is_enough_to_find_out_that_the_shard_is_down() {
    let store = FaultyStore::new("s0", &Clock::system());
    let monitor = monitor(&store, hasty());
    begin_log();
    store.set_fault(InjectedFault::Unreachable);
    assert!(!call(&monitor, &store).await);
    settled(&monitor).await;
    assert!(monitor.is_down());
    store.set_fault(InjectedFault::None);
    monitor.wait_until_usable().await;
    assert!(call(&monitor, &store).await);
    let lines = lines();
    assert_eq!(lines.len(), 2, "{lines:?}");
    assert!(lines[0].contains("WARN the shard does not answer"), "{lines:?}");
    assert!(lines[1].contains("INFO the shard answers again"), "{lines:?}");
}

#[tokio::test]
async fn calls_that_fail_while_the_shard_answers_are_logged_once_with_their_number() {
    let store = FaultyStore::new("s0", &Clock::system());
    let monitor = monitor(&store, hasty());
    begin_log();
    for _ in 0..3 {
        let failed = async { Err::<(), _>(Error::Unavailable("lost".into())) };
        assert!(monitor.call(Op::Info, LATE_ENOUGH, failed).await.is_err());
    }
    settled(&monitor).await;
    assert!(!monitor.is_down() && call(&monitor, &store).await);
    let lines = lines();
    assert_eq!(lines.len(), 1, "{lines:?}");
    for part in ["WARN store calls failed; the shard answers now", "failed=3 first_op=\"info\""] {
        assert!(lines[0].contains(part), "{part}: {lines:?}");
    }
}

#[tokio::test]
async fn shard_status_is_logged_once_and_refuses_calls_at_start() {
    let store = FaultyStore::new("s0", &Clock::system());
    begin_log();
    store.set_fault(InjectedFault::Unreachable);
    store.set_problem(Some(ShardProblem::NeverConnected("nothing listens there".into())));
    let monitor = monitor(&store, hasty());
    assert!(monitor.is_down() && !call(&monitor, &store).await);
    store.set_problem(Some(ShardProblem::Misconfigured("it is a replica".into())));
    while lines().len() < 3 {
        tokio::time::sleep(SOON).await;
    }
    store.set_fault(InjectedFault::None);
    store.set_problem(None);
    monitor.wait_until_usable().await;
    let lines = lines();
    for (line, part) in lines.iter().zip([
        "WARN the shard is not reached yet",
        "INFO durability of writes",
        "ERROR the shard is misconfigured",
        "INFO the shard is reached",
    ]) {
        assert!(line.contains(part), "{part}: {lines:?}");
    }
    assert_eq!(lines.len(), 4, "{lines:?}");
}

#[tokio::test]
async fn new_jobs_are_refused_while_they_would_not_be_safe_and_nothing_else_is() {
    let store = FaultyStore::new("s0", &Clock::system());
    let monitor = monitor(&store, hasty());
    let refuses = async |expected: bool| {
        while monitor.health().takes_jobs() == expected {
            tokio::time::sleep(SOON).await;
        }
    };
    store.set_problem(Some(ShardProblem::RejectsEnqueues("it evicts".into())));
    refuses(true).await;
    let refused = Err(Error::Unavailable("it evicts".into()));
    assert_eq!(monitor.admit(Op::Enqueue), refused);
    assert_eq!(monitor.refusal(), Some("it evicts".to_owned()));
    assert!(call(&monitor, &store).await && !monitor.is_down());
    store.set_problem(None);
    refuses(false).await;
    assert_eq!(monitor.admit(Op::Enqueue), Ok(()));
}

#[tokio::test]
async fn an_outage_that_ends_at_once_is_logged_in_two_lines() {
    let store = FaultyStore::new("s0", &Clock::system());
    let monitor = monitor(&store, hasty());
    begin_log();
    // The answer comes after the outage.
    let (late, hold) = oneshot::channel::<()>();
    let held = async {
        let _ = hold.await;
        Err::<(), _>(Error::OutcomeUnknown("lost".into()))
    };
    let mut held = pin!(monitor.call(Op::Claim, LATE_ENOUGH, held));
    assert!(futures::poll!(held.as_mut()).is_pending());
    store.set_fault(InjectedFault::Unreachable);
    assert!(!call(&monitor, &store).await);
    down(&monitor).await;
    store.set_fault(InjectedFault::None);
    monitor.wait_until_usable().await;
    drop(late);
    assert!(held.await.is_err());
    settled(&monitor).await;
    let lines = lines();
    assert_eq!(lines.len(), 2, "{lines:?}");
}

#[tokio::test(start_paused = true)]
async fn a_shard_that_answers_probes_and_nothing_else_is_down() {
    let store = FaultyStore::new("s0", &Clock::system());
    let monitor = monitor(&store, hasty());
    for is_open in [false, true] {
        let late = async {
            tokio::time::sleep(SLOW_FAILURE).await;
            Err::<(), _>(Error::OutcomeUnknown("no answer".into()))
        };
        assert!(monitor.call(Op::Enqueue, LATE_ENOUGH, late).await.is_err());
        assert_eq!(monitor.is_down(), is_open);
        // A probe takes a thread of the store, and no time.
        tokio::time::resume();
        settled(&monitor).await;
        tokio::time::pause();
    }
}

#[tokio::test]
async fn a_lost_subscription_has_the_shard_probed_without_any_call() {
    let store = FaultyStore::new("s0", &Clock::system());
    store.share_without_events();
    let monitor = monitor(&store, hasty());
    store.set_fault(InjectedFault::Unreachable);
    tokio::task::yield_now().await;
    store.events.send(ShardEvent::StateSet);
    tokio::task::yield_now().await;
    assert!(!monitor.is_being_probed() && store.calls() == 0);
    store.events.send(ShardEvent::Disconnected);
    down(&monitor).await;
}

#[tokio::test]
async fn an_idle_shard_that_is_suspected_is_probed_at_once() {
    let store = FaultyStore::new("s0", &Clock::system());
    let monitor = monitor(&store, hasty());
    for (fault, is_open) in [(InjectedFault::None, false), (InjectedFault::Unreachable, true)] {
        store.set_fault(fault);
        let calls = store.calls();
        monitor.request_probe();
        settled(&monitor).await;
        assert!(store.calls() > calls, "{fault:?}");
        assert_eq!(monitor.is_down(), is_open, "{fault:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn refusals_of_a_full_shard_are_logged_with_suppressed_count() {
    let store = FaultyStore::new("s0", &Clock::system());
    let monitor = monitor(&store, ShardTimeouts::default());
    begin_log();
    let refuse = async || {
        let full = async { Err::<(), _>(Error::Full("no room".into())) };
        assert!(monitor.call(Op::Enqueue, LATE_ENOUGH, full).await.is_err());
    };
    for _ in 0..5 {
        refuse().await;
    }
    tokio::time::sleep(REPEAT_EVERY).await;
    refuse().await;
    let lines = lines();
    assert_eq!(lines.len(), 2, "{lines:?}");
    assert!(lines[1].contains("suppressed=4"), "{lines:?}");

    // It is shown until a job is stored.
    let other = async { Ok(()) };
    monitor.call(Op::Extend, LATE_ENOUGH, other).await.unwrap();
    assert!(
        monitor.refusal().is_some_and(|why| why.contains("no room"))
            && monitor.health().takes_jobs()
    );
    begin_log();
    monitor.call(Op::Enqueue, LATE_ENOUGH, async { Ok(()) }).await.unwrap();
    assert_eq!((monitor.refusal(), self::lines().len()), (None, 1));
}

#[tokio::test]
async fn a_shard_hint_triggers_a_probe() {
    let late = LATE_ENOUGH;
    let store = FaultyStore::new("s0", &Clock::system());
    let monitor = monitor(
        &store,
        ShardTimeouts {
            probe_pauses: BackoffRange { min: late, max: late },
            ..ShardTimeouts::default()
        },
    );
    store.set_fault(InjectedFault::Unreachable);
    while !monitor.is_down() {
        assert!(!call(&monitor, &store).await);
    }
    store.set_fault(InjectedFault::None);
    store.sqlite_store().set_state(ShardState::Active, None).await.unwrap();
    let closed = tokio::time::timeout(late / 3, monitor.wait_until_usable()).await;
    assert!(closed.is_ok(), "the pause went by");
}

#[tokio::test]
async fn a_long_call_that_takes_longer_than_others_may_is_no_failure() {
    let store = FaultyStore::new("s0", &Clock::system());
    let monitor = monitor(&store, ShardTimeouts { call: SOON, ..hasty() });
    let many_steps = async {
        tokio::time::sleep(50 * SOON).await;
        Ok(())
    };
    assert!(monitor.long_call(Op::Info, LATE_ENOUGH, many_steps).await.is_ok());
    for _ in 0..9 {
        let endless = std::future::pending::<store::Result<()>>();
        assert!(monitor.long_call(Op::Info, SOON, endless).await.is_err());
    }
    settled(&monitor).await;
    assert_eq!(*monitor.health(), ShardHealth::default());
}

#[tokio::test]
async fn a_long_call_ends_when_its_shard_is_down() {
    let store = FaultyStore::new("s0", &Clock::system());
    let monitor = monitor(&store, hasty());
    let endless = std::future::pending::<store::Result<()>>();
    let mut long = pin!(monitor.long_call(Op::Info, LATE_ENOUGH, endless));
    assert!(futures::poll!(long.as_mut()).is_pending());
    store.set_fault(InjectedFault::Unreachable);
    while !monitor.is_down() {
        call(&monitor, &store).await;
    }
    let ended = tokio::time::timeout(LATE_ENOUGH / 3, long).await.expect("it ends");
    assert_eq!(ended, Err(Error::Unavailable("connection refused".into())));
}

/// A healthy shard may have callers that wait for less time than it takes: other callers are not affected.
#[tokio::test]
async fn callers_that_came_too_late_take_no_shard_down() {
    let store = FaultyStore::new("s0", &Clock::system());
    let monitor = monitor(&store, hasty());
    let delete = |until: Instant| {
        let key = JobKey { topic: TopicName::try_new("t").unwrap(), id: JobId::stored("a") };
        let delete = JobRequest::new(key, Command::Delete { finished: None });
        JobRequest { deadline: Some(until), ..delete }
    };
    for n in 0..20 {
        let now = Instant::now();
        let requests = vec![delete(now), delete(now + LATE_ENOUGH)];
        let answers = monitor.apply(Op::Delete, LATE_ENOUGH, requests).await;
        assert!(
            matches!(answers[..], [Err(Error::DeadlineExceeded(_)), Ok(_)]),
            "{n}: {answers:?}"
        );
    }
    assert!(!monitor.is_down());
}
