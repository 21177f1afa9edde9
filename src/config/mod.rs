//! Settings: defaults, then the file, then `RINGQ_…` variables, then flags; the last one that has a setting wins. The
//! result is a valid [`Config`], or all the [`InvalidSettings`] at once.
//!
//! `deploy/ringq.toml` has the defaults and describes every setting; it is built in. A layer is plain text by key
//! (`layer`, `file`), so that a value is read in one way wherever it came from (`reader`: with `parse` and
//! `duration`, within `bounds`).
//!
//! This is the only reader of the environment.

mod bounds;
mod duration;
mod file;
mod invalid_setting;
mod keys;
mod layer;
mod machine;
mod nearest;
mod parse;
mod reader;
mod shard;
mod source;
#[cfg(test)]
mod tests;
mod toml_output;
mod variable;

use std::fs;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

pub use invalid_setting::{InvalidSetting, InvalidSettings};
pub use keys::KEYS;
pub use layer::ConfigFlags;
pub use shard::{ShardConfig, ShardUrl};

pub(crate) use invalid_setting::io_problem;
pub(crate) use nearest::nearest;

use crate::audit::{AuditCalls, AuditTarget};
use crate::store::redis::RedisTlsFiles;
use crate::telemetry::{LogFormat, OtelVariables, OtlpConfig};
use crate::tls::TlsFiles;

use layer::ConfigLayer;
use machine::Machine;
use reader::ConfigReader;

/// Default file, with the documentation of the settings.
pub const DEFAULTS: &str = include_str!("../../deploy/ringq.toml");

/// Effective settings of one server, checked. `deploy/ringq.toml` describes each in detail.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Config {
    /// Address at which gRPC is served; port 0 takes a free one. Default 127.0.0.1:7700.
    pub listen: SocketAddr,
    /// Address at which probes, metrics and JSON calls are served; port 0 takes a free one. Default 127.0.0.1:7701.
    pub http_listen: SocketAddr,
    /// True if calls are served as JSON at `http_listen`, too. Default true.
    pub http_json: bool,
    /// File or directory of the identities that may call this server. Default: none, and every client that reaches it may do
    /// everything.
    pub identities: Option<PathBuf>,
    /// File or directory of policies of topics. Default: none.
    pub topics: Option<PathBuf>,
    /// True if a server without identities may be reached from other machines. Default false.
    pub insecure: bool,
    /// True if `/metrics` needs no identity. Default false; without identities it needs none anyway.
    pub metrics_open: bool,
    /// Target of the audit log. Default: standard output if there are identities, else none.
    pub audit_log: Option<AuditTarget>,
    /// Calls in the audit log. Default: those that change what other callers rely on.
    pub audit_calls: AuditCalls,
    /// Files of TLS for both ports; `None`: they do not use it. Default: none.
    pub tls: Option<TlsFiles>,
    /// Shards: names and places differ, and at least one is active. Default: `s0`, a file in `data_dir`.
    pub shards: Vec<ShardConfig>,
    /// Directory of the default shard. Default `ringq-data`.
    pub data_dir: PathBuf,
    /// Files that `rediss` shards use. Default: none, and the system's certificates are trusted.
    pub redis_tls: RedisTlsFiles,
    /// Name of this server among its replicas: 1 to 64 of `[A-Za-z0-9._-]`. Default: the host name, or `ringq`.
    pub replica: String,
    /// File to which the server writes the addresses in use once it serves. Default: none.
    pub ready_file: Option<PathBuf>,
    /// Time in which settles are accepted after draining began, 0 s to 1 h. Default: 60 s, and 2 s for a server that
    /// is alone on one of its shards.
    pub shutdown_grace: Option<Duration>,
    /// Time in which the server goes on serving as `NOT_SERVING` before it drains, 0 s to 10 min. Default 0 s.
    pub drain_delay: Duration,
    /// Age at which streams are ended, 1 s to 7 days; `None`: never. Default 30 min.
    pub stream_max_age: Option<Duration>,
    /// Maximum number of open streams, 1 to 100 000. Default 1000.
    pub max_streams: usize,
    /// Maximum number of unary requests in flight, 1 to 1 000 000. Default 10 000.
    pub max_concurrent_requests: usize,
    /// Maximum MiB of messages in flight, 32 to 1 000 000. Default 256.
    pub max_message_mib: usize,
    /// Maximum number of open connections that carry calls, 1 to 1 000 000. Default 10 000.
    pub max_connections: usize,
    /// Maximum number of these connections from one address, 1 to 1 000 000. Default 5000.
    pub max_connections_per_peer: usize,
    /// Maximum number of open connections of the HTTP port that carry no calls, 1 to 1 000 000. Default 512.
    pub max_http_connections: usize,
    /// Maximum number of these connections from one address, 1 to 1 000 000. Default 256.
    pub max_http_connections_per_peer: usize,
    /// Maximum duration of a unary request, 100 ms to 1 h. Default 30 s.
    pub request_timeout: Duration,
    /// Format of log lines. Default text.
    pub log_format: LogFormat,
    /// Filter of log messages, in the syntax of `RUST_LOG`; it parses. Default `info`.
    pub log_filter: String,
    /// Export by OTLP. Default: what the variables of OpenTelemetry select, and without them nothing.
    pub otlp: OtlpConfig,
    /// Number of worker threads of the runtime, 1 to 256. Default: 1 on up to two cpus, else the number of cpus, at
    /// most 4.
    pub threads: usize,
}

// === impl Config ===

impl Config {
    /// Reads the settings of this process: its flags, its environment, the file they name, the defaults.
    ///
    /// # Errors
    /// Every [`InvalidSetting`] found in any of them.
    pub fn load(flags: &ConfigFlags) -> Result<Config, InvalidSettings> {
        let mut mistakes = Vec::new();
        let environment = ConfigLayer::environment(environment(), &mut mistakes);
        let flags = ConfigLayer::flags(flags);
        let file = read_file(&flags, &environment, &mut mistakes);
        resolve(
            vec![file, environment, flags],
            mistakes,
            &Machine::detect(),
            OtelVariables::new(self::environment()),
        )
    }

    /// Reads the settings that a file with this text gives, without flags and environment.
    ///
    /// # Errors
    /// Every [`InvalidSetting`] found in it.
    pub fn from_toml(text: &str) -> Result<Config, InvalidSettings> {
        let mut mistakes = Vec::new();
        let file = file::read("the given text", text, &mut mistakes);
        resolve(vec![file], mistakes, &Machine::detect(), OtelVariables::default())
    }

    /// Formats the settings as a file that gives the same settings again.
    #[must_use]
    pub fn to_toml(&self) -> String {
        toml_output::toml(self)
    }
}

/// Returns a variable that is no setting: of a client command, or with a token. An empty one counts as not set.
pub(crate) fn variable(name: &str) -> Option<String> {
    let found = environment().find(|(found, _)| found == name);
    found.map(|(_, value)| value).filter(|value| !value.is_empty())
}

/// Returns error texts for the variables that no command reads.
pub(crate) fn unknown_variables() -> Vec<String> {
    variable::unknown_variables(environment())
}

/// Lays the layers over the defaults, the last one on top, and reads the result.
fn resolve(
    layers: Vec<ConfigLayer>,
    mut mistakes: Vec<InvalidSetting>,
    machine: &Machine,
    otel: OtelVariables,
) -> Result<Config, InvalidSettings> {
    let defaults = file::read("the defaults", DEFAULTS, &mut mistakes).into_defaults();
    let layer = layers.into_iter().fold(defaults, ConfigLayer::merged_with);
    ConfigReader::new(layer, mistakes).config(machine, otel)
}

/// Reads the file that `--config` or `RINGQ_CONFIG` names, or returns an empty layer.
fn read_file(
    flags: &ConfigLayer,
    environment: &ConfigLayer,
    mistakes: &mut Vec<InvalidSetting>,
) -> ConfigLayer {
    let Some(file) = flags.get("config").or_else(|| environment.get("config")) else {
        return ConfigLayer::default();
    };
    match fs::read_to_string(&file.text) {
        Ok(text) => file::read(&file.text, &text, mistakes),
        Err(error) => {
            let problem = format!("cannot read {:?}: {}", file.text, io_problem(&error));
            mistakes.push(InvalidSetting::new("config", problem, &file.source));
            ConfigLayer::default()
        }
    }
}

#[expect(clippy::disallowed_methods, reason = "the one place that reads the environment")]
fn environment() -> impl Iterator<Item = (String, String)> {
    // Invalid UTF-8 is replaced, and then refused by the reader of the value.
    std::env::vars_os().map(|(name, value)| {
        (name.to_string_lossy().into_owned(), value.to_string_lossy().into_owned())
    })
}
