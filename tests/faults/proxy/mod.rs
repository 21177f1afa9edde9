//! A proxy between replicas and a Redis: passes everything on, but loses a configured share of answers of claims (the
//! connection is cut instead, after Redis has executed the call) and of wake-up hints. It can be a bad network
//! ([`Way`]). It can also lie, like a broken build: then it answers OK to a call that Redis never sees, or replaces
//! scripts by others.
//!
//! The lost messages and the lies are drawn from the seed of the trial, in the order in which the messages come.
//! Answers of claims are recognized by the order of requests, and claims by the hash of the script, recorded when a
//! replica loads it into Redis.

mod lie;
mod resp;
mod way;

use std::collections::{HashMap, VecDeque};
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use deadpool_redis::redis::Script;
use rand::rngs::StdRng;
use rand::{Rng as _, SeedableRng as _};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinSet;
use tokio_util::task::AbortOnDropHandle;

use crate::load::job::BODY_MIN;

pub(crate) use way::Way;
use way::{Network, Towards, reset_at_close};

/// First lines of scripts, by which they are recognized.
const TITLES: [(&str, Verb); 3] = [
    ("\n-- claim: ", Verb::Claim),
    ("\n-- enqueue: ", Verb::Enqueue),
    ("\n-- settle: ", Verb::Settle),
];

/// A listening proxy. Dropping it cuts all its connections.
pub(crate) struct Proxy {
    port: u16,
    plan: Arc<Plan>,
    _listening: AbortOnDropHandle<()>,
}

/// Configured losses, and their counts.
struct Plan {
    random: Mutex<StdRng>,
    /// Lost answers in a thousand, of claims that return jobs.
    answers_lost: AtomicU32,
    /// Lost hints in a thousand.
    hints_lost: AtomicU32,
    /// Swallowed calls in a thousand that acknowledge or enqueue: Redis never sees them, and the answer is OK.
    acks_swallowed: AtomicU32,
    enqueues_swallowed: AtomicU32,
    answers: AtomicU32,
    hints: AtomicU32,
    scripts: Mutex<HashMap<Vec<u8>, Verb>>,
    /// Change of scripts: original text and replacement.
    broken: Option<(&'static str, &'static str)>,
    /// True if calls of scripts lose the latest time at which they may be executed.
    windows_dropped: AtomicBool,
    network: Network,
}

/// Effect of a script, as far as it matters here.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Verb {
    Claim,
    Enqueue,
    Settle,
}

/// Kind of a request.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Asked {
    Claim,
    /// Redis got another request, whose answer is replaced by this one.
    Swallowed(Vec<u8>),
    Other,
}

/// A connection: its requests without an answer so far.
struct Wire {
    number: u64,
    enqueues: AtomicBool,
    plan: Arc<Plan>,
    asked: Mutex<VecDeque<Asked>>,
}

// === impl Proxy ===

impl Proxy {
    /// Starts a proxy in front of the Redis on this port. `broken`: change of scripts; a changed script is not cached
    /// under its hash, so it is sent whole each time. `seed`: seed of the random choices.
    pub(crate) async fn start(
        redis: u16,
        broken: Option<(&'static str, &'static str)>,
        seed: u64,
    ) -> Proxy {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = listener.local_addr().unwrap().port();
        let plan = Arc::new(Plan::new(broken, seed));
        let listening = tokio::spawn(listen(listener, redis, Arc::clone(&plan)));
        Proxy { port, plan, _listening: AbortOnDropHandle::new(listening) }
    }

    /// Returns its address as a url.
    pub(crate) fn url(&self) -> String {
        format!("redis://127.0.0.1:{}", self.port)
    }

    /// Loses these numbers of a thousand from now on: of answers of claims that return jobs, and of hints.
    pub(crate) fn lose(&self, answers: u32, hints: u32) {
        self.plan.answers_lost.store(answers, Relaxed);
        self.plan.hints_lost.store(hints, Relaxed);
    }

    /// Answers OK to these numbers of a thousand calls from now on, of those that acknowledge and of those that
    /// enqueue, and does nothing.
    pub(crate) fn swallow(&self, acks: u32, enqueues: u32) {
        self.plan.acks_swallowed.store(acks, Relaxed);
        self.plan.enqueues_swallowed.store(enqueues, Relaxed);
    }

    /// Makes Redis execute calls however late they arrive, as one that does not check their windows.
    pub(crate) fn drop_windows(&self) {
        self.plan.windows_dropped.store(true, Relaxed);
    }

    /// Sets the state of the network from now on.
    pub(crate) fn set(&self, way: Way) {
        self.plan.network.set(way);
    }

    /// Holds requests of the existing connections by which jobs were enqueued, until [`Proxy::release`]; all other
    /// connections pass everything.
    pub(crate) fn hold(&self) {
        self.plan.network.hold();
    }

    /// Delivers held requests, also for clients that have given up.
    pub(crate) fn release(&self) {
        self.plan.network.release();
    }

    /// Resets the connection at these numbers of a thousand messages from now on: at requests, before Redis sees
    /// them, and at answers.
    pub(crate) fn break_at(&self, requests: u32, answers: u32) {
        self.plan.network.break_at(requests, answers);
    }

    /// Returns the number of connections that were reset at a message.
    pub(crate) fn broken(&self) -> u32 {
        self.plan.network.broken()
    }

    /// Returns the number of lost answers of claims.
    pub(crate) fn answers_lost(&self) -> u32 {
        self.plan.answers.load(Relaxed)
    }

    /// Returns the number of lost hints.
    pub(crate) fn hints_lost(&self) -> u32 {
        self.plan.hints.load(Relaxed)
    }
}

async fn listen(listener: TcpListener, redis: u16, plan: Arc<Plan>) {
    let mut connections = JoinSet::new();
    while let Ok((client, _)) = listener.accept().await {
        while connections.try_join_next().is_some() {}
        let number = plan.network.connected();
        let (plan, enqueues) = (Arc::clone(&plan), AtomicBool::new(false));
        let wire = Wire { number, enqueues, plan, asked: Mutex::default() };
        let wire = Arc::new(wire);
        connections.spawn(connect(client, redis, wire));
    }
}

/// Forwards both ways until one side ends, an answer is to be lost, or the connection is reset.
async fn connect(client: TcpStream, redis: u16, wire: Arc<Wire>) {
    let Ok(server) = TcpStream::connect(("127.0.0.1", redis)).await else { return };
    let _ = (client.set_nodelay(true), server.set_nodelay(true));
    let (mut from_client, mut to_client) = client.into_split();
    let (mut from_server, mut to_server) = server.into_split();
    let reset = tokio::select! {
        broken = pass(&mut from_client, &mut to_server, &wire, Towards::Redis) => broken,
        broken = pass(&mut from_server, &mut to_client, &wire, Towards::Replica) => broken,
        () = wire.plan.network.resets() => true,
    };
    if reset {
        reset_at_close(from_client.as_ref());
        reset_at_close(from_server.as_ref());
    }
}

/// Decision about a message.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Fate {
    Passed,
    Replaced(Vec<u8>),
    Lost,
    Cut,
    Reset,
}

/// Forwards message by message; returns whether it ends with a reset.
async fn pass(
    from: &mut OwnedReadHalf,
    to: &mut OwnedWriteHalf,
    wire: &Wire,
    towards: Towards,
) -> bool {
    let (mut read, mut passed, mut is_gone) = (Vec::new(), Vec::new(), false);
    loop {
        match from.read_buf(&mut read).await {
            Ok(count) if count > 0 => {}
            _ if towards == Towards::Redis => {
                // Redis executes everything that was sent, and closes then: that ends the connection.
                let _ = to.shutdown().await;
                return std::future::pending().await;
            }
            _ => return false,
        }
        let enqueues = wire.enqueues.load(Relaxed);
        wire.plan.network.lets_through(wire.number, enqueues, towards).await;
        let (mut at, mut end) = (0, None);
        while end.is_none() && at < read.len() {
            let Some(length) = resp::length(&read[at..]) else { break };
            let message = &read[at..at + length];
            at += length;
            match wire.fate(message, towards) {
                Fate::Passed => passed.extend_from_slice(message),
                Fate::Replaced(other) => passed.extend_from_slice(&other),
                Fate::Lost => {}
                fate @ (Fate::Cut | Fate::Reset) => end = Some(fate == Fate::Reset),
            }
        }
        read.drain(..at);
        if !is_gone && to.write_all(&passed).await.is_err() {
            if towards == Towards::Redis {
                return false;
            }
            // No process reads the answers: a reset would discard requests that Redis has not read yet.
            is_gone = true;
        }
        if let Some(reset) = end {
            return reset;
        }
        passed.clear();
    }
}

// === impl Plan ===

impl Plan {
    fn new(broken: Option<(&'static str, &'static str)>, seed: u64) -> Plan {
        Plan {
            random: Mutex::new(StdRng::seed_from_u64(seed)),
            answers_lost: AtomicU32::new(0),
            hints_lost: AtomicU32::new(0),
            acks_swallowed: AtomicU32::new(0),
            enqueues_swallowed: AtomicU32::new(0),
            answers: AtomicU32::new(0),
            hints: AtomicU32::new(0),
            scripts: Mutex::default(),
            broken,
            windows_dropped: AtomicBool::new(false),
            network: Network::default(),
        }
    }

    /// Draws whether something happens. A probability of zero draws no number, so that other draws stay the same.
    fn happens(&self, of_a_thousand: &AtomicU32) -> bool {
        let of_a_thousand = of_a_thousand.load(Relaxed);
        let mut random = self.random.lock().unwrap_or_else(PoisonError::into_inner);
        of_a_thousand > 0 && random.random_range(0..1000) < of_a_thousand
    }

    fn scripts(&self) -> MutexGuard<'_, HashMap<Vec<u8>, Verb>> {
        self.scripts.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Rewrites a call of a script that is to be changed.
    fn break_script(&self, words: &[&[u8]]) -> Option<Vec<u8>> {
        let (from, to) = self.broken?;
        let script = words.get(1).filter(|_| words[0].eq_ignore_ascii_case(b"EVAL"))?;
        let script = std::str::from_utf8(script).ok().filter(|script| script.contains(from))?;
        let script = script.replace(from, to);
        let words: Vec<_> =
            [words[0], script.as_bytes()].iter().chain(&words[2..]).copied().collect();
        Some(resp::request(&words))
    }

    /// Rewrites a call of a script without its window, if it has one and is to lose it.
    fn drop_window(&self, words: &[&[u8]]) -> Option<Vec<u8>> {
        if !self.windows_dropped.load(Relaxed) || !words[0].eq_ignore_ascii_case(b"EVALSHA") {
            return None;
        }
        let keys: usize = std::str::from_utf8(words.get(2)?).ok()?.parse().ok()?;
        let mut words = words.to_vec();
        let window = words.get_mut(3 + keys).filter(|word| word.starts_with(b"<"))?;
        *window = b"";
        Some(resp::request(&words))
    }

    /// Returns the answer to a call that is to be swallowed.
    fn lie(&self, verb: Verb, words: &[&[u8]]) -> Option<Vec<u8>> {
        match verb {
            Verb::Settle if self.happens(&self.acks_swallowed) => lie::acked(words),
            Verb::Enqueue if self.happens(&self.enqueues_swallowed) => Some(lie::enqueued()),
            _ => None,
        }
    }
}

// === impl Wire ===

impl Wire {
    fn fate(&self, message: &[u8], towards: Towards) -> Fate {
        if self.plan.happens(self.plan.network.breaks(towards)) {
            self.plan.network.breaks_now();
            return Fate::Reset;
        }
        match towards {
            Towards::Redis => self.request(message),
            Towards::Replica => self.reply(message),
        }
    }

    /// Records a request before it is forwarded.
    fn request(&self, request: &[u8]) -> Fate {
        let words = resp::strings(request);
        let is = |n: usize, word: &str| {
            words.get(n).is_some_and(|found: &&[u8]| found.eq_ignore_ascii_case(word.as_bytes()))
        };
        let verb = match () {
            () if is(0, "SCRIPT") && is(1, "LOAD") => {
                words.get(2).and_then(|script| self.learn(script));
                None
            }
            () if is(0, "EVAL") => words.get(1).and_then(|script| self.learn(script)),
            () if is(0, "EVALSHA") => words.get(1).and_then(|&hash| self.known(hash)),
            () => None,
        };
        self.enqueues.fetch_or(verb == Some(Verb::Enqueue), Relaxed);
        let (asked, fate) = match verb.and_then(|verb| self.plan.lie(verb, &words)) {
            Some(answer) => (Asked::Swallowed(answer), Fate::Replaced(lie::PING.to_vec())),
            None if verb == Some(Verb::Claim) => (Asked::Claim, Fate::Passed),
            None => {
                let changed = self.plan.break_script(&words);
                let changed = changed.or_else(|| self.plan.drop_window(&words));
                (Asked::Other, changed.map_or(Fate::Passed, Fate::Replaced))
            }
        };
        self.asked().push_back(asked);
        fate
    }

    fn reply(&self, reply: &[u8]) -> Fate {
        if is_hint(reply) {
            return self.hint();
        }
        match self.asked().pop_front() {
            Some(Asked::Claim) if reply.len() > BODY_MIN => self.answer(),
            Some(Asked::Swallowed(answer)) => Fate::Replaced(answer),
            _ => Fate::Passed,
        }
    }

    fn hint(&self) -> Fate {
        if !self.plan.happens(&self.plan.hints_lost) {
            return Fate::Passed;
        }
        self.plan.hints.fetch_add(1, Relaxed);
        Fate::Lost
    }

    fn answer(&self) -> Fate {
        if !self.plan.happens(&self.plan.answers_lost) {
            return Fate::Passed;
        }
        self.plan.answers.fetch_add(1, Relaxed);
        Fate::Cut
    }

    /// Returns the effect of a script and records it under its hash.
    fn learn(&self, script: &[u8]) -> Option<Verb> {
        let script = String::from_utf8_lossy(script);
        let (_, verb) = TITLES.into_iter().find(|(title, _)| script.contains(title))?;
        let hash = Script::new(&script).get_hash().to_owned();
        self.plan.scripts().insert(hash.into_bytes(), verb);
        Some(verb)
    }

    fn known(&self, hash: &[u8]) -> Option<Verb> {
        self.plan.scripts().get(hash).copied()
    }

    fn asked(&self) -> MutexGuard<'_, VecDeque<Asked>> {
        self.asked.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Returns whether it is a published message, in RESP3 or RESP2.
fn is_hint(reply: &[u8]) -> bool {
    matches!(reply.first(), Some(b'>' | b'*'))
        && resp::strings(reply).first().is_some_and(|kind| *kind == b"message")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_seed_repeats_what_is_lost() {
        let lost = |seed| {
            let plan = Plan::new(None, seed);
            let (never, half) = (AtomicU32::new(0), AtomicU32::new(500));
            let mut lost = Vec::new();
            for _ in 0..100 {
                assert!(!plan.happens(&never));
                lost.push(plan.happens(&half));
            }
            lost
        };
        assert_eq!(lost(1), lost(1));
        assert_ne!(lost(1), lost(2));
    }
}
