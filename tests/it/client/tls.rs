//! TLS and tokens of the library.

use std::path::Path;
use std::time::Duration;

use ringq::client::{Client, Error, Options, Worker};
use ringq::pb::JobSpec;
use tonic::Code;

use super::Running;
use super::fake::Script;
use super::guarded::Guarded;
use crate::harness::{Certificates, Server, TlsProxy, Valid, eventually, within};

/// Enqueues a job, once.
async fn enqueue(client: &Client) -> Result<(), Error> {
    let producer = client.producer().repeat_for(Duration::ZERO);
    within("the answer", producer.enqueue(JobSpec::new("t"))).await.map(drop)
}

/// Returns the error of a call with these options.
async fn failure(url: &str, options: Options) -> String {
    let error = enqueue(&Client::with_options(url, options).unwrap()).await.unwrap_err();
    assert!(error.is_unavailable() && !error.outcome_unknown(), "{error:?}");
    error.message().to_owned()
}

fn trusting(ca: &Path) -> Options {
    Options::default().ca_file(ca)
}

#[tokio::test]
async fn a_server_is_trusted_by_its_authority_and_its_name() {
    let Some(files) = Certificates::make() else { return };
    let server = Server::start().await;
    let proxy = TlsProxy::start(server.grpc, (&files.cert, &files.key), None).await;
    enqueue(&Client::with_options(proxy.url(), trusting(&files.ca)).unwrap()).await.unwrap();
    let pem = Options::default().ca(std::fs::read(&files.ca).unwrap());
    enqueue(&Client::with_options(proxy.url(), pem).unwrap()).await.unwrap();
    let other = Certificates::make().unwrap();
    let unknown = "TLS failed: the server's certificate is not signed by a trusted authority";
    for options in [Options::default(), trusting(&other.ca)] {
        assert_eq!(failure(&proxy.url(), options).await, unknown);
    }
    let by_address = format!("https://127.0.0.1:{}", proxy.port);
    let name = failure(&by_address, trusting(&files.ca)).await;
    let want = "TLS failed: the server's certificate is not for 127.0.0.1; it is for localhost";
    assert_eq!(name, want);
    let (cert, key) = files.sign("old", "DNS:localhost", Valid::In2020);
    let old = TlsProxy::start(server.grpc, (&cert, &key), None).await;
    let expired = failure(&old.url(), trusting(&files.ca)).await;
    let begin = "TLS failed: the server's certificate has expired, ";
    assert!(expired.starts_with(begin) && expired.ends_with(" days ago"), "{expired}");
    let (cert, key) = files.sign("new", "DNS:localhost", Valid::From2090);
    let new = TlsProxy::start(server.grpc, (&cert, &key), None).await;
    let future = failure(&new.url(), trusting(&files.ca)).await;
    assert_eq!(future, "TLS failed: the server's certificate is not valid yet");
    let no_http2 = "TLS failed: the server does not offer HTTP/2";
    for protocol in [None, Some("http/1.1")] {
        let certificate = (&*files.cert, &*files.key);
        let web = TlsProxy::with_protocol(server.grpc, certificate, protocol).await;
        assert_eq!(failure(&web.url(), trusting(&files.ca)).await, no_http2, "{protocol:?}");
    }
    let plain = failure(&format!("https://{}", server.grpc), trusting(&files.ca)).await;
    assert_eq!(plain, "TLS failed: the server does not use TLS; try http://");
    let mixed = failure(&format!("http://localhost:{}", proxy.port), Options::default()).await;
    assert_eq!(mixed, "the server uses TLS; try https://");
}

/// The server's refusal arrives after the client has sent its call. However the two meet, it is reported.
#[tokio::test]
async fn a_server_that_wants_a_certificate_gets_one() {
    let Some(files) = Certificates::make() else { return };
    let server = Server::start().await;
    let certificate = (&*files.cert, &*files.key);
    let proxy = TlsProxy::start(server.grpc, certificate, Some(&files.ca)).await;
    let with_own = trusting(&files.ca).identity_files(&files.cert, &files.key);
    enqueue(&Client::with_options(proxy.url(), with_own).unwrap()).await.unwrap();
    let other = Certificates::make().unwrap();
    let (old, old_key) = files.sign("old", "DNS:localhost", Valid::In2020);
    for _ in 0..30 {
        let missing = failure(&proxy.url(), trusting(&files.ca)).await;
        assert_eq!(missing, "TLS failed: the server requires a client certificate");
        let unknown = trusting(&files.ca).identity_files(&other.cert, &other.key);
        let unknown = failure(&proxy.url(), unknown).await;
        let rejected = "TLS failed: the server rejected the client certificate: ";
        assert!(unknown.starts_with(rejected), "{unknown}");
        let expired = trusting(&files.ca).identity_files(&old, &old_key);
        let expired = failure(&proxy.url(), expired).await;
        assert_eq!(expired, format!("{rejected}it has expired, or is not valid yet"));
    }
    let both = format!("{},{}", proxy.url(), proxy.url());
    let several = failure(&both, trusting(&files.ca)).await;
    assert_eq!(several.matches("the server requires a client certificate").count(), 2, "{several}");
}

#[tokio::test]
async fn files_that_cannot_be_used_are_found_before_any_call() {
    let Some(files) = Certificates::make() else { return };
    let dir = tempfile::tempdir().unwrap();
    let nothing = dir.path().join("nothing");
    let empty = dir.path().join("empty");
    std::fs::write(&empty, "").unwrap();
    let other = Certificates::make().unwrap();
    let (ca, cert, key) = (&files.ca, &files.cert, &files.key);
    let options = Options::default;
    for (options, field, part) in [
        (options().ca_file(&nothing), "ca", "cannot be read: no such file"),
        (options().ca_file(&empty), "ca", "has no certificate in PEM form"),
        (options().ca_file(key), "ca", "has no certificate in PEM form"),
        (options().ca("garbage"), "ca", "has no certificate in PEM form"),
        (options().identity_files(&nothing, key), "cert", "cannot be read: no such file"),
        (options().identity_files(key, key), "cert", "has no certificate in PEM form"),
        (options().identity_files(cert, cert), "key", "has no unencrypted private key"),
        (options().ca_file(ca).identity_files(cert, &other.key), "key", "does not belong to"),
        (options().token_file(&nothing), "token_file", "cannot be read: no such file"),
        (options().token_file(&empty), "token_file", "is empty"),
        (options().token("a b"), "token", "has spaces"),
    ] {
        let error = Client::with_options("https://localhost:1", options).unwrap_err();
        assert_eq!((error.code(), error.field()), (Code::InvalidArgument, Some(field)), "{error}");
        assert!(error.message().contains(part), "{part}: {error}");
        assert!(!error.message().contains("BEGIN"), "{error}");
    }
    let plain = Client::with_options("http://queue:7700", options().token("t")).unwrap_err();
    assert_eq!(plain.field(), Some("allow_plaintext_token"));
    let some = "https://queue:7700,http://queue:7700";
    assert!(Client::with_options(some, options().token("t")).is_err(), "one is without TLS");
}

/// A rotated token is used by the next call; one that cannot be read is named by the error that follows from it.
#[tokio::test]
async fn a_token_file_is_followed() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("token");
    // As kubelet does: a link is moved to a new file.
    let rotate = |token: &str| {
        let (file, link) = (dir.path().join(token), dir.path().join("link"));
        std::fs::write(&file, format!("{token}\n")).unwrap();
        std::os::unix::fs::symlink(&file, &link).unwrap();
        std::fs::rename(&link, &path).unwrap();
    };
    for servers in 1..=2 {
        rotate("one");
        let guarded = Guarded::start("one").await;
        let urls = vec![format!("http://{}", guarded.address); servers].join(",");
        let client = Client::with_options(urls, Options::default().token_file(&path)).unwrap();
        enqueue(&client).await.unwrap();
        guarded.accept("three");
        rotate("three");
        enqueue(&client).await.unwrap();
        assert_eq!(guarded.seen(), ["one", "three"].map(|token| Some(format!("Bearer {token}"))));
        std::fs::remove_file(&path).unwrap();
        enqueue(&client).await.unwrap();
        guarded.accept("four");
        let error = enqueue(&client).await.unwrap_err();
        assert_eq!(error.code(), Code::Unauthenticated);
        let want = format!(
            "the token is not known; the token file {path:?} cannot be read: no such file or directory"
        );
        assert_eq!(error.message(), want);
        rotate("four");
        enqueue(&client).await.unwrap();
        assert!(!format!("{client:?}").contains("four"), "{client:?}");
    }
}

/// A token that expires before its successor is there stops no worker, but one that never worked does.
#[tokio::test]
async fn a_worker_outlives_its_token() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("token");
    std::fs::write(&path, "one").unwrap();
    // Each stream ends, and the next one needs the token again.
    let script = Script { leaving: true, ..Script::default() };
    let guarded = Guarded::scripted("one", script).await;
    let url = format!("http://{}", guarded.address);
    let options = Options::default().token_file(&path);
    let client = Client::with_options(&url, options).unwrap();
    let worker = Running::start(Worker::new(client, ["t"]), |_| async {});
    let streams = &guarded.fake.0.streams;
    streams.reaches(1).await;
    guarded.accept("two");
    guarded.seen();
    eventually("the old token is refused", async || (!guarded.seen().is_empty()).then_some(()))
        .await;
    let before = streams.get();
    std::fs::write(&path, "two").unwrap();
    streams.reaches(before + 1).await;
    worker.stop().await;
    let options = Options::default().token("one");
    let client = Client::with_options(&url, options).unwrap();
    let never = Worker::new(client, ["t"]).run(|_| async {}, std::future::pending());
    let error = within("the refusal", never).await.unwrap_err();
    assert_eq!((error.code(), error.message()), (Code::Unauthenticated, "the token is not known"));
}
