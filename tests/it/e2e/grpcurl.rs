use std::path::{Path, PathBuf};

use serde_json::{Value, json};
use tokio::process::Command;

use crate::harness::{Server, in_ci, within};

/// Returns the path of grpcurl, from .tools/bin or PATH. `None`: not installed; the test prints that and is skipped.
pub(crate) async fn grpcurl() -> Option<PathBuf> {
    let ours = Path::new(env!("CARGO_MANIFEST_DIR")).join(".tools/bin/grpcurl");
    for tool in [ours, PathBuf::from("grpcurl")] {
        if Command::new(&tool).arg("-version").output().await.is_ok_and(|o| o.status.success()) {
            return Some(tool);
        }
    }
    assert!(!in_ci(), "grpcurl is missing: run .ci/install-test-tools");
    eprintln!("skipped: grpcurl is missing, .ci/install-test-tools gets it");
    None
}

struct Grpcurl {
    tool: PathBuf,
    address: String,
}

impl Grpcurl {
    /// Runs it with `flags`, the address and `what`.
    async fn run(&self, flags: &[&str], what: &[&str]) -> (bool, String) {
        let mut command = Command::new(&self.tool);
        command.arg("-plaintext").args(flags).arg(&self.address).args(what).kill_on_drop(true);
        let output = within("grpcurl", command.output()).await.unwrap();
        let text = [output.stdout, output.stderr].concat();
        (output.status.success(), String::from_utf8(text).unwrap())
    }

    /// Runs it and expects success.
    async fn ok(&self, flags: &[&str], what: &[&str]) -> String {
        let (success, text) = self.run(flags, what).await;
        assert!(success, "{flags:?} {what:?}:\n{text}");
        text
    }

    /// Calls a method of the queue service and reads its only answer.
    async fn call(&self, method: &str, request: &Value) -> Value {
        let (data, method) = (request.to_string(), format!("ringq.v1.QueueService/{method}"));
        let answer = self.ok(&["-max-time", "10", "-d", &data], &[&method]).await;
        serde_json::from_str(&answer).unwrap_or_else(|error| panic!("{error}: {answer}"))
    }
}

#[tokio::test]
async fn grpcurl_alone_is_a_full_client() {
    let Some(tool) = grpcurl().await else { return };
    let server = Server::start().await;
    let grpcurl = Grpcurl { tool, address: server.grpc.to_string() };

    let services = grpcurl.ok(&[], &["list"]).await;
    for service in [
        "ringq.v1.QueueService",
        "ringq.v1.TopicService",
        "ringq.v1.AdminService",
        "grpc.health.v1.Health",
    ] {
        assert!(services.lines().any(|line| line == service), "{service} in\n{services}");
    }
    for later in ["ringq.v1.PipelineService", "ringq.v1.ScheduleService"] {
        assert!(!services.contains(later), "what is not served is not listed:\n{services}");
    }
    let described = grpcurl.ok(&[], &["describe", "ringq.v1.QueueService.Enqueue"]).await;
    assert!(described.contains("// Writes one job."), "comments are shown:\n{described}");
    let described = grpcurl.ok(&[], &["describe", "ringq.v1.JobSpec"]).await;
    assert!(described.contains("Required:"), "comments are shown:\n{described}");

    let job = json!({"topic": "emails", "payload": {"text": "{\"user\":42}"}});
    let answer = grpcurl.call("Enqueue", &json!({"job": job})).await;
    assert_eq!(answer["outcome"], "ENQUEUE_OUTCOME_CREATED");
    assert_eq!(answer["durability"], "DURABILITY_FSYNCED");

    let take = json!({"topics": ["emails"], "maxJobs": 1}).to_string();
    let flags = ["-max-time", "10", "-d", &take];
    let text = grpcurl.ok(&flags, &["ringq.v1.QueueService/Stream"]).await;
    let messages: Vec<Value> =
        serde_json::Deserializer::from_str(&text).into_iter().collect::<Result<_, _>>().unwrap();
    let deliveries: Vec<&Value> =
        messages.iter().filter_map(|m| m["deliveries"].as_array()).flatten().collect();
    assert_eq!(deliveries.len(), 1, "{text}");
    assert_eq!(deliveries[0]["id"], answer["id"]);
    assert_eq!(deliveries[0]["payload"]["text"], "{\"user\":42}");

    let receipt = &deliveries[0]["receipt"];
    let acked = grpcurl.call("Ack", &json!({"items": [{"receipt": receipt}]})).await;
    assert_eq!(acked, json!({}), "{{}} is all good");

    // A stream that -max-time ends.
    let take = json!({"topics": ["emails"]}).to_string();
    let (success, text) =
        grpcurl.run(&["-max-time", "1", "-d", &take], &["ringq.v1.QueueService/Stream"]).await;
    assert!(!success && text.contains("DeadlineExceeded"), "{text}");

    // A refusal comes with its details decoded.
    let bad = json!({"job": {"topic": "no good"}}).to_string();
    let (success, text) = grpcurl.run(&["-d", &bad], &["ringq.v1.QueueService/Enqueue"]).await;
    assert!(!success);
    for part in ["InvalidArgument", "INVALID_FIELD", "ringq.dev", "job.topic"] {
        assert!(text.contains(part), "{part} in\n{text}");
    }
}
