//! Frames of HTTP/2 (RFC 9113), written by hand: a client library sends no hostile ones.

/// First bytes of a connection.
pub(crate) const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
/// Error code of a reset without a fault.
const CANCEL: u32 = 8;
/// Error code of a peer that sends too much.
pub(crate) const ENHANCE_YOUR_CALM: u32 = 11;

/// Types of frames.
pub(crate) mod kind {
    pub(crate) const DATA: u8 = 0;
    pub(crate) const HEADERS: u8 = 1;
    pub(crate) const PRIORITY: u8 = 2;
    pub(crate) const RST_STREAM: u8 = 3;
    pub(crate) const SETTINGS: u8 = 4;
    pub(crate) const PING: u8 = 6;
    pub(crate) const GOAWAY: u8 = 7;
    pub(crate) const WINDOW_UPDATE: u8 = 8;
    pub(crate) const CONTINUATION: u8 = 9;
    pub(crate) const UNKNOWN: u8 = 0x77;
}

/// Flags of frames.
pub(crate) mod flag {
    pub(crate) const NONE: u8 = 0;
    pub(crate) const END_STREAM: u8 = 1;
    pub(crate) const END_HEADERS: u8 = 4;
}

/// Settings by number.
pub(crate) mod setting {
    pub(crate) const INITIAL_WINDOW_SIZE: u16 = 4;
}

/// Builds a frame.
pub(crate) fn frame(kind: u8, flags: u8, stream: u32, payload: &[u8]) -> Vec<u8> {
    let mut frame = Vec::with_capacity(9 + payload.len());
    frame.extend_from_slice(&u32::try_from(payload.len()).unwrap().to_be_bytes()[1..]);
    frame.extend_from_slice(&[kind, flags]);
    frame.extend_from_slice(&stream.to_be_bytes());
    frame.extend_from_slice(payload);
    frame
}

/// Builds SETTINGS.
pub(crate) fn settings(values: &[(u16, u32)]) -> Vec<u8> {
    let bytes = values
        .iter()
        .flat_map(|(name, value)| [&name.to_be_bytes()[..], &value.to_be_bytes()].concat());
    frame(kind::SETTINGS, flag::NONE, 0, &bytes.collect::<Vec<_>>())
}

/// Builds WINDOW_UPDATE.
pub(crate) fn window_update(stream: u32, by: u32) -> Vec<u8> {
    frame(kind::WINDOW_UPDATE, flag::NONE, stream, &by.to_be_bytes())
}

/// Builds RST_STREAM.
pub(crate) fn reset(stream: u32) -> Vec<u8> {
    frame(kind::RST_STREAM, flag::NONE, stream, &CANCEL.to_be_bytes())
}

/// Encodes a header that enters no table (RFC 7541, 6.2.2).
pub(crate) fn header(name: &str, value: &str) -> Vec<u8> {
    let mut encoded = vec![0];
    text(name, &mut encoded);
    text(value, &mut encoded);
    encoded
}

fn text(text: &str, encoded: &mut Vec<u8>) {
    let mut length = text.len();
    if length < 127 {
        encoded.push(u8::try_from(length).unwrap());
    } else {
        encoded.push(127);
        length -= 127;
        while length >= 128 {
            encoded.push(u8::try_from(length % 128).unwrap() | 0x80);
            length /= 128;
        }
        encoded.push(u8::try_from(length).unwrap());
    }
    encoded.extend_from_slice(text.as_bytes());
}

/// Encodes the headers of a call.
pub(crate) fn call_headers(path: &str, content_type: &str) -> Vec<u8> {
    // `:method: POST` and `:scheme: http` are entries 3 and 6 of the static table.
    let mut block = vec![0x83, 0x86];
    let named = [
        (":path", path),
        (":authority", "ringq"),
        ("content-type", content_type),
        ("te", "trailers"),
    ];
    block.extend(named.iter().flat_map(|(name, value)| header(name, value)));
    block
}
