//! Keys of the settings.

/// Keys of all settings but the shards, in the order of their documentation. The variable of `http_listen` is
/// `RINGQ_HTTP_LISTEN`, its flag `--http-listen`.
pub const KEYS: [&str; 26] = [
    "listen",
    "http_listen",
    "http_json",
    "tls_cert",
    "tls_key",
    "tls_client_ca",
    "tls_client_auth",
    "ready_file",
    "data_dir",
    "redis_ca",
    "redis_cert",
    "redis_key",
    "replica",
    "threads",
    "log_format",
    "log_filter",
    "otlp",
    "max_streams",
    "max_concurrent_requests",
    "max_message_mib",
    "max_connections",
    "max_connections_per_peer",
    "request_timeout",
    "stream_max_age",
    "drain_delay",
    "shutdown_grace",
];
