use std::process::Stdio;

use tokio::io::{AsyncBufReadExt as _, AsyncWriteExt as _, BufReader};

use super::work_rig::{Work, kept};
use super::{Ran, command, finish, ringq};
use crate::client::servers::{Several, dead};
use crate::harness::{Redis, Server, Setup, http_get, job, millis, within};

/// Runs a command that names these servers.
async fn on(server: &Server, servers: &str, args: &[&str]) -> Ran {
    ringq(server, &[args, &["--server", servers]].concat()).await
}

#[tokio::test]
async fn a_command_uses_a_server_that_answers() {
    let server = Server::start().await;
    let port = server.grpc.port();
    // Each process begins at a random one.
    for _ in 0..4 {
        let servers = format!("{}, :{port}", dead());
        on(&server, &servers, &["shard", "list"]).await.ok();
        assert!(on(&server, &servers, &["info"]).await.ok().contains("store:"));
        on(&server, &servers, &["enqueue", "mail", "x"]).await.ok();
    }
    let mut variable = command(server.grpc, &["topic", "list"]);
    variable.env("RINGQ_SERVER", format!("{},127.0.0.1:{port}", dead()));
    assert!(finish(variable.spawn().unwrap()).await.ok().contains("mail"));
}

/// Streams, rates and the view of the shards are those of one server.
#[tokio::test]
async fn what_one_of_several_servers_shows_names_it() {
    let Some(several) = Several::start(&["a", "b"]).await else { return };
    let server = &several.servers["a"];
    server.connect().await.enqueue(kept("t", "1")).await;
    let commands: [&[&str]; 8] = [
        &["worker", "list"],
        &["worker", "list", "-o", "json"],
        &["topic", "list"],
        &["topic", "stats", "t"],
        &["info"],
        &["info", "-o", "json"],
        &["shard", "list"],
        &["job", "explain", "t", "1"],
    ];
    for args in commands {
        let ran = on(server, &several.urls(), args).await;
        let named = several
            .servers
            .values()
            .filter(|server| ran.stderr.contains(&format!("answered by http://{}\n", server.grpc)));
        assert_eq!(named.count(), 1, "{args:?}: {}", ran.stderr);
        let alone = ringq(server, args).await;
        assert!(!alone.stderr.contains("answered by"), "{args:?}: {}", alone.stderr);
        alone.ok();
    }
}

#[tokio::test]
async fn the_wrong_part_of_a_list_is_named() {
    let server = Server::start().await;
    for (servers, part) in [
        ("127.0.0.1:1,ftp://a", "`ftp://a` is not a server URL"),
        ("a:b,:7700", "`http://a` is not a server URL: the port is not a number"),
        (":7700,,a", "has an empty entry"),
    ] {
        let ran = on(&server, servers, &["info"]).await;
        ran.fails(2, &[part, "it is set by --server or RINGQ_SERVER"]);
    }
}

#[tokio::test]
async fn no_server_of_a_list_is_one_error_that_names_all() {
    let server = Server::start().await;
    let (a, b) = (dead(), dead());
    for args in
        [&["info"][..], &["enqueue", "mail", "x"], &["enqueue", "m", "--lines", "/dev/null"]]
    {
        let ran = on(&server, &format!("{a},{b}"), args).await;
        let problem =
            format!("no connection to {a} (connection refused), {b} (connection refused)");
        let ran = ran.fails(4, &[&problem, "`ringq serve`"]);
        assert_eq!(ran.stderr.lines().count(), 2, "{}", ran.stderr);
    }
}

#[tokio::test]
async fn a_worker_goes_on_with_the_other_server() {
    let Some(mut several) = Several::start(&["a", "b"]).await else { return };
    let servers = several.urls();
    let mut work = Work::spawn(&["t", "--server", &servers, "--exec", "cat; echo"]);
    let killed = several.of_worker().await;
    let mut killed = several.servers.remove(&killed).unwrap();
    let rest = several.servers.values().next().unwrap().connect().await;
    rest.enqueue(kept("t", "1").with_text("one")).await;
    assert_eq!(work.line().await, "one");
    killed.kill().await;
    rest.enqueue(kept("t", "2").with_text("two")).await;
    assert_eq!(work.line().await, "two");
    work.prints("connected to http://").await;
    work.signal("TERM");
    let done = work.done().await;
    assert!(done.stderr.contains(&format!("http://{}", killed.grpc)), "{}", done.stderr);
    assert!(done.stderr.contains(" again, taking t"), "{}", done.stderr);
    assert!(done.stderr.contains("ringq: 2 acked"), "{}", done.stderr);
}

#[tokio::test]
async fn a_worker_whose_connections_are_retired_never_lacks_a_server() {
    let Some(redis) = Redis::start().await else { return };
    let serve = || Setup::on(&redis.url()).config("stream_max_age = \"1s\"").start();
    let (a, b) = (serve().await, serve().await);
    let servers = format!("{},{}", a.grpc, b.grpc);
    let args = ["t", "--server", &servers, "--exec", "cat; echo", "--concurrency", "3"];
    let mut workers: Vec<_> = (0..3).map(|_| Work::spawn(&args)).collect();
    a.connect().await.enqueue_all(vec![job("t"); 100]).await;
    // No call but that of the next stream finds out that its connection was retired, several times.
    tokio::time::sleep(millis(5_000)).await;
    for worker in &mut workers {
        worker.close_stdout();
        worker.signal("TERM");
    }
    for worker in workers {
        let stderr = worker.done().await.stderr;
        assert!(!stderr.contains("no connection") && !stderr.contains("no jobs from"), "{stderr}");
    }
}

#[tokio::test]
async fn lines_survive_the_kill_of_their_server() {
    let Some(mut several) = Several::start(&["a", "b"]).await else { return };
    let args = ["enqueue", "t", "--lines", "-", "--id-from-payload", "--server", &several.urls()];
    let mut import = command(several.servers["a"].grpc, &args);
    let mut child = import.stdin(Stdio::piped()).spawn().unwrap();
    let mut stdin = child.stdin.take().unwrap();
    let mut stdout = BufReader::new(child.stdout.take().unwrap()).lines();
    let lines =
        |numbers: std::ops::Range<u32>| numbers.map(|n| format!("{n}\n")).collect::<String>();
    stdin.write_all(lines(0..1_000).as_bytes()).await.unwrap();
    within("the first id", stdout.next_line()).await.unwrap();
    let mut used = None;
    for (name, server) in &several.servers {
        let (_, metrics) = http_get(server.http, "/metrics").await;
        used = if metrics.contains("BatchEnqueue\"") { Some(name.clone()) } else { used };
    }
    several.servers.remove(&used.unwrap()).unwrap().kill().await;
    stdin.write_all(lines(1_000..2_000).as_bytes()).await.unwrap();
    drop(stdin);
    let mut ids = 1;
    while within("the other ids", stdout.next_line()).await.unwrap().is_some() {
        ids += 1;
    }
    let ran = finish(child).await;
    assert_eq!((ran.code, ids), (0, 2_000), "{}", ran.stderr);
    let rest = several.servers.values().next().unwrap().connect().await;
    assert_eq!(rest.stats("t").await.ready, 2_000);
}

#[tokio::test]
async fn a_bench_runs_on_several_servers() {
    let Some(several) = Several::start(&["a", "b"]).await else { return };
    let args = ["bench", "lifecycle", "--jobs", "2000", "--rounds", "1", "-o", "json"];
    let report = on(&several.servers["a"], &several.urls(), &args).await.json();
    assert_eq!((&report["complete"], &report["sound"]), (&true.into(), &true.into()));
}
