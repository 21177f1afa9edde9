//! From the merged layers to the settings.

use std::net::SocketAddr;
use std::ops::RangeInclusive;
use std::path::Path;
use std::time::Duration;

use super::layer::Layer;
use super::machine::Machine;
use super::source::Source;
use super::{Config, Mistake, Mistakes, Shard, bound, duration, parse};
use crate::domain::ring::ShardState;
use crate::store::redis::Tls;

/// Reads settings, collecting mistakes on the way.
pub(super) struct Reader {
    layer: Layer,
    mistakes: Vec<Mistake>,
}

// === impl Reader ===

impl Reader {
    /// `mistakes` are those that were found while the layers were made.
    pub(super) fn new(layer: Layer, mistakes: Vec<Mistake>) -> Reader {
        Reader { layer, mistakes }
    }

    /// The settings, if there is no mistake at all.
    pub(super) fn config(mut self, machine: &Machine) -> Result<Config, Mistakes> {
        match self.read(machine) {
            Some(config) if self.mistakes.is_empty() => Ok(config),
            _ => Err(Mistakes(self.mistakes)),
        }
    }

    /// Reads every setting before the first `?`, so that no mistake hides another.
    fn read(&mut self, machine: &Machine) -> Option<Config> {
        let listen = self.required("listen", parse::address);
        let http_listen = self.required("http_listen", parse::address);
        self.check_addresses(listen, http_listen);
        let data_dir = self.required("data_dir", parse::path);
        let redis_tls = self.redis_tls();
        let shards = self.shards(data_dir.as_deref(), &redis_tls);
        let replica = self.optional("replica", parse::replica);
        let ready_file = self.optional("ready_file", parse::path);
        let shutdown_grace = self
            .optional("shutdown_grace", |text| duration::duration(text, &bound::SHUTDOWN_GRACE));
        let drain_delay = self.duration("drain_delay", &bound::DRAIN_DELAY);
        let stream_max_age = self.required("stream_max_age", |text| {
            duration::duration_or_zero(text, &bound::STREAM_AGE)
        });
        let max_streams = self.number("max_streams", &bound::STREAMS);
        let max_concurrent_requests =
            self.number("max_concurrent_requests", &bound::CONCURRENT_REQUESTS);
        let max_message_mib = self.number("max_message_mib", &bound::MESSAGE_MIB);
        let max_connections = self.number("max_connections", &bound::CONNECTIONS);
        let max_connections_per_peer = self.number("max_connections_per_peer", &bound::CONNECTIONS);
        let request_timeout = self.duration("request_timeout", &bound::REQUEST_TIMEOUT);
        let log_format = self.required("log_format", parse::log_format);
        let log_filter = self.required("log_filter", parse::log_filter);
        let threads = self.optional("threads", |text| parse::number(text, &bound::THREADS));
        Some(Config {
            listen: listen?,
            http_listen: http_listen?,
            shards,
            data_dir: data_dir?,
            redis_tls,
            replica: replica.unwrap_or_else(|| machine.replica()),
            ready_file,
            shutdown_grace,
            drain_delay: drain_delay?,
            stream_max_age: stream_max_age?,
            max_streams: max_streams?,
            max_concurrent_requests: max_concurrent_requests?,
            max_message_mib: max_message_mib?,
            max_connections: max_connections?,
            max_connections_per_peer: max_connections_per_peer?,
            request_timeout: request_timeout?,
            log_format: log_format?,
            log_filter: log_filter?,
            threads: threads.unwrap_or_else(|| machine.threads()),
        })
    }

    /// A setting that may be missing. `None` after a mistake, too.
    fn optional<T>(
        &mut self,
        key: &'static str,
        parse: impl FnOnce(&str) -> Result<T, String>,
    ) -> Option<T> {
        let found = self.layer.get(key)?;
        let parsed = parse(&found.text);
        parsed.map_err(|problem| self.mistakes.push(Mistake::new(key, problem, &found.from))).ok()
    }

    /// A setting that has a value in the default file.
    fn required<T>(
        &mut self,
        key: &'static str,
        parse: impl FnOnce(&str) -> Result<T, String>,
    ) -> Option<T> {
        if self.layer.get(key).is_none() {
            self.mistakes.push(Mistake::new(key, "is missing".to_owned(), &Source::Default));
        }
        self.optional(key, parse)
    }

    fn duration(
        &mut self,
        key: &'static str,
        bounds: &RangeInclusive<Duration>,
    ) -> Option<Duration> {
        self.required(key, |text| duration::duration(text, bounds))
    }

    fn number(&mut self, key: &'static str, bounds: &RangeInclusive<usize>) -> Option<usize> {
        self.required(key, |text| parse::number(text, bounds))
    }

    /// The files for `rediss` shards. A certificate is of no use without its key, nor the other way round.
    fn redis_tls(&mut self) -> Tls {
        let [ca, cert, key] =
            ["redis_ca", "redis_cert", "redis_key"].map(|key| self.optional(key, parse::path));
        for (given, missing) in [("redis_cert", "redis_key"), ("redis_key", "redis_cert")] {
            if let (Some(found), None) = (self.layer.get(given), self.layer.get(missing)) {
                let problem = format!("is of no use without {missing}; give both or none");
                self.mistakes.push(Mistake::new(given, problem, &found.from));
            }
        }
        Tls { ca, client: cert.zip(key) }
    }

    /// The shards given, or the default one.
    fn shards(&mut self, data_dir: Option<&Path>, redis_tls: &Tls) -> Vec<Shard> {
        let given = &self.layer.shards[..];
        let mut shards: Vec<Shard> = Vec::new();
        for text in given {
            let mut problems = Vec::new();
            if let Some(shard) = Shard::read(text, &mut problems) {
                let shard = shard.with_tls(redis_tls);
                problems.extend(shards.iter().filter_map(|other| clash(&shard, other)));
                shards.push(shard);
            }
            let mistake = |problem| Mistake::new("shard", problem, &text.from);
            self.mistakes.extend(problems.into_iter().map(mistake));
        }
        if let [first, ..] = given
            && !shards.is_empty()
            && shards.iter().all(|shard| shard.state == ShardState::Draining)
        {
            let problem = "none is active, so nothing could be enqueued; let one be".to_owned();
            self.mistakes.push(Mistake::new("shard", problem, &first.from));
        }
        // What could not be read may be the encrypted one.
        let is_whole = shards.len() == given.len();
        if given.is_empty() {
            shards.extend(data_dir.map(Shard::default_in));
        }
        if is_whole {
            self.check_secrecy(&shards);
        }
        shards
    }

    /// Who names certificates means encryption, and `redis` where `rediss` was meant has none. Nor has a shard that
    /// is not named at all, for want of a setting that was lost.
    fn check_secrecy(&mut self, shards: &[Shard]) {
        let found = ["redis_ca", "redis_cert"].map(|key| Some((key, self.layer.get(key)?)));
        let Some((key, found)) = found.into_iter().flatten().next() else { return };
        if !shards.iter().any(Shard::is_secure) {
            let problem = "is used by no shard; write rediss:// for an encrypted one".to_owned();
            self.mistakes.push(Mistake::new(key, problem, &found.from));
        }
    }

    /// Two listeners on one fixed port would fail later, and say less.
    fn check_addresses(&mut self, listen: Option<SocketAddr>, http_listen: Option<SocketAddr>) {
        let Some(address) = listen.filter(|a| a.port() != 0 && http_listen == Some(*a)) else {
            return;
        };
        // Whoever set one of them set this clash, not the defaults.
        let places = ["http_listen", "listen"].into_iter().filter_map(|key| self.layer.get(key));
        let set = places.map(|found| &found.from).find(|from| **from != Source::Default);
        let problem = format!("{address} is the address of listen, too; choose another port");
        let from = set.unwrap_or(&Source::Default);
        self.mistakes.push(Mistake::new("http_listen", problem, from));
    }
}

/// What two shards must not share.
fn clash(shard: &Shard, other: &Shard) -> Option<String> {
    let name = &shard.name;
    if shard.name == other.name {
        Some(format!("{name} is given twice; a name belongs to one shard for ever"))
    } else if shard.url.is_same(&other.url) {
        Some(format!("{name} is at the place of {}; a shard has a place of its own", other.name))
    } else {
        None
    }
}
