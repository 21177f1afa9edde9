//! The flags of `ringq serve` and `ringq config`: one for each setting, read by [`crate::config`].

use clap::Args;

use crate::config::ConfigFlags;

/// Flags of the server's settings. Values are checked together with those of the file and the environment, so that
/// all mistakes are reported at once. For the same reason clap does not read the environment here.
#[derive(Debug, Args)]
pub(super) struct ServeArgs {
    /// Read settings from this TOML file [env: RINGQ_CONFIG]
    #[arg(long, value_name = "FILE")]
    config: Option<String>,
    /// Serve gRPC here; port 0 takes a free one [default: 127.0.0.1:7700]
    #[arg(long, value_name = "ADDRESS:PORT")]
    listen: Option<String>,
    /// Serve probes, metrics and JSON calls here; port 0 takes a free one [default: 127.0.0.1:7701]
    #[arg(long, value_name = "ADDRESS:PORT")]
    http_listen: Option<String>,
    /// Serve calls as JSON over HTTP, true or false [default: true]
    #[arg(long, value_name = "BOOLEAN")]
    http_json: Option<String>,
    /// Admit the identities of this file or directory [default: none]
    #[arg(long, value_name = "PATH", help_heading = "Security")]
    identities: Option<String>,
    /// Let other machines reach a server without identities [default: false]
    #[arg(
        long,
        value_name = "BOOLEAN",
        num_args = 0..=1,
        default_missing_value = "true",
        help_heading = "Security"
    )]
    insecure: Option<String>,
    /// Serve /metrics without an identity, true or false [default: false]
    #[arg(long, value_name = "BOOLEAN", help_heading = "Security")]
    metrics_open: Option<String>,
    /// Write the audit log here: none, stdout or a directory [default: stdout with identities, else none]
    #[arg(long, value_name = "TARGET", help_heading = "Security")]
    audit_log: Option<String>,
    /// Log these calls there: changes or all [default: changes]
    #[arg(long, value_name = "CALLS", help_heading = "Security")]
    audit_calls: Option<String>,
    /// Use TLS with this certificate on both ports, a PEM file; needs --tls-key
    #[arg(long, value_name = "FILE", help_heading = "TLS")]
    tls_cert: Option<String>,
    /// Private key of --tls-cert, a PEM file
    #[arg(long, value_name = "FILE", help_heading = "TLS")]
    tls_key: Option<String>,
    /// Verify client certificates by these authorities, a PEM file
    #[arg(long, value_name = "FILE", help_heading = "TLS")]
    tls_client_ca: Option<String>,
    /// Client certificates are required or optional [default: required]
    #[arg(long, value_name = "MODE", help_heading = "TLS")]
    tls_client_auth: Option<String>,
    /// Store jobs here; repeat it for more shards [default: s0=sqlite:<DATA_DIR>/ringq.db]
    #[arg(long, value_name = "NAME=URL")]
    shard: Vec<String>,
    /// Directory of the default shard [default: ringq-data]
    #[arg(long, value_name = "DIR")]
    data_dir: Option<String>,
    /// Take the policies of topics from this file or directory [default: none]
    #[arg(long, value_name = "PATH")]
    topics: Option<String>,
    /// Trust these certificates at rediss shards, a PEM file [default: the system's]
    #[arg(long, value_name = "FILE")]
    redis_ca: Option<String>,
    /// Present this certificate to rediss shards, a PEM file
    #[arg(long, value_name = "FILE")]
    redis_cert: Option<String>,
    /// Private key of --redis-cert, a PEM file
    #[arg(long, value_name = "FILE")]
    redis_key: Option<String>,
    /// This server's name among its replicas [default: the host name]
    #[arg(long, value_name = "NAME")]
    replica: Option<String>,
    /// Write the addresses in use to this file, as JSON, once the server serves
    #[arg(long, value_name = "PATH")]
    ready_file: Option<String>,
    /// Worker threads [default: 1 on up to 2 cpus, else cpus, at most 4]
    #[arg(long, value_name = "NUMBER")]
    threads: Option<String>,
    /// Write log lines as text or json [default: text]
    #[arg(long, value_name = "FORMAT")]
    log_format: Option<String>,
    /// Log this, as in info,ringq::dispatch=debug [default: info]
    #[arg(long, value_name = "FILTER")]
    log_filter: Option<String>,
    /// Export these by OTLP: traces, metrics, logs, or none [default: what OTEL_* variables select]
    #[arg(long, value_name = "SIGNALS")]
    otlp: Option<String>,
    /// Most streams open at once [default: 1000]
    #[arg(long, value_name = "NUMBER", help_heading = "Limits")]
    max_streams: Option<String>,
    /// Most unary requests in flight [default: 10000]
    #[arg(long, value_name = "NUMBER", help_heading = "Limits")]
    max_concurrent_requests: Option<String>,
    /// Most MiB of messages in flight [default: 256]
    #[arg(long, value_name = "NUMBER", help_heading = "Limits")]
    max_message_mib: Option<String>,
    /// Most connections with calls open at once [default: 10000]
    #[arg(long, value_name = "NUMBER", help_heading = "Limits")]
    max_connections: Option<String>,
    /// Most of them from one address [default: 5000]
    #[arg(long, value_name = "NUMBER", help_heading = "Limits")]
    max_connections_per_peer: Option<String>,
    /// Most connections of the HTTP port without calls [default: 512]
    #[arg(long, value_name = "NUMBER", help_heading = "Limits")]
    max_http_connections: Option<String>,
    /// Most of them from one address [default: 256]
    #[arg(long, value_name = "NUMBER", help_heading = "Limits")]
    max_http_connections_per_peer: Option<String>,
    /// Timeout of a unary request [default: 30s]
    #[arg(long, value_name = "DURATION", help_heading = "Limits")]
    request_timeout: Option<String>,
    /// End streams at about this age; 0s: never [default: 30m]
    #[arg(long, value_name = "DURATION", help_heading = "Limits")]
    stream_max_age: Option<String>,
    /// After SIGTERM, keep serving as NOT_SERVING for this long [default: 0s]
    #[arg(long, value_name = "DURATION", help_heading = "Shutdown")]
    drain_delay: Option<String>,
    /// After that, accept settles of running jobs for this long [default: 60s; 2s if alone]
    #[arg(long, value_name = "DURATION", help_heading = "Shutdown")]
    shutdown_grace: Option<String>,
}

// === impl ServeArgs ===

impl From<ServeArgs> for ConfigFlags {
    fn from(flags: ServeArgs) -> ConfigFlags {
        let values = [
            ("listen", flags.listen),
            ("http_listen", flags.http_listen),
            ("http_json", flags.http_json),
            ("identities", flags.identities),
            ("insecure", flags.insecure),
            ("metrics_open", flags.metrics_open),
            ("audit_log", flags.audit_log),
            ("audit_calls", flags.audit_calls),
            ("tls_cert", flags.tls_cert),
            ("tls_key", flags.tls_key),
            ("tls_client_ca", flags.tls_client_ca),
            ("tls_client_auth", flags.tls_client_auth),
            ("data_dir", flags.data_dir),
            ("topics", flags.topics),
            ("redis_ca", flags.redis_ca),
            ("redis_cert", flags.redis_cert),
            ("redis_key", flags.redis_key),
            ("replica", flags.replica),
            ("ready_file", flags.ready_file),
            ("threads", flags.threads),
            ("log_format", flags.log_format),
            ("log_filter", flags.log_filter),
            ("otlp", flags.otlp),
            ("max_streams", flags.max_streams),
            ("max_concurrent_requests", flags.max_concurrent_requests),
            ("max_message_mib", flags.max_message_mib),
            ("max_connections", flags.max_connections),
            ("max_connections_per_peer", flags.max_connections_per_peer),
            ("max_http_connections", flags.max_http_connections),
            ("max_http_connections_per_peer", flags.max_http_connections_per_peer),
            ("request_timeout", flags.request_timeout),
            ("stream_max_age", flags.stream_max_age),
            ("drain_delay", flags.drain_delay),
            ("shutdown_grace", flags.shutdown_grace),
        ];
        let given = values.into_iter().filter_map(|(key, value)| Some((key, value?)));
        ConfigFlags { config: flags.config, shards: flags.shard, values: given.collect() }
    }
}

#[cfg(test)]
mod tests {
    use clap::{Args as _, Command, FromArgMatches as _};

    use super::*;
    use crate::config::KEYS;

    /// Parses flags as `ringq serve` would.
    fn parse(args: &[&str]) -> ConfigFlags {
        let command = ServeArgs::augment_args(Command::new("serve"));
        let matches = command.try_get_matches_from(args).unwrap();
        ServeArgs::from_arg_matches(&matches).unwrap().into()
    }

    #[test]
    fn every_setting_has_its_flag() {
        for key in KEYS {
            let flag = format!("--{}", key.replace('_', "-"));
            let flags = parse(&["serve", &flag, "x"]);
            assert_eq!(flags.values, [(key, "x".to_owned())]);
        }
        let flags = parse(&["serve", "--config", "f", "--shard", "a=b", "--shard", "c=d"]);
        assert_eq!(flags.config.as_deref(), Some("f"));
        assert_eq!(flags.shards, ["a=b", "c=d"]);
    }
}
