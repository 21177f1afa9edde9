//! Names of streams, as workers see them.

use std::fmt;
use std::str::FromStr;

/// A stream: the nonce of its replica's life, and its number in that life. Each lease contains the id of the stream
/// that holds it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct StreamId {
    /// Nonce of the replica.
    pub owner: u32,
    /// Number of the stream, unique within the replica's life.
    pub stream: u32,
}

/// Error: the text is not a stream id.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("stream id is malformed: expected 8 hex digits, a dash and a number")]
pub struct InvalidStreamId;

// === impl StreamId ===

impl fmt::Display for StreamId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:08x}-{}", self.owner, self.stream)
    }
}

impl FromStr for StreamId {
    type Err = InvalidStreamId;

    fn from_str(text: &str) -> Result<StreamId, InvalidStreamId> {
        let (owner, stream) = text.split_once('-').ok_or(InvalidStreamId)?;
        let owner = u32::from_str_radix(owner, 16).map_err(|_| InvalidStreamId)?;
        let id = StreamId { owner, stream: stream.parse().map_err(|_| InvalidStreamId)? };
        // Each id has one spelling: a server never writes `+1` or `01`.
        if id.to_string() == text { Ok(id) } else { Err(InvalidStreamId) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stream_id_reads_back_and_no_other_text_does() {
        for (owner, stream) in [(0, 0), (7, 9), (u32::MAX, u32::MAX)] {
            let id = StreamId { owner, stream };
            assert_eq!(id.to_string().parse(), Ok(id));
        }
        for text in ["", "-", "7-9", "0000000g-1", "00000007-", "00000007-+9", "00000007-09", "x"] {
            assert_eq!(text.parse::<StreamId>(), Err(InvalidStreamId), "{text}");
        }
    }
}
