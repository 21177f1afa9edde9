//! Stall detector: ends a round that makes no progress, for instance because another worker took a job.

use std::time::Duration;

use super::clocks;
use super::error::{BenchError, Result};
use super::round::BenchRound;
use super::schedule::SLOT_OFFSET_MAX_S;
use super::server::BenchTopicStats;
use crate::cli::connect::ServerConnection;

/// Pause between checks of the progress.
const TICK: Duration = Duration::from_millis(500);
/// Time without progress after the last due time until the run fails.
const STALL_TIMEOUT: Duration = Duration::from_secs(30);
/// Time from the last due time until the server is asked: a call would disturb a burst.
const SETTLE_US: i64 = 1_000_000;

/// Finishes the round when the server has nothing left to deliver although acks are missing. Otherwise ends only if
/// there is no progress.
pub(super) async fn run(round: &BenchRound, connection: &ServerConnection) -> Result<()> {
    let mut seen = (0, 0);
    let mut moved = clocks::now();
    let mut empty = false;
    loop {
        tokio::time::sleep(TICK).await;
        let now = (round.audit.enqueued_count(), round.audit.acked_count());
        let waits = round.clock.now_us() < round.last_due_us() + SETTLE_US;
        if now != seen || waits {
            (seen, moved, empty) = (now, clocks::now(), false);
            continue;
        }
        if moved.elapsed() > stall_timeout(round) {
            let (enqueued, acked) = now;
            let secs = moved.elapsed().as_secs();
            let problem =
                format!("{enqueued} jobs enqueued, {acked} acked, then nothing for {secs} s");
            return Err(BenchError::ServerViolation(problem));
        }
        // Empty twice in a row, because the answer to the last ack may be in flight.
        let was_empty = std::mem::replace(&mut empty, is_empty(round, connection).await?);
        if was_empty && empty {
            round.finish();
        }
    }
}

/// Returns whether no more jobs can arrive.
async fn is_empty(round: &BenchRound, connection: &ServerConnection) -> Result<bool> {
    if !round.is_produced() {
        return Ok(false);
    }
    let stats = BenchTopicStats::fetch(connection, &round.topic).await;
    let stats = stats.map_err(|error| {
        BenchError::CallFailed("cannot read the topic's numbers", Box::new(error))
    })?;
    Ok(stats.unfinished == 0)
}

/// Returns the time without progress until the run fails; a slow rate makes long pauses.
fn stall_timeout(round: &BenchRound) -> Duration {
    let call_secs = round.plan.rate.map_or(0.0, |rate| f64::from(round.plan.batch) / rate);
    STALL_TIMEOUT + Duration::from_secs_f64((call_secs * 2.0).min(SLOT_OFFSET_MAX_S))
}
