//! Bounds of one script: a Redis serves no other caller while a script runs, so each is bounded whatever the shard
//! holds. MONITOR shows every command that scripts call; the entries that a command may touch follow from its
//! arguments, and the bytes that it reads are measured by calling it again.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use crate::store_calls::{
    JobDeletion, JobReschedule, LostClaim, RedriveBatch, StoreCalls as _, TestJob, Unclaim,
};
use deadpool_redis::redis;
use ringq::domain::{JobId, RetentionRule, State, When, limit};
use ringq::store::{Claim, ListCursor, ListQuery, StatsOptions, StreamDemand, TopicDemand};
use tokio::io::{AsyncBufReadExt as _, AsyncWriteExt as _, BufReader};
use tokio::net::TcpStream;

use crate::conformance::values::{ack, after, job_in, key, lease_ref, taker, text, topic};
use crate::conformance::{Backend, Fixture, OWNER};
use crate::harness::Redis;

/// Deeper than the limit of any script.
const DEEP: usize = 3 * limit::CALL_LOOKS_MAX;
/// Verbs that read a whole shard, part by part: their scripts follow each other at once. One step of a scan may
/// return a little more than requested.
const LONG: [&str; 6] =
    ["topics", "stats", "info", "list running", "orphans", "search for a lost claim"];
const PART_MAX: usize = limit::SCAN_PART_MAX + limit::SCAN_PART_MAX / 4;
/// Limit of the bytes that a script reads: it stops behind the page with which it has read enough.
const BYTES_MAX: usize = limit::CALL_BYTES_MAX + limit::CALL_BYTES_MAX / 8;
/// Verbs that read more, each with its reason. The list should stay empty.
const EXCUSED: [(&str, &str); 0] = [];

/// A command with its arguments.
type Command = Vec<Vec<u8>>;

/// The commands that scripts call, as MONITOR shows them.
struct Watch(BufReader<TcpStream>);

/// The commands that one script has called.
struct Script(Vec<Command>);

// === impl Watch ===

impl Watch {
    async fn start(redis: &Redis) -> Watch {
        let stream = TcpStream::connect(("127.0.0.1", redis.port())).await.unwrap();
        let mut watch = Watch(BufReader::new(stream));
        watch.0.write_all(b"MONITOR\r\n").await.unwrap();
        assert_eq!(watch.line().await, "+OK");
        watch
    }

    async fn line(&mut self) -> String {
        let mut line = String::new();
        self.0.read_line(&mut line).await.unwrap();
        line.trim_end().to_owned()
    }

    /// Returns the scripts that have run since the last call.
    async fn scripts(&mut self, redis: &Redis) -> Vec<Script> {
        redis.command(&["ECHO", "so far"]).await;
        let mut scripts: Vec<Script> = Vec::new();
        loop {
            let line = self.line().await;
            let words = words(&line);
            if words.last().is_some_and(|word| word == b"so far") {
                return scripts;
            }
            if words[0].starts_with(b"EVAL") {
                scripts.push(Script(Vec::new()));
            } else if line.contains(" lua] ") {
                // The script began before this: its other commands are unknown.
                scripts.last_mut().into_iter().for_each(|script| script.0.push(words.clone()));
            }
        }
    }
}

/// Parses the command of a line: words in quotes, with escapes.
fn words(line: &str) -> Command {
    let (mut words, mut bytes) = (Vec::new(), line.bytes());
    while bytes.by_ref().any(|byte| byte == b'"') {
        let mut word = Vec::new();
        while let Some(byte) = bytes.next().filter(|byte| *byte != b'"') {
            word.push(if byte == b'\\' { escaped(&mut bytes) } else { byte });
        }
        words.push(word);
    }
    words
}

fn escaped(bytes: &mut impl Iterator<Item = u8>) -> u8 {
    match bytes.next().unwrap() {
        b'n' => b'\n',
        b'r' => b'\r',
        b't' => b'\t',
        b'a' => 7,
        b'b' => 8,
        b'x' => {
            let digits = [bytes.next().unwrap(), bytes.next().unwrap()];
            u8::from_str_radix(str::from_utf8(&digits).unwrap(), 16).unwrap()
        }
        byte => byte,
    }
}

// === impl Script ===

impl Script {
    /// Returns how many entries of each kind of key it may have touched.
    async fn touched(&self, redis: &Redis) -> BTreeMap<String, usize> {
        let mut keys: BTreeMap<&[u8], Touched> = BTreeMap::new();
        for command in &self.0 {
            let place = if command[0] == b"MEMORY" { 2 } else { 1 };
            if let Some(key) = command.get(place).filter(|key| kind(key).is_some()) {
                keys.entry(key).or_default().add(command);
            }
        }
        let mut kinds = BTreeMap::new();
        for (key, touched) in keys {
            let entries = touched.entries(redis, key).await;
            *kinds.entry(kind(key).unwrap()).or_default() += entries;
        }
        kinds
    }

    /// Returns the number of bytes that it has written.
    fn written(&self) -> usize {
        self.0.iter().flat_map(|command| &command[1..]).map(Vec::len).sum()
    }

    /// Returns the number of bytes that it has read, by reading them again: nothing has changed since.
    async fn bytes(&self, connection: &mut redis::aio::MultiplexedConnection) -> usize {
        let mut bytes = 0;
        for command in self.0.iter().filter(|command| command[0] != b"TIME") {
            let mut again = redis::cmd(str::from_utf8(&command[0]).unwrap());
            for word in &command[1..] {
                again.arg(&word[..]);
            }
            bytes += size(&again.query_async(connection).await.unwrap());
        }
        bytes
    }
}

fn size(value: &redis::Value) -> usize {
    match value {
        redis::Value::BulkString(bytes) => bytes.len(),
        redis::Value::Array(values) => values.iter().map(size).sum(),
        _ => 0,
    }
}

/// Returns the kind of a key: the part behind the shard's name.
fn kind(key: &[u8]) -> Option<String> {
    let name = str::from_utf8(key).ok()?.strip_prefix("ringq:{s0}:")?;
    Some(name.split(':').next().unwrap_or(name).to_owned())
}

/// The entries of one key that a script touches.
#[derive(Default)]
struct Touched {
    /// Fields and members by name; of the separate parts of a job only the job.
    named: BTreeSet<Vec<u8>>,
    /// Positions from the beginning, as before the script.
    places: BTreeSet<i64>,
    /// Number of entries that it has removed there.
    taken: i64,
    /// Command that returns the number of entries.
    length: Option<&'static str>,
}

impl Touched {
    fn add(&mut self, command: &Command) {
        if command[0] == b"MEMORY" {
            let samples = str::from_utf8(&command[4]).unwrap().parse::<i64>().unwrap();
            let length = match kind(&command[2]).unwrap().as_str() {
                "jobs" | "more" => "HLEN",
                "line" => "LLEN",
                _ => "ZCARD",
            };
            return self.range(length, 0, samples - 1);
        }
        let (rest, apart) = (&command[2..], kind(&command[1]).unwrap() == "more");
        let text = |n: usize| String::from_utf8_lossy(&rest[n]).to_string();
        let number = |n: usize| text(n).parse::<i64>().unwrap();
        let behind = |word: &str| (0..rest.len()).find(|&n| text(n).eq_ignore_ascii_case(word));
        let name = |word: &Vec<u8>| word[usize::from(apart)..].to_vec();
        match &*String::from_utf8_lossy(&command[0]).to_uppercase() {
            "HMGET" | "HDEL" | "ZREM" | "RPUSH" => self.named.extend(rest.iter().map(name)),
            "HSET" => self.named.extend(rest.iter().step_by(2).map(name)),
            "ZADD" => self.named.extend(rest.iter().skip(1).step_by(2).map(name)),
            "HGET" | "HSETNX" | "HINCRBY" | "ZSCORE" => drop(self.named.insert(name(&rest[0]))),
            "LINDEX" => self.range("LLEN", number(0), number(0)),
            "LRANGE" => self.range("LLEN", number(0), number(1)),
            "LPOP" => self.take("LLEN", 1),
            "LTRIM" if number(1) == -1 => self.take("LLEN", number(0)),
            "LTRIM" => self.range("LLEN", number(1) + 1, -1),
            "ZREMRANGEBYRANK" => self.take("ZCARD", number(1) + 1),
            "ZRANGE" | "ZRANGEBYSCORE" | "ZRANGEBYLEX" => match behind("LIMIT") {
                Some(at) => self.range("ZCARD", 0, number(at + 1) + number(at + 2) - 1),
                None => self.range("ZCARD", number(0), number(1)),
            },
            "ZSCAN" => self.range("ZCARD", 0, number(behind("COUNT").unwrap() + 1) - 1),
            "HSCAN" => self.range("HLEN", 0, number(behind("COUNT").unwrap() + 1) - 1),
            // As many entries as there are replicas and rings, or none.
            "HGETALL" | "HLEN" | "LLEN" | "ZCARD" | "ZCOUNT" | "ZRANK" | "PUBLISH" | "GET"
            | "SET" | "SETNX" | "APPEND" | "STRLEN" | "UNLINK" | "RENAME" => {}
            other => panic!("how much does {other} touch?"),
        }
    }

    fn range(&mut self, length: &'static str, from: i64, to: i64) {
        self.length = Some(length);
        // A range from the end is as long as the distance, or as the whole list.
        let (from, to) = if to < 0 && from >= 0 { (from, i64::from(i32::MAX)) } else { (from, to) };
        let most = from + 2 * limit::CALL_LOOKS_MAX as i64;
        self.places.extend((from..=to.min(most)).map(|place| place + self.taken));
    }

    fn take(&mut self, length: &'static str, entries: i64) {
        self.range(length, 0, entries - 1);
        self.taken += entries;
    }

    /// Returns the number of touched entries, at most the existing ones; an entry with a name and a position counts
    /// once.
    async fn entries(&self, redis: &Redis, key: &[u8]) -> usize {
        let mut places = self.places.len();
        if let Some(length) = self.length {
            let left = redis.command(&[length.as_bytes(), key]).await;
            let left: i64 = left.strip_prefix(':').unwrap().parse().unwrap();
            places = places.min(usize::try_from(left + self.taken).unwrap());
        }
        places.max(self.named.len())
    }
}

// === the deep shard ===

/// A shard with deep structures of every kind, and its monitor.
struct Rig {
    q: Fixture,
    redis: Redis,
    watch: Watch,
    /// Scripts that read too much, by verb.
    beyond: BTreeMap<&'static str, String>,
}

impl Rig {
    async fn start() -> Option<Rig> {
        let redis = Redis::start().await?;
        let q = Fixture::at(Backend::Redis, &redis.url()).await;
        let watch = Watch::start(&redis).await;
        Some(Rig { q, redis, watch, beyond: BTreeMap::new() })
    }

    /// Checks the scripts that `verb` has run; `reads`: they have changed nothing.
    async fn look(&mut self, verb: &'static str, reads: bool) {
        let scripts = self.watch.scripts(&self.redis).await;
        assert!(!scripts.is_empty(), "{verb}: no script has run");
        let client = redis::Client::open(self.redis.url()).unwrap();
        let mut connection = client.get_multiplexed_async_connection().await.unwrap();
        let most = if LONG.contains(&verb) { PART_MAX } else { limit::CALL_LOOKS_MAX };
        for script in scripts {
            for (kind, entries) in script.touched(&self.redis).await {
                if entries > most {
                    self.beyond.insert(verb, format!("{entries} entries of {kind}"));
                }
            }
            let bytes = if reads { script.bytes(&mut connection).await } else { script.written() };
            if bytes > BYTES_MAX {
                self.beyond.insert(verb, format!("{bytes} bytes"));
            }
        }
        // Discards the commands of the second read.
        self.watch.scripts(&self.redis).await;
    }

    async fn put(&self, jobs: impl Iterator<Item = TestJob>) {
        let jobs: Vec<_> = jobs.collect();
        for part in jobs.chunks(limit::CALL_JOBS_MAX) {
            self.q.store.enqueue(part.to_vec()).await.unwrap();
        }
    }

    async fn delete(&self, ids: &[String]) {
        for part in ids.chunks(limit::CALL_JOBS_MAX) {
            let gone = part.iter().map(|id| JobDeletion::from(key("holes", id)));
            self.q.store.delete(gone.collect()).await.unwrap();
        }
    }

    /// Leases this number of jobs of a topic.
    async fn lease(&self, name: &str, jobs: usize) -> Vec<ringq::store::LeasedJob> {
        let mut leased = Vec::new();
        while leased.len() < jobs {
            let claimed = self.q.claim_for(name, vec![taker()]).await;
            leased.extend(claimed.by_stream.into_iter().flatten());
        }
        leased
    }

    /// Searches the next part for the leases of a lost claim; returns the start of the part after it.
    async fn search(&mut self, lost: &LostClaim) -> Option<String> {
        let undone = self.q.store.unclaim(Unclaim::Claim(lost.clone())).await.unwrap();
        assert_eq!(undone.leases, 0);
        // Its first part writes that the claim is given up.
        self.look("search for a lost claim", lost.cursor.is_some()).await;
        undone.cursor
    }

    async fn list(&self, name: &str, state: State, after: Option<ListCursor>) {
        let list =
            ListQuery { topic: topic(name), state, group: None, full: false, limit: 500, after };
        self.q.store.list(list).await.unwrap();
    }
}

fn ids(n: usize) -> Vec<String> {
    (0..n).map(|n| format!("j{n}")).collect()
}

/// Builds a job with as many headers as it may have.
fn heavy(name: &str, id: &str) -> TestJob {
    let mut job = TestJob { retention: RetentionRule::Nothing, ..job_in(name, id) };
    job.spec.headers = vec![("h".to_owned(), "x".repeat(limit::HEADERS_BYTES_MAX - 1))];
    job
}

/// Builds a job with a large payload.
fn large(name: &str, id: &str) -> TestJob {
    let mut job = job_in(name, id);
    job.spec.payload = Some(text(&"x".repeat(100_000)));
    job
}

async fn fill(rig: &Rig) {
    let nothing =
        |name: &str, id: &str| TestJob { retention: RetentionRule::Nothing, ..job_in(name, id) };
    // Topics: most of them are empty, and some have holes.
    let names: Vec<_> = (0..DEEP).map(|n| format!("topic.{n}")).collect();
    rig.put(names.iter().flat_map(|name| [nothing(name, "a"), nothing(name, "b")])).await;
    for part in names.chunks(limit::CALL_JOBS_MAX) {
        let gone = part.iter().map(|name| JobDeletion::from(key(name, "a")));
        rig.q.store.delete(gone.collect()).await.unwrap();
    }
    // A line whose head is holes, and one whose holes have large records elsewhere.
    rig.put(ids(3 * DEEP).iter().map(|id| nothing("holes", id))).await;
    rig.delete(&ids(DEEP)).await;
    rig.put(ids(1_000).iter().map(|id| heavy("heavy", id))).await;
    let later = |id: &String| JobReschedule {
        key: key("heavy", id),
        due: Some(after(3_600)),
        priority: None,
        deadline: None,
    };
    for part in ids(400).chunks(100) {
        rig.q.store.reschedule(part.iter().map(later).collect()).await.unwrap();
    }
    // Jobs in every state.
    rig.put(ids(DEEP).iter().map(|id| job_in("running", id))).await;
    rig.lease("running", DEEP).await;
    rig.put(ids(DEEP).iter().map(|id| job_in("done", id))).await;
    for part in rig.lease("done", DEEP).await.chunks(limit::CALL_JOBS_MAX) {
        rig.q.store.settle(part.iter().map(ack).collect()).await.unwrap();
    }
    let delayed = |id: &String| TestJob { due: after(3_600), ..job_in("delayed", id) };
    rig.put(ids(DEEP).iter().map(delayed)).await;
}

/// Runs all reads.
async fn read(rig: &mut Rig) {
    let names: Vec<_> = (0..DEEP).map(|n| topic(&format!("topic.{n}"))).collect();
    rig.q.store.topics(String::new(), None, 1_000).await.unwrap();
    rig.look("topics", true).await;
    rig.q
        .store
        .stats(names.clone(), StatsOptions::due_within(Duration::from_secs(30)))
        .await
        .unwrap();
    let deep = ["holes", "heavy", "running", "done", "delayed"].map(topic);
    rig.q
        .store
        .stats(deep.to_vec(), StatsOptions::due_within(Duration::from_secs(30)))
        .await
        .unwrap();
    rig.look("stats", true).await;
    let options = StatsOptions { stored_bytes: true, ..StatsOptions::default() };
    rig.q.store.stats([&names[..100], &deep].concat(), options).await.unwrap();
    rig.look("stored bytes", true).await;
    rig.q.store.info().await.unwrap();
    rig.look("info", true).await;
    for state in State::ALL {
        for name in ["holes", "heavy", "running", "done", "delayed"] {
            rig.list(name, state, None).await;
            rig.list(name, state, Some(ListCursor { due: rig.q.now(), sequence: 100 })).await;
            rig.look(if state == State::Running { "list running" } else { "list" }, true).await;
        }
    }
    // The last jobs of lines with many gaps: what is before them is read in part.
    for (name, id) in [("holes", 3 * DEEP - 1), ("heavy", 999)] {
        let job = key(name, &format!("j{id}"));
        let explained = rig.q.store.explain(job, None, u64::MAX).await.unwrap().unwrap();
        let before = explained.ready_before.unwrap();
        assert!(before.has_more && before.jobs > 0, "{name}: {before:?}");
        rig.look("explain", true).await;
    }
    rig.q.store.ids(topic("holes"), None, limit::CALL_JOBS_MAX).await.unwrap();
    rig.look("ids", true).await;
    rig.q.store.orphaned_leases(vec![OWNER]).await.unwrap();
    rig.look("orphans", true).await;
    let topics = [topic("running")].into();
    let mut lost = LostClaim { nonce: rig.q.nonce(), topics, cursor: None };
    while let Some(next) = rig.search(&lost).await {
        lost.cursor = Some(next);
    }
    let asks = names[..limit::CALL_JOBS_MAX].iter();
    let asks = asks
        .map(|name| TopicDemand { topic: name.clone(), ageing: None, streams: Vec::new() })
        .collect();
    let claim = Claim { nonce: rig.q.nonce(), owner: OWNER, topics: asks };
    rig.q.store.claim(claim).await.unwrap();
    rig.look("claim without takers", true).await;
}

/// Runs calls of the largest size that change something.
async fn write(rig: &mut Rig) {
    const CALL: usize = limit::CALL_JOBS_MAX;
    rig.q.store.prune_topics(None, CALL).await.unwrap();
    rig.look("prune_topics", false).await;
    rig.put(ids(CALL).iter().map(|id| job_in("new", id))).await;
    rig.look("enqueue", false).await;
    // The rest of the holes: the head of the line is more than half of it.
    rig.delete(&ids(2 * DEEP)[DEEP..]).await;
    rig.look("delete", false).await;
    rig.lease("holes", CALL).await;
    rig.look("claim", false).await;
    let asks = (0..CALL).map(|n| topic(&format!("topic.{n}")));
    let one = StreamDemand { jobs: 1, ..taker() };
    let asks =
        asks.map(|topic| TopicDemand { topic, ageing: None, streams: vec![one.clone()] }).collect();
    let claim = Claim { nonce: rig.q.nonce(), owner: OWNER, topics: asks };
    let claimed = rig.q.store.claim(claim).await.unwrap();
    rig.look("claim of many topics", false).await;
    let leased: Vec<_> =
        claimed.topics.into_iter().flat_map(|topic| topic.by_stream).flatten().collect();
    let leases = leased.iter().map(lease_ref).collect();
    rig.q.store.unclaim(Unclaim::Leases(leases)).await.unwrap();
    rig.look("unclaim of leases", false).await;
    let leased = rig.lease("new", CALL).await;
    rig.watch.scripts(&rig.redis).await;
    let extends = leased.iter().map(|leased| crate::store_calls::LeaseExtension {
        lease: lease_ref(leased),
        duration: None,
        progress: None,
        checkpoint: None,
        outage_expiry: None,
        write_deadline: None,
    });
    rig.q.store.extend(extends.collect()).await.unwrap();
    rig.look("extend", false).await;
    rig.q.store.settle(leased.iter().map(ack).collect()).await.unwrap();
    rig.look("settle", false).await;
    let moves = ids(CALL).into_iter().map(|id| JobReschedule {
        key: key("delayed", &id),
        due: Some(after(7_200)),
        priority: Some(3),
        deadline: None,
    });
    rig.q.store.reschedule(moves.collect()).await.unwrap();
    rig.look("reschedule", false).await;
    redrive(rig).await;
    rig.q.sleep(60);
    rig.q.store.overdue_leases(CALL).await.unwrap();
    rig.look("reap", false).await;
    rig.q.store.prune(CALL).await.unwrap();
    rig.look("prune", false).await;
}

/// Redrives as many as one call takes, and some with their payloads to another topic.
async fn redrive(rig: &mut Rig) {
    let redrive = RedriveBatch {
        topic: topic("done"),
        ids: ids(limit::CALL_JOBS_MAX).iter().map(|id| JobId::try_chosen(id).unwrap()).collect(),
        states: State::ALL.into_iter().filter(|state| state.is_terminal()).collect(),
        spacing: std::time::Duration::ZERO,
        delay: std::time::Duration::ZERO,
        target: None,
        ttl: None,
        dry_run: false,
        deadline: None,
    };
    rig.q.store.redrive(redrive.clone()).await.unwrap();
    rig.look("redrive", false).await;
    let large = |id: &String| TestJob {
        retention: RetentionRule::Record(std::time::Duration::from_secs(600)),
        ..large("large", id)
    };
    rig.put(ids(60).iter().map(large)).await;
    let leased = rig.lease("large", 60).await;
    rig.q.store.settle(leased.iter().map(ack).collect()).await.unwrap();
    rig.watch.scripts(&rig.redis).await;
    let to = RedriveBatch { topic: topic("large"), target: Some(topic("other")), ..redrive };
    assert_eq!(rig.q.store.redrive(to).await.unwrap().redriven, 60);
    rig.look("redrive to another topic", false).await;
}

#[tokio::test]
async fn no_script_looks_at_more_than_a_bounded_part_of_a_deep_shard() {
    let Some(mut rig) = Rig::start().await else { return };
    fill(&rig).await;
    rig.watch.scripts(&rig.redis).await;
    read(&mut rig).await;
    write(&mut rig).await;
    for (verb, beyond) in &rig.beyond {
        println!("{verb}: {beyond}");
    }
    let excused: Vec<_> = EXCUSED.iter().map(|(verb, _)| *verb).collect();
    let beyond: Vec<_> = rig.beyond.into_keys().collect();
    assert_eq!(beyond, excused);
}

#[tokio::test]
async fn a_clock_that_went_back_is_healed_in_bounded_steps() {
    let Some(mut rig) = Rig::start().await else { return };
    let mixed = |id: &str, due| TestJob { priority: Some(3), due, ..job_in("mixed", id) };
    let names = ids(3 * DEEP);
    let (now, later) = names.split_at(DEEP);
    rig.put(now.iter().map(|id| mixed(id, When::Now))).await;
    rig.put(later.iter().map(|id| mixed(id, after(3_600)))).await;
    // The line of those without a priority, too.
    rig.put(now.iter().map(|id| job_in("line", id))).await;
    let hour = std::time::Duration::from_secs(3_600);
    rig.q.until(rig.q.now().minus(hour));
    rig.watch.scripts(&rig.redis).await;
    rig.q.reopen().await;
    rig.look("repair", false).await;
    assert!(rig.beyond.is_empty(), "{:?}", rig.beyond);
    let stats = rig
        .q
        .store
        .stats(vec![topic("mixed"), topic("line")], StatsOptions::default())
        .await
        .unwrap();
    let counts = stats.into_iter().map(|stats| stats.unwrap()).map(|s| (s.ready, s.scheduled));
    let (deep, delayed) = (DEEP as u64, 2 * DEEP as u64);
    assert_eq!(counts.collect::<Vec<_>>(), [(deep, delayed), (deep, 0)]);
}
