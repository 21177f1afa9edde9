//! The bounds that others rely on, as named constants with their reasons. [`all`] is what
//! `AdminService.GetServerInfo` publishes: those that a client may run into.

use std::time::Duration;

/// Longest topic name in bytes: fits a label, a file name and a length byte in a receipt.
pub const TOPIC_BYTES_MAX: usize = 128;
/// Longest job id in bytes: like a topic; a SHA-256 in hex or an e-mail address fits.
pub const ID_BYTES_MAX: usize = 128;
/// Longest shard name in bytes: it is part of every id and receipt.
pub const SHARD_NAME_BYTES_MAX: usize = 8;
/// Longest `request_id` in bytes: a UUID in any spelling fits.
pub const REQUEST_ID_BYTES_MAX: usize = 64;
/// Longest `worker_id` in bytes: like a topic; a host name and a process id fit.
pub const WORKER_ID_BYTES_MAX: usize = 128;
/// Largest payload in bytes: larger data belongs in an object store, its address in the job.
pub const PAYLOAD_BYTES_MAX: usize = 1 << 20;
/// Longest content type in bytes (RFC 4288 allows 127 a side of the slash).
pub const CONTENT_TYPE_BYTES_MAX: usize = 255;
/// Largest headers of a job in bytes, names and values together: as much as HTTP servers commonly take.
pub const HEADERS_BYTES_MAX: usize = 8 << 10;
/// Most jobs of one `BatchEnqueue`: enough that the call is no cost, few enough that one answer is not waited for.
pub const BATCH_JOBS_MAX: usize = 1_000;
/// Largest request message in bytes; also tonic's own default for decoding.
pub const REQUEST_BYTES_MAX: usize = 4 << 20;
/// Calls under way on one connection; a client with more of them waits for one to end. Enough for a busy producer on
/// one channel, or a proxy's share of many workers, and a bound on what one connection can make the server hold.
pub const CONNECTION_CALLS_MAX: u32 = 1_024;
/// How long a new connection may take to send its first 24 bytes: three losses of a packet, and no longer a socket
/// that says nothing.
pub const PREFACE_MAX: Duration = Duration::from_secs(10);
/// A request ends when nothing of its message arrives for so long: as above, and what has arrived waits in memory.
pub const REQUEST_STALL_MAX: Duration = Duration::from_secs(10);
/// A stream that was ended for its age or for want of jobs, and whose client does not read that, is reset after so
/// long: a client that reads needs a round trip.
pub const STREAM_END_UNREAD_MAX: Duration = Duration::from_secs(10);
/// How long a shard is waited for to confirm the durability that was asked: a sync every second that is
/// late by another one, and less than any answer may take.
pub const CONFIRM_MAX: Duration = Duration::from_millis(2_500);
/// Calls that a shard confirms at once, for each durability that can be asked; what comes meanwhile goes
/// with the next ones. Each blocks a connection for as long.
pub const CONFIRMED_CALLS_MAX: usize = 8;
/// Most receipts of one Ack, Nack or Extend: as many as one message delivers at most.
pub const SETTLE_ITEMS_MAX: usize = 1_000;
/// Most follow-up jobs of one `AckItem`: a next step or a few; one that fans out wide enqueues by itself.
pub const FOLLOW_UPS_MAX: usize = 16;
/// Most topics and globs of one Stream or Pull: wake-ups are matched with all of them; a glob stands for any
/// number.
pub const STREAM_TOPICS_MAX: usize = 64;
/// Largest `max_in_flight` of a stream; more is lowered to it. The replica keeps a book of every job in flight.
pub const STREAM_CREDIT_MAX: u32 = 10_000;
/// `max_in_flight` of a stream that names none: safe for a worker that takes one job after the other, whose next jobs
/// would use up their leases while they wait for it.
pub const STREAM_CREDIT_DEFAULT: u32 = 1;
/// `max_in_flight_bytes` of a stream that names none: of the largest payloads 64.
pub const STREAM_BYTES_DEFAULT: u64 = 64 << 20;
/// Most deliveries of one message, whatever `max_batch` says: one call settles them all.
pub const STREAM_BATCH_MAX: u32 = 1_000;
/// Deliveries of one message when `max_batch` is not given: the first is not kept waiting for many others.
pub const STREAM_BATCH_DEFAULT: u32 = 64;
/// A message stops growing here, receipts and errors included; a larger job travels alone.
pub const MESSAGE_BYTES_MAX: usize = 1 << 20;
/// Most jobs of one Pull: it is for few; who wants many opens a stream.
pub const PULL_JOBS_MAX: u32 = 256;
/// Longest error text of a Nack in bytes: a message and the top of its trace; [`ATTEMPTS_KEPT`] of them are kept with
/// a job.
pub const ERROR_BYTES_MAX: usize = 4 << 10;
/// Longest progress note of an Extend in bytes: a line for people, not a place to keep state.
pub const PROGRESS_BYTES_MAX: usize = 1 << 10;
/// Largest checkpoint of an Extend in bytes: a cursor, a list of parts that are done, not the data itself. It is written
/// by each Extend that brings one, and comes with each delivery.
pub const CHECKPOINT_BYTES_MAX: usize = 64 << 10;
/// Longest receipt in characters: the longest topic, id and shard fit.
pub const RECEIPT_CHARS_MAX: usize = 512;
/// Attempts remembered per job, newest first: each takes room beside the job.
pub const ATTEMPTS_KEPT: usize = 10;
/// Most rungs of `RetryPolicy.delays`: the ladder is kept with every job; a longer one is an exponential form.
pub const RETRY_DELAYS_MAX: usize = 100;
/// Highest priority; 0 is the default and the lowest. Ten levels are as many as people tell apart.
pub const PRIORITY_MAX: u8 = 9;
/// Largest page of `ListJobs`: one store call has room for it.
pub const LIST_JOBS_PAGE_MAX: u32 = 500;
/// Page of `ListJobs` when none is asked for: what a person looks through.
pub const LIST_JOBS_PAGE_DEFAULT: u32 = 50;
/// A page of `ListJobs` stops growing here, so that it fits every client's 4 MiB.
pub const LIST_JOBS_BYTES_MAX: usize = 3 << 20;
/// Largest page of `ListTopics`: topics are small, but each is counted on every shard.
pub const LIST_TOPICS_PAGE_MAX: u32 = 1_000;
/// Page of `ListTopics` when none is asked for: all topics of most installations.
pub const LIST_TOPICS_PAGE_DEFAULT: u32 = 100;
/// Jobs that one store call moves at most, so that no call holds a shard for long.
pub const CALL_JOBS_MAX: usize = 512;
/// Calls that a count or a list makes at most to prune what is past its time before it reads.
pub const PRUNES_MAX: usize = 16;
/// Bytes of bodies that one store call moves at most, for the same reason; a larger job moves alone.
pub const CALL_BYTES_MAX: usize = 1 << 20;
/// Entries of one kind of key that one store call looks at most, those included that it only passes over: a Redis
/// serves no other caller meanwhile, and so many take it less than 2 ms.
pub const CALL_LOOKS_MAX: usize = 1_024;
/// Entries that one part of a long look takes: of all topics, or all leases. The parts follow each other at once, and each
/// makes the calls that deliver jobs wait, so they are short.
pub const PART_MAX: usize = 256;
/// Bytes that wait for a stream's transport at most: what a worker has not read is not claimed.
pub const PREFETCH_BYTES_MAX: u64 = 2 << 20;

/// How long a topic without jobs is kept at least: whoever uses one once a day finds its totals again. Then it is
/// forgotten with them, and the next job makes it anew.
pub const EMPTY_TOPIC_MAX: Duration = Duration::from_secs(24 * 3600);
/// Shortest lease: below it clock granularity and network time dominate.
pub const LEASE_MIN: Duration = Duration::from_secs(1);
/// Longest lease: a worker that needs more extends it.
pub const LEASE_MAX: Duration = Duration::from_secs(24 * 3600);
/// Lease of a job of a stream when neither job, stream nor topic names one: longer than most jobs run, so that a worker
/// need not extend it. A worker that dies breaks its stream, which gives its jobs back in seconds; only one that hangs
/// holds them for so long.
pub const STREAM_LEASE_DEFAULT: Duration = Duration::from_secs(30 * 60);
/// Lease of a job of a Pull when neither job, Pull nor topic names one: no stream shows that its worker lives.
pub const PULL_LEASE_DEFAULT: Duration = Duration::from_secs(30);
/// Farthest due time, and longest wait for a retry: ten years, beyond which a date is a slip.
pub const DELAY_MAX: Duration = Duration::from_secs(10 * 366 * 24 * 3600);
/// Longest retention of a finished job: a year; what is kept longer belongs in a database.
pub const RETENTION_MAX: Duration = Duration::from_secs(366 * 24 * 3600);
/// How long a finished job with a client-chosen id is remembered, so that a late repeat finds it.
pub const TOMBSTONE: Duration = Duration::from_secs(60);
/// How long an enqueue may be repeated under the id that a server made for it, from when the server made it: longer than
/// producers and what is between them and the server keep repeating a call. Ended jobs are recalled for as long.
pub const REPEAT_MAX: Duration = Duration::from_secs(600);
/// How far the clock of a server that makes an id may be ahead of the clock of the store.
pub const ID_AHEAD_MAX: Duration = Duration::from_secs(240);
/// How long dead letters are kept: over somebody's holidays.
pub const DEAD_RETENTION: Duration = Duration::from_secs(14 * 24 * 3600);
/// Give-back of a broken stream's leases when the stream names none: time for its worker to connect again and
/// extend them.
pub const ORPHAN_GRACE_DEFAULT: Duration = Duration::from_secs(5);
/// Longest wait for the worker of a lease that ran out while no server served its shard, whatever its grace: who has
/// not come back within a minute does not, and a grace that means "never" must not hold a job for ever.
pub const AWAY_GRACE_MAX: Duration = Duration::from_secs(60);
/// An Extend this long before a break counts as sent for it: a worker that stops sends one Extend
/// and then cancels, and the store may have applied the one a moment before the server sees the
/// other. No longer than that: a worker that heartbeats and is killed must not seem to have spoken,
/// least of all one whose short leases are extended every few hundred milliseconds.
pub const EXTEND_BEFORE_BREAK: Duration = Duration::from_millis(500);
/// Shortest heartbeat of a stream: more often it would cost more than it tells.
pub const HEARTBEAT_MIN: Duration = Duration::from_secs(1);
/// Longest heartbeat of a stream: slower, a broken connection is found by nobody.
pub const HEARTBEAT_MAX: Duration = Duration::from_secs(3600);
/// Heartbeat of a stream that names none; below the 60 s after which proxies cut silent streams.
pub const HEARTBEAT_DEFAULT: Duration = Duration::from_secs(20);
/// Longest wait of a Pull: after as long proxies cut a silent call.
pub const PULL_WAIT_MAX: Duration = Duration::from_secs(60);
/// Wait of a Pull that names none: well within the deadlines that callers have.
pub const PULL_WAIT_DEFAULT: Duration = Duration::from_secs(10);
/// A Pull ends this long before its caller's deadline, so that what it claimed still arrives.
pub const PULL_DEADLINE_MARGIN: Duration = Duration::from_millis(200);

/// How often a replica shows each shard that it lives, where others can take its place.
pub const REPLICA_HEARTBEAT: Duration = Duration::from_secs(2);
/// A replica that a shard has not heard of for so long is dead: its streams are broken ones.
pub const REPLICA_SILENCE_MAX: Duration = Duration::from_secs(10);

/// A shard that no server has shown itself to for so long was away: two signs of life of each are missing, and more than
/// one that is late. To be wrong costs little: leases that ran out meanwhile end a grace later, and uncounted.
pub const AWAY_MIN: Duration = Duration::from_secs(5);

/// What one bound relies on in another.
const _: () = {
    assert!(
        STREAM_BATCH_MAX as usize <= SETTLE_ITEMS_MAX,
        "one call settles what one message brings"
    );
    assert!(LIST_JOBS_PAGE_MAX as usize <= CALL_JOBS_MAX, "one store call reads a page");
    assert!(PAYLOAD_BYTES_MAX <= CALL_BYTES_MAX, "one store call moves the largest payload");
    assert!(PAYLOAD_BYTES_MAX <= MESSAGE_BYTES_MAX, "one message brings the largest payload");
    assert!(LIST_JOBS_BYTES_MAX < REQUEST_BYTES_MAX, "a page fits into a message of 4 MiB");
};

/// The bounds that a client may run into, by name, as published by `GetServerInfo`. Durations are in milliseconds and sizes
/// in bytes; the name says which.
#[must_use]
pub fn all() -> Vec<(&'static str, i64)> {
    let ms = |duration: Duration| count(duration.as_millis());
    vec![
        ("topic_bytes_max", count(TOPIC_BYTES_MAX)),
        ("id_bytes_max", count(ID_BYTES_MAX)),
        ("request_id_bytes_max", count(REQUEST_ID_BYTES_MAX)),
        ("worker_id_bytes_max", count(WORKER_ID_BYTES_MAX)),
        ("payload_bytes_max", count(PAYLOAD_BYTES_MAX)),
        ("content_type_bytes_max", count(CONTENT_TYPE_BYTES_MAX)),
        ("headers_bytes_max", count(HEADERS_BYTES_MAX)),
        ("batch_jobs_max", count(BATCH_JOBS_MAX)),
        ("request_bytes_max", count(REQUEST_BYTES_MAX)),
        ("connection_calls_max", count(CONNECTION_CALLS_MAX)),
        ("preface_ms_max", ms(PREFACE_MAX)),
        ("request_stall_ms_max", ms(REQUEST_STALL_MAX)),
        ("stream_end_unread_ms_max", ms(STREAM_END_UNREAD_MAX)),
        ("settle_items_max", count(SETTLE_ITEMS_MAX)),
        ("follow_ups_max", count(FOLLOW_UPS_MAX)),
        ("stream_topics_max", count(STREAM_TOPICS_MAX)),
        ("stream_credit_max", count(STREAM_CREDIT_MAX)),
        ("stream_credit_default", count(STREAM_CREDIT_DEFAULT)),
        ("stream_batch_max", count(STREAM_BATCH_MAX)),
        ("stream_bytes_default", count(STREAM_BYTES_DEFAULT)),
        ("message_bytes_max", count(MESSAGE_BYTES_MAX)),
        ("pull_jobs_max", count(PULL_JOBS_MAX)),
        ("error_bytes_max", count(ERROR_BYTES_MAX)),
        ("progress_bytes_max", count(PROGRESS_BYTES_MAX)),
        ("checkpoint_bytes_max", count(CHECKPOINT_BYTES_MAX)),
        ("receipt_chars_max", count(RECEIPT_CHARS_MAX)),
        ("attempts_kept", count(ATTEMPTS_KEPT)),
        ("retry_delays_max", count(RETRY_DELAYS_MAX)),
        ("priority_max", count(PRIORITY_MAX)),
        ("list_jobs_page_max", count(LIST_JOBS_PAGE_MAX)),
        ("list_jobs_bytes_max", count(LIST_JOBS_BYTES_MAX)),
        ("list_topics_page_max", count(LIST_TOPICS_PAGE_MAX)),
        ("confirm_ms_max", ms(CONFIRM_MAX)),
        ("lease_ms_min", ms(LEASE_MIN)),
        ("lease_ms_max", ms(LEASE_MAX)),
        ("stream_lease_ms_default", ms(STREAM_LEASE_DEFAULT)),
        ("pull_lease_ms_default", ms(PULL_LEASE_DEFAULT)),
        ("delay_ms_max", ms(DELAY_MAX)),
        ("retention_ms_max", ms(RETENTION_MAX)),
        ("tombstone_ms", ms(TOMBSTONE)),
        ("repeat_ms_max", ms(REPEAT_MAX)),
        ("dead_retention_ms", ms(DEAD_RETENTION)),
        ("orphan_grace_ms_default", ms(ORPHAN_GRACE_DEFAULT)),
        ("heartbeat_ms_min", ms(HEARTBEAT_MIN)),
        ("heartbeat_ms_max", ms(HEARTBEAT_MAX)),
        ("pull_wait_ms_max", ms(PULL_WAIT_MAX)),
    ]
}

fn count(number: impl TryInto<i64>) -> i64 {
    number.try_into().unwrap_or(i64::MAX)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    /// Those that no client runs into: how the server does its work, what operators name, and what is taken where
    /// a client asks for nothing.
    const UNPUBLISHED: [&str; 21] = [
        "SHARD_NAME_BYTES_MAX",
        "CONFIRMED_CALLS_MAX",
        "STREAM_BATCH_DEFAULT",
        "LIST_JOBS_PAGE_DEFAULT",
        "LIST_TOPICS_PAGE_DEFAULT",
        "CALL_JOBS_MAX",
        "PRUNES_MAX",
        "CALL_BYTES_MAX",
        "CALL_LOOKS_MAX",
        "PART_MAX",
        "EMPTY_TOPIC_MAX",
        "PREFETCH_BYTES_MAX",
        "AWAY_GRACE_MAX",
        "EXTEND_BEFORE_BREAK",
        "ID_AHEAD_MAX",
        "HEARTBEAT_DEFAULT",
        "PULL_WAIT_DEFAULT",
        "PULL_DEADLINE_MARGIN",
        "REPLICA_HEARTBEAT",
        "REPLICA_SILENCE_MAX",
        "AWAY_MIN",
    ];

    /// A published name is that of its constant, with the unit of a duration in it.
    #[test]
    fn every_limit_is_published_or_listed_as_private() {
        let source = include_str!("limit.rs");
        let constants = source.lines().filter_map(|line| line.strip_prefix("pub const "));
        let mut constants: Vec<_> =
            constants.filter_map(|constant| constant.split(':').next()).collect();
        let entries = source.lines().filter_map(|line| line.trim().strip_prefix("(\""));
        let entries = entries.filter_map(|entry| entry.strip_suffix(")),")?.split_once("\", "));
        let published = entries.filter_map(|(name, value)| Some((name, value.split_once('(')?.1)));
        let published: Vec<_> = published.collect();
        assert_eq!(published.len(), all().len());
        for (name, constant) in &published {
            assert_eq!(name.replace("_ms", ""), constant.to_lowercase());
        }
        let told = published.into_iter().map(|(_, constant)| constant);
        let mut told: Vec<_> = told.chain(UNPUBLISHED).collect();
        told.sort_unstable();
        constants.sort_unstable();
        assert_eq!(told, constants, "each is in all() or in UNPUBLISHED");
    }

    /// What `GetServerInfo` says of its limits: the name tells the unit, and all others are counts.
    #[test]
    fn a_published_name_contains_its_unit() {
        let (mut names, units) = (BTreeSet::new(), ["bytes", "ms", "chars"]);
        for (name, value) in all() {
            assert!(names.insert(name) && value > 0, "{name} {value}");
            let words: Vec<_> = name.split('_').collect();
            let bound = words.iter().any(|word| ["max", "min", "default"].contains(word));
            let told = units.iter().any(|unit| words.contains(unit));
            assert!(bound || told || name == "attempts_kept", "{name}");
        }
    }

    #[test]
    fn defaults_lie_within_their_bounds() {
        for (min, default, max) in [
            (1, STREAM_CREDIT_DEFAULT, STREAM_CREDIT_MAX),
            (1, STREAM_BATCH_DEFAULT, STREAM_BATCH_MAX),
            (1, LIST_JOBS_PAGE_DEFAULT, LIST_JOBS_PAGE_MAX),
            (1, LIST_TOPICS_PAGE_DEFAULT, LIST_TOPICS_PAGE_MAX),
        ] {
            assert!((min..=max).contains(&default), "{default}");
        }
        for (min, default, max) in [
            (LEASE_MIN, STREAM_LEASE_DEFAULT, LEASE_MAX),
            (LEASE_MIN, PULL_LEASE_DEFAULT, LEASE_MAX),
            (HEARTBEAT_MIN, HEARTBEAT_DEFAULT, HEARTBEAT_MAX),
            (Duration::ZERO, PULL_WAIT_DEFAULT, PULL_WAIT_MAX),
            (Duration::ZERO, TOMBSTONE, RETENTION_MAX),
            (Duration::ZERO, DEAD_RETENTION, RETENTION_MAX),
        ] {
            assert!((min..=max).contains(&default), "{default:?}");
        }
    }
}
