//! Converts the merged layers to the settings.

use std::net::SocketAddr;
use std::ops::RangeInclusive;
use std::path::Path;
use std::time::Duration;

use super::layer::ConfigLayer;
use super::machine::Machine;
use super::source::SettingSource;
use super::{Config, InvalidSetting, InvalidSettings, ShardConfig, bounds, duration, parse};
use crate::audit::AuditTarget;
use crate::domain::ring::ShardState;
use crate::store::redis::RedisTlsFiles;
use crate::telemetry::{OtelVariables, OtlpConfig, Signals, invalid_receiver};
use crate::tls::{ClientCa, TlsFiles};

/// Reads settings and collects mistakes on the way.
pub(super) struct ConfigReader {
    layer: ConfigLayer,
    mistakes: Vec<InvalidSetting>,
}

// === impl ConfigReader ===

impl ConfigReader {
    /// Creates a reader; `mistakes` are those that were found while the layers were made.
    pub(super) fn new(layer: ConfigLayer, mistakes: Vec<InvalidSetting>) -> ConfigReader {
        ConfigReader { layer, mistakes }
    }

    /// Returns the settings, if there is no mistake at all.
    pub(super) fn config(
        mut self,
        machine: &Machine,
        otel: OtelVariables,
    ) -> Result<Config, InvalidSettings> {
        match self.read(machine, otel) {
            Some(config) if self.mistakes.is_empty() => Ok(config),
            _ => Err(InvalidSettings(self.mistakes)),
        }
    }

    fn otlp(&mut self, otel: OtelVariables) -> OtlpConfig {
        let signals = self.optional("otlp", Signals::parse);
        let otlp = OtlpConfig::new(signals, otel);
        if let Some((variable, problem)) = invalid_receiver(&otlp) {
            let from = SettingSource::Environment(variable);
            self.mistakes.push(InvalidSetting::new("otlp", problem, &from));
        }
        otlp
    }

    /// Reads every setting before the first `?`, so that no mistake hides another.
    fn read(&mut self, machine: &Machine, otel: OtelVariables) -> Option<Config> {
        let listen = self.required("listen", parse::address);
        let http_listen = self.required("http_listen", parse::address);
        let http_json = self.required("http_json", parse::switch);
        let identities = self.optional("identities", parse::path);
        let insecure = self.required("insecure", parse::switch);
        let metrics_open = self.required("metrics_open", parse::switch);
        let audit_log = self.optional("audit_log", parse::audit_log);
        let audit_calls = self.required("audit_calls", parse::audit_calls);
        self.check_addresses(listen, http_listen);
        self.check_reach(listen, http_listen, insecure);
        let tls = self.tls();
        let data_dir = self.required("data_dir", parse::path);
        let topics = self.optional("topics", parse::path);
        let redis_tls = self.redis_tls();
        let shards = self.shards(data_dir.as_deref(), &redis_tls);
        let replica = self.optional("replica", parse::replica);
        let ready_file = self.optional("ready_file", parse::path);
        let shutdown_grace = self
            .optional("shutdown_grace", |text| duration::duration(text, &bounds::SHUTDOWN_GRACE));
        let drain_delay = self.duration("drain_delay", &bounds::DRAIN_DELAY);
        let stream_max_age = self.required("stream_max_age", |text| {
            duration::duration_or_zero(text, &bounds::STREAM_AGE)
        });
        let max_streams = self.number("max_streams", &bounds::STREAMS);
        let max_concurrent_requests =
            self.number("max_concurrent_requests", &bounds::CONCURRENT_REQUESTS);
        let max_message_mib = self.number("max_message_mib", &bounds::MESSAGE_MIB);
        let max_connections = self.connections("max_connections");
        let max_connections_per_peer = self.connections("max_connections_per_peer");
        let max_http_connections = self.connections("max_http_connections");
        let max_http_connections_per_peer = self.connections("max_http_connections_per_peer");
        let request_timeout = self.duration("request_timeout", &bounds::REQUEST_TIMEOUT);
        let log_format = self.required("log_format", parse::log_format);
        let log_filter = self.required("log_filter", parse::log_filter);
        let otlp = self.otlp(otel);
        let threads = self.optional("threads", |text| parse::number(text, &bounds::THREADS));
        Some(Config {
            listen: listen?,
            http_listen: http_listen?,
            http_json: http_json?,
            audit_log: audit_log
                .unwrap_or_else(|| identities.as_ref().map(|_| AuditTarget::Stdout)),
            audit_calls: audit_calls?,
            identities,
            insecure: insecure?,
            metrics_open: metrics_open?,
            tls,
            shards,
            data_dir: data_dir?,
            topics,
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
            max_http_connections: max_http_connections?,
            max_http_connections_per_peer: max_http_connections_per_peer?,
            request_timeout: request_timeout?,
            log_format: log_format?,
            log_filter: log_filter?,
            otlp,
            threads: threads.unwrap_or_else(|| machine.threads()),
        })
    }

    /// Reads a limit on connections.
    fn connections(&mut self, key: &'static str) -> Option<usize> {
        self.number(key, &bounds::CONNECTIONS)
    }

    /// Reads a setting that may be missing. Returns `None` after a mistake, too.
    fn optional<T>(
        &mut self,
        key: &'static str,
        parse: impl FnOnce(&str) -> Result<T, String>,
    ) -> Option<T> {
        let found = self.layer.get(key)?;
        let parsed = parse(&found.text);
        parsed
            .map_err(|problem| self.mistakes.push(InvalidSetting::new(key, problem, &found.source)))
            .ok()
    }

    /// Reads a setting that has a value in the default file.
    fn required<T>(
        &mut self,
        key: &'static str,
        parse: impl FnOnce(&str) -> Result<T, String>,
    ) -> Option<T> {
        if self.layer.get(key).is_none() {
            self.mistakes.push(InvalidSetting::new(
                key,
                "is missing".to_owned(),
                &SettingSource::Default,
            ));
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

    /// Reads the files of the ports' TLS. Those for client certificates are refused without those of the server: the
    /// ports would be open.
    fn tls(&mut self) -> Option<TlsFiles> {
        let [cert, key, file] =
            ["tls_cert", "tls_key", "tls_client_ca"].map(|key| self.optional(key, parse::path));
        let auth = self.optional("tls_client_auth", parse::client_auth);
        self.check_pair("tls_cert", "tls_key");
        self.check_needs("tls_client_ca", "tls_cert");
        self.check_needs("tls_client_auth", "tls_client_ca");
        let client_ca = file.map(|file| ClientCa { file, auth: auth.unwrap_or_default() });
        let (cert, key) = cert.zip(key)?;
        Some(TlsFiles { cert, key, client_ca })
    }

    /// Refuses a certificate without its key, and a key without its certificate.
    fn check_pair(&mut self, cert: &'static str, key: &'static str) {
        for (given, missing) in [(cert, key), (key, cert)] {
            if let (Some(found), None) = (self.layer.get(given), self.layer.get(missing)) {
                let problem = format!("is of no use without {missing}; give both or none");
                self.mistakes.push(InvalidSetting::new(given, problem, &found.source));
            }
        }
    }

    /// Refuses a setting that has no effect without another one.
    fn check_needs(&mut self, given: &'static str, missing: &'static str) {
        if let (Some(found), None) = (self.layer.get(given), self.layer.get(missing)) {
            let problem = format!("is of no use without {missing}");
            self.mistakes.push(InvalidSetting::new(given, problem, &found.source));
        }
    }

    /// Reads the files for `rediss` shards. A certificate is of no use without its key, nor a key without its
    /// certificate.
    fn redis_tls(&mut self) -> RedisTlsFiles {
        let [ca, cert, key] =
            ["redis_ca", "redis_cert", "redis_key"].map(|key| self.optional(key, parse::path));
        self.check_pair("redis_cert", "redis_key");
        RedisTlsFiles { ca, client: cert.zip(key) }
    }

    /// Reads the configured shards, or returns the default one.
    fn shards(&mut self, data_dir: Option<&Path>, redis_tls: &RedisTlsFiles) -> Vec<ShardConfig> {
        let given = &self.layer.shards[..];
        let mut shards: Vec<ShardConfig> = Vec::new();
        for text in given {
            let mut problems = Vec::new();
            if let Some(shard) = ShardConfig::read(text, &mut problems) {
                let shard = shard.with_tls(redis_tls);
                problems.extend(shards.iter().filter_map(|other| shared_resource(&shard, other)));
                shards.push(shard);
            }
            let mistake = |problem| InvalidSetting::new("shard", problem, &text.source);
            self.mistakes.extend(problems.into_iter().map(mistake));
        }
        if let [first, ..] = given
            && !shards.is_empty()
            && shards.iter().all(|shard| shard.state == ShardState::Draining)
        {
            let problem =
                "no shard is active, so no job can be enqueued; set the state of one to active"
                    .to_owned();
            self.mistakes.push(InvalidSetting::new("shard", problem, &first.source));
        }
        // A shard that could not be read may be the encrypted one.
        let is_whole = shards.len() == given.len();
        if given.is_empty() {
            shards.extend(data_dir.map(ShardConfig::default_in));
        }
        if is_whole {
            self.check_secrecy(&shards);
        }
        shards
    }

    /// Refuses certificates when no shard is encrypted: they were set for encryption, and `redis` written instead of
    /// `rediss` has none. The default shard, used because the setting of the shards was lost, has none either.
    fn check_secrecy(&mut self, shards: &[ShardConfig]) {
        let found = ["redis_ca", "redis_cert"].map(|key| Some((key, self.layer.get(key)?)));
        let Some((key, found)) = found.into_iter().flatten().next() else { return };
        if !shards.iter().any(ShardConfig::is_secure) {
            let problem = "is used by no shard; write rediss:// for an encrypted one".to_owned();
            self.mistakes.push(InvalidSetting::new(key, problem, &found.source));
        }
    }

    /// Refuses addresses that other machines can reach if nothing keeps them from all jobs.
    fn check_reach(
        &mut self,
        listen: Option<SocketAddr>,
        http_listen: Option<SocketAddr>,
        insecure: Option<bool>,
    ) {
        if self.layer.get("identities").is_some() || insecure != Some(false) {
            return;
        }
        for (key, address) in [("listen", listen), ("http_listen", http_listen)] {
            let reachable = address.filter(|address| !address.ip().to_canonical().is_loopback());
            if let (Some(address), Some(found)) = (reachable, self.layer.get(key)) {
                let problem = format!(
                    "{address} can be reached from other machines, and every client there could do everything: set \
                     identities (docs/security.md), or insecure = true (--insecure) if only trusted programs can \
                     reach it"
                );
                self.mistakes.push(InvalidSetting::new(key, problem, &found.source));
            }
        }
    }

    /// Refuses two listeners on one fixed port, which would fail later, with a less clear error.
    fn check_addresses(&mut self, listen: Option<SocketAddr>, http_listen: Option<SocketAddr>) {
        let Some(address) = listen.filter(|a| a.port() != 0 && http_listen == Some(*a)) else {
            return;
        };
        // The place that set one of the two caused this clash, not the defaults.
        let places = ["http_listen", "listen"].into_iter().filter_map(|key| self.layer.get(key));
        let set = places.map(|found| &found.source).find(|from| **from != SettingSource::Default);
        let problem = format!("{address} is the address of listen, too; choose another port");
        let from = set.unwrap_or(&SettingSource::Default);
        self.mistakes.push(InvalidSetting::new("http_listen", problem, from));
    }
}

/// Returns an error text if two shards share their name or their place.
fn shared_resource(shard: &ShardConfig, other: &ShardConfig) -> Option<String> {
    let name = &shard.name;
    if shard.name == other.name {
        Some(format!("{name} is given twice; a name belongs to one shard for ever"))
    } else if shard.url.is_same(&other.url) {
        Some(format!("{name} has the same place as {}; each shard needs its own place", other.name))
    } else {
        None
    }
}
