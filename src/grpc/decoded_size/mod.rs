//! Memory that a request takes once it is decoded, estimated from its encoded bytes as they arrive.
//!
//! The decoder builds the whole message before a handler can check the length of a list, and an entry of a list takes
//! up to 500 times its shortest encoding: 4 MiB of empty jobs would become 2 GB. So the fields are counted first,
//! without decoding them. The bytes may come in any pieces.

mod shape;

use crate::domain::limit::DECODED_BYTES_MAX;

use super::status::RpcError;
use shape::{MessageShape, Shapes};

/// Length in bytes of what precedes a message of gRPC: a flag and the length of the message.
pub(super) const PREFIX_BYTES: usize = 5;
/// Size in bytes up to which a message is not examined: its entries fit into what is counted for each call anyway.
const SMALL_BYTES_MAX: usize = 256;
/// Size in bytes that each field counts: the memory of a short text, and the time to decode the field.
const FIELD_BYTES: usize = 16;
/// Maximum number of messages within each other, as in the decoder.
const DEPTH_MAX: usize = 100;
/// Maximum number of bytes of an encoded number.
const VARINT_BYTES_MAX: u32 = 10;

/// Counts the fields of the messages of one call.
#[derive(Debug)]
pub(super) struct DecodedSize {
    shapes: &'static Shapes,
    /// Shape of the messages.
    root: usize,
    /// Messages that are open, the innermost one last.
    open: Vec<OpenMessage>,
    step: Step,
    /// Position in the current message.
    at: usize,
    /// Number that is being read, and its bytes so far.
    varint: u64,
    varint_bytes: u32,
    /// Bytes of the prefix so far, and their number.
    prefix: [u8; PREFIX_BYTES],
    prefix_bytes: usize,
    /// Estimated size of the current message.
    size: usize,
}

/// A message that has begun.
#[derive(Clone, Copy, Debug)]
struct OpenMessage {
    /// `None`: a group, or a message of unknown shape.
    shape: Option<usize>,
    end: usize,
    is_group: bool,
}

/// Next part of the bytes.
#[derive(Clone, Copy, Debug)]
enum Step {
    /// Prefix of a message.
    Prefix,
    /// Number and type of a field.
    Tag,
    /// Value of a field that is a number.
    Number,
    /// Length of the field of this number.
    Length(u32),
    /// Bytes without fields.
    Skip(usize),
    /// The bytes are no message: the decoder refuses them at the same position.
    Broken,
}

// === impl DecodedSize ===

impl DecodedSize {
    /// Creates the counter for the messages of the RPC with this path, as `ringq.v1.QueueService/Ack`; `None`: it
    /// is none of the contract.
    pub(super) fn of_rpc(path: &str) -> Option<DecodedSize> {
        let shapes = Shapes::of_requests();
        Some(DecodedSize::of_shape(shapes, shapes.of_rpc(path)?))
    }

    /// Creates the counter for messages of this full name, as `ringq.v1.AckRequest`; `None`: no request has them.
    pub(super) fn of_message(name: &str) -> Option<DecodedSize> {
        let shapes = Shapes::of_requests();
        Some(DecodedSize::of_shape(shapes, shapes.of_message(name)?))
    }

    fn of_shape(shapes: &'static Shapes, root: usize) -> DecodedSize {
        DecodedSize {
            shapes,
            root,
            open: Vec::new(),
            step: Step::Prefix,
            at: 0,
            varint: 0,
            varint_bytes: 0,
            prefix: [0; PREFIX_BYTES],
            prefix_bytes: 0,
            size: 0,
        }
    }

    /// Returns whether these bytes are a message with its prefix that need not be examined.
    pub(super) fn is_small(bytes: &[u8]) -> bool {
        bytes.len() <= SMALL_BYTES_MAX
            && bytes
                .first_chunk()
                .is_some_and(|prefix| message_bytes(prefix) + PREFIX_BYTES == bytes.len())
    }

    /// Reads the next bytes and returns the size that they add.
    ///
    /// # Errors
    /// A message has more than [`DECODED_BYTES_MAX`].
    pub(super) fn read(&mut self, mut bytes: &[u8]) -> Result<usize, RpcError> {
        let before = self.size;
        let mut added = 0;
        while !bytes.is_empty() {
            let taken = match self.step {
                Step::Prefix => {
                    // The size of a message before this one is counted already.
                    added += self.size;
                    self.size = 0;
                    self.prefix(bytes[0])
                }
                Step::Skip(rest) => self.skip(rest, bytes.len()),
                Step::Tag | Step::Number | Step::Length(_) => {
                    self.varint(bytes[0]);
                    1
                }
                Step::Broken => return Ok((added + self.size).saturating_sub(before)),
            };
            bytes = &bytes[taken..];
            if self.size > DECODED_BYTES_MAX {
                return Err(RpcError::decoded_too_large(DECODED_BYTES_MAX));
            }
        }
        Ok((added + self.size).saturating_sub(before))
    }

    fn prefix(&mut self, byte: u8) -> usize {
        self.prefix[self.prefix_bytes] = byte;
        self.prefix_bytes += 1;
        if self.prefix_bytes == PREFIX_BYTES {
            self.prefix_bytes = 0;
            let end = message_bytes(&self.prefix);
            self.at = 0;
            self.open.push(OpenMessage { shape: Some(self.root), end, is_group: false });
            self.next_field();
        }
        1
    }

    fn skip(&mut self, rest: usize, given: usize) -> usize {
        let taken = rest.min(given);
        self.at += taken;
        if taken == rest {
            self.next_field();
        } else {
            self.step = Step::Skip(rest - taken);
        }
        taken
    }

    /// Reads a number of one byte, as most are, or the next byte of a longer one.
    fn varint(&mut self, byte: u8) {
        self.at += 1;
        if byte < 0x80 && self.varint_bytes == 0 {
            return self.number(byte.into());
        }
        if self.varint_bytes == VARINT_BYTES_MAX {
            self.step = Step::Broken;
            return;
        }
        self.varint |= u64::from(byte & 0x7f) << (7 * self.varint_bytes);
        self.varint_bytes += 1;
        if byte < 0x80 {
            let number = std::mem::take(&mut self.varint);
            self.varint_bytes = 0;
            self.number(number);
        }
    }

    fn number(&mut self, number: u64) {
        match self.step {
            Step::Tag => self.tag(number),
            Step::Length(field) => self.length(field, number),
            _ => self.next_field(),
        }
    }

    fn tag(&mut self, tag: u64) {
        self.size += FIELD_BYTES;
        let Ok(field) = u32::try_from(tag >> 3) else {
            self.step = Step::Broken;
            return;
        };
        self.step = match tag & 7 {
            0 => Step::Number,
            1 => Step::Skip(8),
            2 => Step::Length(field),
            3 if self.open.len() < DEPTH_MAX => {
                let end = self.open.last().map_or(0, |message| message.end);
                self.open.push(OpenMessage { shape: None, end, is_group: true });
                Step::Tag
            }
            4 if self.open.last().is_some_and(|message| message.is_group) => {
                self.open.pop();
                return self.next_field();
            }
            5 => Step::Skip(4),
            _ => Step::Broken,
        };
    }

    fn length(&mut self, field: u32, length: u64) {
        // A part may be longer than the message around it, but not than the bytes: the decoder compares only at its end.
        let all = self.open.first().map_or(0, |message| message.end);
        let Some(length) =
            usize::try_from(length).ok().filter(|length| *length <= all - self.at.min(all))
        else {
            self.step = Step::Broken;
            return;
        };
        let shape = self.open.last().and_then(|message| message.shape);
        let field = shape.and_then(|shape| self.shape(shape).field(field));
        let Some(field) = field else {
            self.step = Step::Skip(length);
            return self.skip_nothing(length);
        };
        self.size += field.entry_bytes + length.saturating_mul(field.packed_bytes);
        if field.message.is_none() || self.open.len() >= DEPTH_MAX {
            self.step = Step::Skip(length);
            return self.skip_nothing(length);
        }
        let end = self.at + length;
        self.open.push(OpenMessage { shape: field.message, end, is_group: false });
        self.next_field();
    }

    fn shape(&self, index: usize) -> &'static MessageShape {
        self.shapes.get(index)
    }

    /// Goes on behind a part without bytes.
    fn skip_nothing(&mut self, length: usize) {
        if length == 0 {
            self.next_field();
        }
    }

    /// Ends the messages that end here, and begins the next field or message.
    fn next_field(&mut self) {
        self.step = Step::Tag;
        while let Some(message) = self.open.last() {
            if self.at < message.end {
                return;
            }
            if self.at > message.end || message.is_group {
                self.step = Step::Broken;
                return;
            }
            self.open.pop();
        }
        self.step = Step::Prefix;
    }
}

/// Returns the length of the message behind a prefix.
fn message_bytes(prefix: &[u8; PREFIX_BYTES]) -> usize {
    let [_is_compressed, length @ ..] = *prefix;
    usize::try_from(u32::from_be_bytes(length)).unwrap_or(usize::MAX)
}

#[cfg(test)]
mod tests;
