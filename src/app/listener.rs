//! Socket that is bound early, so that its address is known and an address in use is reported at once.

use std::net::SocketAddr;

use tokio::net::TcpListener;

use super::Error;

/// Listener and its address.
#[derive(Debug)]
pub(super) struct BoundListener {
    pub(super) socket: TcpListener,
    pub(super) address: SocketAddr,
}

// === impl BoundListener ===

impl BoundListener {
    /// Binds `address`, which the flag called `flag` sets.
    pub(super) async fn bind(
        address: SocketAddr,
        flag: &'static str,
    ) -> Result<BoundListener, Error> {
        let bind = async {
            let socket = TcpListener::bind(address).await?;
            let address = socket.local_addr()?;
            Ok(BoundListener { socket, address })
        };
        bind.await.map_err(|error| Error::Listen { address, flag, error })
    }
}
