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
