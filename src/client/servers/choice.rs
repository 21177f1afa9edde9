//! Choice of the server of a call, from the states of all servers.

use std::sync::Arc;

use tonic::transport::Channel;

/// State of a server.
#[derive(Clone, Debug, Default)]
pub(super) struct ServerState {
    pub(super) phase: Phase,
    /// Number of failed attempts to connect, and of connections that broke.
    pub(super) failures: u64,
    /// Number of connections made, which distinguishes the connection of a call from later ones.
    pub(super) connections: u64,
    /// Number of open streams of this client to the server.
    pub(super) streams: usize,
}

/// Connection of a server.
#[derive(Clone, Debug, Default)]
pub(super) enum Phase {
    /// Not connected yet: no result of the first attempt.
    #[default]
    New,
    /// Connected, and the server accepts work.
    Serving(Channel),
    /// Connected, but the server drains, has no shard, or left a call without an answer: the last resort.
    Standby(Channel),
    /// Not connected, with the last error.
    Away(Arc<str>),
}

/// Server chosen for a call.
#[derive(Clone, Debug)]
pub(super) struct Chosen {
    pub(super) index: usize,
    pub(super) channel: Channel,
    /// Number of the connection.
    pub(super) connection: u64,
}

// === impl ServerState ===

impl ServerState {
    fn is_away(&self) -> bool {
        matches!(self.phase, Phase::Away(_))
    }

    /// Returns whether no attempt to connect has ended yet.
    pub(super) fn is_new(&self) -> bool {
        matches!(self.phase, Phase::New)
    }

    /// Records that a connection broke, or that an attempt failed.
    pub(super) fn set_away(&mut self, error: &str) {
        self.phase = Phase::Away(error.into());
        self.failures += 1;
    }

    /// Makes the server the last resort until its task has a new answer from it.
    pub(super) fn set_standby(&mut self) {
        if let Phase::Serving(channel) = &self.phase {
            self.phase = Phase::Standby(channel.clone());
        }
    }

    fn chosen(&self, index: usize) -> Option<Chosen> {
        let (Phase::Serving(channel) | Phase::Standby(channel)) = &self.phase else { return None };
        Some(Chosen { index, channel: channel.clone(), connection: self.connections })
    }
}

/// Returns the server of a call: of those that serve, one with an open stream of this client, else the first one of
/// `order`. The repeats of a call, by their number, take the others in turn. Without any, a server on standby, once all
/// others have been tried. `None`: there is none yet.
pub(super) fn choose(
    states: &[ServerState],
    order: impl Iterator<Item = usize> + Clone,
    repeat: usize,
) -> Option<Chosen> {
    let serves = |index: &usize| matches!(states[*index].phase, Phase::Serving(_));
    let mut serving: Vec<usize> = order.clone().filter(serves).collect();
    serving.sort_by_key(|index| states[*index].streams == 0);
    if let Some(turn) = repeat.checked_rem(serving.len()) {
        return states[serving[turn]].chosen(serving[turn]);
    }
    if order.clone().any(|index| states[index].is_new()) {
        return None;
    }
    let standby = |index: &usize| matches!(states[*index].phase, Phase::Standby(_));
    order.into_iter().find(standby).and_then(|index| states[index].chosen(index))
}

/// Returns whether each server has failed since `before`, its earlier number of failures.
pub(super) fn is_hopeless(
    states: &[ServerState],
    before: &[ServerState],
    mut order: impl Iterator<Item = usize>,
) -> bool {
    order.all(|index| states[index].is_away() && states[index].failures > before[index].failures)
}

#[cfg(test)]
mod tests {
    use tonic::transport::Endpoint;

    use super::*;

    fn channel() -> Channel {
        Endpoint::from_static("http://127.0.0.1:1").connect_lazy()
    }

    fn state(phase: Phase) -> ServerState {
        ServerState { phase, ..ServerState::default() }
    }

    fn serving() -> ServerState {
        state(Phase::Serving(channel()))
    }

    fn standby() -> ServerState {
        state(Phase::Standby(channel()))
    }

    fn away() -> ServerState {
        state(Phase::Away("refused".into()))
    }

    fn index(states: &[ServerState]) -> Option<usize> {
        repeat_index(states, 0)
    }

    fn repeat_index(states: &[ServerState], repeat: usize) -> Option<usize> {
        choose(states, [1, 0, 2].into_iter(), repeat).map(|chosen| chosen.index)
    }

    #[tokio::test]
    async fn calls_go_to_the_first_server_of_the_order_that_serves() {
        assert_eq!(index(&[serving(), serving(), serving()]), Some(1));
        assert_eq!(index(&[serving(), away(), serving()]), Some(0));
        assert_eq!(index(&[standby(), away(), serving()]), Some(2));
        assert_eq!(index(&[ServerState::default(), standby(), serving()]), Some(2));
        assert_eq!(index(&[away(), away(), away()]), None);
    }

    #[tokio::test]
    async fn calls_go_to_the_server_of_an_open_stream() {
        let with_stream = || ServerState { streams: 1, ..serving() };
        assert_eq!(index(&[serving(), serving(), with_stream()]), Some(2));
        let broken = ServerState { streams: 1, ..away() };
        assert_eq!(index(&[serving(), away(), broken]), Some(0));
    }

    #[tokio::test]
    async fn repeats_take_the_servers_in_turn() {
        let states = [serving(), serving(), away()];
        assert_eq!([0, 1, 2, 3].map(|n| repeat_index(&states, n)), [1, 0, 1, 0].map(Some));
    }

    #[tokio::test]
    async fn a_server_on_standby_is_used_when_the_others_have_been_tried() {
        assert_eq!(index(&[ServerState::default(), standby(), away()]), None);
        assert_eq!(index(&[away(), standby(), standby()]), Some(1));
    }

    #[test]
    fn only_failures_of_this_call_end_it() {
        let failed = |failures| ServerState { failures, ..away() };
        let before = [failed(3), failed(1)];
        let hopeless = |now: [ServerState; 2]| is_hopeless(&now, &before, 0..2);
        assert!(!hopeless([failed(4), failed(1)]));
        assert!(hopeless([failed(4), failed(2)]));
        let again = ServerState { failures: 4, ..ServerState::default() };
        assert!(!hopeless([failed(4), again]));
    }
}
