//! The circuit breaker of a shard: after so many failures in a row its calls fail at once, so that no caller
//! waits for it and it is not overrun when it comes back. A single probe at a time, with growing pauses, finds
//! out when that is. Failures of reads open the breaker for reads alone: a shard that is slow to read still takes
//! writes. Pure but for the waiting tasks.

use std::sync::atomic::{AtomicBool, Ordering};
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
    /// For all calls.
    open: watch::Sender<bool>,
    /// For reads alone.
    reads_open: AtomicBool,
}

struct State {
    /// In a row, by what was asked for: a shard that can be read but not written answers every other
    /// call, and one to which only small messages get through answers every probe.
    failures: [u32; 4],
    error: String,
    /// The last error of a read.
    read_error: String,
    /// When a read was answered last.
    read: Option<Instant>,
    pauses: Pauses,
    read_pauses: Pauses,
    /// When it was closed last.
    closed: Option<Instant>,
}

/// What a call asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Access {
    /// What a user reads: long, or many at once.
    Read,
    /// A read that delivery, settles or upkeep depend on, or one with a time limit of its own. It is not refused
    /// while reads are, and its failures alone open nothing.
    Look,
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

/// What a failure has opened just now; the caller then probes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Opened {
    Nothing,
    /// Reads fail at once from now on.
    Reads,
    /// All calls do.
    All,
}

// === impl Breaker ===

impl Breaker {
    /// Closed, and with these pauses between two probes once it is not.
    pub(super) fn new(pauses: (Duration, Duration)) -> Breaker {
        let pauses = || Pauses::new(pauses.0, pauses.1);
        let state = State {
            failures: [0; 4],
            error: String::new(),
            read_error: String::new(),
            read: None,
            pauses: pauses(),
            read_pauses: pauses(),
            closed: None,
        };
        let (state, open) = (Mutex::new(state), watch::Sender::new(false));
        Breaker { state, open, reads_open: AtomicBool::new(false) }
    }

    /// Whether calls fail at once.
    pub(super) fn is_open(&self) -> bool {
        *self.open.borrow()
    }

    /// Whether reads fail at once.
    pub(super) fn is_open_for_reads(&self) -> bool {
        self.is_open() || self.reads_open.load(Ordering::Acquire)
    }

    /// Why a call of this kind fails at once, if it does.
    pub(super) fn refuses(&self, access: Access) -> Option<String> {
        if self.is_open() {
            Some(self.error())
        } else if access == Access::Read && self.is_open_for_reads() {
            Some(self.state().read_error.clone())
        } else {
            None
        }
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
            let mut state = self.state();
            state.failures[access as usize] = 0;
            if access == Access::Read {
                state.read = Some(Instant::now());
            }
        }
    }

    /// A call that began at `begin` failed.
    pub(super) fn failed(&self, access: Access, kind: Kind, error: &str, begin: Instant) -> Opened {
        let mut state = self.state();
        if access == Access::Read {
            error.clone_into(&mut state.read_error);
            // A read that is late while others are answered has waited in a queue behind them: the shard works.
            if kind == Kind::Late && state.read.is_some_and(|read| read >= begin) {
                return Opened::Nothing;
            }
        } else {
            error.clone_into(&mut state.error);
        }
        if self.is_open() {
            return Opened::Nothing;
        }
        state.failures[access as usize] += if kind == Kind::Late { LATE } else { 1 };
        let [reads, _, writes, probes] = state.failures;
        match access {
            Access::Read if reads >= FAILURES_MAX => self.open_reads(),
            Access::Read | Access::Look => Opened::Nothing,
            Access::Write if writes >= FAILURES_MAX => self.open(&mut state),
            // A probe that fails confirms what writes have met; where only reads fail it takes more of them.
            Access::Probe if probes + writes >= FAILURES_MAX => self.open(&mut state),
            Access::Write | Access::Probe => Opened::Nothing,
        }
    }

    /// The shard is known not to answer. Answers like [`Breaker::failed`].
    pub(super) fn trip(&self, error: &str) -> Opened {
        let mut state = self.state();
        error.clone_into(&mut state.error);
        if self.is_open() { Opened::Nothing } else { self.open(&mut state) }
    }

    fn open(&self, state: &mut State) -> Opened {
        if state.closed.is_none_or(|closed| closed.elapsed() > RELAPSE) {
            state.pauses.reset();
        }
        self.open.send_replace(true);
        Opened::All
    }

    fn open_reads(&self) -> Opened {
        if self.reads_open.swap(true, Ordering::AcqRel) { Opened::Nothing } else { Opened::Reads }
    }

    /// How long to wait before the next probe.
    pub(super) fn pause(&self) -> Duration {
        self.state().pauses.pause()
    }

    /// How long to wait before the next probe by a read.
    pub(super) fn read_pause(&self) -> Duration {
        self.state().read_pauses.pause()
    }

    /// A probe by a read was answered.
    pub(super) fn close_reads(&self) {
        let mut state = self.state();
        state.failures[Access::Read as usize] = 0;
        state.read_pauses.reset();
        self.reads_open.store(false, Ordering::Release);
    }

    /// A probe was answered.
    pub(super) fn close(&self) {
        let mut state = self.state();
        state.failures = [0; 4];
        state.closed = Some(Instant::now());
        // Whether it can be read is seen by the next reads.
        self.reads_open.store(false, Ordering::Release);
        self.open.send_replace(false);
    }

    /// Waits until it is closed.
    pub(super) async fn closed(&self) {
        // Fails only without a sender, and this is one.
        let _ = self.open.subscribe().wait_for(|open| !open).await;
    }

    /// Waits for the next time that it opens, and says by which error.
    pub(super) async fn opens(&self) -> String {
        let mut open = self.open.subscribe();
        if open.wait_for(|open| !*open).await.is_ok() {
            let _ = open.wait_for(|open| *open).await;
        }
        self.error()
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
        let failed = || breaker.failed(Access::Write, Kind::Failed, "no", Instant::now());
        (0..times).any(|_| failed() == Opened::All)
    }

    /// What so many failures open.
    fn opened(breaker: &Breaker, access: Access, kind: Kind, times: u32) -> Vec<Opened> {
        let failed = |_| breaker.failed(access, kind, "no", Instant::now());
        (0..times).map(failed).filter(|opened| *opened != Opened::Nothing).collect()
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
    fn failures_of_one_access_refuse_calls_by_what_they_ask_for() {
        use Access::{Look, Probe, Read, Write};
        for kind in [Kind::Failed, Kind::Late] {
            for (failing, opens, refused) in [
                (Read, vec![Opened::Reads], &[Read][..]),
                (Look, vec![], &[]),
                (Write, vec![Opened::All], &[Read, Look, Write]),
                (Probe, vec![Opened::All], &[Read, Look, Write]),
            ] {
                let breaker = breaker();
                assert_eq!(opened(&breaker, failing, kind, 2 * FAILURES_MAX), opens, "{failing:?}");
                for asked in [Read, Look, Write] {
                    let is_refused = breaker.refuses(asked).is_some();
                    assert_eq!(is_refused, refused.contains(&asked), "{failing:?} {asked:?}");
                }
                // No answer of another kind makes up for what failed, and none takes it back.
                for other in [Read, Look, Write].into_iter().filter(|other| *other != failing) {
                    breaker.succeeded(other);
                    let is_refused = breaker.refuses(Read).is_some();
                    assert_eq!(is_refused, refused.contains(&Read), "{failing:?} {other:?}");
                }
            }
        }
    }

    #[test]
    fn two_calls_without_an_answer_open_it() {
        let breaker = breaker();
        assert_eq!(opened(&breaker, Access::Write, Kind::Late, 1), []);
        assert_eq!(opened(&breaker, Access::Write, Kind::Late, 1), [Opened::All]);
        assert_eq!(breaker.error(), "no");
    }

    #[test]
    fn reads_that_are_late_while_others_are_answered_open_nothing() {
        let (breaker, begin) = (breaker(), Instant::now());
        breaker.succeeded(Access::Read);
        for _ in 0..99 {
            let opened = breaker.failed(Access::Read, Kind::Late, "late", begin);
            assert_eq!(opened, Opened::Nothing);
        }
        assert_eq!(opened(&breaker, Access::Read, Kind::Late, 2), [Opened::Reads]);
        breaker.close_reads();
        assert!(!breaker.is_open_for_reads());
        assert_eq!(opened(&breaker, Access::Read, Kind::Late, 1), []);
    }

    #[test]
    fn reads_that_fail_and_one_slow_probe_refuse_no_write() {
        for access in [Access::Read, Access::Look] {
            let breaker = breaker();
            opened(&breaker, access, Kind::Late, 9);
            assert_eq!(opened(&breaker, Access::Probe, Kind::Late, 1), [], "{access:?}");
            assert_eq!(opened(&breaker, Access::Probe, Kind::Late, 1), [Opened::All], "{access:?}");
        }
    }

    #[test]
    fn a_probe_confirms_what_calls_have_met_and_takes_nothing_of_it_back() {
        let breaker = breaker();
        let late = |access| breaker.failed(access, Kind::Late, "late", Instant::now());
        assert_eq!(late(Access::Write), Opened::Nothing);
        breaker.succeeded(Access::Probe);
        assert_eq!(late(Access::Probe), Opened::All, "one that had no answer either");
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
