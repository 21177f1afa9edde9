//! Repair after the clock went back: a job that was enqueued without a delay never depends on the clock, so such jobs
//! written before become due now.

use rusqlite::{Connection, params};

use crate::domain::{ShardName, Time};

use super::statement::statement;

const FILE: &str = include_str!("clock_rollback.sql");
const WENT_BACK: &str = statement(FILE, "went_back");
const MAKE_LANE_JOBS_DUE: &str = statement(FILE, "make_lane_jobs_due");
const WAKE_LANES: &str = statement(FILE, "wake_lanes");
const MAKE_UNDELAYED_DUE: &str = statement(FILE, "make_undelayed_due");

/// Makes undelayed jobs of a file that is being opened at `now` due, if the clock went back.
pub(super) fn make_undelayed_due(
    connection: &Connection,
    name: &ShardName,
    now: Time,
) -> rusqlite::Result<()> {
    if connection.prepare(WENT_BACK)?.exists(params![now.0])? {
        connection.execute(MAKE_LANE_JOBS_DUE, params![now.0])?;
        connection.execute(WAKE_LANES, params![now.0])?;
        let jobs = connection.execute(MAKE_UNDELAYED_DUE, params![now.0])?;
        tracing::warn!(shard = %name, jobs, "the clock went back; undelayed jobs are due now");
    }
    Ok(())
}
