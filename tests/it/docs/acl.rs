//! The Redis user of docs/redis.md: its rights are the commands of the scripts and of the code around them, and a
//! user with no others suffices.

use std::collections::BTreeSet;
use std::path::Path;

use ringq::pb::{
    JobState, ListShardsRequest, NackAction, NackItem, SetShardStateRequest, ShardState,
};

use super::{check_part, page};
use crate::harness::{Program, Redis, Setup, job, millis, nack, nack_retry, proto, take};

const PAGE: &str = "docs/redis.md";
/// Commands outside of scripts. UNWATCH and PING are deadpool's, before it hands out a connection again.
const PLAIN: [&str; 9] =
    ["config|get", "eval", "evalsha", "info", "ping", "select", "subscribe", "unwatch", "wait"];
/// Line width in characters.
const WIDTH: usize = 118;

/// Returns the commands that scripts call.
fn called() -> BTreeSet<String> {
    let scripts = Path::new(env!("CARGO_MANIFEST_DIR")).join("src/store/redis");
    let mut names = BTreeSet::new();
    for folder in [scripts.clone(), scripts.join("lib")] {
        for file in std::fs::read_dir(folder).unwrap() {
            let path = file.unwrap().path();
            if path.extension().is_some_and(|extension| extension == "lua") {
                let code = std::fs::read_to_string(&path).unwrap();
                let calls = code.split("call(").skip(1);
                for call in calls {
                    let quoted = call.trim_start().strip_prefix('\'');
                    let name = quoted.and_then(|rest| rest.split('\'').next());
                    let name = name.unwrap_or_else(|| panic!("{path:?}: call({call}"));
                    names.insert(match name {
                        // Other commands of this name show and change what is not of ringq.
                        "MEMORY" => "memory|usage".to_owned(),
                        name => name.to_lowercase(),
                    });
                }
            }
        }
    }
    names
}

#[test]
fn the_rights_are_the_commands_that_are_used() {
    let commands: BTreeSet<String> = called().into_iter().chain(PLAIN.map(str::to_owned)).collect();
    assert!(commands.len() > 30, "{commands:?}");
    let mut text = String::from(
        "```sh\nredis-cli ACL SETUSER ringq on '>password' '~ringq:*' resetchannels '&ringq:*' -@all",
    );
    let mut width = text.len() - "```sh\n".len();
    for command in commands {
        let word =
            if command.contains('|') { format!("'+{command}'") } else { format!("+{command}") };
        if width + 1 + word.len() > WIDTH {
            text.push_str(" \\\n   ");
            width = 3;
        }
        text.push_str(&format!(" {word}"));
        width += 1 + word.len();
    }
    text.push_str("\n```\n");
    check_part(PAGE, "acl", &text);
}

/// Returns the command of the page.
fn command() -> Vec<String> {
    let text = page(PAGE);
    let (_, rest) = text.split_once("redis-cli ACL SETUSER").expect("a user");
    let (words, _) = rest.split_once("```").unwrap();
    let words = words.split_whitespace().filter(|word| *word != "\\");
    let words = words.map(|word| word.trim_matches('\'').to_owned());
    ["ACL", "SETUSER"].map(str::to_owned).into_iter().chain(words).collect()
}

#[tokio::test]
async fn a_user_with_these_rights_and_no_others_is_enough() {
    let always = ["--save", "", "--appendonly", "yes", "--appendfsync", "always"];
    for program in [Program::Redis, Program::Redis6, Program::Redis8, Program::Valkey] {
        if let Some(redis) = Redis::of(program, &always).await {
            is_enough_on(&redis).await;
            // Others list CLIENT SETINFO, with which the library introduces itself; it ignores the refusal.
            if program == Program::Redis {
                let refused = redis.command(&["ACL", "LOG"]).await;
                assert_eq!(refused, "*0", "something was refused");
            }
        }
    }
}

async fn is_enough_on(redis: &Redis) {
    let command = command();
    let words: Vec<&str> = command.iter().map(String::as_str).collect();
    assert_eq!(redis.command(&words).await, "+OK");
    let url = redis.url().replace("redis://", "redis://ringq:password@");
    let server = Setup::on(&url).start().await;
    let client = server.connect().await;
    // Each way of a job, so that every script is called.
    let mut worker = client.stream(take("mail")).await;
    for id in ["acked", "nacked", "dead"] {
        client.enqueue(job("mail").with_id(id)).await;
    }
    for _ in 0..3 {
        let delivery = worker.next().await;
        client.extend(&delivery.receipt, millis(20_000)).await;
        match delivery.id.as_str() {
            "acked" => client.ack(&delivery.receipt).await,
            "nacked" => {
                let delay = Some(proto(millis(600_000)));
                client.nack(NackItem { delay, ..nack_retry(&delivery.receipt, "later") }).await;
            }
            _ => client.nack(nack(&delivery.receipt, NackAction::DeadLetter)).await,
        }
    }
    client.enqueue(job("mail").with_id("later").with_delay(millis(600_000))).await;
    let later = client.list("mail", JobState::Scheduled).await;
    assert_eq!(later.len(), 1);
    let request =
        ringq::pb::RedriveJobsRequest { topic: "mail".into(), all: true, ..Default::default() };
    let redriven = client.admin.clone().redrive_jobs(request).await.unwrap();
    assert_eq!(redriven.into_inner().redriven_count, 1);
    assert_eq!(worker.next().await.id, "dead");
    assert_eq!(client.list("mail", JobState::Running).await.len(), 1);
    let (topic, id) = ("mail".to_owned(), "later".to_owned());
    let delete = ringq::pb::DeleteRequest { topic, id, ..Default::default() };
    client.queue.clone().delete(delete).await.unwrap();
    assert_eq!(client.stats("mail").await.running, 1);
    let shards = client.admin.clone().list_shards(ListShardsRequest {}).await.unwrap();
    assert_eq!(shards.into_inner().shards[0].state(), ShardState::Active);
    let (name, state) = ("s0".to_owned(), ShardState::Active.into());
    client.admin.clone().set_shard_state(SetShardStateRequest { name, state }).await.unwrap();
    let log = server.log();
    assert!(!log.contains("NOPERM") && !log.to_lowercase().contains("permission"), "{log}");
}
