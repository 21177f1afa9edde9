//! A real `ringq` server process on loopback, which never outlives its owner.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail};

/// Time limit of a server's start.
const START_LIMIT: Duration = Duration::from_secs(60);

/// Settings with which a server starts.
#[derive(Clone, Debug)]
pub(crate) struct LoadServerLauncher {
    /// Directory of its ready file and its log; also its working directory.
    pub(crate) scratch: PathBuf,
    /// Urls of its shards, which are called `s0` and on.
    pub(crate) shards: Vec<String>,
    /// Address of its gRPC port; port 0 takes a free one.
    pub(crate) listen: String,
    /// File of topics.
    pub(crate) topics: Option<PathBuf>,
}

impl LoadServerLauncher {
    /// Returns the settings of a server with all its files in one directory, on a free port.
    pub(crate) fn in_dir(dir: &Path) -> Self {
        Self {
            scratch: dir.to_path_buf(),
            shards: vec![sqlite(&dir.join("ringq.db"))],
            listen: "127.0.0.1:0".to_owned(),
            topics: None,
        }
    }

    /// Starts the process without waiting for it to serve.
    pub(crate) fn spawn(&self) -> Result<LoadServer> {
        let ready = self.scratch.join("ready.json");
        let _ = fs::remove_file(&ready);
        let log = self.scratch.join("server.log");
        let sink = File::options().create(true).append(true).open(&log)?;
        let mut command = kill_on_exit_command();
        command
            .arg("serve")
            .args(["--listen", &self.listen, "--http-listen", "127.0.0.1:0"])
            .arg("--ready-file")
            .arg(&ready)
            .current_dir(&self.scratch)
            .stdin(Stdio::null())
            .stdout(sink.try_clone()?)
            .stderr(sink);
        for (nth, url) in self.shards.iter().enumerate() {
            command.arg("--shard").arg(format!("s{nth}={url}"));
        }
        command.args(self.topics.iter().flat_map(|file| [Path::new("--topics"), file]));
        // Variables of the bench, not of the server, which refuses unknown ones.
        for (name, _) in std::env::vars_os() {
            if name.as_encoded_bytes().starts_with(b"RINGQ_") {
                command.env_remove(name);
            }
        }
        let child = command.spawn().context("start the server")?;
        Ok(LoadServer { child, ready, log, address: String::new() })
    }

    /// Starts the process and waits until it serves.
    pub(crate) fn start(&self) -> Result<LoadServer> {
        let mut server = self.spawn()?;
        server.wait_ready()?;
        Ok(server)
    }
}

/// Returns the url of a SQLite file.
pub(crate) fn sqlite(file: &Path) -> String {
    format!("sqlite:{}", file.display())
}

/// Returns the server's binary: that of this build, or the one that `RINGQ_BIN` names.
pub(crate) fn binary() -> PathBuf {
    std::env::var_os("RINGQ_BIN").map_or_else(|| env!("CARGO_BIN_EXE_ringq").into(), PathBuf::from)
}

/// Returns the command of the server. Where `setpriv` exists, the kernel ends the server with the thread that started
/// it, so that not even a killed rig leaves one behind.
fn kill_on_exit_command() -> Command {
    let setpriv = Path::new("/usr/bin/setpriv");
    if !setpriv.exists() {
        return Command::new(binary());
    }
    let mut command = Command::new(setpriv);
    command.args(["--pdeathsig", "KILL"]).arg(binary());
    command
}

/// A running server. Dropping it kills it.
#[derive(Debug)]
pub(crate) struct LoadServer {
    child: Child,
    ready: PathBuf,
    log: PathBuf,
    /// Its gRPC address, once it serves.
    pub(crate) address: String,
}

impl LoadServer {
    /// Waits until the server has written its ready file.
    pub(crate) fn wait_ready(&mut self) -> Result<()> {
        let limit = Instant::now() + START_LIMIT;
        while Instant::now() < limit {
            if let Some(address) = read_ready(&self.ready) {
                self.address = address;
                return Ok(());
            }
            if let Some(status) = self.child.try_wait()? {
                bail!("the server ended with {status} before it served:\n{}", self.log_tail());
            }
            std::thread::sleep(Duration::from_millis(5));
        }
        bail!("the server did not serve within {START_LIMIT:?}:\n{}", self.log_tail())
    }

    /// Returns its process id.
    pub(crate) fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Returns the last lines of its log.
    pub(crate) fn log_tail(&self) -> String {
        let log = fs::read(&self.log).unwrap_or_default();
        let from = log.len().saturating_sub(4096);
        String::from_utf8_lossy(&log[from..]).into_owned()
    }

    /// Returns the CPU time of all its threads so far.
    pub(crate) fn cpu(&self) -> Result<Duration> {
        let mut nanos = 0;
        for task in fs::read_dir(format!("/proc/{}/task", self.pid()))? {
            let line = fs::read_to_string(task?.path().join("schedstat")).unwrap_or_default();
            nanos += line.split(' ').next().and_then(|n| n.parse().ok()).unwrap_or(0);
        }
        Ok(Duration::from_nanos(nanos))
    }

    /// Returns its resident memory in MB (10^6 bytes).
    pub(crate) fn rss_mb(&self) -> Result<f64> {
        let status = fs::read_to_string(format!("/proc/{}/status", self.pid()))?;
        let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
        let kib = line.and_then(|rest| rest.split_whitespace().next()).context("no VmRSS")?;
        Ok(kib.parse::<f64>()? * 1024.0 / 1e6)
    }
}

impl Drop for LoadServer {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Returns the gRPC address in a complete ready file.
fn read_ready(path: &Path) -> Option<String> {
    let ready: serde_json::Value = serde_json::from_slice(&fs::read(path).ok()?).ok()?;
    Some(ready.get("grpc")?.as_str()?.to_owned())
}
