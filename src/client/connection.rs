//! Connection to a server, or to several.

use std::sync::Arc;
use std::time::Duration;

use tonic::Response;
use tonic::transport::Endpoint;

use super::limits::MESSAGE_BYTES_MAX;
use super::servers::{self, AnsweringServer, CONNECT_TIMEOUT, Connection, ServerPool};
use super::tls::TlsFiles;
use super::transport::Transport;
use super::{Error, Options, Producer, write_coalescing};
use crate::pb::admin_service_client::AdminServiceClient;
use crate::pb::queue_service_client::QueueServiceClient;
use crate::pb::topic_service_client::TopicServiceClient;

/// HTTP/2 window that lets a batch of the largest size through without a pause.
const WINDOW_BYTES: u32 = 4 << 20;
/// Window of all streams together: a few that are not read must not hold up the answers of calls.
const CONNECTION_WINDOW_BYTES: u32 = 8 * WINDOW_BYTES;

/// Connection to a server: made at the first call, made again when it broke. Clones share it.
///
/// **Several servers** that share their shards are named by several URLs, separated by commas. The clients of a process
/// spread over them; a client uses one server as long as that accepts work. A call that was surely not executed,
/// because no connection could be made or the server drains, goes to the next server at once. A server that does not
/// answer costs the first call 0.25 s; later calls do not wait for it, and it is tried again with pauses of up to 10 s.
/// A connection that is silent for 10 s counts as broken. When no server can be reached, a call fails with an error
/// that names each of them, after at most 5 s and 0.25 s for each server.
#[derive(Clone, Debug)]
pub struct Client {
    transport: Transport,
    url: Arc<str>,
}

// === impl Client ===

impl Client {
    /// Creates a connection to `url`, `http://host:port` or `https://host:port`; to several servers with their URLs
    /// separated by commas, `http://a:7700,http://b:7700`. With `https` the server's certificate must be valid for the
    /// host of the URL and signed by an authority of [`Options::ca`], or else by one that the system trusts.
    ///
    /// # Errors
    /// Fails for an invalid URL, which the error names, without trying to connect.
    ///
    /// # Panics
    /// Panics outside of a tokio runtime: the connection is a task there, and ends with it.
    pub fn new(url: impl Into<String>) -> Result<Client, Error> {
        Client::with_options(url, Options::default())
    }

    /// Creates a connection as [`Client::new`] does, with options.
    ///
    /// # Errors
    /// Fails for an invalid URL, a file of the options that cannot be read or used, and for a token that would go to a
    /// server without encryption ([`Options::allow_plaintext_token`]). [`Error::field`] names the option.
    ///
    /// # Panics
    /// Panics outside of a tokio runtime.
    pub fn with_options(url: impl Into<String>, options: Options) -> Result<Client, Error> {
        let url = url.into();
        // Before the URL is taken apart, so that no part of a password is in an error.
        if url.contains('@') {
            let text = "a server URL has no user and no password: prove the client by a token or a certificate";
            return Err(Error::usage("server", text));
        }
        let urls: Vec<&str> = url.split(',').map(str::trim).collect();
        let tls = options.tls_files()?;
        let endpoint = |url: &str, keep_alive| {
            let endpoint = endpoint(url, keep_alive, &tls)?;
            options.check_server(url, endpoint.uri())?;
            Ok(endpoint)
        };
        let connection = if let [url] = urls[..] {
            let connector = write_coalescing::connector(CONNECT_TIMEOUT);
            Connection::One(
                endpoint(url, servers::KEEP_ALIVE)?.connect_with_connector_lazy(connector),
            )
        } else {
            if urls.contains(&"") {
                let example = "http://127.0.0.1:7700,http://127.0.0.1:7710";
                let error =
                    format!("`{url}` has an empty entry; servers are named as in {example}");
                return Err(Error::usage("server", error));
            }
            let server = |url: &&str| {
                endpoint(url, servers::KEEP_ALIVE).map(|endpoint| ((*url).to_owned(), endpoint))
            };
            let servers: Result<_, Error> = urls.iter().map(server).collect();
            Connection::Several(ServerPool::new(servers?))
        };
        let transport = Transport::new(connection, options.credentials()?);
        Ok(Client { transport, url: urls.join(", ").into() })
    }

    /// Returns the URL of the server; of several servers all URLs, separated by a comma and a space.
    #[must_use]
    pub fn url(&self) -> &str {
        &self.url
    }

    /// Returns whether the client was created with several URLs.
    pub(crate) fn has_several_servers(&self) -> bool {
        self.url.contains(", ")
    }

    /// Returns the URL of the server that gave this answer.
    #[must_use]
    pub fn server_of<'a, T>(&'a self, answer: &'a Response<T>) -> &'a str {
        answer.extensions().get().map_or(&*self.url, AnsweringServer::url)
    }

    /// Returns the generated client for producers and workers.
    #[must_use]
    pub fn queue(&self) -> QueueServiceClient<Transport> {
        // A single job that is larger than a message usually is comes alone in its own.
        QueueServiceClient::new(self.transport.clone()).max_decoding_message_size(MESSAGE_BYTES_MAX)
    }

    /// Returns the generated client for topics.
    #[must_use]
    pub fn topics(&self) -> TopicServiceClient<Transport> {
        TopicServiceClient::new(self.transport.clone())
    }

    /// Returns the generated client for operators.
    #[must_use]
    pub fn admin(&self) -> AdminServiceClient<Transport> {
        AdminServiceClient::new(self.transport.clone())
    }

    /// Creates a producer on this connection.
    #[must_use]
    pub fn producer(&self) -> Producer {
        Producer::new(self.clone())
    }
}

/// Checks the URL of a server; returns the options of connections to it, with this interval of pings.
fn endpoint(url: &str, keep_alive: Duration, tls: &TlsFiles) -> Result<Endpoint, Error> {
    // What follows the host may be a secret.
    let begin = url.find("://").map_or(0, |scheme| scheme + "://".len());
    let end = url[begin..].find(['/', '?', '#']).map_or(url.len(), |end| begin + end);
    let shown = &url[..end];
    // So may what stands where a port should.
    let shown = match shown.rsplit_once(':') {
        Some((host, port)) if !port.contains(['/', ']']) && port.parse::<u16>().is_err() => host,
        _ => shown,
    };
    let bad = |why: &str| Error::usage("server", format!("`{shown}` is not a server URL: {why}"));
    let Some((scheme @ ("http" | "https"), _)) = url.split_once("://") else {
        return Err(bad("it begins with http:// or https://, as in http://127.0.0.1:7700"));
    };
    let mut endpoint = Endpoint::from_shared(url.to_owned())
        .map_err(|error| bad(&error.to_string()))?
        .http2_keep_alive_interval(keep_alive)
        .keep_alive_timeout(keep_alive)
        .initial_stream_window_size(WINDOW_BYTES)
        .initial_connection_window_size(CONNECTION_WINDOW_BYTES)
        .user_agent(concat!("ringq/", env!("CARGO_PKG_VERSION")))
        .map_err(|error| bad(&error.to_string()))?;
    // A port that is not a number would be taken for no port at all.
    let authority = endpoint.uri().authority().map(|authority| authority.as_str());
    let port = authority.and_then(|authority| Some(authority.rsplit_once(':')?.1));
    if endpoint.uri().port_u16().is_none() && port.is_some_and(|port| !port.contains(']')) {
        return Err(bad("the port is not a number from 1 to 65535"));
    }
    if !matches!(&url[end..], "" | "/") {
        return Err(bad("nothing may follow the host and port"));
    }
    if scheme == "https" {
        endpoint = tls.apply(endpoint, CONNECT_TIMEOUT)?;
    }
    Ok(endpoint)
}
