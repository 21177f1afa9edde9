//! Which lines are in, which are not, and which may be: the numbers. The words are in `account`.

/// What became of the lines that were sent; they are told in order.
#[derive(Debug, Default)]
pub(super) struct Ledger {
    /// Surely enqueued, by this command or before it.
    enqueued: u64,
    /// Of these, the ones that were there already.
    unchanged: u64,
    /// Refused for themselves: a repeat would be refused again.
    refused: u64,
    /// In order, without gaps but for empty lines.
    runs: Vec<Run>,
    /// The last line that was sent.
    sent: u64,
}

/// Lines that went the same way. Empty ones between them belong to it: they make no job.
#[derive(Clone, Copy, Debug)]
struct Run {
    lines: Lines,
    place: Place,
}

/// The first and the last one.
pub(super) type Lines = (u64, u64);

/// Where lines are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Place {
    /// Surely enqueued, but for refused ones among them, which would be many runs.
    In,
    /// Refused, before or between lines that are not in.
    Refused,
    /// May be enqueued.
    Unsure,
    /// Surely not enqueued.
    Missing,
}

// === impl Ledger ===

impl Ledger {
    pub(super) fn sent(&mut self, line: u64) {
        self.sent = line;
    }

    pub(super) fn enqueued(&mut self, line: u64, was_there: bool) {
        self.enqueued += 1;
        self.unchanged += u64::from(was_there);
        self.add((line, line), Place::In);
    }

    pub(super) fn refused(&mut self, line: u64) {
        self.refused += 1;
        let place = match self.runs.last() {
            Some(Run { place: Place::In, .. }) => Place::In,
            _ => Place::Refused,
        };
        self.add((line, line), place);
    }

    pub(super) fn failed(&mut self, line: u64, may_be_in: bool) {
        self.add((line, line), if may_be_in { Place::Unsure } else { Place::Missing });
    }

    /// Nobody waits for the answer to these any more.
    pub(super) fn unanswered(&mut self, lines: Lines) {
        self.add(lines, Place::Unsure);
    }

    fn add(&mut self, lines: Lines, place: Place) {
        match self.runs.last_mut().filter(|run| run.place == place) {
            Some(run) => run.lines.1 = lines.1,
            None => self.runs.push(Run { lines, place }),
        }
    }

    /// Whether any line went out.
    pub(super) fn is_begun(&self) -> bool {
        self.sent > 0
    }

    /// Whether there is anything to say about where the lines are.
    pub(super) fn is_any_in(&self) -> bool {
        self.runs.iter().any(|run| matches!(run.place, Place::In | Place::Unsure))
    }

    /// Lines that are done with.
    pub(super) fn count(&self) -> u64 {
        self.enqueued + self.refused
    }

    pub(super) fn count_enqueued(&self) -> u64 {
        self.enqueued
    }

    pub(super) fn count_unchanged(&self) -> u64 {
        self.unchanged
    }

    pub(super) fn count_refused(&self) -> u64 {
        self.refused
    }

    /// The lines in this place, in order.
    pub(super) fn lines(&self, place: Place) -> impl Iterator<Item = Lines> {
        self.runs.iter().filter(move |run| run.place == place).map(|run| run.lines)
    }

    /// The first line that was not sent.
    pub(super) fn next(&self) -> u64 {
        self.sent + 1
    }

    /// What surely is not in and would not be refused: what is missing, and what was not sent, up to
    /// the end of the input (None) unless that was reached.
    pub(super) fn rest(&self, all_sent: bool) -> Vec<(u64, Option<u64>)> {
        let mut rest: Vec<_> =
            self.lines(Place::Missing).map(|(first, last)| (first, Some(last))).collect();
        if all_sent {
            return rest;
        }
        // Nothing but empty lines is between the last run and the next line.
        let ends_missing = self.runs.last().is_some_and(|run| run.place == Place::Missing);
        match rest.last_mut().filter(|_| ends_missing) {
            Some((_, last)) => *last = None,
            None => rest.push((self.next(), None)),
        }
        rest
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lines(ledger: &Ledger, place: Place) -> Vec<Lines> {
        ledger.lines(place).collect()
    }

    /// Nothing that is in lies in the rest, wherever the lines went that could not be sent.
    #[test]
    fn the_rest_is_what_surely_is_not_in() {
        let mut ledger = Ledger::default();
        assert_eq!(ledger.rest(false), [(1, None)]);
        assert!(!ledger.is_begun() && !ledger.is_any_in());
        ledger.sent(12);
        (1..=3).for_each(|line| ledger.enqueued(line, line == 2));
        ledger.refused(4);
        assert_eq!(ledger.rest(false), [(13, None)]);
        ledger.failed(6, true);
        ledger.failed(7, true);
        ledger.failed(8, false);
        ledger.enqueued(9, false);
        ledger.unanswered((10, 12));
        assert_eq!((ledger.count(), ledger.count_enqueued(), ledger.count_unchanged()), (5, 4, 1));
        assert_eq!(lines(&ledger, Place::In), [(1, 4), (9, 9)]);
        assert_eq!(lines(&ledger, Place::Unsure), [(6, 7), (10, 12)]);
        assert_eq!(ledger.rest(false), [(8, Some(8)), (13, None)]);
        assert_eq!(ledger.rest(true), [(8, Some(8))]);
    }

    #[test]
    fn what_is_refused_does_not_break_up_what_is_in_and_is_not_sent_again() {
        let mut ledger = Ledger::default();
        ledger.sent(9);
        ledger.refused(1);
        for line in [2, 4, 6] {
            ledger.enqueued(line, false);
            ledger.refused(line + 1);
        }
        ledger.failed(8, false);
        ledger.refused(9);
        assert_eq!(lines(&ledger, Place::In), [(2, 7)]);
        assert_eq!(ledger.rest(false), [(8, Some(8)), (10, None)]);
        ledger.sent(10);
        ledger.failed(10, false);
        assert_eq!(ledger.rest(false), [(8, Some(8)), (10, None)]);
    }
}
