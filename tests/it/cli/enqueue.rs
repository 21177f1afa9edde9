use std::time::Duration;

use ringq::pb::payload::Kind;
use ringq::pb::{Job, JobState, NackAction};

use super::{command, finish, piped, ringq};
use crate::harness::{Server, SinceEpoch as _, duration, job, millis, nack, wall_now};

#[tokio::test]
async fn an_argument_becomes_a_job_and_the_answer_is_printed() {
    let server = Server::start().await;
    let stdout = ringq(&server, &["enqueue", "mail", r#"{"to":"ada"}"#]).await.ok();
    let id = stdout.strip_suffix('\n').expect("a line");
    let job = server.connect().await.get("mail", id).await;
    assert_eq!(job.state(), JobState::Ready);
    let payload = job.spec.unwrap().payload.unwrap();
    assert_eq!(payload.kind, Some(Kind::Text(r#"{"to":"ada"}"#.to_owned())));

    let answer = ringq(&server, &["enqueue", "mail", "x", "--id", "a", "-o", "json"]).await.json();
    assert_eq!(answer["id"], "a");
    assert_eq!(answer["outcome"], "ENQUEUE_OUTCOME_CREATED");
    assert_eq!(answer["durability"], "DURABILITY_FSYNCED");
    assert_eq!(answer["state"], "JOB_STATE_READY");

    let args = ["enqueue", "mail", "x", "--id", "blanks", "--retry-delays", "1s, 2m"];
    ringq(&server, &args).await.ok();
    let retry = server.connect().await.get("mail", "blanks").await.spec.unwrap().retry.unwrap();
    let delays: Vec<_> = retry.delays.iter().map(|delay| duration(&Some(*delay))).collect();
    assert_eq!(delays, [Duration::from_secs(1), Duration::from_secs(120)]);

    let args = ["enqueue", "mail", "x", "--id", "timed", "--at", "2035-01-31T10:00:00+01:00"];
    ringq(&server, &args).await.ok();
    let job = server.connect().await.get("mail", "timed").await;
    assert_eq!(job.due_time.since_epoch(), Duration::from_secs(2_053_846_800));

    // A repeat of a call whose answer was lost.
    for _ in 0..2 {
        let args = ["enqueue", "repeated", "x", "--request-id", "r7"];
        assert_eq!(ringq(&server, &args).await.ok(), "r=r7\n");
    }
    assert_eq!(server.connect().await.stats("repeated").await.ready, 1);
}

#[tokio::test]
async fn every_flag_reaches_the_job() {
    let server = Server::start().await;
    let args = "enqueue mail hello --id a --delay 1h30m --priority 7 --header k=v=w --header e= \
                --content-type text/plain --max-attempts 4 --retry-delays 60s,3m \
                --max-crashes 2 --crash-topic crashed --max-retry-duration 1d --lease 2m --ttl 2h --retention 1d --durability fsynced";
    let args: Vec<_> = args.split_whitespace().collect();
    assert_eq!(ringq(&server, &args).await.ok(), "a\n");
    let job = server.connect().await.get("mail", "a").await;
    let spec = job.spec.clone().unwrap();
    let until_due = job.due_time.since_epoch().saturating_sub(wall_now());
    assert!(until_due > millis(5_300_000) && until_due <= millis(5_400_000), "{until_due:?}");
    assert_eq!(spec.priority, Some(7));
    assert_eq!(spec.headers["k"], "v=w");
    assert_eq!(spec.headers["e"], "");
    assert_eq!(spec.payload.unwrap().content_type, "text/plain");
    let retry = spec.retry.unwrap();
    assert_eq!((retry.max_attempts, retry.max_crashes, &*retry.crash_topic), (4, 2, "crashed"));
    let delays: Vec<_> = retry.delays.iter().map(|delay| duration(&Some(*delay))).collect();
    assert_eq!(delays, [Duration::from_secs(60), Duration::from_secs(180)]);
    assert_eq!(duration(&retry.max_retry_duration), Duration::from_secs(86_400));
    assert_eq!(duration(&spec.lease_duration), Duration::from_secs(120));
    assert_eq!(duration(&spec.retention), Duration::from_secs(86_400));
    assert!(spec.expiration.is_some());
}

/// JSON by default only where the text is valid JSON; text that looks like broken JSON is reported. A given type is
/// not checked.
#[tokio::test]
async fn text_is_of_the_type_that_it_is() {
    let server = Server::start().await;
    let client = server.connect().await;
    let is =
        async |id: &str| client.get("mail", id).await.spec.unwrap().payload.unwrap().content_type;
    for (id, payload, flags, content_type, is_noted) in [
        ("json", r#" {"a":1}"#, &[][..], "", false),
        ("number", "12", &[], "", false),
        ("word", "hello", &[], "text/plain", false),
        ("log", "[12:00] hello", &[], "text/plain", false),
        ("broken", r#"{"a":"#, &[], "text/plain", true),
        ("quiet", r#"{"a":"#, &["-q"], "text/plain", false),
        ("asked", r#"{"a":"#, &["--content-type", "application/json"], "application/json", false),
    ] {
        let args = ["enqueue", "mail", payload, "--id", id];
        let args: Vec<_> = args.iter().chain(flags).copied().collect();
        let ran = ringq(&server, &args).await;
        assert_eq!((ran.code, is(id).await.as_str()), (0, content_type), "{payload}");
        let note = "ringq: the payload is not JSON (EOF while parsing a value at line 1 column 5) and \
                    is sent as text/plain\n";
        assert_eq!(ran.stderr, if is_noted { note } else { "" });
    }
    piped(&server, &["enqueue", "mail", "-", "--id", "piped"], b"hello\n").await.ok();
    piped(&server, &["enqueue", "mail", "-", "--id", "bytes"], b"{\xff").await.ok();
    assert_eq!((is("piped").await.as_str(), is("bytes").await.as_str()), ("text/plain", ""));
    let lines = b"{\"a\":1}\n{oh\n{no\nplain\n";
    let ran =
        piped(&server, &["enqueue", "mail", "--lines", "-", "--request-id", "r"], lines).await;
    let lines: Vec<&str> = ran.stderr.lines().collect();
    assert!(lines[0].starts_with("ringq: line 2 of standard input is not JSON ("), "{lines:?}");
    assert_eq!((ran.code, &lines[1..]), (0, &["4 enqueued"][..]), "once");
    for (line, content_type) in [(1, ""), (2, "text/plain"), (4, "text/plain")] {
        assert_eq!(is(&format!("r=r={line}")).await, content_type);
    }
}

#[tokio::test]
async fn what_is_piped_in_is_the_payload() {
    let server = Server::start().await;
    let client = server.connect().await;
    for (args, input, want) in [
        (vec!["--id", "text", "-"], &b"a\nb\n"[..], Some(Kind::Text("a\nb\n".to_owned()))),
        (
            vec!["--id", "bytes", "-"],
            &b"\xff\x00"[..],
            Some(Kind::Data(b"\xff\x00".to_vec().into())),
        ),
        (vec!["--id", "nothing", "-"], &b""[..], Some(Kind::Data(Vec::new().into()))),
    ] {
        let all: Vec<_> = ["enqueue", "mail"].into_iter().chain(args.clone()).collect();
        piped(&server, &all, input).await.ok();
        let spec = client.get("mail", args[1]).await.spec.unwrap();
        assert_eq!(spec.payload.unwrap_or_default().kind, want, "{args:?}");
    }
    // With an argument no piped input has to be closed first.
    ringq(&server, &["enqueue", "mail", "x", "--id", "given"]).await.ok();
}

/// A loop over the lines of a file must keep them, and no intended input may be lost.
#[tokio::test]
async fn what_is_piped_in_is_read_only_when_asked_for() {
    let server = Server::start().await;
    let texts = ["PAYLOAD is missing", "`… | ringq enqueue mail -`", "< /dev/null"];
    let args = ["enqueue", "mail", "--id", "a"];
    piped(&server, &args, b"x").await.fails(2, &texts);
    // A silent pipe may still deliver input.
    let (_silent, pipe) = {
        let (reader, writer) = std::io::pipe().unwrap();
        (writer, reader)
    };
    let mut silent = command(server.grpc, &args);
    finish(silent.stdin(pipe).spawn().unwrap()).await.fails(2, &texts);
    let mut file = tempfile::tempfile().unwrap();
    std::io::Write::write_all(&mut file, b"one\ntwo\n").unwrap();
    std::io::Seek::rewind(&mut file).unwrap();
    let mut from_file = command(server.grpc, &args);
    finish(from_file.stdin(file.try_clone().unwrap()).spawn().unwrap()).await.fails(2, &texts);
    assert_eq!(std::io::Seek::stream_position(&mut file).unwrap(), 0, "nothing was eaten");
    // Cron's pipe is empty and at its end.
    assert_eq!(piped(&server, &args, b"").await.ok(), "a\n");
    let spec = server.connect().await.get("mail", "a").await.spec.unwrap();
    assert_eq!(spec.payload.unwrap_or_default().kind, None);
}

#[tokio::test]
async fn a_time_that_has_passed_is_reported() {
    let server = Server::start().await;
    let args = ["enqueue", "mail", "x", "--at", "2020-11-22T10:00:00Z", "--id", "a"];
    let ran = ringq(&server, &args).await;
    assert!(ran.stderr.starts_with("--at is "), "{}", ran.stderr);
    assert!(ran.stderr.ends_with("y ago: the job is due now\n"), "{}", ran.stderr);
    ran.ok();
    let again = ringq(&server, &args).await;
    assert!(!again.stderr.contains("--at"), "it changed nothing: {}", again.stderr);
}

#[tokio::test]
async fn the_same_content_is_the_same_job() {
    let server = Server::start().await;
    let args = ["enqueue", "mail", "--id-from-payload", "hello"];
    let first = ringq(&server, &args).await;
    assert_eq!(first.stderr, "");
    let sha256 = "2cf24dba5fb0a30e26e83b2ac5b9e29e1b161e5c1fa7425e73043362938b9824";
    assert_eq!(first.ok(), format!("{sha256}\n"));
    let second = ringq(&server, &args).await;
    assert!(second.stderr.starts_with("unchanged: "), "{}", second.stderr);
    assert_eq!(second.ok(), format!("{sha256}\n"));
    assert_eq!(server.connect().await.stats("mail").await.ready, 1);
    let quiet = ringq(&server, &["enqueue", "mail", "--id-from-payload", "hello", "-q"]).await;
    assert_eq!((quiet.stdout.as_str(), quiet.stderr.as_str()), ("", ""));
}

#[tokio::test]
async fn a_taken_id_is_treated_as_asked() {
    let server = Server::start().await;
    let client = server.connect().await;
    client.enqueue(job("mail").with_id("a").with_text("old")).await;
    let with = async |policy| {
        ringq(&server, &["enqueue", "mail", "new", "--id", "a", "--on-conflict", policy]).await
    };
    assert_eq!(with("keep").await.ok(), "a\n");
    with("reject").await.fails(1, &["ringq: cannot enqueue to mail", "`ringq job get mail a`"]);
    assert_eq!(text(&client.get("mail", "a").await), "old");
    assert_eq!(with("replace").await.ok(), "a\n");
    assert_eq!(text(&client.get("mail", "a").await), "new");
    with("hope").await.fails(2, &["hope", "reschedule"]);
    let receipt = client.pull_one("mail").await.receipt;
    client.nack(nack(&receipt, NackAction::DeadLetter)).await;
    let ran = with("keep").await;
    assert!(ran.stderr.contains("unchanged: a is DEAD\n"), "{}", ran.stderr);
    assert!(ran.stderr.contains("`ringq job redrive mail a`"), "{}", ran.stderr);
    let rejected = with("REJECT").await.fails(1, &["the id is taken", "--on-conflict replace"]);
    assert!(!rejected.stderr.contains("Get"), "{}", rejected.stderr);
}

fn text(job: &Job) -> String {
    match job.spec.clone().unwrap().payload.unwrap().kind {
        Some(Kind::Text(text)) => text,
        other => panic!("{other:?}"),
    }
}

#[tokio::test]
async fn what_the_server_refuses_names_the_flag() {
    let server = Server::start().await;
    let refused = ringq(&server, &["enqueue", "no topic", "x"]).await;
    assert_eq!(refused.fails(1, &["cannot enqueue to no topic", "TOPIC"]).stdout, "");
    let ran = ringq(&server, &["enqueue", "mail", "x", "--id", "a b"]).await;
    assert!(ran.fails(1, &["--id"]).stderr.ends_with("it is set by --id\n"));
    let args = ["enqueue", "mail", "x", "--lease", "2d"];
    ringq(&server, &args).await.fails(1, &["--lease", "24h"]);
    let args = ["enqueue", "mail", "x", "--retry-delays", "1s,4000d"];
    ringq(&server, &args).await.fails(1, &["retry.delays[1]", "--retry-delays"]);
}

#[tokio::test]
async fn wrong_values_are_reported_before_anything_is_sent() {
    let server = Server::start().await;
    for (flags, texts) in [
        (&["--delay", "5"][..], "\"5\" is not a duration like 250ms, 30s, 5m or 1h30m"),
        (&["--delay", "-5m"], "is negative"),
        (&["--lease", "-5m"], "is negative"),
        (&["--delay", "soon"], "is not a duration like"),
        (&["--at", "2035-01-31T10:00:00"], "add Z or an offset"),
        (&["--id", ""], "is a variable not set?"),
        (&["--request-id", ""], "is a variable not set?"),
        (&["--content-type", ""], "is a variable not set?"),
        (&["--server", ""], "is a variable not set?"),
        (&["--header", "=v"], "its name is empty"),
        (&["--wait-timeout", "1s"], "--wait"),
        (&["--at", "tomorrow"], "2027-01-31T09:00:00Z"),
        (&["--delay", "5m", "--at", "2035-01-31T10:00:00Z"], "cannot be used with"),
        (&["--priority", "10"], "from 0 to 9"),
        (&["--priority", "high"], "from 0 to 9"),
        (&["--header", "novalue"], "NAME=VALUE"),
        (&["--header", "a=1", "--header", "a=2"], "twice"),
        (&["--max-attempts", "0"], "-1"),
        (&["--id", "a", "--id-from-payload"], "cannot be used with"),
        (&["--lines", "x"], "cannot be used with"),
        (&["--token", "to\nken"], "RINGQ_TOKEN"),
    ] {
        let args: Vec<_> = ["enqueue", "mail", "x"].iter().chain(flags).copied().collect();
        ringq(&server, &args).await.fails(2, &[texts]);
    }
    assert_eq!(
        ringq(&server, &["topic", "list", "-o", "json"]).await.json(),
        serde_json::json!([])
    );
}

/// The file of the only shard is locked, so the server retries the call until its deadline.
#[tokio::test]
async fn an_answer_that_does_not_come_is_not_waited_for_in_silence() {
    let server = Server::start().await;
    let holder = rusqlite::Connection::open(server.shard_file("s0")).unwrap();
    holder.execute_batch("BEGIN IMMEDIATE").unwrap();
    let args = ["enqueue", "mail", "x", "--id", "a", "--timeout", "3s"];
    let waiting = "ringq: no answer yet, waiting for up to 3s\n";
    let in_quiet = [&args[..], &["--quiet"]].concat();
    // At once, because the circuit breaker opens soon.
    let (loud, quiet) = tokio::join!(ringq(&server, &args), ringq(&server, &in_quiet));
    loud.fails(4, &[waiting, "cannot enqueue to mail"]);
    assert!(!quiet.stderr.contains("no answer yet"), "{}", quiet.stderr);
}
