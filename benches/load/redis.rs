//! A redis-server for one run: without persistence, on a free loopback port, ended with its owner.

use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};

/// Interval and number of the checks whether it answers.
const READY_POLL: (Duration, u32) = (Duration::from_millis(20), 500);

/// A running redis-server, ended when dropped.
pub(crate) struct RedisProcess {
    child: Child,
    port: u16,
}

impl RedisProcess {
    /// Starts the system's redis-server in this directory.
    pub(crate) fn start(dir: &Path) -> Result<RedisProcess> {
        RedisProcess::launch(Command::new("redis-server"), dir)
    }

    /// Starts it by this command, to which its arguments are added.
    pub(crate) fn launch(mut command: Command, dir: &Path) -> Result<RedisProcess> {
        let port = TcpListener::bind("127.0.0.1:0")?.local_addr()?.port();
        command.args(["--bind", "127.0.0.1", "--port", &port.to_string(), "--dir"]).arg(dir);
        command.args(["--save", "", "--appendonly", "no", "--daemonize", "no"]);
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        let redis = RedisProcess { child: command.spawn().context("start redis-server")?, port };
        let ready = (0..READY_POLL.1).any(|_| {
            std::thread::sleep(READY_POLL.0);
            TcpStream::connect(("127.0.0.1", port)).is_ok()
        });
        ensure!(ready, "redis-server does not answer");
        Ok(redis)
    }

    /// Returns its address as the url of a shard.
    pub(crate) fn url(&self) -> String {
        format!("redis://127.0.0.1:{}", self.port)
    }

    /// Returns the microseconds of scripts so far, with the commands that they call.
    pub(crate) fn script_us(&self) -> Result<f64> {
        self.spent_us("eval")
    }

    /// Returns the megabytes of data.
    pub(crate) fn used_mb(&self) -> Result<f64> {
        let info = self.info("memory")?;
        let used = info.lines().find_map(|line| line.strip_prefix("used_memory:"));
        Ok(used.context("no used_memory")?.trim().parse::<f64>()? / 1e6)
    }

    /// Returns the microseconds of commands with this prefix so far.
    pub(crate) fn spent_us(&self, commands: &str) -> Result<f64> {
        let (info, name) = (self.info("commandstats")?, format!("cmdstat_{commands}"));
        let usec = |line: &str| {
            line.split(',').find_map(|part| part.strip_prefix("usec="))?.parse::<f64>().ok()
        };
        Ok(info.lines().filter(|line| line.starts_with(&name)).filter_map(usec).sum())
    }

    fn info(&self, section: &str) -> Result<String> {
        let (mut stream, head) = self.send_command(&format!("INFO {section}"))?;
        let length = head.strip_prefix('$').context("an odd answer of redis")?.parse()?;
        let mut info = vec![0; length];
        stream.read_exact(&mut info)?;
        Ok(String::from_utf8_lossy(&info).into_owned())
    }

    /// Returns its port.
    pub(crate) fn port(&self) -> u16 {
        self.port
    }

    /// Sends an inline command and returns the first line of the answer.
    pub(crate) fn send_command(&self, command: &str) -> Result<(BufReader<TcpStream>, String)> {
        RedisProcess::send_command_to(self.port, command)
    }

    /// Sends an inline command to the server on this port.
    pub(crate) fn send_command_to(
        port: u16,
        command: &str,
    ) -> Result<(BufReader<TcpStream>, String)> {
        let mut stream = BufReader::new(TcpStream::connect(("127.0.0.1", port))?);
        stream.get_mut().write_all(format!("{command}\r\n").as_bytes())?;
        let mut head = String::new();
        stream.read_line(&mut head)?;
        ensure!(!head.starts_with('-'), "redis: {head}");
        Ok((stream, head.trim().to_owned()))
    }
}

impl Drop for RedisProcess {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
