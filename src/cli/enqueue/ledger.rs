//! Which lines are in, which are not, and which may be.

use std::fmt;

/// What became of the lines that were sent; they are told in order.
#[derive(Debug, Default)]
pub(super) struct Ledger {
    /// Surely enqueued, by this command or before it.
    enqueued: u64,
    /// Of these, the ones that were there already.
    unchanged: u64,
    /// Refused for themselves: a repeat would be refused again.
    refused: u64,
    /// Not enqueued.
    missing: Ranges,
    /// May be enqueued.
    unsure: Ranges,
    /// The last line that was answered.
    answered: u64,
    /// The last line that was sent.
    sent: u64,
}

/// Line numbers as people write them: `1-500, 777`.
#[derive(Debug, Default)]
struct Ranges(Vec<(u64, u64)>);

// === impl Ledger ===

impl Ledger {
    pub(super) fn sent(&mut self, line: u64) {
        self.sent = line;
    }

    pub(super) fn enqueued(&mut self, line: u64, was_there: bool) {
        self.answered = line;
        self.enqueued += 1;
        self.unchanged += u64::from(was_there);
    }

    pub(super) fn refused(&mut self, line: u64) {
        self.answered = line;
        self.refused += 1;
    }

    pub(super) fn failed(&mut self, line: u64, may_be_in: bool) {
        self.answered = line;
        if may_be_in { self.unsure.add(line) } else { self.missing.add(line) }
    }

    /// Nobody waits for the answers under way any more.
    pub(super) fn give_up(&mut self) {
        if self.sent > self.answered {
            self.unsure.0.push((self.answered + 1, self.sent));
            self.answered = self.sent;
        }
    }

    pub(super) fn any_refused(&self) -> bool {
        self.refused > 0
    }

    /// Whether there is anything to say about where the lines are.
    pub(super) fn is_begun(&self) -> bool {
        self.enqueued > 0 || !self.unsure.0.is_empty()
    }

    /// Lines that were answered.
    pub(super) fn count(&self) -> u64 {
        self.enqueued + self.refused
    }

    /// The line to go on from: before it all are in, or were refused.
    pub(super) fn resume(&self) -> u64 {
        let first = |ranges: &Ranges| ranges.0.first().map_or(u64::MAX, |(first, _)| *first);
        first(&self.missing).min(first(&self.unsure)).min(self.answered + 1)
    }

    /// What is where after an early end.
    pub(super) fn state(&self) -> String {
        let mut parts = vec![format!("surely enqueued: {} lines", self.enqueued)];
        if self.refused > 0 {
            parts.push(format!("refused: {}", self.refused));
        }
        if !self.unsure.0.is_empty() {
            parts.push(format!("may be enqueued: lines {}", self.unsure));
        }
        if !self.missing.0.is_empty() {
            parts.push(format!("not enqueued: lines {}", self.missing));
        }
        parts.push(format!("not sent: from line {} on", self.sent + 1));
        parts.join("; ")
    }
}

/// The last line of a whole run.
impl fmt::Display for Ledger {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} enqueued", self.enqueued)?;
        if self.unchanged > 0 {
            write!(f, ", {} of them were there already", self.unchanged)?;
        }
        if self.refused > 0 {
            write!(f, ", {} refused", self.refused)?;
        }
        Ok(())
    }
}

// === impl Ranges ===

impl Ranges {
    fn add(&mut self, line: u64) {
        match self.0.last_mut() {
            Some((_, last)) if *last + 1 == line => *last = line,
            _ => self.0.push((line, line)),
        }
    }
}

impl fmt::Display for Ranges {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, (first, last)) in self.0.iter().enumerate() {
            let comma = if index > 0 { ", " } else { "" };
            match first == last {
                true => write!(f, "{comma}{first}")?,
                false => write!(f, "{comma}{first}-{last}")?,
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_says_where_to_go_on() {
        let mut ledger = Ledger::default();
        assert_eq!(ledger.resume(), 1);
        (1..=3).for_each(|line| ledger.enqueued(line, line == 2));
        ledger.refused(4);
        assert_eq!(ledger.to_string(), "3 enqueued, 1 of them were there already, 1 refused");
        assert_eq!(ledger.resume(), 5);
        ledger.failed(6, true);
        ledger.failed(7, true);
        ledger.failed(8, false);
        ledger.enqueued(9, false);
        ledger.sent(12);
        ledger.give_up();
        assert_eq!(ledger.resume(), 6);
        assert_eq!(
            ledger.state(),
            "surely enqueued: 4 lines; refused: 1; may be enqueued: lines 6-7, 10-12; \
             not enqueued: lines 8; not sent: from line 13 on"
        );
    }
}
