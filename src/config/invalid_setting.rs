//! Errors in the settings, as text.

use std::{fmt, io};

use super::source::SettingSource;

/// Mistake in the settings: the setting, the problem, and the source of the value.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct InvalidSetting {
    setting: String,
    problem: String,
    source: SettingSource,
}

/// List of all mistakes of a configuration, at least one; displayed one per line.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct InvalidSettings(pub(super) Vec<InvalidSetting>);

// === impl InvalidSetting ===

impl InvalidSetting {
    pub(super) fn new(
        setting: impl Into<String>,
        problem: String,
        from: &SettingSource,
    ) -> InvalidSetting {
        InvalidSetting { setting: setting.into(), problem, source: from.clone() }
    }
}

impl fmt::Display for InvalidSetting {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {} (from {})", self.setting, self.problem, self.source)
    }
}

// === impl InvalidSettings ===

impl InvalidSettings {
    /// Iterates over the mistakes: those of the files and the environment first, then those of the values.
    pub fn iter(&self) -> impl Iterator<Item = &InvalidSetting> {
        self.0.iter()
    }
}

impl fmt::Display for InvalidSettings {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, mistake) in self.0.iter().enumerate() {
            if index > 0 {
                f.write_str("\n")?;
            }
            mistake.fmt(f)?;
        }
        Ok(())
    }
}

impl std::error::Error for InvalidSettings {}

/// Formats an input/output error as part of a lowercase sentence, without the system's error number.
pub(crate) fn io_problem(error: &io::Error) -> String {
    let text = error.to_string();
    let number = error.raw_os_error().map(|code| format!(" (os error {code})"));
    let text = number.and_then(|number| text.strip_suffix(&number)).unwrap_or(&text);
    let mut chars = text.chars();
    chars.next().map_or_else(String::new, |first| first.to_lowercase().chain(chars).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn problems_are_lowercase() {
        for (error, want) in [
            (io::Error::from_raw_os_error(2), "no such file or directory"),
            (io::ErrorKind::AddrInUse.into(), "address in use"),
            (io::Error::other("Broken disk"), "broken disk"),
        ] {
            assert_eq!(io_problem(&error), want);
        }
    }
}
