//! Table of the fields of everything that Redis stores and that is sent to its scripts. The meaning of the fields is
//! described in [`super::entry`].
//!
//! Scripts refer to a position by name and do not count bytes. Before a script is sent, each name after `$` is
//! replaced by its value, so that the names cost nothing at run time:
//!
//! | name | is replaced by |
//! |---|---|
//! | `$record.phase` | position of the first byte of the field, counted from 1 as in Lua |
//! | `$record[due..created]` | format with which `struct` reads these fields: `'>I7I6I7'` |
//! | `$record[expire,own_lease]` | format for fields with other fields between them: `'>I7xxxxxxxxxI7'` |
//! | `$phase.dead` | a number with a name, or a limit |
//!
//! A name that is not in the table stays unchanged, which is invalid Lua.

use std::time::Duration;

use crate::domain::AttemptOutcome;
use crate::domain::limit::{
    CALL_BYTES_MAX, CALL_JOBS_MAX, CALL_LOOKS_MAX, ID_AHEAD_MAX, OUTAGE_MIN, REPEAT_MAX,
    SCAN_PART_MAX,
};
use crate::domain::turns::{PLACES_PER_TURN, TURNS_PER_RUNNING_JOB};
use crate::store::codec;

/// First byte of the entry of a running job; a record begins with a time, whose first byte is far smaller.
pub(super) const RUNS: u8 = 255;
/// Latest time that can be stored: Lua counts in doubles.
pub(super) const TIME_MAX: i64 = (1 << 53) - 1;
/// First byte of a blob that has more than its record (`enqueue.rs`). The record of a counted job, whose flags begin with
/// such a byte, is always sent in a blob of this kind.
pub(super) const EXTENDED_BLOB: u8 = 128;

/// Limit of the bytes of the lines by which ended jobs are recognized (`lib/ended_ids.lua`): with topic names of ten
/// characters enough for ten minutes at 9,000 acks a second. Redis may need twice as much for them. With more acks
/// the oldest lines are dropped first, and retries of their age get an unknown outcome.
const RECALLED_BYTES_MAX: i64 = 128 << 20;
/// Interval at which a heartbeat checks these lines for their size and age.
const RECALL_CHECK_EVERY: Duration = Duration::from_secs(10);

/// First byte of flags: optional parts of the job outside of its record, and whether it is kept. 0 for most jobs.
pub(super) mod separate_parts {
    pub(crate) const KEPT: u8 = 1;
    /// An attempt has failed.
    pub(crate) const FAILED: u8 = 2;
    pub(crate) const PAYLOAD: u8 = 4;
    /// The job has a payload of the pending generation.
    pub(crate) const NEXT: u8 = 8;
    pub(crate) const ATTEMPTS: u8 = 16;
    pub(crate) const RESULT: u8 = 32;
    pub(crate) const CHECKPOINT: u8 = 64;
    /// Highest flag: scripts test for flags of at least this value. No part: the bytes of the job are in the count of its
    /// topic. An ack then has to check the job, so that acks of jobs without the flag need no count.
    pub(crate) const COUNTED: u8 = 128;
}

/// Second byte of flags: optional parts inside of the record.
pub(super) mod parts_inside {
    /// The job has a payload: inside of the record, unless it is stored apart.
    pub(crate) const BODY: u8 = 1;
    pub(crate) const SPEC: u8 = 2;
    pub(crate) const LIFE: u8 = 4;
    /// Scripts test for flags of at least this value: [`GROUP`] comes with it.
    pub(crate) const EXTENSION: u8 = 8;
    /// Highest flag, never without [`EXTENSION`]: a group precedes the other parts.
    pub(crate) const GROUP: u8 = 16;
}

/// A field: its name, and its format for `struct`. Without a format the field is the rest.
struct LayoutField(&'static str, &'static str);

const ORDER: [LayoutField; 2] = [LayoutField("due", "I7"), LayoutField("arrival", "I6")];
const CREATED: [LayoutField; 1] = [LayoutField("created", "I7")];
/// Record after its times, as it is sent.
const FIXED: [LayoutField; 6] = [
    LayoutField("apart", "B"),
    LayoutField("inside", "B"),
    LayoutField("version", "c8"),
    LayoutField("bytes", "I4"),
    LayoutField("phase", "B"),
    LayoutField("priority", "B"),
];
const KEEP: [LayoutField; 1] = [LayoutField("keep", "i8")];
/// Fields that only the record of a finished job has.
const ENDING: [LayoutField; 2] = [LayoutField("finished", "I7"), LayoutField("forgotten", "I7")];
/// Fields that only an extended record has, and the tail, which begins in their place where they are missing.
const EXTENSION: [LayoutField; 5] = [
    LayoutField("expire", "I7"),
    LayoutField("has_request", "B"),
    LayoutField("request", "c8"),
    LayoutField("own_lease", "I7"),
    LayoutField("tail", ""),
];
const RUNNING: [LayoutField; 2] = [LayoutField("running", "B"), LayoutField("length", "I2")];
const TOKEN: [LayoutField; 1] = [LayoutField("token", "c8")];
const STARTED: [LayoutField; 3] =
    [LayoutField("ack", "B"), LayoutField("started", "I7"), LayoutField("deadline", "I7")];
/// Lease after its times, as claims send it.
const LEASE_BODY: [LayoutField; 6] = [
    LayoutField("extended", "I7"),
    LayoutField("owner", "I4"),
    LayoutField("stream", "I4"),
    LayoutField("grace", "I7"),
    LayoutField("duration", "I7"),
    LayoutField("worker", ""),
];
const ID: [LayoutField; 1] = [LayoutField("id", "")];
const BOUND: [LayoutField; 2] = [LayoutField("bound", "I7"), LayoutField("marks", "")];
const ROOM: [LayoutField; 4] = [
    LayoutField("jobs", "I4"),
    LayoutField("bytes", "I7"),
    LayoutField("lease", "I7"),
    LayoutField("oversize", "B"),
];
const MODE: [LayoutField; 5] = [
    LayoutField("mode", "B"),
    LayoutField("due", "I7"),
    LayoutField("expire", "I7"),
    LayoutField("length", "I4"),
    LayoutField("fixed", ""),
];
const ZERO: [LayoutField; 1] = [LayoutField("zero", "B")];
/// Data to write for a job (`commit.rs`).
const PLAN: [LayoutField; 14] = [
    LayoutField("what", "B"),
    LayoutField("enqueued", "I2"),
    LayoutField("succeeded", "I2"),
    LayoutField("dead", "I2"),
    LayoutField("ended", "B"),
    LayoutField("news", "B"),
    LayoutField("mode", "B"),
    LayoutField("due", "I7"),
    LayoutField("created", "I7"),
    LayoutField("expire", "I7"),
    LayoutField("finished", "I7"),
    LayoutField("forgotten", "I7"),
    LayoutField("fixed", "c24"),
    LayoutField("extension", ""),
];
/// Header of several writes that belong together.
const ITEM: [LayoutField; 4] = [
    LayoutField("writes", "I2"),
    LayoutField("from", "I7"),
    LayoutField("till", "I7"),
    LayoutField("kind", "B"),
];

/// State of a lane.
const LANE_SHARE: [LayoutField; 4] = [
    LayoutField("running", "I4"),
    LayoutField("weight", "B"),
    LayoutField("paused", "B"),
    LayoutField("place", "B"),
];
const LANE_SERVED: [LayoutField; 1] = [LayoutField("served", "I6")];
const LANE_FIRST: [LayoutField; 1] = [LayoutField("first", "I6")];
const LANE_REST: [LayoutField; 2] = [LayoutField("due", "I7"), LayoutField("marks", "")];
const GROUP: [LayoutField; 1] = [LayoutField("group", "")];
/// State of all lanes of a topic.
const LANES: [LayoutField; 3] =
    [LayoutField("picks", "I6"), LayoutField("served", "I6"), LayoutField("running", "I4")];

/// All layouts, each in consecutive parts.
const LAYOUTS: [(&str, &[&[LayoutField]]); 17] = [
    // Entry of a waiting job, and of a finished one.
    ("record", &[&ORDER, &CREATED, &FIXED, &KEEP, &EXTENSION]),
    ("ended", &[&ORDER, &CREATED, &FIXED, &KEEP, &ENDING, &EXTENSION]),
    ("fixed", &[&FIXED, &KEEP, &EXTENSION]),
    // Entry of a running job: its record follows.
    ("entry", &[&RUNNING, &TOKEN, &STARTED, &LEASE_BODY]),
    ("lease", &[&TOKEN, &STARTED, &LEASE_BODY]),
    ("held", &[&LEASE_BODY]),
    // Members of orders and of the line.
    ("member", &[&ORDER, &ID]),
    // Members of `ends`: with a zero in between for a lease that an ack does not simply end.
    ("end", &[&TOKEN, &ID]),
    ("tied_end", &[&TOKEN, &ZERO, &ID]),
    // State that claims need of a topic.
    ("claims", &[&BOUND]),
    // State of a lane, a member of the ready ones, and the state of all lanes of a topic.
    ("lane", &[&LANE_SHARE, &LANE_SERVED, &LANE_FIRST, &LANE_REST]),
    ("ready", &[&LANE_FIRST, &GROUP]),
    ("lanes", &[&LANES]),
    ("plan", &[&PLAN]),
    ("item", &[&ITEM]),
    // A stream of a claim, and a new job, as they are sent.
    ("demand", &[&ROOM, &LEASE_BODY]),
    ("blob", &[&MODE]),
];

/// Numbers that scripts refer to by name.
const NUMBERS: [(&str, i64); 37] = [
    ("running", RUNS as i64),
    ("unusual", EXTENDED_BLOB as i64),
    ("time.max", TIME_MAX),
    ("call.jobs", CALL_JOBS_MAX as i64),
    ("call.bytes", CALL_BYTES_MAX as i64),
    ("call.looks", CALL_LOOKS_MAX as i64),
    ("part.looks", SCAN_PART_MAX as i64),
    ("turn.running", TURNS_PER_RUNNING_JOB * PLACES_PER_TURN),
    ("apart.kept", separate_parts::KEPT as i64),
    ("apart.failed", separate_parts::FAILED as i64),
    ("apart.payload", separate_parts::PAYLOAD as i64),
    ("apart.next", separate_parts::NEXT as i64),
    ("apart.attempts", separate_parts::ATTEMPTS as i64),
    ("apart.result", separate_parts::RESULT as i64),
    ("apart.checkpoint", separate_parts::CHECKPOINT as i64),
    ("apart.counted", separate_parts::COUNTED as i64),
    ("inside.life", parts_inside::LIFE as i64),
    ("inside.extension", parts_inside::EXTENSION as i64),
    ("inside.group", parts_inside::GROUP as i64),
    ("limit.repeats", REPEAT_MAX.as_micros() as i64),
    ("limit.ahead", ID_AHEAD_MAX.as_micros() as i64),
    ("limit.recalled", RECALLED_BYTES_MAX),
    ("limit.look", RECALL_CHECK_EVERY.as_micros() as i64),
    ("limit.away", OUTAGE_MIN.as_micros() as i64),
    ("outcome.succeeded", AttemptOutcome::Succeeded.code() as i64),
    ("life.deliveries", codec::life_key::DELIVERIES),
    ("life.worker", codec::life_key::WORKER),
    ("life.ends", codec::life_key::ENDS),
    ("phase.succeeded", 2),
    ("phase.dead", 3),
    ("phase.cancelled", 4),
    ("phase.expired", 5),
    ("ack.looks", 0),
    ("ack.removes", 1),
    ("ack.keeps", 2),
    ("ack.lane_removes", 3),
    ("ack.lane_keeps", 4),
];

/// Returns the code with all names replaced by their values.
pub(super) fn resolve(code: &str) -> String {
    let mut parts = code.split('$');
    let mut resolved = parts.next().unwrap_or_default().to_owned();
    for part in parts {
        match number(part).or_else(|| format(part)) {
            Some((text, rest)) => resolved.extend([&text, rest]),
            None => resolved.extend(["$", part]),
        }
    }
    resolved
}

/// Parses a number or a position at the beginning of `part`; returns its value and the rest.
fn number(part: &str) -> Option<(String, &str)> {
    let is_name = |c: char| c.is_ascii_lowercase() || c == '_' || c == '.';
    // A full stop after a name may end a sentence, or join two strings.
    let name = part.split(|c| !is_name(c)).next()?;
    let name = name.split("..").next()?.trim_end_matches('.');
    let known = NUMBERS.iter().find(|(known, _)| *known == name).map(|(_, number)| *number);
    let found = known.or_else(|| field_offset(name).and_then(|place| i64::try_from(place).ok()))?;
    Some((found.to_string(), &part[name.len()..]))
}

/// Position of the field with this name, `layout.field`.
fn field_offset(name: &str) -> Option<usize> {
    let (layout, field) = name.split_once('.')?;
    let mut at = 1;
    for LayoutField(name, code) in fields(layout)? {
        if *name == field {
            return Some(at);
        }
        at += width(code)?;
    }
    None
}

/// Parses a format at the beginning of `part`, `layout[field,field]` or `layout[first..last]`; returns it and the
/// rest.
fn format(part: &str) -> Option<(String, &str)> {
    let (layout, rest) = part.split_once('[')?;
    let (wanted, rest) = rest.split_once(']')?;
    let format = match wanted.split_once("..") {
        Some((first, last)) => format_range(layout, first, last)?,
        None => format_selected(layout, wanted)?,
    };
    Some((format!("'>{format}'"), rest))
}

/// Format of all fields from `first` to `last`.
fn format_range(layout: &str, first: &str, last: &str) -> Option<String> {
    let fields: Vec<_> = fields(layout)?.collect();
    let at = |wanted: &str| fields.iter().position(|LayoutField(name, _)| *name == wanted);
    Some(fields.get(at(first)?..=at(last)?)?.iter().map(|LayoutField(_, code)| *code).collect())
}

/// Format of these fields, which skips those between them.
fn format_selected(layout: &str, wanted: &str) -> Option<String> {
    let (mut format, mut at) = (String::new(), None);
    for name in wanted.split(',') {
        let begin = field_offset(&format!("{layout}.{name}"))?;
        let LayoutField(_, code) = fields(layout)?.find(|LayoutField(known, _)| *known == name)?;
        format.push_str(&"x".repeat(begin.checked_sub(at.unwrap_or(begin))?));
        format.push_str(code);
        at = Some(begin + width(code)?);
    }
    Some(format)
}

fn fields(layout: &str) -> Option<impl Iterator<Item = &'static LayoutField>> {
    let (_, parts) = LAYOUTS.iter().find(|(name, _)| *name == layout)?;
    Some(parts.iter().flat_map(|part| part.iter()))
}

/// Number of bytes of a field. `None`: the length precedes the field, so no field after it has a fixed position.
fn width(code: &str) -> Option<usize> {
    match code.trim_start_matches(|c: char| c.is_ascii_alphabetic()) {
        "" => Some(code.len()),
        "0" => None,
        bytes => bytes.parse().ok(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places_are_those_of_the_stored_form() {
        for (name, place) in [
            ("$record.arrival", "8"),
            ("$record.created", "14"),
            ("$record.apart", "21"),
            ("$record.version", "23"),
            ("$record.phase", "35"),
            ("$record.keep", "37"),
            ("$record.expire", "45"),
            ("$record.tail", "68"),
            ("$ended.finished", "45"),
            ("$ended.expire", "59"),
            ("$fixed.priority", "16"),
            ("$fixed.expire", "25"),
            ("$entry.token", "4"),
            ("$lease.owner", "31"),
            ("$lease.worker", "53"),
            ("$member.id", "14"),
            ("$end.id", "9"),
            ("$tied_end.id", "10"),
            ("$claims.marks", "8"),
            ("$fixed.tail", "48"),
            ("$ended.tail", "82"),
            ("$lane.marks", "27"),
            ("$ready.group", "7"),
            ("$demand.extended", "20"),
            ("$blob.fixed", "20"),
            ("$plan.fixed", "46"),
            ("$plan.extension", "70"),
        ] {
            assert_eq!(resolve(name), place, "{name}");
        }
    }

    #[test]
    fn formats_skip_what_lies_between() {
        let range = resolve("unpack($record[due..keep], raw)");
        assert_eq!(range, "unpack('>I7I6I7BBc8I4BBi8', raw)");
        assert_eq!(resolve("$record[expire,own_lease]"), "'>I7xxxxxxxxxI7'");
        assert_eq!(resolve("$lease[token..duration]"), "'>c8BI7I7I7I4I4I7I7'");
    }

    #[test]
    fn names_end_where_lua_goes_on() {
        assert_eq!(resolve("'done:$phase.dead:' .. name"), "'done:3:' .. name");
        assert_eq!(resolve("sub(raw, $record.keep..x)"), "sub(raw, 37..x)");
        assert_eq!(resolve("-- Up to $running."), "-- Up to 255.");
    }

    #[test]
    fn unknown_names_are_unchanged() {
        for name in [
            "$record.nothing",
            "$nothing.due",
            "$record[nothing]",
            "$record[keep,due]",
            "$record[keep..due]",
            "$plan.nothing",
        ] {
            assert_eq!(resolve(name), name);
        }
    }
}
