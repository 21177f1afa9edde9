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
    /// The ids of lines that may be enqueued, where the server has named them.
    ids: Vec<(u64, String)>,
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
    /// May be enqueued, under an id that is known.
    Named,
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

    pub(super) fn missing(&mut self, line: u64) {
        self.add((line, line), Place::Missing);
    }

    pub(super) fn unsure(&mut self, line: u64, id: Option<&str>) {
        self.add((line, line), if id.is_some() { Place::Named } else { Place::Unsure });
        self.ids.extend(id.map(|id| (line, id.to_owned())));
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
        self.runs.iter().any(|run| !matches!(run.place, Place::Refused | Place::Missing))
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

    /// The lines in one of these places, in order, in as few ranges as there can be.
    pub(super) fn lines(&self, places: &[Place]) -> Vec<Lines> {
        let is_there = |run: &Run| places.contains(&run.place);
        let ranges = self.runs.chunk_by(|a, b| is_there(a) && is_there(b));
        let ranges = ranges.filter(|runs| is_there(&runs[0]));
        ranges.map(|runs| (runs[0].lines.0, runs[runs.len() - 1].lines.1)).collect()
    }

    /// Lines that may be enqueued, with their ids, in order.
    pub(super) fn ids(&self) -> &[(u64, String)] {
        &self.ids
    }

    /// The last line that was sent.
    pub(super) fn last(&self) -> u64 {
        self.sent
    }

    /// The first line that was not sent.
    pub(super) fn next(&self) -> u64 {
        self.sent + 1
    }

    /// What surely is not in and would not be refused: what is missing, and what was not sent, up to
    /// the end of the input (None) unless that was reached.
    pub(super) fn rest(&self, all_sent: bool) -> Vec<(u64, Option<u64>)> {
        let missing = self.lines(&[Place::Missing]).into_iter();
        let mut rest: Vec<_> = missing.map(|(first, last)| (first, Some(last))).collect();
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
        ledger.lines(&[place])
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
        ledger.unsure(6, None);
        ledger.unsure(7, Some("a"));
        ledger.missing(8);
        ledger.enqueued(9, false);
        ledger.unanswered((10, 12));
        assert_eq!((ledger.count(), ledger.count_enqueued(), ledger.count_unchanged()), (5, 4, 1));
        assert_eq!(lines(&ledger, Place::In), [(1, 4), (9, 9)]);
        assert_eq!(lines(&ledger, Place::Unsure), [(6, 6), (10, 12)]);
        assert_eq!(ledger.lines(&[Place::Unsure, Place::Named]), [(6, 7), (10, 12)]);
        assert_eq!(ledger.ids(), [(7, "a".to_owned())]);
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
        ledger.missing(8);
        ledger.refused(9);
        assert_eq!(lines(&ledger, Place::In), [(2, 7)]);
        assert_eq!(ledger.rest(false), [(8, Some(8)), (10, None)]);
        ledger.sent(10);
        ledger.missing(10);
        assert_eq!(ledger.rest(false), [(8, Some(8)), (10, None)]);
    }
}
