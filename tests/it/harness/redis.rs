//! A redis-server of its own for one test: on a free loopback port, in a directory of its own, ended with
//! the test.

use std::fs::File;
use std::net::TcpListener;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use rand::Rng as _;
use tempfile::TempDir;
use tokio::io::{AsyncBufReadExt as _, AsyncReadExt as _, AsyncWriteExt as _, BufReader};
use tokio::net::TcpStream;
use tokio::time::Instant;

use super::{PATIENCE, in_ci, millis};

/// Attempts to find a port that is still free when the server takes it.
const PORTS_TRIED: u32 = 20;

/// A running server, or one that has ended and can be started again on the same data and port.
pub(crate) struct Redis {
    dir: TempDir,
    port: u16,
    args: Vec<String>,
    child: Child,
}

// === impl Redis ===

impl Redis {
    /// A server that keeps nothing on disk; `None` when there is no redis-server, which is said, and
    /// with CI=true is an error.
    pub(crate) async fn start() -> Option<Redis> {
        Redis::with(&["--save", "", "--appendonly", "no"]).await
    }

    /// A server whose every write is on disk when it is answered.
    pub(crate) async fn durable() -> Option<Redis> {
        Redis::with(&["--save", "", "--appendonly", "yes", "--appendfsync", "always"]).await
    }

    /// A server with these arguments.
    pub(crate) async fn with(args: &[&str]) -> Option<Redis> {
        let dir = tempfile::Builder::new().prefix("ringq-redis-").tempdir().unwrap();
        let args: Vec<String> = args.iter().map(|&arg| arg.to_owned()).collect();
        let port = free_port();
        let child = spawn(dir.path(), port, &args)?;
        let mut server = Redis { dir, port, args, child };
        for _ in 0..PORTS_TRIED {
            if server.wait_ready().await {
                return Some(server);
            }
            server.port = free_port();
            server.child = spawn(server.dir.path(), server.port, &server.args)?;
        }
        panic!("redis-server does not start");
    }

    /// Its address as a url.
    pub(crate) fn url(&self) -> String {
        format!("redis://127.0.0.1:{}", self.port())
    }

    /// Its port on loopback.
    pub(crate) fn port(&self) -> u16 {
        self.port
    }

    /// Runs one command; what it answers, as text: a bulk string's content, or the line.
    pub(crate) async fn command(&self, words: &[&str]) -> String {
        let answer = tokio::time::timeout(PATIENCE, ask(self.port, words)).await;
        answer.expect("redis does not answer").expect("redis cannot be asked")
    }

    /// A number of its INFO.
    pub(crate) async fn info(&self, section: &str, name: &str) -> u64 {
        let info = self.command(&["INFO", section]).await;
        let line = info.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'));
        line.unwrap_or_else(|| panic!("no {name} in {info}")).trim().parse().unwrap()
    }

    /// Ends it without any warning.
    pub(crate) fn kill(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }

    /// Starts it again on the same data and port.
    pub(crate) async fn restart(&mut self) {
        self.child = spawn(self.dir.path(), self.port, &self.args).unwrap();
        assert!(self.wait_ready().await, "redis-server does not start again");
    }

    /// Lets it stand still, sockets open, until [`Redis::resume`].
    pub(crate) fn pause(&self) {
        self.signal("STOP");
    }

    /// Lets it go on.
    pub(crate) fn resume(&self) {
        self.signal("CONT");
    }

    fn signal(&self, name: &str) {
        let script = format!("kill -{name} {}", self.child.id());
        assert!(Command::new("sh").args(["-c", &script]).status().unwrap().success());
    }

    /// Whether it gets ready; not so when somebody else has taken its port.
    async fn wait_ready(&mut self) -> bool {
        let deadline = Instant::now() + PATIENCE;
        while Instant::now() < deadline {
            if self.child.try_wait().unwrap().is_some() {
                return false;
            }
            let pong =
                tokio::time::timeout(Duration::from_secs(1), ask(self.port, &["PING"])).await;
            if matches!(pong, Ok(Ok(answer)) if answer == "+PONG") {
                return true;
            }
            tokio::time::sleep(millis(2)).await;
        }
        panic!("redis-server does not get ready");
    }
}

impl Drop for Redis {
    fn drop(&mut self) {
        self.kill();
    }
}

fn free_port() -> u16 {
    loop {
        let port = rand::rng().random_range(18_000..32_000);
        if TcpListener::bind(("127.0.0.1", port)).is_ok() {
            return port;
        }
    }
}

fn spawn(dir: &Path, port: u16, args: &[String]) -> Option<Child> {
    let log = || File::options().create(true).append(true).open(dir.join("log")).unwrap();
    let mut command = Command::new("redis-server");
    command.args(["--port", &port.to_string(), "--bind", "127.0.0.1", "--dir"]).arg(dir);
    command.args(["--daemonize", "no", "--enable-debug-command", "yes"]).args(args);
    command.stdin(Stdio::null()).stdout(log()).stderr(log());
    match command.spawn() {
        Ok(child) => Some(child),
        Err(error) => {
            assert!(!in_ci(), "redis-server is required with CI=true: {error}");
            println!("skipped: there is no redis-server ({error})");
            None
        }
    }
}

/// Sends one command on a connection of its own; the first line of the answer, or a bulk string.
async fn ask(port: u16, words: &[&str]) -> std::io::Result<String> {
    let mut stream = BufReader::new(TcpStream::connect(("127.0.0.1", port)).await?);
    let mut command = format!("*{}\r\n", words.len());
    for word in words {
        command.push_str(&format!("${}\r\n{word}\r\n", word.len()));
    }
    stream.write_all(command.as_bytes()).await?;
    let mut line = String::new();
    stream.read_line(&mut line).await?;
    let line = line.trim_end().to_owned();
    match line.strip_prefix('$').and_then(|length| length.parse().ok()) {
        None => Ok(line),
        Some(length) => {
            let mut text = vec![0; length];
            stream.read_exact(&mut text).await?;
            Ok(String::from_utf8_lossy(&text).into_owned())
        }
    }
}
