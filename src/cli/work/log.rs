//! Log events of the client library's connection, as lines for people.

use std::fmt::{self, Write as _};
use std::sync::Arc;

use tracing::field::{Field, Visit};
use tracing::{Event, Subscriber};
use tracing_subscriber::fmt::format::Writer;
use tracing_subscriber::fmt::{FmtContext, FormatEvent, FormatFields};
use tracing_subscriber::registry::LookupSpan;
use tracing_subscriber::util::SubscriberInitExt as _;

use super::super::text::printable;
use super::reporter::TerminalState;
use crate::stderr::StderrLines;
use crate::telemetry;

/// Formatter of lines like `ringq: connected to http://…, taking emails (up to 1 at once)`.
struct PlainLogFormat {
    screen: Arc<TerminalState>,
}

/// Message and fields of a log event.
#[derive(Default)]
struct LogEventText {
    message: String,
    fields: String,
}

/// Sends log events to stderr from now on; when quiet, only warnings and errors.
pub(super) fn init(quiet: bool, screen: Arc<TerminalState>) {
    let level = if quiet { "ringq::client=warn" } else { "ringq::client=info" };
    let Ok(filter) = telemetry::filter(level) else { return };
    let log = tracing_subscriber::fmt().with_env_filter(filter).with_writer(|| StderrLines);
    // Otherwise the log library would report a closed terminal on that terminal, and panic.
    let log = log.log_internal_errors(false);
    // An existing log is kept.
    let _ = log.event_format(PlainLogFormat { screen }).finish().try_init();
}

// === impl PlainLogFormat ===

impl<S, N> FormatEvent<S, N> for PlainLogFormat
where
    S: Subscriber + for<'a> LookupSpan<'a>,
    N: for<'a> FormatFields<'a> + 'static,
{
    fn format_event(
        &self,
        _context: &FmtContext<'_, S, N>,
        mut writer: Writer<'_>,
        event: &Event<'_>,
    ) -> fmt::Result {
        let mut parts = LogEventText::default();
        event.record(&mut parts);
        let LogEventText { message, fields } = parts;
        let line = if fields.is_empty() { message } else { format!("{message} ({fields})") };
        writeln!(writer, "{}ringq: {}", self.screen.line_start(), printable(&line))
    }
}

// === impl LogEventText ===

impl Visit for LogEventText {
    fn record_str(&mut self, field: &Field, value: &str) {
        self.record_debug(field, &format_args!("{value}"));
    }

    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        // Writing to a String cannot fail.
        if field.name() == "message" {
            let _ = write!(self.message, "{value:?}");
        } else {
            let gap = if self.fields.is_empty() { "" } else { ", " };
            let name = field.name().replace('_', " ");
            let _ = write!(self.fields, "{gap}{name}: {value:?}");
        }
    }
}
