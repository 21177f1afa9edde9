//! A redis-server of its own for one test: on a free loopback port, in a directory of its own, ended with
//! the test.

use std::fs::File;
use std::net::TcpListener;
use std::path::{Path, PathBuf};
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

/// Which server: by the name of its program.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Program {
    /// The system's Redis.
    Redis,
    /// The oldest one that can be a shard, without WAITAOF.
    Redis6,
    /// A new one, whose WAITAOF is true.
    Redis8,
    /// Valkey 9, whose WAITAOF is not.
    Valkey,
}

/// A running server, or one that has ended and can be started again on the same data and port.
pub(crate) struct Redis {
    program: Program,
    dir: TempDir,
    port: u16,
    args: Vec<String>,
    child: Child,
}

// === impl Program ===

impl Program {
    fn name(self) -> &'static str {
        match self {
            Program::Redis => "redis-server",
            Program::Redis6 => "redis-server-6",
            Program::Redis8 => "redis-server-8",
            Program::Valkey => "valkey-server",
        }
    }

    /// Where `.ci/install-test-tools` puts it, or else wherever the system has it.
    fn path(self) -> PathBuf {
        let installed = Path::new(env!("CARGO_MANIFEST_DIR")).join(".tools/bin").join(self.name());
        if installed.exists() { installed } else { self.name().into() }
    }
}

// === impl Redis ===

impl Redis {
    /// A Valkey that keeps nothing on disk; `None` as for [`Redis::start`].
    pub(crate) async fn valkey() -> Option<Redis> {
        Redis::of(Program::Valkey, &["--save", "", "--appendonly", "no"]).await
    }

    /// A server of this kind that syncs every second.
    pub(crate) async fn every_second(program: Program) -> Option<Redis> {
        let args = ["--save", "", "--appendonly", "yes", "--appendfsync", "everysec"];
        Redis::of(program, &args).await
    }

    /// A replica of this server, without any file, that follows it already.
    pub(crate) async fn replica(&self) -> Redis {
        let primary = self.port.to_string();
        let args = ["--save", "", "--appendonly", "no", "--replicaof", "127.0.0.1", &primary];
        let replica = Redis::of(self.program, &args).await.expect("the same program again");
        let begin = Instant::now();
        while !self.command(&["INFO", "replication"]).await.contains("state=online") {
            assert!(begin.elapsed() < PATIENCE, "the replica does not follow");
            tokio::time::sleep(millis(20)).await;
        }
        replica
    }

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
        Redis::of(Program::Redis, args).await
    }

    /// A server of this kind with these arguments.
    pub(crate) async fn of(program: Program, args: &[&str]) -> Option<Redis> {
        let dir = tempfile::Builder::new().prefix("ringq-redis-").tempdir().unwrap();
        let args: Vec<String> = args.iter().map(|&arg| arg.to_owned()).collect();
        let port = free_port();
        let child = spawn(program, dir.path(), port, &args)?;
        let mut server = Redis { program, dir, port, args, child };
        for _ in 0..PORTS_TRIED {
            if server.wait_ready().await {
                return Some(server);
            }
            server.port = free_port();
            server.child = spawn(program, server.dir.path(), server.port, &server.args)?;
        }
        panic!("redis-server does not start");
    }

    /// Its address as a url.
    pub(crate) fn url(&self) -> String {
        format!("redis://127.0.0.1:{}", self.port)
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
        self.child = spawn(self.program, self.dir.path(), self.port, &self.args).unwrap();
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

fn spawn(program: Program, dir: &Path, port: u16, args: &[String]) -> Option<Child> {
    let log = || File::options().create(true).append(true).open(dir.join("log")).unwrap();
    let mut command = Command::new(program.path());
    command.args(["--port", &port.to_string(), "--bind", "127.0.0.1", "--dir"]).arg(dir);
    command.args(["--daemonize", "no"]).args(args);
    if program != Program::Redis6 {
        command.args(["--enable-debug-command", "yes"]);
    }
    command.stdin(Stdio::null()).stdout(log()).stderr(log());
    match command.spawn() {
        Ok(child) => Some(child),
        Err(error) => {
            let name = program.name();
            assert!(!in_ci(), "{name} is required with CI=true: {error}");
            println!("skipped: there is no {name} ({error})");
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
