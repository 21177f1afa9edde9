//! Heads of the frames in the bytes of an HTTP/2 connection (RFC 9113, section 4.1).

/// Number of bytes in front of the payload of a frame.
const HEAD_BYTES: usize = 9;

/// Types of frames.
pub(super) mod kind {
    pub(crate) const DATA: u8 = 0;
    pub(crate) const HEADERS: u8 = 1;
    pub(crate) const RST_STREAM: u8 = 3;
    pub(crate) const SETTINGS: u8 = 4;
}

/// Flag of the last frame of a stream in its direction, and of SETTINGS that are an acknowledgement.
pub(super) const END_STREAM_OR_ACK: u8 = 1;

/// Head of a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct FrameHead {
    pub(super) kind: u8,
    pub(super) flags: u8,
    pub(super) stream: u32,
}

/// Position within the frames of one direction.
#[derive(Debug)]
pub(super) struct FrameHeads {
    head: [u8; HEAD_BYTES],
    head_bytes: usize,
    /// Bytes until the next head.
    payload_left: usize,
}

// === impl FrameHeads ===

impl FrameHeads {
    /// Begins before the first frame, which this number of other bytes precedes.
    pub(super) fn after(bytes: usize) -> FrameHeads {
        FrameHeads { head: [0; HEAD_BYTES], head_bytes: 0, payload_left: bytes }
    }

    /// Returns the number of bytes until a head or a payload ends.
    pub(super) fn part_left(&self) -> usize {
        if self.payload_left > 0 { self.payload_left } else { HEAD_BYTES - self.head_bytes }
    }

    /// Calls `seen` with each frame whose head ends in these bytes.
    pub(super) fn read(&mut self, mut bytes: &[u8], mut seen: impl FnMut(FrameHead)) {
        loop {
            let skipped = self.payload_left.min(bytes.len());
            self.payload_left -= skipped;
            bytes = &bytes[skipped..];
            if bytes.is_empty() {
                return;
            }
            let taken = (HEAD_BYTES - self.head_bytes).min(bytes.len());
            self.head[self.head_bytes..self.head_bytes + taken].copy_from_slice(&bytes[..taken]);
            self.head_bytes += taken;
            bytes = &bytes[taken..];
            if self.head_bytes == HEAD_BYTES {
                let [a, b, c, kind, flags, stream @ ..] = self.head;
                self.head_bytes = 0;
                self.payload_left = usize::from(a) << 16 | usize::from(b) << 8 | usize::from(c);
                // The first bit has no meaning.
                seen(FrameHead {
                    kind,
                    flags,
                    stream: u32::from_be_bytes(stream) & (u32::MAX >> 1),
                });
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn heads_are_found_in_any_pieces() {
        let frame = |kind, flags, payload: u16| {
            let [a, b] = payload.to_be_bytes();
            let head = [0, a, b, kind, flags, 0x80, 0, 1, kind];
            [&head[..], &vec![7; usize::from(payload)]].concat()
        };
        let preface = super::super::PREFACE;
        let sent = [preface, &frame(1, 4, 70), &frame(6, 0, 0), &frame(0, 1, 300), &frame(9, 0, 0)]
            .concat();
        for size in 1..sent.len() {
            let (mut heads, mut seen) = (FrameHeads::after(preface.len()), Vec::new());
            for piece in sent.chunks(size) {
                heads.read(piece, |head| seen.push((head.kind, head.flags, head.stream)));
            }
            assert_eq!(seen, [(1, 4, 257), (6, 0, 262), (0, 1, 256), (9, 0, 265)], "{size}");
        }
    }

    #[test]
    fn parts_end_with_each_head_and_each_payload() {
        let mut heads = FrameHeads::after(24);
        let mut parts = Vec::new();
        for bytes in [&[0; 24][..], &[0, 0, 4], &[3, 0, 0, 0, 0, 1], &[7; 4], &[0; 9], &[]] {
            parts.push(heads.part_left());
            heads.read(bytes, |_| {});
        }
        assert_eq!(parts, [24, 9, 6, 4, 9, 9]);
    }
}
