//! Settings and statistics of the groups of a topic.

use rusqlite::{OptionalExtension as _, params};

use crate::domain::{GroupName, Time, TopicName};
use crate::store::{GroupSetting, GroupsQuery, ShardGroupStats};

use super::error_mapping::SqliteResult;
use super::lane_setting::{FIND, LaneSetting};
use super::lanes::{self, LaneHead, TopicRef};
use super::query;
use super::reader::SqliteReader;
use super::statement::statement;
use super::transaction::WriteTransaction;

const FILE: &str = include_str!("group_settings.sql");
const NAMES: &str = statement(FILE, "names");
const CLEAR: &str = statement(FILE, "clear");
const INSERT: &str = statement(FILE, "insert");
const LIST: &str = statement(FILE, "list");
const WAITING: &str = statement(FILE, "waiting");
const TOTALS: &str = statement(include_str!("lanes.sql"), "totals");

/// Replaces the settings of all groups of a topic.
pub(super) fn configure(
    session: &mut WriteTransaction<'_>,
    topic: &TopicName,
    settings: &[GroupSetting],
) -> SqliteResult<()> {
    // Before the settings change: it reads them, to compare.
    let key = session.topic(topic)?;
    let mut names: Vec<String> = session
        .prepare(NAMES)?
        .query_map([topic.as_str()], |row| row.get(0))?
        .collect::<rusqlite::Result<_>>()?;
    session.prepare(CLEAR)?.execute([topic.as_str()])?;
    for setting in settings {
        let GroupSetting { group, weight: _, paused } = setting;
        let (name, weight) = (GroupName::text(group.as_ref()), setting.valid_weight());
        session.prepare(INSERT)?.execute(params![topic.as_str(), name, weight, paused])?;
        names.push(name.to_owned());
    }
    names.sort_unstable();
    names.dedup();
    let Some(key) = key else { return Ok(()) };
    for name in names {
        let setting = session.group_setting(topic, &name)?;
        match GroupName::stored(&name) {
            Some(group) => change(session, TopicRef { key, name: topic }, &group, setting)?,
            None => session.set_ungrouped_setting(topic, setting),
        }
    }
    Ok(())
}

/// Changes the setting of a lane, if it exists.
fn change(
    session: &mut WriteTransaction<'_>,
    topic: TopicRef<'_>,
    group: &GroupName,
    setting: LaneSetting,
) -> SqliteResult<()> {
    let Some(mut lane) = lanes::find(session, topic, group)? else { return Ok(()) };
    if lane.setting == setting {
        return Ok(());
    }
    let is_resumed = lane.setting.paused && !setting.paused;
    lane.setting = setting;
    let head = lanes::head(session, topic, group)?;
    lane.stand(&head);
    match head {
        LaneHead::Due(at) if is_resumed => session.set_lane_claimable(topic.name, at.due),
        LaneHead::Later(due) if is_resumed => session.set_lane_claimable(topic.name, due),
        _ => {}
    }
    lane.write(session, topic, group)
}

/// [`Store::groups`](crate::store::Store::groups).
pub(super) fn groups(
    reader: &SqliteReader<'_>,
    list: &GroupsQuery,
) -> SqliteResult<Vec<ShardGroupStats>> {
    let Some(topic) = reader.topic(&list.topic)? else { return Ok(Vec::new()) };
    let mut found = Vec::new();
    if list.after.is_none() && list.limit > 0 {
        found.extend(ungrouped(reader, topic, &list.topic)?);
    }
    let after = list.after.as_deref().unwrap_or_default();
    let mut select = reader.connection.prepare_cached(LIST)?;
    let lanes = select.query_map(params![topic, after, list.limit - found.len()], |row| {
        let setting = LaneSetting { weight: row.get(2)?, paused: row.get(3)? };
        Ok((row.get::<_, String>(0)?, row.get::<_, u64>(1)?, setting))
    })?;
    for lane in lanes {
        let (name, running, LaneSetting { weight, paused }) = lane?;
        let (ready, scheduled, oldest) = waiting(reader, topic, &name)?;
        let oldest_ready = oldest.map(|due| reader.now.since(due));
        let group = GroupName::stored(&name);
        found.push(ShardGroupStats {
            group,
            ready,
            scheduled,
            running,
            oldest_ready,
            weight,
            paused,
        });
    }
    Ok(found)
}

/// Returns the numbers of ready and of scheduled jobs of a lane, and the due time of the first ready one.
fn waiting(
    reader: &SqliteReader<'_>,
    topic: i64,
    name: &str,
) -> SqliteResult<(u64, u64, Option<Time>)> {
    let mut count = reader.connection.prepare_cached(WAITING)?;
    let (all, ready, first) = count.query_row(params![topic, name, reader.now.0], |row| {
        Ok((row.get::<_, u64>(0)?, row.get::<_, u64>(1)?, row.get::<_, Option<i64>>(2)?))
    })?;
    let oldest = first.map(Time).filter(|&due| due <= reader.now);
    Ok((ready, all - ready, oldest))
}

/// Returns the statistics of the jobs without a group; `None`: there are none.
fn ungrouped(
    reader: &SqliteReader<'_>,
    topic: i64,
    name: &TopicName,
) -> SqliteResult<Option<ShardGroupStats>> {
    let stats = query::count_ungrouped(reader, topic)?;
    let mut totals = reader.connection.prepare_cached(TOTALS)?;
    let grouped = totals.query_row([topic], |row| row.get::<_, u64>(2)).optional()?;
    let running = query::count_running(reader, topic)?.saturating_sub(grouped.unwrap_or(0));
    if stats.ready + stats.scheduled + stats.backoff + running == 0 {
        return Ok(None);
    }
    let mut setting = reader.connection.prepare_cached(FIND)?;
    let setting = setting.query_row(params![name.as_str(), ""], LaneSetting::read).optional()?;
    let LaneSetting { weight, paused } = setting.unwrap_or_default();
    Ok(Some(ShardGroupStats {
        group: None,
        ready: stats.ready,
        scheduled: stats.scheduled + stats.backoff,
        running,
        oldest_ready: stats.oldest_ready,
        weight,
        paused,
    }))
}
