//! The OTLP receiver of a signal, from the variables of OpenTelemetry.

use std::time::Duration;

use anyhow::Context as _;
use percent_encoding::percent_decode_str;
use tonic::codec::CompressionEncoding;
use tonic::metadata::{MetadataKey, MetadataMap};
use tonic::transport::{Channel, ClientTlsConfig, Endpoint};

use super::signals::{OtelVariables, OtlpConfig, Signals};

/// Default of `OTEL_EXPORTER_OTLP_ENDPOINT`.
const URL_DEFAULT: &str = "http://localhost:4317";
/// Default of `OTEL_EXPORTER_OTLP_TIMEOUT`.
const TIMEOUT_DEFAULT: Duration = Duration::from_secs(10);

/// Returns the URL of the receiver of `signal`, as `TRACES`. One without a scheme is encrypted, unless
/// `OTEL_EXPORTER_OTLP_INSECURE` is true.
pub(super) fn url(variables: &OtelVariables, signal: &str) -> String {
    let url = variables.exporter(signal, "ENDPOINT").unwrap_or(URL_DEFAULT);
    let insecure = variables.exporter(signal, "INSECURE").unwrap_or_default();
    match (url.contains("://"), insecure.eq_ignore_ascii_case("true")) {
        (true, _) => url.to_owned(),
        (false, true) => format!("http://{url}"),
        (false, false) => format!("https://{url}"),
    }
}

/// Returns the URLs of the receivers of all signals, each once.
pub(super) fn urls(variables: &OtelVariables, signals: Signals) -> String {
    let mut urls: Vec<_> =
        signals.names().map(|signal| url(variables, &signal.to_uppercase())).collect();
    urls.dedup();
    urls.join(" ")
}

/// Returns the variable whose URL cannot be used, and an error text.
#[must_use]
pub fn invalid_receiver(otlp: &OtlpConfig) -> Option<(String, String)> {
    otlp.signals.names().find_map(|signal| {
        let signal = signal.to_uppercase();
        let url = url(&otlp.variables, &signal);
        // No problem quotes the url: it may contain a password.
        let problem = if url.contains('@') {
            "has a user or a password: send credentials with OTEL_EXPORTER_OTLP_HEADERS".to_owned()
        } else if url.contains('?') || Endpoint::from_shared(url).is_err() {
            format!("is not a URL like {URL_DEFAULT}")
        } else {
            return None;
        };
        let (name, _) = otlp.variables.exporter_variable(&signal, "ENDPOINT")?;
        Some((name.to_owned(), problem))
    })
}

/// Returns the settings of TLS for an encrypted receiver: the certificate authorities of the system, or those of the
/// file that `SSL_CERT_FILE` names.
pub(super) fn tls(url: &str) -> Option<ClientTlsConfig> {
    url.starts_with("https://").then(|| ClientTlsConfig::new().with_enabled_roots())
}

/// Returns a connection to a receiver. It is made when it is first used.
pub(super) fn connection(
    variables: &OtelVariables,
    signal: &str,
    url: String,
) -> anyhow::Result<Channel> {
    let tls = tls(&url);
    let endpoint = Endpoint::from_shared(url).context("its URL is not valid")?;
    let endpoint = match tls {
        Some(tls) => endpoint.tls_config(tls)?,
        None => endpoint,
    };
    let timeout = variables.exporter(signal, "TIMEOUT").and_then(milliseconds);
    let timeout = timeout.unwrap_or(TIMEOUT_DEFAULT);
    // The time to connect is not part of the other one.
    Ok(endpoint.connect_timeout(timeout).timeout(timeout).connect_lazy())
}

/// Returns the compression of messages; none if the variable has no valid value.
pub(super) fn compression(variables: &OtelVariables, signal: &str) -> Option<CompressionEncoding> {
    let compression = variables.exporter(signal, "COMPRESSION");
    compression.filter(|name| *name == "gzip").map(|_| CompressionEncoding::Gzip)
}

/// Returns the metadata of calls: `name=value` pairs with commas between them, percent-encoded. Others are left out.
pub(super) fn metadata(variables: &OtelVariables, signal: &str) -> MetadataMap {
    let list = variables.exporter(signal, "HEADERS").unwrap_or_default();
    let pair = |pair: &str| {
        let (name, value) = pair.split_once('=')?;
        let name = MetadataKey::from_bytes(name.trim().to_lowercase().as_bytes()).ok()?;
        let value = percent_decode_str(value.trim()).decode_utf8().ok()?.parse().ok()?;
        Some((name, value))
    };
    let mut metadata = MetadataMap::new();
    for (name, value) in list.split(',').filter_map(pair) {
        metadata.insert(name, value);
    }
    metadata
}

/// Parses a number of milliseconds, at least 1.
pub(super) fn milliseconds(text: &str) -> Option<Duration> {
    text.parse().ok().filter(|number| *number > 0).map(Duration::from_millis)
}

/// Returns whether the text is one of the two values of a flag.
pub(super) fn is_flag(text: &str) -> bool {
    text.eq_ignore_ascii_case("true") || text.eq_ignore_ascii_case("false")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn variables(list: &[(&str, &str)]) -> OtelVariables {
        OtelVariables::new(list.iter().map(|(name, value)| (name.to_string(), value.to_string())))
    }

    #[test]
    fn a_url_without_a_scheme_is_encrypted_unless_asked_for() {
        let endpoint = |url| ("OTEL_EXPORTER_OTLP_ENDPOINT", url);
        let insecure = ("OTEL_EXPORTER_OTLP_INSECURE", "true");
        for (list, want) in [
            (&[][..], URL_DEFAULT),
            (&[endpoint("http://h:1")], "http://h:1"),
            (&[endpoint("h:1")], "https://h:1"),
            (&[endpoint("h:1"), insecure], "http://h:1"),
            (&[endpoint("https://h:1"), insecure], "https://h:1"),
            (
                &[endpoint("http://h:1"), ("OTEL_EXPORTER_OTLP_METRICS_ENDPOINT", "http://m:1")],
                "http://m:1",
            ),
        ] {
            let url = url(&variables(list), "METRICS");
            assert_eq!(url, want, "{list:?}");
            assert_eq!(tls(&url).is_some(), url.starts_with("https"));
        }
    }

    #[test]
    fn headers_are_decoded_and_malformed_ones_left_out() {
        let read = |list| metadata(&variables(&[("OTEL_EXPORTER_OTLP_HEADERS", list)]), "METRICS");
        let good = read("Authorization=Bearer%20a%3D, x-key = 1,,none,bad name=1,key=%0a");
        assert_eq!(good.get("authorization").unwrap(), "Bearer a=");
        assert_eq!(good.get("x-key").unwrap(), "1");
        assert_eq!(good.len(), 2);
        assert!(read("").is_empty());
    }
}
