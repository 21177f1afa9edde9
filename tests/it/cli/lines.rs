use std::collections::HashSet;
use std::fs::{self, File};
use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::fd::OwnedFd;
use std::path::Path;
use std::process::Stdio;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use ringq::pb::BatchEnqueueRequest;
use serde_json::Value;
use tokio::io::{AsyncBufReadExt as _, AsyncWriteExt as _, BufReader};

use super::terminal::Terminal;
use super::work_rig::signal;
use super::{Ran, command, finish, piped, ringq};
use crate::client::fake::{Fake, Script, unknown};
use crate::harness::{Server, Setup, millis, within};

/// Many times what a call takes; `make bench` has the time of 100,000.
const MANY: usize = 20_000;

#[tokio::test]
async fn many_lines_become_as_many_jobs_in_their_order() {
    let server = Server::start().await;
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("jobs.txt");
    let lines: Vec<String> = (0..MANY).map(|n| format!("{{\"n\":{n}}}")).collect();
    fs::write(&file, lines.join("\n")).unwrap();
    let ran = ringq(&server, &["enqueue", "bulk", "--lines", file.to_str().unwrap()]).await;
    // It may have taken so long that progress was printed.
    let last = ran.stderr.lines().last().map(str::to_owned);
    assert_eq!(last, Some(format!("{MANY} enqueued")), "{}", ran.stderr);
    let stdout = ran.ok();
    let ids: Vec<&str> = stdout.lines().collect();
    assert_eq!(ids.len(), MANY);
    assert_eq!(ids.iter().collect::<HashSet<_>>().len(), MANY, "ids are different");
    let client = server.connect().await;
    assert_eq!(client.stats("bulk").await.ready, i64::try_from(MANY).unwrap());
    for place in [0, 499, 500, 17_777, MANY - 1] {
        let payload = client.get("bulk", ids[place]).await.spec.unwrap().payload.unwrap();
        assert_eq!(payload.bytes(), lines[place].as_bytes(), "id {place} belongs to its line");
    }
}

#[tokio::test]
async fn bad_lines_are_reported_by_their_number_and_good_ones_go_through() {
    let server = Server::start().await;
    let mut input = b"one\n\ntwo\r\n".to_vec();
    input.extend(vec![b'x'; 2 << 20]);
    input.extend(b"\nthree \n");
    input.extend(vec![b'y'; 6 << 20]);
    input.extend(b"\n\xff\xfe");
    let ran = piped(&server, &["enqueue", "mail", "--lines", "-"], &input).await;
    let expected =
        ["ringq: line 4 of standard input: ", "line 6 of standard input", "4 enqueued, 2"];
    let ran = ran.fails(1, &expected);
    let client = server.connect().await;
    let mut payloads = Vec::new();
    for id in ran.stdout.lines() {
        let payload = client.get("mail", id).await.spec.unwrap().payload.unwrap();
        payloads.push(payload.bytes().to_vec());
    }
    assert_eq!(payloads, [&b"one"[..], b"two", b"three ", b"\xff\xfe"]);
}

#[tokio::test]
async fn a_mistake_in_the_flags_is_reported_once() {
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

#[tokio::test]
async fn a_run_stopped_by_a_dead_server_is_resumed_with_the_printed_flags() {
    let mut server = Setup::new().restartable().start().await;
    let args = ["enqueue", "mail", "--lines", "-", "--timeout", "1s", "--request-id", "r"];
    let mut child = command(server.grpc, &args).stdin(Stdio::piped()).spawn().unwrap();
    let mut stdin = child.stdin.take().unwrap();
    let mut ids = BufReader::new(child.stdout.take().unwrap()).lines();
    stdin.write_all(&b"in\n".repeat(10)).await.unwrap();
    for _ in 0..10 {
        within("the id", ids.next_line()).await.unwrap().unwrap();
    }
    server.kill().await;
    stdin.write_all(&b"out\n".repeat(10)).await.unwrap();
    let ran = finish(child).await;
    let expected =
        ["stopped at line 11 of standard input", "10 enqueued; not confirmed: from line 11 on"];
    let flags = resume_flags(&ran.fails(4, &expected));
    assert!(flags.contains(&"11".to_owned()), "{flags:?}");
    server.restart().await;
    let args: Vec<&str> = args.into_iter().chain(flags.iter().map(String::as_str)).collect();
    let input = [b"in\n".repeat(10), b"out\n".repeat(10)].concat();
    let resumed = piped(&server, &args, &input).await;
    assert_eq!(resumed.code, 0, "{}", resumed.stderr);
    assert_eq!(resumed.stdout.lines().count(), 10, "an id for each line from 11 on");
    assert_eq!(server.connect().await.stats("mail").await.ready, 20);
}

/// Flags that a stopped run prints for the run that resumes it.
fn resume_flags(ran: &Ran) -> Vec<String> {
    let (_, rest) = ran.stderr.split_once("on the same input with ").expect("a hint");
    let flags = rest.lines().next().unwrap().split(" --may-repeat").next().unwrap();
    let mut flags: Vec<String> = flags.split(' ').map(str::to_owned).collect();
    if !flags.iter().any(|flag| flag == "--before") {
        flags.push("--may-repeat".to_owned());
    }
    flags
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
    // It may have taken so long that progress was printed.
    assert_eq!((ran.code, ran.stderr.lines().last()), (0, Some("2 enqueued")), "{}", ran.stderr);
}

#[tokio::test]
async fn a_signal_ends_a_run_with_its_exit_code_and_the_way_to_resume() {
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
        stdin.write_all(b"c\n").await.unwrap();
        within("the id", ids.next_line()).await.unwrap().unwrap();
        signal(&child.id().unwrap().to_string(), name);
        let how = format!("ringq: {how}\n");
        let ran = finish(child).await.fails(code, &[&how, "--from-line "]);
        // A line is counted after its id was printed: the signal may come in between.
        let counted = [
            "3 enqueued; not sent: from line 4 on",
            "2 enqueued; not confirmed: from line 3 on, of which up to 1 lines may be enqueued",
        ];
        assert!(counted.iter().any(|text| ran.stderr.contains(text)), "{}", ran.stderr);
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

/// A server that treats each call as its first line requests.
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

/// Calls behind the one that failed may be stored: the run that resumes finds those lines by their ids.
#[tokio::test]
async fn a_call_with_an_unknown_outcome_is_resumed_without_a_doubled_line() {
    let dir = tempfile::tempdir().unwrap();
    let file = numbered(dir.path(), 2_000);
    let (fake, address) = scripted(|line| (line == 501).then(unknown)).await;
    let args = ["enqueue", "mail", "--timeout", "2s", "--request-id", "r", "--lines", &file];
    let ran = finish(command(address, &args).spawn().unwrap()).await;
    let expected = [
        "stopped at line 501 of ",
        "500 enqueued; not confirmed: from line 501 on, of which up to 1500 lines may be enqueued",
        "later use --may-repeat in place of --before",
    ];
    let ran = ran.fails(4, &expected);
    assert_eq!(ran.stdout.lines().count(), 500, "an id for each confirmed line");
    assert!(taken(&fake).len() > 500, "lines behind line 501 were sent, too");
    // A server that has all of them, as if all calls had got through.
    let server = Server::start().await;
    ringq(&server, &args).await.ok();
    let flags = resume_flags(&ran);
    assert!(flags.contains(&"--before".to_owned()), "{flags:?}");
    let args: Vec<&str> = args.into_iter().chain(flags.iter().map(String::as_str)).collect();
    let resumed = ringq(&server, &args).await;
    assert_eq!(resumed.code, 0, "{}", resumed.stderr);
    assert_eq!(resumed.stderr, "1500 enqueued, 1500 of them were there already\n");
    assert_eq!(server.connect().await.stats("mail").await.ready, 2_000, "each line once");
}

#[tokio::test]
async fn a_resumed_run_needs_a_time_or_consent() {
    let server = Server::start().await;
    let run = async |flags: &[&str]| {
        let args: Vec<&str> =
            ["enqueue", "mail", "--lines", "-"].iter().chain(flags).copied().collect();
        piped(&server, &args, b"a\nb\nc\n").await
    };
    run(&["--from-line", "2"]).await.fails(2, &["--before TIME, which", "--may-repeat"]);
    let flags = ["--request-id", "r", "--from-line", "2"];
    run(&flags).await.fails(2, &["--from-line needs --before TIME, which"]);
    let past = [&flags[..], &["--before", "2020-01-01T00:00:00Z"]].concat();
    run(&past).await.fails(2, &["the time of --before has passed", "ringq job list TOPIC"]);
    assert_eq!(run(&[&flags[..], &["--may-repeat"]].concat()).await.ok(), "r=r=2\nr=r=3\n");
    assert_eq!(
        run(&["--request-id", "r"]).await.stderr,
        "3 enqueued, 2 of them were there already\n"
    );
    let beyond = run(&["--from-line", "5", "--may-repeat"]).await;
    beyond.fails(2, &["standard input has only 3 lines", "no line is enqueued"]);
    assert_eq!(run(&["--from-line", "4", "--may-repeat"]).await.stderr, "0 enqueued\n");
    let without_ids = run(&["--from-line", "3", "--may-repeat"]).await;
    assert_eq!(without_ids.stderr, "1 enqueued\n", "a repeat that was accepted");
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
async fn ids_that_could_not_be_printed_are_printed_by_the_run_that_resumes() {
    let server = Server::start().await;
    let dir = tempfile::tempdir().unwrap();
    let file = numbered(dir.path(), 20_000);
    let args = ["enqueue", "mail", "--request-id", "r", "--lines", &file];
    let mut command = command(server.grpc, &args);
    command.stdout(File::options().write(true).open("/dev/full").unwrap());
    let ran = finish(command.spawn().unwrap()).await;
    let expected = ["cannot write to standard output", "0 enqueued; not confirmed: from line 1 on"];
    let flags = resume_flags(&ran.fails(1, &expected));
    let client = server.connect().await;
    let stored = client.stats("mail").await.ready;
    assert!((1..20_000).contains(&stored), "it stops: {stored}");
    let args: Vec<&str> = args.into_iter().chain(flags.iter().map(String::as_str)).collect();
    assert_eq!(ringq(&server, &args).await.ok().lines().count(), 20_000);
    assert_eq!(client.stats("mail").await.ready, 20_000);
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
            _ => ran.fails(1, &["cannot read standard input: ", "--from-line 3", "2 enqueued; "]),
        };
        assert_eq!(ran.stderr.contains("--from-line"), lines > 0, "{}", ran.stderr);
    }
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

/// A shard is down: the retry is reported once and early, and the run stops at the first line of that shard.
#[tokio::test]
async fn a_shard_that_is_down_is_reported_early_and_stops_the_run() {
    let dir = tempfile::tempdir().unwrap();
    let file = numbered(dir.path(), 10);
    let is_down = Arc::new(AtomicBool::new(true));
    let down = Arc::clone(&is_down);
    let (fake, client) = Fake::start(Script::without(move |job| {
        let line = std::str::from_utf8(job.payload.as_ref().unwrap().bytes()).unwrap();
        down.load(Ordering::SeqCst) && ["2", "4", "6"].contains(&line)
    }))
    .await;
    let address = client.url().trim_start_matches("http://").parse().unwrap();
    let args = ["enqueue", "mail", "--timeout", "5s", "--id-from-payload", "--lines", &file];
    let mut child = command(address, &args).spawn().unwrap();
    let mut stderr = BufReader::new(child.stderr.take().unwrap()).lines();
    let first = within("a word", stderr.next_line()).await.unwrap().unwrap();
    assert!(first.starts_with("ringq: not all lines are stored yet: "), "{first}");
    assert!(first.ends_with("; trying again for up to 5s"), "{first}");
    let mut rest = Vec::new();
    while let Some(line) = within("the end", stderr.next_line()).await.unwrap() {
        rest.push(line);
    }
    assert_eq!(finish(child).await.code, 4);
    assert!(rest[0].starts_with(&format!("ringq: stopped at line 2 of {file}: ")), "{rest:?}");
    assert!(!rest.iter().any(|line| line.contains("trying again")), "once: {rest:?}");
    let stderr = rest.join("\n");
    let stopped = Ran { code: 4, stdout: String::new(), stderr };

    is_down.store(false, Ordering::SeqCst);
    let flags = resume_flags(&stopped);
    let args: Vec<&str> = args.into_iter().chain(flags.iter().map(String::as_str)).collect();
    let resumed = finish(command(address, &args).spawn().unwrap()).await;
    assert_eq!(resumed.code, 0, "{}", resumed.stderr);
    let taken: HashSet<u64> = taken(&fake).into_iter().collect();
    assert_eq!(taken, (1..=10).collect());
}

#[tokio::test]
async fn a_doubt_that_is_cleared_up_is_not_reported() {
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

#[tokio::test]
async fn a_server_without_definite_answers_is_not_sent_the_whole_file() {
    let dir = tempfile::tempdir().unwrap();
    let file = numbered(dir.path(), 20_000);
    let (fake, address) = doubting(Arc::new(AtomicBool::new(true)), |_| true).await;
    let args = ["enqueue", "mail", "--timeout", "1s", "-o", "json", "--lines", &file];
    let ran = finish(command(address, &args).spawn().unwrap()).await;
    let ran =
        ran.fails(4, &["0 enqueued; not confirmed: from line 1 on, of which up to 500 lines"]);
    assert!(taken(&fake).len() <= 500, "the first batch goes alone");
    assert_eq!(serde_json::from_str::<Vec<Value>>(&ran.stdout).unwrap().len(), 0);
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
