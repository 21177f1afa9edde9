//! A call, sent to one server after the other until one has accepted it.

use std::collections::BTreeSet;
use std::fmt;
use std::io;
use std::sync::Arc;

use http_body_util::{BodyExt as _, Full};
use tokio::time::timeout;
use tonic::body::Body;
use tonic::codegen::{Bytes, Service as _, StdError, http};
use tonic::{ConnectError, Status};
use tower::ServiceExt as _;

use super::super::Error;
use super::super::error::in_sentence;
use super::choice::{self, Chosen, Phase, ServerState};
use super::{AnsweringServer, HEAD_START, ServerPool};

/// Code UNAVAILABLE in a header.
const UNAVAILABLE: &str = "14";
/// Reason of a refusal: the server is about to stop, and has not executed the call.
const DRAINING: &str = "DRAINING";

/// Number of the repeat of a call, from 0 on; an extension of its request. A repeat goes to another server than the
/// attempt before.
#[derive(Clone, Copy, Debug)]
pub(in crate::client) struct RepeatNumber(pub(in crate::client) usize);

/// Error of a call for which no server could be reached: each server with its last error.
#[derive(Debug)]
struct NoServer(Vec<(String, Arc<str>)>);

// === impl ServerPool ===

impl ServerPool {
    /// Makes a call, on another server if one has surely not executed it.
    pub(super) async fn call(
        self,
        request: http::Request<Body>,
    ) -> Result<http::Response<Body>, StdError> {
        // One message, already encoded: no call of the contract sends a stream.
        let (head, body) = request.into_parts();
        let repeat = head.extensions.get().map_or(0, |RepeatNumber(number)| *number);
        let request = http::Request::from_parts(head, body.collect().await?.to_bytes());
        let (mut tried, mut refusal) = (BTreeSet::new(), None);
        let mut is_first_round = true;
        loop {
            let Some(chosen) = self.choose(&tried, repeat).await else {
                // Servers retire connections of workers: those of a client to all of them may have ended together.
                if is_first_round && refusal.is_none() && !tried.is_empty() {
                    (is_first_round, tried) = (false, BTreeSet::new());
                    continue;
                }
                return refusal.unwrap_or_else(|| Err(self.no_server()));
            };
            tried.insert(chosen.index);
            refusal = match send(&chosen, request.clone()).await {
                Ok(response) if is_draining(&response) => {
                    self.report(&chosen, ServerState::set_standby);
                    Some(Ok(response))
                }
                Ok(mut response) => {
                    if response.status() != http::StatusCode::OK {
                        // A proxy whose server is away.
                        self.report(&chosen, ServerState::set_standby);
                    }
                    let pool = Arc::clone(&self.0.pool);
                    let server = AnsweringServer { pool, index: chosen.index };
                    response.extensions_mut().insert(server);
                    return Ok(response);
                }
                Err(error) if Error::was_not_sent(&*error) => {
                    let text = in_sentence(Error::from(Status::from_error(error)).message());
                    self.report(&chosen, |state| state.set_away(&text));
                    None
                }
                Err(error) => {
                    self.report(&chosen, ServerState::set_standby);
                    return Err(error);
                }
            };
        }
    }

    /// Returns the server for a call, once there is one; `None` if none can be reached. Servers of `tried` are left
    /// out.
    async fn choose(&self, tried: &BTreeSet<usize>, repeat: usize) -> Option<Chosen> {
        let pool = &*self.0.pool;
        let order = pool.order.iter().copied().filter(|index| !tried.contains(index));
        let mut states = pool.states.subscribe();
        if repeat > 0 {
            self.try_new_server(order.clone()).await;
        }
        if let Some(chosen) = choice::choose(&states.borrow_and_update(), order.clone(), repeat) {
            return Some(chosen);
        }
        let before = states.borrow_and_update().clone();
        for index in order.clone() {
            if !before[index].is_new() {
                pool.servers[index].wake.notify_one();
                continue;
            }
            self.start(index);
            let answers = |states: &Vec<ServerState>| {
                !states[index].is_new() || choice::choose(states, order.clone(), repeat).is_some()
            };
            let _ = timeout(HEAD_START, states.wait_for(answers)).await;
            if let Some(chosen) = choice::choose(&states.borrow_and_update(), order.clone(), repeat)
            {
                return Some(chosen);
            }
        }
        let mut chosen = None;
        let decides = |states: &Vec<ServerState>| {
            chosen = choice::choose(states, order.clone(), repeat);
            chosen.is_some() || choice::is_hopeless(states, &before, order.clone())
        };
        // The sender lives as long as this pool.
        let _ = states.wait_for(decides).await;
        chosen
    }

    /// Connects to a server that no call has needed yet, for a repeat, which goes to another one.
    async fn try_new_server(&self, mut order: impl Iterator<Item = usize>) {
        let mut states = self.0.pool.states.subscribe();
        let new = order.find(|index| states.borrow()[*index].is_new());
        if let Some(index) = new {
            self.start(index);
            let answers = states.wait_for(|states| !states[index].is_new());
            let _ = timeout(HEAD_START, answers).await;
        }
    }

    /// Changes the state of a server because of a call, unless it has a new connection already.
    fn report(&self, chosen: &Chosen, change: impl FnOnce(&mut ServerState)) {
        self.0.pool.update(chosen.index, |state| {
            let is_connected = matches!(state.phase, Phase::Serving(_) | Phase::Standby(_));
            if is_connected && state.connections == chosen.connection {
                change(state);
            }
        });
        self.0.pool.servers[chosen.index].wake.notify_one();
    }

    fn no_server(&self) -> StdError {
        let states = self.0.pool.states.borrow();
        let error = |state: &ServerState| match &state.phase {
            Phase::Away(error) => Arc::clone(error),
            _ => "it does not accept calls".into(),
        };
        let servers = self.0.pool.servers.iter().zip(states.iter());
        let errors = servers.map(|(server, state)| (server.url.clone(), error(state)));
        Box::new(ConnectError(Box::new(NoServer(errors.collect()))))
    }
}

async fn send(
    chosen: &Chosen,
    request: http::Request<Bytes>,
) -> Result<http::Response<Body>, StdError> {
    let mut channel = chosen.channel.clone();
    let request = request.map(|message| Body::new(Full::new(message)));
    Ok(channel.ready().await.map_err(not_ready)?.call(request).await?)
}

/// Returns the error of a channel whose task has ended: nothing was sent on it.
fn not_ready(error: tonic::transport::Error) -> ConnectError {
    ConnectError(Box::new(io::Error::other(error)))
}

/// Returns whether the server refused the call because it is about to stop.
fn is_draining(response: &http::Response<Body>) -> bool {
    let headers = response.headers();
    headers.get("grpc-status").is_some_and(|code| code == UNAVAILABLE)
        && Status::from_header_map(headers)
            .is_some_and(|status| Error::from(status).reason() == DRAINING)
}

// === impl NoServer ===

impl fmt::Display for NoServer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("no connection to ")?;
        for (index, (url, error)) in self.0.iter().enumerate() {
            let separator = if index == 0 { "" } else { ", " };
            write!(f, "{separator}{url} ({error})")?;
        }
        Ok(())
    }
}

impl std::error::Error for NoServer {}
