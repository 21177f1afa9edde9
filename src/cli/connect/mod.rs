//! Shared by all client commands: how they reach a server or one of several, wait for it and stop.

mod failure;
mod settings;
mod url;

use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context as _;
use clap::Args;
use parking_lot::Mutex;
use tokio::runtime::Builder;
use tokio::signal::unix::{SignalKind, signal};
use tonic::{Code, IntoRequest, Request, Response, Status};

use super::contexts::{Context, Contexts};
use super::credentials::{CredentialArgs, Credentials};
use super::exit::{self, CommandFailure};
use super::values;
use crate::client::{Client, Error};
use crate::config;
use crate::contract::duration_text::show_duration;
pub(super) use failure::one_of;
use settings::{Layer, Settings, Source};
pub(super) use url::urls;

/// Added to the deadline, which the server applies too, before this side stops waiting for an answer.
const ANSWER_GRACE: Duration = Duration::from_millis(500);

/// Time from Ctrl-C to the end of a command that does not end by itself.
const INTERRUPT_MAX: Duration = Duration::from_secs(1);

/// Flags that name the server, and how to connect to it. clap does not read the variables: its usage errors would show a
/// value from a variable as a flag that must be given.
#[derive(Clone, Debug, Args)]
#[command(next_help_heading = "Connection")]
pub(super) struct ConnectArgs {
    /// The server: http://HOST:PORT, https://HOST:PORT, HOST:PORT, HOST or :PORT [one or more, separated by commas]
    /// [env: RINGQ_SERVER] [default: http://127.0.0.1:7700]
    #[arg(long, value_name = "URL", value_parser = values::non_empty)]
    server: Option<String>,
    /// Use the server and the credentials of this context [env: RINGQ_CONTEXT] [default: that of `ringq context use`]
    #[arg(long, value_name = "NAME", value_parser = values::context_name)]
    context: Option<String>,
    #[command(flatten)]
    credentials: CredentialArgs,
    /// Wait this long for each answer
    #[arg(long, value_name = "DURATION", default_value = "10s", value_parser = values::duration)]
    timeout: Duration,
}

/// Connection to a server, with the error messages of calls on it.
#[derive(Clone, Debug)]
pub(super) struct ServerConnection {
    client: Client,
    timeout: Duration,
    settings: Arc<Settings>,
    /// URL of the server that has answered last.
    answered: Arc<Mutex<String>>,
}

// === impl ConnectArgs ===

impl ConnectArgs {
    /// Returns the client library's connection; nothing is sent yet.
    pub(super) fn client(&self) -> Result<Client, CommandFailure> {
        self.settings()?.client()
    }

    /// Returns the connection of a command that makes single calls.
    pub(super) fn connection(&self) -> Result<ServerConnection, CommandFailure> {
        let settings = self.settings()?;
        let client = settings.client()?;
        Ok(ServerConnection {
            client,
            timeout: self.timeout,
            settings: Arc::new(settings),
            answered: Arc::default(),
        })
    }

    /// Reads the variables and the contexts.
    fn settings(&self) -> Result<Settings, CommandFailure> {
        let server = self.server.clone();
        let flags =
            Layer { source: Source::Flag, server, credentials: self.credentials.credentials() };
        let server = config::variable("RINGQ_SERVER");
        let credentials = Credentials::from_variables(config::variable)?;
        let variables = Layer { source: Source::Variable, server, credentials };
        let contexts = Contexts::read()?;
        let layer = |name: String| {
            contexts.get(&name).map(|context| Layer::of_context(name.clone(), context))
        };
        if let Some(name) = &self.context {
            return Ok(Settings::resolve(vec![flags, layer(name.clone())?, variables]));
        }
        let context = contexts.selected()?.map(layer).transpose()?;
        Ok(Settings::resolve([flags, variables].into_iter().chain(context).collect()))
    }
}

/// Checks that a client can be made for a context.
pub(super) fn check_context(context: &Context) -> Result<(), CommandFailure> {
    let Context { server, credentials } = context.clone();
    let flags = Layer { source: Source::Flag, server: Some(server), credentials };
    block_on(async { Settings::resolve(vec![flags]).client().map(drop) })
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
            Ok(Ok(answer)) => {
                self.client.server_of(&answer).clone_into(&mut self.answered.lock());
                Ok(answer.into_inner())
            }
            Ok(Err(status)) => Err(Error::from(status)),
            Err(_) => Err(Error::from(Status::deadline_exceeded("no answer"))),
        }
    }

    /// Prints which of several servers has answered last, for output that shows what only this server has: streams and
    /// rates of its own, its view of the shards.
    pub(super) fn note_server(&self) {
        if self.client.has_several_servers() {
            exit::print_note(&format!("answered by {}", self.answered.lock()));
        }
    }

    /// Builds the failure of a call, with a hint if the server cannot be reached.
    pub(super) fn failure(&self, what: &str, error: &Error) -> CommandFailure {
        if error.code() == Code::DeadlineExceeded {
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
            return failure::unreachable(&self.client, what, error);
        }
        let failure = CommandFailure::from_call(what, error);
        match error.code() {
            Code::Unauthenticated => failure.with_hint(self.settings.unauthenticated_hint()),
            _ => failure,
        }
    }
}

/// Runs a client command on a runtime of its own until it is done or interrupted by Ctrl-C.
pub(super) fn run_until_interrupt(
    command: impl Future<Output = Result<(), CommandFailure>>,
) -> Result<(), CommandFailure> {
    block_on(async {
        tokio::spawn(end_if_blocked());
        tokio::select! {
            result = command => result,
            () = wait_for_ctrl_c() => Err(CommandFailure::already_reported(exit::INTERRUPTED)),
        }
    })
}

/// Ends the process some time after Ctrl-C, for a command that waits for the reader of its output.
async fn end_if_blocked() {
    wait_for_ctrl_c().await;
    tokio::time::sleep(INTERRUPT_MAX).await;
    std::process::exit(exit::INTERRUPTED.into());
}

/// Runs a client command that handles signals itself.
pub(super) fn block_on(
    command: impl Future<Output = Result<(), CommandFailure>>,
) -> Result<(), CommandFailure> {
    // One thread beside this one, which waits for the reader of what it prints: connections and signals must not.
    let runtime = Builder::new_multi_thread().worker_threads(1).enable_all().build();
    let runtime = runtime.context("cannot start the runtime")?;
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
