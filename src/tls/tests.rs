//! Tests of files, their replacement, and names; certificates are made by openssl. The ports are tested with a server, in
//! `tests/it/e2e/tls.rs`.

use std::fs;
use std::path::Path;
use std::sync::Arc;

use tokio_rustls::rustls::pki_types::CertificateDer;
use tokio_rustls::rustls::pki_types::pem::PemObject as _;

use super::certificate::CertificateValidity;
use super::load::TlsTexts;
use super::protocols::PortProtocols;
use super::reload::FailedLooks;
use super::*;
use crate::clock::{Clock, ManualClock};
use crate::metrics::Metrics;

#[path = "../../tests/it/harness/tls.rs"]
mod certificates;

pub(crate) use certificates::{Certificates, Valid};

#[expect(clippy::disallowed_methods, reason = "a switch of the tests")]
fn in_ci() -> bool {
    std::env::var("CI").is_ok_and(|ci| ci == "true")
}

impl Certificates {
    /// Returns the settings of a server that presents the certificate for `localhost`.
    pub(crate) fn server(&self, auth: Option<ClientAuth>) -> TlsFiles {
        let client_ca = auth.map(|auth| ClientCa { file: self.ca.clone(), auth });
        TlsFiles { cert: self.cert.clone(), key: self.key.clone(), client_ca }
    }
}

/// Returns the error of these files.
async fn refused(files: &TlsFiles) -> String {
    let loaded = match TlsTexts::read(files).await {
        Ok(texts) => texts.load(files, Clock::system().now()).map(drop),
        Err(error) => Err(error),
    };
    loaded.expect_err("the files cannot be used").to_string()
}

#[tokio::test]
async fn errors_name_the_setting_the_file_and_the_problem() {
    let Some(made) = Certificates::make() else { return };
    let good = made.server(None);
    let path = |name: &str, text: &str| {
        let path = made.dir().join(name);
        fs::write(&path, text).unwrap();
        path
    };
    let key_text = fs::read_to_string(&made.key).unwrap();
    let broken = key_text.replacen('\n', "", 1);
    let missing = made.dir().join("missing");
    let (expired, expired_key) = made.sign("old", "DNS:localhost", Valid::In2020);
    let (future, future_key) = made.sign("new", "DNS:localhost", Valid::From2090);
    let (_, other_key) = made.sign("other", "DNS:localhost", Valid::Days(2));
    let ca = |file| Some(ClientCa { file, auth: ClientAuth::Required });
    for (files, part) in [
        (
            TlsFiles { cert: missing.clone(), ..good.clone() },
            "tls_cert: FILE/missing: there is no such file",
        ),
        (
            TlsFiles { key: made.dir().into(), ..good.clone() },
            "tls_key: FILE: cannot be read: is a directory",
        ),
        (
            TlsFiles { cert: path("empty", ""), ..good.clone() },
            "tls_cert: FILE/empty: has no certificate",
        ),
        (
            TlsFiles { cert: made.key.clone(), ..good.clone() },
            "tls_cert: FILE/localhost.key: has no certificate",
        ),
        (
            TlsFiles { key: made.cert.clone(), ..good.clone() },
            "tls_key: FILE/localhost.pem: has no private key",
        ),
        (
            TlsFiles { key: path("broken", &broken), ..good.clone() },
            "tls_key: FILE/broken: has no private key",
        ),
        (
            TlsFiles { key: other_key, ..good.clone() },
            "tls_key: FILE/other.key: the key does not belong to",
        ),
        (
            TlsFiles { cert: expired, key: expired_key, client_ca: None },
            "tls_cert: FILE/old.pem: a certificate in it has expired (valid from 2020-01-01T00:00:00Z to 2021",
        ),
        (
            TlsFiles { cert: future, key: future_key, client_ca: None },
            "tls_cert: FILE/new.pem: a certificate in it is not valid yet",
        ),
        (TlsFiles { client_ca: ca(missing), ..good.clone() }, "tls_client_ca: FILE/missing: "),
        (
            TlsFiles { client_ca: ca(made.authority("old-ca", Valid::In2020)), ..good.clone() },
            "tls_client_ca: FILE/old-ca.pem: a certificate in it has expired",
        ),
    ] {
        let error = refused(&files).await.replace(&made.dir().display().to_string(), "FILE");
        assert!(error.starts_with(part), "{error}\n{part}");
        let secret = key_text.lines().nth(1).unwrap();
        assert!(!error.contains(&secret[..16]), "{error}");
    }
}

#[tokio::test]
async fn an_expired_authority_beside_a_valid_one_is_left_out() {
    let Some(made) = Certificates::make() else { return };
    let old = made.authority("old-ca", Valid::In2020);
    let both = [fs::read(&old).unwrap(), fs::read(&made.ca).unwrap()].concat();
    fs::write(&old, both).unwrap();
    let client_ca = Some(ClientCa { file: old, auth: ClientAuth::Required });
    let files = TlsFiles { client_ca, ..made.server(None) };
    let now = Clock::system().now();
    let loaded = TlsTexts::read(&files).await.unwrap().load(&files, now).unwrap();
    assert!(loaded.client_ca_end.is_some_and(|end| end > now));
}

fn first_certificate(path: &Path) -> CertificateDer<'static> {
    CertificateDer::from_pem_file(path).unwrap()
}

#[test]
fn the_names_of_a_certificate_are_its_dns_names_and_uris() {
    let Some(made) = Certificates::make() else { return };
    let names =
        "DNS:worker.example,URI:spiffe://example.org/worker,IP:10.0.0.1,DNS:*.example,email:a@b";
    // A name of the other kind proves nothing: an authority may be limited to one of them.
    let crossed = "DNS:spiffe://example.org/admin,URI:admin.example,URI:urn:admin";
    let (cert, _) = made.sign("worker", &format!("{names},{crossed}"), Valid::Days(2));
    let read = |file: &Path| PeerCertificate::read(&[first_certificate(file)]).unwrap();
    let (worker, authority) = (read(&cert), read(&made.ca));
    assert_eq!(worker.dns, ["worker.example", "*.example"]);
    let all: Vec<_> = worker.names().collect();
    assert_eq!(all, ["spiffe://example.org/worker", "worker.example", "*.example"]);
    assert_eq!(authority.names().count(), 0);
    assert!(PeerCertificate::read(&[vec![48, 3, 1].into()]).is_err());
}

/// Certificates in use, and all that a test looks at.
struct Reloads {
    tls: ServerTls,
    clock: ManualClock,
    metrics: Metrics,
    failed: FailedLooks,
}

impl Reloads {
    async fn start(files: TlsFiles) -> Reloads {
        let clock = ManualClock::new(Clock::system().now());
        let metrics = Metrics::new();
        let tls = ServerTls::load(files, Clock::Manual(clock.clone()), metrics.clone());
        Reloads { tls: tls.await.unwrap(), clock, metrics, failed: FailedLooks::default() }
    }

    /// Looks at the files; returns whether what is in use was replaced.
    async fn look(&mut self) -> bool {
        // A certificate that has just been made is valid from now on.
        self.clock.set(self.clock.now().max(Clock::system().now()));
        let before = self.tls.config(PortProtocols::Grpc);
        self.tls.look(&mut self.failed).await;
        !Arc::ptr_eq(&before, &self.tls.config(PortProtocols::Grpc))
    }

    fn metric(&self, name: &str) -> f64 {
        let text = self.metrics.render();
        let line = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
        line.unwrap_or_else(|| panic!("no {name} in\n{text}")).parse().unwrap()
    }
}

const SERVER_EXPIRY: &str = r#"ringq_tls_certificate_expiry_seconds{file="server"}"#;
const CA_EXPIRY: &str = r#"ringq_tls_certificate_expiry_seconds{file="client_ca"}"#;
const FAILED: &str = "ringq_tls_reload_failed";
const DAY: f64 = 86_400.0;

#[tokio::test]
async fn changed_files_are_used_and_unusable_ones_are_not() {
    let Some(made) = Certificates::make() else { return };
    let files = made.server(Some(ClientAuth::Required));
    let mut reloads = Reloads::start(files.clone()).await;
    assert!((1.9 * DAY..=2.0 * DAY).contains(&reloads.metric(SERVER_EXPIRY)));
    assert!((1.9 * DAY..=2.0 * DAY).contains(&reloads.metric(CA_EXPIRY)));
    assert!(!reloads.look().await, "nothing has changed");

    let (cert, key) = made.sign("next", "DNS:localhost", Valid::Days(30));
    fs::copy(&cert, &files.cert).unwrap();
    assert!(!reloads.look().await, "the key belongs to the old certificate");
    assert_eq!(reloads.metric(FAILED), 0.0, "the key may be on its way");
    assert!(!reloads.look().await);
    assert_eq!(reloads.metric(FAILED), 1.0);
    assert!(reloads.metric(SERVER_EXPIRY) <= 2.0 * DAY, "the old one is in use");
    fs::copy(&key, &files.key).unwrap();
    assert!(reloads.look().await);
    assert_eq!(reloads.metric(FAILED), 0.0);
    assert!((29.9 * DAY..=30.0 * DAY).contains(&reloads.metric(SERVER_EXPIRY)));

    let (expired, expired_key) = made.sign("old", "DNS:localhost", Valid::In2020);
    for (cert, key) in [(&expired, &expired_key), (&key, &key)] {
        fs::copy(cert, &files.cert).unwrap();
        fs::copy(key, &files.key).unwrap();
        assert!([reloads.look().await, reloads.look().await] == [false; 2]);
        assert_eq!(reloads.metric(FAILED), 1.0);
    }
    fs::remove_file(&files.cert).unwrap();
    assert!([reloads.look().await, reloads.look().await] == [false; 2]);
    assert!(reloads.metric(SERVER_EXPIRY) > 29.0 * DAY);
    fs::copy(&cert, &files.cert).unwrap();
    fs::copy(&key, &files.key).unwrap();
    assert!(!reloads.look().await, "it is the one in use");
    assert_eq!(reloads.metric(FAILED), 0.0);

    fs::copy(made.authority("next-ca", Valid::Days(9)), &made.ca).unwrap();
    assert!(reloads.look().await);
    assert!((8.9 * DAY..=9.0 * DAY).contains(&reloads.metric(CA_EXPIRY)));
}

#[tokio::test]
async fn the_age_of_what_is_in_use_is_shown_and_an_authority_that_expires_is_left_out() {
    let Some(made) = Certificates::make() else { return };
    let next = made.authority("next-ca", Valid::Days(9));
    let both = [fs::read(&made.ca).unwrap(), fs::read(&next).unwrap()].concat();
    fs::write(&made.ca, both).unwrap();
    let (cert, key) = made.sign("long", "DNS:localhost", Valid::Days(5));
    let files = TlsFiles { cert: cert.clone(), key, ..made.server(Some(ClientAuth::Optional)) };
    let mut reloads = Reloads::start(files).await;
    assert!(reloads.metric(CA_EXPIRY) <= 2.0 * DAY, "the first one that expires");
    let day = std::time::Duration::from_secs(86_400);
    reloads.clock.advance(3 * day);
    assert!(reloads.look().await, "without the expired one");
    assert!((5.9 * DAY..=6.0 * DAY).contains(&reloads.metric(CA_EXPIRY)));
    reloads.clock.advance(3 * day);
    assert!(!reloads.look().await);
    assert!((-1.1 * DAY..-0.9 * DAY).contains(&reloads.metric(SERVER_EXPIRY)));
    let validity = CertificateValidity::read(&first_certificate(&cert)).unwrap();
    assert!(validity.begin() < validity.end());
}

/// The proof of a client lasts as long as a new connection with it would be accepted.
#[tokio::test]
async fn a_client_certificate_ends_when_it_expires_or_its_authority_is_replaced() {
    use futures::FutureExt as _;

    let Some(made) = Certificates::make() else { return };
    let (cert, _) = made.sign("worker", "DNS:worker.example", Valid::Days(1));
    let client = PeerCertificate::read(&[first_certificate(&cert)]).unwrap();
    let mut reloads = Reloads::start(made.server(Some(ClientAuth::Optional))).await;
    let tls = reloads.tls.clone();
    let mut invalid = Box::pin(tls.until_invalid(&client));
    assert!((&mut invalid).now_or_never().is_none());
    let (old, next) = (fs::read(&made.ca).unwrap(), made.authority("next-ca", Valid::Days(9)));
    let next = fs::read(next).unwrap();
    fs::write(&made.ca, [&next[..], &old].concat()).unwrap();
    assert!(reloads.look().await);
    assert!((&mut invalid).now_or_never().is_none(), "another authority came beside");
    fs::write(&made.ca, &next).unwrap();
    assert!(reloads.look().await);
    assert!(invalid.now_or_never().is_some(), "its authority is gone");

    fs::write(&made.ca, &old).unwrap();
    assert!(reloads.look().await);
    let mut invalid = Box::pin(tls.until_invalid(&client));
    assert!((&mut invalid).now_or_never().is_none(), "it is accepted again");
    let hour = std::time::Duration::from_secs(3_600);
    reloads.clock.advance(23 * hour);
    assert!((&mut invalid).now_or_never().is_none());
    reloads.clock.advance(2 * hour);
    assert!(invalid.now_or_never().is_some(), "it has expired");
}
