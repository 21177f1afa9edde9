//! The log: where it goes, how it looks, what is in it. Messages are lowercase sentences without a
//! final stop; ids are fields.

use std::io::{self, IsTerminal as _};

use tracing_subscriber::EnvFilter;
use tracing_subscriber::filter::ParseError;
use tracing_subscriber::util::SubscriberInitExt as _;

/// How log lines look.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LogFormat {
    /// For people.
    Text,
    /// One JSON object a line.
    Json,
}

/// Reads a filter in the syntax of `RUST_LOG`: `info`, `info,ringq::dispatch=debug`.
///
/// # Errors
/// [`ParseError`] if any part of it is malformed.
pub fn filter(text: &str) -> Result<EnvFilter, ParseError> {
    EnvFilter::builder().parse(text)
}

/// Sends what `words` let through, see [`filter`], to stderr, for the whole process. Only the program does this; a
/// server in a test leaves the log alone.
///
/// # Errors
/// If they are no filter, or the process has a log already.
pub fn init(format: LogFormat, words: &str) -> anyhow::Result<()> {
    let builder = tracing_subscriber::fmt().with_env_filter(filter(words)?).with_writer(io::stderr);
    // Where they go is where the log cannot be written either: that panics, in whoever logs.
    let builder = builder.log_internal_errors(false);
    match format {
        LogFormat::Json => builder.json().flatten_event(true).finish().try_init()?,
        // On a terminal NO_COLOR still counts.
        LogFormat::Text if io::stderr().is_terminal() => builder.finish().try_init()?,
        LogFormat::Text => builder.with_ansi(false).finish().try_init()?,
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn filters() {
        for good in ["info", "warn,ringq=debug", "off", "ringq[{id}]=trace"] {
            assert!(filter(good).is_ok(), "{good:?}");
        }
        for bad in ["ringq=loud", "=info=", "a=b=c"] {
            assert!(filter(bad).is_err(), "{bad:?}");
        }
    }
}
