use std::collections::BTreeMap;
use std::io::Write as _;
use std::net::SocketAddr;
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use ringq::pb::{AckItem, AckRequest};
use serde_json::json;
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpSocket};
use tokio_rustls::TlsAcceptor;
use tokio_rustls::rustls::ServerConfig;
use tokio_rustls::rustls::crypto::ring;
use tokio_rustls::rustls::pki_types::pem::PemObject as _;
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer};
use tokio_util::task::AbortOnDropHandle;
use tonic::{Code, Request, Status};
use tonic_types::StatusExt as _;

use crate::harness::{
    Certificates, Client, JsonAnswer, JsonClient, Server, Setup, assert_refused, eventually,
    free_port, in_ci, job, millis, request, take, wall_now, within,
};

/// Issuer of a cluster of Kubernetes.
const ISS: &str = "https://kubernetes.default.svc.cluster.local";
/// Token with which the server reads the keys of the cluster.
const READER: &str = "token-of-the-server";
const ENQUEUE: &str = "QueueService/Enqueue";

/// Cluster of Kubernetes, as far as tokens go: an RSA key, and tokens that openssl signs with it.
struct Cluster {
    dir: tempfile::TempDir,
}

/// API server, as far as keys go.
struct KeyServer {
    /// Requests so far: their first line and their `authorization`.
    requests: Arc<Mutex<Vec<(String, String)>>>,
    _serving: AbortOnDropHandle<()>,
}

fn openssl(arguments: &str, input: &[u8], dir: &Path) -> Option<Vec<u8>> {
    let mut command = Command::new("openssl");
    command.args(arguments.split(' ')).current_dir(dir);
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = match command.spawn() {
        Ok(child) => child,
        Err(error) => {
            assert!(!in_ci(), "openssl is required with CI=true: {error}");
            println!("skipped: there is no openssl ({error})");
            return None;
        }
    };
    child.stdin.take().unwrap().write_all(input).unwrap();
    let done = child.wait_with_output().unwrap();
    assert!(done.status.success(), "openssl {arguments}: {done:?}");
    Some(done.stdout)
}

fn encode(part: impl AsRef<[u8]>) -> String {
    URL_SAFE_NO_PAD.encode(part)
}

// === impl Cluster ===

impl Cluster {
    /// Creates one; `None` when there is no openssl.
    fn new() -> Option<Cluster> {
        let dir = tempfile::Builder::new().prefix("ringq-jwt-").tempdir().unwrap();
        let make = "genpkey -quiet -algorithm RSA -pkeyopt rsa_keygen_bits:2048 -out key.pem";
        openssl(make, b"", dir.path())?;
        Some(Cluster { dir })
    }

    fn jwks(&self) -> String {
        let printed = openssl("rsa -in key.pem -noout -modulus", b"", self.dir.path()).unwrap();
        let printed = String::from_utf8(printed).unwrap();
        let digits = printed.trim().strip_prefix("Modulus=").unwrap().as_bytes();
        let byte = |pair| u8::from_str_radix(std::str::from_utf8(pair).unwrap(), 16).unwrap();
        let modulus: Vec<u8> = digits.chunks(2).map(byte).collect();
        let key = json!({
            "use": "sig", "kty": "RSA", "kid": "c1", "alg": "RS256", "n": encode(modulus), "e": "AQAB",
        });
        json!({ "keys": [key] }).to_string()
    }

    /// Returns a projected token of a ServiceAccount for these audiences, which lives for `life`.
    fn token(&self, account: &str, audiences: &[&str], life: Duration) -> String {
        let now = wall_now().as_secs();
        let (namespace, name) = account.split_once(':').unwrap();
        let claims = json!({
            "aud": audiences,
            "exp": now + life.as_secs(),
            "iat": now,
            "iss": ISS,
            "jti": "6f1d2b44-9c0f-4e2b-8a53-6f0a3d6a8f10",
            "kubernetes.io": {
                "namespace": namespace,
                "node": { "name": "node-1", "uid": "0b9f2f0c-2a61-4c1c-9c62-3f5f3d9a7c11" },
                "pod": { "name": format!("{name}-0"), "uid": "2c5a3b2e-7b35-4a0c-8df4-0f6e1ad0b6aa" },
                "serviceaccount": { "name": name, "uid": "9e0f7d5c-3c1e-4f3b-bb0b-7f6f4a2f5d77" },
                "warnafter": now + 3_607,
            },
            "nbf": now,
            "sub": format!("system:serviceaccount:{account}"),
        });
        let header = json!({ "alg": "RS256", "kid": "c1" });
        let message = format!("{}.{}", encode(header.to_string()), encode(claims.to_string()));
        let sign = "dgst -sha256 -sign key.pem";
        let signature = openssl(sign, message.as_bytes(), self.dir.path()).unwrap();
        format!("{message}.{}", encode(signature))
    }
}

// === impl KeyServer ===

impl KeyServer {
    /// Serves the keys at `/openid/v1/jwks`, to the holder of [`READER`] alone; with a certificate, over TLS.
    fn start(
        listener: TcpListener,
        jwks: String,
        certificates: Option<&Certificates>,
    ) -> KeyServer {
        let tls = certificates.map(|files| {
            let chain = CertificateDer::pem_file_iter(&files.cert).unwrap();
            let chain = chain.collect::<Result<Vec<_>, _>>().unwrap();
            let key = PrivateKeyDer::from_pem_file(&files.key).unwrap();
            let config = ServerConfig::builder_with_provider(Arc::new(ring::default_provider()));
            let config = config.with_safe_default_protocol_versions().unwrap();
            let config = config.with_no_client_auth().with_single_cert(chain, key).unwrap();
            TlsAcceptor::from(Arc::new(config))
        });
        let requests = Arc::new(Mutex::new(Vec::new()));
        let seen = Arc::clone(&requests);
        let serve = async move {
            while let Ok((socket, _)) = listener.accept().await {
                let (tls, seen, jwks) = (tls.clone(), Arc::clone(&seen), jwks.clone());
                tokio::spawn(async move {
                    match tls {
                        None => answer(socket, &jwks, &seen).await,
                        Some(tls) => match tls.accept(socket).await {
                            Ok(socket) => answer(socket, &jwks, &seen).await,
                            Err(error) => println!("key server: {error}"),
                        },
                    }
                });
            }
        };
        KeyServer { requests, _serving: AbortOnDropHandle::new(tokio::spawn(serve)) }
    }
}

async fn answer(
    mut socket: impl AsyncRead + AsyncWrite + Unpin,
    jwks: &str,
    seen: &Mutex<Vec<(String, String)>>,
) {
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        let Ok(byte) = socket.read_u8().await else { return };
        head.push(byte);
    }
    let head = String::from_utf8(head).unwrap();
    let mut lines = head.lines();
    let first = lines.next().unwrap().to_owned();
    let headers: BTreeMap<_, _> = lines.filter_map(|line| line.split_once(": ")).collect();
    let authorization = headers.get("authorization").map_or("", |value| value);
    let is_allowed =
        first == "GET /openid/v1/jwks HTTP/1.1" && authorization == format!("Bearer {READER}");
    let (status, body) = if is_allowed { ("200 OK", jwks) } else { ("403 Forbidden", "no") };
    seen.lock().unwrap().push((first, authorization.to_owned()));
    let length = body.len();
    let answer = format!("HTTP/1.1 {status}\r\ncontent-length: {length}\r\n\r\n{body}");
    let _ = socket.write_all(answer.as_bytes()).await;
    let _ = socket.shutdown().await;
}

/// Writes the identities of a server whose keys are at `url`, and returns the line of the configuration.
fn identities(setup: &Setup, url: &str, more: &str) -> String {
    let path = setup.dir().join("identities.toml");
    let text = format!(
        "[[issuer]]\nname = 'cluster'\nissuer = '{ISS}'\naudiences = ['ringq']\njwks_url = '{url}'\n\
         jwks_token_file = 'token'\nleeway = '0s'\n{more}\n\
         [[identity]]\nname = 'shop-api'\nproducer = ['shop.*']\nworker = ['shop.*']\n\
         jwt = [{{ issuer = 'cluster', subject = 'system:serviceaccount:shop:api' }}]\n"
    );
    std::fs::write(&path, text).unwrap();
    std::fs::write(setup.dir().join("token"), format!("{READER}\n")).unwrap();
    format!("identities = {path:?}")
}

fn with_token<T>(message: T, token: &str) -> Request<T> {
    let mut request = Request::new(message);
    request.metadata_mut().insert("authorization", format!("Bearer {token}").parse().unwrap());
    request
}

async fn enqueue(client: &Client, topic: &str, token: &str) -> Result<String, Status> {
    let enqueued = client.queue.clone().enqueue(with_token(request(job(topic)), token)).await?;
    Ok(enqueued.into_inner().id)
}

async fn enqueue_json(server: &Server, token: &str) -> JsonAnswer {
    let authorization = format!("Bearer {token}");
    let text = json!({ "job": { "topic": "shop.orders" } }).to_string();
    let mut client = JsonClient::connect(server.http).await;
    client.send(ENQUEUE, text, &[("authorization", &authorization)]).await
}

fn message(answer: &JsonAnswer) -> &str {
    answer.body["message"].as_str().unwrap_or_default()
}

#[tokio::test]
async fn a_service_account_of_kubernetes_is_an_identity() {
    let (Some(cluster), Some(certificates)) = (Cluster::new(), Certificates::make()) else {
        return;
    };
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("https://localhost:{}/openid/v1/jwks", listener.local_addr().unwrap().port());
    let api = KeyServer::start(listener, cluster.jwks(), Some(&certificates));
    let setup = Setup::new();
    let line = identities(&setup, &url, &format!("jwks_ca = {:?}", certificates.ca));
    let server = setup.config(&line).start().await;
    let client = server.connect().await;
    let hour = Duration::from_secs(3_600);

    let token = cluster.token("shop:api", &["https://other", "ringq"], hour);
    enqueue(&client, "shop.orders", &token).await.unwrap();
    let denied = enqueue(&client, "bank.orders", &token).await.unwrap_err();
    assert_refused(&denied, Code::PermissionDenied, "PERMISSION_DENIED", "");
    let answer = enqueue_json(&server, &token).await;
    assert_eq!(answer.status, 200, "{answer:?}");

    let default = cluster.token("shop:api", &[ISS], hour);
    let other = cluster.token("shop:other", &["ringq"], hour);
    let signature = |token: &str| token.rsplit_once('.').unwrap().1.to_owned();
    let forged = token.replace(&signature(&token), &signature(&other));
    for (token, text) in [
        (
            &default,
            "the JSON Web Token is for another audience; request one for the audience \"ringq\"",
        ),
        (
            &other,
            "no identity has the subject \"system:serviceaccount:shop:other\" of the issuer cluster",
        ),
        (&forged, "is not that of the issuer cluster"),
    ] {
        let refused = enqueue(&client, "shop.orders", token).await.unwrap_err();
        assert_refused(&refused, Code::Unauthenticated, "UNAUTHENTICATED", "");
        assert!(refused.message().contains(text), "{}", refused.message());
        let answer = enqueue_json(&server, token).await;
        assert_eq!((answer.status, message(&answer).contains(text)), (401, true), "{answer:?}");
    }

    let requests = api.requests.lock().unwrap().clone();
    assert_eq!(requests.len(), 1, "verified without another fetch: {requests:?}");
    let log = server.log();
    for token in [&token, &default, &other, &forged, &READER.to_owned()] {
        for part in token.split('.').filter(|part| part.len() > 8) {
            assert!(!log.contains(part), "a part of a token is logged: {log}");
        }
    }
}

#[tokio::test]
async fn a_stream_ends_with_the_token_that_opened_it() {
    let Some(cluster) = Cluster::new() else { return };
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}/openid/v1/jwks", listener.local_addr().unwrap());
    let _api = KeyServer::start(listener, cluster.jwks(), None);
    let setup = Setup::new();
    let line = identities(&setup, &url, "");
    let server = setup.config(&line).start().await;
    let client = server.connect().await;

    let short = cluster.token("shop:api", &["ringq"], Duration::from_secs(4));
    let expires = Duration::from_secs(wall_now().as_secs() + 4);
    enqueue(&client, "shop.orders", &short).await.unwrap();
    let request = take("shop.orders");
    let opened = client.queue.clone().stream(with_token(request.clone(), &short)).await;
    let mut stream = opened.unwrap().into_inner();
    let (mut receipts, mut is_draining) = (Vec::new(), false);
    while let Some(message) = within("a message or the end", stream.message()).await.unwrap() {
        receipts.extend(message.deliveries.into_iter().map(|delivery| delivery.receipt));
        is_draining |= message.draining;
    }
    assert!(is_draining, "the worker is notified that it has to open another one");
    // The token was made up to a second before `expires` was computed.
    assert!(wall_now() + millis(1_000) >= expires, "it ended too early");
    assert_eq!(receipts.len(), 1);

    let refused = client.queue.clone().stream(with_token(request, &short)).await.unwrap_err();
    assert_refused(&refused, Code::Unauthenticated, "UNAUTHENTICATED", "");
    assert!(refused.message().starts_with("the JSON Web Token expired "), "{}", refused.message());
    let fresh = cluster.token("shop:api", &["ringq"], Duration::from_secs(600));
    let item = AckItem { receipt: receipts.remove(0), ..Default::default() };
    let ack = AckRequest { items: vec![item] };
    let acked = client.queue.clone().ack(with_token(ack, &fresh)).await.unwrap();
    assert_eq!(acked.into_inner().failures, [], "the job is still its own");
}

#[tokio::test]
async fn while_keys_cannot_be_fetched_calls_are_to_be_retried() {
    let Some(cluster) = Cluster::new() else { return };
    let address = SocketAddr::from(([127, 0, 0, 1], free_port()));
    let setup = Setup::new();
    let line = identities(&setup, &format!("http://{address}/openid/v1/jwks"), "");
    let server = setup.config(&line).start().await;
    let client = server.connect().await;
    let token = cluster.token("shop:api", &["ringq"], Duration::from_secs(600));

    let refused = enqueue(&client, "shop.orders", &token).await.unwrap_err();
    assert_refused(&refused, Code::Unavailable, "KEYS_UNAVAILABLE", "");
    assert!(refused.get_details_retry_info().is_some_and(|info| info.retry_delay.is_some()));
    assert!(!refused.message().contains(&address.to_string()), "{}", refused.message());
    let answer = enqueue_json(&server, &token).await;
    assert_eq!(answer.status, 503, "{answer:?}");
    assert!(answer.headers.contains_key("retry-after"), "{answer:?}");
    let log = server.log();
    assert!(log.contains("keys for JSON Web Tokens not fetched"), "{log}");

    let socket = TcpSocket::new_v4().unwrap();
    socket.set_reuseaddr(true).unwrap();
    socket.bind(address).unwrap();
    let _api = KeyServer::start(socket.listen(16).unwrap(), cluster.jwks(), None);
    eventually("the keys are fetched", async || enqueue(&client, "shop.orders", &token).await.ok())
        .await;
}
