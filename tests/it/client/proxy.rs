//! A TCP proxy whose connections a test can cut.

use std::net::SocketAddr;
use std::sync::{Arc, Mutex};

use tokio::io::copy_bidirectional;
use tokio::net::{TcpListener, TcpStream};
use tokio_util::sync::CancellationToken;

/// A proxy that serves until it is dropped.
pub(super) struct Proxy {
    pub(super) address: SocketAddr,
    /// Cancels the current connections.
    cut: Arc<Mutex<CancellationToken>>,
    all: CancellationToken,
}

impl Proxy {
    pub(super) async fn to(server: SocketAddr) -> Proxy {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let all = CancellationToken::new();
        let cut = Arc::new(Mutex::new(all.child_token()));
        let (current, end) = (Arc::clone(&cut), all.clone());
        tokio::spawn(end.run_until_cancelled_owned(async move {
            loop {
                let (mut client, _) = listener.accept().await.unwrap();
                let cut = current.lock().unwrap().clone();
                tokio::spawn(cut.run_until_cancelled_owned(async move {
                    // If the server is down, this connection ends, too.
                    if let Ok(mut server) = TcpStream::connect(server).await {
                        let _ = copy_bidirectional(&mut client, &mut server).await;
                    }
                }));
            }
        }));
        Proxy { address, cut, all }
    }

    /// Cuts all connections; new ones are served.
    pub(super) fn cut(&self) {
        let mut cut = self.cut.lock().unwrap();
        std::mem::replace(&mut *cut, self.all.child_token()).cancel();
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.all.cancel();
    }
}
