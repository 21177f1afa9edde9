//! Certificates of an authority that exists for one test.

use std::fs;
use std::path::PathBuf;
use std::process::{Command, Stdio};

use tempfile::TempDir;

use super::in_ci;

/// An authority, and a certificate from it for `localhost`, which servers and clients can present.
pub(crate) struct Certificates {
    _dir: TempDir,
    /// Certificate of the authority.
    pub(crate) ca: PathBuf,
    /// Certificate for `localhost`, not for its IP address.
    pub(crate) cert: PathBuf,
    /// Key of that certificate.
    pub(crate) key: PathBuf,
}

// === impl Certificates ===

impl Certificates {
    /// Creates new ones; `None` when there is no openssl, which is printed, and is an error with CI=true.
    pub(crate) fn make() -> Option<Certificates> {
        let dir = tempfile::Builder::new().prefix("ringq-tls-").tempdir().unwrap();
        fs::write(dir.path().join("ext"), "subjectAltName=DNS:localhost\n").unwrap();
        let steps = [
            "req -x509 -newkey rsa:2048 -nodes -keyout ca.key -out ca.pem -days 2 -subj /CN=test-ca",
            "req -newkey rsa:2048 -nodes -keyout key.pem -out csr.pem -subj /CN=localhost",
            "x509 -req -in csr.pem -CA ca.pem -CAkey ca.key -CAcreateserial -days 2 -extfile ext -out cert.pem",
        ];
        for step in steps {
            let mut openssl = Command::new("openssl");
            openssl.args(step.split(' ')).current_dir(dir.path()).stdin(Stdio::null());
            match openssl.output() {
                Ok(done) => assert!(done.status.success(), "openssl {step}: {done:?}"),
                Err(error) => {
                    assert!(!in_ci(), "openssl is required with CI=true: {error}");
                    println!("skipped: there is no openssl ({error})");
                    return None;
                }
            }
        }
        let [ca, cert, key] = ["ca.pem", "cert.pem", "key.pem"].map(|name| dir.path().join(name));
        Some(Certificates { _dir: dir, ca, cert, key })
    }
}
