//! Records deliveries in the audit and the latencies.

use super::body::BodyError;
use super::clocks;
use super::plan::Phases;
use super::round::BenchRound;

/// Time of arrival of a message: one reading of the clocks for all its jobs.
#[derive(Clone, Copy, Debug)]
pub(super) struct ReceiveTime {
    /// Microseconds since the round began.
    since_us: u64,
    /// Microseconds of the server's clock.
    server_us: i64,
}

// === impl ReceiveTime ===

impl ReceiveTime {
    /// Reads the clocks.
    pub(super) fn now(round: &BenchRound) -> ReceiveTime {
        let since_us = round.elapsed_us(clocks::now());
        ReceiveTime { since_us, server_us: round.clock.now_us() }
    }

    /// Records a delivery; returns the number of the job.
    pub(super) fn record_delivery(
        &self,
        round: &BenchRound,
        body: &[u8],
    ) -> Result<u32, BodyError> {
        let stamp = round.bodies.read(body).inspect_err(|unread| match unread {
            BodyError::Foreign => round.audit.record_foreign(),
            BodyError::Damaged => round.audit.record_damaged(),
        })?;
        let late_us = self.server_us - stamp.due_us;
        let delayed = stamp.due_us != 0;
        round.audit.record_delivered(stamp.number, delayed && round.clock.is_early(late_us));
        if delayed {
            round.latency.lateness.record(u64::try_from(late_us).unwrap_or(0));
        } else if round.plan.phases == Phases::Together {
            // For a backlog it would be the time that the job waited there.
            round.latency.dispatch.record(self.since_us.saturating_sub(stamp.sent_us));
        }
        Ok(stamp.number)
    }
}

#[cfg(test)]
mod tests {
    use super::super::audit_report::{AuditReport, RequiredState};
    use super::super::body::BodyHeader;
    use super::super::preset::Preset;
    use super::super::server::ServerClock;
    use super::*;

    const AT: ReceiveTime = ReceiveTime { since_us: 700, server_us: 5000 };

    fn round(preset: Preset, clock: ServerClock) -> BenchRound {
        BenchRound::new(preset.plan(), "t", clock)
    }

    fn body(round: &BenchRound, number: u32, due_us: i64) -> Vec<u8> {
        let stamp = BodyHeader { number, sent_us: 600, due_us };
        round.bodies.write(&mut round.bodies.buffer(1), stamp).to_vec()
    }

    /// Delivers job 0, enqueued and to be acked, with these bodies; returns the audit.
    fn deliver(round: &BenchRound, bodies: &[Vec<u8>]) -> AuditReport {
        round.audit.record_enqueued(0);
        for body in bodies {
            if let Ok(number) = AT.record_delivery(round, body) {
                round.audit.record_acked(number);
            }
        }
        round.audit.report(1, RequiredState::Acked)
    }

    #[test]
    fn a_job_for_now_has_a_dispatch_time() {
        let round = round(Preset::Both, ServerClock::default());
        assert_eq!(deliver(&round, &[body(&round, 0, 0)]).faults, [""; 0]);
        assert_eq!(round.latency.dispatch.latency().map(|latency| latency.max), Some(100));
        assert_eq!(round.latency.lateness.latency(), None);
    }

    #[test]
    fn a_job_from_a_backlog_has_none() {
        let round = round(Preset::Lifecycle, ServerClock::default());
        assert_eq!(deliver(&round, &[body(&round, 0, 0)]).faults, [""; 0]);
        assert_eq!(round.latency.dispatch.latency(), None);
    }

    #[test]
    fn a_delayed_job_is_late_or_early() {
        let late = round(Preset::Burst, ServerClock::default());
        assert_eq!(deliver(&late, &[body(&late, 0, 4700)]).faults, [""; 0]);
        assert_eq!(late.latency.lateness.latency().map(|latency| latency.max), Some(300));

        let early = round(Preset::Burst, ServerClock::default());
        assert_eq!(deliver(&early, &[body(&early, 0, 5001)]).faults, ["job 0 was delivered early"]);

        let apart = round(Preset::Burst, ServerClock { offset_us: 90, uncertainty_us: 10 });
        assert_eq!(deliver(&apart, &[body(&apart, 0, 5010)]).faults, [""; 0], "perhaps not");
    }

    #[test]
    fn duplicate_damaged_and_foreign_jobs_are_found() {
        let round = round(Preset::Both, ServerClock::default());
        let good = body(&round, 0, 0);
        let mut damaged = good.clone();
        damaged[40] ^= 1;
        let foreign = body(&self::round(Preset::Both, ServerClock::default()), 0, 0);
        let balance = deliver(&round, &[good.clone(), good, damaged, foreign, Vec::new()]);
        assert_eq!((balance.doubled, balance.damaged, balance.foreign), (1, 1, 2));
        assert_eq!(balance.faults.len(), 3);
    }

    #[test]
    fn a_damaged_job_is_a_lost_one() {
        let round = round(Preset::Both, ServerClock::default());
        let mut damaged = body(&round, 0, 0);
        damaged.pop();
        let expected = ["job 0 was never delivered", "a job with a damaged body was received once"];
        assert_eq!(deliver(&round, &[damaged]).faults, expected);
    }
}
