//! Standard error of a command: passed on line by line; its end is kept as the reason of a failure.

use tokio::io::{AsyncRead, AsyncReadExt as _};

use crate::domain::limit::ERROR_BYTES_MAX;
use crate::stderr;

/// Length above which a line is passed on in pieces.
const LINE_BYTES: usize = 64 << 10;
/// Bytes per read.
const READ_BYTES: usize = 8 << 10;

/// Output so far.
#[derive(Debug)]
pub(super) struct Stderr {
    tail: Vec<u8>,
    /// Beginning of an unfinished line.
    line: Vec<u8>,
}

// === impl Stderr ===

impl Stderr {
    pub(super) fn new() -> Stderr {
        Stderr { tail: Vec::new(), line: Vec::new() }
    }

    /// Reads to the end, and passes lines on to the standard error of this process. The command waits for its reader as
    /// long as that takes any; from a stopped one it loses lines. Dropping the future loses nothing that was read.
    pub(super) async fn copy(&mut self, mut from: impl AsyncRead + Unpin) {
        let mut buffer = Vec::new();
        loop {
            buffer.clear();
            buffer.reserve(READ_BYTES);
            match from.read_buf(&mut buffer).await {
                Ok(0) | Err(_) => return,
                Ok(_) => {
                    self.take(&buffer);
                    stderr::wait_for_room(self.line.len()).await;
                    self.pass_on();
                }
            }
        }
    }

    /// Passes on what is left; returns the end of the output as text, trimmed.
    pub(super) fn finish(mut self) -> String {
        if self.line.last().is_some_and(|last| *last != b'\n') {
            self.line.push(b'\n');
        }
        stderr::write(&self.line);
        tail_text(&self.tail)
    }

    fn take(&mut self, bytes: &[u8]) {
        self.tail.extend_from_slice(bytes);
        self.tail.drain(..self.tail.len().saturating_sub(ERROR_BYTES_MAX));
        self.line.extend_from_slice(bytes);
    }

    /// Passes on whole lines, since other commands write, too.
    fn pass_on(&mut self) {
        let end = match self.line.iter().rposition(|byte| *byte == b'\n') {
            Some(end) => end + 1,
            None if self.line.len() > LINE_BYTES => self.line.len(),
            None => return,
        };
        stderr::write(&self.line[..end]);
        self.line.drain(..end);
    }
}

/// Returns the end of a text whose beginning may be cut off, even within a character.
fn tail_text(tail: &[u8]) -> String {
    let cut = tail.iter().take(3).take_while(|byte| **byte & 0xC0 == 0x80).count();
    let start = if tail.len() == ERROR_BYTES_MAX { cut } else { 0 };
    let text = String::from_utf8_lossy(&tail[start..]);
    let text = text.trim();
    // The replacement character is longer than the invalid bytes.
    let mut start = text.len().saturating_sub(ERROR_BYTES_MAX);
    while !text.is_char_boundary(start) {
        start += 1;
    }
    text[start..].to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tail(parts: &[&[u8]]) -> String {
        let mut stderr = Stderr::new();
        parts.iter().for_each(|part| stderr.take(part));
        stderr.line.clear();
        stderr.finish()
    }

    #[test]
    fn the_end_is_kept() {
        assert_eq!(tail(&[]), "");
        assert_eq!(tail(&[b"  one\n", b"two\n\n"]), "one\ntwo");
        let long = tail(&[&[b'a'; 10_000], b"end\n"]);
        assert_eq!((long.len(), &long[long.len() - 4..]), (ERROR_BYTES_MAX - 1, "aend"));
    }

    #[test]
    fn it_is_cut_between_characters() {
        let long = tail(&["ä".repeat(5_000).as_bytes(), b"b"]);
        assert_eq!(long, format!("{}b", "ä".repeat(2_047)));
        let bad = tail(&[&[0xFF; 5_000]]);
        assert_eq!(bad, "\u{FFFD}".repeat(ERROR_BYTES_MAX / 3));
    }
}
