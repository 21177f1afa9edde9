//! Payloads from stdin and lines from files.

use std::fmt::Write as _;
use std::fs::File;
use std::io::{self, BufRead as _, BufReader, Read};
use std::os::fd::AsFd as _;
use std::os::unix::fs::FileTypeExt as _;
use std::path::Path;
use std::time::Duration;

use bytes::Bytes;
use sha2::{Digest as _, Sha256};
use tokio::io::Interest;
use tokio::net::unix::pipe::Receiver;
use tokio::sync::mpsc;

use super::exit::CommandFailure;
use crate::config::io_problem;
use crate::domain::limit::REQUEST_BYTES_MAX;
use crate::pb::Payload;
use crate::pb::payload::Kind;

/// Most lines per call: half of the API's limit.
const BATCH_LINES: usize = 500;
/// Approximate bytes per call: a quarter of the API's limit. A longer line is sent alone.
const BATCH_BYTES: usize = 1 << 20;
/// Most batches that wait to be sent.
const QUEUE_BATCHES: usize = 2;
/// Time in which a pipe without data must reach its end.
const PIPE_END: Duration = Duration::from_millis(100);
/// Bytes per read: files are read in large pieces, a pipe in what it holds.
const READ_BYTES: usize = 1 << 20;

/// Line without its line end.
#[derive(Debug)]
pub(super) struct InputLine {
    /// Line number, counted from 1, empty lines included.
    pub(super) number: u64,
    /// Content. None: too long for any server.
    pub(super) bytes: Option<Vec<u8>>,
}

/// Lines in their order.
#[derive(Debug, Default)]
pub(super) struct LineBatch {
    pub(super) lines: Vec<InputLine>,
    /// Bytes of the input up to the end of the batch.
    pub(super) offset: u64,
}

/// Source of the lines.
pub(super) struct LineSource {
    /// Name of the input, for messages.
    pub(super) name: String,
    /// Bytes of the input, if known.
    pub(super) size: Option<u64>,
    /// First line to read; those before are skipped.
    first: u64,
    input: Box<dyn Read + Send>,
}

/// Builds a payload from bytes: text if they are UTF-8.
pub(super) fn payload(bytes: Vec<u8>) -> Payload {
    let kind = match String::from_utf8(bytes) {
        Ok(text) => Kind::Text(text),
        Err(error) => Kind::Data(Bytes::from(error.into_bytes())),
    };
    Payload { kind: Some(kind), content_type: String::new() }
}

/// Reads all of stdin; an empty stdin is a payload without a kind. An input that is longer than a whole request is
/// rejected by every server, whatever its limit of payloads.
pub(super) fn whole_stdin() -> Result<Payload, CommandFailure> {
    let mut bytes = Vec::new();
    let mut stdin = io::stdin().lock().take(REQUEST_BYTES_MAX as u64 + 1);
    stdin.read_to_end(&mut bytes).map_err(|error| unreadable("standard input", &error))?;
    match bytes.len() {
        0 => Ok(Payload::default()),
        1..=REQUEST_BYTES_MAX => Ok(payload(bytes)),
        _ => Err(CommandFailure::usage("the payload on standard input is longer than 4 MiB")
            .with_hint("for a job per line use --lines -")),
    }
}

/// Returns whether stdin is a pipe or a file with data, which no argument asked to read. A pipe that is empty and at
/// its end, as under cron, does not count; an open pipe without data does.
pub(super) async fn is_piped_in() -> bool {
    // A closed stdin cannot be cloned.
    let Ok(stdin) = io::stdin().as_fd().try_clone_to_owned() else { return false };
    let stdin = File::from(stdin);
    let Ok(metadata) = stdin.metadata() else { return false };
    let kind = metadata.file_type();
    if kind.is_file() {
        return metadata.len() > 0;
    }
    kind.is_socket() || (kind.is_fifo() && !is_empty_pipe(stdin).await)
}

/// Returns whether a pipe has reached its end without data.
async fn is_empty_pipe(pipe: File) -> bool {
    // The pipe is never read, so it need not be non-blocking, which other processes would see.
    let Ok(pipe) = Receiver::from_file_unchecked(pipe) else { return false };
    let ready = tokio::time::timeout(PIPE_END, pipe.ready(Interest::READABLE)).await;
    let ended = matches!(ready, Ok(Ok(ready)) if ready.is_read_closed());
    ended && rustix::io::ioctl_fionread(&pipe).is_ok_and(|bytes| bytes == 0)
}

/// Returns the SHA-256 of a payload, in hex.
pub(super) fn digest(bytes: &[u8]) -> String {
    Sha256::digest(bytes).iter().fold(String::with_capacity(64), |mut hex, byte| {
        let _ = write!(hex, "{byte:02x}");
        hex
    })
}

fn unreadable(name: &str, error: &io::Error) -> CommandFailure {
    CommandFailure::usage(cannot_read(name, error))
}

fn cannot_read(name: &str, error: &io::Error) -> String {
    format!("cannot read {name}: {}", io_problem(error))
}

// === impl LineSource ===

impl LineSource {
    /// Opens a file, or stdin for `-`; reads from line `first` on.
    pub(super) fn open(path: &Path, first: u64) -> Result<LineSource, CommandFailure> {
        if path == "-" {
            let (name, input) = ("standard input".to_owned(), Box::new(io::stdin()));
            return Ok(LineSource { name, size: None, first, input });
        }
        let name = path.display().to_string();
        let opened = File::open(path).and_then(|file| Ok((file.metadata()?, file)));
        let (metadata, file) = opened.map_err(|error| unreadable(&name, &error))?;
        if metadata.is_dir() {
            return Err(CommandFailure::usage(format!("cannot read {name}: it is a directory")));
        }
        let size = Some(metadata.len()).filter(|_| metadata.is_file());
        Ok(LineSource { name, size, first, input: Box::new(file) })
    }

    /// Reads on a thread of its own, at most a few batches ahead. An error text is the last item.
    pub(super) fn batches(self) -> mpsc::Receiver<Result<LineBatch, String>> {
        let (sender, batches) = mpsc::channel(QUEUE_BATCHES);
        // Not awaited: a read of a terminal or a pipe may never return, and ends with the process.
        std::thread::spawn(move || {
            let mut reader = LineReader::new(self.input, self.first);
            loop {
                let mut next = reader.batch().map_err(|error| cannot_read(&self.name, &error));
                let mut ended = next.as_ref().is_ok_and(|batch| batch.lines.is_empty());
                // A wrong number or a wrong file must not look like a run that is complete.
                if ended && reader.number + 1 < self.first {
                    next = Err(format!("{} has only {} lines", self.name, reader.number));
                    ended = false;
                }
                let goes_on = next.is_ok();
                if ended || sender.blocking_send(next).is_err() || !goes_on {
                    return;
                }
            }
        });
        batches
    }
}

/// Reader that splits its input into lines and these into batches.
struct LineReader<R> {
    input: BufReader<R>,
    number: u64,
    offset: u64,
    /// First line to return; those before are skipped.
    first: u64,
    /// Line that was read, but was too large for the batch before it.
    carried_over: Option<InputLine>,
}

// === impl LineReader ===

impl<R: Read> LineReader<R> {
    fn new(input: R, first: u64) -> LineReader<R> {
        let input = BufReader::with_capacity(READ_BYTES, input);
        LineReader { input, number: 0, offset: 0, first, carried_over: None }
    }

    /// Returns the next lines, as many as fit or are available without waiting; none at the end.
    fn batch(&mut self) -> io::Result<LineBatch> {
        let (mut lines, mut bytes) = (Vec::new(), 0);
        while let Some(line) = self.next_line()? {
            if line.number < self.first {
                continue;
            }
            let size = line.bytes.as_ref().map_or(0, Vec::len);
            if bytes > 0 && bytes + size > BATCH_BYTES {
                self.carried_over = Some(line);
                break;
            }
            bytes += size;
            if line.bytes.as_ref().is_none_or(|bytes| !bytes.is_empty()) {
                lines.push(line);
            }
            // Does not wait for a producer that pauses at the other end of a pipe.
            let pauses = !self.input.buffer().contains(&b'\n');
            if lines.len() == BATCH_LINES || (pauses && !lines.is_empty()) {
                break;
            }
        }
        Ok(LineBatch { lines, offset: self.offset })
    }

    /// Returns the next line, without its line end.
    fn next_line(&mut self) -> io::Result<Option<InputLine>> {
        if let Some(line) = self.carried_over.take() {
            return Ok(Some(line));
        }
        let mut bytes = Vec::new();
        if !self.read_line(&mut bytes)? {
            return Ok(None);
        }
        self.number += 1;
        bytes.pop_if(|byte| *byte == b'\n');
        bytes.pop_if(|byte| *byte == b'\r');
        let is_short = bytes.len() <= REQUEST_BYTES_MAX;
        Ok(Some(InputLine { number: self.number, bytes: Some(bytes).filter(|_| is_short) }))
    }

    /// Reads a line with its end; of a line that is too long only enough to detect that. Returns false at the end of
    /// the input.
    fn read_line(&mut self, line: &mut Vec<u8>) -> io::Result<bool> {
        let bound = REQUEST_BYTES_MAX as u64 + 3;
        let mut read = self.input.by_ref().take(bound).read_until(b'\n', line)? as u64;
        self.offset += read;
        while read == bound && line.last() != Some(&b'\n') {
            line.truncate(REQUEST_BYTES_MAX + 1);
            line.extend_from_slice(b"..");
            let mut rest = Vec::new();
            read = self.input.by_ref().take(bound).read_until(b'\n', &mut rest)? as u64;
            self.offset += read;
            if rest.last() == Some(&b'\n') {
                break;
            }
        }
        Ok(!line.is_empty())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the lines as number and text, batch by batch.
    fn read(input: &[u8]) -> Vec<Vec<(u64, Option<String>)>> {
        read_from(input, 1)
    }

    fn read_from(input: &[u8], first: u64) -> Vec<Vec<(u64, Option<String>)>> {
        let mut reader = LineReader::new(input, first);
        let mut batches = Vec::new();
        loop {
            let batch = reader.batch().unwrap();
            if batch.lines.is_empty() {
                assert_eq!(batch.offset, input.len() as u64);
                return batches;
            }
            let text = |line: InputLine| {
                (line.number, line.bytes.map(|bytes| String::from_utf8(bytes).unwrap()))
            };
            batches.push(batch.lines.into_iter().map(text).collect());
        }
    }

    fn flat(input: &[u8]) -> Vec<(u64, Option<String>)> {
        read(input).into_iter().flatten().collect()
    }

    #[test]
    fn empty_lines_are_skipped_and_counted() {
        let line = |number, text: &str| (number, Some(text.to_owned()));
        assert_eq!(flat(b""), []);
        assert_eq!(flat(b"\n\r\n"), []);
        assert_eq!(
            flat(b"a\n\nb\r\n c \nd"),
            [line(1, "a"), line(3, "b"), line(4, " c "), line(5, "d")]
        );
        assert_eq!(flat(b"a\r\r\nb\r"), [line(1, "a\r"), line(2, "b")], "one CR is of the end");
    }

    #[test]
    fn lines_before_the_first_one_are_skipped_and_counted() {
        let from = |first| {
            let lines = read_from(b"a\n\nb\nc", first).into_iter().flatten();
            lines.map(|(number, _)| number).collect::<Vec<_>>()
        };
        assert_eq!(from(1), [1, 3, 4]);
        assert_eq!(from(2), [3, 4]);
        assert_eq!(from(4), [4]);
        assert!(from(5).is_empty());
    }

    #[test]
    fn batches_are_bounded_by_lines_and_bytes() {
        let many = "x\n".repeat(1_200);
        let sizes: Vec<_> = read(many.as_bytes()).iter().map(Vec::len).collect();
        assert_eq!(sizes, [500, 500, 200]);
        let large = format!("{}\n", "y".repeat(700_000)).repeat(3);
        let sizes: Vec<_> = read(large.as_bytes()).iter().map(Vec::len).collect();
        assert_eq!(sizes, [1, 1, 1]);
    }

    #[test]
    fn a_line_that_is_too_long_is_skipped_to_its_end() {
        for length in [REQUEST_BYTES_MAX + 1, REQUEST_BYTES_MAX + 3, 3 * REQUEST_BYTES_MAX] {
            let input = format!("a\n{}\nb\n", "y".repeat(length));
            let lines = flat(input.as_bytes());
            assert_eq!(lines.len(), 3, "{length}");
            assert_eq!(lines[1], (2, None), "{length}");
            assert_eq!(lines[2], (3, Some("b".to_owned())), "{length}");
        }
        let longest = format!("{}\r\nb", "y".repeat(REQUEST_BYTES_MAX));
        assert!(flat(longest.as_bytes())[0].1.is_some());
    }

    #[test]
    fn bytes_that_are_no_text_are_data() {
        assert_eq!(payload(b"a".to_vec()).kind, Some(Kind::Text("a".to_owned())));
        assert!(matches!(payload(vec![0xff]).kind, Some(Kind::Data(_))));
    }

    #[test]
    fn digests_are_those_of_sha256sum() {
        let empty = "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855";
        assert_eq!(digest(b""), empty);
    }
}
