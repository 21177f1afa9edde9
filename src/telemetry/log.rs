//! The log: its destination, format and filter. Messages are lowercase sentences without a final stop; ids are fields.

use std::fmt;
use std::io::{self, IsTerminal as _};

use tracing::field::Field;
use tracing_subscriber::field::MakeExt as _;
use tracing_subscriber::filter::ParseError;
use tracing_subscriber::fmt::FormatFields;
use tracing_subscriber::fmt::format::{Writer, debug_fn};
use tracing_subscriber::layer::{Layered, SubscriberExt as _};
use tracing_subscriber::util::SubscriberInitExt as _;
use tracing_subscriber::{EnvFilter, Layer, Registry};

/// Format of log lines.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LogFormat {
    /// Text for people.
    Text,
    /// JSON, one object a line.
    Json,
}

/// Parses a filter in the syntax of `RUST_LOG`: `info`, `info,ringq::dispatch=debug`.
///
/// # Errors
/// [`ParseError`] if any part of it is malformed.
pub fn filter(text: &str) -> Result<EnvFilter, ParseError> {
    EnvFilter::builder().parse(text)
}

/// Layer of the log.
pub(super) type LogLayer = Box<dyn Layer<Layered<EnvFilter, Registry>> + Send + Sync>;

/// Writes log lines that the filter `words` allows, see [`filter`], to stderr, and passes them to `exported`, for the
/// whole process. Only the program calls it; a server in a test does not.
///
/// # Errors
/// The filter is malformed, or the process has a log already.
pub(super) fn init(
    format: LogFormat,
    words: &str,
    exported: Option<LogLayer>,
) -> anyhow::Result<()> {
    // Internal errors would go to stderr, too: if stderr cannot be written, the thread that logs would panic.
    let lines = tracing_subscriber::fmt::layer().with_writer(io::stderr).log_internal_errors(false);
    let lines: LogLayer = match format {
        LogFormat::Json => lines.json().flatten_event(true).boxed(),
        // On a terminal the variable NO_COLOR still applies.
        LogFormat::Text if io::stderr().is_terminal() => lines.fmt_fields(fields()).boxed(),
        LogFormat::Text => lines.with_ansi(false).fmt_fields(fields()).boxed(),
    };
    let layers: Vec<LogLayer> = exported.into_iter().chain([lines]).collect();
    tracing_subscriber::registry().with(filter(words)?).with(layers).try_init()?;
    Ok(())
}

/// Returns the format of fields. A program can find the end of each: a value that does not end at the next space is in
/// quotes.
fn fields() -> impl for<'writer> FormatFields<'writer> + Send + Sync + 'static {
    debug_fn(field).delimited(" ")
}

fn field(writer: &mut Writer<'_>, field: &Field, value: &dyn fmt::Debug) -> fmt::Result {
    let (name, text) = (field.name(), format!("{value:?}"));
    if name == "message" {
        // A message can contain text of other programs: control characters must not end the line or move the cursor.
        return text.split(char::is_control).try_for_each(|part| writer.write_str(part));
    }
    match writer.has_ansi_escapes() {
        true => write!(writer, "\x1b[3m{name}\x1b[0m\x1b[2m=\x1b[0m")?,
        false => write!(writer, "{name}=")?,
    }
    match is_word(&text) || is_quoted(&text) {
        true => writer.write_str(&text),
        false => write!(writer, "{text:?}"),
    }
}

fn is_word(text: &str) -> bool {
    !text.is_empty() && !text.contains(|c: char| c.is_whitespace() || c.is_control() || c == '"')
}

/// Returns whether `text` is one quoted string, as the debug format of a string is.
fn is_quoted(text: &str) -> bool {
    let Some(inner) = text.strip_prefix('"').and_then(|text| text.strip_suffix('"')) else {
        return false;
    };
    let (mut escaped, mut ends_early) = (false, false);
    for c in inner.chars() {
        ends_early |= c.is_control() || c == '"' && !escaped;
        escaped = c == '\\' && !escaped;
    }
    !ends_early && !escaped
}

#[cfg(test)]
mod tests {
    use std::sync::{Arc, Mutex};

    use super::*;

    /// Writer that keeps the bytes.
    #[derive(Clone, Default)]
    struct Sink(Arc<Mutex<Vec<u8>>>);

    impl io::Write for Sink {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.0.lock().unwrap().extend_from_slice(bytes);
            Ok(bytes.len())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn a_value_ends_where_its_quotes_or_its_word_do() {
        let (sink, error) = (Sink::default(), io::Error::other("it is \"odd\"\nWARN and long"));
        let writer = sink.clone();
        let log = tracing_subscriber::fmt().with_ansi(false).without_time().with_target(false);
        let log = log.with_writer(move || writer.clone()).fmt_fields(fields()).finish();
        tracing::subscriber::with_default(log, || {
            let (none, some) = (None::<u64>, Some(3));
            tracing::info!(shard = %"s0", %error, none, some, text = "a b", "calls\nfail");
            tracing::info!(url = %"redis://h/0", half = %"\"a\" b\"", empty = %"", list = ?[1, 2], "x");
        });
        let text = String::from_utf8(sink.0.lock().unwrap().clone()).unwrap();
        let want = [
            r#" INFO callsfail shard=s0 error="it is \"odd\"\nWARN and long" some=3 text="a b""#,
            r#" INFO x url=redis://h/0 half="\"a\" b\"" empty="" list="[1, 2]""#,
        ];
        assert_eq!(text.lines().collect::<Vec<_>>(), want);
    }

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
