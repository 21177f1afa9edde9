//! A redis-server for one test: on a free loopback port and a socket, in a directory of its own, ended with the test.
//! `RINGQ_TEST_REDIS` names another binary than `redis-server`, for example `valkey-server`.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use tempfile::TempDir;
use tokio::io::{AsyncBufReadExt as _, AsyncReadExt as _, AsyncWriteExt as _, BufReader};
use tokio::net::TcpStream;
use tokio::time::Instant;

use super::port::free_port;
use super::tls::Certificates;
use super::{PATIENCE, eventually, for_a_while, in_ci, millis, within};

/// Attempts to find a port that is still free when the server binds it.
const PORTS_TRIED: u32 = 20;

/// A server program, by its name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Program {
    /// The system's Redis.
    Redis,
    /// The oldest Redis that can be a shard, without WAITAOF.
    Redis6,
    /// A new Redis, whose WAITAOF can be trusted.
    Redis8,
    /// Valkey 9, whose WAITAOF cannot be trusted.
    Valkey,
}

/// A running server, or one that has ended and can be started again on the same data and port.
pub(crate) struct Redis {
    dir: TempDir,
    /// Directory of the data; `None`: that of the server.
    disk: Option<PathBuf>,
    port: u16,
    setup: Setup,
    child: Child,
}

/// Settings of a server process.
#[derive(Clone)]
struct Setup {
    program: Program,
    /// Settings file that is read before the arguments: a sentinel writes to it.
    config: Option<String>,
    args: Vec<String>,
    /// Shared library that is loaded before all others.
    preload: Option<PathBuf>,
    place: Place,
}

/// An address to listen on.
#[derive(Clone)]
pub(crate) struct Place {
    host: String,
    /// Network namespace of the process; `None`: that of the test.
    namespace: Option<String>,
}

// === impl Program ===

impl Program {
    #[expect(clippy::disallowed_methods, reason = "which server to test with is no configuration")]
    fn name(self) -> String {
        match self {
            Program::Redis => std::env::var("RINGQ_TEST_REDIS").unwrap_or("redis-server".into()),
            Program::Redis6 => "redis-server-6".to_owned(),
            Program::Redis8 => "redis-server-8".to_owned(),
            Program::Valkey => "valkey-server".to_owned(),
        }
    }

    /// Returns the path where `.ci/install-test-tools` installs it, or else the one of the system.
    fn path(self) -> PathBuf {
        let name = self.name();
        let installed = Path::new(env!("CARGO_MANIFEST_DIR")).join(".tools/bin").join(&name);
        if installed.exists() { installed } else { name.into() }
    }
}

// === impl Redis ===

impl Redis {
    /// Starts a Valkey that keeps nothing on disk; `None` as for [`Redis::start`].
    pub(crate) async fn valkey() -> Option<Redis> {
        Redis::of(Program::Valkey, &["--save", "", "--appendonly", "no"]).await
    }

    /// Starts a server of this kind that syncs every second.
    pub(crate) async fn every_second(program: Program) -> Option<Redis> {
        let args = ["--save", "", "--appendonly", "yes", "--appendfsync", "everysec"];
        Redis::of(program, &args).await
    }

    /// Starts a replica of this server, without a file, and waits until it follows.
    pub(crate) async fn replica(&self) -> Redis {
        let primary = self.port.to_string();
        let args = ["--save", "", "--appendonly", "no", "--replicaof", "127.0.0.1", &primary];
        let replica = Redis::of(self.setup.program, &args).await.expect("the same program again");
        eventually("the replica follows", async || {
            let info = self.command(&["INFO", "replication"]).await;
            info.contains("state=online").then_some(())
        })
        .await;
        replica
    }

    /// Starts a server that keeps nothing on disk; `None` when there is no redis-server, which is printed, and is an
    /// error with CI=true.
    pub(crate) async fn start() -> Option<Redis> {
        Redis::with(&["--save", "", "--appendonly", "no"]).await
    }

    /// Starts a server that answers a write only when it is on disk.
    pub(crate) async fn durable() -> Option<Redis> {
        Redis::with(&["--save", "", "--appendonly", "yes", "--appendfsync", "always"]).await
    }

    /// Starts a server with these arguments.
    pub(crate) async fn with(args: &[&str]) -> Option<Redis> {
        Redis::of(Program::Redis, args).await
    }

    /// Starts a server of this kind with these arguments.
    pub(crate) async fn of(program: Program, args: &[&str]) -> Option<Redis> {
        Redis::on(None, program, args, None).await
    }

    /// Starts a server like [`Redis::of`], with its data in a directory of the caller, and with a library that is
    /// loaded before all others.
    pub(crate) async fn on(
        disk: Option<PathBuf>,
        program: Program,
        args: &[&str],
        preload: Option<&Path>,
    ) -> Option<Redis> {
        let preload = preload.map(Path::to_owned);
        let (args, place) = (owned(args), Place::loopback());
        Redis::launch(disk, Setup { program, config: None, args, preload, place }).await
    }

    /// Starts a server like [`Redis::with`], but not on the loopback interface.
    #[allow(dead_code, reason = "the fault scenarios use it")]
    pub(crate) async fn at(place: Place, args: &[&str]) -> Option<Redis> {
        let (program, args) = (Program::Redis, owned(args));
        Redis::launch(None, Setup { program, config: None, args, preload: None, place }).await
    }

    /// Starts a server that keeps nothing on disk and also serves TLS; returns its TLS port. `clients`: whether
    /// clients must present a certificate.
    pub(crate) async fn secure(files: &Certificates, clients: bool) -> Option<(Redis, u16)> {
        let port = free_port();
        let auth = if clients { "yes" } else { "no" };
        let [ca, cert, key] =
            [&files.ca, &files.cert, &files.key].map(|file| file.to_str().unwrap());
        let args = ["--save", "", "--tls-port", &port.to_string(), "--tls-ca-cert-file", ca];
        let more = ["--tls-cert-file", cert, "--tls-key-file", key, "--tls-auth-clients", auth];
        Some((Redis::with(&[&args[..], &more[..]].concat()).await?, port))
    }

    /// Starts a sentinel with these settings.
    pub(crate) async fn sentinel(settings: &str) -> Option<Redis> {
        let (args, config) = (owned(&["--sentinel"]), Some(settings.to_owned()));
        let (program, place) = (Program::Redis, Place::loopback());
        Redis::launch(None, Setup { program, config, args, preload: None, place }).await
    }

    async fn launch(disk: Option<PathBuf>, setup: Setup) -> Option<Redis> {
        let dir = tempfile::Builder::new().prefix("ringq-redis-").tempdir().unwrap();
        let port = free_port();
        let child = spawn(dir.path(), disk.as_deref(), port, &setup)?;
        let mut server = Redis { dir, disk, port, setup, child };
        for _ in 0..PORTS_TRIED {
            if server.wait_ready().await {
                return Some(server);
            }
            server.port = free_port();
            server.child = server.spawn()?;
        }
        panic!("{} does not start", server.setup.program.name());
    }

    /// Returns its address as a url.
    pub(crate) fn url(&self) -> String {
        format!("redis://{}:{}", self.setup.place.host, self.port)
    }

    /// Returns its TCP port.
    pub(crate) fn port(&self) -> u16 {
        self.port
    }

    /// Returns the path of its Unix socket.
    pub(crate) fn socket(&self) -> PathBuf {
        self.dir.path().join("sock")
    }

    /// Its directory.
    pub(crate) fn dir(&self) -> &Path {
        self.dir.path()
    }

    /// Its process.
    pub(crate) fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Runs one command and returns the answer as text: the content of a bulk string, or the line.
    pub(crate) async fn command(&self, words: &[impl AsRef<[u8]>]) -> String {
        within("an answer of redis", self.ask(words)).await.expect("redis cannot be asked")
    }

    /// Runs one command whose answer is a list of strings.
    pub(super) async fn ask_list(&self, words: &[&str]) -> Vec<String> {
        let asked = async {
            let mut stream = send(&self.setup.place.host, self.port, words).await?;
            let head = answer(&mut stream).await?;
            let length = head.strip_prefix('*').and_then(|length| length.parse().ok());
            let mut all = Vec::new();
            for _ in 0..length.unwrap_or(0) {
                all.push(answer(&mut stream).await?);
            }
            std::io::Result::Ok(all)
        };
        within("an answer of redis", asked).await.expect("redis cannot be asked")
    }

    /// Reads a number from its INFO.
    pub(crate) async fn info(&self, section: &str, name: &str) -> u64 {
        let info = self.command(&["INFO", section]).await;
        let line = info.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'));
        line.unwrap_or_else(|| panic!("no {name} in {info}")).trim().parse().unwrap()
    }

    /// Kills it with SIGKILL.
    pub(crate) fn kill(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }

    /// Starts it again on its previous data and port.
    pub(crate) async fn restart(&mut self) {
        assert!(self.starts_again().await, "redis-server does not start again");
    }

    /// Starts it again and returns whether it becomes ready.
    pub(crate) async fn starts_again(&mut self) -> bool {
        self.child = self.spawn().unwrap();
        self.wait_ready().await
    }

    /// Sets the data directory of its next start and removes the preloaded library.
    #[allow(dead_code, reason = "the fault scenarios use it")]
    pub(crate) fn move_to(&mut self, disk: PathBuf) {
        (self.disk, self.setup.preload) = (Some(disk), None);
    }

    fn spawn(&self) -> Option<Child> {
        spawn(self.dir.path(), self.disk.as_deref(), self.port, &self.setup)
    }

    /// Stops its process, sockets open, until [`Redis::resume`].
    pub(crate) fn pause(&self) {
        self.signal("STOP");
    }

    /// Continues its process.
    pub(crate) fn resume(&self) {
        self.signal("CONT");
    }

    fn signal(&self, name: &str) {
        let script = format!("kill -{name} {}", self.child.id());
        assert!(Command::new("sh").args(["-c", &script]).status().unwrap().success());
    }

    /// Waits until it is ready and returns whether it is; it is not when another process has taken its port.
    async fn wait_ready(&mut self) -> bool {
        let deadline = Instant::now() + PATIENCE;
        while Instant::now() < deadline {
            if self.child.try_wait().unwrap().is_some() {
                return false;
            }
            let pong = for_a_while(Duration::from_secs(1), self.ask(&["PING"])).await;
            if matches!(pong, Some(Ok(answer)) if answer == "+PONG") && self.answers_itself().await
            {
                return true;
            }
            tokio::time::sleep(millis(2)).await;
        }
        panic!("redis-server does not get ready");
    }

    /// Sends one command on a new connection and returns the first line of the answer, or a bulk string.
    async fn ask(&self, words: &[impl AsRef<[u8]>]) -> std::io::Result<String> {
        answer(&mut send(&self.setup.place.host, self.port, words).await?).await
    }

    /// Returns whether this process answers: another test may have found the same port free, and its server may be
    /// the one that listens there.
    async fn answers_itself(&self) -> bool {
        let info = self.ask(&["INFO", "server"]).await.unwrap_or_default();
        let own = format!("process_id:{}", self.child.id());
        info.lines().any(|line| line == own)
    }
}

// === impl Place ===

impl Place {
    fn loopback() -> Place {
        Place { host: "127.0.0.1".to_owned(), namespace: None }
    }

    /// Builds an address in that network namespace.
    #[allow(dead_code, reason = "the fault scenarios use it")]
    pub(crate) fn in_namespace(name: &str, host: String) -> Place {
        Place { host, namespace: Some(name.to_owned()) }
    }

    fn command(&self, program: PathBuf) -> Command {
        let Some(name) = &self.namespace else { return Command::new(program) };
        let mut command = Command::new("ip");
        command.args(["netns", "exec", name]).arg(program).args(["--protected-mode", "no"]);
        command
    }
}

impl Drop for Redis {
    fn drop(&mut self) {
        self.kill();
    }
}

fn owned(args: &[&str]) -> Vec<String> {
    args.iter().map(|&arg| arg.to_owned()).collect()
}

fn spawn(dir: &Path, disk: Option<&Path>, port: u16, setup: &Setup) -> Option<Child> {
    let log = || File::options().create(true).append(true).open(dir.join("log")).unwrap();
    let mut command = setup.place.command(setup.program.path());
    if let Some(settings) = &setup.config {
        let file = dir.join("config");
        if !file.exists() {
            std::fs::write(&file, settings).unwrap();
        }
        command.arg(file);
    } else {
        command.arg("--unixsocket").arg(dir.join("sock"));
        if setup.program != Program::Redis6 {
            command.args(["--enable-debug-command", "yes"]);
        }
    }
    command.args(["--port", &port.to_string(), "--bind", &setup.place.host, "--dir"]);
    command.arg(disk.unwrap_or(dir));
    command.args(["--daemonize", "no"]).args(&setup.args);
    if let Some(library) = &setup.preload {
        command.env("LD_PRELOAD", library);
    }
    command.stdin(Stdio::null()).stdout(log()).stderr(log());
    match command.spawn() {
        Ok(child) => Some(child),
        Err(error) => {
            let name = setup.program.name();
            assert!(!in_ci(), "{name} is required with CI=true: {error}");
            println!("skipped: there is no {name} ({error})");
            None
        }
    }
}

async fn send(
    host: &str,
    port: u16,
    words: &[impl AsRef<[u8]>],
) -> std::io::Result<BufReader<TcpStream>> {
    let mut stream = BufReader::new(TcpStream::connect((host, port)).await?);
    let mut command = format!("*{}\r\n", words.len()).into_bytes();
    for word in words.iter().map(AsRef::as_ref) {
        command.extend_from_slice(format!("${}\r\n", word.len()).as_bytes());
        command.extend_from_slice(word);
        command.extend_from_slice(b"\r\n");
    }
    stream.write_all(&command).await?;
    Ok(stream)
}

async fn answer(stream: &mut BufReader<TcpStream>) -> std::io::Result<String> {
    let mut line = String::new();
    stream.read_line(&mut line).await?;
    let line = line.trim_end().to_owned();
    match line.strip_prefix('$').and_then(|length| length.parse().ok()) {
        None => Ok(line),
        Some(length) => {
            let mut text = vec![0; length + 2];
            stream.read_exact(&mut text).await?;
            text.truncate(length);
            Ok(String::from_utf8_lossy(&text).into_owned())
        }
    }
}
