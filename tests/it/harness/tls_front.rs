//! Proxy that adds TLS, so that a client without it, and each test that has one, can use a server that requires it.

use std::net::SocketAddr;

use tokio::net::{TcpListener, TcpStream};
use tokio_util::task::AbortOnDropHandle;

use super::tls::TlsClient;

/// Listener whose connections are passed on to a server, encrypted. What ends here ends there.
pub(crate) struct TlsFront {
    pub(crate) address: SocketAddr,
    _serving: AbortOnDropHandle<()>,
}

// === impl TlsFront ===

impl TlsFront {
    /// Starts a proxy to this server.
    pub(crate) async fn start(server: SocketAddr, client: TlsClient) -> TlsFront {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let serve = async move {
            while let Ok((socket, _)) = listener.accept().await {
                tokio::spawn(pass_on(socket, server, client.clone()));
            }
        };
        TlsFront { address, _serving: AbortOnDropHandle::new(tokio::spawn(serve)) }
    }
}

async fn pass_on(mut socket: TcpStream, server: SocketAddr, client: TlsClient) {
    socket.set_nodelay(true).unwrap();
    // A server that is away has no connections; neither has its proxy.
    let Ok(mut tls) = client.connect(server).await else { return };
    tls.get_ref().0.set_nodelay(true).unwrap();
    let _ = tokio::io::copy_bidirectional(&mut socket, &mut tls).await;
}
