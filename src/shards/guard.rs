//! What every call of a store goes through: the breaker, a limit to its time, and measurement.

use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::broadcast::error::RecvError;
use tokio::sync::{broadcast, watch};
use tokio::time::Instant;
use tokio::time::error::Elapsed;
use tokio_util::sync::CancellationToken;

use crate::domain::{JobId, JobKey, ShardName, Token, TopicName};
use crate::metrics::ShardMetrics;
use crate::said::Said;
use crate::store::{self, About, Error, Event, LeaseRef, Store, Trouble, Unclaim};

use super::breaker::{Access, Breaker, Kind};
use super::doubt::{Doubt, Seen};
use super::op::Op;

/// A failure that took so long counts like no answer at all.
const LATE: Duration = Duration::from_secs(1);

/// The same failure of the same operation is said so often at most; metrics have the others.
const SAY_EVERY: Duration = Duration::from_secs(30);

/// How patient this replica is with its shards.
#[derive(Clone, Debug)]
pub struct Patience {
    /// A call that is not answered within this has failed, with an unknown outcome. Far longer than a
    /// busy shard takes, because giving up does not make it less busy.
    pub answer: Duration,
    /// The same for a claim, which holds the credit of streams that other shards could use.
    pub claim: Duration,
    /// How long a question to all shards waits for the others, once one has answered.
    pub others: Duration,
    /// How long a write of unknown outcome is repeated on its shard at most, however late the caller's deadline is.
    pub repeats: Duration,
    /// How long all replicas must have served one ring before it is asked whether former ones are needed
    /// still. Longer than any call that began under those takes, see `answer` and `repeats`.
    pub agreement: Duration,
    /// First and longest pause between two probes of a shard that does not answer.
    pub probes: (Duration, Duration),
}

/// See the module.
pub(super) struct Guard {
    store: Arc<dyn Store>,
    metrics: ShardMetrics,
    patience: Patience,
    breaker: Breaker,
    /// How many shards of this replica do not answer.
    down: watch::Sender<usize>,
    closing: CancellationToken,
    doubt: Doubt,
    /// Failures by operation and reason.
    said: Said,
}

// === impl Patience ===

impl Patience {
    /// The longest that a call goes on under a ring.
    pub(super) fn call_max(&self) -> Duration {
        self.answer + self.repeats
    }
}

impl Default for Patience {
    fn default() -> Patience {
        Patience {
            answer: Duration::from_secs(5),
            claim: Duration::from_secs(2),
            others: Duration::from_millis(750),
            repeats: Duration::from_secs(30),
            agreement: Duration::from_secs(60),
            probes: (Duration::from_millis(100), Duration::from_secs(5)),
        }
    }
}

// === impl Guard ===

impl Guard {
    pub(super) fn new(
        store: Arc<dyn Store>,
        metrics: ShardMetrics,
        patience: Patience,
        down: watch::Sender<usize>,
    ) -> Guard {
        metrics.set_breaker_open(false);
        let breaker = Breaker::new(patience.probes);
        let closing = CancellationToken::new();
        let (doubt, said) = (Doubt::default(), Said::new(SAY_EVERY));
        Guard { store, metrics, patience, breaker, down, closing, doubt, said }
    }

    pub(super) fn breaker(&self) -> &Breaker {
        &self.breaker
    }

    pub(super) fn patience(&self) -> &Patience {
        &self.patience
    }

    /// Refuses a call of `op` while the shard is left alone.
    pub(super) fn admit(&self, op: Op) -> store::Result<()> {
        if !self.breaker.is_open() {
            return Ok(());
        }
        self.metrics.error(op.name(), "BREAKER_OPEN");
        Err(Error::Unavailable(format!(
            "it does not answer; the last failure: {}",
            self.breaker.error()
        )))
    }

    /// Makes a call of `op`, of at most `limit`.
    ///
    /// # Errors
    /// As the call's; [`Error::Unavailable`] when it was not made, [`Error::Unknown`] when it took too
    /// long.
    pub(super) async fn call<T>(
        self: &Arc<Self>,
        op: Op,
        limit: Duration,
        call: impl Future<Output = store::Result<T>>,
    ) -> store::Result<T> {
        self.admit(op)?;
        let begin = Instant::now();
        let answer = tokio::time::timeout(limit, call).await;
        let took = begin.elapsed();
        self.metrics.op(op.name(), took);
        let kind = kind(&answer, took);
        let late = |_| Err(Error::Unknown(format!("no answer within {limit:?}")));
        let result = answer.unwrap_or_else(late);
        match &result {
            Ok(_) => self.breaker.succeeded(op.access()),
            Err(error) => self.failed(op, kind, error, begin),
        }
        result
    }

    /// Lets a prober end.
    pub(super) fn close(&self) {
        self.closing.cancel();
    }

    fn name(&self) -> &ShardName {
        self.store.name()
    }

    fn failed(self: &Arc<Self>, op: Op, kind: Kind, error: &Error, begin: Instant) {
        self.metrics.error(op.name(), error.reason());
        tracing::debug!(shard = %self.name(), op = op.name(), %error, "a store call failed");
        if answers(error) {
            self.breaker.succeeded(op.access());
            self.tell_refusal(op, error);
        } else if self.breaker.failed(op.access(), kind, words(error)) {
            self.leave_alone(error);
        } else if !self.breaker.was_open_since(begin) {
            self.doubt(Some((op, error)));
        }
    }

    /// A full store refuses thousands of calls a second.
    fn tell_refusal(&self, op: Op, error: &Error) {
        let Some(news) = self.said.news(&[op.name(), error.reason()]) else { return };
        let (shard, op, suppressed) = (self.name(), op.name(), news.suppressed());
        if let Error::Corrupt(_) = error {
            tracing::error!(%shard, op, suppressed, %error, "a store call failed, and a part of it may be written");
        } else {
            tracing::warn!(%shard, op, suppressed, %error, "a store call was refused");
        }
    }

    /// Hears of the shard what casts doubt on it, as long as somebody has a use for that. `events` are about the
    /// shard.
    pub(super) fn listen(self: &Arc<Self>, mut events: broadcast::Receiver<Event>) {
        let guard = Arc::downgrade(self);
        tokio::spawn(async move {
            loop {
                match events.recv().await {
                    Ok(Event::Lost) => match guard.upgrade() {
                        Some(guard) => guard.doubt(None),
                        None => return,
                    },
                    Ok(_) | Err(RecvError::Lagged(_)) => {}
                    Err(RecvError::Closed) => return,
                }
            }
        });
    }

    /// The shard may not answer any more, because a call `failed` or by what was heard. Nobody waits for the next
    /// call to find out: of an idle shard that may be seconds away.
    fn doubt(self: &Arc<Self>, failed: Option<(Op, &Error)>) {
        if !self.breaker.is_open() && self.doubt.cast(failed) {
            tokio::spawn(Arc::clone(self).make_sure());
        }
    }

    /// Asks until the shard has answered and there is no new doubt, or so many answers have failed to come that it
    /// is left alone. One that only lost a connection answers the first time.
    async fn make_sure(self: Arc<Self>) {
        while self.doubt.is_open() {
            if self.breaker.is_open() || self.closing.is_cancelled() {
                continue;
            }
            match self.ask().await {
                // Meanwhile it was found not to answer; the probes see the end of that.
                Ok(()) if self.breaker.is_open() => continue,
                Ok(()) => {
                    self.breaker.succeeded(Access::Probe);
                    self.tell(self.doubt.answered());
                }
                Err((kind, error)) => {
                    self.doubt.stays();
                    if self.breaker.failed(Access::Probe, kind, words(&error)) {
                        self.leave_alone(&error);
                    }
                }
            }
            // Also after an answer: where one call in two fails this would go on for ever.
            tokio::select! {
                () = tokio::time::sleep(self.patience.probes.0) => {}
                () = self.closing.cancelled() => {}
            }
        }
    }

    /// The shard answers. If it did not for a moment, or calls have failed, that is all that there is to be seen of
    /// it.
    fn tell(&self, seen: Seen) {
        let shard = self.name();
        match seen.first {
            Some((op, error)) => {
                let (first_op, failed) = (op.name(), seen.failed);
                let Some(news) = self.said.news_of(&["failed", first_op], failed) else { return };
                let suppressed = news.suppressed();
                tracing::warn!(%shard, failed, suppressed, first_op, error, "store calls failed; the shard answers now");
            }
            None if seen.was_away => {
                tracing::info!(%shard, "the shard did not answer for a moment")
            }
            None => {}
        }
    }

    /// Whether the shard answers; not so when it says that it cannot be used.
    async fn ask(&self) -> Result<(), (Kind, Error)> {
        let (limit, begin) = (self.patience.claim, Instant::now());
        let answer = tokio::time::timeout(limit, self.store.unclaim(nothing())).await;
        let kind = kind(&answer, begin.elapsed());
        match answer {
            Ok(Err(error)) if !answers(&error) => Err((kind, error)),
            Ok(_) => Ok(()),
            Err(_) => Err((kind, Error::Unknown(format!("no answer within {limit:?}")))),
        }
    }

    /// The store is known not to answer, and has said so: nobody has to find out first.
    pub(super) fn begin_down(self: &Arc<Self>, error: &str) {
        if self.breaker.trip(error) {
            self.begin_probing(false);
        }
    }

    /// The breaker has just opened, by this error. What keeps a shard from working whatever is tried, its store has
    /// told, and tells when that is over.
    fn leave_alone(self: &Arc<Self>, error: &Error) {
        let is_told = !matches!(self.store.trouble(), Some(Trouble::Down(_)));
        if is_told {
            let (address, error) = (self.store.address(), words(error));
            tracing::warn!(
                shard = %self.name(), address, error,
                "the shard does not answer; its calls fail at once until it does; see whether it runs and can be reached"
            );
        }
        self.begin_probing(is_told);
    }

    /// `told`: the log was told, and is when it is over.
    fn begin_probing(self: &Arc<Self>, told: bool) {
        self.changed(true);
        self.doubt.settle();
        let events = self.store.events(About::Shard);
        tokio::spawn(Arc::clone(self).probe(events, told));
    }

    /// Asks, once at a time, until the shard answers or is closed. A shard that is heard of is asked at once: its
    /// hints may come back before the next pause is over. That makes no pause longer.
    async fn probe(self: Arc<Self>, mut events: broadcast::Receiver<Event>, told: bool) {
        let mut pause = pin!(tokio::time::sleep(self.breaker.pause()));
        loop {
            let is_over = tokio::select! {
                () = &mut pause => true,
                () = heard(&mut events) => false,
                () = self.closing.cancelled() => return,
            };
            match self.ask().await {
                Ok(()) => break,
                Err((kind, error)) => {
                    // What it says may have changed: nobody there, then somebody wrong. A probe without an answer
                    // says less than the call that had none.
                    if !error.outcome_unknown() {
                        self.breaker.failed(Access::Probe, kind, words(&error));
                    }
                    tracing::debug!(shard = %self.name(), %error, "the shard still does not answer");
                }
            }
            if is_over {
                pause.as_mut().reset(Instant::now() + self.breaker.pause());
            }
        }
        self.changed(false);
        self.breaker.close();
        if told {
            tracing::info!(shard = %self.name(), "the shard answers again");
        }
    }

    fn changed(&self, open: bool) {
        self.metrics.set_breaker_open(open);
        self.down.send_modify(|down| *down = if open { *down + 1 } else { *down - 1 });
    }
}

/// Waits for the next sign of life.
async fn heard(events: &mut broadcast::Receiver<Event>) {
    loop {
        match events.recv().await {
            Ok(Event::Lost) => {}
            Ok(_) | Err(RecvError::Lagged(_)) => return,
            Err(RecvError::Closed) => std::future::pending().await,
        }
    }
}

/// What a failure looks like that came, or did not come, after that time.
fn kind<T>(answer: &Result<T, Elapsed>, took: Duration) -> Kind {
    if answer.is_err() || took >= LATE { Kind::Late } else { Kind::Failed }
}

/// Whether a shard that says so answers for the rest.
fn answers(error: &Error) -> bool {
    match error {
        Error::Full(_) | Error::Corrupt(_) => true,
        Error::Unavailable(_) | Error::Unknown(_) => false,
    }
}

/// What the shard itself said.
fn words(error: &Error) -> &str {
    match error {
        Error::Full(text)
        | Error::Unavailable(text)
        | Error::Unknown(text)
        | Error::Corrupt(text) => text,
    }
}

/// A write that changes nothing, because no topic of a user has this name: a shard that can be read
/// but not written is no use.
fn nothing() -> Unclaim {
    let key = JobKey { topic: TopicName::stored("ringq.probe"), id: JobId::stored("probe") };
    Unclaim::Leases(vec![LeaseRef { key, token: Token(0) }])
}

#[cfg(test)]
mod tests {
    use std::cell::RefCell;
    use std::io;
    use std::sync::Once;

    use tokio::sync::oneshot;

    use crate::clock::Clock;
    use crate::domain::ring::ShardState;
    use crate::metrics::Metrics;
    use crate::shards::faulty::{Fault, Faulty};
    use crate::store::Events;

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

    fn guard(store: &Arc<Faulty>, patience: Patience) -> Arc<Guard> {
        let (shard, down) = (Arc::clone(store), watch::Sender::new(0));
        Arc::new(Guard::new(shard, Metrics::new().shard("s0"), patience, down))
    }

    fn hasty() -> Patience {
        Patience { probes: (10 * SOON, 10 * SOON), ..Patience::default() }
    }

    async fn call(guard: &Arc<Guard>, store: &Faulty) -> bool {
        guard.call(Op::Info, LATE_ENOUGH, store.info()).await.is_ok()
    }

    /// Waits until nobody asks any more whether the shard answers.
    async fn sure(guard: &Guard) {
        while !guard.doubt.is_none() {
            tokio::time::sleep(SOON).await;
        }
    }

    #[tokio::test]
    async fn one_call_that_fails_is_enough_to_find_out_that_nobody_answers() {
        let store = Faulty::new("s0", &Clock::system());
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
        let store = Faulty::new("s0", &Clock::system());
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
        for part in ["WARN store calls failed; the shard answers now", "failed=3 first_op=\"info\""]
        {
            assert!(lines[0].contains(part), "{part}: {lines:?}");
        }
    }

    #[tokio::test]
    async fn failures_of_a_shard_that_is_known_not_to_answer_are_told_no_more() {
        let store = Faulty::new("s0", &Clock::system());
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
        let store = Faulty::new("s0", &Clock::system());
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
        let store = Faulty::new("s0", &Clock::system());
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
        let (store, events) = (Faulty::new("s0", &Clock::system()), Events::new());
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
        let store = Faulty::new("s0", &Clock::system());
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
        let store = Faulty::new("s0", &Clock::system());
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
        let store = Faulty::new("s0", &Clock::system());
        let guard = guard(&store, Patience { probes: (late, late), ..Patience::default() });
        store.set(Fault::Refuses);
        while !guard.breaker().is_open() {
            assert!(!call(&guard, &store).await);
        }
        store.set(Fault::None);
        store.inner().set_state(ShardState::Active).await.unwrap();
        let closed = tokio::time::timeout(late / 3, guard.breaker().closed()).await;
        assert!(closed.is_ok(), "the pause went by");
    }
}
