//! Output of commands: tables and blocks for people, JSON for programs.
//!
//! JSON is canonical proto3 JSON of the messages of the API, as `grpcurl` prints them: a message as an indented
//! object, a list as an array with one row per line.

use std::borrow::Cow;
use std::io::{self, IsTerminal as _, Write as _};

use anstream::{AutoStream, ColorChoice};
use anyhow::Context as _;
use clap::{Args, ValueEnum};
use prost::Message;
use prost_reflect::MessageDescriptor;

use super::exit::{CommandFailure, print_note};
use super::text::{fit, one_line, printable};
use crate::{canonical_json, pb};

/// Style of headings and names of fields.
const HEADING: anstyle::Style = anstyle::Style::new().bold();
/// Spaces between columns.
const GAP: u16 = 2;
/// Bytes that are held before they are written.
const BUFFER_BYTES: usize = 8 << 10;

/// `-o table|json`.
#[derive(Clone, Debug, Args)]
pub(super) struct OutputArgs {
    /// Print for people, or as JSON for programs
    #[arg(short, long, value_name = "FORMAT", value_enum, default_value_t = Format::Table, ignore_case = true)]
    output: Format,
}

/// Format of the output.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(super) enum Format {
    /// Columns or lines for people.
    Table,
    /// Canonical proto3 JSON: one message is an object, a list is an array.
    Json,
}

// === impl OutputArgs ===

impl OutputArgs {
    pub(super) fn is_json(&self) -> bool {
        self.output == Format::Json
    }
}

/// Standard output. Once its reader has closed it, writes are dropped.
pub(super) struct StdoutWriter {
    buffer: Vec<u8>,
    /// True if everything is held until it is flushed.
    is_held: bool,
    colour: bool,
    terminal: bool,
    /// Columns of the terminal, if stdout is one.
    columns: Option<usize>,
    closed: bool,
}

// === impl StdoutWriter ===

impl StdoutWriter {
    pub(super) fn new() -> StdoutWriter {
        let stdout = io::stdout();
        // This also reads NO_COLOR, CLICOLOR and TERM.
        let colour = AutoStream::choice(&stdout) != ColorChoice::Never;
        let terminal = stdout.is_terminal();
        let columns = if terminal { columns(&stdout) } else { None };
        StdoutWriter {
            buffer: Vec::new(),
            is_held: false,
            colour,
            terminal,
            columns,
            closed: false,
        }
    }

    /// Creates a writer that writes only when it is flushed.
    pub(super) fn held() -> StdoutWriter {
        let mut out = StdoutWriter::new();
        out.is_held = true;
        out
    }

    /// Returns whether the reader has closed stdout, so that more data is useless.
    pub(super) fn is_closed(&self) -> bool {
        self.closed
    }

    pub(super) fn is_terminal(&self) -> bool {
        self.terminal
    }

    /// Writes bytes unchanged.
    pub(super) fn write_bytes(&mut self, bytes: &[u8]) -> Result<(), CommandFailure> {
        if !self.closed {
            self.buffer.extend_from_slice(bytes);
        }
        if self.buffer.len() >= BUFFER_BYTES && !self.is_held { self.flush() } else { Ok(()) }
    }

    /// Writes a line.
    pub(super) fn write_line(&mut self, text: &str) -> Result<(), CommandFailure> {
        self.write_bytes(text.as_bytes())?;
        self.write_bytes(b"\n")
    }

    /// Makes everything written so far visible.
    pub(super) fn flush(&mut self) -> Result<(), CommandFailure> {
        let result = write_stdout(&std::mem::take(&mut self.buffer));
        self.check(result)
    }

    /// Flushes without blocking the thread while the reader takes nothing. A write that has begun goes on if the future is
    /// dropped.
    pub(super) async fn flush_in_turn(&mut self) -> Result<(), CommandFailure> {
        let bytes = std::mem::take(&mut self.buffer);
        let written = tokio::task::spawn_blocking(move || write_stdout(&bytes)).await;
        self.check(written.unwrap_or_else(|error| Err(io::Error::other(error))))
    }

    /// Returns `text` as a heading, in bold on a terminal.
    pub(super) fn heading(&self, text: &str) -> String {
        if self.colour { format!("{HEADING}{text}{HEADING:#}") } else { text.to_owned() }
    }

    fn check(&mut self, result: io::Result<()>) -> Result<(), CommandFailure> {
        match result {
            Err(error) if error.kind() == io::ErrorKind::BrokenPipe => {
                self.closed = true;
                Ok(())
            }
            Err(error) => {
                Err(anyhow::Error::from(error).context("cannot write to standard output").into())
            }
            Ok(()) => Ok(()),
        }
    }
}

fn write_stdout(bytes: &[u8]) -> io::Result<()> {
    if bytes.is_empty() {
        return Ok(());
    }
    let mut stdout = io::stdout().lock();
    stdout.write_all(bytes)?;
    stdout.flush()
}

/// Returns the width of the terminal, if known.
fn columns(terminal: &io::Stdout) -> Option<usize> {
    let size = rustix::termios::tcgetwinsize(terminal).ok()?;
    Some(usize::from(size.ws_col)).filter(|columns| *columns > 0)
}

impl Drop for StdoutWriter {
    fn drop(&mut self) {
        // A command that needs the result flushes itself.
        let _ = self.flush();
    }
}

/// Table: rows under headings.
pub(super) struct Table {
    headings: Vec<&'static str>,
    rows: Vec<Vec<String>>,
}

// === impl Table ===

impl Table {
    pub(super) fn new<const N: usize>(headings: [&'static str; N]) -> Table {
        Table { headings: headings.to_vec(), rows: Vec::new() }
    }

    /// Adds a row; control characters are escaped.
    pub(super) fn row<const N: usize>(&mut self, cells: [String; N]) {
        self.rows.push(cells.map(|cell| one_line(&cell)).into());
    }

    /// Returns the lines of the table.
    fn lines(&self) -> Vec<String> {
        layout_rows(&self.headings, self.rows.iter().map(Vec::as_slice))
    }

    /// Returns the lines for a terminal of this width. A first column that would take most of it, such as ids, is
    /// printed whole on lines of its own, above the rest of each row.
    fn lines_within(&self, columns: usize) -> Vec<String> {
        let lines = self.lines();
        let names = self.rows.iter().map(|row| row[0].chars().count()).max().unwrap_or(0);
        if lines[0].chars().count() <= columns || names <= columns / 2 {
            return lines;
        }
        let rest = layout_rows(&self.headings[1..], self.rows.iter().map(|row| &row[1..]));
        let names = self.rows.iter().map(|row| &*row[0]);
        let names = std::iter::once(self.headings[0]).chain(names);
        names.zip(rest).flat_map(|(name, rest)| [name.to_owned(), format!("  {rest}")]).collect()
    }

    /// Prints the table; prints nothing if it has no rows.
    pub(super) fn print(self, out: &mut StdoutWriter) -> Result<(), CommandFailure> {
        if self.rows.is_empty() {
            return Ok(());
        }
        let lines = out.columns.map_or_else(|| self.lines(), |columns| self.lines_within(columns));
        // Lines per row, headings included.
        let lines_each = lines.len() / (self.rows.len() + 1);
        let is_cut = |columns| lines.iter().any(|line| line.chars().count() > columns);
        let is_cut = out.columns.is_some_and(is_cut);
        for (index, line) in lines.iter().enumerate() {
            let is_name = lines_each > 1 && index % lines_each == 0;
            let line = match out.columns {
                // A terminal would wrap the line and mix up the columns; a program gets the whole line.
                Some(columns) if !is_name => fit(line, columns),
                _ => line.clone(),
            };
            if index < lines_each {
                out.write_line(&out.heading(&line))?;
            } else {
                out.write_line(&line)?;
            }
        }
        out.flush()?;
        if is_cut {
            print_note("cut at the width of the terminal; a pipe gets all of it, as in | less -S");
        }
        Ok(())
    }
}

/// Lays out rows under headings as lines.
fn layout_rows<'a>(headings: &[&str], rows: impl Iterator<Item = &'a [String]>) -> Vec<String> {
    let mut table = comfy_table::Table::new();
    table.load_style(comfy_table::presets::NOTHING).set_header(headings);
    table.add_rows(rows);
    table.column_iter_mut().for_each(|column| {
        column.set_padding((0, GAP));
    });
    table.trim_fmt().lines().map(|line| line.trim_end().to_owned()).collect()
}

/// Names and values, one per line: one thing in full.
#[derive(Default)]
pub(super) struct Block(Vec<(Cow<'static, str>, Vec<String>)>);

// === impl Block ===

impl Block {
    /// Adds a line, unless the value is empty.
    pub(super) fn line(&mut self, name: impl Into<Cow<'static, str>>, value: impl AsRef<str>) {
        let value = printable(value.as_ref());
        if !value.is_empty() {
            self.0.push((name.into(), value.lines().map(str::to_owned).collect()));
        }
    }

    /// Adds a table, unless it has no rows.
    pub(super) fn table(&mut self, name: &'static str, table: Table) {
        if !table.rows.is_empty() {
            self.0.push((name.into(), table.lines()));
        }
    }

    pub(super) fn print(self, out: &mut StdoutWriter) -> Result<(), CommandFailure> {
        let width = self.0.iter().map(|(name, _)| name.len() + 1).max().unwrap_or(0);
        for (name, lines) in self.0 {
            let heading = out.heading(&format!("{:width$}", format!("{name}:")));
            for (index, line) in lines.iter().enumerate() {
                let left = if index == 0 { heading.clone() } else { " ".repeat(width) };
                out.write_line(format!("{left}  {line}").trim_end())?;
            }
        }
        out.flush()
    }
}

/// List as one JSON array, printed row by row.
pub(super) struct JsonList {
    begun: bool,
}

// === impl JsonList ===

impl JsonList {
    pub(super) fn new() -> JsonList {
        JsonList { begun: false }
    }

    pub(super) fn row(
        &mut self,
        out: &mut StdoutWriter,
        row: &impl JsonMessage,
    ) -> Result<(), CommandFailure> {
        self.raw_row(out, json_line(row)?)
    }

    /// Prints a row that is not a message.
    pub(super) fn raw_row(
        &mut self,
        out: &mut StdoutWriter,
        row: impl AsRef<[u8]>,
    ) -> Result<(), CommandFailure> {
        out.write_bytes(if self.begun { b",\n" } else { b"[\n" })?;
        self.begun = true;
        out.write_bytes(row.as_ref())
    }

    pub(super) fn end(self, out: &mut StdoutWriter) -> Result<(), CommandFailure> {
        self.close(out)?;
        out.flush()
    }

    /// Writes the end without flushing it.
    pub(super) fn close(self, out: &mut StdoutWriter) -> Result<(), CommandFailure> {
        out.write_line(if self.begun { "\n]" } else { "[]" })
    }
}

/// Message that can be printed as JSON.
pub(super) trait JsonMessage: Message {
    /// Full name of the message in the API.
    const NAME: &'static str;
}

macro_rules! json_messages {
    ($($message:ident)*) => {$(
        impl JsonMessage for pb::$message {
            const NAME: &'static str = concat!("ringq.v1.", stringify!($message));
        }
    )*};
}

json_messages!(EnqueueResponse EnqueueResult ExplainJobResponse GetServerInfoResponse GroupSummary Job);
json_messages!(PurgeTopicResponse RedriveJobsResponse Shard Topic TopicStats TopicSummary Worker);

/// Prints a message as an indented JSON object.
pub(super) fn print_json<M: JsonMessage>(
    out: &mut StdoutWriter,
    message: &M,
) -> Result<(), CommandFailure> {
    let text = canonical_json::to_pretty_text(descriptor::<M>()?, &message.encode_to_vec())
        .context("cannot write JSON")?;
    out.write_line(&text)?;
    out.flush()
}

/// Returns a message as a JSON object on one line.
fn json_line<M: JsonMessage>(message: &M) -> Result<Vec<u8>, CommandFailure> {
    let text = canonical_json::to_text(descriptor::<M>()?, &message.encode_to_vec());
    Ok(text.context("cannot write JSON")?)
}

fn descriptor<M: JsonMessage>() -> Result<MessageDescriptor, CommandFailure> {
    Ok(canonical_json::message(M::NAME).map_err(anyhow::Error::msg)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_table_has_no_trailing_spaces() {
        let mut table = Table::new(["NAME", "N"]);
        table.row(["long-name".to_owned(), "1".to_owned()]);
        table.row(["b".to_owned(), String::new()]);
        assert_eq!(table.lines(), ["NAME       N", "long-name  1", "b"]);
    }

    #[test]
    fn a_long_name_stands_alone_where_the_columns_do_not_fit_beside_it() {
        let mut table = Table::new(["ID", "STATE", "DUE"]);
        table.row(["0123456789".to_owned(), "READY".to_owned(), "now".to_owned()]);
        table.row(["b".to_owned(), "SCHEDULED".to_owned(), "in 1h".to_owned()]);
        let apart =
            ["ID", "  STATE      DUE", "0123456789", "  READY      now", "b", "  SCHEDULED  in 1h"];
        assert_eq!(table.lines_within(19), apart);
        assert_eq!(table.lines_within(20), table.lines(), "it is no more than half");
        let mut table = Table::new(["ID", "STATE"]);
        table.row(["0123456789".to_owned(), "READY".to_owned()]);
        assert_eq!(table.lines_within(17), table.lines(), "they fit");
    }

    #[test]
    fn json_is_that_of_the_contract() {
        let row = pb::TopicStats { ready: 3, enqueue_rate: Some(0.5), ..Default::default() };
        assert_eq!(json_line(&row).unwrap(), br#"{"ready":"3","enqueueRate":0.5}"#);
    }
}
