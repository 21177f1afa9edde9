//! The effective settings as TOML.

use std::fmt::Display;

use toml::Value;

use crate::contract::duration_text::show_duration;
use crate::store::redis::RedisTlsFiles;
use crate::tls::{ClientCa, TlsFiles};

use super::Config;
use super::parse::{show_audit_calls, show_audit_log, show_client_auth, show_log_format};
use super::shard::show_state;

/// Formats the settings. Plain keys first: in TOML a table takes all lines that follow it.
pub(super) fn toml(config: &Config) -> String {
    let mut lines = vec![
        line("listen", text(config.listen)),
        line("http_listen", text(config.http_listen)),
        line("http_json", config.http_json),
        line("insecure", config.insecure),
        line("metrics_open", config.metrics_open),
        line("audit_log", text(show_audit_log(config.audit_log.as_ref()))),
        line("audit_calls", text(show_audit_calls(config.audit_calls))),
        line("data_dir", text(config.data_dir.display())),
        line("replica", text(&config.replica)),
    ];
    let RedisTlsFiles { ca, client } = &config.redis_tls;
    let (cert, key) = client.as_ref().map(|(cert, key)| (cert, key)).unzip();
    let files = [("redis_ca", ca.as_ref()), ("redis_cert", cert), ("redis_key", key)];
    let files = files.into_iter().filter_map(|(key, file)| Some((key, file?)));
    lines.extend(files.map(|(key, file)| line(key, text(file.display()))));
    lines.extend(config.topics.as_ref().map(|path| line("topics", text(path.display()))));
    lines.extend(config.identities.as_ref().map(|path| line("identities", text(path.display()))));
    if let Some(TlsFiles { cert, key, client_ca }) = &config.tls {
        lines.push(line("tls_cert", text(cert.display())));
        lines.push(line("tls_key", text(key.display())));
        if let Some(ClientCa { file, auth }) = client_ca {
            lines.push(line("tls_client_ca", text(file.display())));
            lines.push(line("tls_client_auth", text(show_client_auth(*auth))));
        }
    }
    lines.extend(config.ready_file.as_ref().map(|file| line("ready_file", text(file.display()))));
    lines.extend([
        line("threads", config.threads),
        line("log_format", text(show_log_format(config.log_format))),
        line("log_filter", text(&config.log_filter)),
        line("max_streams", config.max_streams),
        line("max_concurrent_requests", config.max_concurrent_requests),
        line("max_message_mib", config.max_message_mib),
        line("max_connections", config.max_connections),
        line("max_connections_per_peer", config.max_connections_per_peer),
        line("max_http_connections", config.max_http_connections),
        line("max_http_connections_per_peer", config.max_http_connections_per_peer),
        line("request_timeout", text(show_duration(config.request_timeout))),
        line("stream_max_age", text(show_duration(config.stream_max_age.unwrap_or_default()))),
        line("drain_delay", text(show_duration(config.drain_delay))),
    ]);
    // Without the setting the variables of OpenTelemetry select what is exported, there as here.
    lines.extend(config.otlp.setting.map(|signals| line("otlp", text(signals))));
    let grace =
        config.shutdown_grace.map(|grace| line("shutdown_grace", text(show_duration(grace))));
    lines.extend(grace);
    for shard in &config.shards {
        lines.push("\n[[shard]]\n".to_owned());
        lines.push(line("name", text(shard.name.as_str())));
        if shard.url.has_credentials() {
            lines.push("# The user or password of this url is not shown: add it.\n".to_owned());
        }
        lines.push(line("url", text(&shard.url)));
        lines.push(line("weight", shard.weight));
        lines.push(line("state", text(show_state(shard.state))));
    }
    lines.concat()
}

fn line(key: &str, value: impl Display) -> String {
    format!("{key} = {value}\n")
}

/// Returns a quoted string.
fn text(value: impl Display) -> Value {
    Value::String(value.to_string())
}
