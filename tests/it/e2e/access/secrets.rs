//! Secrets are planted wherever a secret can stand, and looked for in everything that the server prints.

use std::process::Command;

use ringq::pb;

use crate::harness::{Redis, Setup, eventually, job};

use super::identities::{Caller, IdentityDir};

/// Text that every planted secret contains.
const MARK: &str = "pl4nted";

fn assert_clean(place: &str, text: &str) {
    assert!(!text.contains(MARK), "a secret is printed in {place}:\n{text}");
}

#[tokio::test]
async fn no_secret_is_printed_anywhere() {
    let secret = |name: &str| format!("{name}-{MARK}-0123456789abcdef");
    let (token, payload, password) = (secret("token"), secret("payload"), secret("password"));
    let dir = IdentityDir::new("");
    let file = dir.path().join("token");
    std::fs::write(&file, &token).unwrap();
    let tokens = format!("tokens = ['file:{}', 'env:APP_TOKEN']", file.display());
    let all = "producer = ['*']\nworker = ['*']\noperator = ['*']";
    dir.write("identities.toml", &format!("[[identity]]\nname = 'app'\n{tokens}\n{all}\n"));
    let Some(redis) = Redis::start().await else { return };
    let entry = format!(">{password}");
    redis.command(&["ACL", "SETUSER", "app", "on", &entry, "~*", "&*", "+@all"]).await;
    let url = format!("redis://app:{password}@127.0.0.1:{}", redis.port());
    let mut server = Setup::on(&url)
        .config(&format!("identities = {:?}", dir.path()))
        .config(
            "log_filter = 'trace,h2=debug,hyper=debug'\naudit_calls = 'all'\nmetrics_open = true",
        )
        .variable("APP_TOKEN", secret("second"))
        .start()
        .await;
    let mut printed = Vec::new();
    for header in [
        format!("Bearer {token}"),
        format!("Bearer {}", secret("second")),
        format!("Bearer {}", secret("wrong")),
        format!("Basic {}", secret("basic")),
        secret("bare"),
    ] {
        let caller = Caller::with(&server, Some(&header)).await;
        let kind = Some(pb::payload::Kind::Text(payload.clone()));
        let spec = pb::JobSpec {
            payload: Some(pb::Payload { kind, ..Default::default() }),
            headers: [("authorization".to_owned(), secret("header"))].into(),
            ..job("mail")
        };
        let enqueue = pb::EnqueueRequest { job: Some(spec), ..Default::default() };
        let answer = caller.call::<pb::EnqueueResponse>("QueueService/Enqueue", &enqueue).await;
        printed.push(format!("{answer:?}"));
        let bad = pb::GetRequest { topic: "no topic".into(), ..Default::default() };
        let answer = caller.call::<pb::GetResponse>("QueueService/Get", &bad).await;
        printed.push(format!("{answer:?}"));
        let shards = pb::ListShardsRequest {};
        let answer =
            caller.call::<pb::ListShardsResponse>("AdminService/ListShards", &shards).await;
        printed.push(format!("{answer:?}"));
    }
    assert!(printed[0].contains("Ok") && printed[6].contains("Unauthenticated"), "{printed:?}");
    // A file that is broken at the place of a token, and one in which a token stands where none belongs.
    for broken in [
        format!("[[identity]]\nname = 'app'\ntokens = ['{}']\n", secret("plain")),
        format!("[[identity]]\nname = '{}'\n", secret("a name with blanks ")),
        format!("[[identity]]\nname = 'app'\ntokens = '{}\n", secret("open")),
    ] {
        let before = server.log().matches("identities not read again").count();
        dir.write("identities.toml", &broken);
        eventually("it warns", async || {
            let warned = server.log().matches("identities not read again").count() > before;
            warned.then_some(())
        })
        .await;
    }
    let url = format!("http://{}/metrics", server.http);
    let metrics = Command::new("curl").args(["-s", &url]).output().unwrap();
    server.terminate();
    server.exit().await;
    assert_clean("an answer", &printed.concat());
    assert_clean("the log", &server.log());
    assert_clean("the audit log", &server.stdout());
    assert!(server.stdout().contains("UNAUTHENTICATED"), "{}", server.stdout());
    assert_clean("the metrics", &String::from_utf8(metrics.stdout).unwrap());
}

/// Returns everything that the program prints with these arguments, variables and configuration file.
fn printed(arguments: &[&str], variables: &[(&str, &str)], config: &str) -> String {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("ringq.toml");
    std::fs::write(&file, config).unwrap();
    let mut command = Command::new(env!("CARGO_BIN_EXE_ringq"));
    command.args(arguments).current_dir(dir.path()).env_clear().env("HOME", dir.path());
    command.envs(variables.iter().copied());
    if !config.is_empty() {
        command.arg("--config").arg(&file);
    }
    let output = command.stdin(std::process::Stdio::null()).output().unwrap();
    assert!(!output.status.success(), "{arguments:?} {variables:?} {config}: {output:?}");
    String::from_utf8_lossy(&[output.stdout, output.stderr].concat()).into_owned()
}

/// A URL with a password, well formed or not, is quoted by no message, wherever it is set.
#[test]
fn no_message_about_a_setting_quotes_a_password() {
    let urls = |scheme: &str| {
        [
            format!("{scheme}://user:{MARK}@127.0.0.1:1"),
            format!("{scheme}://user:{MARK}@127.0.0.1:port"),
            format!("{scheme}://user: {MARK}@127.0.0.1"),
            format!("{scheme}://user:one {MARK} two@127.0.0.1"),
            format!("{scheme}://user:,{MARK}@127.0.0.1:port"),
            format!("{scheme}://user:/{MARK}@127.0.0.1"),
            format!("{scheme}://user:#{MARK}@127.0.0.1"),
            format!("{scheme}://user:{MARK}"),
            format!("{scheme}://127.0.0.1:1/?password={MARK}"),
            format!("{scheme}://127.0.0.1:1/#{MARK}"),
            format!("user:{MARK}@127.0.0.1:port"),
        ]
    };
    let clean = |place: &str, text: String| assert_clean(place, &text);
    for url in urls("http").iter().chain(&urls("redis")) {
        clean("--server", printed(&["info", "--server", url], &[], ""));
    }
    for url in &urls("https") {
        clean("RINGQ_SERVER", printed(&["info"], &[("RINGQ_SERVER", url)], ""));
        clean("a context", printed(&["context", "add", "x", "--server", url], &[], ""));
        let list = format!("http://127.0.0.1:1,{url}");
        clean("a list", printed(&["info", "--server", &list], &[], ""));
    }
    // All mistakes are reported at once; a shard whose URL is valid would be retried, so there is always another one.
    let mistake = ("RINGQ_LISTEN", "nowhere");
    let schemes = ["redis", "rediss", "redis+sentinel", "http"];
    let all: Vec<String> = schemes.iter().flat_map(|scheme| urls(scheme)).collect();
    let named: Vec<String> = (0..).zip(&all).map(|(n, url)| format!("s{n}={url}")).collect();
    for shards in [&named, &all] {
        let flags = shards.iter().flat_map(|shard| ["--shard", shard]);
        let arguments: Vec<&str> = ["serve"].into_iter().chain(flags).collect();
        clean("--shard", printed(&arguments, &[mistake], ""));
        let variable = ("RINGQ_SHARDS", &*shards.join(" "));
        clean("RINGQ_SHARDS", printed(&["serve"], &[mistake, variable], ""));
    }
    let table =
        |(n, url): (usize, &String)| format!("[[shard]]\nname = \"s{n}\"\nurl = \"{url}\"\n");
    let tables: String = (0..).zip(&all).map(table).collect();
    clean("a file", printed(&["serve"], &[mistake], &tables));
    for url in &urls("redis") {
        let bare = format!("[[shard]]\nname = \"a\"\nurl = {url}\n");
        clean("a file without quotes", printed(&["serve"], &[mistake], &bare));
        let open = format!("[[shard]]\nname = \"a\"\nurl = \"{url}\n");
        clean("a file with one quote", printed(&["serve"], &[mistake], &open));
    }
    for url in &urls("http") {
        let receiver = ("OTEL_EXPORTER_OTLP_ENDPOINT", &**url);
        let text = printed(&["serve"], &[mistake, ("RINGQ_OTLP", "traces"), receiver], "");
        let is_refused = text.contains("OTEL_EXPORTER_OTLP_ENDPOINT");
        assert!(is_refused || !url.contains(['@', '?']), "{url}\n{text}");
        clean("OTEL_EXPORTER_OTLP_ENDPOINT", text);
    }
    for token in [format!("{MARK} {MARK}"), format!("{MARK}\n{MARK}"), format!("{MARK}\u{e9}")] {
        clean("--token", printed(&["info", "--token", &token], &[], ""));
        clean("RINGQ_TOKEN", printed(&["info"], &[("RINGQ_TOKEN", &token)], ""));
    }
}
