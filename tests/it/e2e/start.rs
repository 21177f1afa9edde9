use std::sync::Arc;
use std::time::Duration;

use ringq::pb::ShardState;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpListener;

use super::reach::{shard, works};
use crate::harness::{Certificates, Redis, Server, Setup, eventually, job, request};

/// Starts a server on the Redis of that url, which fails, and returns its one error line.
async fn refused(url: &str) -> String {
    let failure = Setup::on(url).fail().await;
    assert_eq!(failure.code, Some(1), "{}", failure.stderr);
    let lines: Vec<_> = failure.stderr.lines().collect();
    assert_eq!(lines.len(), 1, "{lines:?}");
    assert!(!lines[0].contains("secret"), "{}", lines[0]);
    lines[0].to_owned()
}

/// Starts a server that waits for the Redis of that url, and returns its one warning.
async fn awaited(setup: Setup, url: &str) -> String {
    let server = setup.shard(format!("s0={url}")).start().await;
    // The shard is tried in between, also by the subscriber of wake-ups.
    tokio::time::sleep(Duration::from_secs(2)).await;
    let lines = about(&server, "s0");
    assert_eq!(lines.len(), 1, "{}", server.log());
    assert!(lines[0].contains("WARN") && lines[0].contains("not reached yet"), "{}", lines[0]);
    lines[0].clone()
}

/// Returns the lines of its log about that shard.
fn about(server: &Server, name: &str) -> Vec<String> {
    let log = server.log();
    let shard = format!("shard={name} ");
    log.lines().filter(|line| format!("{line} ").contains(&shard)).map(str::to_owned).collect()
}

/// Returns the url with this login.
fn with(login: &str, url: &str) -> String {
    url.replace("//", &format!("//{login}@"))
}

/// Starts a server that answers every request with these bytes; returns its url.
async fn parrot(text: impl Into<String>) -> String {
    let text = Arc::new(text.into());
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("redis://{}", listener.local_addr().unwrap());
    tokio::spawn(async move {
        while let Ok((mut socket, _)) = listener.accept().await {
            let text = Arc::clone(&text);
            tokio::spawn(async move {
                let mut buffer = [0; 4096];
                while socket.read(&mut buffer).await.is_ok_and(|length| length > 0) {
                    socket.write_all(text.as_bytes()).await.unwrap();
                }
            });
        }
    });
    url
}

#[tokio::test]
async fn a_login_or_a_database_that_is_wrong_keeps_a_server_from_starting() {
    let Some(redis) = Redis::start().await else { return };
    let url = redis.url();
    let text = refused(&format!("{url}/99")).await;
    let want = format!(
        "ringq: cannot open shard s0 at {url}/99: redis rejects database 99 (DB index is out of range); "
    );
    assert!(text.starts_with(&want), "{text}");
    let text = refused(&with("ringq:secret", &url)).await;
    let want = format!("shard s0 at {url}: redis rejects the user and password of the url");
    assert!(text.contains(&want), "{text}");
    let user = ["ACL", "SETUSER", "ringq", "on", ">p", "~ringq:*", "&ringq:*", "+@all", "-select"];
    assert_eq!(redis.command(&user).await, "+OK");
    let text = refused(&format!("{}/1", with("ringq:p", &url))).await;
    assert!(text.contains("the redis user may not use SELECT"), "{text}");
    assert_eq!(redis.command(&["CONFIG", "SET", "requirepass", "right"]).await, "+OK");
    let text = refused(&with(":secret", &url)).await;
    assert!(text.contains("redis rejects the user and password"), "{text}");
    let text = refused(&url).await;
    assert!(text.contains("redis requires a password and the url has none"), "{text}");
}

#[tokio::test]
async fn a_password_that_is_not_asked_for_is_refused_at_the_start_and_no_matter_later() {
    let Some(mut redis) = Redis::start().await else { return };
    for login in [":secret", "default:secret"] {
        let text = refused(&with(login, &redis.url())).await;
        assert!(text.contains("has a password and redis requires none"), "{text}");
    }
    redis.command(&["CONFIG", "SET", "requirepass", "secret"]).await;
    let url = with(":secret", &redis.url());
    let server = Setup::on(&url).start().await;
    // It comes back as it was configured before: without a password.
    redis.kill();
    redis.restart().await;
    let client = server.connect().await;
    eventually("it is used again", async || client.send(request(job("other"))).await.ok()).await;
    works(&server).await;
}

#[tokio::test]
async fn a_mistake_that_is_found_after_the_start_keeps_one_shard_out() {
    let Some(mut redis) = Redis::start().await else { return };
    let Some(other) = Redis::start().await else { return };
    redis.kill();
    let setup = Setup::on(&other.url());
    let server = setup.and_shard(format!("s1={}/99", redis.url())).start().await;
    redis.restart().await;
    let client = server.connect().await;
    eventually("the mistake is seen", async || {
        let lost = shard(&client, "s1").await;
        let is = lost.state() == ShardState::Unreachable && lost.last_error.contains("database 99");
        is.then_some(())
    })
    .await;
    let lines = about(&server, "s1");
    let last = lines.last().unwrap();
    assert!(
        last.contains("ERROR")
            && last.contains("misconfigured and not used; fix what the error names"),
        "{last}"
    );
    assert!(last.contains(&format!("address=\"{}/99\"", redis.url())), "{last}");
    assert_eq!(client.enqueue(job("mail")).await.shard, "s0");
}

#[tokio::test]
async fn a_redis_that_is_down_is_reported_once_and_once_more_when_it_is_there() {
    let Some(mut redis) = Redis::durable().await else { return };
    let Some(other) = Redis::durable().await else { return };
    redis.kill();
    let setup = Setup::on(&other.url());
    let server = setup.and_shard(format!("s1={}", redis.url())).start().await;
    assert!(about(&server, "s0").iter().any(|line| line.contains(" opened ")), "{}", server.log());
    // Every retry loop has tried more than once.
    tokio::time::sleep(Duration::from_secs(2)).await;
    let lines = about(&server, "s1");
    assert_eq!(lines.len(), 1, "{}", server.log());
    for part in
        ["WARN", "not reached yet", &redis.url(), "Connection refused", "check that redis runs"]
    {
        assert!(lines[0].contains(part), "{part}: {}", lines[0]);
    }
    assert!(!lines[0].contains("password"), "{}", lines[0]);
    redis.restart().await;
    let client = server.connect().await;
    eventually("it is used", async || {
        let is_used = shard(&client, "s1").await.state() == ShardState::Active;
        (is_used && about(&server, "s1").len() > 2).then_some(())
    })
    .await;
    let lines = about(&server, "s1");
    assert!(lines[1].contains("INFO") && lines[1].contains("the shard is reached"), "{}", lines[1]);
    assert!(lines[2].contains("INFO") && lines[2].contains("durability=FSYNCED"), "{}", lines[2]);
    assert_eq!(lines.len(), 3, "{lines:?}");
}

#[tokio::test]
async fn what_is_no_redis_is_reported_in_one_line() {
    let text = refused(&parrot("HTTP/1.1 400 Bad Request\r\n\r\n<html>\n</html>\n").await).await;
    assert!(text.contains("does not use the redis protocol; check host and port"), "{text}");
    // The answer must appear in the log only as escaped text. Logged once for each command with which a connection
    // begins.
    let error = "!26\r\nERR one\nERROR two \x1b[31mred\r\n";
    let url = parrot(error.repeat(3)).await;
    let line = awaited(Setup::new(), &url).await;
    assert!(line.contains("one ERROR two  [31mred"), "{line}");
    assert!(!line.chars().any(char::is_control), "{line:?}");
}

#[tokio::test]
async fn who_mistakes_tls_for_none_or_none_for_it_is_reported_as_such() {
    let Some(files) = Certificates::make() else { return };
    let Some((redis, port)) = Redis::secure(&files, false).await else { return };
    let url = format!("rediss://localhost:{}", redis.port());
    let text = refused(&url).await;
    assert!(text.contains("no TLS; write redis in place of rediss"), "{text}");
    let sentinels = format!("rediss+sentinel://localhost:{}/main", redis.port());
    let text = refused(&sentinels).await;
    assert!(text.contains("no TLS; write redis in place of rediss"), "{text}");
    let text = refused(&parrot("-ERR\r\n").await.replace("redis:", "rediss:")).await;
    assert!(text.contains("no TLS; write redis in place of rediss"), "{text}");
    let silent = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("rediss://{}", silent.local_addr().unwrap());
    let line = awaited(Setup::new(), &url).await;
    assert!(line.contains("is TLS on at that port?"), "{line}");
    let line = awaited(Setup::new(), &format!("redis://localhost:{port}")).await;
    assert!(line.contains("is that port for TLS (rediss://)"), "{line}");
}

#[tokio::test]
async fn a_sentinel_in_place_of_a_redis_is_refused_and_a_redis_in_place_of_a_sentinel() {
    let Some(redis) = Redis::start().await else { return };
    let settings = format!("sentinel monitor main 127.0.0.1 {} 1\n", redis.port());
    let sentinel = Redis::sentinel(&settings).await.unwrap();
    // Also with logins that a redis would take: a sentinel has no databases and no users.
    for login in ["", ":secret@", "ringq:secret@"] {
        for database in ["", "/1"] {
            let url = sentinel.url().replace("//", &format!("//{login}")) + database;
            let text = refused(&url).await;
            let want = "the server is a sentinel, not a redis; write redis+sentinel://";
            assert!(text.contains(want), "{url}: {text}");
        }
    }
    let url = |hosts: &str| format!("redis+sentinel://{hosts}/main");
    let here = format!("127.0.0.1:{}", redis.port());
    let text = refused(&url(&here)).await;
    assert!(
        text.contains(&format!("{here} is a redis, not a sentinel; give its sentinels")),
        "{text}"
    );
    let text = refused(&url(&format!("{here},{here}"))).await;
    assert!(text.contains("is a redis, not a sentinel"), "{text}");
    // Another sentinel may come.
    let line = awaited(Setup::new(), &url(&format!("{here},127.0.0.1:1"))).await;
    assert!(line.contains("sentinel 127.0.0.1:1 does not answer the query"), "{line}");
}

#[tokio::test]
async fn a_redis_that_keeps_nothing_is_warned_of_at_the_start_and_when_it_begins_to() {
    let Some(mut redis) = Redis::start().await else { return };
    let warned = |server: &Server| {
        let lines = about(server, "s0");
        let mut warned = lines.into_iter().filter(|line| line.contains("no append-only file"));
        let found = warned.next();
        assert!(warned.next().is_none(), "{}", server.log());
        found
    };
    let setup = || Setup::on(&redis.url());
    let line = warned(&setup().start().await).unwrap();
    for part in ["WARN", "set appendonly to yes", "durability=MEMORY"] {
        assert!(line.contains(part), "{part}: {line}");
    }
    redis.command(&["CONFIG", "SET", "appendfsync", "always"]).await;
    redis.command(&["CONFIG", "SET", "appendonly", "yes"]).await;
    eventually("the file is whole", async || {
        let persistence = redis.command(&["INFO", "persistence"]).await;
        let is_busy = ["aof_rewrite_in_progress:1", "aof_rewrite_scheduled:1"];
        (!is_busy.iter().any(|busy| persistence.contains(busy))).then_some(())
    })
    .await;
    let server = setup().start().await;
    assert_eq!(warned(&server), None);
    assert!(server.log().contains("durability=FSYNCED"), "{}", server.log());
    // It comes back as it was configured before.
    redis.kill();
    redis.restart().await;
    let line = eventually("the change is logged", async || warned(&server)).await;
    assert!(line.contains("durability=MEMORY before=\"FSYNCED\""), "{}", server.log());
}

#[tokio::test]
async fn a_file_that_is_begun_is_reported_as_such_where_a_write_reaches_no_more_by_it() {
    let Some(redis) = Redis::start().await else { return };
    let server = Setup::on(&redis.url()).start().await;
    redis.command(&["CONFIG", "SET", "appendonly", "yes"]).await;
    let logged = |what: &str| about(&server, "s0").into_iter().find(|line| line.contains(what));
    let line = eventually("the change is logged", async || logged("append-only file now")).await;
    assert!(line.contains("INFO") && line.contains("durability=MEMORY"), "{line}");
    // The durability has not changed.
    assert_eq!(logged("has changed"), None);
}
