//! Opening a file: its settings, the version of its schema and the migrations between versions.

use std::path::Path;

use rusqlite::{Connection, OpenFlags, OptionalExtension as _, params};

use crate::domain::{ReceiptKey, ShardName, Time};

use super::SqliteOpenError;
use super::clock_rollback::make_undelayed_due;

/// The migrations, in order; the file's `user_version` counts those applied to it. A released one is never edited.
const MIGRATIONS: [&str; 4] = [
    include_str!("migrations/0001_init.sql"),
    include_str!("migrations/0002_policies.sql"),
    include_str!("migrations/0003_lanes.sql"),
    include_str!("migrations/0004_receipt_key.sql"),
];

/// Milliseconds to wait for another process that holds the file's lock.
const BUSY_TIMEOUT_MS: u32 = 2_000;
/// Pages of the log before it is copied back into the file: 16 MiB, so that the copying, which syncs, happens seldom
/// and in large pieces.
const CHECKPOINT_PAGES: u32 = 4_096;
/// Prepared statements kept per connection; there are fewer.
const STATEMENTS_MAX: usize = 128;

/// Counts all tables, and those that only a shard has: the first migration creates them at once.
const TABLES: &str = "SELECT count(*), coalesce(sum(name = 'shard'), 0) FROM sqlite_schema \
     WHERE type = 'table'";

/// Opens the connection of the writer.
pub(super) fn open_writer(path: &Path) -> Result<Connection, SqliteOpenError> {
    let flags = OpenFlags::SQLITE_OPEN_READ_WRITE
        | OpenFlags::SQLITE_OPEN_CREATE
        | OpenFlags::SQLITE_OPEN_NO_MUTEX;
    let connection = Connection::open_with_flags(path, flags)?;
    connection.execute_batch(&format!("PRAGMA busy_timeout = {BUSY_TIMEOUT_MS}"))?;
    refuse_foreign(&connection)?;
    connection.execute_batch(&format!(
        "PRAGMA journal_mode = WAL;
         PRAGMA synchronous = FULL;
         PRAGMA wal_autocheckpoint = {CHECKPOINT_PAGES};
         PRAGMA journal_size_limit = 67108864;
         PRAGMA cache_size = -16384;
         PRAGMA temp_store = MEMORY;
         PRAGMA foreign_keys = OFF;"
    ))?;
    connection.set_prepared_statement_cache_capacity(STATEMENTS_MAX);
    Ok(connection)
}

/// Rejects the database of another program before anything is written to it.
fn refuse_foreign(connection: &Connection) -> Result<(), SqliteOpenError> {
    let (tables, ours): (i64, i64) =
        connection.query_row(TABLES, [], |row| Ok((row.get(0)?, row.get(1)?)))?;
    if tables > 0 && ours == 0 { Err(SqliteOpenError::NotRingq) } else { Ok(()) }
}

/// Opens a connection that reads beside the writer.
pub(super) fn open_reader(path: &Path) -> rusqlite::Result<Connection> {
    let flags = OpenFlags::SQLITE_OPEN_READ_ONLY | OpenFlags::SQLITE_OPEN_NO_MUTEX;
    let connection = Connection::open_with_flags(path, flags)?;
    connection.execute_batch(&format!(
        "PRAGMA busy_timeout = {BUSY_TIMEOUT_MS}; PRAGMA cache_size = -4096;"
    ))?;
    connection.set_prepared_statement_cache_capacity(STATEMENTS_MAX);
    Ok(connection)
}

/// Migrates the schema, checks that the file is the shard `name`, and repairs it if the clock went back. Returns the key of
/// its receipts.
pub(super) fn prepare(
    connection: &mut Connection,
    name: &ShardName,
    now: Time,
) -> Result<ReceiptKey, SqliteOpenError> {
    migrate(connection)?;
    check_name(connection, name)?;
    make_undelayed_due(connection, name, now)?;
    Ok(receipt_key(connection)?)
}

/// Returns the key of the shard's receipts; the first call makes it.
fn receipt_key(connection: &Connection) -> rusqlite::Result<ReceiptKey> {
    const MAKE: &str = "UPDATE shard SET receipt_key = ?1 WHERE receipt_key IS NULL";
    let new: u128 = rand::random();
    connection.execute(MAKE, params![new.to_be_bytes()])?;
    let key = connection.query_row("SELECT receipt_key FROM shard", [], |row| row.get(0))?;
    Ok(ReceiptKey::new(u128::from_be_bytes(key)))
}

fn migrate(connection: &mut Connection) -> Result<(), SqliteOpenError> {
    let version: usize = connection.query_row("PRAGMA user_version", [], |row| row.get(0))?;
    if version > MIGRATIONS.len() {
        return Err(SqliteOpenError::Newer { found: version, known: MIGRATIONS.len() });
    }
    for (index, migration) in MIGRATIONS.iter().enumerate().skip(version) {
        let transaction = connection.transaction()?;
        transaction.execute_batch(migration)?;
        transaction.pragma_update(None, "user_version", index + 1)?;
        transaction.commit()?;
    }
    Ok(())
}

fn check_name(connection: &Connection, name: &ShardName) -> Result<(), SqliteOpenError> {
    let found: Option<String> =
        connection.query_row("SELECT name FROM shard", [], |row| row.get(0)).optional()?;
    match found {
        None => {
            connection.execute("INSERT INTO shard (name) VALUES (?1)", params![name.as_str()])?;
            Ok(())
        }
        Some(found) if found == name.as_str() => Ok(()),
        Some(found) => Err(SqliteOpenError::WrongShardName { found, asked: name.to_string() }),
    }
}

#[cfg(test)]
mod tests {
    use super::super::statement::statement;
    use super::*;

    /// Every statement of every verb, by file.
    const FILES: [&str; 17] = [
        include_str!("heartbeat.sql"),
        include_str!("claim.sql"),
        include_str!("enqueue.sql"),
        include_str!("explain.sql"),
        include_str!("clock_rollback.sql"),
        include_str!("info.sql"),
        include_str!("lanes.sql"),
        include_str!("group_settings.sql"),
        include_str!("leases.sql"),
        include_str!("query.sql"),
        include_str!("job_row.sql"),
        include_str!("settle.sql"),
        include_str!("topics.sql"),
        include_str!("lease_query.sql"),
        include_str!("policies.sql"),
        include_str!("prune.sql"),
        include_str!("write_job.sql"),
    ];

    /// The statements that may scan many rows: those that run once, when a file is opened.
    const MAY_SCAN: [&str; 4] =
        ["went_back", "make_lane_jobs_due", "wake_lanes", "make_undelayed_due"];

    /// Returns the plan of one statement, a line per step.
    fn plan(connection: &Connection, sql: &str) -> String {
        let mut explain = connection.prepare(&format!("EXPLAIN QUERY PLAN {sql}")).unwrap();
        let none = vec![rusqlite::types::Null; explain.parameter_count()];
        let steps = explain.query_map(rusqlite::params_from_iter(none), |row| row.get(3)).unwrap();
        steps.collect::<rusqlite::Result<Vec<String>>>().unwrap().join("; ")
    }

    fn prepared() -> Connection {
        let mut connection = open_writer(Path::new(":memory:")).unwrap();
        let name = ShardName::try_new("s0").unwrap();
        prepare(&mut connection, &name, Time(0)).unwrap();
        connection
    }

    #[test]
    fn no_statement_sorts_or_scans() {
        let connection = prepared();
        let mut seen = 0;
        for statement in FILES.iter().flat_map(|file| file.split("-- :").skip(1)) {
            let (name, sql) = statement.split_once('\n').unwrap();
            let plan = plan(&connection, sql);
            seen += 1;
            if !MAY_SCAN.contains(&name) {
                let slow = plan.contains("TEMP B-TREE") || plan.contains("SCAN jobs");
                // A statement about one topic must read that topic alone, regardless of the others.
                let wide = sql.contains("topic = ?1") && plan.contains("jobs_alarm");
                assert!(!slow && !wide, "{name}: {plan}");
            }
        }
        assert!(seen > 20, "{seen}");
    }

    #[test]
    fn the_next_job_of_a_rank_is_found_among_any_number_of_one_due_time() {
        let next = statement(include_str!("claim.sql"), "next");
        let plan = plan(&prepared(), next);
        assert!(plan.contains("due=? AND key>?") && plan.contains("due>?"), "{plan}");
    }
}
