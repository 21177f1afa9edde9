//! `ringq work`: its leases, its end, and its failures.

use ringq::pb::{DeleteRequest, JobState, RetryPolicy};

use super::silenced;
use super::work_rig::{Work, gone, kept, lives, signal};
use crate::harness::{Client, JobExt as _, Server, Setup, eventually, job, millis, take};

/// Prints its process id and waits for the file `go`.
const WAIT: &str = "echo $$; while [ ! -e go ]; do sleep 0.02; done";

async fn delete(client: &Client, id: &str) {
    let request = DeleteRequest { topic: "t".into(), id: id.into(), allow_missing: false };
    client.queue.clone().delete(request).await.unwrap();
}

#[tokio::test]
async fn a_timeout_ends_the_whole_process_group() {
    let server = Server::start().await;
    let client = server.connect().await;
    client.enqueue(job("t").with_id("a")).await;
    let args = ["--run-timeout", "300ms", "--max-jobs", "1"];
    let done = Work::start(&server, "sleep 1000 & echo $!; wait", &args).done().await;
    gone(&done.stdout[0]).await;
    assert!(done.stderr.contains(": timed out after 300ms\n"), "{}", done.stderr);
    let error = client.get("t", "a").await.last_error;
    assert_eq!(error, "timed out after 300ms");

    // The shell obeys SIGTERM, its child does not.
    client.enqueue(job("t").with_id("b")).await;
    let exec = "sh -c 'trap \"\" TERM; echo $$; while :; do sleep 0.05; done' & wait";
    let done = Work::start(&server, exec, &args).done().await;
    gone(&done.stdout[0]).await;
    let error = client.get("t", "b").await.last_error;
    assert!(error.starts_with("timed out after 300ms"), "{error}");
    assert_eq!(client.get("t", "b").await.failures, 1);
}

#[tokio::test]
async fn a_job_that_is_deleted_while_it_runs_is_killed_at_once() {
    let server = Server::start().await;
    let client = server.connect().await;
    client.enqueue(job("t").with_id("a")).await;
    let mut work = Work::start(&server, "sleep 1000 & echo $!; echo $$; wait; :", &[]);
    let (child, shell) = (work.line().await, work.line().await);
    delete(&client, "a").await;
    gone(&child).await;
    gone(&shell).await;
    work.prints("t/a  taken away after ").await;
    work.prints("ringq: t/a was revoked: the job was deleted\n").await;
    // The worker continues.
    client.enqueue(job("t").with_id("b")).await;
    work.line().await;
    delete(&client, "b").await;
    work.prints("t/b  taken away after ").await;
    work.signal("TERM");
    let done = work.done().await;
    assert_eq!(done.code, Some(0));
    assert!(done.stderr.ends_with("ringq: 0 acked, 2 not settled\n"), "{}", done.stderr);
}

#[tokio::test]
async fn a_lease_is_extended_for_as_long_as_the_command_runs() {
    let server = Server::start().await;
    let client = server.connect().await;
    client.enqueue(kept("t", "a")).await;
    let args = ["--lease", "1s", "--idle-exit", "1s"];
    let done = Work::start(&server, "echo once; sleep 3", &args).done().await;
    assert_eq!((done.code, &*done.stdout), (Some(0), &["once".to_owned()][..]));
    let job = client.get("t", "a").await;
    assert_eq!((job.state(), job.deliveries), (JobState::Succeeded, 1));
}

#[tokio::test]
async fn sigterm_lets_the_command_finish_and_gives_the_others_back() {
    let server = Server::start().await;
    let client = server.connect().await;
    client.enqueue_all(["a", "b", "c"].map(|id| kept("t", id)).to_vec()).await;
    let mut work = Work::start(&server, WAIT, &["--prefetch", "2"]);
    work.line().await;
    crate::harness::eventually("all are held", async || {
        (client.stats("t").await.running == 3).then_some(())
    })
    .await;
    work.signal("TERM");
    work.prints("ringq: stopping when the command that runs has ended").await;
    let mut other = client.stream(take("t")).await;
    let back = other.next_many(2).await;
    assert!(back.iter().all(|job| job.attempt == 1 && job.delivery == 2), "{back:?}");
    other.quiet(millis(200)).await;
    work.go();
    let done = work.done().await;
    assert_eq!(done.code, Some(0), "{}", done.stderr);
    assert!(done.stderr.ends_with("ringq: 1 acked, 2 released\n"), "{}", done.stderr);
    assert_eq!(client.state("t", "a").await, JobState::Succeeded);
    assert_eq!(client.get("t", "a").await.deliveries, 1);
}

/// Each death of the worker's process takes the grace of its stream.
#[tokio::test]
async fn a_job_whose_worker_is_killed_is_dead_after_max_crashes() {
    let server = Server::start().await;
    let client = server.connect().await;
    let retry = RetryPolicy { max_crashes: 2, ..Default::default() };
    client.enqueue(job("t").with_id("a").with_retry(retry)).await;
    for crashes in 1..=2 {
        let mut work = Work::start(&server, WAIT, &[]);
        let command = work.line().await;
        work.signal("KILL");
        // Nothing else ends the command of a killed worker.
        signal(&command, "KILL");
        let back = async || Some(client.get("t", "a").await).filter(|job| job.crashes == crashes);
        let job = eventually("the crash is counted", back).await;
        assert_eq!(job.state() == JobState::Dead, crashes == 2, "{job:?}");
    }
    let dead = client.get("t", "a").await;
    assert_eq!((dead.failures, dead.deliveries), (0, 2));
    assert!(dead.last_error.contains("crash 2"), "{}", dead.last_error);
}

#[tokio::test]
async fn a_second_signal_kills_and_the_job_is_back_at_once() {
    let server = Server::start().await;
    let client = server.connect().await;
    client.enqueue(job("t").with_id("a").with_max_attempts(1)).await;
    let mut work = Work::start(&server, WAIT, &[]);
    let shell = work.line().await;
    work.signal("INT");
    work.prints("a second signal kills it").await;
    assert!(lives(&shell), "it is not in our process group");
    work.signal("TERM");
    let done = work.done().await;
    assert_eq!(done.code, Some(130));
    gone(&shell).await;
    assert!(done.stderr.contains("t/a  released in "), "{}", done.stderr);
    let job = client.get("t", "a").await;
    assert_eq!((job.state(), job.failures), (JobState::Ready, 0));
}

#[tokio::test]
async fn a_closed_terminal_lets_the_command_finish() {
    let server = Server::start().await;
    let client = server.connect().await;
    client.enqueue(kept("t", "a")).await;
    // This test itself may run under nohup, and ignored signals are inherited.
    let with_hup = r#"exec env --default-signal=HUP "$0" "$@""#;
    let mut work = Work::start_after(with_hup, &server, WAIT, &[]);
    let shell = work.line().await;
    work.signal("HUP");
    work.prints("ringq: stopping when the command that runs has ended").await;
    // The shell's own, after that of the kernel.
    work.signal("HUP");
    tokio::time::sleep(millis(300)).await;
    assert!(lives(&shell));
    work.go();
    let done = work.done().await;
    assert_eq!(done.code, Some(0), "{}", done.stderr);
    assert_eq!(client.state("t", "a").await, JobState::Succeeded);
}

#[tokio::test]
async fn sigquit_kills_at_once() {
    let server = Server::start().await;
    let client = server.connect().await;
    client.enqueue(job("t").with_id("a").with_max_attempts(1)).await;
    let mut work = Work::start(&server, WAIT, &[]);
    let shell = work.line().await;
    work.signal("QUIT");
    let done = work.done().await;
    assert_eq!(done.code, Some(130), "{}", done.stderr);
    gone(&shell).await;
    assert!(done.stderr.contains("ringq: SIGQUIT: killing the command\n"), "{}", done.stderr);
    assert_eq!(client.state("t", "a").await, JobState::Ready);
}

#[tokio::test]
async fn under_nohup_a_closed_terminal_changes_nothing() {
    let server = Server::start().await;
    let work = Work::start_after("trap '' HUP", &server, "true", &[]);
    work.prints("ringq: connected").await;
    work.signal("HUP");
    tokio::time::sleep(millis(300)).await;
    assert!(!work.stderr().contains("stopping"), "{}", work.stderr());
    work.signal("TERM");
    assert_eq!(work.done().await.code, Some(0));
}

#[tokio::test]
async fn ctrl_c_ends_an_idle_worker_as_interrupted() {
    let server = Server::start().await;
    let work = Work::start(&server, "true", &[]);
    work.prints("ringq: connected").await;
    work.signal("INT");
    assert_eq!(work.done().await.code, Some(130));
}

#[tokio::test]
async fn a_command_outlives_its_server() {
    let mut server = Setup::new().restartable().start().await;
    let client = server.connect().await;
    client.enqueue(kept("t", "a")).await;
    let mut work = Work::start(&server, WAIT, &[]);
    work.line().await;
    server.kill().await;
    work.prints("ringq: no connection to http://").await;
    work.go();
    work.prints("t/a  done in ").await;
    // Time for some more attempts.
    tokio::time::sleep(millis(1_000)).await;
    server.restart().await;
    let job = server.connect().await.until("t", "a", JobState::Succeeded).await;
    assert_eq!(job.deliveries, 1);
    // The Ack needs no stream, so it may be through before there is one again.
    work.prints(" again, taking t (up to 1 at").await;
    work.signal("TERM");
    let done = work.done().await;
    assert_eq!(done.code, Some(0), "{}", done.stderr);
    assert!(done.stderr.ends_with("ringq: 1 acked\n"), "{}", done.stderr);
    let times_of = |part: &str| done.stderr.lines().filter(|line| line.contains(part)).count();
    let times = [times_of("; retrying until it answers"), times_of(" again, taking t (up to 1 at")];
    assert_eq!(times, [1, 1], "{}", done.stderr);
    assert!(!done.stderr.contains("os error"), "{}", done.stderr);
}

#[tokio::test]
async fn the_jobs_of_a_worker_that_died_come_back() {
    let server = Server::start().await;
    let client = server.connect().await;
    client.enqueue(job("t").with_id("a")).await;
    let mut work = Work::start(&server, WAIT, &[]);
    let shell = work.line().await;
    work.signal("KILL");
    let again = client.pull_one("t").await;
    assert_eq!((again.id.as_str(), again.attempt, again.delivery), ("a", 1, 2));
    // No process was left to kill it.
    signal(&shell, "KILL");
}

#[tokio::test]
async fn a_closed_standard_output_ends_the_worker_and_fails_no_job() {
    let server = Server::start().await;
    let client = server.connect().await;
    let jobs = (0..200).map(|_| job("t").with_text("line\n").with_max_attempts(1));
    client.enqueue_all(jobs.collect()).await;
    let mut work = Work::start(&server, "cat", &["--concurrency", "4"]);
    work.line().await;
    work.close_stdout();
    let done = work.done().await;
    assert_eq!(done.code, Some(0), "{}", done.stderr);
    assert!(done.stderr.contains("ringq: standard output has no reader: stopping"));
    let stats = client.stats("t").await;
    assert_eq!((stats.dead, stats.running), (0, 0), "{}", done.stderr);
}

/// Starts a worker in the middle of a job whose shard does not answer any more, until the lock is dropped.
async fn on_a_silent_shard(server: &Server, args: &[&str]) -> (Work, rusqlite::Connection) {
    let client = server.connect().await;
    let shard = client.enqueue(job("t").with_id("a")).await.shard;
    let mut work = Work::start(server, WAIT, &[&["--max-jobs", "1"], args].concat());
    work.line().await;
    let holder = silenced(server, &shard).await;
    (work, holder)
}

#[tokio::test]
async fn an_ack_that_waits_for_its_shard_reports_it() {
    let server = Setup::new().shards(2).start().await;
    let (work, holder) = on_a_silent_shard(&server, &["--lease", "60s"]).await;
    work.go();
    work.prints("ringq: t/a cannot be extended or settled yet: shard s").await;
    drop(holder);
    work.prints("ringq: calls succeed again; the cause was: shard s").await;
    let done = work.done().await;
    assert_eq!(done.code, Some(0));
    assert!(done.stderr.ends_with("ringq: 1 acked\n"), "{}", done.stderr);
}

#[tokio::test]
async fn a_job_whose_shard_stays_away_is_named_with_what_becomes_of_it() {
    let server = Setup::new().shards(2).start().await;
    let (work, _holder) = on_a_silent_shard(&server, &["--lease", "12s"]).await;
    work.go();
    let done = work.done().await;
    let not_settled = "ringq: t/a may be settled or not: shard s";
    assert!(done.stderr.contains(not_settled), "{}", done.stderr);
    let end = ", so it may run again\nringq: 0 acked, 1 not settled\n";
    assert!(done.stderr.ends_with(end), "{}", done.stderr);
}

#[tokio::test]
async fn a_lease_that_cannot_be_kept_states_why() {
    let server = Setup::new().shards(2).start().await;
    let (work, _holder) = on_a_silent_shard(&server, &["--lease", "12s"]).await;
    work.prints("ringq: t/a cannot be extended or settled yet: shard s").await;
    work.prints("ringq: t/a was revoked: its lease expired; extending it failed: shard s").await;
    let done = work.done().await;
    assert!(done.stderr.ends_with("ringq: 0 acked, 1 not settled\n"), "{}", done.stderr);
}
