//! Heal: a job that was enqueued without a delay never depends on the clock, so after the clock went back those
//! written before are due now.

use rusqlite::{Connection, params};

use crate::domain::{ShardName, Time};

use super::statement::statement;

const FILE: &str = include_str!("heal.sql");
const WENT_BACK: &str = statement(FILE, "went_back");
const HEAL: &str = statement(FILE, "heal");

/// Heals a file that is being opened at `now`, if there is need.
pub(super) fn make_undelayed_due(
    connection: &Connection,
    name: &ShardName,
    now: Time,
) -> rusqlite::Result<()> {
    if connection.prepare(WENT_BACK)?.exists(params![now.0])? {
        let healed = connection.execute(HEAL, params![now.0])?;
        tracing::warn!(shard = %name, healed, "the clock went back; undelayed jobs are due now");
    }
    Ok(())
}
