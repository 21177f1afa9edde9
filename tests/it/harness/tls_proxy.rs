//! A proxy that ends TLS before a server without it.

use std::fs::File;
use std::io::BufReader;
use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;

use tokio::io::copy_bidirectional;
use tokio::net::{TcpListener, TcpStream};
use tokio_rustls::TlsAcceptor;
use tokio_rustls::rustls::crypto::ring;
use tokio_rustls::rustls::pki_types::pem::PemObject as _;
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer};
use tokio_rustls::rustls::server::WebPkiClientVerifier;
use tokio_rustls::rustls::{RootCertStore, ServerConfig};
use tokio_util::task::AbortOnDropHandle;

/// A running proxy.
pub(crate) struct TlsProxy {
    pub(crate) port: u16,
    _accepting: AbortOnDropHandle<()>,
}

// === impl TlsProxy ===

impl TlsProxy {
    /// Starts a proxy with this certificate. With `client_ca`, clients have to present one of that authority.
    pub(crate) async fn start(
        server: SocketAddr,
        (cert, key): (&Path, &Path),
        client_ca: Option<&Path>,
    ) -> TlsProxy {
        TlsProxy::serve(server, config(cert, key, client_ca)).await
    }

    /// Starts a proxy that offers this protocol in place of HTTP/2, or none.
    pub(crate) async fn with_protocol(
        server: SocketAddr,
        (cert, key): (&Path, &Path),
        protocol: Option<&str>,
    ) -> TlsProxy {
        let mut config = config(cert, key, None);
        config.alpn_protocols = protocol.into_iter().map(|name| name.as_bytes().to_vec()).collect();
        TlsProxy::serve(server, config).await
    }

    async fn serve(server: SocketAddr, config: ServerConfig) -> TlsProxy {
        let acceptor = TlsAcceptor::from(Arc::new(config));
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = listener.local_addr().unwrap().port();
        let accepting = AbortOnDropHandle::new(tokio::spawn(async move {
            while let Ok((client, _)) = listener.accept().await {
                tokio::spawn(pass(acceptor.clone(), client, server));
            }
        }));
        TlsProxy { port, _accepting: accepting }
    }

    /// Returns its URL with a host that its certificate has.
    pub(crate) fn url(&self) -> String {
        format!("https://localhost:{}", self.port)
    }
}

async fn pass(acceptor: TlsAcceptor, client: TcpStream, server: SocketAddr) {
    let Ok(mut client) = acceptor.accept(client).await else { return };
    let mut server = TcpStream::connect(server).await.unwrap();
    let _ = copy_bidirectional(&mut client, &mut server).await;
}

fn config(cert: &Path, key: &Path, client_ca: Option<&Path>) -> ServerConfig {
    let provider = Arc::new(ring::default_provider());
    let builder = ServerConfig::builder_with_provider(Arc::clone(&provider));
    let builder = builder.with_safe_default_protocol_versions().unwrap();
    let builder = match client_ca {
        Some(ca) => {
            let mut roots = RootCertStore::empty();
            roots.add_parsable_certificates(certificates(ca));
            let roots = Arc::new(roots);
            let verifier = WebPkiClientVerifier::builder_with_provider(roots, provider);
            builder.with_client_cert_verifier(verifier.build().unwrap())
        }
        None => builder.with_no_client_auth(),
    };
    let key = PrivateKeyDer::from_pem_file(key).unwrap();
    let mut config = builder.with_single_cert(certificates(cert), key).unwrap();
    config.alpn_protocols = vec![b"h2".to_vec()];
    config
}

fn certificates(path: &Path) -> Vec<CertificateDer<'static>> {
    let file = BufReader::new(File::open(path).unwrap());
    CertificateDer::pem_reader_iter(file).map(Result::unwrap).collect()
}
