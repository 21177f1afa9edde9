//! A server that accepts one token.

use std::collections::HashMap;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex};

use ringq::pb::queue_service_server::QueueServiceServer;
use tokio::net::TcpListener;
use tonic::transport::server::TcpIncoming;
use tonic::{Code, Request, Status};
use tonic_types::{ErrorDetails, StatusExt as _};

use super::fake::{Fake, Script};

/// A running server, until the test ends.
pub(crate) struct Guarded {
    pub(crate) address: SocketAddr,
    pub(super) fake: Fake,
    /// The accepted token.
    accepted: Arc<Mutex<String>>,
    /// Headers `authorization` of all calls.
    seen: Arc<Mutex<Vec<Option<String>>>>,
}

// === impl Guarded ===

impl Guarded {
    /// Starts a server. Tokens other than this one are refused; `viewer` has no rights.
    pub(crate) async fn start(token: &str) -> Guarded {
        Guarded::scripted(token, Script::default()).await
    }

    pub(super) async fn scripted(token: &str, script: Script) -> Guarded {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let accepted = Arc::new(Mutex::new(token.to_owned()));
        let seen = Arc::new(Mutex::new(Vec::new()));
        let (wanted, log) = (Arc::clone(&accepted), Arc::clone(&seen));
        let check = move |request: Request<()>| {
            let header = request.metadata().get("authorization");
            let header = header.map(|header| header.to_str().unwrap().to_owned());
            log.lock().unwrap().push(header.clone());
            match header {
                None => Err(unauthenticated("the call has no token")),
                Some(header) if header == "Bearer viewer" => {
                    Err(Status::permission_denied("viewer may not call Enqueue"))
                }
                Some(header) if header == format!("Bearer {}", wanted.lock().unwrap()) => {
                    Ok(request)
                }
                Some(_) => Err(unauthenticated("the token is not known")),
            }
        };
        let fake = Fake(Arc::new(script));
        let service = QueueServiceServer::with_interceptor(fake.clone(), check);
        let server = tonic::transport::Server::builder().add_service(service);
        tokio::spawn(server.serve_with_incoming(TcpIncoming::from(listener)));
        Guarded { address, fake, accepted, seen }
    }

    /// Changes the accepted token.
    pub(crate) fn accept(&self, token: &str) {
        token.clone_into(&mut self.accepted.lock().unwrap());
    }

    /// Returns the headers of the calls since the last time.
    pub(crate) fn seen(&self) -> Vec<Option<String>> {
        std::mem::take(&mut *self.seen.lock().unwrap())
    }
}

fn unauthenticated(message: &str) -> Status {
    let details = ErrorDetails::with_error_info("UNAUTHENTICATED", "ringq.dev", HashMap::new());
    Status::with_error_details(Code::Unauthenticated, message, details)
}
