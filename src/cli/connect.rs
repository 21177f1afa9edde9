//! What all client commands share: how they reach a server, how they wait for it, how they stop.

use std::future::Future;
use std::time::Duration;

use anyhow::Context as _;
use clap::Args;
use tokio::runtime::Builder;
use tonic::{IntoRequest, Request, Response, Status};

use super::exit::{self, Failure};
use super::values;
use crate::client::{Client, Error, Options};
use crate::config::show_duration;

/// Where a server is looked for.
const SERVER_DEFAULT: &str = "http://127.0.0.1:7700";
/// How much longer than the server, which knows the deadline too, this side waits for an answer.
const ANSWER_GRACE: Duration = Duration::from_millis(500);

/// How to reach a server.
#[derive(Clone, Debug, Args)]
#[command(next_help_heading = "Connection")]
pub(super) struct Connect {
    /// The server: http://HOST:PORT, https://HOST:PORT or HOST:PORT
    #[arg(long, value_name = "URL", env = "RINGQ_SERVER", default_value = SERVER_DEFAULT)]
    server: String,
    /// Send this bearer token
    #[arg(long, value_name = "TOKEN", env = "RINGQ_TOKEN", hide_env_values = true)]
    token: Option<String>,
    /// Wait this long for each answer
    #[arg(long, value_name = "DURATION", default_value = "10s", value_parser = values::duration)]
    timeout: Duration,
}

/// A connection, and how failures on it are told.
#[derive(Clone, Debug)]
pub(super) struct Connection {
    client: Client,
    timeout: Duration,
}

// === impl Connect ===

impl Connect {
    /// The client library's connection; nothing is sent yet.
    pub(super) fn client(&self) -> Result<Client, Failure> {
        let options = match self.token.as_deref() {
            None | Some("") => Options::default(),
            Some(token) => Options::default().token(token),
        };
        Client::with(self.url(), options).map_err(|error| {
            let hint = match error.field() {
                Some("token") => "it is set by --token or RINGQ_TOKEN",
                _ => "it is set by --server or RINGQ_SERVER",
            };
            Failure::usage(error.message()).hint(hint)
        })
    }

    /// The connection of a command that makes single calls.
    pub(super) fn connection(&self) -> Result<Connection, Failure> {
        Ok(Connection { client: self.client()?, timeout: self.timeout })
    }

    /// As for the server, an empty variable counts as not set.
    fn url(&self) -> String {
        match self.server.trim() {
            "" => SERVER_DEFAULT.to_owned(),
            server if server.contains("://") => server.to_owned(),
            server => format!("http://{server}"),
        }
    }
}

// === impl Connection ===

impl Connection {
    /// The client library's connection.
    pub(super) fn client(&self) -> &Client {
        &self.client
    }

    /// How long an answer is waited for.
    pub(super) fn timeout(&self) -> Duration {
        self.timeout
    }

    /// A request with this command's deadline.
    pub(super) fn request<M>(&self, message: M) -> Request<M> {
        let mut request = message.into_request();
        request.set_timeout(self.timeout);
        request
    }

    /// Waits for an answer. `what` begins the sentence of a failure: "cannot read job emails/7".
    pub(super) async fn call<T>(
        &self,
        what: &str,
        answer: impl Future<Output = Result<Response<T>, Status>>,
    ) -> Result<T, Failure> {
        self.ask(answer).await.map_err(|error| self.failure(what, &error))
    }

    /// The same for callers that look at the error first.
    pub(super) async fn ask<T>(
        &self,
        answer: impl Future<Output = Result<Response<T>, Status>>,
    ) -> Result<T, Error> {
        match tokio::time::timeout(self.timeout + ANSWER_GRACE, answer).await {
            Ok(Ok(answer)) => Ok(answer.into_inner()),
            Ok(Err(status)) => Err(Error::from(status)),
            Err(_) => Err(Error::from(Status::deadline_exceeded("no answer"))),
        }
    }

    /// A failed call, with what to do about a server that cannot be reached.
    pub(super) fn failure(&self, what: &str, error: &Error) -> Failure {
        if error.code() == tonic::Code::DeadlineExceeded {
            let problem = format!(
                "{what}: no answer from {} within {}",
                self.client.url(),
                show_duration(self.timeout)
            );
            let hint = "wait longer with --timeout; a change may have been made all the same";
            return Failure::new(exit::UNAVAILABLE, problem).hint(hint);
        }
        if error.is_unavailable() && error.reason().is_empty() {
            return unreachable(&self.client, what, error);
        }
        Failure::call(what, error)
    }
}

/// A server that cannot be reached, or whose connection broke.
pub(super) fn unreachable(client: &Client, what: &str, error: &Error) -> Failure {
    let what = format!("{what}: no connection to {}", client.url());
    let hint = if error.outcome_unknown() {
        "the connection broke: what was asked may have been done all the same"
    } else {
        "is it running? start one with `ringq serve`, or name it with --server or RINGQ_SERVER"
    };
    Failure::call(&what, error).hint(hint)
}

/// Runs a client command on a runtime of its own until it is done or somebody presses Ctrl-C.
pub(super) fn run(command: impl Future<Output = Result<(), Failure>>) -> Result<(), Failure> {
    block_on(async {
        tokio::select! {
            result = command => result,
            () = interrupted() => Err(Failure::told(exit::INTERRUPTED)),
        }
    })
}

/// Runs a client command that looks after Ctrl-C itself.
pub(super) fn block_on(command: impl Future<Output = Result<(), Failure>>) -> Result<(), Failure> {
    // One thread: a command waits for a server and does little else.
    let runtime =
        Builder::new_current_thread().enable_all().build().context("cannot start the runtime")?;
    let result = runtime.block_on(command);
    // Whatever is still blocked, such as a read of stdin, ends with the process.
    runtime.shutdown_background();
    result
}

/// Ends when somebody presses Ctrl-C.
pub(super) async fn interrupted() {
    if tokio::signal::ctrl_c().await.is_err() {
        // No handler could be set, so the system's own ends the process.
        std::future::pending::<()>().await;
    }
}
