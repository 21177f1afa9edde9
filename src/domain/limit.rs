//! The bounds that other modules rely on, as named constants with their reasons. [`all`] lists those that a client may
//! reach, as `AdminService.GetServerInfo` publishes them.

use std::time::Duration;

/// Longest topic name in bytes: fits a label, a file name and a length byte in a receipt.
pub const TOPIC_BYTES_MAX: usize = 128;
/// Longest job id in bytes: like a topic; a SHA-256 in hex or an e-mail address fits.
pub const ID_BYTES_MAX: usize = 128;
/// Longest group of a job in bytes: a UUID in any spelling fits. The group is stored with each of its jobs.
pub const GROUP_BYTES_MAX: usize = 64;
/// Largest weight of a group; 1 is the default. A group of this weight gets a hundred times the share of another one.
pub const GROUP_WEIGHT_MAX: u8 = 100;
/// Most groups of a topic with a weight, and most that are paused, apart: weights leave room for pauses. They are part of the
/// topic's policy, which each shard stores and one call replaces.
pub const GROUP_SETTINGS_MAX: usize = 1_000;
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
/// Most jobs of one `BatchEnqueue`: enough that the cost of the call does not matter, few enough that the response
/// comes soon.
pub const BATCH_JOBS_MAX: usize = 1_000;
/// Largest request message in bytes; also tonic's own default for decoding.
pub const REQUEST_BYTES_MAX: usize = 4 << 20;
/// Maximum size in bytes of the JSON text of a request: payloads as base64 take a third more than in a message, and the
/// rest is for names and spaces.
pub const JSON_BYTES_MAX: usize = 2 * REQUEST_BYTES_MAX;
/// Largest size of a decoded request in bytes, estimated: the largest sensible one, an Ack of 1,000 items with 16 follow-up
/// jobs each, has about a half. 4 MiB of empty jobs would have 1 GiB.
pub const DECODED_BYTES_MAX: usize = 24 << 20;
/// Most calls in flight on one connection; a further call of the client waits for one to end. Enough for a busy
/// producer on one channel, or a proxy's share of many workers; bounds the memory that one connection can occupy.
pub const CONNECTION_CALLS_MAX: u32 = 1_024;
/// Most calls in flight on one connection before one of them has shown an identity; a further one is not read until one
/// ends. Enough for probes, and for a client that finds out that it has no identity; each takes about 12 KiB while its
/// message arrives, and any client can open thousands of such connections.
pub const ANONYMOUS_CALLS_MAX: usize = 8;
/// Longest time for a new connection to send its first 24 bytes: time for three lost packets, but a silent socket is
/// closed.
pub const PREFACE_MAX: Duration = Duration::from_secs(10);
/// Longest time of a TLS handshake, from the accept on: two round trips and three lost packets; the client keeps a slot
/// among the connections meanwhile.
pub const TLS_HANDSHAKE_MAX: Duration = Duration::from_secs(5);
/// Longest time in which nothing of a request's message arrives; then the request ends. Three lost packets, as for
/// [`PREFACE_MAX`]; meanwhile the part that has arrived occupies memory.
pub const REQUEST_STALL_MAX: Duration = Duration::from_secs(10);
/// Time after which a stream is reset that was ended for its age or for lack of jobs, and whose client does not read
/// the end: a client that reads needs one round trip.
pub const STREAM_END_UNREAD_MAX: Duration = Duration::from_secs(10);
/// Longest wait for a shard to confirm the requested durability: a sync every second that is another second late, and
/// less than the response timeout.
pub const CONFIRM_MAX: Duration = Duration::from_millis(2_500);
/// Most calls that a shard confirms at once, for each durability that can be requested; later calls go with the next
/// ones. Each blocks a connection meanwhile.
pub const CONFIRMED_CALLS_MAX: usize = 8;
/// Most receipts of one Ack, Nack or Extend: as many as one message delivers at most.
pub const SETTLE_ITEMS_MAX: usize = 1_000;
/// Most follow-up jobs of one `AckItem`: a few next steps; a job that fans out widely enqueues by itself.
pub const FOLLOW_UPS_MAX: usize = 16;
/// Most topics and globs of one Stream or Pull: each wake-up is matched with all of them. A glob stands for any number
/// of topics.
pub const STREAM_TOPICS_MAX: usize = 64;
/// Largest weight of a topic of a stream: beyond it the other topics would be served too seldom to notice.
pub const TOPIC_WEIGHT_MAX: u32 = 100;
/// Largest `max_in_flight` of a stream; more is lowered to it. The replica keeps every job in flight in memory.
pub const STREAM_CREDIT_MAX: u32 = 10_000;
/// `max_in_flight` of a stream that names none: safe for a worker that takes one job after the other, whose next jobs
/// would use up their leases while they wait for it.
pub const STREAM_CREDIT_DEFAULT: u32 = 1;
/// `max_in_flight_bytes` of a stream that names none: 64 of the largest payloads.
pub const STREAM_BYTES_DEFAULT: u64 = 64 << 20;
/// Most deliveries of one message, even if `max_batch` is larger: one call settles them all.
pub const STREAM_BATCH_MAX: u32 = 1_000;
/// Most deliveries of one message when `max_batch` is not given: the first does not wait for many others.
pub const STREAM_BATCH_DEFAULT: u32 = 64;
/// Size in bytes at which no more is added to a message, receipts and errors included; a larger job is sent alone.
pub const MESSAGE_BYTES_MAX: usize = 1 << 20;
/// Most jobs of one Pull: a Pull is for few jobs, a stream for many.
pub const PULL_JOBS_MAX: u32 = 256;
/// Longest error text of a Nack in bytes: a message and the top of its trace; [`ATTEMPTS_KEPT`] of them are kept with
/// a job.
pub const ERROR_BYTES_MAX: usize = 4 << 10;
/// Longest progress note of an Extend in bytes: a line for people, not a place to keep state.
pub const PROGRESS_BYTES_MAX: usize = 1 << 10;
/// Largest checkpoint of an Extend in bytes: a cursor or a list of finished parts, not the data itself. Each Extend
/// with a checkpoint writes it, and each delivery contains it.
pub const CHECKPOINT_BYTES_MAX: usize = 64 << 10;
/// Longest receipt in characters: the longest topic, id and shard fit.
pub const RECEIPT_CHARS_MAX: usize = 512;
/// Attempts kept per job, newest first: each takes room beside the job.
pub const ATTEMPTS_KEPT: usize = 10;
/// Most entries of `RetryPolicy.delays`: the list is stored with every job. For more, use the exponential form.
pub const RETRY_DELAYS_MAX: usize = 100;
/// Highest priority; 0 is the default and the lowest. People cannot distinguish more than ten levels.
pub const PRIORITY_MAX: u8 = 9;
/// Longest waiting time that one level of priority is worth: with it, nine levels are nine days, longer than a backlog
/// should last, and times stay far below 2^53 microseconds.
pub const PRIORITY_AGEING_MAX: Duration = Duration::from_secs(24 * 3600);
/// Largest page of `ListJobs`: one store call has room for it.
pub const LIST_JOBS_PAGE_MAX: u32 = 500;
/// Page size of `ListJobs` when none is given: as much as a person looks through.
pub const LIST_JOBS_PAGE_DEFAULT: u32 = 50;
/// Largest page of `ListJobs` in bytes, so that it fits every client's 4 MiB.
pub const LIST_JOBS_BYTES_MAX: usize = 3 << 20;
/// Largest page of `ListTopics`: topics are small, but each is counted on every shard.
pub const LIST_TOPICS_PAGE_MAX: u32 = 1_000;
/// Longest description of a topic, and longest note of its pause, in bytes: a few sentences; every server keeps them in
/// memory.
pub const TOPIC_TEXT_BYTES_MAX: usize = 1 << 10;
/// Most topics and patterns with settings: every shard stores and every server knows all of them. A pattern serves any
/// number of topics. Pauses take no place.
pub const POLICIES_MAX: usize = 10_000;
/// Most documents of which nothing is left, and that some shard does not have yet: while a shard is away for long, no more
/// topics get settings. They are small.
pub const DOCUMENTS_FORGOTTEN_MAX: usize = 100_000;
/// Page size of `ListTopics` when none is given: all topics of most installations.
pub const LIST_TOPICS_PAGE_DEFAULT: u32 = 100;
/// Largest page of `ListGroups`: as of topics, each group is counted on every shard.
pub const LIST_GROUPS_PAGE_MAX: u32 = 1_000;
/// Page size of `ListGroups` when none is given: all groups that a person looks through.
pub const LIST_GROUPS_PAGE_DEFAULT: u32 = 100;
/// Most jobs that one store call moves, so that no call blocks a shard for long.
pub const CALL_JOBS_MAX: usize = 512;
/// Most calls that a count or a list makes to prune overdue records before it reads.
pub const PRUNES_MAX: usize = 16;
/// Bytes that a job takes in a store beside what clients fill: its record, an id of 36 characters and its places in the
/// orders of its topic, about. Measured: 170 to 280, by the store, the length of the id and the kind of order.
pub const STORED_JOB_BYTES: u64 = 256;
/// Most bytes of bodies that one store call moves, so that no call blocks a shard for long; a larger job moves alone.
pub const CALL_BYTES_MAX: usize = 1 << 20;
/// Most entries of one kind of key that one store call reads, skipped ones included: a Redis serves no other caller
/// meanwhile, and so many take less than 2 ms.
pub const CALL_LOOKS_MAX: usize = 1_024;
/// Entries that one part of a long scan reads, of all topics or all leases. The parts follow each other at once, and
/// the calls that deliver jobs wait for each part, so parts are short.
pub const SCAN_PART_MAX: usize = 256;
/// Most READY jobs before one that ExplainJob counts: where there are more, their number changes nothing. A store reads
/// so many entries of an index in about a millisecond.
pub const READY_BEFORE_MAX: u64 = 10_000;
/// Most bytes that wait for a stream's transport: no more jobs are claimed for a worker that does not read.
pub const PREFETCH_BYTES_MAX: u64 = 2 << 20;

/// Shortest time for which a topic without jobs is kept: a topic that is used once a day keeps its totals. Then it is
/// removed with its totals, and the next job creates it again.
pub const EMPTY_TOPIC_MAX: Duration = Duration::from_secs(24 * 3600);
/// Shortest lease: below it clock granularity and network time dominate.
pub const LEASE_MIN: Duration = Duration::from_secs(1);
/// Longest lease: a worker that needs more extends it.
pub const LEASE_MAX: Duration = Duration::from_secs(24 * 3600);
/// Lease of a job of a stream when neither job, stream nor topic names one: longer than most jobs run, so that a worker
/// need not extend it. A worker that dies breaks its stream, which releases its jobs in seconds; only a worker that
/// hangs holds them for so long.
pub const STREAM_LEASE_DEFAULT: Duration = Duration::from_secs(30 * 60);
/// Lease of a job of a Pull when neither job, Pull nor topic names one: no stream shows that its worker is alive.
pub const PULL_LEASE_DEFAULT: Duration = Duration::from_secs(30);
/// Farthest due time, and longest wait for a retry: ten years; a later date is most likely an error.
pub const DELAY_MAX: Duration = Duration::from_secs(10 * 366 * 24 * 3600);
/// Longest retention of a finished job: a year; data that is kept longer belongs in a database.
pub const RETENTION_MAX: Duration = Duration::from_secs(366 * 24 * 3600);
/// Time for which the tombstone of a finished job with a client-chosen id is kept, so that a late repeat is recognized.
pub const TOMBSTONE: Duration = Duration::from_secs(60);
/// Time for which an enqueue may be repeated under its server-made id, counted from the creation of the id: longer than
/// producers and proxies retry a call. The history of ended jobs is kept for as long.
pub const REPEAT_MAX: Duration = Duration::from_secs(600);
/// Largest lead of the clock of a server that makes an id over the clock of the store.
pub const ID_AHEAD_MAX: Duration = Duration::from_secs(240);
/// Retention of dead letters: longer than an operator's holidays.
pub const DEAD_RETENTION: Duration = Duration::from_secs(14 * 24 * 3600);
/// Time to the release of a broken stream's leases when the stream names none: enough for its worker to connect again
/// and extend them.
pub const ORPHAN_GRACE_DEFAULT: Duration = Duration::from_secs(5);
/// Longest wait for the worker of a lease that expired while no server served its shard, even if its grace is longer: a
/// worker that is not back within a minute will not return, and a grace that means "never" must not hold a job for
/// ever.
pub const OUTAGE_GRACE_MAX: Duration = Duration::from_secs(60);
/// Longest time before the break of a stream in which an Extend counts as sent because of the break: a worker that
/// stops sends one Extend and then cancels, and the store may apply the Extend a moment before the server sees the
/// cancellation. It is short, so that the routine Extend of a killed worker does not count, least of all with short
/// leases that are extended every few hundred milliseconds.
pub const EXTEND_BEFORE_BREAK: Duration = Duration::from_millis(500);
/// Shortest heartbeat interval of a stream: a shorter one would cost more than it is worth.
pub const HEARTBEAT_MIN: Duration = Duration::from_secs(1);
/// Longest heartbeat interval of a stream: with a longer one a broken connection would stay undetected.
pub const HEARTBEAT_MAX: Duration = Duration::from_secs(3600);
/// Heartbeat interval of a stream that names none: below the 60 s after which proxies cut silent streams.
pub const HEARTBEAT_DEFAULT: Duration = Duration::from_secs(20);
/// Longest wait of a Pull: proxies cut a silent call after this time.
pub const PULL_WAIT_MAX: Duration = Duration::from_secs(60);
/// Wait of a Pull that names none: well within the deadlines that callers have.
pub const PULL_WAIT_DEFAULT: Duration = Duration::from_secs(10);
/// Margin between the end of a Pull and its caller's deadline, so that the claimed jobs still arrive.
pub const PULL_DEADLINE_MARGIN: Duration = Duration::from_millis(200);

/// Heartbeat interval of a replica on each shard that other replicas can serve, too; on another one its file is checked.
pub const REPLICA_HEARTBEAT: Duration = Duration::from_secs(2);
/// Time without a heartbeat after which a replica counts as dead: its streams are broken.
pub const REPLICA_SILENCE_MAX: Duration = Duration::from_secs(10);

/// Shortest time without a heartbeat of any server that counts as an outage of the shard: two heartbeats are missing,
/// not only one late. An error costs little: leases that expired meanwhile end one grace later, and uncounted.
pub const OUTAGE_MIN: Duration = Duration::from_secs(5);

/// Relations between bounds that the code relies on.
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

/// Returns the bounds that a client may reach, by name, as `GetServerInfo` publishes them. Durations are in
/// milliseconds and sizes in bytes; the name contains the unit.
#[must_use]
pub fn all() -> Vec<(&'static str, i64)> {
    let ms = |duration: Duration| count(duration.as_millis());
    vec![
        ("topic_bytes_max", count(TOPIC_BYTES_MAX)),
        ("id_bytes_max", count(ID_BYTES_MAX)),
        ("group_bytes_max", count(GROUP_BYTES_MAX)),
        ("group_weight_max", count(GROUP_WEIGHT_MAX)),
        ("group_settings_max", count(GROUP_SETTINGS_MAX)),
        ("request_id_bytes_max", count(REQUEST_ID_BYTES_MAX)),
        ("worker_id_bytes_max", count(WORKER_ID_BYTES_MAX)),
        ("payload_bytes_max", count(PAYLOAD_BYTES_MAX)),
        ("content_type_bytes_max", count(CONTENT_TYPE_BYTES_MAX)),
        ("headers_bytes_max", count(HEADERS_BYTES_MAX)),
        ("batch_jobs_max", count(BATCH_JOBS_MAX)),
        ("request_bytes_max", count(REQUEST_BYTES_MAX)),
        ("json_bytes_max", count(JSON_BYTES_MAX)),
        ("decoded_bytes_max", count(DECODED_BYTES_MAX)),
        ("connection_calls_max", count(CONNECTION_CALLS_MAX)),
        ("anonymous_calls_max", count(ANONYMOUS_CALLS_MAX)),
        ("preface_ms_max", ms(PREFACE_MAX)),
        ("tls_handshake_ms_max", ms(TLS_HANDSHAKE_MAX)),
        ("request_stall_ms_max", ms(REQUEST_STALL_MAX)),
        ("stream_end_unread_ms_max", ms(STREAM_END_UNREAD_MAX)),
        ("settle_items_max", count(SETTLE_ITEMS_MAX)),
        ("follow_ups_max", count(FOLLOW_UPS_MAX)),
        ("stream_topics_max", count(STREAM_TOPICS_MAX)),
        ("topic_weight_max", count(TOPIC_WEIGHT_MAX)),
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
        ("priority_ageing_ms_max", ms(PRIORITY_AGEING_MAX)),
        ("list_jobs_page_max", count(LIST_JOBS_PAGE_MAX)),
        ("list_jobs_bytes_max", count(LIST_JOBS_BYTES_MAX)),
        ("list_topics_page_max", count(LIST_TOPICS_PAGE_MAX)),
        ("topic_text_bytes_max", count(TOPIC_TEXT_BYTES_MAX)),
        ("policies_max", count(POLICIES_MAX)),
        ("list_groups_page_max", count(LIST_GROUPS_PAGE_MAX)),
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

    /// Constants that no client reaches: internals of the server, names that operators choose, and defaults for absent
    /// values.
    const UNPUBLISHED: [&str; 25] = [
        "DOCUMENTS_FORGOTTEN_MAX",
        "STORED_JOB_BYTES",
        "SHARD_NAME_BYTES_MAX",
        "CONFIRMED_CALLS_MAX",
        "STREAM_BATCH_DEFAULT",
        "LIST_JOBS_PAGE_DEFAULT",
        "LIST_TOPICS_PAGE_DEFAULT",
        "LIST_GROUPS_PAGE_DEFAULT",
        "CALL_JOBS_MAX",
        "PRUNES_MAX",
        "CALL_BYTES_MAX",
        "CALL_LOOKS_MAX",
        "SCAN_PART_MAX",
        "READY_BEFORE_MAX",
        "EMPTY_TOPIC_MAX",
        "PREFETCH_BYTES_MAX",
        "OUTAGE_GRACE_MAX",
        "EXTEND_BEFORE_BREAK",
        "ID_AHEAD_MAX",
        "HEARTBEAT_DEFAULT",
        "PULL_WAIT_DEFAULT",
        "PULL_DEADLINE_MARGIN",
        "REPLICA_HEARTBEAT",
        "REPLICA_SILENCE_MAX",
        "OUTAGE_MIN",
    ];

    /// A published name is the name of its constant, plus the unit of a duration.
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
        let listed = published.into_iter().map(|(_, constant)| constant);
        let mut listed: Vec<_> = listed.chain(UNPUBLISHED).collect();
        listed.sort_unstable();
        constants.sort_unstable();
        assert_eq!(listed, constants, "each is in all() or in UNPUBLISHED");
    }

    /// Limits of `GetServerInfo`: the name contains the unit; limits without a unit are counts.
    #[test]
    fn a_published_name_contains_its_unit() {
        let (mut names, units) = (BTreeSet::new(), ["bytes", "ms", "chars"]);
        for (name, value) in all() {
            assert!(names.insert(name) && value > 0, "{name} {value}");
            let words: Vec<_> = name.split('_').collect();
            let bound = words.iter().any(|word| ["max", "min", "default"].contains(word));
            let has_unit = units.iter().any(|unit| words.contains(unit));
            assert!(bound || has_unit || name == "attempts_kept", "{name}");
        }
    }

    #[test]
    fn defaults_lie_within_their_bounds() {
        for (min, default, max) in [
            (1, STREAM_CREDIT_DEFAULT, STREAM_CREDIT_MAX),
            (1, STREAM_BATCH_DEFAULT, STREAM_BATCH_MAX),
            (1, LIST_JOBS_PAGE_DEFAULT, LIST_JOBS_PAGE_MAX),
            (1, LIST_TOPICS_PAGE_DEFAULT, LIST_TOPICS_PAGE_MAX),
            (1, LIST_GROUPS_PAGE_DEFAULT, LIST_GROUPS_PAGE_MAX),
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
