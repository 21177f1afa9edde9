//! Fields that a newer version of ringq has put into a stored message. A server that does not know them keeps them when it
//! writes the message again: during an upgrade servers of two versions share their stores.
//!
//! Kept fields are stored ones: decoders merge what is appended to a message with what is in it.

use prost::Message;
use prost::encoding::{self, DecodeContext};

/// Returns the fields of an encoded `M` that this version does not know, as they are stored.
pub(super) fn newer_fields<M: Message + Default + PartialEq>(blob: &[u8]) -> Vec<u8> {
    // A known field is never stored with the value that it has when it is absent.
    let is_newer = |field: &&[u8]| M::decode(*field).is_ok_and(|message| message == M::default());
    fields(blob).map(|(_, field)| field).filter(is_newer).flatten().copied().collect()
}

/// Returns the message in the field with this number; empty if there is none.
pub(super) fn message_in(number: u32, blob: &[u8]) -> Vec<u8> {
    let value = |(of, mut field): (u32, &[u8])| -> Vec<u8> {
        let is_it = of == number
            && encoding::decode_key(&mut field).is_ok()
            && encoding::decode_varint(&mut field).is_ok();
        if is_it { field.to_vec() } else { Vec::new() }
    };
    fields(blob).flat_map(value).collect()
}

/// Appends these fields of the message in the field with this number.
pub(super) fn put_fields(number: u32, fields: &Vec<u8>, blob: &mut Vec<u8>) {
    if !fields.is_empty() {
        encoding::bytes::encode(number, fields, blob);
    }
}

/// Returns the numbers of the fields of a message and the fields, each with its number and its length.
fn fields(mut rest: &[u8]) -> impl Iterator<Item = (u32, &[u8])> {
    std::iter::from_fn(move || {
        let start = rest;
        let (number, kind) = encoding::decode_key(&mut rest).ok()?;
        encoding::skip_field(kind, number, &mut rest, DecodeContext::default()).ok()?;
        Some((number, &start[..start.len() - rest.len()]))
    })
}
