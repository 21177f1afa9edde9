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
    /// Why it is not known of some lines whether they are in, though the server answers.
    doubt: Option<Failure>,
    /// When that was heard first.
    doubt_since: Option<Instant>,
    /// Calls in a row that have brought in no line.
    barren: usize,
}

// === impl Stop ===

impl Stop {
    /// Nothing has happened yet; `calls` are under way at once.
    pub(super) fn new(calls: usize) -> Stop {
        let (failure, no_more) = (None, CancellationToken::new());
        Stop { calls, failure, no_more, doubt: None, doubt_since: None, barren: 0 }
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
        let is_first = self.doubt_since.is_none();
        self.doubt_since.get_or_insert_with(Instant::now);
        self.doubt.get_or_insert_with(|| Failure::new(exit::UNAVAILABLE, problem));
        is_first
    }

    /// Since when some line may be in.
    pub(super) fn doubt_since(&self) -> Option<Instant> {
        self.doubt_since
    }

    /// A call has brought in a line or none. When as many as are under way at once bring in none, those in doubt are
    /// why: it is not one shard alone that does not answer.
    pub(super) fn call_ended(&mut self, brought_in: bool) {
        self.barren = if brought_in { 0 } else { self.barren + 1 };
        if self.barren >= self.calls
            && let Some(doubt) = self.doubt.take()
        {
            self.halt(doubt);
        }
    }

    /// Why not all is well, if so.
    pub(super) fn failure(self) -> Option<Failure> {
        self.failure.or(self.doubt)
    }
}
