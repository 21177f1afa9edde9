//! `ringq work`: input of the command, and effect of its exit.

use std::time::Instant;

use ringq::pb::{JobState, RetryPolicy, payload::Kind};

use super::terminal::Terminal;
use super::work_rig::{Work, kept, signal};
use super::{command, finish};
use crate::harness::{JobExt as _, Server, job, millis, proto};

#[tokio::test]
async fn a_command_gets_the_payload_and_its_success_completes_the_job() {
    let server = Server::start().await;
    let client = server.connect().await;
    client.enqueue(kept("t", "a").with_text("hello\nthere")).await;
    let done = Work::start(&server, "cat; echo .", &["--max-jobs", "1"]).done().await;
    assert_eq!(done.code, Some(0), "{}", done.stderr);
    assert_eq!(done.stdout, ["hello", "there."], "byte by byte");
    assert!(done.stderr.contains(" t/a  done in "), "{}", done.stderr);
    assert!(done.stderr.ends_with("ringq: 1 acked\n"), "{}", done.stderr);
    assert_eq!(client.state("t", "a").await, JobState::Succeeded);
}

/// Programs that start each other belong to one trace: its context comes from the environment of the producer, and goes to
/// that of the command, which does not get the worker's own.
#[tokio::test]
async fn a_trace_goes_from_the_environment_of_the_producer_to_the_command() {
    let server = Server::start().await;
    let trace = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";
    let enqueue = async |variables: &[(&str, &str)], more: &[&str]| {
        let mut ringq = command(server.grpc, &[&["enqueue", "t", "x"], more].concat());
        finish(ringq.envs(variables.iter().copied()).spawn().unwrap()).await.ok();
    };
    enqueue(&[("TRACEPARENT", trace), ("TRACESTATE", "s=1")], &[]).await;
    enqueue(&[("TRACEPARENT", trace), ("TRACESTATE", "s=1")], &["--header", "traceparent=own"])
        .await;
    enqueue(&[("TRACEPARENT", "nonsense")], &[]).await;
    let before = "export TRACEPARENT=worker TRACESTATE=worker";
    let echo = "echo \"${TRACEPARENT-none} ${TRACESTATE-none}\"";
    let done = Work::start_after(before, &server, echo, &["--max-jobs", "3"]).done().await;
    assert_eq!(done.stdout, [&format!("{trace} s=1"), "own none", "none none"]);
}

#[tokio::test]
async fn topics_are_served_in_turns() {
    for topics in [&["a", "b"][..], &["a", "b", "c", "d"]] {
        let server = Server::start().await;
        let client = server.connect().await;
        for topic in topics {
            client.enqueue_all(vec![job(topic); 100]).await;
        }
        let (url, jobs) = (format!("http://{}", server.grpc), (10 * topics.len()).to_string());
        let args = ["--server", &url, "--max-jobs", &jobs, "--exec", "echo $RINGQ_TOPIC"];
        let done = Work::spawn(&[topics, &args].concat()).done().await;
        for topic in topics {
            let count = done.stdout.iter().filter(|line| line == topic).count();
            assert_eq!(count, 10, "{topic}: {:?}", done.stdout);
        }
    }
}

#[tokio::test]
async fn topics_are_served_by_the_turns_that_are_given() {
    let server = Server::start().await;
    let client = server.connect().await;
    for topic in ["high", "low"] {
        client.enqueue_all(vec![job(topic); 60]).await;
    }
    let url = format!("http://{}", server.grpc);
    let run = async |topics: &[&str], jobs: &str| {
        let args = ["--server", &url, "--max-jobs", jobs, "--exec", "echo $RINGQ_TOPIC"];
        Work::spawn(&[topics, &args].concat()).done().await
    };
    let done = run(&["high=4", "low"], "50").await;
    let high = done.stdout.iter().filter(|line| *line == "high").count();
    assert!(high.abs_diff(40) <= 2, "{high}: {:?}", done.stdout);
    for turns in ["0", "101", "x", ""] {
        let done = run(&[&format!("high={turns}"), "low"], "1").await;
        assert_eq!(done.code, Some(2), "{turns}");
        assert!(done.stderr.contains("turns per round"), "{}", done.stderr);
    }
}

#[tokio::test]
async fn exit_code_75_gives_the_job_back_uncounted() {
    let server = Server::start().await;
    let client = server.connect().await;
    client.enqueue(job("t").with_id("a").with_max_attempts(1)).await;
    let done = Work::start(&server, "echo later >&2; exit 75", &["--max-jobs", "1"]).done().await;
    assert_eq!(done.code, Some(0));
    assert!(done.stderr.contains("later\n"), "{}", done.stderr);
    assert!(done.stderr.ends_with("ringq: 0 acked, 1 released\n"), "{}", done.stderr);
    let job = client.get("t", "a").await;
    assert_eq!((job.state(), job.failures, job.deliveries), (JobState::Ready, 0, 1));
}

#[tokio::test]
async fn a_command_that_is_not_there_costs_no_job_an_attempt() {
    let server = Server::start().await;
    let client = server.connect().await;
    client.enqueue(job("t").with_id("a").with_max_attempts(1)).await;
    for exec in ["no-such-command-here", "/"] {
        let done = Work::start(&server, exec, &["--max-jobs", "1"]).done().await;
        assert!(done.stderr.ends_with("ringq: 0 acked, 1 released\n"), "{}", done.stderr);
    }
    let job = client.get("t", "a").await;
    assert_eq!((job.failures, job.deliveries), (0, 2));
}

#[tokio::test]
async fn a_failure_is_retried_with_the_reason_that_the_command_gave() {
    let server = Server::start().await;
    let client = server.connect().await;
    let long = "head -c 9000 /dev/zero | tr '\\0' x >&2; echo end >&2; exit 1";
    for (id, exec, reason) in [
        ("words", "echo no such user >&2; exit 3", "no such user"),
        ("silent", "exit 3", "exit code 3"),
        ("killed", "kill -9 $$", "killed by signal 9 (SIGKILL)"),
        ("long", long, &*format!("{}end", "x".repeat(4092))),
    ] {
        // Its next attempt is too late for a slow reader to miss the wait for it.
        let delays = vec![proto(millis(3_600_000))];
        let retry = RetryPolicy { max_attempts: 2, delays, ..Default::default() };
        client.enqueue(job("t").with_id(id).with_retry(retry)).await;
        let done = Work::start(&server, exec, &["--max-jobs", "1"]).done().await;
        assert_eq!(done.code, Some(0), "jobs that fail are no failure of the worker");
        assert!(done.stderr.contains(&format!("t/{id}  failed in ")), "{}", done.stderr);
        assert!(done.stderr.contains(", attempt 1 of 2: "), "{}", done.stderr);
        let job = client.get("t", id).await;
        assert_eq!((job.state(), job.failures), (JobState::Backoff, 1), "{id}");
        assert!(job.last_error.trim().ends_with(reason), "{id}: {:?}", job.last_error);
        assert_eq!(job.attempts[0].error, job.last_error);
    }
}

#[tokio::test]
async fn a_command_learns_about_its_job() {
    let server = Server::start().await;
    let client = server.connect().await;
    let spec = job("t").with_id("a").with_text("x").with_header("x-trace.id", "a b\n'\"$(c)");
    client.enqueue(spec).await;
    let exec = r#"for v in TOPIC ID ATTEMPT DELIVERY HEADER_X_TRACE_ID RECEIPT DEADLINE BATCH; do
        eval "echo \"$v=\$RINGQ_$v\""; done"#;
    let done = Work::start(&server, exec, &["--max-jobs", "1"]).done().await;
    let fixed = ["TOPIC=t", "ID=a", "ATTEMPT=1", "DELIVERY=1", "HEADER_X_TRACE_ID=a b", "'\"$(c)"];
    assert_eq!(done.stdout[..6], fixed, "{}", done.stderr);
    assert!(done.stdout[6].len() > "RECEIPT=".len() + 10, "{:?}", done.stdout);
    let deadline = done.stdout[7].strip_prefix("DEADLINE=").unwrap();
    assert!(deadline.starts_with("20") && deadline.ends_with('Z'), "{deadline}");
    assert_eq!(done.stdout[8], "BATCH=");
}

#[tokio::test]
async fn a_batch_is_lines_and_one_exit_code() {
    let server = Server::start().await;
    let client = server.connect().await;
    let ids = ["a", "b", "c", "d"];
    client.enqueue_all(ids.map(|id| kept("t", id).with_text(format!("p-{id}"))).to_vec()).await;
    client.enqueue(kept("t", "two").with_text("p-one\np-two")).await;
    let exec = "cat; echo \"n=$RINGQ_BATCH\"; echo \"$RINGQ_ID\"";
    let done = Work::start(&server, exec, &["--batch", "10", "--max-jobs", "5"]).done().await;
    assert_eq!(done.code, Some(0), "{}", done.stderr);
    let mut lines = done.stdout.clone();
    lines.retain(|line| !line.starts_with("n="));
    lines.sort_unstable();
    let all = ["a", "b", "c", "d", "p-a", "p-b", "p-c", "p-d", "p-one", "p-two", "two"];
    assert_eq!(lines, all, "every payload and every id is a line");
    let alone = ["p-one", "p-two", "n=1", "two"].map(str::to_owned);
    assert!(done.stdout.windows(4).any(|part| part == alone), "{:?}", done.stdout);
    for id in ids {
        assert_eq!(client.state("t", id).await, JobState::Succeeded);
    }

    client.enqueue_all(["e", "f"].map(|id| job("t").with_id(id)).to_vec()).await;
    let exec = "echo bad batch >&2; exit 1";
    let done = Work::start(&server, exec, &["--batch", "2", "--max-jobs", "2"]).done().await;
    assert!(done.stderr.ends_with("ringq: 0 acked, 2 failed\n"), "{}", done.stderr);
    for id in ["e", "f"] {
        assert_eq!(client.get("t", id).await.last_error, "bad batch");
    }
}

#[tokio::test]
async fn a_batch_is_no_longer_than_its_environment_may_be() {
    let server = Server::start().await;
    let client = server.connect().await;
    let id = |n| format!("{n:0128}");
    client.enqueue_all((0..1_000).map(|n| job("t").with_id(id(n))).collect()).await;
    let args = ["--batch", "1000", "--max-jobs", "1000"];
    let done = Work::start(&server, "echo $RINGQ_BATCH", &args).done().await;
    assert!(done.stderr.ends_with("ringq: 1000 acked\n"), "{}", done.stderr);
    let sizes: Vec<usize> = done.stdout.iter().map(|line| line.parse().unwrap()).collect();
    assert_eq!(sizes.iter().sum::<usize>(), 1_000);
    assert!(sizes.iter().all(|size| *size <= (64 << 10) / 129), "{sizes:?}");
}

#[tokio::test]
async fn a_batch_that_the_machine_has_no_room_for_is_run_in_parts() {
    let server = Server::start().await;
    let client = server.connect().await;
    let id = |n| format!("{n:0128}");
    let jobs = (0..1_000).map(|n| job("t").with_id(id(n)).with_max_attempts(1));
    client.enqueue_all(jobs.collect()).await;
    let args = ["--batch", "400", "--prefetch", "600", "--max-jobs", "1000"];
    // The first batch may be small; the other jobs have arrived when it has ended.
    let exec = "echo $RINGQ_BATCH; sleep 0.2";
    // Linux takes a quarter of that for all variables, of which these leave 80 KB.
    let before = "x=$(head -c 110000 /dev/zero | tr '\\0' x); \
        export A=$x B=$x C=$x; unset x; ulimit -s 1600";
    let work = Work::start_after(before, &server, exec, &args);
    let done = work.done().await;
    assert!(done.stderr.ends_with("ringq: 1000 acked\n"), "{}", done.stderr);
    let sizes: Vec<usize> = done.stdout.iter().map(|line| line.parse().unwrap()).collect();
    assert_eq!(sizes.iter().sum::<usize>(), 1_000);
    assert!(done.stderr.matches("  done in ").count() < sizes.len(), "{}", done.stderr);
}

#[tokio::test]
async fn a_payload_with_lines_that_fails_drags_no_other_down() {
    let server = Server::start().await;
    let client = server.connect().await;
    let text = |id: &str| if id == "two" { "one\ntwo" } else { "one" };
    let jobs = ["a", "two", "b"].map(|id| kept("t", id).with_text(text(id)));
    client.enqueue_all(jobs.to_vec()).await;
    let args = ["--batch", "10", "--max-jobs", "3"];
    let done = Work::start(&server, "test \"$RINGQ_ID\" != two", &args).done().await;
    assert!(done.stderr.ends_with("ringq: 2 acked, 1 failed\n"), "{}", done.stderr);
    assert_eq!(client.get("t", "two").await.failures, 1);
}

#[tokio::test]
async fn it_ends_after_so_many_jobs_or_so_long_without_one() {
    let server = Server::start().await;
    let client = server.connect().await;
    client.enqueue_all(["a", "b", "c", "d", "e"].map(|id| job("t").with_id(id)).to_vec()).await;
    let args = ["--max-jobs", "3", "--concurrency", "2", "--prefetch", "2"];
    let done = Work::start(&server, "true", &args).done().await;
    assert_eq!(done.code, Some(0));
    assert!(done.stderr.ends_with("ringq: 3 acked\n"), "{}", done.stderr);
    assert_eq!(client.stats("t").await.ready, 2);

    let begin = Instant::now();
    let done = Work::start(&server, "true", &["--idle-exit", "500ms", "--quiet"]).done().await;
    assert!(begin.elapsed() >= millis(500));
    assert_eq!((done.code, &*done.stderr), (Some(0), ""));
    assert_eq!(client.stats("t").await.ready, 0);
}

#[tokio::test]
async fn standard_output_can_be_the_result() {
    let server = Server::start().await;
    let client = server.connect().await;
    for (id, exec, kind, content_type) in [
        ("json", "echo '{\"n\": 1}'", Some(Kind::Text("{\"n\": 1}".into())), ""),
        ("text", "echo one", Some(Kind::Text("one".into())), "text/plain; charset=utf-8"),
        ("none", "true", None, ""),
    ] {
        client.enqueue(kept("t", id)).await;
        let done = Work::start(&server, exec, &["--result", "--max-jobs", "1"]).done().await;
        assert_eq!(done.stdout, [""; 0]);
        let result = client.get("t", id).await.result.unwrap_or_default();
        assert_eq!((result.kind, &*result.content_type), (kind, content_type), "{id}");
    }
    client.enqueue(job("t").with_id("large")).await;
    let exec = "head -c 1048577 /dev/zero";
    Work::start(&server, exec, &["--result", "--max-jobs", "1"]).done().await;
    let job = client.get("t", "large").await;
    assert_eq!(job.failures, 1);
    assert!(job.last_error.contains("larger than 1048576 bytes"), "{}", job.last_error);
}

#[tokio::test]
async fn a_large_payload_need_not_be_read() {
    let server = Server::start().await;
    let client = server.connect().await;
    for (id, exec) in [("read", "wc -c"), ("ignored", "true"), ("closed", "exec <&-; sleep 0.1")] {
        client.enqueue(kept("t", id).with_bytes(1 << 20)).await;
        let done = Work::start(&server, exec, &["--max-jobs", "1"]).done().await;
        assert_eq!(client.state("t", id).await, JobState::Succeeded, "{}", done.stderr);
        if id == "read" {
            assert_eq!(done.stdout[0].trim(), "1048576");
        }
    }
}

#[tokio::test]
async fn what_a_command_leaves_in_the_background_is_not_waited_for() {
    let server = Server::start().await;
    let client = server.connect().await;
    client.enqueue(kept("t", "a")).await;
    let exec = "sleep 1000 >/dev/null & echo $!";
    let done = Work::start(&server, exec, &["--max-jobs", "1"]).done().await;
    // The worker must have left it alone: the signal fails if it were gone.
    signal(&done.stdout[0], "KILL");
    assert_eq!(client.state("t", "a").await, JobState::Succeeded);
}

#[tokio::test]
async fn numbers_are_reported_with_their_range() {
    for (args, texts) in [
        (
            &["work", "t", "--exec", "true", "-c", "0"][..],
            "'--concurrency <N>': not a whole number from 1 to 10000",
        ),
        (&["work", "t", "--exec", "true", "--batch", "x"], "not a whole number from 1 to 1000"),
        (
            &["work", "t", "--exec", "true", "--prefetch", "-1"],
            "not a whole number from 0 to 10000",
        ),
        (&["work", "t", "--exec", "true", "--max-jobs", "0"], "not a whole number from 1 on"),
        (&["bench", "--jobs", "abc"], "'--jobs <NUMBER>': not a whole number from 1 to 200000000"),
        (&["bench", "--body", "-1"], "'--body <BYTES>': not a whole number from 36 to 1048576"),
        (&["job", "list", "t", "--limit", "-1"], "not a whole number from 0 on"),
    ] {
        let nowhere = "127.0.0.1:1".parse().unwrap();
        finish(command(nowhere, args).spawn().unwrap()).await.fails(2, &[texts]);
    }
}

#[tokio::test]
async fn bad_usage_is_reported_before_anything_is_sent() {
    let nowhere = ["t", "--server", "http://127.0.0.1:1"];
    for args in [
        &["--exec", "true"][..],
        &nowhere,
        &["t", "--exec", ""],
        &["t", "--exec", "true", "--concurrency", "0"],
        &["t", "--exec", "true", "--batch", "0"],
        &["t", "--exec", "true", "--max-jobs", "0"],
        &["t", "--exec", "true", "--run-timeout", "0s"],
        &["t", "--exec", "true", "--timeout", "1s"],
        &["t", "--exec", "true", "--lease", "10ms"],
        &["t", "--exec", "true", "--idle-exit", "soon"],
        &["t", "--exec", "true", "--result", "--batch", "2"],
        &["t", "--exec", "true", "--server", "ftp://here"],
    ] {
        let done = Work::spawn(args).done().await;
        assert_eq!(done.code, Some(2), "{args:?}: {}", done.stderr);
        assert!(!done.stderr.is_empty());
    }
}

#[tokio::test]
async fn a_command_without_exec_is_answered_with_an_example() {
    for args in [&["emails"][..], &["emails", "--", "cat"], &["emails", "cat"]] {
        let done = Work::spawn(args).done().await;
        assert_eq!(done.code, Some(2), "{}", done.stderr);
        assert!(
            done.stderr.contains("as in `ringq work emails --exec 'cat; echo'`"),
            "{}",
            done.stderr
        );
    }
    let done = Work::spawn(&["t", "--exec", "true", "--timeout", "1s"]).done().await;
    assert!(done.stderr.contains("'--run-timeout'"), "{}", done.stderr);
}

#[tokio::test]
async fn it_states_where_it_takes_what_and_what_is_not_there() {
    let server = Server::start().await;
    let client = server.connect().await;
    client.enqueue(job("t").with_id("a")).await;
    let url = format!("http://{}", server.grpc);
    let args = [
        "t",
        "emials",
        "t*",
        "emials",
        "z*",
        "--server",
        &url,
        "--exec",
        "true",
        "--max-jobs",
        "1",
    ];
    let done = Work::spawn(&[&args[..], &["-c", "4", "--batch", "2"]].concat()).done().await;
    let lines: Vec<_> = done.stderr.lines().collect();
    assert_eq!(
        lines[..3],
        [
            "ringq: topic emials does not exist yet; waiting for its first job",
            "ringq: no topic matches z* yet; waiting for the first one",
            &format!(
                "ringq: connected to {url}, taking t, emials, t*, z* (up to 4 batches of 2 at once)"
            ),
        ]
    );
    // Its jobs do come.
    let args = ["emials", "--server", &url, "--exec", "true", "--max-jobs", "1", "--batch", "2"];
    let work = Work::spawn(&args);
    work.prints(", taking emials (up to 1 batch of 2 at once)").await;
    client.enqueue(job("emials").with_id("b")).await;
    assert!(work.done().await.stderr.contains(" emials/b  done in "));
}

#[tokio::test]
async fn outputs_of_commands_that_run_at_once_do_not_mix() {
    let server = Server::start().await;
    let client = server.connect().await;
    let text = |n: usize| format!("{n} {}", "a long line ".repeat(1 + n % 9));
    let jobs = (0..1_000).map(|n| job("t").with_text(text(n)));
    client.enqueue_all(jobs.collect()).await;
    // In two writes, the second one without a line break.
    let args = ["-c", "8", "--max-jobs", "1000", "--quiet"];
    let done = Work::start(&server, "tr a-z A-Z; printf .", &args).done().await;
    assert_eq!(done.code, Some(0), "{}", done.stderr);
    let mut lines = done.stdout;
    lines.sort_unstable();
    let mut want: Vec<_> = (0..1_000).map(|n| text(n).to_uppercase() + ".").collect();
    want.sort_unstable();
    assert!(lines == want, "{lines:?}");
}

#[tokio::test]
async fn large_outputs_keep_their_lines_even_for_a_slow_reader() {
    let server = Server::start().await;
    let client = server.connect().await;
    client.enqueue_all(["a", "b", "c"].map(|id| job("t").with_id(id)).to_vec()).await;
    let exec = "head -c 3000000 /dev/zero | tr '\\0' x | fold -w 1000; echo; printf $RINGQ_ID";
    let work = Work::start(&server, exec, &["-c", "3", "--max-jobs", "3"]);
    // Longer than the wait for remaining processes.
    tokio::time::sleep(millis(1_000)).await;
    let done = work.done().await;
    assert_eq!(done.code, Some(0), "{}", done.stderr);
    let (long, short): (Vec<_>, Vec<_>) = done.stdout.iter().partition(|line| line.len() > 1);
    assert!(long.len() == 9_000 && long.iter().all(|line| line.len() == 1_000), "{}", long.len());
    assert_eq!(short.iter().map(|line| line.as_str()).collect::<String>().len(), 3);
}

#[tokio::test]
async fn output_that_cannot_be_written_ends_the_worker_and_loses_no_job() {
    let server = Server::start().await;
    let client = server.connect().await;
    let jobs = (0..20).map(|_| job("t").with_text("x").with_max_attempts(1));
    client.enqueue_all(jobs.collect()).await;
    let url = format!("http://{}", server.grpc);
    let full = std::fs::File::options().write(true).open("/dev/full").unwrap();
    let args = ["t", "--server", &url, "--exec", "cat", "-c", "4"];
    let done = Work::spawn_to(full.into(), &args).done().await;
    assert_eq!(done.code, Some(1), "{}", done.stderr);
    let why = "ringq: cannot write to standard output: no space left on device\n";
    assert!(done.stderr.contains(why), "{}", done.stderr);
    assert!(done.stderr.contains("ringq: 0 acked, "), "{}", done.stderr);
    let stats = client.stats("t").await;
    assert_eq!((stats.dead, stats.ready + stats.backoff + stats.scheduled), (0, 20));
}

#[tokio::test]
async fn without_a_server_it_gives_up_after_some_attempts_and_with_a_bad_topic_at_once() {
    let args = ["t", "--exec", "true", "--server", "http://127.0.0.1:1"];
    let begin = Instant::now();
    let done = Work::spawn(&args).done().await;
    assert_eq!(done.code, Some(4), "{}", done.stderr);
    assert!(begin.elapsed() > millis(3_000), "{:?}", begin.elapsed());
    assert!(done.stderr.contains("waiting for http://127.0.0.1:1\n"), "{}", done.stderr);
    assert!(done.stderr.contains("connection refused"), "{}", done.stderr);

    let server = Server::start().await;
    let url = format!("http://{}", server.grpc);
    let done = Work::spawn(&["bad topic", "--exec", "true", "--server", &url]).done().await;
    assert_eq!(done.code, Some(1), "{}", done.stderr);
    assert!(done.stderr.contains("ringq: cannot take jobs: "), "{}", done.stderr);
}

/// If commands write to the same terminal, a line of the worker starts on a new line. Blanks are written for that
/// only where a command may have left a line unfinished, and do not stay on the line.
#[tokio::test]
async fn lines_on_a_terminal_begin_fresh_without_blanks_before_them() {
    let server = Server::start().await;
    let client = server.connect().await;
    client.enqueue(job("t").with_id("a").with_text("unfinished")).await;
    let terminal = Terminal::of(40);
    let mut command = command(server.grpc, &["work", "t", "--exec", "cat", "--max-jobs", "1"]);
    command.stdout(terminal.stdio()).stderr(terminal.stdio());
    let child = command.env("PATH", "/usr/bin:/bin").env("TERM", "xterm").spawn().unwrap();
    drop(command);
    assert_eq!(finish(child).await.code, 0);
    let text = terminal.text();
    let (before, after) = text.split_once("unfinished").unwrap();
    assert!(before.starts_with("ringq: connected to ") && !before.contains("  "), "{before:?}");
    let fresh = format!("{}\r\u{1b}[K", " ".repeat(40));
    let line = after.strip_prefix(&*fresh).unwrap_or_else(|| panic!("{after:?}"));
    assert!(
        line.contains(" t/a  ") && !line.trim_start_matches(&*fresh).contains("   "),
        "{line:?}"
    );
}
