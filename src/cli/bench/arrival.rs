//! A delivery enters the books and the latencies.

use super::body::Unread;
use super::plan::Phases;
use super::round::Round;
use super::time;

/// When a message came: one reading of the clocks for all its jobs.
#[derive(Clone, Copy, Debug)]
pub(super) struct Arrival {
    /// In microseconds since the round began.
    since_us: u64,
    /// In microseconds of the server's clock.
    server_us: i64,
}

// === impl Arrival ===

impl Arrival {
    /// Now.
    pub(super) fn now(round: &Round) -> Arrival {
        let since_us = round.since_base(time::now());
        Arrival { since_us, server_us: round.clock.now_us() }
    }

    /// Enters a delivery; the number of the job.
    pub(super) fn enter(&self, round: &Round, body: &[u8]) -> Result<u32, Unread> {
        let stamp = round.bodies.read(body).inspect_err(|unread| match unread {
            Unread::Foreign => round.books.foreign(),
            Unread::Damaged => round.books.damaged(),
        })?;
        let late_us = self.server_us - stamp.due_us;
        let delayed = stamp.due_us != 0;
        round.books.delivered(stamp.number, delayed && round.clock.is_early(late_us));
        if delayed {
            round.latency.lateness.record(u64::try_from(late_us).unwrap_or(0));
        } else if round.plan.phases == Phases::Together {
            // Otherwise it would be the time in the backlog.
            round.latency.dispatch.record(self.since_us.saturating_sub(stamp.sent_us));
        }
        Ok(stamp.number)
    }
}

#[cfg(test)]
mod tests {
    use super::super::balance::{Balance, Demand};
    use super::super::body::Stamp;
    use super::super::preset::Preset;
    use super::super::server::Clock;
    use super::*;

    const AT: Arrival = Arrival { since_us: 700, server_us: 5000 };

    fn round(preset: Preset, clock: Clock) -> Round {
        Round::new(preset.plan(), "t", clock)
    }

    fn body(round: &Round, number: u32, due_us: i64) -> Vec<u8> {
        let stamp = Stamp { number, sent_us: 600, due_us };
        round.bodies.write(&mut round.bodies.buffer(1), stamp).to_vec()
    }

    /// Delivers job 0, enqueued and to be acked, with these bodies; what the books say.
    fn deliver(round: &Round, bodies: &[Vec<u8>]) -> Balance {
        round.books.enqueued(0);
        for body in bodies {
            if let Ok(number) = AT.enter(round, body) {
                round.books.acked(number);
            }
        }
        round.books.balance(1, Demand::Acked)
    }

    #[test]
    fn a_job_for_now_has_a_dispatch_time() {
        let round = round(Preset::Both, Clock::default());
        assert_eq!(deliver(&round, &[body(&round, 0, 0)]).faults, [""; 0]);
        assert_eq!(round.latency.dispatch.latency().map(|latency| latency.max), Some(100));
        assert_eq!(round.latency.lateness.latency(), None);
    }

    #[test]
    fn a_job_from_a_backlog_has_none() {
        let round = round(Preset::Lifecycle, Clock::default());
        assert_eq!(deliver(&round, &[body(&round, 0, 0)]).faults, [""; 0]);
        assert_eq!(round.latency.dispatch.latency(), None);
    }

    #[test]
    fn a_delayed_job_is_late_or_early() {
        let late = round(Preset::Burst, Clock::default());
        assert_eq!(deliver(&late, &[body(&late, 0, 4700)]).faults, [""; 0]);
        assert_eq!(late.latency.lateness.latency().map(|latency| latency.max), Some(300));

        let early = round(Preset::Burst, Clock::default());
        assert_eq!(deliver(&early, &[body(&early, 0, 5001)]).faults, ["job 0 was delivered early"]);

        let apart = round(Preset::Burst, Clock { offset_us: 90, uncertainty_us: 10 });
        assert_eq!(deliver(&apart, &[body(&apart, 0, 5010)]).faults, [""; 0], "perhaps not");
    }

    #[test]
    fn doubles_damages_and_foreigners_are_found() {
        let round = round(Preset::Both, Clock::default());
        let good = body(&round, 0, 0);
        let mut damaged = good.clone();
        damaged[40] ^= 1;
        let foreign = body(&self::round(Preset::Both, Clock::default()), 0, 0);
        let balance = deliver(&round, &[good.clone(), good, damaged, foreign, Vec::new()]);
        assert_eq!((balance.doubled, balance.damaged, balance.foreign), (1, 1, 2));
        assert_eq!(balance.faults.len(), 3);
    }

    #[test]
    fn a_damaged_job_is_a_lost_one() {
        let round = round(Preset::Both, Clock::default());
        let mut damaged = body(&round, 0, 0);
        damaged.pop();
        let expected = ["job 0 was never delivered", "a job with a damaged body came once"];
        assert_eq!(deliver(&round, &[damaged]).faults, expected);
    }
}
