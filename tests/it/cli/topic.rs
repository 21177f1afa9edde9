use super::{ringq, rows};
use crate::harness::{Server, job, millis};

#[tokio::test]
async fn topics_are_listed_with_their_numbers() {
    let server = Server::start().await;
    let none = ringq(&server, &["topic", "list"]).await;
    assert!(none.stderr.contains("no topics yet"), "{}", none.stderr);
    assert_eq!(none.ok(), "");
    let client = server.connect().await;
    client.enqueue(job("mail")).await;
    client.enqueue(job("mail").with_delay(millis(60_000))).await;
    client.enqueue(job("billing.eu")).await;
    let table = rows(&ringq(&server, &["topic", "list"]).await.ok());
    assert_eq!(table[0][..5], ["NAME", "STATE", "READY", "RUNNING", "SCHEDULED"]);
    assert_eq!(table[1][..5], ["billing.eu", "ACTIVE", "1", "0", "0"]);
    assert_eq!(table[2][..5], ["mail", "ACTIVE", "1", "0", "1"]);
    let json = ringq(&server, &["topics", "ls", "bill", "--output=json"]).await.json();
    assert_eq!(json.as_array().unwrap().len(), 1);
    assert_eq!(json[0]["topic"]["name"], "billing.eu");
    assert_eq!(json[0]["stats"]["ready"], "1");
}

#[tokio::test]
async fn groups_of_a_topic_are_listed_with_their_numbers() {
    let server = Server::start().await;
    let client = server.connect().await;
    client.enqueue(job("mail")).await;
    let none = ringq(&server, &["group", "list", "mial"]).await;
    none.fails(3, &["cannot list the groups of topic mial", "`ringq topic list`"]);
    for group in ["acme", "acme", "zeta"] {
        ringq(&server, &["enqueue", "mail", "x", "--group", group]).await.ok();
    }
    let table = rows(&ringq(&server, &["group", "list", "mail"]).await.ok());
    assert_eq!(table[0], ["GROUP", "STATE", "WEIGHT", "READY", "RUNNING", "SCHEDULED", "OLDEST"]);
    assert_eq!(table[1][..6], ["-", "ACTIVE", "1", "1", "0", "0"]);
    assert_eq!(table[2][..6], ["acme", "ACTIVE", "1", "2", "0", "0"]);
    assert_eq!(table[3][..6], ["zeta", "ACTIVE", "1", "1", "0", "0"]);
    let json = ringq(&server, &["groups", "ls", "mail", "-o", "json"]).await.json();
    assert_eq!(json.as_array().unwrap().len(), 3);
    assert_eq!((&json[1]["group"], &json[1]["ready"]), (&"acme".into(), &"2".into()));
}

#[tokio::test]
async fn the_numbers_of_one_topic() {
    let server = Server::start().await;
    server.connect().await.enqueue(job("mail")).await;
    let text = ringq(&server, &["topic", "stats", "mail"]).await.ok();
    assert!(text.contains("ready:         1\n"), "{text}");
    assert!(text.contains("enqueued:      1 in all"), "{text}");
    let json = ringq(&server, &["topic", "stats", "mail", "-o", "json"]).await.json();
    assert_eq!(json["ready"], "1");
    let ran = ringq(&server, &["topic", "stats", "mial"]).await;
    assert_eq!(ran.fails(3, &["cannot read topic mial", "`ringq topic list`"]).stdout, "");
}

#[tokio::test]
async fn a_topic_is_created_changed_paused_and_deleted() {
    let server = Server::start().await;
    let run = async |args: &[&str]| ringq(&server, args).await;
    let settings = ["--max-attempts", "3", "--lease", "5m", "--description", "to customers"];
    let text = run(&[&["topic", "create", "mail"], &settings[..]].concat()).await.ok();
    for line in ["state:          ACTIVE", "retry:          max_attempts 3", "lease:          5m"] {
        assert!(text.contains(line), "{line} in {text}");
    }
    run(&["topic", "create", "mail"]).await.fails(1, &["cannot create topic mail", "exists"]);
    // A flag changes its part of the retry policy.
    let changed =
        ["topic", "set", "mail", "--retry-delays", "1m,5m", "--priority", "4", "-o", "json"];
    let json = run(&changed).await.json();
    assert_eq!((&json["retry"]["maxAttempts"], &json["priority"]), (&3.into(), &4.into()));
    assert_eq!(json["retry"]["delays"].as_array().unwrap().len(), 2);
    let text = run(&["topic", "set", "mail", "--max-crashes", "2", "--crash-topic", "crashed"]);
    let text = text.await.ok();
    assert!(
        text.contains("max_attempts 3, delays 1m/5m, max_crashes 2, crash_topic crashed"),
        "{text}"
    );
    let text = run(&["topic", "set", "mail", "--crash-topic", "-", "--max-attempts", "4"]).await;
    assert!(text.ok().contains("max_attempts 4, delays 1m/5m, max_crashes 2, crash_topic -"));
    let json = run(&["topic", "get", "mail", "-o", "json"]).await.json();
    let etag = json["etag"].as_str().unwrap().to_owned();
    run(&["topic", "set", "mail", "--unset", "retry", "--unset", "lease"]).await.ok();
    let json = run(&["topic", "get", "mail", "-o", "json"]).await.json();
    assert!(json.get("retry").is_none() && json.get("leaseDuration").is_none(), "{json}");
    run(&["topic", "set", "mail", "--priority", "1", "--etag", &etag])
        .await
        .fails(1, &["cannot change topic mail"]);
    let text = run(&["topic", "set", "mail", "--priority-ageing", "10m"]).await.ok();
    assert!(text.contains("priority ageing:  10m"), "{text}");
    run(&["topic", "set", "mail", "--priority-ageing", "25h"])
        .await
        .fails(2, &["--priority-ageing", "must be 0s to 24h"]);
    let json = run(&["topic", "set", "mail", "--unset", "priority-ageing", "-o", "json"]).await;
    assert!(json.json().get("priorityAgeing").is_none());
    run(&["topic", "set", "mail"]).await.fails(2, &["give a setting"]);
    run(&["topic", "set", "nowhere", "--priority", "1"]).await.fails(3, &["nowhere"]);

    let text = run(&["topic", "pause", "mail", "--note", "provider is down"]).await.ok();
    assert_eq!(text, "mail PAUSED until `ringq topic resume mail`\n");
    let text = run(&["topic", "get", "mail"]).await.ok();
    assert!(text.contains("PAUSED") && text.contains("provider is down"), "{text}");
    let table = rows(&run(&["topic", "list"]).await.ok());
    assert_eq!(table[1][..2], ["mail", "PAUSED"]);
    let text = run(&["topic", "pause", "mail", "--for", "30m"]).await.ok();
    assert!(text.starts_with("mail PAUSED until 20"), "{text}");
    assert_eq!(run(&["topic", "resume", "mail"]).await.ok(), "mail ACTIVE\n");
    server.connect().await.enqueue(job("mail")).await;
    run(&["topic", "delete", "mail"]).await.fails(1, &["cannot delete topic mail", "has 1 jobs"]);
    server.connect().await.pull_one("mail").await;
    run(&["topic", "delete", "nowhere"]).await.fails(3, &["nowhere"]);
}

#[tokio::test]
async fn a_plan_shows_what_a_file_changes() {
    let server = Server::start().await;
    let client = server.connect().await;
    for topic in ["billing.eu", "billing.us", "mail"] {
        client.enqueue(job(topic)).await;
    }
    let run = async |args: &[&str]| ringq(&server, args).await;
    run(&["topic", "set", "billing.us", "--priority", "9"]).await.ok();
    let dir = tempfile::TempDir::new().unwrap();
    let path = dir.path().join("topics.toml");
    let plan = ["topic", "plan", "-f", path.to_str().unwrap()];
    std::fs::write(
        &path,
        "revision = 4\n[topic.\"billing.*\"]\npriority = 3\npriority_ageing = '90s'\nlease = '5m'\n[topic.orders.retry]\nmax_attempts = 2\n",
    )
    .unwrap();
    assert_eq!(
        run(&plan).await.ok(),
        "billing.eu\n  lease: default -> 5m\n  priority: default -> 3\n  priority_ageing: default -> 1m30s\norders: no topic yet\n\
         revision 4 changes 1 of 3 topics\n",
        "what calls have set for billing.us stays"
    );
    std::fs::write(
        &path,
        "revision = 4\n[topic.\"*\"]\nlease = '5m'\npriority = 1\n[topic.\"billing.*\"]\npriority = 3\n[topic.\"billing.eu\"]\npriority = 4\n",
    )
    .unwrap();
    let text = run(&plan).await.ok();
    assert!(
        text.contains("billing.*: its table has no lease, which * sets; tables are not merged\n"),
        "{text}"
    );
    assert!(!text.contains("billing.eu: its table"), "{text}");
    run(&["topic", "set", "mail", "--group-weights", "a=3,b=1"]).await.ok();
    let text = run(&["topic", "get", "mail"]).await.ok();
    assert!(text.contains("group weights:  a=3, b=1\n"), "{text}");
    run(&["topic", "set", "mail", "--group-weights", "a=101"])
        .await
        .fails(2, &["must be 1 to 100"]);
    run(&["topic", "set", "mail", "--unset", "group-weights"]).await.ok();
    assert!(!run(&["topic", "get", "mail"]).await.ok().contains("weights"));
    std::fs::write(&path, "revision = 4\n[topic.mail]\nlease = '1x'\n[topic.b]\nsize = 1\n")
        .unwrap();
    run(&plan).await.fails(2, &["topic.\"mail\".lease", "topic.\"b\".size: there is no such key"]);
}

#[tokio::test]
async fn a_group_is_paused_and_resumed() {
    let server = Server::start().await;
    let client = server.connect().await;
    client.enqueue(ringq::pb::JobSpec { group: "tenant-7".into(), ..job("mail") }).await;
    let run = async |args: &[&str]| ringq(&server, args).await;
    let text = run(&["group", "pause", "mail", "tenant-7", "--note", "wrong list"]).await.ok();
    assert_eq!(text, "mail tenant-7 PAUSED\n");
    let table = rows(&run(&["group", "list", "mail"]).await.ok());
    assert_eq!(table[1][..2], ["tenant-7", "PAUSED"]);
    assert_eq!(run(&["group", "resume", "mail", "tenant-7"]).await.ok(), "mail tenant-7 ACTIVE\n");
    assert_eq!(run(&["group", "pause", "mail", "-"]).await.ok(), "mail - PAUSED\n");
    run(&["group", "pause", "nowhere", "a"]).await.fails(3, &["nowhere"]);
    run(&["group", "pause", "mail", "a b"]).await.fails(1, &["group"]);
}
