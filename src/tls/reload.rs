//! Certificates in use, and their replacement while the server runs.
//!
//! The contents of the files are compared once a second, so that every way of replacing them is noticed, the swap of a
//! symbolic link by Kubernetes, too. They are replaced as a whole, or not at all. Certificates of connected clients are
//! checked again when the files change, and when they expire.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::watch;
use tokio_rustls::rustls::ServerConfig;
use tokio_rustls::rustls::pki_types::UnixTime;
use tokio_rustls::rustls::server::danger::ClientCertVerifier;

use crate::clock::Clock;
use crate::domain::Time;
use crate::log_limiter::LogLimiter;
use crate::metrics::Metrics;

use super::TlsFiles;
use super::certificate::PeerCertificate;
use super::load::{LoadedTls, TlsDigest, TlsFileError, TlsTexts};
use super::protocols::PortProtocols;

/// Interval between two looks at the files.
const LOOK_EVERY: Duration = Duration::from_secs(1);
/// Number of looks in a row that find the same problem before it is reported: certificate and key are often written one
/// after the other.
const FAILED_LOOKS: u32 = 2;
/// Interval of the log line about a certificate in use that has expired.
const EXPIRED_LOG_EVERY: Duration = Duration::from_secs(3_600);

/// Certificates of this server. Cloning shares them.
#[derive(Clone)]
pub struct ServerTls(Arc<ServerTlsState>);

struct ServerTlsState {
    files: TlsFiles,
    clock: Clock,
    metrics: Metrics,
    in_use: watch::Sender<TlsInUse>,
    log: LogLimiter,
}

/// Files in use.
#[derive(Clone)]
struct TlsInUse {
    grpc: Arc<ServerConfig>,
    http: Arc<ServerConfig>,
    /// Check of client certificates.
    verifier: Arc<dyn ClientCertVerifier>,
    digest: TlsDigest,
    cert_end: Time,
    client_ca_end: Option<Time>,
}

/// Problem of the files, and the number of looks in a row that found it.
#[derive(Debug, Default)]
pub(super) struct FailedLooks {
    problem: String,
    count: u32,
}

// === impl ServerTls ===

impl ServerTls {
    /// Reads and checks the files.
    ///
    /// # Errors
    /// [`TlsFileError`], which names the setting, the file and the problem.
    pub async fn load(
        files: TlsFiles,
        clock: Clock,
        metrics: Metrics,
    ) -> Result<ServerTls, TlsFileError> {
        let texts = TlsTexts::read(&files).await?;
        let loaded = texts.load(&files, clock.now())?;
        let in_use = watch::Sender::new(TlsInUse::new(&loaded, texts.digest()));
        let log = LogLimiter::of_reminders(EXPIRED_LOG_EVERY);
        let tls = ServerTls(Arc::new(ServerTlsState { files, clock, metrics, in_use, log }));
        tls.show_expiry();
        Ok(tls)
    }

    /// Replaces the certificates in use whenever the files change; never ends.
    pub async fn follow_files(&self) {
        let mut failed = FailedLooks::default();
        loop {
            tokio::time::sleep(LOOK_EVERY).await;
            self.look(&mut failed).await;
        }
    }

    /// Compares the files with what is in use.
    pub(super) async fn look(&self, failed: &mut FailedLooks) {
        match self.changed().await {
            Ok(None) => self.files_are_used(failed),
            Ok(Some(new)) => {
                let valid_s = new.cert_end.since(self.0.clock.now()).as_secs();
                self.0.in_use.send_replace(new);
                tracing::info!(valid_s, "tls files have changed: new connections use them");
                self.files_are_used(failed);
            }
            Err(error) => self.files_are_not_used(&error, failed),
        }
        self.show_expiry();
    }

    /// Returns the contents of the files if they are not those in use.
    async fn changed(&self) -> Result<Option<TlsInUse>, TlsFileError> {
        let (in_use, now) = (self.in_use(), self.0.clock.now());
        let texts = TlsTexts::read(&self.0.files).await?;
        // Expired authorities are left out of what is loaded now.
        let has_expired_ca = in_use.client_ca_end.is_some_and(|end| end < now);
        if texts.digest() == in_use.digest && !has_expired_ca {
            return Ok(None);
        }
        let loaded = texts.load(&self.0.files, now)?;
        Ok(Some(TlsInUse::new(&loaded, texts.digest())))
    }

    fn files_are_used(&self, failed: &mut FailedLooks) {
        *failed = FailedLooks::default();
        self.0.metrics.set_tls_reload_failed(false);
    }

    fn files_are_not_used(&self, error: &TlsFileError, failed: &mut FailedLooks) {
        let problem = error.to_string();
        if failed.problem != problem {
            *failed = FailedLooks { problem, count: 0 };
        }
        failed.count = failed.count.saturating_add(1);
        if failed.count == FAILED_LOOKS {
            self.0.metrics.set_tls_reload_failed(true);
            tracing::warn!(
                error = failed.problem,
                "tls files have changed and cannot be used: the server goes on with those of before; correct the file, \
                 and it is loaded without a restart"
            );
        }
    }

    /// Updates the metrics, and logs a certificate in use that has expired.
    fn show_expiry(&self) {
        let (in_use, now) = (self.in_use(), self.0.clock.now());
        let ends = [("server", Some(in_use.cert_end)), ("client_ca", in_use.client_ca_end)];
        for (file, end) in ends {
            let Some(end) = end else { continue };
            let (left, over) = (end.since(now).as_secs_f64(), now.since(end).as_secs_f64());
            self.0.metrics.set_tls_expiry(file, left - over);
            if end < now
                && let Some(_permit) = self.0.log.allow(&[file])
            {
                tracing::warn!(file, "a tls certificate in use has expired: renew it");
            }
        }
    }

    fn in_use(&self) -> TlsInUse {
        self.0.in_use.borrow().clone()
    }

    /// Waits until a certificate would not be accepted from a new connection any more: it has expired, or the authorities
    /// have changed.
    pub(super) async fn until_invalid(&self, certificate: &PeerCertificate) {
        let mut in_use = self.0.in_use.subscribe();
        loop {
            let now = self.0.clock.now();
            if !in_use.borrow_and_update().accepts(certificate, now) {
                return;
            }
            let expired = async {
                match certificate.next_expiry(now) {
                    Some(end) => self.0.clock.sleep_until(end).await,
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                // Fails only without a sender, and this has one.
                _ = in_use.changed() => {}
                () = expired => {}
            }
        }
    }

    /// Returns the settings of a new connection.
    pub(super) fn config(&self, protocols: PortProtocols) -> Arc<ServerConfig> {
        let in_use = self.0.in_use.borrow();
        match protocols {
            PortProtocols::Grpc => Arc::clone(&in_use.grpc),
            PortProtocols::Http => Arc::clone(&in_use.http),
        }
    }
}

// === impl TlsInUse ===

impl TlsInUse {
    fn new(loaded: &LoadedTls, digest: TlsDigest) -> TlsInUse {
        TlsInUse {
            grpc: PortProtocols::Grpc.config(&loaded.config),
            http: PortProtocols::Http.config(&loaded.config),
            verifier: Arc::clone(&loaded.verifier),
            digest,
            cert_end: loaded.cert_end,
            client_ca_end: loaded.client_ca_end,
        }
    }

    /// Returns whether a new connection with this certificate would be accepted.
    fn accepts(&self, certificate: &PeerCertificate, now: Time) -> bool {
        let [client, authorities @ ..] = certificate.chain() else { return false };
        let now = UnixTime::since_unix_epoch(now.since(Time(0)));
        self.verifier.offer_client_auth()
            && self.verifier.verify_client_cert(client, authorities, now).is_ok()
    }
}
