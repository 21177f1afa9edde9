//! `ringq serve` as a separate process.

use std::fs::{self, File};
use std::io::{self, PipeWriter};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::{ExitStatus, Stdio};
use std::time::Duration;

use tempfile::TempDir;
use tokio::net::TcpStream;
use tokio::process::{Child, Command};
use tokio::time::Instant;
use tokio_rustls::client::TlsStream;
use tokio_util::either::Either;

use super::port::free_port;
use super::{Certificates, Client, PATIENCE, TlsFront, for_a_while, millis, within};

/// Settings with which a server starts.
pub(crate) struct Setup {
    dir: TempDir,
    listen: String,
    http_listen: String,
    shards: Vec<String>,
    config: String,
    variables: Vec<(&'static str, String)>,
    preload: Option<PathBuf>,
    /// Certificates of a server that uses TLS, behind proxies that add it.
    tls: Option<Certificates>,
    /// True if the reader of its log ends at once.
    unread: bool,
    /// Pipe that gets its log.
    log_pipe: Option<PipeWriter>,
}

/// A running server, or one that has ended and can be started again on its file and ports. Its log is printed when
/// the test fails.
pub(crate) struct Server {
    setup: Setup,
    child: Child,
    /// Addresses of its ports for gRPC and HTTP, behind the proxies that add TLS if there are any.
    pub(crate) ports: [SocketAddr; 2],
    fronts: Option<[TlsFront; 2]>,
    /// Address of gRPC.
    pub(crate) grpc: SocketAddr,
    /// Address of health and metrics.
    pub(crate) http: SocketAddr,
}

/// A server that did not start.
#[derive(Debug)]
pub(crate) struct Failure {
    /// Exit code; `None`: ended by a signal.
    pub(crate) code: Option<i32>,
    /// Text on standard error.
    pub(crate) stderr: String,
    /// Text on standard output.
    pub(crate) stdout: String,
}

/// Returns the binary under test: the one built with the tests, or the one that `RINGQ_BIN` names, for example an
/// optimized one.
#[expect(clippy::disallowed_methods, reason = "which binary to test is no configuration")]
fn binary() -> PathBuf {
    let built = env!("CARGO_BIN_EXE_ringq");
    std::env::var_os("RINGQ_BIN").map_or_else(|| built.into(), PathBuf::from)
}

// === impl Setup ===

impl Setup {
    /// Builds a server on free ports with one shard in a directory of its own.
    pub(crate) fn new() -> Setup {
        let dir = tempfile::Builder::new().prefix("ringq-e2e-").tempdir().unwrap();
        let setup = Setup {
            dir,
            listen: "127.0.0.1:0".into(),
            http_listen: "127.0.0.1:0".into(),
            shards: Vec::new(),
            config: String::new(),
            variables: Vec::new(),
            preload: None,
            tls: None,
            unread: false,
            log_pipe: None,
        };
        let setup = setup.shards(shards_asked_for());
        if is_tls_asked_for() { setup.behind_tls() } else { setup }
    }

    /// Builds a server with one shard, `s0`, at this url.
    pub(crate) fn on(url: &str) -> Setup {
        Setup::new().shard(format!("s0={url}"))
    }

    /// Sets this number of shards, `s0` and on, each in a file of its name.
    pub(crate) fn shards(mut self, count: usize) -> Setup {
        let shard =
            |n| format!("s{n}=sqlite:{}", self.dir.path().join(format!("s{n}.db")).display());
        self.shards = (0..count).map(shard).collect();
        self
    }

    /// Returns the directory of this server.
    pub(crate) fn dir(&self) -> &Path {
        self.dir.path()
    }

    /// Returns the file of its first shard, unless another was set.
    pub(crate) fn database(&self) -> PathBuf {
        self.dir.path().join("s0.db")
    }

    /// Adds a line to its configuration file.
    pub(crate) fn config(mut self, line: &str) -> Setup {
        self.config.push_str(line);
        self.config.push('\n');
        self
    }

    /// Uses TLS, and proxies that add it: its addresses are theirs, for clients without TLS. Does nothing if there is
    /// no openssl.
    pub(crate) fn behind_tls(self) -> Setup {
        let Some(files) = Certificates::make() else { return self };
        Setup { tls: Some(files), ..self }
    }

    /// Uses TLS with these files.
    pub(crate) fn tls(mut self, files: &Certificates) -> Setup {
        self.tls = None;
        self.config(&format!("tls_cert = {:?}\ntls_key = {:?}", files.cert, files.key))
    }

    /// Sets a variable of its environment, which is empty else.
    pub(crate) fn variable(mut self, name: &'static str, value: impl Into<String>) -> Setup {
        self.variables.push((name, value.into()));
        self
    }

    /// Sets a shared library that is loaded before all others.
    #[allow(dead_code, reason = "the fault scenarios use it")]
    pub(crate) fn preload(mut self, library: Option<PathBuf>) -> Setup {
        self.preload = library;
        self
    }

    /// Closes the reading end of its log.
    pub(crate) fn unread(self) -> Setup {
        Setup { unread: true, ..self }
    }

    /// Sends its log to a pipe, not to its file.
    #[allow(dead_code, reason = "the fault scenarios do not use it")]
    pub(crate) fn log_to(self, pipe: PipeWriter) -> Setup {
        Setup { log_pipe: Some(pipe), ..self }
    }

    /// Sets its only shard, `NAME=URL`.
    pub(crate) fn shard(self, shard: impl Into<String>) -> Setup {
        self.ring(vec![shard.into()])
    }

    /// Sets its shards, each `NAME=URL`.
    pub(crate) fn ring(mut self, shards: Vec<String>) -> Setup {
        self.shards = shards;
        self
    }

    /// Adds a shard, `NAME=URL`.
    pub(crate) fn and_shard(mut self, shard: impl Into<String>) -> Setup {
        self.shards.push(shard.into());
        self
    }

    /// Sets the address of its gRPC port.
    pub(crate) fn listen(mut self, address: impl Into<String>) -> Setup {
        self.listen = address.into();
        self
    }

    /// Sets the address of its HTTP port.
    pub(crate) fn http_listen(mut self, address: impl Into<String>) -> Setup {
        self.http_listen = address.into();
        self
    }

    /// Uses ports that are free now and that no outgoing connection gets meanwhile, so that a restarted server finds
    /// them free again.
    pub(crate) fn restartable(mut self) -> Setup {
        self.listen = format!("127.0.0.1:{}", free_port());
        self.http_listen = format!("127.0.0.1:{}", free_port());
        self
    }

    /// Starts it and waits until it serves.
    pub(crate) async fn start(self) -> Server {
        let child = self.spawn();
        let unknown = SocketAddr::from(([0, 0, 0, 0], 0));
        let ports = [unknown; 2];
        let mut server =
            Server { setup: self, child, ports, fronts: None, grpc: unknown, http: unknown };
        assert!(server.wait_ready().await, "the server ended at start\n{}", server.log());
        server
    }

    /// Starts it and waits until it exits with an error.
    pub(crate) async fn fail(self) -> Failure {
        let mut child = self.spawn();
        let Some(status) = for_a_while(PATIENCE, child.wait()).await else {
            child.start_kill().unwrap();
            child.wait().await.unwrap();
            panic!("it neither serves nor gives up; its log:\n{}", self.read("stderr"));
        };
        Failure {
            code: status.unwrap().code(),
            stderr: self.read("stderr"),
            stdout: self.read("stdout"),
        }
    }

    fn spawn(&self) -> Child {
        let config = self.dir.path().join("ringq.toml");
        fs::write(&config, &self.config).unwrap();
        let _ = fs::remove_file(self.ready_file());
        let mut command = Command::new(binary());
        command.env_clear().env("RUST_BACKTRACE", "1").current_dir(self.dir.path());
        command.envs(self.variables.iter().map(|(name, value)| (name, value)));
        command.arg("serve").arg("--config").arg(config);
        command.args(["--listen", &self.listen, "--http-listen", &self.http_listen]);
        command.arg("--ready-file").arg(self.ready_file());
        for shard in &self.shards {
            command.args(["--shard", shard]);
        }
        if let Some(Certificates { cert, key, .. }) = &self.tls {
            command.arg("--tls-cert").arg(cert).arg("--tls-key").arg(key);
        }
        if let Some(library) = &self.preload {
            command.env("LD_PRELOAD", library);
        }
        command.stdin(Stdio::null()).stdout(self.append("stdout")).stderr(self.append("stderr"));
        if self.unread {
            command.stderr(Stdio::piped());
        }
        if let Some(pipe) = &self.log_pipe {
            command.stderr(pipe.try_clone().unwrap());
        }
        let mut child = command.kill_on_drop(true).spawn().unwrap();
        drop(child.stderr.take());
        child
    }

    fn append(&self, name: &str) -> File {
        File::options().create(true).append(true).open(self.dir.path().join(name)).unwrap()
    }

    fn read(&self, name: &str) -> String {
        fs::read_to_string(self.dir.path().join(name)).unwrap_or_default()
    }

    fn ready_file(&self) -> PathBuf {
        self.dir.path().join("ready.json")
    }
}

/// Returns the number of shards of a server whose test does not set it: `RINGQ_TEST_SHARDS`, or one. Tests that pass
/// on one shard must pass on several.
fn shards_asked_for() -> usize {
    std::env::var("RINGQ_TEST_SHARDS").map_or(1, |count| count.parse().unwrap())
}

/// Returns whether tests that do not set it use TLS: with `RINGQ_TEST_TLS=1`. Tests that pass without pass with it.
fn is_tls_asked_for() -> bool {
    std::env::var("RINGQ_TEST_TLS").is_ok_and(|asked| asked == "1")
}

// === impl Server ===

impl Server {
    /// Starts a server with the settings of most tests.
    pub(crate) async fn start() -> Server {
        Setup::new().start().await
    }

    /// Opens a new connection to it.
    pub(crate) async fn connect(&self) -> Client {
        Client::connect(self.grpc).await
    }

    /// Returns whether it uses TLS behind proxies that add it.
    #[allow(dead_code, reason = "the fault scenarios do not use it")]
    pub(crate) fn has_tls(&self) -> bool {
        self.setup.tls.is_some()
    }

    /// Opens a connection to its HTTP port with this socket, without a proxy: with TLS if the server uses it.
    #[allow(dead_code, reason = "the fault scenarios do not use it")]
    pub(crate) async fn open_http(
        &self,
        socket: impl Future<Output = io::Result<TcpStream>>,
    ) -> Either<TcpStream, TlsStream<TcpStream>> {
        let socket = socket.await.unwrap();
        match &self.setup.tls {
            None => Either::Left(socket),
            Some(files) => Either::Right(files.client(None).connect_on(socket).await.unwrap()),
        }
    }

    /// Returns the file of its shard.
    pub(crate) fn database(&self) -> PathBuf {
        self.setup.database()
    }

    /// Returns the file of the shard of that name, of a server with several.
    pub(crate) fn shard_file(&self, name: &str) -> PathBuf {
        self.setup.dir.path().join(format!("{name}.db"))
    }

    /// Reverses the order of its shards for the next start.
    pub(crate) fn reverse_shards(&mut self) {
        self.setup.shards.reverse();
    }

    /// Returns its standard output since the first start.
    pub(crate) fn stdout(&self) -> String {
        self.setup.read("stdout")
    }

    /// Returns its log since the first start, with all lines of calls that were answered.
    pub(crate) fn log(&self) -> String {
        if let Some(pid) = self.child.id() {
            wait_until_written(pid);
        }
        self.setup.read("stderr")
    }

    /// Returns whether the ready file exists.
    pub(crate) fn is_ready(&self) -> bool {
        self.setup.ready_file().exists()
    }

    /// Kills it with SIGKILL.
    pub(crate) async fn kill(&mut self) {
        self.child.start_kill().unwrap();
        self.exit().await;
    }

    /// Sends SIGTERM.
    pub(crate) fn terminate(&self) {
        signal(self.pid(), "TERM");
    }

    /// Stops its process, sockets open, until [`Server::resume`].
    pub(crate) fn pause(&self) {
        signal(self.pid(), "STOP");
    }

    /// Continues its process.
    pub(crate) fn resume(&self) {
        signal(self.pid(), "CONT");
    }

    /// Waits for its exit.
    pub(crate) async fn exit(&mut self) -> ExitStatus {
        within("the server's end", self.child.wait()).await.unwrap()
    }

    /// Starts it again, on its file and ports, after it ended.
    pub(crate) async fn restart(&mut self) {
        assert!(self.starts_again().await, "the server ended at start\n{}", self.log());
    }

    /// Starts it again and returns whether it serves.
    pub(crate) async fn starts_again(&mut self) -> bool {
        self.spawn_again();
        self.wait_ready().await
    }

    /// Starts it again and kills it after this time, ready or not.
    #[allow(dead_code, reason = "the fault scenarios use it")]
    pub(crate) async fn start_and_kill(&mut self, after: Duration) {
        self.spawn_again();
        tokio::time::sleep(after).await;
        self.kill().await;
    }

    fn spawn_again(&mut self) {
        [self.setup.listen, self.setup.http_listen] = self.ports.map(|port| port.to_string());
        self.child = self.setup.spawn();
    }

    /// Sets the shards of its next start, each `NAME=URL`, and removes the preloaded library.
    #[allow(dead_code, reason = "the fault scenarios use it")]
    pub(crate) fn move_to(&mut self, shards: Vec<String>) {
        (self.setup.shards, self.setup.preload) = (shards, None);
    }

    /// Returns its process id.
    pub(crate) fn pid(&self) -> u32 {
        self.child.id().expect("the server has ended")
    }

    /// Returns its resident memory in bytes.
    pub(crate) fn rss_bytes(&self) -> u64 {
        self.memory_bytes("VmRSS:")
    }

    /// Returns its largest resident memory so far in bytes.
    #[allow(dead_code, reason = "the fault scenarios do not use it")]
    pub(crate) fn peak_bytes(&self) -> u64 {
        self.memory_bytes("VmHWM:")
    }

    fn memory_bytes(&self, name: &str) -> u64 {
        let status = fs::read_to_string(format!("/proc/{}/status", self.pid())).unwrap();
        let line = status.lines().find_map(|line| line.strip_prefix(name)).unwrap();
        line.trim().trim_end_matches(" kB").parse::<u64>().unwrap() * 1024
    }

    /// Returns its number of open files and sockets.
    pub(crate) fn fds(&self) -> usize {
        fs::read_dir(format!("/proc/{}/fd", self.pid())).unwrap().count()
    }

    /// Waits until it serves and returns whether it does; it does not when it has exited.
    async fn wait_ready(&mut self) -> bool {
        let deadline = Instant::now() + PATIENCE;
        let file = self.setup.ready_file();
        let ready = loop {
            if let Ok(ready) = fs::read_to_string(&file) {
                break ready;
            }
            if self.child.try_wait().unwrap().is_some() {
                return false;
            }
            assert!(Instant::now() < deadline, "the server does not get ready");
            tokio::time::sleep(millis(5)).await;
        };
        let ready: serde_json::Value =
            serde_json::from_str(&ready).expect("a ready file is whole from the first moment on");
        let address = |key: &str| ready[key].as_str().unwrap().parse().unwrap();
        let ports = [address("grpc"), address("http")];
        if let Some(files) = &self.setup.tls
            && self.ports != ports
        {
            let client = files.client(None);
            let grpc = TlsFront::start(ports[0], client.clone()).await;
            self.fronts = Some([grpc, TlsFront::start(ports[1], client).await]);
        }
        self.ports = ports;
        let fronts =
            self.fronts.as_ref().map(|fronts| fronts.each_ref().map(|front| front.address));
        [self.grpc, self.http] = fronts.unwrap_or(ports);
        true
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        if std::thread::panicking() {
            let log = self.log();
            let lines: Vec<&str> = log.lines().collect();
            let tail = lines[lines.len().saturating_sub(60)..].join("\n");
            eprintln!("--- the server's log ---\n{tail}\n--- end of the server's log ---");
        }
        // Reaped before its directory is removed: a server that still runs would write there again.
        let _ = self.child.start_kill();
        for _ in 0..2_000 {
            if !matches!(self.child.try_wait(), Ok(None)) {
                break;
            }
            std::thread::sleep(millis(1));
        }
    }
}

/// Waits until the thread that writes the log of a process is idle: seen twice, because it may wait for a lock once.
fn wait_until_written(pid: u32) {
    let threads = fs::read_dir(format!("/proc/{pid}/task")).into_iter().flatten().flatten();
    let is_writer = |thread: &PathBuf| {
        fs::read_to_string(thread.join("comm")).is_ok_and(|name| name.trim_end() == "ringq-stderr")
    };
    let Some(writer) = threads.map(|entry| entry.path()).find(is_writer) else { return };
    let mut idle = 0;
    while idle < 2 {
        let Ok(stat) = fs::read_to_string(writer.join("stat")) else { return };
        let sleeps = stat.rsplit(") ").next().is_some_and(|rest| rest.starts_with('S'));
        idle = if sleeps { idle + 1 } else { 0 };
        std::thread::sleep(millis(1));
    }
}

/// Sends a signal to one process.
fn signal(pid: u32, name: &str) {
    let script = format!("kill -{name} {pid}");
    let status = std::process::Command::new("sh").args(["-c", &script]).status().unwrap();
    assert!(status.success(), "{script}: {status}");
}
