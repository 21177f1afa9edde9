//! A Redis of a rig's own, which never outlives it.

use std::fs::File;
use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail};

use crate::setting::{free_address, in_ci};

/// How long a Redis may take until it answers.
const START_LIMIT: Duration = Duration::from_secs(30);

/// Which Redis, and how it syncs.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Kind {
    /// The name of its program.
    pub(crate) program: &'static str,
    /// When it syncs.
    pub(crate) appendfsync: &'static str,
}

/// A running Redis. Dropping it kills it.
#[derive(Debug)]
pub(crate) struct Redis {
    child: Child,
    address: String,
}

// === impl Kind ===

impl Kind {
    /// Whether it is here. In CI it must be.
    pub(crate) fn able(self) -> Result<bool> {
        let version = Command::new(self.path()).arg("--version").stdout(Stdio::null()).status();
        match version {
            Ok(_) => Ok(true),
            Err(error) if in_ci() => bail!("{}: {error}", self.program),
            Err(error) => {
                println!("SKIPPED power cut of a Redis: {}: {error}", self.program);
                Ok(false)
            }
        }
    }

    /// Starts it with all its files in `dir`, and with `preload` before all other libraries.
    pub(crate) fn start(self, dir: &Path, preload: Option<&Path>) -> Result<Redis> {
        let address = free_address()?;
        let port = address.rsplit(':').next().context("a port")?.to_owned();
        let log = File::options().create(true).append(true).open(dir.join("log"))?;
        let mut command = bounded_by_us(&self.path());
        command
            .args(["--port", &port, "--bind", "127.0.0.1", "--save", "", "--appendonly", "yes"])
            .args(["--appendfsync", self.appendfsync, "--dir"])
            .arg(dir)
            .stdin(Stdio::null())
            .stdout(log.try_clone()?)
            .stderr(log);
        if let Some(library) = preload {
            command.env("LD_PRELOAD", library);
        }
        let mut redis = Redis { child: command.spawn().context("start redis")?, address };
        redis.wait_ready()?;
        Ok(redis)
    }

    /// Where `.ci/install-test-tools` puts it, or else wherever the system has it.
    fn path(self) -> PathBuf {
        let installed = Path::new(env!("CARGO_MANIFEST_DIR")).join(".tools/bin").join(self.program);
        if installed.exists() { installed } else { self.program.into() }
    }
}

/// As the server's: where `setpriv` exists, the kernel ends it with the thread that started it.
fn bounded_by_us(program: &Path) -> Command {
    let setpriv = Path::new("/usr/bin/setpriv");
    if !setpriv.exists() {
        return Command::new(program);
    }
    let mut command = Command::new(setpriv);
    command.args(["--pdeathsig", "KILL"]).arg(program);
    command
}

// === impl Redis ===

impl Redis {
    /// Its url.
    pub(crate) fn url(&self) -> String {
        format!("redis://{}", self.address)
    }

    /// Its process id.
    pub(crate) fn pid(&self) -> u32 {
        self.child.id()
    }

    fn wait_ready(&mut self) -> Result<()> {
        let limit = Instant::now() + START_LIMIT;
        while Instant::now() < limit {
            if let Some(status) = self.child.try_wait()? {
                bail!("redis ended with {status} before it answered");
            }
            if self.ping().is_ok_and(|answer| answer.starts_with("+PONG")) {
                return Ok(());
            }
            std::thread::sleep(Duration::from_millis(5));
        }
        bail!("redis did not answer within {START_LIMIT:?}")
    }

    fn ping(&self) -> std::io::Result<String> {
        let mut stream = TcpStream::connect(&self.address)?;
        stream.set_read_timeout(Some(Duration::from_secs(1)))?;
        stream.write_all(b"PING\r\n")?;
        let mut answer = [0; 64];
        let length = stream.read(&mut answer)?;
        Ok(String::from_utf8_lossy(&answer[..length]).into_owned())
    }
}

impl Drop for Redis {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
