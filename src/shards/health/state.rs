//! The state machine of a shard's health, without input or output.

use std::time::Duration;

use tokio::time::Instant;

use crate::backoff::{Backoff, BackoffRange};

use super::super::op::{Access, Op};

/// Number of failures in a row that take a shard out of use: more than one lost connection causes.
const FAILURES_MAX: u32 = 5;
/// Number of failures for which a call without an answer, or with a late one, counts: each has cost its callers a
/// second and more, so two of them are enough.
const SLOW_FAILURE_WEIGHT: u32 = 3;
/// Time after a recovery within which a failure is a relapse: the shard answers probes and nothing else. Pauses
/// between probes then continue from the last time.
const RELAPSE: Duration = Duration::from_secs(10);

/// Kind of failure of a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum FailureKind {
    /// Failed at once.
    Fast,
    /// Failed late, or without an answer.
    Slow,
}

/// Change that a failure caused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum BreakerChange {
    None,
    /// Reads are refused from now on.
    ReadsRefused,
    /// All calls are refused from now on.
    Down,
}

/// Result of a probe.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum ProbeOutcome {
    /// A shard that was down is in use again.
    Recovered,
    /// A shard in use answers.
    Answered(FailedCalls),
    /// The shard does not answer.
    Failed(BreakerChange),
}

/// Calls that failed since a shard in use last answered a probe.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct FailedCalls {
    /// Number of failed calls.
    pub(super) count: u64,
    /// Verb and error of the first one.
    pub(super) first: Option<(Op, String)>,
    /// True if a probe failed too.
    pub(super) probe_failed: bool,
}

/// State machine of a circuit breaker, see [`super`] for the diagram.
pub(super) struct BreakerState {
    /// Number of failures in a row, by [`Access`]: a shard that can be read but not written answers every other call,
    /// and one that receives only small messages answers every probe.
    failures: [u32; 4],
    /// Reason why all calls are refused, if they are.
    down: Option<String>,
    /// Reason why reads are refused, if they are.
    reads_refused: Option<String>,
    /// True while a task probes whether reads are answered again.
    probes_reads: bool,
    /// Time of the last recovery.
    last_recovery: Option<Instant>,
    /// Time of the last answered read.
    last_read_answer: Option<Instant>,
    /// Calls that failed since the last answered probe.
    failed: FailedCalls,
    pauses: Backoff,
    pause_min: Duration,
    /// Time of the next probe; `None`: no probe is due.
    next_probe: Option<Instant>,
    /// Time when the last probe ended.
    last_probe_end: Option<Instant>,
    /// Set while a probe is in flight: whether it began while the shard was down.
    probe_began_down: Option<bool>,
}

// === impl BreakerState ===

impl BreakerState {
    /// Creates the state of a shard in use; `pauses`: between two probes once it is down.
    pub(super) fn new(pauses: BackoffRange) -> BreakerState {
        BreakerState {
            failures: [0; 4],
            down: None,
            reads_refused: None,
            probes_reads: false,
            last_recovery: None,
            last_read_answer: None,
            failed: FailedCalls::default(),
            pauses: Backoff::new(pauses),
            pause_min: pauses.min,
            next_probe: None,
            last_probe_end: None,
            probe_began_down: None,
        }
    }

    pub(super) fn down(&self) -> Option<&str> {
        self.down.as_deref()
    }

    pub(super) fn reads_refused(&self) -> Option<&str> {
        self.reads_refused.as_deref()
    }

    /// Records an answered call.
    pub(super) fn record_success(&mut self, access: Access) {
        // A call that began before the shard was taken out of use proves nothing about now; a probe does.
        if self.down.is_some() {
            return;
        }
        self.failures[access as usize] = 0;
        if access == Access::Read {
            self.last_read_answer = Some(Instant::now());
        }
    }

    /// Records a failure of a call that began at `begin`, and schedules a probe: the next call may be seconds away.
    pub(super) fn record_failure(
        &mut self,
        op: Op,
        kind: FailureKind,
        error: &str,
        begin: Instant,
    ) -> BreakerChange {
        // A call that began before the shard recovered was lost to the former failure.
        if self.last_recovery.is_some_and(|recovered| begin < recovered) {
            return BreakerChange::None;
        }
        let change = self.count(op.access(), kind, error, begin);
        if self.down.is_none() {
            self.schedule_probe();
            self.failed.count += 1;
            self.failed.first.get_or_insert_with(|| (op, error.to_owned()));
        }
        change
    }

    fn count(
        &mut self,
        access: Access,
        kind: FailureKind,
        error: &str,
        begin: Instant,
    ) -> BreakerChange {
        // A read that is late while others are answered has waited behind them: the shard works.
        let is_queued = access == Access::Read
            && kind == FailureKind::Slow
            && self.last_read_answer.is_some_and(|read| read >= begin);
        if is_queued {
            return BreakerChange::None;
        }
        if let Some(down) = &mut self.down {
            if access != Access::Read {
                error.clone_into(down);
            }
            return BreakerChange::None;
        }
        self.failures[access as usize] +=
            if kind == FailureKind::Slow { SLOW_FAILURE_WEIGHT } else { 1 };
        let [reads, _, writes, probes] = self.failures;
        match access {
            Access::Read if reads >= FAILURES_MAX && self.reads_refused.is_none() => {
                self.reads_refused = Some(error.to_owned());
                BreakerChange::ReadsRefused
            }
            Access::Write if writes >= FAILURES_MAX => self.take_down(error),
            // A failed probe confirms failures of writes; where only reads fail, more failed probes are needed.
            Access::Probe if probes + writes >= FAILURES_MAX => self.take_down(error),
            _ => BreakerChange::None,
        }
    }

    /// Refuses all calls.
    pub(super) fn take_down(&mut self, error: &str) -> BreakerChange {
        if self.last_recovery.is_none_or(|recovered| recovered.elapsed() > RELAPSE) {
            self.pauses.reset();
        }
        self.down = Some(error.to_owned());
        self.failed = FailedCalls::default();
        self.next_probe = Some(Instant::now() + self.pauses.next_delay());
        BreakerChange::Down
    }

    /// Schedules a probe of a shard in use. Also after an answer there is a pause: where one call in two fails,
    /// probes would follow each other for ever.
    pub(super) fn schedule_probe(&mut self) {
        if self.down.is_none() {
            let soon =
                self.last_probe_end.map_or_else(Instant::now, |probed| probed + self.pause_min);
            self.next_probe.get_or_insert(soon);
        }
    }

    /// Schedules a probe at once, after a sign of life of a shard that is down.
    pub(super) fn probe_now(&mut self) {
        if self.down.is_some() {
            self.next_probe = Some(Instant::now());
        }
    }

    /// Returns the time of the next probe.
    pub(super) fn next_probe(&self) -> Option<Instant> {
        self.next_probe
    }

    /// Records the begin of a probe. Reasons for another one count from now on.
    pub(super) fn begin_probe(&mut self) {
        (self.next_probe, self.probe_began_down) = (None, Some(self.down.is_some()));
    }

    /// Records the end of the probe that began at `begin`. A failure has its kind, its error, and whether the shard
    /// itself returned that.
    pub(super) fn end_probe(
        &mut self,
        answer: Result<(), (FailureKind, &str, bool)>,
        begin: Instant,
    ) -> ProbeOutcome {
        let was_down = self.probe_began_down.take().unwrap_or_default();
        let is_down = self.down.is_some();
        self.last_probe_end = Some(Instant::now());
        if answer.is_ok() && is_down && was_down {
            self.recover();
            return ProbeOutcome::Recovered;
        }
        if is_down && self.next_probe.is_none() {
            self.next_probe = Some(Instant::now() + self.pauses.next_delay());
        } else if !is_down && self.next_probe.is_some() {
            self.next_probe = Some(Instant::now() + self.pause_min);
        }
        match answer {
            // Calls have taken it down meanwhile: the next probe shows whether it still is.
            Ok(()) if is_down => ProbeOutcome::Failed(BreakerChange::None),
            Ok(()) => {
                self.record_success(Access::Probe);
                ProbeOutcome::Answered(std::mem::take(&mut self.failed))
            }
            // A probe without an answer explains less than the error that is stored.
            Err((.., false)) if is_down => ProbeOutcome::Failed(BreakerChange::None),
            Err((kind, error, _)) => {
                self.failed.probe_failed = true;
                let change = self.count(Access::Probe, kind, error, begin);
                self.schedule_probe();
                ProbeOutcome::Failed(change)
            }
        }
    }

    /// Returns whether a probe is due or in flight though the shard is in use.
    #[cfg(test)]
    pub(super) fn is_being_probed(&self) -> bool {
        self.down.is_none() && (self.next_probe.is_some() || self.probe_began_down.is_some())
    }

    /// Returns whether to start a task that probes reads: there is one at most, however often reads are refused.
    pub(super) fn begin_read_probes(&mut self) -> bool {
        !std::mem::replace(&mut self.probes_reads, true)
    }

    /// Ends the task that probes reads, unless reads are refused. Returns whether it ends.
    pub(super) fn end_read_probes(&mut self) -> bool {
        self.probes_reads = self.reads_refused.is_some();
        !self.probes_reads
    }

    /// Records an answered probe by a read: reads are not refused any more.
    pub(super) fn accept_reads(&mut self) {
        self.failures[Access::Read as usize] = 0;
        self.reads_refused = None;
    }

    /// Puts the shard back in use. The next reads show whether it can be read.
    fn recover(&mut self) {
        self.failures = [0; 4];
        self.last_recovery = Some(Instant::now());
        (self.down, self.reads_refused, self.next_probe) = (None, None, None);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: Duration = Duration::from_millis(1);
    const CALLS: [Op; 3] = [Op::Get, Op::Topics, Op::Claim];

    fn state() -> BreakerState {
        BreakerState::new(BackoffRange { min: 100 * MS, max: 1_600 * MS })
    }

    /// Applies `times` failures of `op`, or of probes without `op`. Returns the changes.
    fn fail(
        state: &mut BreakerState,
        op: Option<Op>,
        kind: FailureKind,
        times: u32,
    ) -> Vec<BreakerChange> {
        let mut changes = Vec::new();
        for _ in 0..times {
            changes.push(match op {
                Some(op) => state.record_failure(op, kind, "no", Instant::now()),
                None => state.count(Access::Probe, kind, "no", Instant::now()),
            });
        }
        changes.retain(|change| *change != BreakerChange::None);
        changes
    }

    fn probe(
        state: &mut BreakerState,
        answer: Result<(), (FailureKind, &str, bool)>,
    ) -> ProbeOutcome {
        state.begin_probe();
        state.end_probe(answer, Instant::now())
    }

    fn refuses(state: &BreakerState, op: Op) -> bool {
        state.down().is_some() || op.access() == Access::Read && state.reads_refused().is_some()
    }

    #[test]
    fn failures_in_a_row_take_it_down_once_and_a_success_between_them_counts_anew() {
        let (mut state, claim) = (state(), Some(Op::Claim));
        assert_eq!(fail(&mut state, claim, FailureKind::Fast, FAILURES_MAX - 1), []);
        state.record_success(Access::Write);
        assert_eq!(fail(&mut state, claim, FailureKind::Fast, FAILURES_MAX - 1), []);
        state.record_success(Access::Read);
        assert_eq!(fail(&mut state, claim, FailureKind::Fast, 9), [BreakerChange::Down]);
        state.record_success(Access::Write);
        assert!(state.down().is_some(), "a late answer proves nothing");
        assert_eq!(probe(&mut state, Ok(())), ProbeOutcome::Recovered);
        assert_eq!(fail(&mut state, claim, FailureKind::Fast, FAILURES_MAX - 1), []);
    }

    #[test]
    fn failures_of_one_access_refuse_calls_by_what_they_ask_for() {
        for kind in [FailureKind::Fast, FailureKind::Slow] {
            for (failing, changes, refused) in [
                (Some(Op::Get), vec![BreakerChange::ReadsRefused], &[Op::Get][..]),
                (Some(Op::Topics), vec![], &[]),
                (Some(Op::Claim), vec![BreakerChange::Down], &CALLS),
                (None, vec![BreakerChange::Down], &CALLS),
            ] {
                let mut state = state();
                assert_eq!(fail(&mut state, failing, kind, 2 * FAILURES_MAX), changes);
                // An answer of another kind neither offsets these failures nor ends the refusal.
                for other in CALLS.into_iter().filter(|other| Some(*other) != failing) {
                    state.record_success(other.access());
                }
                for asked in CALLS {
                    let is_refused = refuses(&state, asked);
                    assert_eq!(is_refused, refused.contains(&asked), "{failing:?} {asked:?}");
                }
            }
        }
    }

    #[test]
    fn two_calls_without_an_answer_take_it_down() {
        let mut state = state();
        assert_eq!(fail(&mut state, Some(Op::Claim), FailureKind::Slow, 1), []);
        assert_eq!(fail(&mut state, Some(Op::Claim), FailureKind::Slow, 1), [BreakerChange::Down]);
        assert_eq!(state.down(), Some("no"));
    }

    #[test]
    fn reads_that_are_late_while_others_are_answered_refuse_nothing() {
        let (mut state, begin) = (state(), Instant::now());
        state.record_success(Access::Read);
        for _ in 0..99 {
            assert_eq!(
                state.record_failure(Op::Get, FailureKind::Slow, "late", begin),
                BreakerChange::None
            );
        }
        assert_eq!(
            fail(&mut state, Some(Op::Get), FailureKind::Slow, 2),
            [BreakerChange::ReadsRefused]
        );
        state.accept_reads();
        assert_eq!(state.reads_refused(), None);
        assert_eq!(fail(&mut state, Some(Op::Get), FailureKind::Slow, 1), []);
    }

    #[test]
    fn one_task_at_a_time_probes_reads() {
        let mut state = state();
        for _ in 0..3 {
            fail(&mut state, Some(Op::Get), FailureKind::Fast, FAILURES_MAX);
            assert!(state.begin_read_probes());
            fail(&mut state, Some(Op::Claim), FailureKind::Fast, FAILURES_MAX);
            assert_eq!(probe(&mut state, Ok(())), ProbeOutcome::Recovered);
            fail(&mut state, Some(Op::Get), FailureKind::Fast, FAILURES_MAX);
            assert!(!state.begin_read_probes(), "the former task goes on");
            assert!(!state.end_read_probes());
            state.accept_reads();
            assert!(state.end_read_probes());
        }
    }

    #[test]
    fn reads_that_fail_and_one_slow_probe_refuse_no_write() {
        for op in [Op::Get, Op::Topics] {
            let mut state = state();
            fail(&mut state, Some(op), FailureKind::Slow, 9);
            assert_eq!(fail(&mut state, None, FailureKind::Slow, 1), [], "{op:?}");
            assert_eq!(fail(&mut state, None, FailureKind::Slow, 1), [BreakerChange::Down]);
        }
    }

    #[test]
    fn a_probe_adds_to_counted_failures_and_clears_none() {
        let mut state = state();
        assert_eq!(fail(&mut state, Some(Op::Claim), FailureKind::Slow, 1), []);
        assert!(matches!(probe(&mut state, Ok(())), ProbeOutcome::Answered(_)));
        let late = probe(&mut state, Err((FailureKind::Slow, "late", false)));
        assert_eq!(
            late,
            ProbeOutcome::Failed(BreakerChange::Down),
            "one that had no answer either"
        );
    }

    #[tokio::test(start_paused = true)]
    async fn calls_that_began_before_a_recovery_do_not_take_the_shard_down_again() {
        let (mut state, begin) = (state(), Instant::now());
        assert_eq!(fail(&mut state, Some(Op::Claim), FailureKind::Slow, 2), [BreakerChange::Down]);
        tokio::time::advance(MS).await;
        assert_eq!(probe(&mut state, Ok(())), ProbeOutcome::Recovered);
        for op in CALLS {
            for _ in 0..FAILURES_MAX {
                assert_eq!(
                    state.record_failure(op, FailureKind::Slow, "no", begin),
                    BreakerChange::None,
                    "{op:?}"
                );
            }
        }
        assert!(!state.is_being_probed());
        assert_eq!(fail(&mut state, Some(Op::Claim), FailureKind::Slow, 2), [BreakerChange::Down]);
    }

    #[tokio::test(start_paused = true)]
    async fn a_suspected_shard_is_probed_until_there_is_no_new_reason() {
        let mut state = state();
        let is_due = |state: &BreakerState| state.next_probe().map(|next| next <= Instant::now());
        assert_eq!(is_due(&state), None);
        state.schedule_probe();
        assert_eq!(is_due(&state), Some(true), "at once");
        state.begin_probe();
        fail(&mut state, Some(Op::Heartbeat), FailureKind::Fast, 1);
        fail(&mut state, Some(Op::Claim), FailureKind::Fast, 1);
        state.end_probe(Err((FailureKind::Fast, "no", true)), Instant::now());
        tokio::time::advance(100 * MS).await;
        assert_eq!(is_due(&state), Some(true));
        let first = Some((Op::Heartbeat, "no".to_owned()));
        let failed = FailedCalls { count: 2, first, probe_failed: true };
        assert_eq!(probe(&mut state, Ok(())), ProbeOutcome::Answered(failed));
        assert_eq!(is_due(&state), None);
        fail(&mut state, Some(Op::Heartbeat), FailureKind::Fast, 1);
        assert_eq!(is_due(&state), Some(false), "after a pause");
    }

    #[tokio::test(start_paused = true)]
    async fn a_shard_that_is_down_is_probed_with_pauses_and_when_it_shows_life() {
        let mut state = state();
        // A relapse continues with the pauses of the last time.
        for (between, longest) in [(MS, 100), (MS, 200), (RELAPSE + MS, 100)] {
            probe(&mut state, Ok(()));
            tokio::time::advance(between).await;
            fail(&mut state, Some(Op::Claim), FailureKind::Fast, FAILURES_MAX);
            let pause = state.next_probe().unwrap().duration_since(Instant::now());
            assert!((MS * longest / 2..=MS * longest).contains(&pause), "{pause:?}");
        }
        state.probe_now();
        assert_eq!(state.next_probe(), Some(Instant::now()));
        let answered = probe(&mut state, Err((FailureKind::Fast, "it loads", true)));
        assert_eq!(
            (answered, state.down()),
            (ProbeOutcome::Failed(BreakerChange::None), Some("it loads"))
        );
        let silent = probe(&mut state, Err((FailureKind::Slow, "no answer", false)));
        assert_eq!(
            (silent, state.down()),
            (ProbeOutcome::Failed(BreakerChange::None), Some("it loads"))
        );
        assert!(state.next_probe().is_some_and(|next| next > Instant::now()));
    }

    #[test]
    fn an_answer_to_a_probe_that_began_before_it_went_down_does_not_bring_it_back() {
        let mut state = state();
        state.begin_probe();
        fail(&mut state, Some(Op::Claim), FailureKind::Fast, FAILURES_MAX);
        let probed = state.end_probe(Ok(()), Instant::now());
        assert_eq!((probed, state.down()), (ProbeOutcome::Failed(BreakerChange::None), Some("no")));
    }
}
