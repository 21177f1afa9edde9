//! Body of a job: numbers of run and job, time of the enqueue, due time, filler, and a checksum over all of these.

use bytes::{BufMut as _, Bytes, BytesMut};
use xxhash_rust::xxh3::xxh3_64;

/// Bytes of a body without filler.
pub(super) const BYTES_MIN: usize = 8 + 4 + 8 + 8 + CHECKSUM_BYTES;

const CHECKSUM_BYTES: usize = 8;

/// Content of a body.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct BodyHeader {
    /// Number of the job within its run.
    pub(super) number: u32,
    /// Microseconds from the start of the run to the start, or the slot, of the enqueue call.
    pub(super) sent_us: u64,
    /// Due time in microseconds of the server's wall clock. 0: at once.
    pub(super) due_us: i64,
}

/// Error of a body that cannot be read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum BodyError {
    /// The body is not of this run.
    Foreign,
    /// The body is of this run, but differs from the one that was sent.
    Damaged,
}

/// Writer and reader of the bodies of a run, which have one size.
#[derive(Clone, Copy, Debug)]
pub(super) struct BodyCodec {
    run: u64,
    bytes: usize,
}

// === impl BodyCodec ===

impl BodyCodec {
    /// Creates the codec of a run whose bodies have `bytes` (at least [`BYTES_MIN`]) each.
    pub(super) fn new(run: u64, bytes: usize) -> BodyCodec {
        BodyCodec { run, bytes: bytes.max(BYTES_MIN) }
    }

    /// Allocates room for `jobs` bodies: one allocation for a whole batch.
    pub(super) fn buffer(&self, jobs: usize) -> BytesMut {
        BytesMut::with_capacity(self.bytes * jobs)
    }

    /// Writes one body.
    pub(super) fn write(&self, buffer: &mut BytesMut, stamp: BodyHeader) -> Bytes {
        buffer.put_u64(self.run);
        buffer.put_u32(stamp.number);
        buffer.put_u64(stamp.sent_us);
        buffer.put_i64(stamp.due_us);
        buffer.put_bytes(b'.', self.bytes - BYTES_MIN);
        buffer.put_u64(xxh3_64(buffer));
        buffer.split().freeze()
    }

    /// Reads one body.
    pub(super) fn read(&self, body: &[u8]) -> Result<BodyHeader, BodyError> {
        let (run, rest) = body.split_first_chunk().ok_or(BodyError::Foreign)?;
        if u64::from_be_bytes(*run) != self.run {
            return Err(BodyError::Foreign);
        }
        let (content, checksum) = body.split_last_chunk().ok_or(BodyError::Damaged)?;
        if body.len() != self.bytes || u64::from_be_bytes(*checksum) != xxh3_64(content) {
            return Err(BodyError::Damaged);
        }
        parse(rest).ok_or(BodyError::Damaged)
    }
}

fn parse(rest: &[u8]) -> Option<BodyHeader> {
    let (number, rest) = rest.split_first_chunk()?;
    let (sent, rest) = rest.split_first_chunk()?;
    let (due, _) = rest.split_first_chunk()?;
    Some(BodyHeader {
        number: u32::from_be_bytes(*number),
        sent_us: u64::from_be_bytes(*sent),
        due_us: i64::from_be_bytes(*due),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const STAMP: BodyHeader = BodyHeader { number: 7, sent_us: 8, due_us: 9 };

    fn body(bodies: BodyCodec) -> Vec<u8> {
        bodies.write(&mut bodies.buffer(1), STAMP).to_vec()
    }

    #[test]
    fn a_body_round_trips_at_any_size() {
        for bytes in [BYTES_MIN, 100, 1 << 20] {
            let bodies = BodyCodec::new(1, bytes);
            assert_eq!(body(bodies).len(), bytes);
            assert_eq!(bodies.read(&body(bodies)), Ok(STAMP));
        }
    }

    #[test]
    fn a_batch_shares_one_buffer() {
        let bodies = BodyCodec::new(1, 50);
        let mut buffer = bodies.buffer(3);
        let stamps = [1, 2, 3].map(|number| BodyHeader { number, ..STAMP });
        let written = stamps.map(|stamp| bodies.write(&mut buffer, stamp));
        assert_eq!(written.each_ref().map(|body| bodies.read(body)), stamps.map(Ok));
    }

    #[test]
    fn another_run_is_foreign() {
        let ours = BodyCodec::new(1, 100);
        assert_eq!(ours.read(&body(BodyCodec::new(2, 100))), Err(BodyError::Foreign));
        assert_eq!(ours.read(b""), Err(BodyError::Foreign));
        assert_eq!(ours.read(b"hello"), Err(BodyError::Foreign));
    }

    #[test]
    fn every_flipped_bit_and_every_lost_byte_is_found() {
        let bodies = BodyCodec::new(1, 60);
        let whole = body(bodies);
        for bit in 0..whole.len() * 8 {
            let mut body = whole.clone();
            body[bit / 8] ^= 1 << (bit % 8);
            assert!(bodies.read(&body).is_err(), "bit {bit}");
        }
        for bytes in 0..whole.len() {
            assert!(bodies.read(&whole[..bytes]).is_err(), "{bytes} bytes");
        }
    }
}
