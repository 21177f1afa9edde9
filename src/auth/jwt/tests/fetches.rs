//! Keys that are fetched: how often, and by which rules.

use std::collections::HashMap;
use std::convert::Infallible;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use bytes::Bytes;
use http::{Request, Response};
use http_body_util::Full;
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use parking_lot::Mutex;
use serde_json::json;
use tokio::net::TcpListener;
use tokio::sync::watch;
use tokio::time::{Instant, advance, sleep};
use tokio_util::task::AbortOnDropHandle;

use crate::backoff::BackoffRange;

use super::fetched_keys::{FetchIntervals, FetchedKeys};
use super::jwks_fetch::fetch;
use super::jwks_url::JwksUrl;
use super::*;

const SECOND: Duration = Duration::from_secs(1);
const INTERVALS: FetchIntervals = FetchIntervals {
    regular: Duration::from_secs(300),
    early: Duration::from_secs(10),
    retries: BackoffRange { min: SECOND, max: Duration::from_secs(60) },
};

/// Issuer whose answers a test sets, without a network.
#[derive(Clone)]
struct FakeIssuer {
    answer: Arc<Mutex<Result<Bytes, String>>>,
    fetches: Arc<AtomicUsize>,
    generation: Arc<watch::Sender<u64>>,
}

/// HTTP server on a loopback address that counts its requests.
struct JwksServer {
    address: SocketAddr,
    answer: Arc<Mutex<Response<Full<Bytes>>>>,
    requests: Arc<Mutex<Vec<HashMap<String, String>>>>,
    _serving: AbortOnDropHandle<()>,
}

// === impl FakeIssuer ===

impl FakeIssuer {
    fn new(answer: Result<String, &str>) -> FakeIssuer {
        let issuer = FakeIssuer {
            answer: Arc::new(Mutex::new(Ok(Bytes::new()))),
            fetches: Arc::default(),
            generation: Arc::new(watch::Sender::new(0)),
        };
        issuer.answers(answer);
        issuer
    }

    fn answers(&self, answer: Result<String, &str>) {
        *self.answer.lock() = answer.map(Bytes::from).map_err(str::to_owned);
    }

    async fn start(&self) -> FetchedKeys {
        let this = self.clone();
        let fetch = move || {
            this.fetches.fetch_add(1, Ordering::Relaxed);
            std::future::ready(this.answer.lock().clone())
        };
        let generation = Arc::clone(&self.generation);
        let keys = FetchedKeys::start_with("test".to_owned(), fetch, INTERVALS, generation);
        keys.tried().await;
        keys
    }

    fn fetches(&self) -> usize {
        self.fetches.load(Ordering::Relaxed)
    }

    fn generation(&self) -> u64 {
        *self.generation.borrow()
    }
}

fn text_of(key: &TestKey, kid: &str) -> Result<String, &'static str> {
    Ok(jwks(&[key.jwk(kid)]))
}

#[tokio::test(start_paused = true)]
async fn keys_are_fetched_regularly_and_only_a_change_counts() {
    let issuer = FakeIssuer::new(text_of(&TestKey::es256(), "a"));
    let keys = issuer.start().await;
    assert_eq!((keys.keys().unwrap().len(), issuer.generation()), (1, 1));
    sleep(3_010 * SECOND).await;
    assert_eq!(issuer.fetches(), 11);
    assert_eq!(issuer.generation(), 1, "the same keys");
    issuer.answers(Ok(jwks(&[TestKey::es256().jwk("a"), TestKey::es256().jwk("b")])));
    sleep(300 * SECOND).await;
    assert_eq!((keys.keys().unwrap().len(), issuer.generation()), (2, 2));
    drop(keys);
    sleep(3_000 * SECOND).await;
    assert_eq!(issuer.fetches(), 12, "the task has ended");
}

#[tokio::test(start_paused = true)]
async fn a_storm_of_unknown_keys_costs_a_fetch_every_ten_seconds() {
    let issuer = FakeIssuer::new(text_of(&TestKey::es256(), "a"));
    let keys = issuer.start().await;
    let mut temporary = 0;
    let begin = Instant::now();
    while begin.elapsed() < 100 * SECOND {
        for _ in 0..10 {
            temporary += usize::from(keys.may_be_outdated());
        }
        advance(SECOND / 10).await;
        tokio::task::yield_now().await;
    }
    assert!((10..=11).contains(&issuer.fetches()), "{}", issuer.fetches());
    assert!(temporary <= 11 * 20, "{temporary}");
    sleep(20 * SECOND).await;
    let after = issuer.fetches();
    sleep(250 * SECOND).await;
    assert_eq!(issuer.fetches(), after, "it is over");
}

#[tokio::test(start_paused = true)]
async fn a_key_that_is_not_known_may_be_new_unless_the_keys_were_just_fetched() {
    let issuer = FakeIssuer::new(text_of(&TestKey::es256(), "a"));
    let keys = issuer.start().await;
    sleep(9 * SECOND).await;
    assert!(!keys.may_be_outdated(), "they were fetched a moment ago");
    sleep(2 * SECOND).await;
    assert_eq!(issuer.fetches(), 2, "ten seconds after the one before");
    sleep(60 * SECOND).await;
    assert!(keys.may_be_outdated());
    sleep(SECOND / 10).await;
    assert_eq!(issuer.fetches(), 3);
    assert!(!keys.may_be_outdated(), "now it is certain");
}

#[tokio::test(start_paused = true)]
async fn keys_stay_in_use_while_fetches_fail() {
    let issuer = FakeIssuer::new(text_of(&TestKey::es256(), "a"));
    let keys = issuer.start().await;
    for broken in [Err("away"), Ok("{\"keys\":[]}".to_owned()), Ok("<html>".to_owned())] {
        issuer.answers(broken);
        sleep(24 * 3_600 * SECOND).await;
        assert_eq!((keys.keys().unwrap().len(), issuer.generation()), (1, 1));
        assert!(keys.may_be_outdated());
    }
    let before = issuer.fetches();
    sleep(3_600 * SECOND).await;
    let in_an_hour = issuer.fetches() - before;
    assert!((58..=125).contains(&in_an_hour), "{in_an_hour} retries");
    issuer.answers(text_of(&TestKey::es256(), "b"));
    sleep(60 * SECOND).await;
    assert_eq!(issuer.generation(), 2);
}

#[tokio::test(start_paused = true)]
async fn without_any_keys_it_is_retried_soon() {
    let issuer = FakeIssuer::new(Err("away"));
    let keys = issuer.start().await;
    assert!(keys.keys().is_none());
    sleep(3 * SECOND).await;
    assert!((3..=5).contains(&issuer.fetches()), "{}", issuer.fetches());
    issuer.answers(text_of(&TestKey::es256(), "a"));
    sleep(4 * SECOND).await;
    assert!(keys.keys().is_some());
}

// === impl JwksServer ===

impl JwksServer {
    async fn start() -> JwksServer {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let answer = Arc::new(Mutex::new(Response::new(Full::default())));
        let requests = Arc::new(Mutex::new(Vec::new()));
        let (answers, seen) = (Arc::clone(&answer), Arc::clone(&requests));
        let serve = async move {
            while let Ok((socket, _)) = listener.accept().await {
                let (answers, seen) = (Arc::clone(&answers), Arc::clone(&seen));
                let service = service_fn(move |request: Request<Incoming>| {
                    let headers = request.headers().iter();
                    let text = |value: &http::HeaderValue| value.to_str().unwrap().to_owned();
                    let mut headers: HashMap<_, _> =
                        headers.map(|(name, value)| (name.to_string(), text(value))).collect();
                    headers.insert("path".to_owned(), request.uri().to_string());
                    seen.lock().push(headers);
                    let answer = answers.lock().clone();
                    async move { Ok::<_, Infallible>(answer) }
                });
                let server = hyper::server::conn::http1::Builder::new();
                tokio::spawn(server.serve_connection(TokioIo::new(socket), service));
            }
        };
        let _serving = AbortOnDropHandle::new(tokio::spawn(serve));
        JwksServer { address, answer, requests, _serving }
    }

    fn url(&self) -> String {
        format!("http://{}/keys?a=b", self.address)
    }

    fn answers(&self, status: u16, text: &str) {
        let answer = Response::builder().status(status).header("location", self.url());
        *self.answer.lock() = answer.body(Full::from(text.to_owned())).unwrap();
    }

    fn count(&self) -> usize {
        self.requests.lock().len()
    }
}

#[tokio::test]
async fn only_a_plain_answer_of_the_right_size_is_taken() {
    let server = JwksServer::start().await;
    let directory = tempfile::tempdir().unwrap();
    let token_file = directory.path().join("token");
    write(&token_file, "abc\n");
    let url = JwksUrl::parse(&server.url(), None, Some(token_file.clone())).unwrap();
    server.answers(200, &"x".repeat(1 << 20));
    assert_eq!(fetch(&url).await.unwrap().len(), 1 << 20);
    let request = server.requests.lock().remove(0);
    assert_eq!(request["path"], "/keys?a=b");
    assert_eq!(request["host"], server.address.to_string());
    assert_eq!(request["authorization"], "Bearer abc");
    for (status, size, wanted) in [
        (200, (1 << 20) + 1, "the answer has more than 1048576 bytes"),
        (302, 0, "it was answered with a redirect (302 Found), which is not followed"),
        (401, 0, "it was answered with 401 Unauthorized; renew the token in jwks_token_file"),
        (403, 0, "it was answered with 403 Forbidden; give the account of the token"),
        (500, 0, "it was answered with 500 Internal Server Error"),
    ] {
        server.answers(status, &"x".repeat(size));
        let error = fetch(&url).await.unwrap_err();
        assert!(error.starts_with(wanted) && !error.contains("abc"), "{error}");
    }
    assert_eq!(server.count(), 5, "no redirect was followed");
    let open = JwksUrl::parse(&server.url(), None, None).unwrap();
    for status in [401, 403] {
        server.answers(status, "");
        let error = fetch(&open).await.unwrap_err();
        assert!(error.contains("; set jwks_token_file to a token that may read it"), "{error}");
    }
    write(&token_file, "a\nb");
    assert!(fetch(&url).await.unwrap_err().ends_with("token has no token in it"));
    std::fs::remove_file(&token_file).unwrap();
    assert!(fetch(&url).await.unwrap_err().starts_with("cannot read"));
    let closed = JwksUrl::parse("http://127.0.0.1:1/", None, None).unwrap();
    assert!(fetch(&closed).await.unwrap_err().starts_with("cannot connect to 127.0.0.1:1"));
    let text = format!("https://{}/", server.address);
    let plain = JwksUrl::parse(&text, None, None).unwrap();
    let error = fetch(&plain).await.unwrap_err();
    assert!(error.contains("TLS handshake failed") || error.contains("no certificates"), "{error}");
}

#[tokio::test]
async fn a_server_that_does_not_answer_ends_a_fetch_in_time() {
    let silent = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let text = format!("http://{}/", silent.local_addr().unwrap());
    let url = JwksUrl::parse(&text, None, None).unwrap();
    tokio::time::pause();
    assert_eq!(fetch(&url).await.unwrap_err(), "it was not answered within 5 s");
}

/// From the first fetch to a key that is replaced, with real requests.
#[tokio::test]
async fn a_server_recognizes_tokens_by_the_keys_at_a_url() {
    let (a, b) = (TestKey::es256(), TestKey::es256());
    let server = JwksServer::start().await;
    server.answers(503, "");
    let url = format!("jwks_url = '{}'", server.url());
    let world = World::new(&FILE.replace("jwks_file = 'jwks.json'", &url), &[]);
    world.authenticator.keys_tried().await;
    let (of_a, of_b) = (signed(&a, "a", json!({})), signed(&b, "b", json!({})));
    let not_fetched = JwtError::KeysNotFetched { issuer: "k".to_owned() };
    assert_eq!(world.refusal(&of_a), not_fetched);
    assert!(not_fetched.is_temporary());
    server.answers(200, &jwks(&[a.jwk("a")]));
    for _ in 0..500 {
        if world.call(&of_a).is_ok() {
            break;
        }
        sleep(SECOND / 100).await;
    }
    assert_eq!(world.call(&of_a), Ok("shop".to_owned()));
    // A storm of tokens that name unknown keys: each is refused at once, without a fetch.
    let before = server.count();
    for number in 0..1_000 {
        let error = world.refusal(&signed(&b, &format!("x{number}"), json!({})));
        assert!(matches!(error, JwtError::UnknownKey { .. }), "{error:?}");
    }
    assert!(matches!(world.refusal(&of_b), JwtError::UnknownKey { .. }));
    assert_eq!(server.count(), before);
    // The keys of the same URL are kept when the identities change.
    world.read_again();
    assert_eq!(world.call(&of_a), Ok("shop".to_owned()));
    assert_eq!(server.count(), before);
    // The storm has ordered one fetch, 10 s after the last one.
    server.answers(200, &jwks(&[b.jwk("b")]));
    for _ in 0..1_500 {
        if world.call(&of_b).is_ok() {
            break;
        }
        sleep(SECOND / 100).await;
    }
    assert_eq!(world.call(&of_b), Ok("shop".to_owned()), "the new key");
    assert!(matches!(world.refusal(&of_a), JwtError::UnknownKey { .. }), "the old key is gone");
    assert_eq!(server.count(), before + 1);
}
