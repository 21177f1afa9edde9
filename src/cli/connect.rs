//! Shared by all client commands: how they reach a server or one of several, wait for it and stop.

use std::future::Future;
use std::net::Ipv6Addr;
use std::time::Duration;

use anyhow::Context as _;
use clap::Args;
use tokio::runtime::Builder;
use tokio::signal::unix::{SignalKind, signal};
use tonic::{IntoRequest, Request, Response, Status};

use super::exit::{self, CommandFailure};
use super::values;
use crate::client::{Client, Error, Options};
use crate::config::{self, show_duration};

/// Address of the server, by default.
const SERVER_DEFAULT: &str = "http://127.0.0.1:7700";
/// Port of a server that is named without one.
const PORT_DEFAULT: u16 = 7700;
/// Added to the deadline, which the server applies too, before this side stops waiting for an answer.
const ANSWER_GRACE: Duration = Duration::from_millis(500);

/// Flags that name the server. clap does not read the variables: its usage errors would show a value from a variable
/// as a flag that must be given.
#[derive(Clone, Debug, Args)]
#[command(next_help_heading = "Connection")]
pub(super) struct ConnectArgs {
    /// The server: http://HOST:PORT, https://HOST:PORT, HOST:PORT, HOST or :PORT [one or more, separated by commas]
    /// [env: RINGQ_SERVER] [default: http://127.0.0.1:7700]
    #[arg(long, value_name = "URL", value_parser = values::non_empty)]
    server: Option<String>,
    /// Send this bearer token [env: RINGQ_TOKEN]
    #[arg(long, value_name = "TOKEN", value_parser = values::non_empty)]
    token: Option<String>,
    /// Wait this long for each answer
    #[arg(long, value_name = "DURATION", default_value = "10s", value_parser = values::duration)]
    timeout: Duration,
}

/// Connection to a server, with the error messages of calls on it.
#[derive(Clone, Debug)]
pub(super) struct ServerConnection {
    client: Client,
    timeout: Duration,
}

// === impl ConnectArgs ===

impl ConnectArgs {
    /// Returns the client library's connection; nothing is sent yet.
    pub(super) fn client(&self) -> Result<Client, CommandFailure> {
        let token = self.token.clone().or_else(|| config::variable("RINGQ_TOKEN"));
        let options = token.into_iter().fold(Options::default(), Options::token);
        Client::with_options(self.url(), options).map_err(|error| {
            let hint = match error.field() {
                Some("token") => "it is set by --token or RINGQ_TOKEN",
                _ => "it is set by --server or RINGQ_SERVER",
            };
            CommandFailure::usage(error.message()).with_hint(hint)
        })
    }

    /// Returns the connection of a command that makes single calls.
    pub(super) fn connection(&self) -> Result<ServerConnection, CommandFailure> {
        Ok(ServerConnection { client: self.client()?, timeout: self.timeout })
    }

    /// Returns the URL of the server, or of several separated by commas; the flag wins over the variable.
    fn url(&self) -> String {
        let server = self.server.clone().or_else(|| config::variable("RINGQ_SERVER"));
        server.map_or_else(|| SERVER_DEFAULT.to_owned(), |servers| urls(&servers))
    }
}

/// Completes each of several addresses, separated by commas.
fn urls(servers: &str) -> String {
    let parts: Vec<_> = servers.split(',').map(str::trim).collect();
    let is_list = parts.len() > 1;
    // An empty entry of a list stays one, which the client refuses.
    let complete = |part: &&str| if is_list && part.is_empty() { String::new() } else { url(part) };
    parts.iter().map(complete).collect::<Vec<_>>().join(",")
}

/// Completes an address: a host without a scheme gets ringq's port, not that of HTTP; a port without a host is one of
/// this machine.
fn url(server: &str) -> String {
    if server.contains("://") {
        return server.to_owned();
    }
    if server.parse::<Ipv6Addr>().is_ok() {
        return format!("http://[{server}]:{PORT_DEFAULT}");
    }
    if server.strip_prefix(':').is_some_and(|port| port.parse::<u16>().is_ok()) {
        return format!("http://127.0.0.1{server}");
    }
    let is_alone = !server.contains(':') || (server.starts_with('[') && server.ends_with(']'));
    if is_alone && !server.is_empty() {
        format!("http://{server}:{PORT_DEFAULT}")
    } else {
        format!("http://{server}")
    }
}

// === impl ServerConnection ===

impl ServerConnection {
    /// Returns the client library's connection.
    pub(super) fn client(&self) -> &Client {
        &self.client
    }

    /// Returns the time to wait for each answer.
    pub(super) fn timeout(&self) -> Duration {
        self.timeout
    }

    /// Builds a request with this command's deadline.
    pub(super) fn request<M>(&self, message: M) -> Request<M> {
        let mut request = message.into_request();
        request.set_timeout(self.timeout);
        request
    }

    /// Waits for an answer. `what` begins the error message: "cannot read job emails/7".
    pub(super) async fn call<T>(
        &self,
        what: &str,
        answer: impl Future<Output = Result<Response<T>, Status>>,
    ) -> Result<T, CommandFailure> {
        self.try_call(answer).await.map_err(|error| self.failure(what, &error))
    }

    /// Waits for an answer like `call`, for callers that look at the error first.
    pub(super) async fn try_call<T>(
        &self,
        answer: impl Future<Output = Result<Response<T>, Status>>,
    ) -> Result<T, Error> {
        match tokio::time::timeout(self.timeout + ANSWER_GRACE, answer).await {
            Ok(Ok(answer)) => Ok(answer.into_inner()),
            Ok(Err(status)) => Err(Error::from(status)),
            Err(_) => Err(Error::from(Status::deadline_exceeded("no answer"))),
        }
    }

    /// Builds the failure of a call, with a hint if the server cannot be reached.
    pub(super) fn failure(&self, what: &str, error: &Error) -> CommandFailure {
        if error.code() == tonic::Code::DeadlineExceeded {
            let problem = format!(
                "{what}: no answer from {} within {}",
                one_of(&self.client),
                show_duration(self.timeout)
            );
            let hint = "wait longer with --timeout; the request may have been applied";
            return CommandFailure::new(exit::UNAVAILABLE, problem).with_hint(hint);
        }
        if error.is_not_grpc() {
            let problem = format!("{what}: {} is not a gRPC server", one_of(&self.client));
            return CommandFailure::from_call(&problem, error);
        }
        if error.is_unavailable() && error.reason().is_empty() {
            return unreachable(&self.client, what, error);
        }
        CommandFailure::from_call(what, error)
    }
}

/// Builds the failure of a call to a server that cannot be reached, or whose connection broke.
pub(super) fn unreachable(client: &Client, what: &str, error: &Error) -> CommandFailure {
    let what = if error.outcome_unknown() {
        format!("{what}: the connection to {} broke", one_of(client))
    } else if client.has_several_servers() {
        // The error names each server.
        what.to_owned()
    } else {
        format!("{what}: no connection to {}", with_port(client.url()))
    };
    // The error of h2 about the first bytes of HTTP/1.
    let hint = if error.message().contains("frame with invalid size") {
        "does a gRPC server listen there? ringq's port is 7700 by default"
    } else if error.message().starts_with("TLS ") {
        "check the scheme of the server's address: http:// is without TLS, https:// with TLS"
    } else if error.outcome_unknown() {
        "the request may have been applied"
    } else {
        "is it running? start one with `ringq serve`, or name it with --server or RINGQ_SERVER"
    };
    CommandFailure::from_call(&what, error).with_hint(hint)
}

/// Returns the URL of the server for an error; of several, one has failed.
pub(super) fn one_of(client: &Client) -> String {
    let one_of = if client.has_several_servers() { "one of " } else { "" };
    format!("{one_of}{}", client.url())
}

/// Returns the URL with the port that was tried, if it names none.
fn with_port(url: &str) -> String {
    let (scheme, rest) = url.split_once("://").unwrap_or(("http", url));
    let authority = rest.trim_end_matches('/');
    if authority.trim_end_matches(|c: char| c.is_ascii_digit()).ends_with(':') {
        return url.to_owned();
    }
    let port = if scheme == "https" { 443 } else { 80 };
    format!("{url}, port {port}; ringq's own is {PORT_DEFAULT}")
}

/// Runs a client command on a runtime of its own until it is done or interrupted by Ctrl-C.
pub(super) fn run_until_interrupt(
    command: impl Future<Output = Result<(), CommandFailure>>,
) -> Result<(), CommandFailure> {
    block_on(async {
        tokio::select! {
            result = command => result,
            () = wait_for_ctrl_c() => Err(CommandFailure::already_reported(exit::INTERRUPTED)),
        }
    })
}

/// Runs a client command that handles signals itself.
pub(super) fn block_on(
    command: impl Future<Output = Result<(), CommandFailure>>,
) -> Result<(), CommandFailure> {
    // One thread: a command waits for a server and does little else.
    let runtime =
        Builder::new_current_thread().enable_all().build().context("cannot start the runtime")?;
    let result = runtime.block_on(command);
    // A call that still blocks, such as a read of stdin, ends with the process.
    runtime.shutdown_background();
    result
}

/// Ends on Ctrl-C or SIGTERM, and returns the exit code.
pub(super) async fn wait_for_stop_signal() -> u8 {
    tokio::select! {
        () = wait_for_ctrl_c() => exit::INTERRUPTED,
        () = wait_for_sigterm() => exit::TERMINATED,
    }
}

async fn wait_for_sigterm() {
    match signal(SignalKind::terminate()) {
        Ok(mut terminate) => _ = terminate.recv().await,
        // Without a handler the system's default action ends the process.
        Err(_) => std::future::pending().await,
    }
}

/// Ends on Ctrl-C.
pub(super) async fn wait_for_ctrl_c() {
    if tokio::signal::ctrl_c().await.is_err() {
        // No handler could be set: the system's default action ends the process.
        std::future::pending::<()>().await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_host_without_port_gets_the_default_port() {
        for (server, want) in [
            ("localhost", "http://localhost:7700"),
            ("localhost:1", "http://localhost:1"),
            (":7701", "http://127.0.0.1:7701"),
            ("::1", "http://[::1]:7700"),
            ("[::1]", "http://[::1]:7700"),
            ("[::1]:1", "http://[::1]:1"),
            ("https://a", "https://a"),
            ("", "http://"),
        ] {
            assert_eq!(url(server), want, "{server:?}");
        }
    }

    #[test]
    fn each_address_of_a_list_is_completed() {
        let want = "http://a:7700,http://127.0.0.1:7701,https://b";
        assert_eq!(urls("a, :7701 ,https://b"), want);
        assert_eq!((urls("a,"), urls("")), ("http://a:7700,".to_owned(), "http://".to_owned()));
    }

    #[test]
    fn an_error_names_the_port_that_was_tried() {
        assert_eq!(with_port("http://a:7/"), "http://a:7/");
        assert_eq!(with_port("http://a"), "http://a, port 80; ringq's own is 7700");
        assert!(with_port("https://[::1]").contains("port 443"));
        assert_eq!(with_port("http://[::1]:7"), "http://[::1]:7");
    }
}
