//! Id of one call in logs, of the server and of the caller: `x-request-id`.

use http::{HeaderMap, HeaderName, HeaderValue};
use rand::Rng as _;

/// Header with the id, in requests and answers.
pub(super) const HEADER: HeaderName = HeaderName::from_static("x-request-id");
/// Maximum length in bytes of an id that is accepted from a caller.
const BYTES_MAX: usize = 128;
/// Digits of a generated id.
const DIGITS: &[u8; 16] = b"0123456789abcdef";

/// Returns the caller's id if a log can hold it, else a new one.
pub(super) fn from_headers(headers: &HeaderMap) -> HeaderValue {
    let good = |id: &&HeaderValue| {
        let id = id.as_bytes();
        (1..=BYTES_MAX).contains(&id.len()) && id.iter().all(u8::is_ascii_graphic)
    };
    let mut id = headers.get(HEADER).filter(good).cloned().unwrap_or_else(generate);
    // Each id is different: it must not push useful headers out of the connection's HPACK table.
    id.set_sensitive(true);
    id
}

/// Generates an id of 64 random bits in hex: enough to distinguish the calls of one log.
fn generate() -> HeaderValue {
    let bits: u64 = rand::rng().random();
    let nibbles: [u8; 16] = std::array::from_fn(|i| {
        let nibble = (bits >> (60 - 4 * i)) & 15;
        DIGITS[usize::try_from(nibble).unwrap_or(0)]
    });
    HeaderValue::from_bytes(&nibbles).unwrap_or(HeaderValue::from_static("none"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_id_is_taken_over_if_a_log_can_hold_it() {
        let given = |id: &[u8]| {
            let id = HeaderValue::from_bytes(id).unwrap();
            from_headers(&HeaderMap::from_iter([(HEADER, id)]))
        };
        assert_eq!(given(b"abc-123"), "abc-123");
        assert_eq!(given(&[b'x'; 128]).len(), 128);
        for bad in [&b""[..], b"a b", &[b'x'; 129], b"\xff", b"a\tb"] {
            assert_eq!(given(bad).len(), 16, "{bad:?}");
        }
    }

    #[test]
    fn made_ids_differ() {
        let (one, two) = (from_headers(&HeaderMap::new()), from_headers(&HeaderMap::new()));
        assert_ne!(one, two);
        assert!(one.as_bytes().iter().all(u8::is_ascii_hexdigit));
    }
}
