//! Notices when a round cannot go on: a job that somebody else took never comes.

use std::time::Duration;

use super::round::Round;
use super::server::Stats;
use super::time;
use super::trouble::{Result, Trouble};
use super::turns::AWAY_MAX_S;
use crate::cli::connect::Connection;

/// How often progress is looked for.
const TICK: Duration = Duration::from_millis(500);
/// Without any progress for so long after the last due time, the run is given up.
const PATIENCE: Duration = Duration::from_secs(30);
/// After the last due time, before the server is asked: a question would disturb a burst.
const SETTLE_US: i64 = 1_000_000;

/// Finishes the round when the server has nothing left to deliver, although acks are missing.
/// Otherwise ends only if nothing moves any more.
pub(super) async fn run(round: &Round, connection: &Connection) -> Result<()> {
    let mut seen = (0, 0);
    let mut moved = time::now();
    let mut empty = false;
    loop {
        tokio::time::sleep(TICK).await;
        let now = (round.books.enqueues(), round.books.acks());
        let waits = round.clock.now_us() < round.last_due_us() + SETTLE_US;
        if now != seen || waits {
            (seen, moved, empty) = (now, time::now(), false);
            continue;
        }
        if moved.elapsed() > patience(round) {
            let (enqueued, acked) = now;
            let secs = moved.elapsed().as_secs();
            let problem =
                format!("{enqueued} jobs enqueued, {acked} acked, then nothing for {secs} s");
            return Err(Trouble::Wrong(problem));
        }
        // Twice, because the answer to the last ack may be on its way.
        let was_empty = std::mem::replace(&mut empty, is_empty(round, connection).await?);
        if was_empty && empty {
            round.finish();
        }
    }
}

/// Whether nothing more can come.
async fn is_empty(round: &Round, connection: &Connection) -> Result<bool> {
    if !round.is_produced() {
        return Ok(false);
    }
    let stats = Stats::ask(connection, &round.topic).await;
    let stats =
        stats.map_err(|error| Trouble::Call("cannot read the topic's numbers", Box::new(error)))?;
    Ok(stats.left == 0)
}

/// A slow rate makes long pauses.
fn patience(round: &Round) -> Duration {
    let call_secs = round.plan.rate.map_or(0.0, |rate| f64::from(round.plan.batch) / rate);
    PATIENCE + Duration::from_secs_f64((call_secs * 2.0).min(AWAY_MAX_S))
}
