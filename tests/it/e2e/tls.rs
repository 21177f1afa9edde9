use std::fs;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::{Output, Stdio};

use ringq::pb::JobState;
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio::process::Command;
use tokio::time::Instant;

use crate::e2e::grpcurl::grpcurl;
use crate::harness::{
    Certificates, Client, JsonClient, Server, Setup, TlsClient, TlsFront, Valid, eventually,
    for_a_while, http_get_on, in_ci, job, millis, take, within,
};

const INFO: &str = "AdminService/GetServerInfo";

/// Runs a program; returns its output, or `None` if it is missing, which is printed.
async fn run(program: impl AsRef<Path>, arguments: &[&str]) -> Option<Output> {
    let program = program.as_ref();
    let mut command = Command::new(program);
    // A variable for a proxy of this machine is for other hosts.
    command.env("no_proxy", "*").env("GRPC_ENABLE_FORK_SUPPORT", "0");
    let command = command.args(arguments).stdin(Stdio::null()).kill_on_drop(true).output();
    match within("a program", command).await {
        Ok(output) => Some(output),
        Err(error) => {
            assert!(!in_ci(), "{}: {error}", program.display());
            eprintln!("skipped: {}: {error}", program.display());
            None
        }
    }
}

/// Returns everything that a program has printed.
fn text(output: &Output) -> String {
    String::from_utf8_lossy(&[&output.stdout[..], &output.stderr].concat()).into_owned()
}

/// Returns the text if the program succeeded, else its text as the error.
fn outcome(output: &Output) -> Result<String, String> {
    if output.status.success() { Ok(text(output)) } else { Err(text(output)) }
}

/// A server with TLS, its certificates, and a client for both ports.
struct Secure {
    files: Certificates,
    server: Server,
    client: TlsClient,
}

// === impl Secure ===

impl Secure {
    /// Starts one with more settings; `None`: there is no openssl.
    async fn start(config: impl FnOnce(&Certificates) -> String) -> Option<Secure> {
        let files = Certificates::make()?;
        let client = files.client(None);
        let config = config(&files);
        let server = Setup::new().tls(&files).config(&config).start().await;
        Some(Secure { files, server, client })
    }

    fn ca(&self) -> &str {
        self.files.ca.to_str().unwrap()
    }

    /// Returns a client of gRPC that uses this one for its connections.
    async fn grpc(&self, client: &TlsClient) -> (TlsFront, Client) {
        let front = TlsFront::start(self.server.grpc, client.clone()).await;
        let client = Client::connect(front.address).await;
        (front, client)
    }

    async fn get(&self, path: &str) -> (u16, String) {
        http_get_on(self.client.connect(self.server.http).await.unwrap(), path).await
    }

    /// Returns the value of a metric; 0 without a series.
    async fn metric(&self, series: &str) -> f64 {
        let text = self.get("/metrics").await.1;
        let value = text.lines().find_map(|line| line.strip_prefix(series)?.strip_prefix(' '));
        value.map_or(0.0, |value| value.parse().unwrap())
    }

    /// Waits until a failed handshake has been counted, and returns its line in the log.
    async fn failure(&self, port: &str, reason: &str) -> String {
        let series =
            format!(r#"ringq_tls_handshake_failures_total{{port="{port}",reason="{reason}"}}"#);
        eventually(&series, async || (self.metric(&series).await >= 1.0).then_some(())).await;
        failure_line(&self.server, port, reason).await
    }
}

/// Waits for the log line of a failed handshake; there must be one only.
async fn failure_line(server: &Server, port: &str, reason: &str) -> String {
    let (port, reason) = (format!("port=\"{port}\""), format!("reason=\"{reason}\""));
    eventually(&reason, async || {
        let log = server.log();
        let mut lines = log.lines().filter(|line| line.contains(&port) && line.contains(&reason));
        let line = lines.next()?.to_owned();
        assert_eq!(lines.next(), None, "one line\n{log}");
        assert!(line.contains("WARN") && line.contains("connection closed: "), "{line}");
        Some(line)
    })
    .await
}

fn url(address: SocketAddr) -> String {
    format!("https://localhost:{}", address.port())
}

fn host(address: SocketAddr) -> String {
    format!("localhost:{}", address.port())
}

/// Runs curl for a JSON call; returns its version of HTTP and the answer.
async fn curl(address: SocketAddr, options: &[&str]) -> Option<Result<(String, Value), String>> {
    let url = format!("{}/v1/ringq.v1.{INFO}", url(address));
    let common = ["-sS", "-m", "10", "-H", "content-type: application/json", "-d", "{}"];
    let written = ["-w", "\n%{http_version}", &url];
    let output = run("curl", &[&common, options, &written].concat()).await?;
    Some(outcome(&output).map(|text| {
        let (body, version) = text.rsplit_once('\n').unwrap();
        (version.to_owned(), serde_json::from_str(body).unwrap())
    }))
}

/// A client in Python; its arguments are an address, the file of the authority, and a certificate with its key.
const PYTHON: &str = r#"
import sys, grpc
address, ca, identity = sys.argv[1], sys.argv[2], sys.argv[3:]
read = lambda path: open(path, "rb").read()
if ca == "none":
    channel = grpc.insecure_channel(address)
else:
    more = {"certificate_chain": read(identity[0]), "private_key": read(identity[1])} if identity else {}
    channel = grpc.secure_channel(address, grpc.ssl_channel_credentials(read(ca), **more))
call = channel.unary_unary("/ringq.v1.AdminService/GetServerInfo")
try:
    print(len(call(b"", timeout=5)), "bytes")
except grpc.RpcError as error:
    sys.exit(f"{error.code().name}: {error.details()}")
"#;

/// Runs the client in Python. `None`: there is no Python with grpcio.
async fn python(arguments: &[&str]) -> Option<Result<String, String>> {
    let output = run("python3", &[&["-c", PYTHON], arguments].concat()).await?;
    let outcome = outcome(&output);
    if let Err(text) = &outcome
        && text.contains("No module named")
    {
        assert!(!in_ci(), "{text}");
        eprintln!("skipped: python3 has no grpcio");
        return None;
    }
    Some(outcome)
}

/// Runs `ringq info`, trusting this authority.
async fn ringq(server: &str, ca: &Path) -> Result<String, String> {
    let mut command = Command::new(env!("CARGO_BIN_EXE_ringq"));
    command.args(["info", "--server", server]).env_clear().env("SSL_CERT_FILE", ca);
    outcome(&within("ringq", command.kill_on_drop(true).output()).await.unwrap())
}

#[tokio::test]
async fn clients_of_every_kind_connect() {
    let Some(secure) = Secure::start(|_| String::new()).await else { return };
    let (grpc, http, ca) = (secure.server.grpc, secure.server.http, secure.ca());
    for (address, version, protocol) in [
        (grpc, "-tls1_3", Some("h2")),
        (grpc, "-tls1_2", Some("h2")),
        (http, "-tls1_3", Some("http/1.1")),
        (http, "-tls1_2", None),
    ] {
        let host = host(address);
        let mut arguments =
            vec!["s_client", "-connect", &host, "-CAfile", ca, "-verify_return_error", version];
        arguments.extend(protocol.into_iter().flat_map(|name| ["-alpn", name]));
        let shown = text(&run("openssl", &arguments).await.unwrap());
        assert!(shown.contains("Verify return code: 0 (ok)"), "{version}: {shown}");
        let chosen = protocol.map_or("No ALPN".to_owned(), |name| format!("ALPN protocol: {name}"));
        assert!(shown.contains(&chosen), "{version} {chosen}: {shown}");
    }
    if let Some(tool) = grpcurl().await {
        let called = run(tool, &["-cacert", ca, &host(grpc), &format!("ringq.v1.{INFO}")]).await;
        assert!(outcome(&called.unwrap()).unwrap().contains("\"sqlite\""));
    }
    if let Some(called) = python(&[&host(grpc), ca]).await {
        assert!(called.unwrap().ends_with(" bytes\n"));
    }
    for (option, version) in [("--http2", "2"), ("--http1.1", "1.1")] {
        let Some(called) = curl(http, &["--cacert", ca, option]).await else { break };
        let (used, info) = called.unwrap();
        assert_eq!((&*used, &info["store"]), (version, &json!("sqlite")));
    }
    assert!(ringq(&url(grpc), &secure.files.ca).await.unwrap().contains("sqlite"));
    assert_eq!(secure.get("/healthz").await, (200, "ok".to_owned()));
    let json = secure.client.connect(http).await.unwrap();
    let info = JsonClient::on(json, http).await.ok(INFO, &json!({})).await;
    assert_eq!(info["limits"]["tls_handshake_ms_max"], json!("5000"));
    assert!(!secure.server.log().contains("WARN"), "{}", secure.server.log());
}

#[tokio::test]
async fn clients_that_do_not_accept_the_certificate_get_one_clear_line_as_the_log_does() {
    let Some(secure) = Secure::start(|_| String::new()).await else { return };
    let others = Certificates::make().unwrap();
    let (grpc, ca) = (secure.server.grpc, secure.ca());
    let error = ringq(&url(grpc), &others.ca).await.unwrap_err();
    assert!(error.contains("is not signed by a trusted authority"), "{error}");
    let line = secure.failure("grpc", "refused_by_client").await;
    assert!(line.contains("UnknownCA") && line.contains("tls_cert"), "{line}");
    // The certificate is for localhost.
    let by_address = format!("https://{grpc}");
    let error = ringq(&by_address, &secure.files.ca).await.unwrap_err();
    assert!(error.contains("localhost") || error.contains("NotValidForName"), "{error}");
    let other_ca = others.ca.to_str().unwrap();
    if let Some(tool) = grpcurl().await {
        let (info, address) = (format!("ringq.v1.{INFO}"), grpc.to_string());
        for (ca, address, part) in [
            (other_ca, &host(grpc), "certificate signed by unknown authority"),
            (ca, &address, "doesn't contain any IP SANs"),
        ] {
            let called = run(&tool, &["-max-time", "3", "-cacert", ca, address, &info]).await;
            let error = outcome(&called.unwrap()).unwrap_err();
            assert!(error.contains(part), "{error}");
        }
    }
    if let Some(called) = python(&[&host(grpc), other_ca]).await {
        assert!(called.unwrap_err().contains("CERTIFICATE_VERIFY_FAILED"));
    }
    let wrong_host =
        format!("{}/healthz", url(secure.server.http)).replace("localhost", "127.0.0.1");
    if let Some(called) = run("curl", &["-sS", "--cacert", ca, &wrong_host]).await {
        let error = outcome(&called).unwrap_err();
        assert!(error.contains("127.0.0.1"), "{error}");
    }
}

#[tokio::test]
async fn clients_without_tls_are_answered_in_their_protocol() {
    let Some(secure) = Secure::start(|_| String::new()).await else { return };
    let (grpc, http) = (secure.server.grpc, secure.server.http);
    let text = "this port uses TLS: use an https:// address";
    for address in [grpc, http] {
        let answer = http_get_on(TcpStream::connect(address).await.unwrap(), "/healthz").await;
        assert_eq!(answer, (400, format!("{text}\n")));
    }
    let line = secure.failure("grpc", "plain_text").await;
    assert!(line.contains("give it an https:// address"), "{line}");
    secure.failure("http", "plain_text").await;
    if let Some(tool) = grpcurl().await {
        let info = format!("ringq.v1.{INFO}");
        let called = run(tool, &["-plaintext", "-max-time", "3", &host(grpc), &info]).await;
        assert!(outcome(&called.unwrap()).is_err());
    }
    if let Some(called) = python(&[&host(grpc), "none"]).await {
        let error = called.unwrap_err();
        assert!(error.contains("UNAVAILABLE: "), "{error}");
        // Clients connect again after pauses, not at once.
        let counted = r#"ringq_tls_handshake_failures_total{port="grpc",reason="plain_text"}"#;
        assert!(secure.metric(counted).await < 20.0);
    }
    let error = ringq(&format!("http://{grpc}"), &secure.files.ca).await.unwrap_err();
    assert!(error.contains("the server uses TLS; try https://\n  write https://"), "{error}");
}

#[tokio::test]
async fn clients_with_tls_are_recognized_where_there_is_none() {
    let Some(files) = Certificates::make() else { return };
    let server = Server::start().await;
    let error = ringq(&url(server.ports[0]), &files.ca).await.unwrap_err();
    assert!(error.contains("the server does not use TLS; try http://"), "{error}");
    let line = failure_line(&server, "grpc", "tls_is_off").await;
    assert!(line.contains("set tls_cert and tls_key"), "{line}");
    if let Some(called) = curl(server.ports[1], &[]).await {
        assert!(called.unwrap_err().contains("wrong version number"));
        failure_line(&server, "http", "tls_is_off").await;
    }
    if let Some(tool) = grpcurl().await {
        let info = format!("ringq.v1.{INFO}");
        let called = run(tool, &["-max-time", "3", &host(server.ports[0]), &info]).await;
        let error = outcome(&called.unwrap()).unwrap_err();
        assert!(error.contains("first record does not look like a TLS handshake"), "{error}");
    }
}

fn client_ca(file: &Path, auth: &str) -> String {
    format!("tls_client_ca = {file:?}\ntls_client_auth = {auth:?}")
}

#[tokio::test]
async fn a_required_certificate_is_required_on_both_ports() {
    let config = |files: &Certificates| format!("tls_client_ca = {:?}", files.ca);
    let Some(mut secure) = Secure::start(config).await else { return };
    let (grpc, http) = (secure.server.grpc, secure.server.http);
    let worker = secure.files.sign("worker", "URI:spiffe://example.org/worker", Valid::Days(1));
    let anonymous = std::mem::replace(&mut secure.client, secure.files.client(Some(&worker)));
    assert_eq!(secure.get("/healthz").await.0, 200);
    let (_front, client) = secure.grpc(&secure.client).await;
    client.enqueue(job("mail").with_id("a")).await;
    assert_eq!(client.pull_one("mail").await.id, "a");

    // In TLS 1.3 a client is ready before the server has looked at its certificate.
    let refusal = async |client: &TlsClient, address| {
        let mut socket = client.connect(address).await.unwrap();
        let read = within("the alert", socket.read(&mut [0; 1])).await;
        read.expect_err("an alert").to_string()
    };
    for (address, port) in [(grpc, "grpc"), (http, "http")] {
        let error = refusal(&anonymous, address).await;
        assert!(error.contains("CertificateRequired"), "{error}");
        let line = secure.failure(port, "no_certificate").await;
        assert!(line.contains("an authority in tls_client_ca signed"), "{line}");
    }
    let others = Certificates::make().unwrap();
    let foreign = others.sign("worker", "URI:spiffe://example.org/worker", Valid::Days(1));
    let error = refusal(&secure.files.client(Some(&foreign)), grpc).await;
    assert!(error.contains("UnknownCA"), "{error}");
    secure.failure("grpc", "unknown_authority").await;
    let expired = secure.files.sign("old", "DNS:old.example", Valid::In2020);
    let error = refusal(&secure.files.client(Some(&expired)), grpc).await;
    assert!(error.contains("CertificateExpired"), "{error}");
    let line = secure.failure("grpc", "expired_certificate").await;
    assert!(line.contains("renew it"), "{line}");

    let ca = secure.ca();
    let [cert, key] = [&worker.0, &worker.1].map(|path| path.to_str().unwrap());
    if let Some(tool) = grpcurl().await {
        let (host, info) = (host(grpc), format!("ringq.v1.{INFO}"));
        let with = run(&tool, &["-cacert", ca, "-cert", cert, "-key", key, &host, &info]).await;
        outcome(&with.unwrap()).unwrap();
        let without = run(&tool, &["-max-time", "3", "-cacert", ca, &host, &info]).await;
        let error = outcome(&without.unwrap()).unwrap_err();
        assert!(error.contains("certificate required"), "{error}");
    }
    if let Some(called) = python(&[&host(grpc), ca, cert, key]).await {
        called.unwrap();
    }
    for option in ["--http2", "--http1.1"] {
        let options = ["--cacert", ca, "--cert", cert, "--key", key, option];
        let Some(called) = curl(http, &options).await else { break };
        called.unwrap();
        let error = curl(http, &["--cacert", ca, option]).await.unwrap().unwrap_err();
        assert!(error.contains("certificate required"), "{error}");
    }
}

#[tokio::test]
async fn an_optional_certificate_may_be_missing_but_not_be_wrong() {
    let config = |files: &Certificates| client_ca(&files.ca, "optional");
    let Some(secure) = Secure::start(config).await else { return };
    assert_eq!(secure.get("/healthz").await.0, 200);
    let expired = secure.files.sign("old", "DNS:old.example", Valid::In2020);
    let mut socket = secure.files.client(Some(&expired)).connect(secure.server.http).await.unwrap();
    let error = within("the alert", socket.read(&mut [0; 1])).await.unwrap_err();
    assert!(error.to_string().contains("CertificateExpired"), "{error}");
    secure.failure("http", "expired_certificate").await;
}

/// Replaces a file as a whole.
fn replace(path: &Path, with: &Path) {
    let next = path.with_extension("next");
    fs::copy(with, &next).unwrap();
    fs::rename(next, path).unwrap();
}

const SERVER_EXPIRY: &str = r#"ringq_tls_certificate_expiry_seconds{file="server"}"#;
const RELOAD_FAILED: &str = "ringq_tls_reload_failed";
const DAY: f64 = 86_400.0;

#[tokio::test]
async fn changed_files_are_used_by_new_connections_and_broken_ones_are_not() {
    let config = |files: &Certificates| client_ca(&files.ca, "optional");
    let Some(mut secure) = Secure::start(config).await else { return };
    let (_front, old) = secure.grpc(&secure.client).await;
    let mut worker = old.stream(take("mail")).await;
    let (cert, key) = secure.files.sign("next", "DNS:localhost", Valid::Days(30));
    replace(&secure.files.cert, &cert);
    replace(&secure.files.key, &key);
    let days = async |secure: &Secure| secure.metric(SERVER_EXPIRY).await / DAY;
    eventually("the new certificate is in use", async || {
        (days(&secure).await > 29.0).then_some(())
    })
    .await;
    old.enqueue(job("mail").with_id("a")).await;
    assert_eq!(worker.next().await.id, "a", "old connections go on");

    let (expired, expired_key) = secure.files.sign("old", "DNS:localhost", Valid::In2020);
    for (cert, key, problem) in [
        (&expired, &expired_key, "has expired"),
        (&cert, &expired_key, "the key does not belong"),
        (&key, &key, "has no certificate"),
    ] {
        replace(&secure.files.cert, cert);
        replace(&secure.files.key, key);
        eventually(problem, async || secure.server.log().contains(problem).then_some(())).await;
        assert_eq!(secure.metric(RELOAD_FAILED).await, 1.0);
        assert!(days(&secure).await > 29.0, "the one before is in use");
    }
    let log = secure.server.log();
    let warned = log.lines().filter(|line| line.contains("WARN") && line.contains("tls files"));
    assert_eq!(warned.count(), 3, "one line each\n{log}");
    replace(&secure.files.cert, &cert);
    replace(&secure.files.key, &key);
    eventually("all is well", async || (secure.metric(RELOAD_FAILED).await == 0.0).then_some(()))
        .await;

    // Another authority of clients: the certificates of the old one are not accepted any more.
    let old_client = secure.files.sign("worker", "DNS:worker", Valid::Days(1));
    let old_client = secure.files.client(Some(&old_client));
    old_client.connect(secure.server.grpc).await.unwrap();
    let others = Certificates::make().unwrap();
    secure.client = secure.files.client(None);
    let grpc = secure.server.grpc;
    replace(&secure.files.ca, &others.ca);
    eventually("the new authority is in use", async || {
        let mut socket = old_client.connect(grpc).await.unwrap();
        let read = for_a_while(millis(200), socket.read(&mut [0; 1])).await?;
        read.is_err_and(|error| error.to_string().contains("UnknownCA")).then_some(())
    })
    .await;
    let still = old.get("mail", "a").await;
    assert_eq!(still.state(), JobState::Running);
}

/// A connection lives as long as a new one with its client certificate would be accepted: on both ports, with identities
/// and without.
#[tokio::test]
async fn connections_end_with_the_authority_of_their_client() {
    for identities in [
        "[[identity]]\nname = 'w'\ncertificates = ['spiffe://example.org/w']\nworker = ['*']\nviewer = ['*']\n",
        "",
    ] {
        let config = |files: &Certificates| {
            let file = files.dir().join("identities.toml");
            fs::write(&file, identities).unwrap();
            let line = format!("identities = {file:?}\n");
            let line = if identities.is_empty() { String::new() } else { line };
            line + &client_ca(&files.ca, "required")
        };
        let Some(mut secure) = Secure::start(config).await else { return };
        let certificate = secure.files.sign("w", "URI:spiffe://example.org/w", Valid::Days(1));
        secure.client = secure.files.client(Some(&certificate));
        let (_front, client) = secure.grpc(&secure.client).await;
        let mut worker = client.stream(take("mail")).await;
        let http = secure.server.http;
        let mut json = JsonClient::on(secure.client.connect(http).await.unwrap(), http).await;
        json.ok(INFO, &json!({})).await;
        let others = Certificates::make().unwrap();
        replace(&secure.files.ca, &others.ca);
        let ended = worker.any_end().await;
        assert!(ended.is_ok(), "it drains: {ended:?}");
        eventually("calls on the gRPC connection are refused", async || {
            let request = ringq::pb::GetServerInfoRequest {};
            client.admin.clone().get_server_info(request).await.err()
        })
        .await;
        eventually("the HTTP connection is closed, or refuses calls", async || {
            match json.begin(INFO, "{}".into(), &[]).await {
                Ok(answer) => (answer.status() == 401).then_some(()),
                Err(_) => Some(()),
            }
        })
        .await;
    }
}

/// Kubernetes mounts a Secret as links to links; a change is a swap of the one in the middle.
#[tokio::test]
async fn a_swapped_link_is_a_changed_file() {
    let Some(files) = Certificates::make() else { return };
    let dir = files.dir().join("mounted");
    let link = std::os::unix::fs::symlink::<PathBuf, PathBuf>;
    let version = |name: &str, (cert, key): &(PathBuf, PathBuf)| {
        fs::create_dir_all(dir.join(name)).unwrap();
        fs::copy(cert, dir.join(name).join("tls.crt")).unwrap();
        fs::copy(key, dir.join(name).join("tls.key")).unwrap();
        link(name.into(), dir.join("..data_tmp")).unwrap();
        fs::rename(dir.join("..data_tmp"), dir.join("..data")).unwrap();
    };
    version("..1", &(files.cert.clone(), files.key.clone()));
    for name in ["tls.crt", "tls.key"] {
        link(Path::new("..data").join(name), dir.join(name)).unwrap();
    }
    let config = ["cert", "key"].map(|kind| {
        let file = dir.join(if kind == "cert" { "tls.crt" } else { "tls.key" });
        format!("tls_{kind} = {file:?}")
    });
    let server = Setup::new().config(&config.join("\n")).start().await;
    let client = files.client(None);
    version("..2", &files.sign("next", "DNS:localhost", Valid::Days(30)));
    fs::remove_dir_all(dir.join("..1")).unwrap();
    let secure = Secure { files, server, client };
    eventually("the new certificate is in use", async || {
        (secure.metric(SERVER_EXPIRY).await > 29.0 * DAY).then_some(())
    })
    .await;
    assert_eq!(secure.metric(RELOAD_FAILED).await, 0.0);
}

#[tokio::test]
async fn a_handshake_that_never_ends_is_cut_and_delays_no_other() {
    let Some(secure) = Secure::start(|_| String::new()).await else { return };
    let begun = Instant::now();
    let mut stuck = Vec::new();
    for address in [secure.server.grpc, secure.server.http] {
        // The first bytes of a handshake with 512 bytes, or none at all.
        for sent in [&b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03"[..], b""].repeat(50) {
            let mut socket = TcpStream::connect(address).await.unwrap();
            socket.write_all(sent).await.unwrap();
            stuck.push(socket);
        }
    }
    let (_front, client) = secure.grpc(&secure.client).await;
    for _ in 0..5 {
        assert_eq!(secure.get("/healthz").await.0, 200);
        client.enqueue(job("mail")).await;
    }
    for mut socket in stuck {
        let end = within("its end", socket.read(&mut [0; 1])).await;
        assert!(matches!(end, Ok(0) | Err(_)), "{end:?}");
    }
    assert!(begun.elapsed() > millis(4_900), "{:?}", begun.elapsed());
    let counted = r#"ringq_tls_handshake_failures_total{port="grpc",reason="timeout"}"#;
    assert_eq!(secure.metric(counted).await, 100.0);
}

/// The third one takes the place of the first.
#[tokio::test]
async fn a_handshake_occupies_a_slot_from_its_beginning() {
    let config = |_: &Certificates| "max_connections = 2".to_owned();
    let Some(secure) = Secure::start(config).await else { return };
    let grpc = secure.server.grpc;
    let mut held = Vec::new();
    for _ in 0..3 {
        held.push(TcpStream::connect(grpc).await.unwrap());
    }
    let end = within("the end of the first", held[0].read(&mut [0; 1])).await;
    assert!(matches!(end, Ok(0) | Err(_)), "{end:?}");
    assert_eq!(
        secure.metric(r#"ringq_tls_handshake_failures_total{port="grpc",reason="timeout"}"#).await,
        0.0
    );
    secure.client.connect(grpc).await.unwrap();
}

#[tokio::test]
async fn connections_with_tls_drain_like_others() {
    let config = |_: &Certificates| "shutdown_grace = \"15s\"".to_owned();
    let Some(mut secure) = Secure::start(config).await else { return };
    let (_front, client) = secure.grpc(&secure.client).await;
    client.enqueue(job("slow").with_id("long")).await;
    let mut worker = client.stream(take("slow")).await;
    let held = worker.next().await;
    let mut silent = secure.client.connect(secure.server.grpc).await.unwrap();
    let half = TcpStream::connect(secure.server.grpc).await.unwrap();
    secure.server.terminate();
    worker.end().await;
    assert!(worker.messages.last().unwrap().draining, "the stream is notified");
    client.ack(&held.receipt).await;
    assert_eq!(secure.server.exit().await.code(), Some(0));
    let log = secure.server.log();
    assert!(log.contains("drained: every delivery is settled"), "{log}");
    let _ = within("its end", silent.read(&mut [0; 1])).await;
    drop(half);
}

#[tokio::test]
async fn files_that_cannot_be_used_prevent_the_start() {
    let Some(files) = Certificates::make() else { return };
    let (cert, key) = files.sign("old", "DNS:localhost", Valid::In2020);
    let failed =
        Setup::new().config(&format!("tls_cert = {cert:?}\ntls_key = {key:?}")).fail().await;
    let line = format!("tls_cert: {}: a certificate in it has expired", cert.display());
    assert!(failed.stderr.contains(&line), "{}", failed.stderr);
    let others = files.sign("other", "DNS:localhost", Valid::Days(1)).1;
    let config = format!("tls_cert = {:?}\ntls_key = {others:?}", files.cert);
    let failed = Setup::new().config(&config).fail().await;
    let line = format!("tls_key: {}: the key does not belong", others.display());
    assert!(failed.stderr.contains(&line), "{}", failed.stderr);
}

/// These tests again, on servers with TLS behind proxies that add it.
#[tokio::test]
async fn what_holds_without_tls_holds_with_it() {
    const THEMES: [&str; 4] = ["e2e::stream::", "e2e::settle::", "e2e::admin::", "e2e::enqueue::"];
    let mut tests = Command::new(std::env::current_exe().unwrap());
    // Beside the tests that run anyway.
    tests.env("RUST_TEST_THREADS", "2").env("RINGQ_TEST_TLS", "1").args(THEMES);
    let output = tests.kill_on_drop(true).output().await.unwrap();
    let text = text(&output);
    assert!(output.status.success(), "{text}");
    let passed = text.lines().filter(|line| line.ends_with("... ok")).count();
    assert!(passed >= 15, "{passed}");
}
