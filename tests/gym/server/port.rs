//! Port under the control of a script: it can be closed, refuse connections, and cut them.

use std::future::Future;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::{Arc, Mutex};

use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

use super::Server;
use crate::free_port::free_port;

/// Serves one connection.
type Serve = Arc<dyn Fn(TcpStream, Arc<Server>, CancellationToken) -> Connection + Send + Sync>;
type Connection = Pin<Box<dyn Future<Output = ()> + Send>>;

/// Treatment of new connections.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum PortMode {
    Serve,
    /// Each is accepted and closed at once.
    Drop,
}

/// Port and its connections.
pub(crate) struct Port {
    server: Arc<Server>,
    serve: Serve,
    address: SocketAddr,
    /// Parent of the tokens that close connections.
    connections: Arc<Mutex<CancellationToken>>,
    accepting: Mutex<Option<JoinHandle<()>>>,
}

// === impl Port ===

impl Port {
    pub(super) async fn open<F>(
        server: Arc<Server>,
        serve: impl Fn(TcpStream, Arc<Server>, CancellationToken) -> F + Send + Sync + 'static,
    ) -> std::io::Result<Port>
    where
        F: Future<Output = ()> + Send + 'static,
    {
        let listener = TcpListener::bind(("127.0.0.1", free_port())).await?;
        let port = Port {
            server,
            serve: Arc::new(move |socket, server, close| Box::pin(serve(socket, server, close))),
            address: listener.local_addr()?,
            connections: Arc::default(),
            accepting: Mutex::default(),
        };
        port.accept(listener, PortMode::Serve);
        Ok(port)
    }

    pub(crate) fn address(&self) -> SocketAddr {
        self.address
    }

    /// Cuts all connections: their sockets are closed at once, in the middle of calls.
    pub(crate) fn cut(&self) {
        std::mem::take(&mut *self.connections.lock().unwrap()).cancel();
    }

    /// Closes the port and cuts all connections.
    pub(crate) async fn close(&self) {
        let accepting = self.accepting.lock().unwrap().take();
        if let Some(accepting) = accepting {
            accepting.abort();
            // The listener is dropped once its task has ended.
            let _ = accepting.await;
        }
        self.cut();
    }

    /// Opens the port again.
    pub(crate) async fn reopen(&self, mode: PortMode) -> std::io::Result<()> {
        self.close().await;
        self.accept(TcpListener::bind(self.address).await?, mode);
        Ok(())
    }

    fn accept(&self, listener: TcpListener, mode: PortMode) {
        let (server, serve) = (Arc::clone(&self.server), Arc::clone(&self.serve));
        let connections = Arc::clone(&self.connections);
        let accepting = async move {
            while let Ok((socket, _)) = listener.accept().await {
                server.record.write(|log, now| log.connects.push(now));
                if mode == PortMode::Drop {
                    continue;
                }
                let _ = socket.set_nodelay(true);
                let close = connections.lock().unwrap().child_token();
                tokio::spawn(serve(socket, Arc::clone(&server), close));
            }
        };
        *self.accepting.lock().unwrap() = Some(tokio::spawn(accepting));
    }
}
