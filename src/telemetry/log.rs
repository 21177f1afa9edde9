//! The log: its destination, format and filter. Messages are lowercase sentences without a final stop; ids are fields.

use std::fmt;
use std::io;
use std::sync::Arc;

use parking_lot::{Mutex, MutexGuard};
use tracing::field::Field;
use tracing_subscriber::field::MakeExt as _;
use tracing_subscriber::filter::ParseError;
use tracing_subscriber::fmt::format::{Writer, debug_fn};
use tracing_subscriber::fmt::{FormatFields, MakeWriter};
use tracing_subscriber::layer::{Layered, SubscriberExt as _};
use tracing_subscriber::registry::LookupSpan;
use tracing_subscriber::util::SubscriberInitExt as _;
use tracing_subscriber::{EnvFilter, Layer, Registry};

use crate::stderr::{self, StderrLines};

/// Format of log lines.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LogFormat {
    /// Text for people.
    Text,
    /// JSON, one object a line.
    Json,
}

/// Writer that keeps the bytes. Clones share them.
#[derive(Clone, Default)]
struct KeptBytes(Arc<Mutex<Vec<u8>>>);

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
/// whole process. No call waits for the reader of stderr: lines that it does not take are lost, and counted in a line
/// that follows. Only the program calls it; a server in a test does not.
///
/// # Errors
/// The filter is malformed, the process has a log already, or there is no room for a thread.
pub(super) fn init(
    format: LogFormat,
    words: &str,
    exported: Option<LogLayer>,
) -> anyhow::Result<()> {
    stderr::queue(move |lost| lost_line(format, lost))?;
    let lines = lines(format, stderr::is_terminal(), || StderrLines);
    let layers: Vec<LogLayer> = exported.into_iter().chain([lines]).collect();
    tracing_subscriber::registry().with(filter(words)?).with(layers).try_init()?;
    Ok(())
}

/// Returns the layer that writes lines to `writer`, for a terminal or not.
fn lines<S, W>(format: LogFormat, is_terminal: bool, writer: W) -> Box<dyn Layer<S> + Send + Sync>
where
    S: tracing::Subscriber + for<'span> LookupSpan<'span> + Send + Sync,
    W: for<'writer> MakeWriter<'writer> + Send + Sync + 'static,
{
    // Internal errors would go to stderr directly.
    let lines = tracing_subscriber::fmt::layer().with_writer(writer).log_internal_errors(false);
    match format {
        LogFormat::Json => lines.json().flatten_event(true).boxed(),
        // On a terminal the variable NO_COLOR still applies.
        LogFormat::Text if is_terminal => lines.fmt_fields(fields()).boxed(),
        LogFormat::Text => lines.with_ansi(false).fmt_fields(fields()).boxed(),
    }
}

/// Returns the line that reports lost lines. Neither the filter nor a full queue keeps it back.
fn lost_line(format: LogFormat, lost: u64) -> Vec<u8> {
    let line = KeptBytes::default();
    let writer = line.clone();
    let log = tracing_subscriber::registry().with(lines(format, false, move || writer.clone()));
    tracing::subscriber::with_default(log, || {
        tracing::warn!(lost, "log lines were lost: the reader of standard error did not take them");
    });
    std::mem::take(&mut *line.lock())
}

// === impl KeptBytes ===

impl KeptBytes {
    fn lock(&self) -> MutexGuard<'_, Vec<u8>> {
        self.0.lock()
    }
}

impl io::Write for KeptBytes {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.lock().extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
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
    use super::*;

    #[test]
    fn a_value_ends_where_its_quotes_or_its_word_do() {
        let (sink, error) =
            (KeptBytes::default(), io::Error::other("it is \"odd\"\nWARN and long"));
        let writer = sink.clone();
        let log = tracing_subscriber::fmt().with_ansi(false).without_time().with_target(false);
        let log = log.with_writer(move || writer.clone()).fmt_fields(fields()).finish();
        tracing::subscriber::with_default(log, || {
            let (none, some) = (None::<u64>, Some(3));
            tracing::info!(shard = %"s0", %error, none, some, text = "a b", "calls\nfail");
            tracing::info!(url = %"redis://h/0", half = %"\"a\" b\"", empty = %"", list = ?[1, 2], "x");
        });
        let text = String::from_utf8(sink.lock().clone()).unwrap();
        let want = [
            r#" INFO callsfail shard=s0 error="it is \"odd\"\nWARN and long" some=3 text="a b""#,
            r#" INFO x url=redis://h/0 half="\"a\" b\"" empty="" list="[1, 2]""#,
        ];
        assert_eq!(text.lines().collect::<Vec<_>>(), want);
    }

    #[test]
    fn lost_lines_are_reported_in_the_format_of_the_log() {
        let text = |format| String::from_utf8(lost_line(format, 7)).unwrap();
        let line = text(LogFormat::Text);
        assert!(line.contains(" WARN ") && line.ends_with("take them lost=7\n"), "{line}");
        let line: serde_json::Value = serde_json::from_str(&text(LogFormat::Json)).unwrap();
        assert_eq!((&line["level"], &line["lost"]), (&"WARN".into(), &7.into()));
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
