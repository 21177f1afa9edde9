use std::time::Duration;

use tokio::io::{AsyncBufReadExt as _, BufReader};

use super::work_rig::signal;
use super::{command, finish, ringq, rows, silenced};
use crate::harness::{
    Redis, Server, Setup, eventually, for_a_while, job, millis, nack, names_lock, receipts, within,
    within_long,
};

/// Guard of the wait for an empty shard to leave the ring: until no call that writes to it can be in flight.
const LEAVES_RING: Duration = Duration::from_secs(150);

#[tokio::test]
async fn shards_are_listed() {
    let server = Server::start().await;
    server.connect().await.enqueue(job("mail").with_delay(millis(3_600_000))).await;
    let table = rows(&ringq(&server, &["shard", "list"]).await.ok());
    assert_eq!(table[0][..4], ["NAME", "STATE", "WEIGHT", "JOBS"]);
    assert_eq!(table[0][4..8], ["READY", "RUNNING", "SCHEDULED", "BACKOFF"]);
    assert_eq!(table[0][8..12], ["DEAD", "FINISHED", "LAST DUE", "KEPT UNTIL"]);
    assert_eq!(table[1][..10], ["s0", "ACTIVE", "1", "1", "0", "0", "1", "0", "0", "0"]);
    assert_eq!(table[1][10], "in 1h");
    assert_eq!(table.len(), 2);
    let json = ringq(&server, &["shard", "list", "-o", "json"]).await.json();
    assert_eq!(json[0]["name"], "s0");
    assert_eq!(json[0]["state"], "SHARD_STATE_ACTIVE");
    assert_eq!((&json[0]["role"], &json[0]["scheduled"]), (&json[0]["state"], &"1".into()));
}

#[tokio::test]
async fn a_shard_that_does_not_answer_has_no_numbers() {
    let server = Setup::new().shards(2).start().await;
    let holder = rusqlite::Connection::open(server.shard_file("s1")).unwrap();
    holder.execute_batch("BEGIN IMMEDIATE").unwrap();
    let ran = eventually("the shard is left alone", async || {
        ringq(&server, &["shard", "drain", "s1"]).await.fails(4, &["cannot drain shard s1"]);
        Some(ringq(&server, &["shard", "list"]).await).filter(|ran| ran.code != 0)
    });
    let ran = ran.await.fails(4, &["1 of 2 shards do not answer"]);
    let table = rows(&ran.stdout);
    assert_eq!(table[1][..4], ["s0", "ACTIVE", "1", "0"]);
    assert_eq!(table[2][..3], ["s1", "UNREACHABLE", "1"]);
    let why = ran.stdout.lines().last().unwrap();
    assert!(why.starts_with("s1: ") && names_lock(why), "{why}");
}

#[tokio::test]
async fn a_shard_that_does_not_answer_keeps_no_other_from_the_others() {
    let server = Setup::new().shards(2).start().await;
    let client = server.connect().await;
    let ids: Vec<String> = (0..20).map(|n| format!("n{n}")).collect();
    for id in &ids {
        client.enqueue(job("mail").with_id(id).with_delay(millis(3_600_000))).await;
    }
    let _holder = silenced(&server, "s1").await;
    let all: Vec<_> =
        ["job", "delete", "mail"].into_iter().chain(ids.iter().map(|id| &**id)).collect();
    let ran = ringq(&server, &all).await.fails(4, &["cannot delete job mail/n", "shard s1"]);
    let (deleted, failed) =
        (ran.stdout.lines().count(), ran.stderr.matches("cannot delete").count());
    assert!(deleted > 0 && failed > 0 && deleted + failed == ids.len(), "{ran:?}");
    let work = ["work", "mail", "--exec", "true", "--idle-exit", "200ms"];
    let waits =
        "ringq: jobs wait on shards that do not answer: s1; `ringq shard list` prints why\n";
    let without = "shards that do not answer, or are not configured at this server: s1";
    ringq(&server, &work).await.fails(4, &["0 acked", without, waits]);
    let none = ringq(&server, &["job", "list", "mail", "--state", "running"]).await;
    none.fails(4, &["no such jobs in mail on the shards that answer\n"]);
}

#[tokio::test]
async fn a_shard_is_drained_and_taken_back() {
    let server = Setup::new().shards(2).start().await;
    let client = server.connect().await;
    // Twice the number of server-made ids that go to one shard in a row: some for each shard.
    client.enqueue_all(vec![job("mail").with_delay(millis(3_600_000)); 128]).await;
    let text = ringq(&server, &["shard", "drain", "s1"]).await.ok();
    let lines: Vec<&str> = text.lines().collect();
    assert_eq!(lines[..2], ["s1 DRAINING: new jobs go elsewhere", "on it: 64 jobs: 64 scheduled"]);
    assert!(lines[2].starts_with("the last delayed or retried one is due 20"), "{text}");
    // A busy machine may take more than a second until here.
    let is_in_an_hour = ["Z (in 1h)", "Z (in 59m)"].iter().any(|end| lines[2].ends_with(end));
    assert!(is_in_an_hour && lines.len() == 3, "{text}");
    let table = rows(&ringq(&server, &["shards", "ls"]).await.ok());
    assert_eq!((&*table[1][1], &*table[2][1]), ("ACTIVE", "DRAINING"));
    let json = ringq(&server, &["shard", "drain", "s1", "-o", "json"]).await.json();
    assert_eq!((&json["role"], &json["jobs"]), (&"SHARD_STATE_DRAINING".into(), &"64".into()));
    let text = ringq(&server, &["shard", "activate", "s1"]).await.ok();
    assert_eq!(text, "s1 ACTIVE: it takes new jobs\n");
    let json = ringq(&server, &["shard", "activate", "s1", "-o", "json"]).await.json();
    assert_eq!(json["state"], "SHARD_STATE_ACTIVE");
}

#[tokio::test]
async fn a_wait_ends_when_the_shard_is_empty_and_reports_what_is_left() {
    let server = Setup::new().shards(2).start().await;
    let client = server.connect().await;
    client.enqueue_all(vec![job("mail"); 128]).await;
    let mut waiting = command(server.grpc, &["shard", "drain", "s1", "--wait"]).spawn().unwrap();
    let mut lines = BufReader::new(waiting.stdout.take().unwrap()).lines();
    let first = within("the first line", lines.next_line()).await.unwrap().unwrap();
    assert_eq!(first, "s1 DRAINING: new jobs go elsewhere");
    let mut pulled = Vec::new();
    while pulled.len() < 128 {
        pulled.extend(client.pull_now("mail", 128).await);
    }
    let last = pulled.iter().position(|d| d.id.starts_with("s1~")).unwrap();
    let mut receipts = receipts(&pulled);
    let dead = receipts.remove(last);
    client.ack_all(&receipts).await;
    client.nack(nack(&dead, ringq::pb::NackAction::DeadLetter)).await;
    let mut notes = BufReader::new(waiting.stderr.take().unwrap()).lines();
    loop {
        let line =
            within("a note", notes.next_line()).await.unwrap().expect("one about what is left");
        if line == "s1: 1 job: 1 dead" {
            break;
        }
    }
    assert!(waiting.try_wait().unwrap().is_none(), "a dead letter lies on it");
    let id = &pulled[last].id;
    ringq(&server, &["job", "delete", "mail", id]).await.ok();
    // Empty alone does not suffice: a call that began before may still write to it.
    let line = within("a note", notes.next_line()).await.unwrap().expect("one more");
    assert!(line.starts_with("s1: no jobs; waiting until no server"), "{line}");
    assert!(waiting.try_wait().unwrap().is_none(), "it is on the ring");
    let ended = within_long(LEAVES_RING, "it leaves the ring", waiting.wait()).await;
    assert!(ended.unwrap().success());
    let mut rest = Vec::new();
    while let Some(line) = lines.next_line().await.unwrap() {
        rest.push(line);
    }
    assert_eq!(rest.last().unwrap(), "s1 is empty");
}

#[tokio::test]
async fn a_wait_goes_on_while_a_shard_is_silent_that_would_report_who_writes() {
    let (Some(mut a), Some(b)) = (Redis::start().await, Redis::start().await) else { return };
    let (first, second) = (format!("a={}", a.url()), format!("b={}", b.url()));
    let server = Setup::new().ring(vec![first, second]).start().await;
    a.kill();
    let mut waiting = command(server.grpc, &["shard", "drain", "b", "--wait"]).spawn().unwrap();
    let mut notes = BufReader::new(waiting.stderr.take().unwrap()).lines();
    within("why it waits", async {
        loop {
            let line = notes.next_line().await.unwrap().expect("it goes on");
            if line.starts_with("b: no jobs; a server may have") && line.contains("until a answers")
            {
                return;
            }
        }
    })
    .await;
    // A silent server has not agreed, however long it is silent.
    let ended = for_a_while(Duration::from_secs(75), waiting.wait()).await;
    assert!(ended.is_none(), "the wait has ended");
    waiting.kill().await.unwrap();
}

#[tokio::test]
async fn a_wait_ends_when_the_shard_is_taken_back() {
    let server = Setup::new().shards(2).start().await;
    server.connect().await.enqueue_all(vec![job("mail"); 128]).await;
    let mut waiting = command(server.grpc, &["shard", "drain", "s1", "--wait"]).spawn().unwrap();
    let mut lines = BufReader::new(waiting.stdout.take().unwrap()).lines();
    within("the first line", lines.next_line()).await.unwrap().unwrap();
    ringq(&server, &["shard", "activate", "s1"]).await.ok();
    finish(waiting).await.fails(1, &["shard s1 takes new jobs again"]);
}

/// The wait ends; the drain continues.
#[tokio::test]
async fn a_signal_ends_the_wait_and_not_the_drain() {
    let server = Setup::new().shards(2).start().await;
    server.connect().await.enqueue_all(vec![job("mail"); 128]).await;
    for (name, code) in [("INT", 130), ("TERM", 143)] {
        let mut waiting =
            command(server.grpc, &["shard", "drain", "s1", "--wait"]).spawn().unwrap();
        let mut lines = BufReader::new(waiting.stdout.take().unwrap()).lines();
        within("the first line", lines.next_line()).await.unwrap().unwrap();
        signal(&waiting.id().unwrap().to_string(), name);
        let texts = ["ringq: s1 goes on draining", "`ringq shard activate s1`"];
        finish(waiting).await.fails(code, &texts);
        let table = rows(&ringq(&server, &["shard", "list"]).await.ok());
        assert_eq!(table[2][..2], ["s1", "DRAINING"]);
    }
}

#[tokio::test]
async fn what_cannot_be_drained_is_reported_with_what_to_do() {
    let server = Setup::new().shards(1).start().await;
    let ran = ringq(&server, &["shard", "drain", "s7"]).await;
    ran.fails(3, &["cannot drain shard s7: there is no such shard", "`ringq shard list`"]);
    let ran = ringq(&server, &["shard", "drain", "s0"]).await;
    ran.fails(1, &["no other shard takes new jobs", "`ringq shard activate`"]);
    let ran = ringq(&server, &["shard", "drain", "S 0"]).await;
    ran.fails(2, &["a shard is named by 1 to 8 of a-z and 0-9"]);
}

#[tokio::test]
async fn a_shard_that_takes_no_new_jobs_is_shown_with_what_to_do() {
    let Some(redis) = Redis::start().await else { return };
    let server = Setup::on(&redis.url()).start().await;
    redis.command(&["CONFIG", "SET", "maxmemory-policy", "allkeys-lru"]).await;
    // Seen on the next connection, and without one within seconds.
    redis.command(&["CLIENT", "KILL", "TYPE", "normal"]).await;
    let table = eventually("it refuses", async || {
        let table = ringq(&server, &["shard", "list"]).await.ok();
        Some(table).filter(|table| table.contains("refusing"))
    })
    .await;
    assert_eq!(rows(&table)[1][..3], ["s0", "ACTIVE, refusing", "1"]);
    let why = table.lines().last().unwrap();
    assert!(
        why.starts_with("s0: ") && why.ends_with("; set maxmemory-policy to noeviction"),
        "{table}"
    );
    let text = ringq(&server, &["shard", "activate", "s0"]).await.ok();
    assert_eq!(text, why.replace("s0:", "s0 ACTIVE, but refusing:") + "\n");
}
