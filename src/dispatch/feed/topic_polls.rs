//! Polls that a feed makes beside its claims: it lists the topics, for globs; and it checks sleeping topics for jobs,
//! where wake-ups can be lost. Each poll is one bounded call, and a claim comes between two of them, so that no
//! number of topics delays deliveries.

use std::time::Duration;

use crate::clock::Clock;
use crate::domain::{TopicName, limit};

use super::periodic_timer::PeriodicTimer;

/// Time between two rounds of polls, where wake-ups can be lost.
const ROUND_INTERVAL: Duration = Duration::from_secs(1);
/// Cost limit of the polls of one round for the shard, in quarters of a millisecond, for each replica. A few hundred
/// topics need one or two polls.
const COST_MAX: u32 = 32;
/// Cost of a page of names, and of a part of the sleeping topics.
const PAGE_COST: u32 = 1;
const CHECK_COST: u32 = 2;
/// Number of rounds after which the names of all topics are read again, to find new ones.
const ROUNDS_PER_READ: u32 = 10;

/// Schedule of the polls of one feed.
pub(in crate::dispatch) struct TopicPolls {
    timer: PeriodicTimer,
    rounds: u32,
    /// Remaining cost of this round.
    cost_left: u32,
    /// Number of sleeping topics that are still to be checked.
    sleeping_left: usize,
    listing: Option<TopicListing>,
    /// Streams wait for the listing, or wake-ups were missed: these polls do not wait for the next round.
    is_urgent: bool,
    /// The last call was a poll, so a claim comes first.
    last_was_poll: bool,
}

/// Listing of all topics of a shard, by name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in crate::dispatch) struct TopicListing {
    /// Last name read so far.
    pub(in crate::dispatch) after: Option<TopicName>,
    /// Topics that are known already are claimed from, too.
    pub(in crate::dispatch) claim_known: bool,
}

/// Next poll to make.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in crate::dispatch) enum TopicPoll {
    /// Read a page of the topics that exist.
    ListTopics(TopicListing),
    /// Check a part of the sleeping topics.
    CheckSleeping,
}

// === impl TopicPolls ===

impl TopicPolls {
    /// Creates a schedule without polls before the first round.
    pub(in crate::dispatch) fn new(clock: &Clock) -> TopicPolls {
        TopicPolls {
            timer: PeriodicTimer::new(clock, ROUND_INTERVAL),
            rounds: 0,
            cost_left: 0,
            sleeping_left: 0,
            listing: None,
            is_urgent: false,
            last_was_poll: false,
        }
    }

    /// Reads the names of all topics at once. `all`: also claim from topics that are known.
    pub(in crate::dispatch) fn list_now(&mut self, all: bool) {
        self.listing = Some(TopicListing { after: None, claim_known: all });
        self.is_urgent = true;
    }

    /// Checks this many sleeping topics at once.
    pub(in crate::dispatch) fn check_sleeping_now(&mut self, asleep: usize) {
        self.sleeping_left = asleep;
        self.is_urgent = true;
    }

    /// Returns whether streams wait for the names of topics.
    pub(in crate::dispatch) fn is_listing_now(&self) -> bool {
        self.is_urgent && self.listing.is_some()
    }

    /// Returns whether the next round is due.
    pub(in crate::dispatch) fn is_due(&self) -> bool {
        self.timer.is_due()
    }

    /// Waits until the next round is due.
    pub(in crate::dispatch) async fn wait_due(&mut self) {
        self.timer.wait_due().await;
    }

    /// Begins a round. `asleep`: number of sleeping topics; those that the last round did not check count as checked.
    /// `globs`: some stream subscribes to a glob.
    pub(in crate::dispatch) fn begin_round(&mut self, asleep: usize, globs: bool) {
        self.timer.restart();
        self.cost_left = COST_MAX;
        if !self.is_urgent {
            self.sleeping_left = asleep;
        }
        self.rounds = (self.rounds + 1) % ROUNDS_PER_READ;
        if self.rounds == 0 && globs && self.listing.is_none() {
            self.listing = Some(TopicListing { after: None, claim_known: false });
        }
    }

    /// Returns the next poll, unless a claim comes first.
    pub(in crate::dispatch) fn next(&mut self) -> Option<TopicPoll> {
        if std::mem::take(&mut self.last_was_poll) || !self.has_more() {
            return None;
        }
        // Half of the cost goes to sleeping topics and half to names.
        let is_turn = !self.is_urgent && self.cost_left.is_multiple_of(2 * CHECK_COST);
        let (look, cost) = match &self.listing {
            Some(reading) if !(is_turn && self.sleeping_left > 0) => {
                (TopicPoll::ListTopics(reading.clone()), PAGE_COST)
            }
            _ => (TopicPoll::CheckSleeping, CHECK_COST),
        };
        if !self.is_urgent {
            self.cost_left = self.cost_left.saturating_sub(cost);
        }
        self.last_was_poll = true;
        Some(look)
    }

    /// Returns whether a poll is to be made now.
    pub(in crate::dispatch) fn has_more(&self) -> bool {
        (self.is_urgent || self.cost_left > 0) && (self.listing.is_some() || self.sleeping_left > 0)
    }

    /// Records a page that ends with this name; `None`: it was the last page.
    pub(in crate::dispatch) fn page_listed(&mut self, last: Option<TopicName>) {
        let all = self.listing.as_ref().is_some_and(|reading| reading.claim_known);
        self.listing = last.map(|last| TopicListing { after: Some(last), claim_known: all });
        self.clear_urgent();
    }

    /// Records that this many topics were checked; fewer than one call takes means that there were no more.
    pub(in crate::dispatch) fn sleeping_checked(&mut self, topics: usize) {
        let is_full = topics >= limit::SCAN_PART_MAX;
        self.sleeping_left = if is_full { self.sleeping_left.saturating_sub(topics) } else { 0 };
        self.clear_urgent();
    }

    /// Records a failed poll: the next round continues with it.
    pub(in crate::dispatch) fn poll_failed(&mut self) {
        (self.cost_left, self.is_urgent) = (0, false);
    }

    fn clear_urgent(&mut self) {
        self.is_urgent &= self.listing.is_some() || self.sleeping_left > 0;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::clock::ManualClock;
    use crate::domain::Time;

    fn looks() -> TopicPolls {
        TopicPolls::new(&Clock::Manual(ManualClock::new(Time(0))))
    }

    /// Makes polls until a claim comes first or there is nothing more. Returns the number of polls.
    fn run(looks: &mut TopicPolls) -> usize {
        let mut count = 0;
        while let Some(look) = looks.next() {
            count += 1;
            match look {
                TopicPoll::ListTopics(_) => looks.page_listed(Some(TopicName::stored("t"))),
                TopicPoll::CheckSleeping => looks.sleeping_checked(limit::SCAN_PART_MAX),
            }
        }
        count
    }

    #[test]
    fn a_claim_comes_between_two_looks_whatever_there_is_to_look_at() {
        let mut looks = looks();
        looks.list_now(true);
        looks.check_sleeping_now(1_000_000);
        looks.begin_round(1_000_000, true);
        for _ in 0..100 {
            assert_eq!(run(&mut looks), 1);
        }
        assert!(looks.is_listing_now() && looks.has_more());
    }

    #[test]
    fn a_round_has_so_many_looks_at_most_and_no_more_than_are_needed() {
        for (asleep, wanted) in [(0, 0), (1, 1), (256, 1), (257, 2), (5_000, 16), (1_000_000, 16)] {
            let mut looks = looks();
            looks.begin_round(asleep, false);
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
        (0..ROUNDS_PER_READ).for_each(|_| looks.begin_round(1_000_000, true));
        let (mut topics, mut sleepers) = (0, 0);
        while looks.has_more() {
            match looks.next() {
                Some(TopicPoll::ListTopics(_)) => {
                    topics += 1;
                    looks.page_listed(Some(TopicName::stored("t")));
                }
                Some(TopicPoll::CheckSleeping) => {
                    sleepers += 1;
                    looks.sleeping_checked(limit::SCAN_PART_MAX);
                }
                None => {}
            }
        }
        assert_eq!((topics, sleepers), (16, 8), "each as much of the cost");
    }
}
