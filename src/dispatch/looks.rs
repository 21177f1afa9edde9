//! What a feed looks at beside its claims: which topics there are, for globs; and whether topics that sleep have
//! something, where wake-ups can be lost. Each look is one bounded call, and a claim comes between two of them, so
//! that no number of topics holds up deliveries.

use std::time::Duration;

use crate::clock::Clock;
use crate::domain::{TopicName, limit};

use super::reminder::Reminder;

/// Time between two rounds of looks, where wake-ups can be lost.
const ROUND: Duration = Duration::from_secs(1);
/// What the looks of a round cost the shard at most, in quarters of a millisecond, for every replica; some hundred topics
/// need no more than one or two.
const COST_MAX: u32 = 32;
/// Of a page of names, and of a part of the topics that sleep.
const PAGE_COST: u32 = 1;
const ASK_COST: u32 = 2;
/// So many rounds, and the names of all topics are read again, because of new ones.
const ROUNDS_PER_READ: u32 = 10;

/// See the module.
pub(super) struct Looks {
    reminder: Reminder,
    rounds: u32,
    /// What is left to the looks of this round.
    left: u32,
    /// Topics that sleep and are still to be asked about.
    asleep: usize,
    reading: Option<Reading>,
    /// Streams wait for what is read, or wake-ups were missed: these looks do not wait for the next round.
    is_urgent: bool,
    /// The last call was a look, so a claim comes first.
    looked: bool,
}

/// A look at all topics of a shard, by name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Reading {
    /// The last name so far.
    pub(super) after: Option<TopicName>,
    /// Also topics that are known are asked for jobs.
    pub(super) all: bool,
}

/// The next call.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Look {
    /// A page of the topics that exist.
    Topics(Reading),
    /// A part of the topics that sleep.
    Sleepers,
}

// === impl Looks ===

impl Looks {
    /// Nothing to look at before the first round.
    pub(super) fn new(clock: &Clock) -> Looks {
        Looks {
            reminder: Reminder::new(clock, ROUND),
            rounds: 0,
            left: 0,
            asleep: 0,
            reading: None,
            is_urgent: false,
            looked: false,
        }
    }

    /// Reads the names of all topics at once.
    pub(super) fn read_now(&mut self, all: bool) {
        self.reading = Some(Reading { after: None, all });
        self.is_urgent = true;
    }

    /// Asks about so many topics that sleep at once.
    pub(super) fn ask_now(&mut self, asleep: usize) {
        self.asleep = asleep;
        self.is_urgent = true;
    }

    /// Whether streams wait for the names of topics.
    pub(super) fn is_reading_now(&self) -> bool {
        self.is_urgent && self.reading.is_some()
    }

    /// Whether the next round is due.
    pub(super) fn is_due(&self) -> bool {
        self.reminder.is_due()
    }

    /// Waits until the next round is due.
    pub(super) async fn due(&mut self) {
        self.reminder.due().await;
    }

    /// Begins a round: so many topics sleep, and what the last round left of them counts as asked about; `globs`: some
    /// stream means topics that it does not name.
    pub(super) fn begin(&mut self, asleep: usize, globs: bool) {
        self.reminder.put_off();
        self.left = COST_MAX;
        if !self.is_urgent {
            self.asleep = asleep;
        }
        self.rounds = (self.rounds + 1) % ROUNDS_PER_READ;
        if self.rounds == 0 && globs && self.reading.is_none() {
            self.reading = Some(Reading { after: None, all: false });
        }
    }

    /// The next look, unless a claim comes first.
    pub(super) fn next(&mut self) -> Option<Look> {
        if std::mem::take(&mut self.looked) || !self.has_more() {
            return None;
        }
        // One part of those that sleep, and as much of the names.
        let is_turn = !self.is_urgent && self.left.is_multiple_of(2 * ASK_COST);
        let (look, cost) = match &self.reading {
            Some(reading) if !(is_turn && self.asleep > 0) => {
                (Look::Topics(reading.clone()), PAGE_COST)
            }
            _ => (Look::Sleepers, ASK_COST),
        };
        if !self.is_urgent {
            self.left = self.left.saturating_sub(cost);
        }
        self.looked = true;
        Some(look)
    }

    /// Whether there is a look to be made now.
    pub(super) fn has_more(&self) -> bool {
        (self.is_urgent || self.left > 0) && (self.reading.is_some() || self.asleep > 0)
    }

    /// A page was read that ends with this name; with none it was the last one.
    pub(super) fn read(&mut self, last: Option<TopicName>) {
        let all = self.reading.as_ref().is_some_and(|reading| reading.all);
        self.reading = last.map(|last| Reading { after: Some(last), all });
        self.calm_down();
    }

    /// So many topics were asked about; with less than a call takes there were no more.
    pub(super) fn asked(&mut self, topics: usize) {
        let is_full = topics >= limit::PART_MAX;
        self.asleep = if is_full { self.asleep.saturating_sub(topics) } else { 0 };
        self.calm_down();
    }

    /// A look brought nothing: the next round goes on with it.
    pub(super) fn failed(&mut self) {
        (self.left, self.is_urgent) = (0, false);
    }

    fn calm_down(&mut self) {
        self.is_urgent &= self.reading.is_some() || self.asleep > 0;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::clock::ManualClock;
    use crate::domain::Time;

    fn looks() -> Looks {
        Looks::new(&Clock::Manual(ManualClock::new(Time(0))))
    }

    /// Makes looks until a claim comes first or there is nothing more; how many there were.
    fn run(looks: &mut Looks) -> usize {
        let mut count = 0;
        while let Some(look) = looks.next() {
            count += 1;
            match look {
                Look::Topics(_) => looks.read(Some(TopicName::stored("t"))),
                Look::Sleepers => looks.asked(limit::PART_MAX),
            }
        }
        count
    }

    #[test]
    fn a_claim_comes_between_two_looks_whatever_there_is_to_look_at() {
        let mut looks = looks();
        looks.read_now(true);
        looks.ask_now(1_000_000);
        looks.begin(1_000_000, true);
        for _ in 0..100 {
            assert_eq!(run(&mut looks), 1);
        }
        assert!(looks.is_reading_now() && looks.has_more());
    }

    #[test]
    fn a_round_has_so_many_looks_at_most_and_no_more_than_are_needed() {
        for (asleep, wanted) in [(0, 0), (1, 1), (256, 1), (257, 2), (5_000, 16), (1_000_000, 16)] {
            let mut looks = looks();
            looks.begin(asleep, false);
            let mut made = 0;
            while looks.has_more() {
                made += run(&mut looks);
            }
            assert_eq!(made, wanted, "{asleep}");
        }
    }

    #[test]
    fn names_are_read_and_sleepers_asked_about_in_turns() {
        let mut looks = looks();
        (0..ROUNDS_PER_READ).for_each(|_| looks.begin(1_000_000, true));
        let (mut topics, mut sleepers) = (0, 0);
        while looks.has_more() {
            match looks.next() {
                Some(Look::Topics(_)) => {
                    topics += 1;
                    looks.read(Some(TopicName::stored("t")));
                }
                Some(Look::Sleepers) => {
                    sleepers += 1;
                    looks.asked(limit::PART_MAX);
                }
                None => {}
            }
        }
        assert_eq!((topics, sleepers), (16, 8), "each as much of the cost");
    }
}
