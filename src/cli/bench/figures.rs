//! The figures of a round, and of several rounds together.

use std::time::Instant;

use super::balance::{Balance, Demand};
use super::histogram::Latency;
use super::plan::Phases;
use super::round::{Grant, Marks, Round};
use super::time;
use crate::pb;

/// One round.
#[derive(Clone, Debug)]
pub(super) struct Figures {
    pub(super) jobs: u32,
    /// Of what was timed, from its beginning to its end.
    pub(super) seconds: f64,
    /// Jobs per second of what was timed. None for delayed jobs: most of the time is waiting.
    pub(super) rate: Option<f64>,
    /// Jobs per second of enqueuing.
    pub(super) enqueue_rate: Option<f64>,
    /// Jobs per second of taking and acking, where that is timed.
    pub(super) consume_rate: Option<f64>,
    pub(super) enqueue: Option<Latency>,
    pub(super) dispatch: Option<Latency>,
    pub(super) lateness: Option<Latency>,
    pub(super) ack: Option<Latency>,
    /// CPU time of this program per job, over the whole round.
    pub(super) client_cpu_us: f64,
    /// Jobs that were due before their enqueue was answered.
    pub(super) overdue: u64,
    /// The least durability that an answer told.
    pub(super) durability: pb::Durability,
    pub(super) grant: Option<Grant>,
    /// It was not cut short, and its balance is that of all its jobs.
    pub(super) complete: bool,
    pub(super) balance: Balance,
}

/// The middle one of several rounds, and their range.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Spread {
    pub(super) median: f64,
    pub(super) min: f64,
    pub(super) max: f64,
}

// === impl Figures ===

impl Figures {
    /// What a round has measured so far; complete it is not. What is missing in its balance may be
    /// under way.
    pub(super) fn of(round: &Round) -> Figures {
        let marks = *round.marks();
        let (enqueued, acked) = (round.books.enqueues(), round.books.acks());
        let span = |from: Option<Instant>, until: Option<Instant>| {
            from.map(|from| until.unwrap_or_else(time::now).duration_since(from).as_secs_f64())
        };
        let enqueue_s = span(marks.begin, marks.produced);
        let consume_s = span(marks.consuming, marks.done);
        let whole_s = span(marks.begin, marks.done);
        let (count, seconds) = match round.plan.phases {
            Phases::Enqueue | Phases::Fill => (enqueued, enqueue_s),
            Phases::Consume => (acked, consume_s),
            Phases::Sequence | Phases::Together => (acked, whole_s),
        };
        let waits = round.plan.is_delayed();
        let timed = matches!(round.plan.phases, Phases::Consume | Phases::Sequence);
        let idles = waits && !matches!(round.plan.phases, Phases::Enqueue | Phases::Fill);
        Figures {
            jobs: round.jobs(),
            seconds: seconds.unwrap_or_default(),
            rate: rate(count, seconds).filter(|_| !idles),
            enqueue_rate: rate(enqueued, enqueue_s),
            consume_rate: rate(acked, consume_s).filter(|_| timed && !waits),
            enqueue: round.latency.enqueue.latency(),
            dispatch: round.latency.dispatch.latency(),
            lateness: round.latency.lateness.latency(),
            ack: round.latency.ack.latency(),
            client_cpu_us: client_cpu(&marks, enqueued),
            overdue: round.overdue(),
            durability: round.durability(),
            grant: marks.grant,
            complete: false,
            balance: round.books.balance(round.jobs(), Demand::Nothing),
        }
    }

    /// Whether it is proven that no job was lost, doubled, damaged or early.
    pub(super) fn is_sound(&self) -> bool {
        self.complete && self.balance.faults.is_empty()
    }
}

fn rate(count: u64, seconds: Option<f64>) -> Option<f64> {
    seconds.filter(|seconds| *seconds > 0.0).map(|seconds| count as f64 / seconds)
}

fn client_cpu(marks: &Marks, jobs: u64) -> f64 {
    let used = time::cpu().saturating_sub(marks.cpu).as_secs_f64();
    if marks.begin.is_none() || jobs == 0 { 0.0 } else { used * 1e6 / jobs as f64 }
}

// === impl Spread ===

impl Spread {
    /// Over the rounds that have the figure; none if none has.
    pub(super) fn over(
        rounds: &[Figures],
        figure: impl Fn(&Figures) -> Option<f64>,
    ) -> Option<Spread> {
        let mut values: Vec<f64> = rounds.iter().filter_map(figure).collect();
        values.sort_by(f64::total_cmp);
        let (min, max) = (*values.first()?, *values.last()?);
        let middle = values.len() / 2;
        let median = match values.len() % 2 {
            0 => f64::midpoint(values[middle - 1], values[middle]),
            _ => values[middle],
        };
        Some(Spread { median, min, max })
    }
}

#[cfg(test)]
mod tests {
    use super::super::plan::Plan;
    use super::super::preset::Preset;
    use super::super::server::Clock;
    use super::super::turns::Pace;
    use super::*;

    fn figures(rate: Option<f64>) -> Figures {
        let round = Round::new(Preset::Bulk.plan(), "t", Clock::default());
        Figures { rate, ..Figures::of(&round) }
    }

    #[test]
    fn the_median_is_the_middle() {
        let over = |rates: &[f64]| {
            let rounds: Vec<_> = rates.iter().map(|rate| figures(Some(*rate))).collect();
            Spread::over(&rounds, |round| round.rate)
        };
        assert_eq!(over(&[]), None);
        assert_eq!(over(&[5.0]), Some(Spread { median: 5.0, min: 5.0, max: 5.0 }));
        assert_eq!(over(&[9.0, 1.0, 2.0]), Some(Spread { median: 2.0, min: 1.0, max: 9.0 }));
        assert_eq!(over(&[4.0, 1.0]), Some(Spread { median: 2.5, min: 1.0, max: 4.0 }));
        assert_eq!(Spread::over(&[figures(None)], |round| round.rate), None);
    }

    #[test]
    fn a_round_that_did_not_begin_has_no_rate() {
        let figures = figures(None);
        assert_eq!((figures.rate, figures.enqueue_rate, figures.enqueue), (None, None, None));
        assert_eq!(figures.client_cpu_us, 0.0);
    }

    #[tokio::test]
    async fn a_round_that_is_cut_short_is_not_sound_and_tells_what_is_known() {
        let round = Round::new(Preset::Bulk.plan(), "t", Clock::default());
        let pace = Pace::begin(&round.plan, round.begin());
        round.turns.take(&pace).await.unwrap();
        for number in 0..3 {
            round.books.enqueued(number);
            round.books.delivered(number, false);
        }
        round.books.acked(0);
        let known = Balance { enqueued: 3, delivered: 3, acked: 1, ..Balance::default() };
        let figures = Figures::of(&round);
        assert_eq!((figures.is_sound(), figures.balance), (false, known));

        round.books.delivered(2, true);
        let balance = Figures::of(&round).balance;
        assert_eq!((balance.doubled, balance.early), (1, 1));
        let facts = ["job 2 was delivered twice", "job 2 was delivered early"];
        assert_eq!(balance.faults, facts);
    }

    #[test]
    fn only_what_was_timed_has_a_rate() {
        let rates = |plan: Plan| {
            let round = Round::new(plan, "t", Clock::default());
            round.begin();
            round.marks().consuming = Some(time::now());
            let figures = Figures::of(&round);
            [figures.rate, figures.enqueue_rate, figures.consume_rate].map(|rate| rate.is_some())
        };
        assert_eq!(rates(Preset::Bulk.plan()), [true, true, false]);
        assert_eq!(rates(Preset::Consume.plan()), [true, true, true]);
        assert_eq!(rates(Preset::Both.plan()), [true, true, false]);
        assert_eq!(rates(Preset::Burst.plan()), [false, true, false]);
    }
}
