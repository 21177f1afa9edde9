use std::sync::Arc;
use std::time::Duration;

use ringq::pb::ShardState;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpListener;

use super::reach::{shard, works};
use crate::harness::{Certificates, Redis, Server, Setup, eventually, job, request};

/// A server on the Redis of that url that does not start: the one line that it says of that.
async fn refused(url: &str) -> String {
    let failure = Setup::on(url).fail().await;
    assert_eq!(failure.code, Some(1), "{}", failure.stderr);
    let lines: Vec<_> = failure.stderr.lines().collect();
    assert_eq!(lines.len(), 1, "{lines:?}");
    assert!(!lines[0].contains("secret"), "{}", lines[0]);
    lines[0].to_owned()
}

/// A server on the Redis of that url, which it awaits: the one warning of it.
async fn awaited(setup: Setup, url: &str) -> String {
    let server = setup.shard(format!("s0={url}")).start().await;
    // The shard is tried in between, also by whoever listens to wake-ups.
    tokio::time::sleep(Duration::from_secs(3)).await;
    let lines = about(&server, "s0");
    assert_eq!(lines.len(), 1, "{}", server.log());
    assert!(lines[0].contains("WARN") && lines[0].contains("not reached yet"), "{}", lines[0]);
    lines[0].clone()
}

/// The lines of its log that are about that shard.
fn about(server: &Server, name: &str) -> Vec<String> {
    let log = server.log();
    let shard = format!("shard={name} ");
    log.lines().filter(|line| format!("{line} ").contains(&shard)).map(str::to_owned).collect()
}

/// The url with this login.
fn with(login: &str, url: &str) -> String {
    url.replace("//", &format!("//{login}@"))
}

/// A server that answers everybody with these bytes, whatever they say; its url.
async fn parrot(says: impl Into<String>) -> String {
    let says = Arc::new(says.into());
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("redis://{}", listener.local_addr().unwrap());
    tokio::spawn(async move {
        while let Ok((mut socket, _)) = listener.accept().await {
            let says = Arc::clone(&says);
            tokio::spawn(async move {
                let mut heard = [0; 4096];
                while socket.read(&mut heard).await.is_ok_and(|length| length > 0) {
                    socket.write_all(says.as_bytes()).await.unwrap();
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
    let says = refused(&format!("{url}/99")).await;
    let want = format!(
        "ringq: cannot open shard s0 at {url}/99: it refuses database 99 (DB index is out of range); "
    );
    assert!(says.starts_with(&want), "{says}");
    let says = refused(&with("ringq:secret", &url)).await;
    let want = format!("shard s0 at {url}: it does not accept the user and password of the url");
    assert!(says.contains(&want), "{says}");
    let user = ["ACL", "SETUSER", "ringq", "on", ">p", "~ringq:*", "&ringq:*", "+@all", "-select"];
    assert_eq!(redis.command(&user).await, "+OK");
    let says = refused(&format!("{}/1", with("ringq:p", &url))).await;
    assert!(says.contains("its user may not use SELECT"), "{says}");
    assert_eq!(redis.command(&["CONFIG", "SET", "requirepass", "right"]).await, "+OK");
    let says = refused(&with(":secret", &url)).await;
    assert!(says.contains("it does not accept the user and password"), "{says}");
    let says = refused(&url).await;
    assert!(says.contains("it asks for a password and the url has none"), "{says}");
}

#[tokio::test]
async fn a_password_that_is_not_asked_for_is_refused_at_the_start_and_no_matter_later() {
    let Some(mut redis) = Redis::start().await else { return };
    for login in [":secret", "default:secret"] {
        let says = refused(&with(login, &redis.url())).await;
        assert!(says.contains("has a password and this redis asks for none"), "{says}");
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
        let told = shard(&client, "s1").await;
        let is = told.state() == ShardState::Unreachable && told.last_error.contains("database 99");
        is.then_some(())
    })
    .await;
    let lines = about(&server, "s1");
    let last = lines.last().unwrap();
    assert!(
        last.contains("ERROR") && last.contains("misconfigured and out of use until that is fixed"),
        "{last}"
    );
    assert!(last.contains(&format!("address=\"{}/99\"", redis.url())), "{last}");
    assert_eq!(client.enqueue(job("mail")).await.shard, "s0");
}

#[tokio::test]
async fn a_redis_that_is_down_is_told_once_and_once_more_when_it_is_there() {
    let Some(mut redis) = Redis::durable().await else { return };
    let Some(other) = Redis::durable().await else { return };
    redis.kill();
    let setup = Setup::on(&other.url());
    let server = setup.and_shard(format!("s1={}", redis.url())).start().await;
    assert!(about(&server, "s0").iter().any(|line| line.contains(" opened ")), "{}", server.log());
    // Everybody who tries has done so more than once.
    tokio::time::sleep(Duration::from_secs(3)).await;
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
async fn what_is_no_redis_is_told_in_one_line() {
    let says = refused(&parrot("HTTP/1.1 400 Bad Request\r\n\r\n<html>\n</html>\n").await).await;
    assert!(says.contains("does not speak the protocol of redis; check host and port"), "{says}");
    // What it says is no part of the log but as text.
    // Once for each command with which a connection begins.
    let error = "!26\r\nERR one\nERROR two \x1b[31mred\r\n";
    let url = parrot(error.repeat(3)).await;
    let line = awaited(Setup::new(), &url).await;
    assert!(line.contains("one ERROR two  [31mred"), "{line}");
    assert!(!line.chars().any(char::is_control), "{line:?}");
}

#[tokio::test]
async fn who_mistakes_tls_for_none_or_none_for_it_is_told_so() {
    let Some(files) = Certificates::make() else { return };
    let Some((redis, port)) = Redis::secure(&files, false).await else { return };
    let url = format!("rediss://localhost:{}", redis.port());
    let says = refused(&url).await;
    assert!(says.contains("no TLS; write redis in place of rediss"), "{says}");
    let sentinels = format!("rediss+sentinel://localhost:{}/main", redis.port());
    let says = refused(&sentinels).await;
    assert!(says.contains("no TLS; write redis in place of rediss"), "{says}");
    let says = refused(&parrot("-ERR\r\n").await.replace("redis:", "rediss:")).await;
    assert!(says.contains("no TLS; write redis in place of rediss"), "{says}");
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
    // Also where it refuses what a redis would take: it has no databases, and no users of a redis.
    for login in ["", ":secret@", "ringq:secret@"] {
        for database in ["", "/1"] {
            let url = sentinel.url().replace("//", &format!("//{login}")) + database;
            let says = refused(&url).await;
            let want = "it is a sentinel and no redis; write redis+sentinel://";
            assert!(says.contains(want), "{url}: {says}");
        }
    }
    let url = |hosts: &str| format!("redis+sentinel://{hosts}/main");
    let here = format!("127.0.0.1:{}", redis.port());
    let says = refused(&url(&here)).await;
    assert!(
        says.contains(&format!("{here} is a redis and no sentinel; give its sentinels")),
        "{says}"
    );
    let says = refused(&url(&format!("{here},{here}"))).await;
    assert!(says.contains("is a redis and no sentinel"), "{says}");
    // Another one may come.
    let line = awaited(Setup::new(), &url(&format!("{here},127.0.0.1:1"))).await;
    assert!(line.contains("sentinel 127.0.0.1:1 does not help"), "{line}");
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
    let line = eventually("it is told", async || warned(&server)).await;
    assert!(line.contains("durability=MEMORY before=\"FSYNCED\""), "{}", server.log());
}

#[tokio::test]
async fn a_file_that_is_begun_is_told_as_such_where_a_write_reaches_no_more_by_it() {
    let Some(redis) = Redis::start().await else { return };
    let server = Setup::on(&redis.url()).start().await;
    redis.command(&["CONFIG", "SET", "appendonly", "yes"]).await;
    let told = |what: &str| about(&server, "s0").into_iter().find(|line| line.contains(what));
    let line = eventually("it is told", async || told("append-only file now")).await;
    assert!(line.contains("INFO") && line.contains("durability=MEMORY"), "{line}");
    // Nothing of that has changed.
    assert_eq!(told("has changed"), None);
}
