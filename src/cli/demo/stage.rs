//! Where the tour happens: a directory that is thrown away, a server in this process, and `ringq`
//! commands as processes of their own.

use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};
use std::process::{ExitStatus, Stdio};
use std::time::Duration;

use anyhow::Context as _;
use futures::future::join_all;
use rustix::process::{Pid, Signal, kill_process};
use tempfile::TempDir;
use tokio::process::{Child, Command};
use tokio::task::JoinHandle;
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;

use super::super::exit::{self, Failure};
use super::show::Show;
use crate::app::{self, App};
use crate::client::Client;
use crate::config::{Config, Flags};

/// Between two looks at the jobs: as often as an eye can follow.
const TICK: Duration = Duration::from_millis(100);
/// The first SIGTERM waits for commands, the second one kills them.
const SIGNALS: u32 = 2;
/// How long a worker has for each of them.
const PATIENCE: Duration = Duration::from_secs(1);
/// The most that is repeated of what a command said when it failed.
const LOG_LINES: usize = 5;

pub(super) struct Stage {
    directory: Directory,
    client: Client,
    stop: CancellationToken,
    server: JoinHandle<Result<(), app::Error>>,
    workers: Vec<Worker>,
}

/// The directory: removed at the end, unless it is to be kept.
enum Directory {
    Kept(PathBuf),
    Thrown(TempDir),
}

struct Worker {
    child: Child,
    log: PathBuf,
}

// === impl Stage ===

impl Stage {
    /// The directory and the server.
    pub(super) async fn build(keep: bool) -> Result<Stage, Failure> {
        let directory = Directory::new(keep).context("cannot make a directory for the store")?;
        let app = App::build(config(directory.path())?).await.map_err(anyhow::Error::from)?;
        let client = Client::new(format!("http://{}", app.grpc_address()))
            .map_err(|error| Failure::call("cannot connect", &error))?;
        let stop = CancellationToken::new();
        let server = tokio::spawn(app.run(stop.clone().cancelled_owned()));
        Ok(Stage { directory, client, stop, server, workers: Vec::new() })
    }

    pub(super) fn client(&self) -> Client {
        self.client.clone()
    }

    pub(super) fn url(&self) -> &str {
        self.client.url()
    }

    /// Where everything lies, if it stays.
    pub(super) fn kept(&self) -> Option<&Path> {
        match &self.directory {
            Directory::Kept(path) => Some(path),
            Directory::Thrown(_) => None,
        }
    }

    /// A file in the directory.
    pub(super) fn write(&self, name: &str, text: &str) -> Result<(), Failure> {
        let path = self.directory.path().join(name);
        Ok(fs::write(&path, text).with_context(|| format!("cannot write {}", path.display()))?)
    }

    /// The lines that the hashing commands have written.
    pub(super) fn hashes(&self) -> Result<usize, Failure> {
        let path = self.directory.path().join("hashes.txt");
        let text = fs::read(&path).with_context(|| format!("cannot read {}", path.display()))?;
        Ok(text.iter().filter(|byte| **byte == b'\n').count())
    }

    /// Runs a command to its end.
    pub(super) async fn command(&self, show: &mut Show, line: &[&str]) -> Result<(), Failure> {
        show.command(line, None)?;
        let output = self.ringq(line)?.output().await.context("cannot start ringq")?;
        if output.status.success() {
            show.output(&output.stdout)
        } else {
            Err(failed(line, output.status, &String::from_utf8_lossy(&output.stderr)))
        }
    }

    /// Starts a worker that runs until the end; its standard output goes to the file `out`.
    pub(super) fn start(
        &mut self,
        show: &mut Show,
        line: &[&str],
        out: Option<&str>,
    ) -> Result<(), Failure> {
        show.command(line, out)?;
        let log = self.directory.path().join(format!("worker-{}.log", self.workers.len() + 1));
        let stdout = match out {
            Some(name) => file(&self.directory.path().join(name))?.into(),
            None => Stdio::null(),
        };
        let mut command = self.ringq(line)?;
        let child = command.stdout(stdout).stderr(file(&log)?).spawn();
        self.workers.push(Worker { child: child.context("cannot start ringq")?, log });
        Ok(())
    }

    /// Waits until the next look, or fails if a worker or the server has ended.
    pub(super) async fn tick(&mut self) -> Result<(), Failure> {
        tokio::time::sleep(TICK).await;
        for worker in &mut self.workers {
            if let Some(status) = worker.child.try_wait().context("cannot watch a worker")? {
                let log = fs::read_to_string(&worker.log).unwrap_or_default();
                return Err(failed(&["work"], status, &log));
            }
        }
        if self.server.is_finished() {
            return Err(Failure::new(exit::FAILED, "the server has ended"));
        }
        Ok(())
    }

    /// Ends the workers, then the server, and clears the directory away.
    pub(super) async fn clear(mut self) {
        // The store is thrown away, so no command needs to end well; but each needs to end, and only
        // its worker can see to that.
        for _ in 0..SIGNALS {
            self.workers.iter().for_each(Worker::terminate);
            let ends = self.workers.iter_mut().map(|worker| worker.child.wait());
            if timeout(PATIENCE, join_all(ends)).await.is_ok() {
                break;
            }
        }
        for worker in &mut self.workers {
            let _ = worker.child.kill().await;
        }
        self.stop.cancel();
        let _ = self.server.await;
    }

    /// This very program, as a client of the server here.
    fn ringq(&self, line: &[&str]) -> Result<Command, Failure> {
        let program = std::env::current_exe().context("cannot find this program")?;
        let mut command = Command::new(program);
        command
            .args(line)
            .env("RINGQ_SERVER", self.url())
            .env_remove("RINGQ_TOKEN")
            .current_dir(self.directory.path())
            .stdin(Stdio::null())
            .kill_on_drop(true);
        Ok(command)
    }
}

/// A server on free ports with its store in `directory`, whatever this shell has set for others.
fn config(directory: &Path) -> Result<Config, Failure> {
    let local = || "127.0.0.1:0".to_owned();
    let store = directory.join("ringq.db");
    Ok(Config::load(&Flags {
        config: None,
        shards: vec![format!("s0=sqlite:{}", store.display())],
        values: vec![("listen", local()), ("http_listen", local())],
    })?)
}

/// Whether there is such a program.
pub(super) async fn has(program: &str) -> bool {
    let test = ["-c", &format!("command -v {program}")];
    let test = Command::new("sh").args(test).stdout(Stdio::null()).status();
    test.await.is_ok_and(|status| status.success())
}

fn file(path: &Path) -> Result<File, Failure> {
    let file = File::options().create(true).append(true).open(path);
    Ok(file.with_context(|| format!("cannot write {}", path.display()))?)
}

fn failed(line: &[&str], status: ExitStatus, log: &str) -> Failure {
    let lines: Vec<&str> = log.lines().collect();
    let last = lines[lines.len().saturating_sub(LOG_LINES)..].join("\n  ");
    let problem = format!("`ringq {}` ended with {status}", line.join(" "));
    Failure::new(exit::FAILED, problem).hint(last)
}

// === impl Worker ===

impl Worker {
    fn terminate(&self) {
        // None: it has ended, and the number may be another's.
        let pid = self.child.id().and_then(|id| Pid::from_raw(i32::try_from(id).ok()?));
        if let Some(pid) = pid {
            let _ = kill_process(pid, Signal::TERM);
        }
    }
}

// === impl Directory ===

impl Directory {
    fn new(keep: bool) -> io::Result<Directory> {
        let directory = tempfile::Builder::new().prefix("ringq-demo-").tempdir()?;
        Ok(if keep { Directory::Kept(directory.keep()) } else { Directory::Thrown(directory) })
    }

    fn path(&self) -> &Path {
        match self {
            Directory::Kept(path) => path,
            Directory::Thrown(directory) => directory.path(),
        }
    }
}
