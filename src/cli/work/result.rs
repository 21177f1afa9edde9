//! Standard output of a command as the result of its job.

use tokio::io::{AsyncRead, AsyncReadExt as _};

use crate::domain::limit::PAYLOAD_BYTES_MAX;
use crate::pb::Payload;

/// Output so far.
#[derive(Debug, Default)]
pub(super) struct CapturedStdout {
    bytes: Vec<u8>,
    /// Set if the output exceeded the limit of a result; the rest was dropped.
    too_large: bool,
}

// === impl CapturedStdout ===

impl CapturedStdout {
    /// Reads to the end, whatever its size: a command whose output is not read would wait for ever.
    pub(super) async fn copy(&mut self, mut from: impl AsyncRead + Unpin) {
        let mut buffer = Vec::with_capacity(16 << 10);
        while let Ok(1..) = from.read_buf(&mut buffer).await {
            self.too_large |= self.bytes.len() + buffer.len() > PAYLOAD_BYTES_MAX;
            if !self.too_large {
                self.bytes.extend_from_slice(&buffer);
            }
            buffer.clear();
        }
    }

    /// Returns the result: JSON or other text without its last line breaks, like `$(…)`, or bytes unchanged. None if
    /// the command wrote nothing.
    pub(super) fn payload(self) -> Result<Option<Payload>, String> {
        if self.too_large {
            return Err(format!("its result is larger than {PAYLOAD_BYTES_MAX} bytes"));
        }
        let mut text = match String::from_utf8(self.bytes) {
            Ok(text) => text,
            Err(error) => return Ok(Some(Payload::data(error.into_bytes()))),
        };
        text.truncate(text.trim_end_matches(['\r', '\n']).len());
        if text.is_empty() {
            return Ok(None);
        }
        let json = serde_json::from_str::<serde::de::IgnoredAny>(&text).is_ok();
        let content_type = if json { "" } else { "text/plain; charset=utf-8" };
        Ok(Some(Payload { content_type: content_type.to_owned(), ..Payload::text(text) }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn payload(bytes: &[u8]) -> Option<Payload> {
        CapturedStdout { bytes: bytes.to_vec(), too_large: false }.payload().unwrap()
    }

    #[test]
    fn the_result_type_follows_its_bytes() {
        assert_eq!(payload(b""), None);
        assert_eq!(payload(b"\n\n"), None);
        assert_eq!(payload(b"{\"a\": 1}\n"), Some(Payload::text("{\"a\": 1}")));
        assert_eq!(payload(b"\xFF\n"), Some(Payload::data(&b"\xFF\n"[..])));
        let text = payload(b"two\nlines\n").unwrap();
        assert_eq!(
            (text.bytes(), &*text.content_type),
            (&b"two\nlines"[..], "text/plain; charset=utf-8")
        );
    }

    #[tokio::test]
    async fn a_large_result_is_drained_and_rejected() {
        let mut captured = CapturedStdout::default();
        captured.copy(&vec![b'a'; PAYLOAD_BYTES_MAX][..]).await;
        assert!(!captured.too_large);
        captured.copy(&b"a"[..]).await;
        assert!(captured.payload().unwrap_err().contains("1048576"));
    }
}
