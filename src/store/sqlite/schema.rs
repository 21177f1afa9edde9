//! Opening a file: its settings, the version of its schema and the migrations between versions.

use std::path::Path;

use rusqlite::{Connection, OpenFlags, OptionalExtension as _, params};

use crate::domain::{ReceiptKey, ShardName, Time};

use super::SqliteOpenError;
use super::clock_rollback::make_undelayed_due;

/// The migrations, in order; the file's `user_version` counts those applied to it. A released one is never edited.
const MIGRATIONS: [&str; 1] = [include_str!("migrations/0001_init.sql")];

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
    use std::sync::Arc;
    use std::time::Duration;

    use rusqlite::StatementStatus;

    use super::super::claim::claim;
    use super::super::run_engine::apply;
    use super::super::statement::statement;
    use super::super::transaction::{WriteTransaction, WriterState};
    use super::*;
    use crate::domain::engine::{Command, Enqueue, Settle, SettleAction, WritePrecondition};
    use crate::domain::{
        GroupName, JobId, JobKey, OnConflict, RetentionRule, Spec, TopicName, When,
    };
    use crate::store::{Claim, ShardEvents, StreamDemand, TopicDemand};

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
        include_str!("documents.sql"),
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

    /// Topics in which jobs run, by what waits beside them: jobs with a group, without one, or both.
    const WAITING: [(&str, &[Option<&str>]); 3] =
        [("groups", &[Some("a"), Some("b")]), ("plain", &[None]), ("both", &[Some("a"), None])];

    fn enqueue(session: &mut WriteTransaction<'_>, topic: &str, group: Option<&str>, id: &str) {
        let new = Enqueue {
            spec: Spec { group: group.and_then(GroupName::stored), ..Spec::default() },
            due: When::Now,
            priority: None,
            expire: None,
            retention: RetentionRule::Nothing,
            on_conflict: OnConflict::Keep,
            request_code: None,
            precondition: WritePrecondition::Anything,
            max_waiting: None,
            max_bytes: None,
            history: None,
        };
        let key = JobKey { topic: TopicName::stored(topic), id: JobId::stored(id) };
        apply(session, &key, &Command::Enqueue(Box::new(new))).unwrap();
    }

    /// Leases one job and acknowledges it.
    fn take_and_ack(session: &mut WriteTransaction<'_>, topic: &str, nonce: u32) {
        let stream = StreamDemand {
            stream: 1,
            worker_id: "w".into(),
            lease: Duration::from_secs(60),
            grace: None,
            jobs: 1,
            bytes: 1 << 20,
            oversize: true,
        };
        let topic = TopicName::stored(topic);
        let demand = TopicDemand { topic, ageing: None, streams: vec![stream] };
        let claimed = claim(session, &Claim { nonce, owner: 1, topics: vec![demand] }).unwrap();
        let job = &claimed.topics[0].by_stream[0][0];
        let action = SettleAction::Ack { result: None, follow_ups: Vec::new() };
        let settle = Settle { token: job.token, deadline: None, action };
        apply(session, &job.key, &Command::Settle(settle)).unwrap();
    }

    /// Returns the steps that the statements of this connection have taken: what they have looked at, and a part for each
    /// call.
    fn steps(connection: &Connection) -> i64 {
        let named = FILES.iter().flat_map(|file| {
            let parts = file.split("-- :").skip(1);
            parts.map(|part| statement(file, part.split_once('\n').unwrap().0))
        });
        let count = |sql| {
            let prepared = connection.prepare_cached(sql).unwrap();
            i64::from(prepared.get_status(StatementStatus::VmStep))
        };
        named.map(count).sum()
    }

    /// A claim and an ack cost the same beside any number of running jobs, also in a topic with groups.
    #[test]
    fn a_claim_and_an_ack_look_at_no_running_job() {
        const CALLS: u32 = 8;
        let mut taken = Vec::new();
        for running in [0, 1, 2_003] {
            let connection = prepared();
            let events = ShardEvents::new();
            let name = ShardName::try_new("s0").unwrap();
            let mut state = WriterState::new(name, events, Arc::default(), Time(0));
            let mut session = WriteTransaction::new(&connection, Time(1), &mut state);
            for (topic, groups) in WAITING {
                for (place, group) in groups.iter().enumerate() {
                    for n in 0..CALLS + 1 {
                        enqueue(&mut session, topic, *group, &format!("{place}-{n}"));
                    }
                }
                let key = session.topic(&TopicName::stored(topic)).unwrap();
                connection.execute(RUN, params![key, running]).unwrap();
                // What is read once is not counted.
                take_and_ack(&mut session, topic, 1);
                let before = steps(&connection);
                (0..CALLS).for_each(|n| take_and_ack(&mut session, topic, 2 + n));
                taken.push((topic, running, steps(&connection) - before));
            }
        }
        for (topic, _) in WAITING {
            let of = taken.iter().filter(|(name, ..)| *name == topic);
            let steps: Vec<i64> = of.map(|(.., steps)| *steps).collect();
            assert!(
                steps[0] > 100 && steps[1..].iter().all(|s| (s - steps[0]).abs() < 2_003),
                "{taken:?}"
            );
        }
    }

    /// Inserts running jobs without a group.
    const RUN: &str =
        "WITH RECURSIVE n (n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM n WHERE n <= ?2)
        INSERT INTO jobs (topic, id, phase, rank, due, created, alarm, keep, bytes, large, token)
        SELECT ?1, 'running' || n, 1, 9, 1, 1, 9000000000000, 0, 0, 0, n FROM n WHERE n <= ?2";

    #[test]
    fn the_next_job_of_a_rank_is_found_among_any_number_of_one_due_time() {
        let next = statement(include_str!("claim.sql"), "next");
        let plan = plan(&prepared(), next);
        assert!(plan.contains("due=? AND key>?") && plan.contains("due>?"), "{plan}");
    }
}
