//! Where settings come from.

use std::fmt;

/// Where a setting came from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Source {
    /// The built-in file.
    Default,
    /// A key of a file; no key means the file as a whole.
    File { key: String, file: String },
    /// An environment variable.
    Variable(String),
    /// A flag, with its dashes.
    Flag(String),
}

// === impl Source ===

impl fmt::Display for Source {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Source::Default => f.write_str("the defaults"),
            Source::File { key, file } if key.is_empty() => f.write_str(file),
            Source::File { key, file } => write!(f, "{key} in {file}"),
            Source::Variable(name) | Source::Flag(name) => f.write_str(name),
        }
    }
}
