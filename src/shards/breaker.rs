//! When a shard that does not answer is left alone: after so many failures in a row its calls fail at
//! once, so that nobody waits for it and it is not overrun when it comes back. A single probe at a
//! time, with growing pauses, finds out when that is. Pure but for who waits for it.

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::watch;
use tokio::time::Instant;

use crate::pauses::Pauses;

/// Failures in a row that open a breaker: more than one lost connection takes with it.
const FAILURES_MAX: u32 = 5;
/// A call without any answer, or with a late one, counts as so many: two of them are enough, because
/// each has cost its callers a second and more.
const LATE: u32 = 3;
/// A shard that fails again so soon after its recovery is probed with the pauses of last time: it
/// answers probes, and nothing else.
const RELAPSE: Duration = Duration::from_secs(10);

/// See the module.
pub(super) struct Breaker {
    state: Mutex<State>,
    open: watch::Sender<bool>,
}

struct State {
    /// In a row, by what was asked for: a shard that can be read but not written answers every other
    /// call, and one to which only small messages get through answers every probe.
    failures: [u32; 3],
    error: String,
    pauses: Pauses,
    /// When it was closed last.
    closed: Option<Instant>,
}

/// What a call asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Access {
    Read,
    Write,
    /// Only whether it answers. It proves nothing of other calls.
    Probe,
}

/// What a failure looked like.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    /// It came at once.
    Failed,
    /// It took long, or nothing came at all.
    Late,
}

// === impl Breaker ===

impl Breaker {
    /// Closed, and with these pauses between two probes once it is not.
    pub(super) fn new(pauses: (Duration, Duration)) -> Breaker {
        let state = State {
            failures: [0; 3],
            error: String::new(),
            pauses: Pauses::new(pauses.0, pauses.1),
            closed: None,
        };
        Breaker { state: Mutex::new(state), open: watch::Sender::new(false) }
    }

    /// Whether calls fail at once.
    pub(super) fn is_open(&self) -> bool {
        *self.open.borrow()
    }

    /// Whether they did so at some time since then.
    pub(super) fn was_open_since(&self, begin: Instant) -> bool {
        self.is_open() || self.state().closed.is_some_and(|closed| closed >= begin)
    }

    /// What the shard said last, in vain.
    pub(super) fn error(&self) -> String {
        self.state().error.clone()
    }

    /// A call was answered.
    pub(super) fn succeeded(&self, access: Access) {
        // What began before the breaker opened proves nothing about now; the probe does.
        if !self.is_open() {
            self.state().failures[access as usize] = 0;
        }
    }

    /// A call failed. Answers whether that has just opened the breaker: the caller then probes.
    pub(super) fn failed(&self, access: Access, kind: Kind, error: &str) -> bool {
        let mut state = self.state();
        error.clone_into(&mut state.error);
        if self.is_open() {
            return false;
        }
        let failures = &mut state.failures[access as usize];
        *failures += if kind == Kind::Late { LATE } else { 1 };
        // A probe that fails confirms what calls have met.
        let [reads, writes, probes] = state.failures;
        let met = match access {
            Access::Read => reads,
            Access::Write => writes,
            Access::Probe => probes + reads.max(writes),
        };
        met >= FAILURES_MAX && self.open(&mut state)
    }

    /// The shard is known not to answer. Answers like [`Breaker::failed`].
    pub(super) fn trip(&self, error: &str) -> bool {
        let mut state = self.state();
        error.clone_into(&mut state.error);
        !self.is_open() && self.open(&mut state)
    }

    fn open(&self, state: &mut State) -> bool {
        if state.closed.is_none_or(|closed| closed.elapsed() > RELAPSE) {
            state.pauses.reset();
        }
        self.open.send_replace(true);
        true
    }

    /// How long to wait before the next probe.
    pub(super) fn pause(&self) -> Duration {
        self.state().pauses.pause()
    }

    /// A probe was answered.
    pub(super) fn close(&self) {
        let mut state = self.state();
        state.failures = [0; 3];
        state.closed = Some(Instant::now());
        self.open.send_replace(false);
    }

    /// Waits until it is closed.
    pub(super) async fn closed(&self) {
        // Fails only without a sender, and this is one.
        let _ = self.open.subscribe().wait_for(|open| !open).await;
    }

    /// Waits for the next time that it becomes closed.
    pub(super) async fn closes(&self) {
        let mut open = self.open.subscribe();
        if open.wait_for(|open| *open).await.is_ok() {
            let _ = open.wait_for(|open| !open).await;
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: Duration = Duration::from_millis(1);

    fn breaker() -> Breaker {
        Breaker::new((100 * MS, 1_600 * MS))
    }

    fn fail(breaker: &Breaker, times: u32) -> bool {
        (0..times).any(|_| breaker.failed(Access::Write, Kind::Failed, "no"))
    }

    #[test]
    fn failures_in_a_row_open_it_once_and_a_success_between_them_does_not_let_them() {
        let breaker = breaker();
        assert!(!fail(&breaker, FAILURES_MAX - 1));
        breaker.succeeded(Access::Write);
        assert!(!fail(&breaker, FAILURES_MAX - 1) && !breaker.is_open());
        breaker.succeeded(Access::Read);
        assert!(fail(&breaker, 1) && breaker.is_open());
        assert!(!fail(&breaker, 9), "one prober is enough");
        breaker.succeeded(Access::Write);
        assert!(breaker.is_open(), "a late answer proves nothing");
        breaker.close();
        assert!(!breaker.is_open() && !fail(&breaker, FAILURES_MAX - 1));
    }

    #[test]
    fn two_calls_without_an_answer_open_it() {
        let breaker = breaker();
        let late = || breaker.failed(Access::Read, Kind::Late, "late");
        assert!(!late() && late());
        assert_eq!(breaker.error(), "late");
    }

    #[test]
    fn a_probe_confirms_what_calls_have_met_and_takes_nothing_of_it_back() {
        let breaker = breaker();
        let late = |access| breaker.failed(access, Kind::Late, "late");
        assert!(!late(Access::Write));
        breaker.succeeded(Access::Probe);
        assert!(late(Access::Probe), "one that had no answer either");
    }

    #[tokio::test(start_paused = true)]
    async fn pauses_begin_anew_unless_it_relapses() {
        let breaker = breaker();
        for (between, longest) in [(MS, 100), (MS, 200), (RELAPSE + MS, 100)] {
            breaker.close();
            tokio::time::advance(between).await;
            assert!(fail(&breaker, FAILURES_MAX));
            let pause = breaker.pause();
            assert!((MS * longest / 2..=MS * longest).contains(&pause), "{pause:?}");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn whoever_waits_is_told() {
        let breaker = breaker();
        breaker.closed().await;
        fail(&breaker, FAILURES_MAX);
        let mut closed = Box::pin(breaker.closed());
        assert!(futures::poll!(closed.as_mut()).is_pending());
        breaker.close();
        closed.await;
    }
}
