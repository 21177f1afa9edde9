//! The scaler that KEDA calls, through grpcurl with the proto file of KEDA itself.

use std::path::{Path, PathBuf};

use serde_json::{Value, json};
use tokio::io::{AsyncBufReadExt as _, BufReader, Lines};
use tokio::process::{Child, ChildStdout, Command};

use crate::harness::{Redis, Server, Setup, eventually, in_ci, job, millis, nack, within};
use ringq::pb::{NackAction, PauseTopicRequest, ResumeTopicRequest};

use super::grpcurl::grpcurl;

/// Client with the interface as KEDA has it.
struct Keda {
    tool: PathBuf,
    folder: PathBuf,
    address: String,
}

/// Open StreamIsActive call.
struct Activity {
    lines: Lines<BufReader<ChildStdout>>,
    process: Child,
}

impl Keda {
    /// Returns a client of the server. `None`: a tool is not installed; the test prints that and is skipped.
    async fn of(server: &Server) -> Option<Keda> {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join(".tools/keda");
        if !folder.join("externalscaler.proto").exists() {
            assert!(!in_ci(), "the proto file of KEDA is missing: run .ci/install-test-tools");
            eprintln!("skipped: the proto file of KEDA is missing, .ci/install-test-tools gets it");
            return None;
        }
        Some(Keda { tool: grpcurl().await?, folder, address: server.grpc.to_string() })
    }

    fn command(&self, method: &str, request: &Value) -> Command {
        let mut command = Command::new(&self.tool);
        command.arg("-plaintext").arg("-emit-defaults").arg("-import-path").arg(&self.folder);
        command.args(["-proto", "externalscaler.proto", "-d", &request.to_string()]);
        command.arg(&self.address).arg(format!("externalscaler.ExternalScaler/{method}"));
        command.kill_on_drop(true);
        command
    }

    /// Calls a method; returns its answer, or the text of its error.
    async fn call(&self, method: &str, request: &Value) -> Result<Value, String> {
        let output = within("grpcurl", self.command(method, request).output()).await.unwrap();
        if !output.status.success() {
            return Err(String::from_utf8(output.stderr).unwrap());
        }
        Ok(serde_json::from_slice(&output.stdout).unwrap())
    }

    async fn is_active(&self, metadata: Value) -> bool {
        let answer = self.call("IsActive", &scaled(metadata)).await.unwrap();
        answer["result"].as_bool().unwrap()
    }

    /// Returns the value of the metric, which both fields have.
    async fn metric(&self, metadata: Value) -> f64 {
        let request = json!({"scaledObjectRef": scaled(metadata), "metricName": "ringq-jobs"});
        let answer = self.call("GetMetrics", &request).await.unwrap();
        let value = &answer["metricValues"][0];
        assert_eq!(value["metricName"], "ringq-jobs");
        let number = value["metricValueFloat"].as_f64().unwrap();
        assert_eq!(value["metricValue"], json!(format!("{number}")));
        number
    }

    fn stream(&self, metadata: Value) -> Activity {
        let mut command = self.command("StreamIsActive", &scaled(metadata));
        let mut process = command.stdout(std::process::Stdio::piped()).spawn().unwrap();
        let lines = BufReader::new(process.stdout.take().unwrap()).lines();
        Activity { lines, process }
    }
}

impl Activity {
    /// Returns the next value.
    async fn next(&mut self) -> bool {
        loop {
            let line = within("a value", self.lines.next_line()).await.unwrap().expect("a value");
            if let Some((_, value)) = line.split_once("\"result\":") {
                return value.trim() == "true";
            }
        }
    }
}

fn scaled(metadata: Value) -> Value {
    json!({"name": "worker", "namespace": "default", "scalerMetadata": metadata})
}

#[tokio::test]
async fn jobs_are_counted_that_are_ready_or_running_or_due_soon() {
    let server = Server::start().await;
    let Some(keda) = Keda::of(&server).await else { return };
    let client = server.connect().await;
    assert!(!keda.is_active(json!({"topic": "mail"})).await, "a topic without jobs has no work");
    let request = scaled(json!({"topic": "mail", "targetJobs": "2.5"}));
    let answer = keda.call("GetMetricSpec", &request).await.unwrap();
    let spec = &answer["metricSpecs"][0];
    assert_eq!(
        *spec,
        json!({"metricName": "ringq-jobs", "targetSize": "3", "targetSizeFloat": 2.5})
    );

    client.enqueue_all(vec![job("mail"); 3]).await;
    client.enqueue(job("mail").with_delay(millis(20_000))).await;
    client.enqueue(job("mail").with_delay(millis(3_600_000))).await;
    client.enqueue(job("other")).await;
    assert_eq!(keda.metric(json!({"topic": "mail"})).await, 4.0);
    assert_eq!(keda.metric(json!({"topic": "mail", "startSeconds": "0"})).await, 3.0);
    assert_eq!(keda.metric(json!({"topic": "mail", "startSeconds": "3600"})).await, 5.0);
    assert_eq!(keda.metric(json!({"topic": "mail, other, none"})).await, 5.0);
    // A busy worker is not scaled in: jobs that it has taken count on.
    let taken = client.pull_now("mail", 3).await;
    assert_eq!(keda.metric(json!({"topic": "mail", "startSeconds": "0"})).await, 3.0);
    client.ack(&taken[0].receipt).await;
    client.nack(nack(&taken[1].receipt, NackAction::DeadLetter)).await;
    assert_eq!(keda.metric(json!({"topic": "mail", "startSeconds": "0"})).await, 1.0);
    client.ack(&taken[2].receipt).await;
    assert!(!keda.is_active(json!({"topic": "mail", "startSeconds": "0"})).await);
    assert!(keda.is_active(json!({"topic": "mail"})).await, "a job is due soon");
}

#[tokio::test]
async fn a_paused_topic_counts_what_runs_alone() {
    let server = Server::start().await;
    let Some(keda) = Keda::of(&server).await else { return };
    let client = server.connect().await;
    client.enqueue_all(vec![job("t"); 5]).await;
    let _held = client.pull_one("t").await;
    assert!((keda.metric(json!({"topic": "t"})).await - 5.0).abs() < 0.1);
    let pause = PauseTopicRequest { name: "t".into(), ..PauseTopicRequest::default() };
    client.topics.clone().pause_topic(pause).await.unwrap();
    assert!((keda.metric(json!({"topic": "t"})).await - 1.0).abs() < 0.1);
    let resume = ResumeTopicRequest { name: "t".into() };
    client.topics.clone().resume_topic(resume).await.unwrap();
    assert!((keda.metric(json!({"topic": "t"})).await - 5.0).abs() < 0.1);
}

#[tokio::test]
async fn a_setting_that_is_wrong_is_refused_with_its_name() {
    let server = Server::start().await;
    let Some(keda) = Keda::of(&server).await else { return };
    for (metadata, field) in [
        (json!({}), "scalerMetadata.topic"),
        (json!({"topic": "no good"}), "scalerMetadata.topic"),
        (json!({"topic": "a", "targetJobs": "many"}), "scalerMetadata.targetJobs"),
        (json!({"topic": "a", "startSeconds": "-1"}), "scalerMetadata.startSeconds"),
    ] {
        for method in ["IsActive", "StreamIsActive", "GetMetricSpec"] {
            let error = keda.call(method, &scaled(metadata.clone())).await.unwrap_err();
            assert!(
                error.contains("InvalidArgument") && error.contains(field),
                "{method}: {error}"
            );
        }
    }
}

#[tokio::test]
async fn a_stream_reports_work_and_ends_when_the_server_drains() {
    let mut server = Server::start().await;
    let Some(keda) = Keda::of(&server).await else { return };
    let client = server.connect().await;
    let mut activity = keda.stream(json!({"topic": "mail", "startSeconds": "0"}));
    assert!(!activity.next().await);
    for _ in 0..2 {
        client.enqueue(job("mail")).await;
        assert!(activity.next().await);
        let taken = client.pull_one("mail").await;
        client.ack(&taken.receipt).await;
        assert!(!activity.next().await);
    }
    server.terminate();
    let ended = within("the end of the stream", activity.process.wait()).await.unwrap();
    assert!(ended.success(), "KEDA opens the next stream after 2 s only if this one ends with OK");
    assert!(server.exit().await.success());
}

#[tokio::test]
async fn shards_that_do_not_answer_are_not_counted() {
    let (Some(mut a), Some(b)) = (Redis::start().await, Redis::start().await) else { return };
    let setup = Setup::new().ring(vec![format!("a={}", a.url()), format!("b={}", b.url())]);
    let server = setup.start().await;
    let Some(keda) = Keda::of(&server).await else { return };
    let client = server.connect().await;
    // Their ids decide on the shard.
    client.enqueue_all((0..100).map(|n| job("mail").with_id(format!("j{n}"))).collect()).await;
    assert_eq!(keda.metric(json!({"topic": "mail"})).await, 100.0);
    a.kill();
    let rest = eventually("the other shard is counted", async || {
        let rest = keda.metric(json!({"topic": "mail"})).await;
        (rest < 100.0).then_some(rest)
    })
    .await;
    assert!(rest > 0.0 && keda.is_active(json!({"topic": "mail"})).await);
    drop(b);
    eventually("no shard answers", async || {
        let request = scaled(json!({"topic": "mail"}));
        keda.call("IsActive", &request).await.err().filter(|error| error.contains("Unavailable"))
    })
    .await;
}
