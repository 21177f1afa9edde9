//! Variables of OpenTelemetry whose values have no effect. The specification wants a warning and the default, so that a
//! mistake in telemetry never stops a service; the SDK ignores most of them without a word.

use super::batches::{NUMBERS, number};
use super::receiver::{is_flag, milliseconds, url};
use super::signals::{OtelVariables, Signals};

/// Samplers that the SDK has.
const SAMPLERS: [&str; 6] = [
    "always_on",
    "always_off",
    "traceidratio",
    "parentbased_always_on",
    "parentbased_always_off",
    "parentbased_traceidratio",
];
/// Variables of the specification that this server does not support.
const UNSUPPORTED: [&str; 3] = ["CERTIFICATE", "CLIENT_CERTIFICATE", "CLIENT_KEY"];

/// Returns a sentence for each variable that has no effect, or another one than its user may expect, on the signals
/// that are exported. It does not contain headers, which may be tokens.
pub(super) fn warnings(variables: &OtelVariables, signals: Signals) -> Vec<String> {
    let mut found = switches(variables);
    if !signals.any() {
        return found;
    }
    if signals.traces {
        found.extend(sampler(variables));
    }
    for (name, bounds) in NUMBERS {
        let value = variables.get(name).filter(|_| number(variables, name).is_none());
        let (min, max) = (bounds.start(), bounds.end());
        let problem =
            |value| format!("{name}={value}: not a whole number from {min} to {max}; ignored");
        found.extend(value.map(problem));
    }
    let resource = variables.get("OTEL_RESOURCE_ATTRIBUTES");
    if let Some(list) = resource.filter(|list| !are_pairs(list)) {
        found.push(format!(
            "OTEL_RESOURCE_ATTRIBUTES={list}: not pairs like name=value with commas between them; ignored in part"
        ));
    }
    let exported =
        [(signals.traces, "TRACES"), (signals.metrics, "METRICS"), (signals.logs, "LOGS")];
    for (_, signal) in exported.into_iter().filter(|(on, _)| *on) {
        found.extend(exporter(variables, signal));
    }
    found.dedup();
    found
}

/// Returns the warnings about variables that switch signals on and off. A Prometheus scrapes metrics, whatever a
/// variable has about that.
fn switches(variables: &OtelVariables) -> Vec<String> {
    let mut found = Vec::new();
    if let Some(value) = variables.get("OTEL_SDK_DISABLED").filter(|value| !is_flag(value)) {
        found.push(format!("OTEL_SDK_DISABLED={value}: not true or false; ignored"));
    }
    for (name, known) in [
        ("OTEL_TRACES_EXPORTER", &["otlp", "none"][..]),
        ("OTEL_METRICS_EXPORTER", &["otlp", "none", "prometheus"]),
        ("OTEL_LOGS_EXPORTER", &["otlp", "none"]),
    ] {
        let list = variables.get(name).unwrap_or("none");
        for exporter in list.split(',').map(str::trim).filter(|word| !known.contains(word)) {
            let exporters = known.join(", ");
            found.push(format!(
                "{name}={list}: {exporter} is not one of {exporters}; it exports nothing"
            ));
        }
    }
    found
}

fn sampler(variables: &OtelVariables) -> Vec<String> {
    let sampler = variables.get("OTEL_TRACES_SAMPLER").unwrap_or("parentbased_always_on");
    if !SAMPLERS.contains(&sampler) {
        let known = SAMPLERS.join(", ");
        return vec![format!(
            "OTEL_TRACES_SAMPLER={sampler}: not one of {known}; ignored, so all traces are exported that no caller excludes"
        )];
    }
    let share = variables.get("OTEL_TRACES_SAMPLER_ARG");
    let is_share = |text: &str| text.parse().is_ok_and(|share: f64| (0.0..=1.0).contains(&share));
    if sampler.ends_with("traceidratio") && !share.is_some_and(is_share) {
        let share = share.unwrap_or("(not set)");
        return vec![format!(
            "OTEL_TRACES_SAMPLER_ARG={share}: not a share from 0.0 to 1.0; ignored, so all traces are sampled"
        )];
    }
    Vec::new()
}

/// Returns the warnings about the exporter of one signal.
fn exporter(variables: &OtelVariables, signal: &str) -> Vec<String> {
    let mut found = Vec::new();
    let mut check = |name: &str, is_good: &dyn Fn(&str) -> bool, problem: &str| {
        if let Some((variable, value)) = variables.exporter_variable(signal, name)
            && !is_good(value)
        {
            let value = if name == "HEADERS" { "..." } else { value };
            found.push(format!("{variable}={value}: {problem}"));
        }
    };
    check(
        "PROTOCOL",
        &|value| value == "grpc",
        "ignored, because this server exports by gRPC; give a receiver for gRPC, usually port 4317",
    );
    check("COMPRESSION", &|value| ["gzip", "none"].contains(&value), "not gzip or none; ignored");
    check(
        "TIMEOUT",
        &|value| milliseconds(value).is_some(),
        "not a number of milliseconds; ignored",
    );
    check("INSECURE", &is_flag, "not true or false; ignored");
    let pairs =
        |value: &str| value.split(',').all(|pair| pair.trim().is_empty() || pair.contains('='));
    check("HEADERS", &pairs, "not pairs like name=value with commas between them; ignored in part");
    check(
        "ENDPOINT",
        &|value| value.contains("://") || url(variables, signal).starts_with("http://"),
        "has no http:// or https://, so the connection is encrypted, as the specification wants it",
    );
    for name in UNSUPPORTED {
        check(
            name,
            &|_| false,
            "not supported; ignored. SSL_CERT_FILE names certificate authorities",
        );
    }
    found
}

fn are_pairs(list: &str) -> bool {
    list.split(',').all(|pair| pair.trim().is_empty() || pair.contains('='))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_value_without_effect_is_named_once() {
        let all = Signals { traces: true, metrics: true, logs: true };
        let warn = |list: &[(&str, &str)], signals| {
            let list = list.iter().map(|(name, value)| (name.to_string(), value.to_string()));
            warnings(&OtelVariables::new(list), signals)
        };
        for good in [
            &[][..],
            &[("OTEL_TRACES_SAMPLER", "traceidratio"), ("OTEL_TRACES_SAMPLER_ARG", "0.01")],
            &[("OTEL_TRACES_SAMPLER", "always_off"), ("OTEL_TRACES_SAMPLER_ARG", "x")],
            &[("OTEL_EXPORTER_OTLP_ENDPOINT", "h:1"), ("OTEL_EXPORTER_OTLP_INSECURE", "True")],
            &[("OTEL_EXPORTER_OTLP_HEADERS", "a=b,c=d,"), ("OTEL_EXPORTER_OTLP_TIMEOUT", "5")],
            &[("OTEL_TRACES_EXPORTER", "otlp, none"), ("OTEL_METRICS_EXPORTER", "prometheus")],
            &[("OTEL_EXPORTER_OTLP_PROTOCOL", "grpc"), ("OTEL_EXPORTER_OTLP_COMPRESSION", "gzip")],
        ] {
            assert_eq!(warn(good, all), [""; 0], "{good:?}");
        }
        for (name, value) in [
            ("OTEL_TRACES_SAMPLER", "nonsense"),
            ("OTEL_TRACES_SAMPLER", "traceidratio"),
            ("OTEL_BSP_SCHEDULE_DELAY", "5s"),
            ("OTEL_METRIC_EXPORT_INTERVAL", "-1"),
            ("OTEL_EXPORTER_OTLP_PROTOCOL", "http/protobuf"),
            ("OTEL_EXPORTER_OTLP_TRACES_PROTOCOL", "http/json"),
            ("OTEL_EXPORTER_OTLP_COMPRESSION", "zip"),
            ("OTEL_EXPORTER_OTLP_TIMEOUT", "10s"),
            ("OTEL_EXPORTER_OTLP_INSECURE", "yes"),
            ("OTEL_EXPORTER_OTLP_HEADERS", "secret"),
            ("OTEL_EXPORTER_OTLP_ENDPOINT", "127.0.0.1:4317"),
            ("OTEL_EXPORTER_OTLP_CERTIFICATE", "/ca.pem"),
            ("OTEL_BSP_MAX_QUEUE_SIZE", "1000000000000"),
            ("OTEL_BLRP_SCHEDULE_DELAY", "0"),
            ("OTEL_RESOURCE_ATTRIBUTES", "zone"),
            ("OTEL_TRACES_EXPORTER", "otlp,console"),
            ("OTEL_METRICS_EXPORTER", "stdout"),
            ("OTEL_LOGS_EXPORTER", "OTLP"),
            ("OTEL_SDK_DISABLED", "yes"),
        ] {
            let warnings = warn(&[(name, value)], all);
            assert_eq!(warnings.len(), 1, "{name}={value}: {warnings:?}");
            assert!(warnings[0].starts_with("OTEL_") && !warnings[0].contains("secret"));
        }
        let metrics = Signals { metrics: true, ..Signals::default() };
        assert_eq!(warn(&[("OTEL_TRACES_SAMPLER", "nonsense")], metrics), [""; 0]);
    }
}
