//! Sources of the settings.

use std::fmt;

/// Source of a setting.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum SettingSource {
    /// The built-in file.
    Default,
    /// A key of a file; no key means the file as a whole.
    File { key: String, file: String },
    /// An environment variable.
    Environment(String),
    /// A flag, with its dashes.
    Flag(String),
}

// === impl SettingSource ===

impl fmt::Display for SettingSource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            SettingSource::Default => f.write_str("the defaults"),
            SettingSource::File { key, file } if key.is_empty() => f.write_str(file),
            SettingSource::File { key, file } => write!(f, "{key} in {file}"),
            SettingSource::Environment(name) | SettingSource::Flag(name) => f.write_str(name),
        }
    }
}
