use std::collections::HashSet;
use std::fs::{self, File};
use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::fd::OwnedFd;
use std::path::Path;
use std::process::Stdio;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use ringq::pb::BatchEnqueueRequest;
use serde_json::Value;
use tokio::io::{AsyncBufReadExt as _, AsyncWriteExt as _, BufReader};
use tokio::process::Child;

use super::terminal::Terminal;
use super::work_rig::signal;
use super::{Ran, command, finish, piped, ringq};
use crate::client::fake::{Fake, Script, not_done, unknown};
use crate::harness::{Server, Setup, eventually, millis, within};

/// As many lines as the target of the command line is about.
const MANY: usize = 100_000;

#[tokio::test]
async fn a_hundred_thousand_lines_become_as_many_jobs_in_their_order() {
    let server = Server::start().await;
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("jobs.txt");
    let lines: Vec<String> = (0..MANY).map(|n| format!("{{\"n\":{n}}}")).collect();
    fs::write(&file, lines.join("\n")).unwrap();
    let begin = Instant::now();
    let ran = ringq(&server, &["enqueue", "bulk", "--lines", file.to_str().unwrap()]).await;
    println!("{MANY} lines took {:?}", begin.elapsed());
    assert_eq!(ran.stderr, format!("{MANY} enqueued\n"));
    let stdout = ran.ok();
    let ids: Vec<&str> = stdout.lines().collect();
    assert_eq!(ids.len(), MANY);
    assert_eq!(ids.iter().collect::<HashSet<_>>().len(), MANY, "ids are different");
    let client = server.connect().await;
    assert_eq!(client.stats("bulk").await.ready, i64::try_from(MANY).unwrap());
    for place in [0, 499, 500, 77_777, MANY - 1] {
        let payload = client.get("bulk", ids[place]).await.spec.unwrap().payload.unwrap();
        assert_eq!(payload.bytes(), lines[place].as_bytes(), "id {place} belongs to its line");
    }
}

#[tokio::test]
async fn bad_lines_are_told_by_their_number_and_good_ones_go_through() {
    let server = Server::start().await;
    let mut input = b"one\n\ntwo\r\n".to_vec();
    input.extend(vec![b'x'; 2 << 20]);
    input.extend(b"\nthree \n");
    input.extend(vec![b'y'; 6 << 20]);
    input.extend(b"\n\xff\xfe");
    let ran = piped(&server, &["enqueue", "mail", "--lines", "-"], &input).await;
    let says = ["ringq: line 4 of standard input: ", "line 6 of standard input", "4 enqueued, 2"];
    let ran = ran.fails(1, &says);
    let client = server.connect().await;
    let mut payloads = Vec::new();
    for id in ran.stdout.lines() {
        let payload = client.get("mail", id).await.spec.unwrap().payload.unwrap();
        payloads.push(payload.bytes().to_vec());
    }
    assert_eq!(payloads, [&b"one"[..], b"two", b"three ", b"\xff\xfe"]);
}

#[tokio::test]
async fn a_mistake_in_the_flags_is_told_once() {
    let server = Server::start().await;
    let ran = piped(&server, &["enqueue", "no topic", "--lines", "-"], b"a\nb\nc\n").await;
    let ran = ran.fails(1, &["stopped at line 1", "TOPIC", "\nringq: no line is enqueued\n"]);
    assert_eq!(ran.stderr.lines().count(), 3, "{}", ran.stderr);
    let none = ringq(&server, &["enqueue", "mail", "--lines", "/nowhere"]).await;
    none.fails(2, &["cannot read /nowhere: no such file"]);
    let none = ringq(&server, &["enqueue", "mail", "--lines", "/"]).await;
    none.fails(2, &["directory"]);
}

#[tokio::test]
async fn a_run_with_ids_can_be_repeated() {
    let server = Server::start().await;
    for flags in [&["--id-from-payload"][..], &["--request-id", "run-1"]] {
        let topic = flags[0].trim_start_matches('-');
        let args: Vec<_> =
            ["enqueue", topic, "--lines", "-"].iter().chain(flags).copied().collect();
        let first = piped(&server, &args, b"a\n\nb\n").await;
        assert_eq!(first.stderr, "2 enqueued\n");
        let second = piped(&server, &args, b"a\n\nb\n").await;
        assert_eq!(second.stderr, "2 enqueued, 2 of them were there already\n");
        assert_eq!(first.stdout, second.stdout);
        if topic == "request-id" {
            assert_eq!(first.stdout, "r=run-1=1\nr=run-1=3\n");
        }
        assert_eq!(server.connect().await.stats(topic).await.ready, 2);
    }
    let quiet = piped(&server, &["enqueue", "mail", "--lines", "-", "--quiet"], b"a\n").await;
    assert_eq!((quiet.stdout.as_str(), quiet.stderr.as_str()), ("", ""));
}

#[tokio::test]
async fn json_has_a_row_for_each_line() {
    let server = Server::start().await;
    let input = [&b"a\n"[..], &vec![b'x'; 2 << 20], b"\nb\n"].concat();
    let args = ["enqueue", "mail", "--lines", "-", "-o", "json"];
    let ran = piped(&server, &args, &input).await.fails(1, &["line 2"]);
    let rows: Vec<Value> = serde_json::from_str(&ran.stdout).unwrap();
    assert_eq!(rows.len(), 3);
    assert_eq!(rows[0]["outcome"], "ENQUEUE_OUTCOME_CREATED");
    assert_eq!(rows[1]["error"]["reason"], "TOO_LARGE");
}

#[tokio::test]
async fn a_slow_producer_is_not_waited_for() {
    let server = Server::start().await;
    let mut command = command(server.grpc, &["enqueue", "mail", "--lines", "-"]);
    let mut child = command.stdin(Stdio::piped()).spawn().unwrap();
    let mut stdin = child.stdin.take().unwrap();
    let mut ids = BufReader::new(child.stdout.take().unwrap()).lines();
    for _ in 0..2 {
        stdin.write_all(b"job\n").await.unwrap();
        let id = within("the id", ids.next_line()).await.unwrap();
        assert!(id.is_some());
    }
    drop(stdin);
    assert_eq!(finish(child).await.code, 0);
}

#[tokio::test]
async fn a_reader_that_leaves_does_not_stop_the_jobs() {
    let server = Server::start().await;
    let mut command = command(server.grpc, &["enqueue", "mail", "--lines", "-"]);
    let mut child = command.stdin(Stdio::piped()).spawn().unwrap();
    let mut stdin = child.stdin.take().unwrap();
    let mut ids = BufReader::new(child.stdout.take().unwrap()).lines();
    stdin.write_all(b"first\n").await.unwrap();
    within("the id", ids.next_line()).await.unwrap();
    drop(ids);
    stdin.write_all(&b"more\n".repeat(5_000)).await.unwrap();
    drop(stdin);
    let ran = finish(child).await;
    assert_eq!((ran.code, ran.stderr.as_str()), (0, "5001 enqueued\n"));
    assert_eq!(server.connect().await.stats("mail").await.ready, 5_001);
}

/// How many sockets a command has open.
fn sockets(child: &Child) -> usize {
    let files = fs::read_dir(format!("/proc/{}/fd", child.id().unwrap())).unwrap();
    let targets = files.filter_map(|file| fs::read_link(file.unwrap().path()).ok());
    targets.filter(|target| target.to_string_lossy().starts_with("socket:")).count()
}

#[tokio::test]
async fn a_server_that_goes_away_leaves_a_true_account() {
    let mut server = Setup::new().restartable().start().await;
    let args = ["enqueue", "mail", "--lines", "-", "--timeout", "1s"];
    let mut child = command(server.grpc, &args).stdin(Stdio::piped()).spawn().unwrap();
    let mut stdin = child.stdin.take().unwrap();
    let mut ids = BufReader::new(child.stdout.take().unwrap()).lines();
    stdin.write_all(&b"in\n".repeat(10)).await.unwrap();
    for _ in 0..10 {
        within("the id", ids.next_line()).await.unwrap().unwrap();
    }
    let connected = sockets(&child);
    server.kill().await;
    // Until it has seen that, a call may go down the broken connection, and what it carried may be in.
    eventually("the connection is closed", async || (sockets(&child) < connected).then_some(()))
        .await;
    stdin.write_all(&b"out\n".repeat(10)).await.unwrap();
    let ran = finish(child).await;
    let says = [
        "stopped at line 11 of standard input",
        "surely enqueued: 10 lines (1-10)",
        "surely are not: … | sed -n '11,$p' |",
    ];
    ran.fails(4, &says);
    server.restart().await;
    assert_eq!(server.connect().await.stats("mail").await.ready, 10);
}

#[tokio::test]
async fn a_restart_of_the_server_is_lived_through() {
    let mut server = Setup::new().restartable().start().await;
    let args = ["enqueue", "mail", "--lines", "-", "--request-id", "r"];
    let mut child = command(server.grpc, &args).stdin(Stdio::piped()).spawn().unwrap();
    let mut stdin = child.stdin.take().unwrap();
    let mut ids = BufReader::new(child.stdout.take().unwrap()).lines();
    stdin.write_all(b"before\n").await.unwrap();
    within("the id", ids.next_line()).await.unwrap().unwrap();
    server.kill().await;
    stdin.write_all(b"meanwhile\n").await.unwrap();
    tokio::time::sleep(millis(300)).await;
    server.restart().await;
    within("the id", ids.next_line()).await.unwrap().unwrap();
    drop(stdin);
    let ran = finish(child).await;
    // It may have taken so long that it was told.
    assert_eq!((ran.code, ran.stderr.lines().last()), (0, Some("2 enqueued")), "{}", ran.stderr);
}

#[tokio::test]
async fn a_signal_is_answered_by_how_far_it_came() {
    let server = Server::start().await;
    for (name, code, how) in [("INT", 130, "interrupted"), ("TERM", 143, "terminated")] {
        let mut command = command(server.grpc, &["enqueue", "mail", "--lines", "-"]);
        let mut child = command.stdin(Stdio::piped()).spawn().unwrap();
        let mut stdin = child.stdin.take().unwrap();
        let mut ids = BufReader::new(child.stdout.take().unwrap()).lines();
        stdin.write_all(b"a\nb\n").await.unwrap();
        for _ in 0..2 {
            within("the id", ids.next_line()).await.unwrap().unwrap();
        }
        signal(&child.id().unwrap().to_string(), name);
        let how = format!("ringq: {how}\n");
        let says = [&how, "surely enqueued: 2 lines (1-2)", "… | sed -n '3,$p' | ringq"];
        finish(child).await.fails(code, &says);
    }
}

/// The number that the first job of a call has as its payload.
fn first(call: &BatchEnqueueRequest) -> u64 {
    std::str::from_utf8(call.jobs[0].payload.as_ref().unwrap().bytes()).unwrap().parse().unwrap()
}

/// A file with the lines 1, 2, ….
fn numbered(dir: &Path, count: u64) -> String {
    let file = dir.join("jobs.txt");
    fs::write(&file, (1..=count).map(|n| format!("{n}\n")).collect::<String>()).unwrap();
    file.to_str().unwrap().to_owned()
}

/// A server that does with calls what their first line says.
async fn scripted(
    verdict: impl Fn(u64) -> Option<tonic::Status> + Send + Sync + 'static,
) -> (Fake, SocketAddr) {
    let (fake, client) = Fake::start(Script::failing(move |call| verdict(first(call)))).await;
    (fake, client.url().trim_start_matches("http://").parse().unwrap())
}

/// The lines that the server has, in their order.
fn taken(fake: &Fake) -> Vec<u64> {
    let jobs = fake.0.jobs.lock().unwrap();
    let number = |job: &ringq::pb::JobSpec| {
        std::str::from_utf8(job.payload.as_ref().unwrap().bytes()).unwrap().parse().unwrap()
    };
    let mut taken: Vec<u64> = jobs.iter().map(number).collect();
    taken.sort_unstable();
    taken
}

/// What the command that is told after `label` gives to `ringq enqueue`: numbers and places of lines.
fn told(ran: &Ran, label: &str) -> Vec<(u64, usize)> {
    let (_, rest) = ran.stderr.split_once(label).expect(label);
    let (command, _) = rest.split_once(" | ringq enqueue mail ").expect(rest);
    let output = std::process::Command::new("sh").args(["-c", command]).output().unwrap();
    let output = String::from_utf8(output.stdout).unwrap();
    let lines = output.lines().enumerate().filter(|(_, line)| !line.is_empty());
    lines.map(|(place, line)| (line.parse().unwrap(), place + 1)).collect()
}

fn told_lines(ran: &Ran, label: &str) -> Vec<u64> {
    told(ran, label).into_iter().map(|(line, _)| line).collect()
}

/// A call breaks, one behind it was answered and one behind that is down for the moment. What is told
/// to be sent again is not in, even where it would have got in by a repeat.
#[tokio::test]
async fn a_broken_call_never_leads_to_doubled_lines() {
    let dir = tempfile::tempdir().unwrap();
    let file = numbered(dir.path(), 2_000);
    let calls = AtomicUsize::new(0);
    let (fake, address) = scripted(move |line| match line {
        501 => Some(unknown()),
        1_501 if calls.fetch_add(1, Ordering::SeqCst) == 0 => {
            Some(not_done(Duration::from_secs(2)))
        }
        _ => None,
    })
    .await;
    let args = ["enqueue", "mail", "--timeout", "5s", "--lines", &file];
    let ran = finish(command(address, &args).spawn().unwrap()).await;
    let says = [
        "stopped at line 501 of ",
        "surely enqueued: 1000 lines (1-500, 1001-1500)",
        "may be enqueued: lines 501-1000; not enqueued: lines 1501-2000",
        "`ringq job list mail --limit 0 --full -o json`",
    ];
    let ran = ran.fails(4, &says);
    assert_eq!(ran.stdout.lines().count(), 1_000, "an id for each, empty ones here");
    let rest = told_lines(&ran, "exactly those that surely are not: ");
    assert_eq!(rest, (1_501..=2_000).collect::<Vec<_>>());
    let taken = taken(&fake);
    assert_eq!(taken, (1..=500).chain(1_001..=1_500).collect::<Vec<_>>(), "no repeat behind it");
}

/// With a request id the lines keep their numbers, of which the ids are made.
#[tokio::test]
async fn lines_with_a_request_id_are_sent_again_by_their_numbers() {
    let dir = tempfile::tempdir().unwrap();
    let file = numbered(dir.path(), 1_500);
    // Lost first, and surely not done from then on: it may be in all the same.
    let calls = AtomicUsize::new(0);
    let (_fake, address) = scripted(move |line| match line {
        501 if calls.fetch_add(1, Ordering::SeqCst) == 0 => Some(unknown()),
        501 => Some(not_done(Duration::ZERO)),
        1_001 => Some(not_done(Duration::ZERO)),
        _ => None,
    })
    .await;
    let args = ["enqueue", "mail", "--timeout", "1s", "--request-id", "r", "--lines", &file];
    let ran = finish(command(address, &args).spawn().unwrap()).await;
    let says = ["(1-500); may be enqueued: lines 501-1000; not enqueued: lines 1001-1500"];
    let ran = ran.fails(4, &says);
    let places = |lines: std::ops::RangeInclusive<u64>| -> Vec<(u64, usize)> {
        lines.map(|line| (line, usize::try_from(line).unwrap())).collect()
    };
    assert_eq!(told(&ran, "exactly those that surely are not: "), places(1_001..=1_500));
    assert_eq!(told(&ran, "--retention says otherwise: "), places(501..=1_000));
}

#[tokio::test]
async fn a_second_run_with_a_request_id_changes_nothing_under_any_policy() {
    let server = Server::start().await;
    for (n, policy) in ["keep", "replace", "reschedule", "reject"].into_iter().enumerate() {
        for by_payload in [false, true] {
            let topic = format!("t{n}-{by_payload}");
            let mut args = vec!["enqueue", &topic, "--lines", "-", "--request-id", "run-1"];
            args.extend(["--on-conflict", policy]);
            args.extend(by_payload.then_some("--id-from-payload"));
            let first = piped(&server, &args, b"a\nb\n").await;
            assert_eq!(first.stderr, "2 enqueued\n", "{args:?}");
            // They have run meanwhile, and are kept as tombstones.
            let client = server.connect().await;
            for _ in 0..2 {
                client.ack(&client.pull_one(&topic).await.receipt).await;
            }
            let second = piped(&server, &args, b"a\nb\n").await;
            let same = "2 enqueued, 2 of them were there already\n";
            assert_eq!((second.code, second.stderr.as_str()), (0, same), "{args:?}");
            assert_eq!(second.stdout, first.stdout);
            assert_eq!(client.stats(&topic).await.ready, 0, "{args:?}");
        }
    }
}

#[tokio::test]
async fn a_full_disk_behind_stdout_leaves_a_true_account() {
    let server = Server::start().await;
    let dir = tempfile::tempdir().unwrap();
    let file = numbered(dir.path(), 20_000);
    let mut command = command(server.grpc, &["enqueue", "mail", "--lines", &file]);
    command.stdout(File::options().write(true).open("/dev/full").unwrap());
    let ran = finish(command.spawn().unwrap()).await;
    let ran = ran.fails(1, &["cannot write to standard output", "surely enqueued: ", "not sent: "]);
    let stored = server.connect().await.stats("mail").await.ready;
    assert!((1..20_000).contains(&stored), "it stops: {stored}");
    let stored = u64::try_from(stored).unwrap();
    assert!(ran.stderr.contains(&format!("{stored} lines (1-{stored})")), "{}", ran.stderr);
    assert_eq!(
        told_lines(&ran, "exactly those that surely are not: "),
        (stored + 1..=20_000).collect::<Vec<_>>()
    );
    assert!(!ran.stderr.contains("may be enqueued"), "{}", ran.stderr);
}

#[tokio::test]
async fn after_the_last_line_there_is_nothing_to_send_again() {
    let server = Server::start().await;
    let dir = tempfile::tempdir().unwrap();
    let file = numbered(dir.path(), 3);
    let mut command = command(server.grpc, &["enqueue", "mail", "--lines", &file]);
    command.stdout(File::options().write(true).open("/dev/full").unwrap());
    let ran = finish(command.spawn().unwrap()).await;
    let ran = ran.fails(1, &["surely enqueued: 3 lines (1-3)\n"]);
    assert!(!ran.stderr.contains("the rest"), "{}", ran.stderr);
}

/// A socket as stdin that is reset: the input ends with an error.
#[tokio::test]
async fn an_input_that_breaks_off_is_wrong_usage_only_before_anything_was_sent() {
    let server = Server::start().await;
    for lines in [2, 0] {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let mut ours = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let (mut theirs, _) = listener.accept().unwrap();
        let stdin = OwnedFd::from(theirs.try_clone().unwrap());
        let mut command = command(server.grpc, &["enqueue", "mail", "--lines", "-"]);
        let mut child = command.stdin(Stdio::from(stdin)).spawn().unwrap();
        let mut ids = BufReader::new(child.stdout.take().unwrap()).lines();
        for _ in 0..lines {
            ours.write_all(b"line\n").unwrap();
            within("the id", ids.next_line()).await.unwrap().unwrap();
        }
        // What is closed with something unread in it is reset.
        theirs.write_all(b"xx").unwrap();
        ours.read_exact(&mut [0]).unwrap();
        drop(ours);
        let ran = finish(child).await;
        let ran = match lines {
            0 => ran.fails(2, &["cannot read standard input: "]),
            _ => ran.fails(1, &["cannot read standard input: ", "2 lines (1-2)", "'3,$p'"]),
        };
        assert_eq!(ran.stderr.contains("surely"), lines > 0, "{}", ran.stderr);
    }
}

/// What was answered behind a call that is still under way is told as it is.
#[tokio::test]
async fn ctrl_c_loses_no_answer_behind_one_that_is_missing() {
    let dir = tempfile::tempdir().unwrap();
    let file = numbered(dir.path(), 1_500);
    let (fake, address) =
        scripted(|line| (line == 501).then(|| not_done(Duration::from_secs(8)))).await;
    let args = ["enqueue", "mail", "--timeout", "30s", "--lines", &file];
    let child = command(address, &args).spawn().unwrap();
    within("the other lines", async {
        while taken(&fake).len() < 1_000 {
            tokio::time::sleep(millis(10)).await;
        }
    })
    .await;
    let script = format!("kill -INT {}", child.id().unwrap());
    assert!(std::process::Command::new("sh").args(["-c", &script]).status().unwrap().success());
    let says =
        ["ringq: interrupted", "1000 lines (1-500, 1001-1500); not enqueued: lines 501-1000\n"];
    let ran = finish(child).await.fails(130, &says);
    assert_eq!(
        told_lines(&ran, "exactly those that surely are not: "),
        (501..=1_000).collect::<Vec<_>>()
    );
}

/// A server that has all jobs, but does not say so of those in these lines as long as it is `unsure`.
async fn doubting(
    unsure: Arc<AtomicBool>,
    lines: impl Fn(u64) -> bool + Send + Sync + 'static,
) -> (Fake, SocketAddr) {
    let doubt = move |job: &ringq::pb::JobSpec| {
        let line = std::str::from_utf8(job.payload.as_ref().unwrap().bytes()).unwrap();
        unsure.load(Ordering::SeqCst) && lines(line.parse().unwrap())
    };
    let (fake, client) = Fake::start(Script::doubting(doubt)).await;
    (fake, client.url().trim_start_matches("http://").parse().unwrap())
}

/// What a command does that was told, word for word, in a shell.
async fn paste(address: SocketAddr, told: &str) -> Ran {
    let ringq = Path::new(env!("CARGO_BIN_EXE_ringq")).parent().unwrap();
    let path = format!("{}:{}", ringq.display(), std::env::var("PATH").unwrap());
    let mut shell = tokio::process::Command::new("sh");
    shell.args(["-c", told]).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    shell.env("PATH", path).env("RINGQ_SERVER", format!("http://{address}"));
    finish(shell.spawn().unwrap()).await
}

/// A shard is away and all others take their lines: somebody who waits hears why, once and while it lasts, and
/// at the end what is where. The command that is told sends what is missing, under all flags of this one.
#[tokio::test]
async fn a_shard_that_is_away_is_told_in_time_and_with_the_way_on() {
    let dir = tempfile::tempdir().unwrap();
    let file = numbered(dir.path(), 10);
    let is_away = Arc::new(AtomicBool::new(true));
    let away = Arc::clone(&is_away);
    let (fake, client) = Fake::start(Script::without(move |job| {
        let line = std::str::from_utf8(job.payload.as_ref().unwrap().bytes()).unwrap();
        away.load(Ordering::SeqCst) && ["2", "4", "6"].contains(&line)
    }))
    .await;
    let address = client.url().trim_start_matches("http://").parse().unwrap();
    let args = ["enqueue", "mail", "--timeout", "5s", "--id-from-payload", "--lines", &file];
    let begin = Instant::now();
    let mut child = command(address, &args).spawn().unwrap();
    let mut stderr = BufReader::new(child.stderr.take().unwrap()).lines();
    let first = within("a word", stderr.next_line()).await.unwrap().unwrap();
    assert!(begin.elapsed() < millis(3_000), "{:?}: {first}", begin.elapsed());
    assert!(first.starts_with("ringq: not all lines are in yet: "), "{first}");
    assert!(first.ends_with("; trying again for up to 5s"), "{first}");
    let mut rest = Vec::new();
    while let Some(line) = within("the end", stderr.next_line()).await.unwrap() {
        rest.push(line);
    }
    assert_eq!(finish(child).await.code, 4);
    assert!(rest[0].starts_with(&format!("ringq: line 2 of {file} is not enqueued: ")), "{rest:?}");
    let state =
        "ringq: surely enqueued: 7 lines (all others up to 10); not enqueued: lines 2, 4, 6";
    assert!(rest.contains(&state.to_owned()), "{rest:?}");
    assert!(!rest.iter().any(|line| line.contains("trying again")), "once: {rest:?}");

    is_away.store(false, Ordering::SeqCst);
    let told = rest
        .iter()
        .find_map(|line| line.strip_prefix("  to send exactly those that surely are not: "));
    let pasted = paste(address, told.unwrap()).await;
    assert_eq!((pasted.code, pasted.stderr.as_str()), (0, "3 enqueued\n"));
    assert_eq!(taken(&fake), (1..=10).collect::<Vec<_>>());
    let ids = fake.0.jobs.lock().unwrap().iter().filter(|job| job.id.len() == 64).count();
    assert_eq!(ids, 10, "--id-from-payload is among the flags");
}

/// A shard that does not answer holds up the lines that it may have, and no others. They are named, and
/// what is told to be done with them doubles none.
#[tokio::test]
async fn lines_in_doubt_are_named_and_the_others_go_on() {
    let dir = tempfile::tempdir().unwrap();
    let file = numbered(dir.path(), 2_000);
    let unsure = Arc::new(AtomicBool::new(true));
    let is_unsure = |line| (65..=128).contains(&line) || line == 700;
    let (fake, address) = doubting(Arc::clone(&unsure), is_unsure).await;
    let args = ["enqueue", "mail", "--timeout", "1s", "--lines", &file];
    let ran = finish(command(address, &args).spawn().unwrap()).await;
    let says = [
        "line 65 of ",
        " may be enqueued: its shard does not answer\n",
        "surely enqueued: 1935 lines (1-64, 129-699, 701-2000); may be enqueued: lines 65-128, 700\n",
    ];
    let ran = ran.fails(4, &says);
    assert_eq!(ran.stdout.lines().count(), 1_935, "an id for each that is in");
    let all = (1..=2_000).collect::<Vec<_>>();
    assert_eq!(taken(&fake), all, "each once, however often it was repeated");

    unsure.store(false, Ordering::SeqCst);
    let (_, told) = ran.stderr.split_once("while read").expect("a loop for the shell");
    let (told, account) = told.split_once("\nEND\n").unwrap();
    assert!(account.starts_with("ringq: surely enqueued: "), "it is last: {account}");
    let told = format!("{told}\nEND\n");
    let pasted = paste(address, &format!("while read{told}")).await;
    assert_eq!(pasted.stdout.lines().count(), 65, "{}", pasted.stderr);
    assert_eq!(taken(&fake), all, "none is doubled");
}

#[tokio::test]
async fn a_doubt_that_is_cleared_up_is_not_told() {
    let dir = tempfile::tempdir().unwrap();
    let file = numbered(dir.path(), 100);
    let calls = AtomicUsize::new(0);
    let first = move |_| calls.fetch_add(1, Ordering::SeqCst) < 100;
    let (fake, address) = doubting(Arc::new(AtomicBool::new(true)), first).await;
    let args = ["enqueue", "mail", "--lines", &file];
    let ran = finish(command(address, &args).spawn().unwrap()).await;
    assert_eq!((ran.code, ran.stderr.as_str()), (0, "100 enqueued\n"));
    assert_eq!(taken(&fake), (1..=100).collect::<Vec<_>>());
}

/// Where nothing gets in any more, there is no point in going on.
#[tokio::test]
async fn a_server_that_is_unsure_of_everything_is_not_sent_the_whole_file() {
    let dir = tempfile::tempdir().unwrap();
    let file = numbered(dir.path(), 20_000);
    let (fake, address) = doubting(Arc::new(AtomicBool::new(true)), |_| true).await;
    let args = ["enqueue", "mail", "--timeout", "1s", "-o", "json", "--lines", &file];
    let ran = finish(command(address, &args).spawn().unwrap()).await;
    let ran = ran.fails(4, &["surely enqueued: 0 lines; may be enqueued: lines 1-", "not sent: "]);
    assert!(taken(&fake).len() < 20_000);
    let rows: Vec<Value> = serde_json::from_str(&ran.stdout).unwrap();
    let unknown: Vec<_> =
        rows.iter().filter(|row| row["error"]["reason"] == "OUTCOME_UNKNOWN").collect();
    let is_named = |row: &&Value| row["id"].as_str().is_some_and(|id| id.starts_with("s1~"));
    assert!(unknown.len() > 500 && unknown.iter().all(is_named), "{:?}", rows[0]);
}

/// Quiet is quiet on a terminal, too, where others see how far it is.
#[tokio::test]
async fn quiet_lines_draw_nothing_on_a_terminal() {
    let server = Server::start().await;
    for (quiet, pauses) in [(false, true), (true, true), (true, false)] {
        let terminal = Terminal::of(80);
        let mut args = vec!["enqueue", "mail", "--lines", "-"];
        args.extend(quiet.then_some("--quiet"));
        let mut command = command(server.grpc, &args);
        command.stdin(Stdio::piped()).stderr(terminal.stdio());
        let mut child = command.env("TERM", "xterm").spawn().unwrap();
        drop(command);
        let mut stdin = child.stdin.take().unwrap();
        stdin.write_all(b"a\n").await.unwrap();
        if pauses {
            // A few turns of what is drawn as time goes by.
            tokio::time::sleep(millis(700)).await;
        }
        drop(stdin);
        assert_eq!(finish(child).await.code, 0);
        let text = terminal.text();
        match quiet {
            true => assert_eq!(text, ""),
            false => {
                assert!(text.contains("1 lines") && text.ends_with("1 enqueued\n"), "{text:?}")
            }
        }
    }
}

/// What a shell gives one command as a file is not there for the next one.
#[tokio::test]
async fn a_file_that_is_gone_afterwards_is_not_named_in_commands() {
    let dir = tempfile::tempdir().unwrap();
    let file = numbered(dir.path(), 1_500);
    let (_fake, address) = scripted(|line| (line == 501).then(unknown)).await;
    let ringq = env!("CARGO_BIN_EXE_ringq");
    let enqueue = format!("{ringq} enqueue mail --request-id r --timeout 1s --lines");
    for script in [
        format!("cat '{file}' | {enqueue} /dev/fd/3 3<&0"),
        format!("{enqueue} /dev/fd/3 3< '{file}'"),
        format!("{enqueue} /proc/self/fd/3 3< '{file}'"),
        format!("{enqueue} /dev/stdin < '{file}'"),
        format!("mkfifo '{file}.fifo'; cat '{file}' > '{file}.fifo' & {enqueue} '{file}.fifo'"),
    ] {
        let mut shell = tokio::process::Command::new("sh");
        shell.args(["-c", &script]).stdin(Stdio::null());
        shell.stdout(Stdio::piped()).stderr(Stdio::piped());
        shell.env("RINGQ_SERVER", format!("http://{address}"));
        let ran = finish(shell.spawn().unwrap()).await;
        let says =
            ["says otherwise: … | sed ", "\n  … stands for the command that the lines came from\n"];
        let ran = ran.fails(4, &says);
        let named = |line: &str| line.contains(" | sed") && !line.contains("… | sed");
        assert!(!ran.stderr.lines().any(named), "{script}: {}", ran.stderr);
    }
}

/// Whatever a terminal shows of many ids and ranges, the account is what stays to be seen.
#[tokio::test]
async fn many_lines_in_doubt_leave_the_account_on_the_screen() {
    let dir = tempfile::tempdir().unwrap();
    let file = numbered(dir.path(), 400);
    let (_fake, address) = doubting(Arc::new(AtomicBool::new(true)), |line| line % 4 == 1).await;
    let terminal = Terminal::of(80);
    let args = ["enqueue", "mail", "--timeout", "1s", "--lines", &file];
    let mut command = command(address, &args);
    let child = command.stderr(terminal.stdio()).spawn().unwrap();
    drop(command);
    assert_eq!(finish(child).await.code, 4);
    let text = terminal.text();
    let (_, end) = text.rsplit_once("<<'END'\n").unwrap();
    let lines: Vec<&str> = end.lines().collect();
    assert_eq!(lines.iter().filter(|line| line.contains(" s1~")).count(), 20, "{end}");
    assert!(lines[21].starts_with("  and 80 more, from line 81 on: "), "{end}");
    let account = "surely enqueued: 300 lines (all others up to 400); may be enqueued: \
                   lines 1, 5, 9, 13, 17, 21, 25, 29, 33, 37 and 90 more ranges";
    assert!(lines.last().unwrap().ends_with(account), "{end}");
}

/// One shard of several is away for the whole run: it is waited for once, and the lines for others all go in.
#[tokio::test]
async fn lines_for_other_shards_than_the_one_that_is_away_go_on() {
    let dir = tempfile::tempdir().unwrap();
    let file = numbered(dir.path(), 20_000);
    let is_away = Arc::new(AtomicBool::new(true));
    let away = Arc::clone(&is_away);
    let (fake, client) = Fake::start(Script::without(move |job| {
        away.load(Ordering::SeqCst) && job.payload.as_ref().unwrap().bytes().ends_with(b"7")
    }))
    .await;
    let address = client.url().trim_start_matches("http://").parse().unwrap();
    let args = ["enqueue", "mail", "--timeout", "2s", "--id-from-payload", "--lines", &file];
    let ran = finish(command(address, &args).spawn().unwrap()).await;
    // 40 batches, of which the 8 under way at first are repeated; if all were it would be some 200 calls.
    let calls = fake.0.enqueues.lock().unwrap().len();
    assert!((40..120).contains(&calls), "{calls}");
    let says = [
        "ringq: line 7 of ",
        "; the others are tried\n",
        "the rest is in 2000 ranges: to send it, run the same command again; ",
        "ringq: surely enqueued: 18000 lines (all others up to 20000); \
         not enqueued: lines 7, 17, 27, 37, 47, 57, 67, 77, 87, 97 and 1990 more ranges\n",
    ];
    ran.fails(4, &says);
    assert_eq!(taken(&fake).len(), 18_000);

    is_away.store(false, Ordering::SeqCst);
    let again = finish(command(address, &args).spawn().unwrap()).await;
    assert_eq!(again.code, 0, "{}", again.stderr);
    assert_eq!(taken(&fake).into_iter().collect::<HashSet<_>>().len(), 20_000);
}

/// No line gets in any more: the rest of the file is left alone.
#[tokio::test]
async fn all_shards_away_is_the_end_of_lines() {
    let dir = tempfile::tempdir().unwrap();
    let file = numbered(dir.path(), 20_000);
    let (fake, client) = Fake::start(Script::without(|job| {
        let line = std::str::from_utf8(job.payload.as_ref().unwrap().bytes()).unwrap();
        line.parse::<u64>().unwrap() > 500
    }))
    .await;
    let address = client.url().trim_start_matches("http://").parse().unwrap();
    let args = ["enqueue", "mail", "--timeout", "1s", "--lines", &file];
    let ran = finish(command(address, &args).spawn().unwrap()).await;
    let ran = ran.fails(
        4,
        &["is not enqueued", "surely enqueued: 500 lines (1-500); not enqueued: lines 501-"],
    );
    assert_eq!(
        told_lines(&ran, "exactly those that surely are not: "),
        (501..=20_000).collect::<Vec<_>>()
    );
    assert!(ran.stderr.contains("; not sent: "), "{}", ran.stderr);
    assert_eq!(taken(&fake).len(), 500);
}
