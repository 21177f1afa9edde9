//! Why `--lines` ends before its input does.

use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::exit::{self, Failure};

/// Whether to go on, and if not, why.
pub(super) struct Stop {
    /// Calls that are under way at once.
    calls: usize,
    /// Why nothing more is sent.
    failure: Option<Failure>,
    /// Ends repeats: what they bring in lies behind a line that is not.
    no_more: CancellationToken,
    /// Why some lines are not in, or nobody knows whether they are, though the server answers.
    passed_over: Option<Failure>,
    /// When it was heard first that a line may be in.
    doubt_since: Option<Instant>,
    /// Whether it was heard that a line is left out.
    has_left_out: bool,
    /// Calls in a row that have brought in no line.
    barren: usize,
    /// Their lines.
    barren_lines: usize,
    /// Whether one of these may be in.
    barren_doubt: bool,
}

/// Lines for one shard of several may follow each other, a call for each where they come slowly; not so many.
const BARREN_LINES: usize = 100;

// === impl Stop ===

impl Stop {
    /// Nothing has happened yet; `calls` are under way at once.
    pub(super) fn new(calls: usize) -> Stop {
        Stop {
            calls,
            failure: None,
            no_more: CancellationToken::new(),
            passed_over: None,
            doubt_since: None,
            has_left_out: false,
            barren: 0,
            barren_lines: 0,
            barren_doubt: false,
        }
    }

    /// Whether nothing more is sent.
    pub(super) fn is_decided(&self) -> bool {
        self.failure.is_some()
    }

    /// Nothing more is sent: not what is still to be read, and no repeat.
    pub(super) fn halt(&mut self, failure: Failure) {
        self.failure.get_or_insert(failure);
        self.no_more.cancel();
    }

    /// Nothing more is read; what was sent may be repeated.
    pub(super) fn read_no_further(&mut self, failure: Failure) {
        self.failure.get_or_insert(failure);
    }

    /// Somebody wants it to end, with this exit code; why it had stopped before.
    pub(super) fn interrupt(&mut self, code: u8) -> Option<Failure> {
        let before = self.failure.take();
        let how = if code == exit::TERMINATED { "terminated" } else { "interrupted" };
        self.halt(Failure::new(code, how));
        before
    }

    /// Cancelled when nothing may be repeated any more.
    pub(super) fn no_more(&self) -> CancellationToken {
        self.no_more.clone()
    }

    /// A line may be in; whether that is heard for the first time.
    pub(super) fn doubt(&mut self, problem: &str) -> bool {
        self.barren_doubt = true;
        let is_first = self.doubt_since.is_none();
        self.doubt_since.get_or_insert_with(Instant::now);
        self.passed_over.get_or_insert_with(|| Failure::new(exit::UNAVAILABLE, problem));
        is_first
    }

    /// A line is not in, and others may be; whether that is heard for the first time.
    pub(super) fn left_out(&mut self, failure: Failure) -> bool {
        self.passed_over.get_or_insert(failure);
        !std::mem::replace(&mut self.has_left_out, true)
    }

    /// Since when some line may be in.
    pub(super) fn doubt_since(&self) -> Option<Instant> {
        self.doubt_since
    }

    /// A call of so many lines has brought in one or none. When as many as are under way at once bring in none, those
    /// that were passed over are why: it is not one shard alone that does not answer.
    pub(super) fn call_ended(&mut self, lines: usize, brought_in: bool) {
        if brought_in {
            (self.barren, self.barren_lines, self.barren_doubt) = (0, 0, false);
            return;
        }
        self.barren += 1;
        self.barren_lines += lines;
        // A line in doubt takes its time, one that is left out may take none.
        let enough = self.barren_doubt || self.barren_lines >= BARREN_LINES;
        if self.barren >= self.calls
            && enough
            && let Some(why) = self.passed_over.take()
        {
            self.halt(why);
        }
    }

    /// Why not all is well, if so.
    pub(super) fn failure(self) -> Option<Failure> {
        self.failure.or(self.passed_over)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const CALLS: usize = 8;

    /// A call of one line for a shard that is away.
    fn left_out(stop: &mut Stop) {
        stop.left_out(Failure::new(exit::UNAVAILABLE, "away"));
        stop.call_ended(1, false);
    }

    #[test]
    fn a_doubt_counts_until_a_line_gets_in() {
        let mut stop = Stop::new(CALLS);
        stop.doubt("unknown");
        stop.call_ended(1, false);
        stop.call_ended(1, true);
        (1..BARREN_LINES).for_each(|_| left_out(&mut stop));
        assert!(!stop.is_decided(), "these may all be for one shard of several");
        assert!(stop.doubt_since().is_some(), "the line is still in doubt");
        left_out(&mut stop);
        assert!(stop.is_decided());
    }

    #[test]
    fn as_many_calls_as_are_under_way_in_doubt_are_enough() {
        let mut stop = Stop::new(CALLS);
        for call in 1..=CALLS {
            stop.doubt("unknown");
            stop.call_ended(1, false);
            assert_eq!(stop.is_decided(), call == CALLS);
        }
    }
}
