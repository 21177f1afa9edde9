//! Real server on files, which is killed and started again.

use std::path::PathBuf;
use std::process::Stdio;
use std::time::Duration;

use ringq::client::Client;
use ringq::pb::{GetRequest, GetTopicStatsRequest, JobState, TopicStats};
use tokio::process::{Child, Command};
use tokio::time::{sleep, timeout};
use tonic::Code;

use crate::free_port::free_port;

/// Time until a server serves.
const START_MAX: Duration = Duration::from_secs(30);
/// Pause between looks at a file that a process writes.
pub(super) const LOOK: Duration = Duration::from_millis(20);

pub(super) struct RealServer {
    folder: tempfile::TempDir,
    ports: [u16; 2],
    child: Child,
}

/// Returns the program under test: the one built with the gym, or the one that `RINGQ_BIN` names.
fn binary() -> PathBuf {
    let built = env!("CARGO_BIN_EXE_ringq");
    std::env::var_os("RINGQ_BIN").map_or_else(|| built.into(), PathBuf::from)
}

// === impl RealServer ===

impl RealServer {
    pub(super) async fn start() -> Result<RealServer, String> {
        let folder = tempfile::tempdir().map_err(|error| error.to_string())?;
        let ports = [free_port(), free_port()];
        let child = spawn(&folder, ports)?;
        let server = RealServer { folder, ports, child };
        server.ready().await?;
        Ok(server)
    }

    /// Kills it as `kill -9` does.
    pub(super) async fn kill(&mut self) {
        let _ = self.child.kill().await;
    }

    /// Starts it again on the same files and ports.
    pub(super) async fn restart(&mut self) -> Result<(), String> {
        let _ = std::fs::remove_file(self.folder.path().join("ready"));
        self.child = spawn(&self.folder, self.ports)?;
        self.ready().await
    }

    async fn ready(&self) -> Result<(), String> {
        let file = self.folder.path().join("ready");
        let ready = async {
            while !file.exists() {
                sleep(LOOK).await;
            }
        };
        timeout(START_MAX, ready).await.map_err(|_| format!("no server within {START_MAX:?}"))
    }

    /// Returns the variables that lead a program to this server.
    pub(super) fn variables(&self) -> [(String, String); 2] {
        let [grpc, http] = self.ports;
        [
            ("RINGQ_SERVER".to_owned(), format!("127.0.0.1:{grpc}")),
            ("RINGQ_HTTP".to_owned(), format!("http://127.0.0.1:{http}")),
        ]
    }

    pub(super) fn client(&self) -> Client {
        Client::new(format!("http://127.0.0.1:{}", self.ports[0])).unwrap()
    }

    /// Returns the numbers of a topic.
    pub(super) async fn stats(&self, topic: &str) -> Result<TopicStats, String> {
        let request = GetTopicStatsRequest { name: topic.to_owned() };
        let answer = self.client().topics().get_topic_stats(request).await;
        let answer = answer.map_err(|status| format!("statistics: {status}"))?;
        answer.into_inner().stats.ok_or_else(|| "no statistics".to_owned())
    }

    /// Waits until the topic has no job that waits or runs.
    pub(super) async fn empty(&self, topic: &str, within: Duration) -> Result<(), String> {
        let emptied = async {
            loop {
                let stats = self.stats(topic).await?;
                let TopicStats { scheduled, ready, running, backoff, .. } = stats;
                if scheduled + ready + running + backoff == 0 {
                    return Ok(());
                }
                sleep(LOOK).await;
            }
        };
        let late = |_| format!("the topic is not empty within {within:?}");
        timeout(within, emptied).await.map_err(late)?
    }

    /// Returns the ids that have neither succeeded nor been forgotten after that.
    pub(super) async fn unfinished(
        &self,
        topic: &str,
        ids: &[String],
    ) -> Result<Vec<String>, String> {
        let mut queue = self.client().queue();
        let mut found = Vec::new();
        for id in ids {
            let request =
                GetRequest { topic: topic.to_owned(), id: id.clone(), ..Default::default() };
            match queue.get(request).await {
                Ok(answer) => {
                    let job = answer.into_inner().job.unwrap_or_default();
                    if job.state() != JobState::Succeeded {
                        found.push(format!("{id} {}", job.state().as_str_name()));
                    }
                }
                Err(status) if status.code() == Code::NotFound => {}
                Err(status) => return Err(format!("Get {id}: {status}")),
            }
        }
        Ok(found)
    }
}

fn spawn(folder: &tempfile::TempDir, ports: [u16; 2]) -> Result<Child, String> {
    let log = std::fs::File::options().create(true).append(true).open(folder.path().join("log"));
    let [grpc, http] = ports.map(|port| format!("127.0.0.1:{port}"));
    let mut command = Command::new(binary());
    command.args(["serve", "--listen", &grpc, "--http-listen", &http, "--ready-file", "ready"]);
    command.args(["--data-dir", "data"]).current_dir(folder.path()).stdin(Stdio::null());
    for (name, _) in std::env::vars().filter(|(name, _)| name.starts_with("RINGQ_")) {
        command.env_remove(name);
    }
    command.stdout(Stdio::null()).stderr(log.map_err(|error| error.to_string())?);
    command.kill_on_drop(true).spawn().map_err(|error| format!("ringq: {error}"))
}
