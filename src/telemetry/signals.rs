//! Selection of the signals that are exported by OTLP.
//!
//! The variables are those of the OpenTelemetry specification ("SDK environment variables", "OTLP exporter
//! configuration"). One default differs from it: without any of them nothing is exported, because most servers have no
//! receiver on their machine.

use std::collections::BTreeMap;
use std::fmt;

/// Prefix of the variables of OpenTelemetry.
const PREFIX: &str = "OTEL_";

/// Signals.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Signals {
    /// Spans of calls and deliveries.
    pub traces: bool,
    /// All metrics of the server.
    pub metrics: bool,
    /// Log lines.
    pub logs: bool,
}

/// Settings of the export.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct OtlpConfig {
    /// Signals that are exported.
    pub signals: Signals,
    /// Signals of the setting, if it is given; else the variables have selected them.
    pub setting: Option<Signals>,
    /// Variables of OpenTelemetry: receiver, sampler, resource, intervals.
    pub variables: OtelVariables,
}

/// Variables of OpenTelemetry by name. Their values are not shown: headers may have tokens.
#[derive(Clone, Default, PartialEq, Eq)]
pub struct OtelVariables(BTreeMap<String, String>);

// === impl Signals ===

impl Signals {
    /// Parses a list as `traces,metrics`, or `none`.
    ///
    /// # Errors
    /// The rest of a sentence that begins with the name of the setting.
    pub fn parse(text: &str) -> Result<Signals, String> {
        let mut signals = Signals::default();
        if text.trim() == "none" {
            return Ok(signals);
        }
        for word in text.split(',').map(str::trim) {
            match word {
                "traces" => signals.traces = true,
                "metrics" => signals.metrics = true,
                "logs" => signals.logs = true,
                "none" => return Err("none stands alone".to_owned()),
                _ => {
                    return Err(format!(
                        "{word:?} is not a signal: write traces, metrics and logs with commas between \
                         them, or none"
                    ));
                }
            }
        }
        Ok(signals)
    }

    /// Returns the names of the signals that are on.
    pub(super) fn names(self) -> impl Iterator<Item = &'static str> {
        let named = [(self.traces, "traces"), (self.metrics, "metrics"), (self.logs, "logs")];
        named.into_iter().filter(|(on, _)| *on).map(|(_, name)| name)
    }

    /// Returns whether any signal is exported.
    #[must_use]
    pub fn any(self) -> bool {
        self != Signals::default()
    }
}

/// Formats the signals as [`Signals::parse`] reads them.
impl fmt::Display for Signals {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let names: Vec<_> = self.names().collect();
        f.write_str(if names.is_empty() { "none" } else { "" })?;
        f.write_str(&names.join(","))
    }
}

// === impl OtlpConfig ===

impl OtlpConfig {
    /// Selects the signals: `setting` if it is given, else what the variables name.
    #[must_use]
    pub fn new(setting: Option<Signals>, variables: OtelVariables) -> OtlpConfig {
        let signals =
            if variables.get("OTEL_SDK_DISABLED").is_some_and(|on| on.eq_ignore_ascii_case("true"))
            {
                Signals::default()
            } else {
                setting.unwrap_or_else(|| variables.signals())
            };
        OtlpConfig { signals, setting, variables }
    }

    /// Returns a sentence if the setting switches off all that the variables switch on: its user may have forgotten it.
    pub(super) fn overruled(&self) -> Option<String> {
        let is_off = self.setting.is_some_and(|setting| !setting.any());
        let wanted = self.variables.signals();
        let text = format!(
            "the setting otlp = \"none\" switches off what OTEL_ variables select: {wanted}"
        );
        (is_off && wanted.any()).then_some(text)
    }
}

// === impl OtelVariables ===

impl OtelVariables {
    /// Takes the variables of OpenTelemetry among `variables`. An empty one counts as not set.
    pub fn new(variables: impl Iterator<Item = (String, String)>) -> OtelVariables {
        let ours = |(name, value): &(String, String)| name.starts_with(PREFIX) && !value.is_empty();
        OtelVariables(variables.filter(ours).collect())
    }

    /// Returns the value of a variable that is set.
    #[must_use]
    pub fn get(&self, name: &str) -> Option<&str> {
        self.0.get(name).map(String::as_str)
    }

    /// Returns the value of an exporter's variable: the one of its signal, else the common one.
    #[must_use]
    pub fn exporter(&self, signal: &str, name: &str) -> Option<&str> {
        self.exporter_variable(signal, name).map(|(_, value)| value)
    }

    /// Returns the name and the value of an exporter's variable.
    pub(super) fn exporter_variable(&self, signal: &str, name: &str) -> Option<(&str, &str)> {
        let names =
            [format!("OTEL_EXPORTER_OTLP_{signal}_{name}"), format!("OTEL_EXPORTER_OTLP_{name}")];
        let found = names.iter().find_map(|name| self.0.get_key_value(name));
        found.map(|(name, value)| (name.as_str(), value.as_str()))
    }

    /// Returns the signals that the variables switch on. Traces are on, too, if there is a receiver for them.
    fn signals(&self) -> Signals {
        let exporter = |signal| self.get(&format!("OTEL_{signal}_EXPORTER"));
        let is_otlp = |list: &str| list.split(',').any(|name| name.trim() == "otlp");
        let has_receiver = self.exporter("TRACES", "ENDPOINT").is_some();
        Signals {
            traces: exporter("TRACES").map_or(has_receiver, is_otlp),
            metrics: exporter("METRICS").is_some_and(is_otlp),
            logs: exporter("LOGS").is_some_and(is_otlp),
        }
    }
}

impl fmt::Debug for OtelVariables {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.0.keys()).finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn config(setting: Option<&str>, variables: &[(&str, &str)]) -> String {
        let setting = setting.map(|text| Signals::parse(text).unwrap());
        let variables = variables.iter().map(|(name, value)| (name.to_string(), value.to_string()));
        OtlpConfig::new(setting, OtelVariables::new(variables)).signals.to_string()
    }

    #[test]
    fn a_list_is_read_and_written_back() {
        for list in ["traces", "metrics", "logs", "traces,metrics,logs", "none"] {
            assert_eq!(Signals::parse(list).unwrap().to_string(), list);
        }
        assert_eq!(Signals::parse(" logs , traces").unwrap().to_string(), "traces,logs");
        for bad in ["", "all", "traces,", "traces;logs", "none,logs"] {
            assert!(Signals::parse(bad).is_err(), "{bad:?}");
        }
    }

    #[test]
    fn the_setting_comes_before_the_variables() {
        let endpoint = ("OTEL_EXPORTER_OTLP_ENDPOINT", "http://collector:4317");
        let own = ("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "http://collector:4317");
        for (setting, variables, want) in [
            (None, &[][..], "none"),
            (None, &[endpoint], "traces"),
            (None, &[own], "traces"),
            (None, &[("OTEL_TRACES_EXPORTER", "otlp")], "traces"),
            (None, &[endpoint, ("OTEL_TRACES_EXPORTER", "none")], "none"),
            (None, &[endpoint, ("OTEL_TRACES_EXPORTER", "jaeger")], "none"),
            (None, &[endpoint, ("OTEL_TRACES_EXPORTER", "")], "traces"),
            (None, &[("OTEL_METRICS_EXPORTER", "otlp,prometheus")], "metrics"),
            (None, &[endpoint, ("OTEL_LOGS_EXPORTER", "otlp")], "traces,logs"),
            (Some("none"), &[endpoint], "none"),
            (Some("metrics"), &[endpoint], "metrics"),
            (Some("traces"), &[("OTEL_SDK_DISABLED", "True")], "none"),
            (Some("traces"), &[("OTEL_SDK_DISABLED", "false")], "traces"),
        ] {
            assert_eq!(config(setting, variables), want, "{setting:?} {variables:?}");
        }
    }

    #[test]
    fn values_are_not_shown() {
        let secret = ("OTEL_EXPORTER_OTLP_HEADERS".to_owned(), "authorization=secret".to_owned());
        let variables = OtelVariables::new([secret].into_iter());
        assert_eq!(format!("{variables:?}"), "[\"OTEL_EXPORTER_OTLP_HEADERS\"]");
        assert_eq!(variables.exporter("METRICS", "HEADERS"), Some("authorization=secret"));
    }
}
