//! Figures of a round, and of several rounds together.

use std::time::Instant;

use super::audit_report::{AuditReport, RequiredState};
use super::clocks;
use super::histogram::Latency;
use super::plan::Phases;
use super::round::{BenchRound, RoundTimings, StreamGrant};
use crate::pb;

/// Figures of one round.
#[derive(Clone, Debug)]
pub(super) struct Figures {
    pub(super) jobs: u32,
    /// Length of the timed part.
    pub(super) seconds: f64,
    /// Jobs per second of the timed part. None for delayed jobs: most of that time is waiting.
    pub(super) rate: Option<f64>,
    /// Jobs per second of the enqueue phase.
    pub(super) enqueue_rate: Option<f64>,
    /// Jobs per second of taking and acking, if that is timed.
    pub(super) consume_rate: Option<f64>,
    pub(super) enqueue: Option<Latency>,
    pub(super) dispatch: Option<Latency>,
    pub(super) lateness: Option<Latency>,
    pub(super) ack: Option<Latency>,
    /// CPU time of this program per job, over the whole round.
    pub(super) client_cpu_us: f64,
    /// Jobs that were due before their enqueue was answered.
    pub(super) overdue: u64,
    /// Least durability of all answers.
    pub(super) durability: pb::Durability,
    pub(super) grant: Option<StreamGrant>,
    /// The round was not cut short, and its audit covers all its jobs.
    pub(super) complete: bool,
    pub(super) audit: AuditReport,
}

/// Median and range of several rounds.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct RoundSpread {
    pub(super) median: f64,
    pub(super) min: f64,
    pub(super) max: f64,
}

// === impl Figures ===

impl Figures {
    /// Collects the measurements of a round so far, as not complete: jobs that are missing in its audit may be in
    /// flight.
    pub(super) fn from_round(round: &BenchRound) -> Figures {
        let marks = *round.timings();
        let (enqueued, acked) = (round.audit.enqueued_count(), round.audit.acked_count());
        let span = |from: Option<Instant>, until: Option<Instant>| {
            from.map(|from| until.unwrap_or_else(clocks::now).duration_since(from).as_secs_f64())
        };
        let enqueue_s = span(marks.enqueue_start, marks.enqueue_end);
        let consume_s = span(marks.consume_start, marks.ack_end);
        let whole_s = span(marks.enqueue_start, marks.ack_end);
        let (count, seconds) = match round.plan.phases {
            Phases::Enqueue | Phases::Fill => (enqueued, enqueue_s),
            Phases::Consume => (acked, consume_s),
            Phases::Sequence | Phases::Together => (acked, whole_s),
        };
        let waits = round.plan.is_delayed();
        let timed = matches!(round.plan.phases, Phases::Consume | Phases::Sequence);
        let idles = waits && !matches!(round.plan.phases, Phases::Enqueue | Phases::Fill);
        Figures {
            jobs: round.numbers_taken(),
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
            audit: round.audit.report(round.numbers_taken(), RequiredState::Nothing),
        }
    }

    /// Returns whether it is proven that no job was lost, doubled, damaged or early.
    pub(super) fn is_sound(&self) -> bool {
        self.complete && self.audit.faults.is_empty()
    }
}

fn rate(count: u64, seconds: Option<f64>) -> Option<f64> {
    seconds.filter(|seconds| *seconds > 0.0).map(|seconds| count as f64 / seconds)
}

fn client_cpu(marks: &RoundTimings, jobs: u64) -> f64 {
    let used = clocks::cpu().saturating_sub(marks.cpu).as_secs_f64();
    if marks.enqueue_start.is_none() || jobs == 0 { 0.0 } else { used * 1e6 / jobs as f64 }
}

// === impl RoundSpread ===

impl RoundSpread {
    /// Computes the spread over the rounds that have the figure; None if no round has it.
    pub(super) fn across(
        rounds: &[Figures],
        figure: impl Fn(&Figures) -> Option<f64>,
    ) -> Option<RoundSpread> {
        let mut values: Vec<f64> = rounds.iter().filter_map(figure).collect();
        values.sort_by(f64::total_cmp);
        let (min, max) = (*values.first()?, *values.last()?);
        let middle = values.len() / 2;
        let median = match values.len() % 2 {
            0 => f64::midpoint(values[middle - 1], values[middle]),
            _ => values[middle],
        };
        Some(RoundSpread { median, min, max })
    }
}

#[cfg(test)]
mod tests {
    use super::super::plan::Plan;
    use super::super::preset::Preset;
    use super::super::schedule::Pace;
    use super::super::server::ServerClock;
    use super::*;

    fn figures(rate: Option<f64>) -> Figures {
        let round = BenchRound::new(Preset::Bulk.plan(), "t", ServerClock::default());
        Figures { rate, ..Figures::from_round(&round) }
    }

    #[test]
    fn the_median_is_the_middle() {
        let over = |rates: &[f64]| {
            let rounds: Vec<_> = rates.iter().map(|rate| figures(Some(*rate))).collect();
            RoundSpread::across(&rounds, |round| round.rate)
        };
        assert_eq!(over(&[]), None);
        assert_eq!(over(&[5.0]), Some(RoundSpread { median: 5.0, min: 5.0, max: 5.0 }));
        assert_eq!(over(&[9.0, 1.0, 2.0]), Some(RoundSpread { median: 2.0, min: 1.0, max: 9.0 }));
        assert_eq!(over(&[4.0, 1.0]), Some(RoundSpread { median: 2.5, min: 1.0, max: 4.0 }));
        assert_eq!(RoundSpread::across(&[figures(None)], |round| round.rate), None);
    }

    #[test]
    fn a_round_that_did_not_begin_has_no_rate() {
        let figures = figures(None);
        assert_eq!((figures.rate, figures.enqueue_rate, figures.enqueue), (None, None, None));
        assert_eq!(figures.client_cpu_us, 0.0);
    }

    #[tokio::test]
    async fn an_interrupted_round_is_not_sound_and_keeps_its_figures() {
        let round = BenchRound::new(Preset::Bulk.plan(), "t", ServerClock::default());
        let pace = Pace::start(&round.plan, round.begin());
        round.schedule.take(&pace).await.unwrap();
        for number in 0..3 {
            round.audit.record_enqueued(number);
            round.audit.record_delivered(number, false);
        }
        round.audit.record_acked(0);
        let known = AuditReport { enqueued: 3, delivered: 3, acked: 1, ..AuditReport::default() };
        let figures = Figures::from_round(&round);
        assert_eq!((figures.is_sound(), figures.audit), (false, known));

        round.audit.record_delivered(2, true);
        let balance = Figures::from_round(&round).audit;
        assert_eq!((balance.doubled, balance.early), (1, 1));
        let facts = ["job 2 was delivered twice", "job 2 was delivered early"];
        assert_eq!(balance.faults, facts);
    }

    #[test]
    fn only_timed_phases_have_a_rate() {
        let rates = |plan: Plan| {
            let round = BenchRound::new(plan, "t", ServerClock::default());
            round.begin();
            round.timings().consume_start = Some(clocks::now());
            let figures = Figures::from_round(&round);
            [figures.rate, figures.enqueue_rate, figures.consume_rate].map(|rate| rate.is_some())
        };
        assert_eq!(rates(Preset::Bulk.plan()), [true, true, false]);
        assert_eq!(rates(Preset::Consume.plan()), [true, true, true]);
        assert_eq!(rates(Preset::Both.plan()), [true, true, false]);
        assert_eq!(rates(Preset::Burst.plan()), [false, true, false]);
    }
}
