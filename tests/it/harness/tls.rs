//! Certificates of an authority that exists for one test. The unit tests use this file, too.

use std::fs;
use std::io;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Arc;

use tempfile::TempDir;
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;
use tokio_rustls::rustls::crypto::ring;
use tokio_rustls::rustls::pki_types::pem::PemObject as _;
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer};
use tokio_rustls::rustls::{ClientConfig, RootCertStore};

use super::in_ci;

/// An authority, and a certificate from it for `localhost`, which servers and clients can present.
pub(crate) struct Certificates {
    dir: TempDir,
    /// Certificate of the authority.
    pub(crate) ca: PathBuf,
    /// Certificate for `localhost`, not for its IP address.
    pub(crate) cert: PathBuf,
    /// Key of that certificate.
    pub(crate) key: PathBuf,
}

/// Client that trusts the authority, and takes every server for `localhost`.
#[derive(Clone)]
pub(crate) struct TlsClient(TlsConnector);

/// Time in which a certificate is valid.
#[derive(Clone, Copy)]
pub(crate) enum Valid {
    /// From now on for this number of days.
    #[allow(dead_code, reason = "some suites do not use it")]
    Days(u32),
    /// In the year 2020.
    #[allow(dead_code, reason = "some suites do not use it")]
    In2020,
    /// From the year 2090 on.
    #[allow(dead_code, reason = "some suites do not use it")]
    From2090,
}

/// Settings of `openssl ca`, by which certificates of any time can be signed.
const AUTHORITY: &str = "[ca]\ndefault_ca=a\n[a]\ndatabase=index.txt\nnew_certs_dir=.\nrand_serial=yes\n\
    unique_subject=no\ncertificate=ca.pem\nprivate_key=ca.key\ndefault_md=sha256\npolicy=p\n[p]\ncommonName=supplied\n";
/// Command that makes a key and something signed by it.
const NEW_KEY: &str = "req -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes";

// === impl Certificates ===

impl Certificates {
    /// Creates new ones; `None` when there is no openssl, which is printed, and is an error with CI=true.
    pub(crate) fn make() -> Option<Certificates> {
        let dir = tempfile::Builder::new().prefix("ringq-tls-").tempdir().unwrap();
        if let Err(error) = Command::new("openssl").arg("version").stdout(Stdio::null()).status() {
            assert!(!in_ci(), "openssl is required with CI=true: {error}");
            println!("skipped: there is no openssl ({error})");
            return None;
        }
        fs::write(dir.path().join("index.txt"), "").unwrap();
        fs::write(dir.path().join("authority"), AUTHORITY).unwrap();
        let [ca, cert, key] =
            ["ca.pem", "localhost.pem", "localhost.key"].map(|name| dir.path().join(name));
        let files = Certificates { dir, ca, cert, key };
        let name = files.dir.path().file_name().unwrap().to_str().unwrap();
        files.openssl(&format!(
            "{NEW_KEY} -x509 -keyout ca.key -out ca.pem -days 2 -subj /CN={name}"
        ));
        files.sign("localhost", "DNS:localhost", Valid::Days(2));
        Some(files)
    }

    /// Creates a key `NAME.key`, and a certificate `NAME.pem` with these alternative names, as in
    /// `DNS:localhost,IP:127.0.0.1`; returns the files.
    pub(crate) fn sign(&self, name: &str, names: &str, valid: Valid) -> (PathBuf, PathBuf) {
        self.request(name, &format!("subjectAltName={names}\n"));
        self.openssl(&format!(
            "ca -batch -notext -config authority -in {name}.csr -out {name}.pem -extfile {name}.ext {}",
            valid.options()
        ));
        (self.file(&format!("{name}.pem")), self.file(&format!("{name}.key")))
    }

    /// Creates an authority `NAME.pem` that signed itself; returns the file.
    #[allow(dead_code, reason = "some suites do not use it")]
    pub(crate) fn authority(&self, name: &str, valid: Valid) -> PathBuf {
        self.request(name, "basicConstraints=critical,CA:true\n");
        self.openssl(&format!(
            "ca -batch -notext -selfsign -config authority -keyfile {name}.key -in {name}.csr -out {name}.pem \
             -extfile {name}.ext {}",
            valid.options()
        ));
        self.file(&format!("{name}.pem"))
    }

    /// Returns a client, with a certificate and its key if they are given.
    pub(crate) fn client(&self, identity: Option<&(PathBuf, PathBuf)>) -> TlsClient {
        let mut roots = RootCertStore::empty();
        roots.add(CertificateDer::from_pem_file(&self.ca).unwrap()).unwrap();
        let config = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()))
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_root_certificates(roots);
        let config = match identity {
            None => config.with_no_client_auth(),
            Some((cert, key)) => {
                let cert = vec![CertificateDer::from_pem_file(cert).unwrap()];
                let key = PrivateKeyDer::from_pem_file(key).unwrap();
                config.with_client_auth_cert(cert, key).unwrap()
            }
        };
        TlsClient(TlsConnector::from(Arc::new(config)))
    }

    /// Returns the directory of the files.
    #[allow(dead_code, reason = "some suites do not use it")]
    pub(crate) fn dir(&self) -> &Path {
        self.dir.path()
    }

    fn request(&self, name: &str, extensions: &str) {
        fs::write(self.file(&format!("{name}.ext")), extensions).unwrap();
        self.openssl(&format!("{NEW_KEY} -keyout {name}.key -out {name}.csr -subj /CN={name}"));
    }

    fn file(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    fn openssl(&self, arguments: &str) {
        let mut openssl = Command::new("openssl");
        openssl.args(arguments.split(' ')).current_dir(self.dir.path()).stdin(Stdio::null());
        let done = openssl.output().unwrap();
        assert!(done.status.success(), "openssl {arguments}: {done:?}");
    }
}

// === impl TlsClient ===

impl TlsClient {
    /// Connects to a server.
    pub(crate) async fn connect(&self, server: SocketAddr) -> io::Result<TlsStream<TcpStream>> {
        self.connect_on(TcpStream::connect(server).await?).await
    }

    /// Runs the handshake on this socket.
    pub(crate) async fn connect_on(&self, socket: TcpStream) -> io::Result<TlsStream<TcpStream>> {
        self.0.connect("localhost".try_into().unwrap(), socket).await
    }
}

// === impl Valid ===

impl Valid {
    fn options(self) -> String {
        match self {
            Valid::Days(days) => format!("-days {days}"),
            Valid::In2020 => "-startdate 20200101000000Z -enddate 20210101000000Z".to_owned(),
            Valid::From2090 => "-startdate 20900101000000Z -enddate 20910101000000Z".to_owned(),
        }
    }
}
