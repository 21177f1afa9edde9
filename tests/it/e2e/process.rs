use std::error::Error as _;
use std::fs;
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use ringq::pb::{JobState, StreamRequest};
use tokio::time::Instant;
use tonic::Code;
use tonic_types::StatusExt as _;

use crate::harness::{
    JobExt as _, Server, Setup, Worker, assert_refused, eventually, job, millis, request, take,
};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn sigterm_under_load_lets_work_in_hand_finish_and_loses_nothing() {
    let setup = Setup::new().restartable().config("shutdown_grace = \"15s\"");
    let mut server = setup.start().await;
    let client = server.connect().await;
    client.enqueue(job("slow").with_id("long").with_retention(millis(600_000))).await;
    let mut worker = client.stream(take("slow")).await;
    let held = worker.next().await;
    let mut idle = client.stream(take("nothing")).await;

    // Load: producers that count accepted jobs, and a worker that acks.
    let stop = Arc::new(AtomicBool::new(false));
    let producers: Vec<_> = (0..4)
        .map(|_| {
            let (client, stop) = (client.clone(), Arc::clone(&stop));
            tokio::spawn(async move {
                let (mut accepted, mut refused) = (Vec::new(), Vec::new());
                while !stop.load(Ordering::Relaxed) && refused.len() < 20 {
                    match client.send(request(job("load").with_text("x"))).await {
                        Ok(answer) => accepted.push(answer.id),
                        Err(status) => refused.push(status),
                    }
                }
                (accepted, refused)
            })
        })
        .collect();
    client.enqueue(job("load")).await;
    eventually("the load flows", async || (client.stats("load").await.ready > 20).then_some(()))
        .await;

    server.terminate();
    for worker in [&mut worker, &mut idle] {
        worker.end().await;
        assert!(worker.messages.last().unwrap().draining, "the stream is notified");
    }
    let Err(status) = Worker::try_open(&client, take("slow")).await else {
        panic!("a server that leaves takes no new streams")
    };
    assert_refused(&status, Code::Unavailable, "DRAINING", "");
    // The long job takes a while; the server waits for it.
    tokio::time::sleep(millis(1_200)).await;
    client.ack(&held.receipt).await;
    let status = server.exit().await;
    assert_eq!(status.code(), Some(0));
    assert!(server.log().contains("drained: every delivery is settled"), "{}", server.log());
    assert!(!server.is_ready(), "the ready file goes with the server");

    stop.store(true, Ordering::Relaxed);
    let (mut accepted, mut refused) = (Vec::new(), Vec::new());
    for producer in producers {
        let (ids, statuses) = producer.await.unwrap();
        accepted.extend(ids);
        refused.extend(statuses);
    }
    assert!(!accepted.is_empty());
    for status in &refused {
        let cut = status.source().is_some_and(|source| source.is::<tonic::transport::Error>());
        assert!(cut || status.code() == Code::Unavailable, "{status:?}");
    }

    server.restart().await;
    let client = server.connect().await;
    assert_eq!(client.state("slow", "long").await, JobState::Succeeded);
    let stats = client.stats("load").await;
    // An enqueue whose answer was lost may have been written too.
    let written = usize::try_from(stats.ready).unwrap();
    assert!(written >= accepted.len(), "{written} written, {} accepted", accepted.len());
    assert!(written <= accepted.len() + refused.len());
    assert_eq!(stats.running, 0);
}

#[tokio::test]
async fn a_server_that_others_can_reach_states_what_guards_it() {
    let (plain, tls) = ("tls=false authentication=false", "tls=true authentication=false");
    for (address, text, times) in [
        ("127.0.0.1:0", plain, 0),
        ("[::1]:0", plain, 0),
        ("0.0.0.0:0", plain, 1),
        ("0.0.0.0:0", tls, 1),
    ] {
        let setup = Setup::new().listen(address).config("insecure = true");
        let setup = if text == tls { setup.behind_tls() } else { setup };
        let server = setup.start().await;
        if text == tls && !server.has_tls() {
            continue;
        }
        let log = eventually("it logs that it serves", async || {
            Some(server.log()).filter(|log| log.contains("serving"))
        })
        .await;
        assert_eq!(log.matches(text).count(), times, "{address}: {log}");
        assert!(!log.contains("WARN"), "a container listens there: {log}");
    }
}

#[tokio::test]
async fn an_idle_server_ends_without_a_wait() {
    let mut server = Setup::new().config("shutdown_grace = \"1h\"").start().await;
    let _client = server.connect().await;
    server.terminate();
    assert_eq!(server.exit().await.code(), Some(0));
}

#[tokio::test]
async fn a_second_signal_ends_a_server_that_waits_for_its_workers() {
    let mut server = Setup::new().config("shutdown_grace = \"60s\"").start().await;
    let client = server.connect().await;
    client.enqueue(job("slow")).await;
    let mut worker = client.stream(take("slow")).await;
    worker.next().await;
    server.terminate();
    worker.end().await;
    server.terminate();
    assert_eq!(server.exit().await.code(), Some(130), "interrupted");
}

#[tokio::test]
async fn a_job_that_is_not_settled_in_the_grace_comes_back_with_the_next_server() {
    let setup = Setup::new().restartable().config("shutdown_grace = \"1s\"");
    let mut server = setup.start().await;
    let client = server.connect().await;
    client.enqueue(job("slow").with_id("a").with_max_attempts(1)).await;
    let orphan_grace = Some(crate::harness::proto(millis(500)));
    let mut worker = client.stream(StreamRequest { orphan_grace, ..take("slow") }).await;
    let held = worker.next().await;
    let begin = Instant::now();
    server.terminate();
    worker.end().await;
    assert_eq!(server.exit().await.code(), Some(0));
    assert!(begin.elapsed() > millis(800), "it took {:?}", begin.elapsed());
    for part in [
        "delay_s=0",
        "streams=1 unsettled=1 grace_s=1",
        "WARN ringq::app::drain: the shutdown grace is over",
    ] {
        assert!(server.log().contains(part), "{part}: {}", server.log());
    }
    server.restart().await;
    // Its receipt is valid as long as its lease is live.
    let client = server.connect().await;
    client.ack(&held.receipt).await;
    assert_eq!(client.pull_now("slow", 1).await, []);
}

/// Starts it, and expects one line with the reason.
async fn refused_start(setup: Setup, code: i32, parts: &[&str]) {
    let failure = setup.fail().await;
    assert_eq!(failure.code, Some(code), "{}", failure.stderr);
    assert_eq!(failure.stdout, "");
    let complaints: Vec<_> =
        failure.stderr.lines().filter(|line| line.starts_with("ringq: ")).collect();
    assert_eq!(complaints.len(), 1, "one clear line:\n{}", failure.stderr);
    for part in parts {
        assert!(complaints[0].contains(part), "{part:?} in {:?}", complaints[0]);
    }
    for never in ["panicked", "RUST_BACKTRACE", "Error {", "unwrap", " src/"] {
        assert!(!failure.stderr.contains(never), "{never:?} in\n{}", failure.stderr);
    }
    let log: Vec<_> = failure.stderr.lines().filter(|line| !line.starts_with("ringq: ")).collect();
    assert!(
        log.iter().all(|line| !line.contains("ERROR")),
        "the complaint is not logged, too:\n{}",
        failure.stderr
    );
}

#[tokio::test]
async fn a_taken_port_is_reported() {
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = taken.local_addr().unwrap().to_string();
    refused_start(Setup::new().listen(&address), 1, &[&address, "in use", "--listen"]).await;
}

#[tokio::test]
async fn a_directory_that_cannot_be_written_is_reported() {
    let setup = Setup::new();
    let file = setup.dir().join("a-file");
    fs::write(&file, "").unwrap();
    let below = file.join("s0.db");
    let setup = setup.shard(format!("s0=sqlite:{}", below.display()));
    refused_start(setup, 1, &["cannot write to", "a-file"]).await;

    // A path that is not writable even for root.
    let setup = Setup::new().shard("s0=sqlite:/proc/ringq/s0.db");
    refused_start(setup, 1, &["cannot write to", "/proc/ringq"]).await;
}

#[tokio::test]
async fn a_second_server_on_the_same_file_is_refused_and_the_first_goes_on() {
    let server = Server::start().await;
    let client = server.connect().await;
    client.enqueue(job("mail").with_id("a")).await;
    let second = Setup::new().shard(format!("s0=sqlite:{}", server.database().display()));
    refused_start(second, 1, &["s0.db"]).await;
    client.enqueue(job("mail").with_id("b")).await;
    let mut worker = client.stream(take("mail")).await;
    worker.next_many(2).await;
}

#[tokio::test]
async fn a_file_that_is_no_database_is_reported_and_left_alone() {
    let setup = Setup::new();
    let garbage = b"this is no database, but the only copy of something".repeat(500);
    fs::write(setup.database(), &garbage).unwrap();
    let (dir, file) = (setup.dir().to_owned(), setup.database());
    let keep = tempfile::tempdir().unwrap();
    let elsewhere = keep.path().join("s0.db");
    fs::copy(&file, &elsewhere).unwrap();
    assert!(dir.exists());
    let setup = setup.shard(format!("s0=sqlite:{}", elsewhere.display()));
    refused_start(setup, 1, &["s0.db"]).await;
    assert_eq!(fs::read(&elsewhere).unwrap(), garbage, "nothing was written to it");
}

#[tokio::test]
async fn a_database_of_another_program_is_refused() {
    let keep = tempfile::tempdir().unwrap();
    let file = keep.path().join("other.db");
    let other = rusqlite::Connection::open(&file).unwrap();
    other
        .execute_batch("CREATE TABLE invoices (id INTEGER); INSERT INTO invoices VALUES (1)")
        .unwrap();
    drop(other);
    let setup = Setup::new().shard(format!("s0=sqlite:{}", file.display()));
    refused_start(setup, 1, &["other.db"]).await;
    let other = rusqlite::Connection::open(&file).unwrap();
    let tables: i64 =
        other.query_row("SELECT count(*) FROM sqlite_master", [], |row| row.get(0)).unwrap();
    assert_eq!(tables, 1, "nothing was added to it");
}

#[tokio::test]
async fn a_shard_of_another_name_is_refused() {
    let mut server = Server::start().await;
    server.terminate();
    server.exit().await;
    let setup = Setup::new().shard(format!("s1=sqlite:{}", server.database().display()));
    refused_start(setup, 1, &["s0", "s1"]).await;
}

#[tokio::test]
async fn a_database_that_another_process_holds_is_reported() {
    let mut server = Server::start().await;
    server.connect().await.enqueue(job("mail")).await;
    server.terminate();
    server.exit().await;
    let holder = rusqlite::Connection::open(server.database()).unwrap();
    holder.pragma_update(None, "locking_mode", "EXCLUSIVE").unwrap();
    holder.execute_batch("BEGIN EXCLUSIVE; CREATE TABLE held (x)").unwrap();
    let database = server.database();
    let setup = Setup::new().shard(format!("s0=sqlite:{}", database.display()));
    refused_start(setup, 1, &["s0.db"]).await;
    drop(holder);
}

#[tokio::test]
async fn each_mistake_in_the_settings_is_reported_with_its_place() {
    let bad = |line: &str| Setup::new().config(line);
    refused_start(bad("shutdown_grace = \"soon\""), 2, &["shutdown_grace", "soon"]).await;
    refused_start(bad("listne = \"x\""), 2, &["listne"]).await;
    refused_start(bad("max_streams = 0"), 2, &["max_streams"]).await;
    refused_start(bad("this is no toml"), 2, &["ringq.toml"]).await;
    refused_start(Setup::new().shard("s0=mysql://localhost/x"), 2, &["mysql"]).await;
    refused_start(Setup::new().shard("S 0=sqlite:x.db"), 2, &["S 0"]).await;
    refused_start(Setup::new().listen("nowhere"), 2, &["nowhere"]).await;
    let two = Setup::new().config("shutdown_grace = \"soon\"").listen("nowhere").fail().await;
    assert_eq!(two.code, Some(2));
    assert_eq!(two.stderr.lines().count(), 2, "all mistakes at once:\n{}", two.stderr);
}

/// A file system of a few MiB; unmounted when dropped.
struct SmallDisk(PathBuf);

impl SmallDisk {
    /// Mounts one in `dir`; `None` where that is not allowed.
    fn mount(dir: &Path) -> Option<SmallDisk> {
        let path = dir.join("disk");
        fs::create_dir(&path).unwrap();
        let options = ["-t", "tmpfs", "-o", "size=64m", "ringq-test"];
        let mounted = Command::new("mount").args(options).arg(&path).output();
        match mounted {
            Ok(output) if output.status.success() => Some(SmallDisk(path)),
            _ => None,
        }
    }
}

impl Drop for SmallDisk {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg("-l").arg(&self.0).status();
    }
}

#[tokio::test]
async fn a_full_disk_refuses_jobs_settles_those_it_has_and_recovers() {
    let dir = tempfile::tempdir().unwrap();
    let Some(disk) = SmallDisk::mount(dir.path()) else {
        eprintln!("skipped: mounting a small disk needs root");
        return;
    };
    let url = format!("s0=sqlite:{}", disk.0.join("s0.db").display());
    let server = Setup::new().shard(url).start().await;
    let client = server.connect().await;
    for id in ["held", "later"] {
        client.enqueue(job("mail").with_id(id).with_retention(millis(600_000))).await;
    }
    let held = client.pull_one("mail").await;

    // A foreign file takes a part of the disk, jobs the rest.
    let ballast = disk.0.join("ballast");
    fs::write(&ballast, vec![0; 24 << 20]).unwrap();
    let mut accepted = 0;
    let status = loop {
        match client.send(request(job("bulk").with_bytes(100_000))).await {
            Ok(_) => accepted += 1,
            Err(status) => break status,
        }
        assert!(accepted < 400, "the disk has no end");
    };
    assert_refused(&status, Code::ResourceExhausted, "STORE_FULL", "");
    assert!(status.get_details_retry_info().is_some(), "the error has a retry delay");
    for _ in 0..3 {
        let status = client.send(request(job("bulk").with_bytes(100_000))).await.unwrap_err();
        assert_refused(&status, Code::ResourceExhausted, "STORE_FULL", "");
    }
    assert_eq!(client.stats("bulk").await.ready, accepted, "what was refused was not written");
    // Reads still work, and so do settles, which free room: a full queue can be drained.
    assert_eq!(client.state("mail", "later").await, JobState::Ready);
    client.ack(&held.receipt).await;
    let mut worker = client.stream(StreamRequest { max_in_flight: 5, ..take("bulk") }).await;
    for _ in 0..accepted / 2 {
        let delivery = worker.next().await;
        client.ack(&delivery.receipt).await;
    }

    // With room again everything works, without a restart, and nothing was lost.
    fs::remove_file(&ballast).unwrap();
    for _ in accepted / 2..accepted {
        let delivery = worker.next().await;
        client.ack(&delivery.receipt).await;
    }
    eventually("jobs are accepted again", async || {
        client.send(request(job("bulk").with_bytes(1_000))).await.ok()
    })
    .await;
    assert_eq!(client.state("mail", "held").await, JobState::Succeeded);
    assert_eq!(client.pull_one("mail").await.id, "later");
    drop(worker);
    drop(server);
    drop(disk);
}

#[tokio::test]
async fn a_log_that_no_reader_reads_any_more_ends_no_server() {
    let mut server = Setup::new().unread().start().await;
    let client = server.connect().await;
    client.enqueue(job("mail").with_id("a")).await;
    server.terminate();
    assert!(server.exit().await.success());
}
